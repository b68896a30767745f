package log

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log/vfs"
)

// TestCheckpointGolden pins the bytes on disk.
func TestCheckpointGolden(t *testing.T) {
	c := checkpoint{oldest: 7, live: true, recoveryPoints: map[uint64]int64{2: 300, 1: 5, 0xffffffffffffffff: 0}}
	b := c.encode()
	require.Equal(t, "4d524350"+"7e40d2f3"+"0001"+"0001"+"00000003"+"0000000000000007"+
		"0000000000000001"+"0000000000000005"+"0000000000000002"+"000000000000012c"+"ffffffffffffffff"+"0000000000000000", hex.EncodeToString(b))
	got, err := decodeCheckpoint(b)
	require.NoError(t, err)
	require.Equal(t, c, got)
}

// TestCheckpointGarbled: any changed or missing byte is found, and the empty checkpoint comes back with the error (L5).
func TestCheckpointGarbled(t *testing.T) {
	m := vfs.NewMem(1)
	got, err := readCheckpoint(m, "/")
	require.NoError(t, err)
	require.Zero(t, got.oldest)
	c := checkpoint{oldest: 7, recoveryPoints: map[uint64]int64{2: 300, 1: 5}}
	b := c.encode()
	for i := range b {
		for _, x := range []byte{1, 0x80, 0xff} {
			g := bytes.Clone(b)
			g[i] ^= x
			require.NoError(t, vfs.ReplaceFile(m, "/", checkpointName, g))
			got, err := readCheckpoint(m, "/")
			require.ErrorIs(t, err, ErrCorrupt, "byte %d", i)
			require.Zero(t, got)
		}
		_, err := decodeCheckpoint(b[:i])
		require.ErrorIs(t, err, ErrCorrupt)
	}
	_, err = decodeCheckpoint(append(b, 0))
	require.ErrorIs(t, err, ErrCorrupt)
	require.NoError(t, vfs.ReplaceFile(m, "/", checkpointName, b))
	got, err = readCheckpoint(m, "/")
	require.NoError(t, err)
	require.Equal(t, c, got)
	_, err = readCheckpoint(vfs.NewFaulty(m, vfs.Fault{Op: vfs.OpOpen, Err: vfs.ErrIO}), "/")
	require.ErrorIs(t, err, vfs.ErrIO)
	require.NotErrorIs(t, err, ErrCorrupt)
}

// FuzzCheckpoint: what decodes encodes to the same bytes; nothing panics.
func FuzzCheckpoint(f *testing.F) {
	f.Add((&checkpoint{oldest: 7, live: true, recoveryPoints: map[uint64]int64{2: 300, 1: 5}}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodeCheckpoint(b)
		if err == nil {
			require.Equal(t, b, c.encode())
		}
	})
}
