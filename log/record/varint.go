package record

import "encoding/binary"

// Varints are zigzag encoded. The readers return the number of bytes used, 0
// when b ends inside the number and -1 when no number is that long.

// readVarint reads a number of up to 32 bits.
func readVarint(b []byte) (int32, int) {
	var u uint32
	for i, c := range b {
		if i == 4 && c > 0x0f {
			return 0, -1
		}
		u |= uint32(c&0x7f) << (7 * i)
		if c < 0x80 {
			return int32(u>>1) ^ -int32(u&1), i + 1
		}
	}
	return 0, 0
}

// readVarlong reads a number of up to 64 bits.
func readVarlong(b []byte) (int64, int) {
	v, n := binary.Varint(b)
	if n < 0 {
		return 0, -1
	}
	return v, n
}

// unzigzag is a number of one byte. The decoder of records tries it before it
// calls the functions above, which the compiler does not inline.
func unzigzag(c byte) int32 { return int32(c>>1) ^ -int32(c&1) }

// appendVarint appends v, which is a number of up to 32 or 64 bits: the
// encodings agree.
func appendVarint(dst []byte, v int64) []byte { return binary.AppendVarint(dst, v) }

// varintLen is the number of bytes appendVarint appends for v.
func varintLen(v int64) int {
	u := uint64(v)<<1 ^ uint64(v>>63)
	n := 1
	for u >= 0x80 {
		u >>= 7
		n++
	}
	return n
}
