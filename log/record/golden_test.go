package record

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// goldenHex is a batch written out by hand from the protocol's description,
// field by field; only the checksum was computed (by a bitwise CRC-32C, below).
const goldenHex = `
	0000000000000102                  base offset 258
	00000057                          length 87: 49 of header, 38 of records
	00000007                          leader epoch 7
	02                                magic
	CRC32C..
	0010                              transactional, no codec, create time
	00000001                          last offset delta 1
	00000192f0a1b2c3                  base timestamp
	00000192f0a1b2c8                  max timestamp, base + 5
	0000000000001092                  producer id 4242
	0003                              producer epoch 3
	7fffffff                          base sequence, wraps after the first record
	00000002                          2 records

	28                                length 20: 3 + 1+3 + 1+5 + 1 + 1+1 + 1+3
	00 00 00                          attributes, timestamp delta 0, offset delta 0
	06 6b6579                         key "key"
	0a 76616c7565                     value "value"
	02 02 68 06 766978                1 header: "h" = "vix"

	20                                length 16: 3 + 1 + 1 + 1 + 1+2+1 + 1+0+1+4
	00 0a 02                          attributes, timestamp delta 5, offset delta 1
	01                                null key
	00                                empty value
	04                                2 headers
	04 6e75 01                        "nu" = null
	00 08 6e6f6b65                    "" = "noke"
`

// golden decodes goldenHex: comments begin after two spaces.
func golden(t *testing.T) Batch {
	var digits strings.Builder
	for _, line := range strings.Split(goldenHex, "\n") {
		line = strings.TrimSpace(line)
		line, _, _ = strings.Cut(line, "  ")
		line = strings.ReplaceAll(line, "CRC32C..", "00000000")
		digits.WriteString(strings.ReplaceAll(line, " ", ""))
	}
	b, err := hex.DecodeString(digits.String())
	require.NoError(t, err)
	put32(b, atCRC, int32(bitwiseCRC32C(b[21:])))
	return b
}

// bitwiseCRC32C is CRC-32C from its definition: reflected polynomial
// 0x82f63b78, all ones before and after.
func bitwiseCRC32C(b []byte) uint32 {
	crc := ^uint32(0)
	for _, c := range b {
		crc ^= uint32(c)
		for range 8 {
			crc = crc>>1 ^ 0x82f63b78&-(crc&1)
		}
	}
	return ^crc
}

func TestGoldenChecksum(t *testing.T) {
	// The check value of CRC-32C that every catalogue of checksums lists.
	require.EqualValues(t, 0xe3069283, bitwiseCRC32C([]byte("123456789")))
}

func TestGoldenBytes(t *testing.T) {
	want := golden(t)

	b := NewBuilder(CodecNone)
	b.BaseOffset, b.LeaderEpoch = 258, 7
	b.ProducerID, b.ProducerEpoch, b.BaseSequence = 4242, 3, 0x7fffffff
	b.Transactional = true
	base := int64(0x192f0a1b2c3)
	b.Add(base, []byte("key"), []byte("value"), []RecordHeader{{Key: []byte("h"), Value: []byte("vix")}})
	b.Add(base+5, nil, []byte{}, []RecordHeader{{Key: []byte("nu")}, {Key: []byte{}, Value: []byte("noke")}})
	got := b.Build()
	require.Equal(t, hex.EncodeToString(want), hex.EncodeToString(got))

	require.NoError(t, got.Check())
	require.EqualValues(t, 258, got.BaseOffset())
	require.EqualValues(t, 7, got.LeaderEpoch())
	require.EqualValues(t, 2, got.Magic())
	require.EqualValues(t, attrTransactional, got.Attributes())
	require.Equal(t, CodecNone, got.Codec())
	require.Equal(t, CreateTime, got.TimestampType())
	require.True(t, got.IsTransactional())
	require.False(t, got.IsControl())
	require.False(t, got.HasDeleteHorizon())
	require.EqualValues(t, 1, got.LastOffsetDelta())
	require.EqualValues(t, 259, got.LastOffset())
	require.EqualValues(t, 260, got.NextOffset())
	require.Equal(t, base, got.BaseTimestamp())
	require.Equal(t, base+5, got.MaxTimestamp())
	require.EqualValues(t, 4242, got.ProducerID())
	require.EqualValues(t, 3, got.ProducerEpoch())
	require.EqualValues(t, 0x7fffffff, got.BaseSequence())
	require.EqualValues(t, 0, got.LastSequence(), "trap P3: sequences wrap to 0")
	require.EqualValues(t, 2, got.Count())
	require.Len(t, got.Payload(), len(got)-HeaderBytes)

	require.Equal(t, []plain{
		{base, 258, []byte("key"), []byte("value"), []RecordHeader{{Key: []byte("h"), Value: []byte("vix")}}},
		{base + 5, 259, nil, []byte{}, []RecordHeader{{Key: []byte("nu")}, {Key: []byte{}, Value: []byte("noke")}}},
	}, collect(t, got))

	h := got.Header()
	require.Equal(t, Header{
		BaseOffset: 258, Length: int32(len(got) - 12), LeaderEpoch: 7, CRC: got.CRC(), Attributes: attrTransactional,
		LastOffsetDelta: 1, BaseTimestamp: base, MaxTimestamp: base + 5,
		ProducerID: 4242, ProducerEpoch: 3, BaseSequence: 0x7fffffff, Count: 2,
	}, h)
	require.Equal(t, len(got), h.Size())
	require.EqualValues(t, 259, h.LastOffset())
	require.EqualValues(t, 260, h.NextOffset())
	require.EqualValues(t, 0, h.LastSequence())
	require.Equal(t, CodecNone, h.Codec())
	require.Equal(t, CreateTime, h.TimestampType())
	require.True(t, h.IsTransactional())
	require.False(t, h.IsControl())
}

// The golden marker is that of KIP-98's message format.
func TestGoldenMarker(t *testing.T) {
	b := Marker{Commit: true, CoordinatorEpoch: 0x01020304}.Batch(77, 5, now)
	require.Equal(t, "20"+"00"+"00"+"00"+"08"+"00000001"+"0c"+"000001020304"+"00", hex.EncodeToString(b.Payload()))
	require.True(t, b.IsControl())
	require.True(t, b.IsTransactional())
	require.EqualValues(t, 77, b.ProducerID())
	require.EqualValues(t, 5, b.ProducerEpoch())
	require.EqualValues(t, -1, b.BaseSequence())
	require.EqualValues(t, -1, b.LastSequence())
	require.EqualValues(t, 1, b.Count())
	require.Equal(t, now, b.MaxTimestamp())
	require.NoError(t, b.Check())

	m, ok, err := ParseMarker(b)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, Marker{Commit: true, CoordinatorEpoch: 0x01020304}, m)

	m, ok, err = ParseMarker(Marker{CoordinatorEpoch: 9}.Batch(77, 5, now))
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, Marker{CoordinatorEpoch: 9}, m)

	other := edit(b, func(b Batch) { b[HeaderBytes+8] = 2 }) // control type 2
	_, ok, err = ParseMarker(other)
	require.NoError(t, err)
	require.False(t, ok)

	_, _, err = ParseMarker(sample(CodecNone, 1, 1))
	require.ErrorIs(t, err, ErrCorrupt)
}
