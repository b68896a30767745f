package raftlog

import (
	"encoding/binary"
	"hash/crc32"
)

// A segment is read and written in sectors, the unit in which a disk keeps a write or does not. Each says of itself whether
// it is whole:
//
//	4 bytes   CRC-32C over the log's id, the segment's number, the sector's number and the 508 bytes that follow
//	4 bytes   tag of the batch that it belongs to, never 0
//	504 bytes of the batch
//
// A segment was written full of zeros before its first batch, and nothing but a batch is ever written over them. So a sector
// of zeros was never written or did not reach the disk; one that is neither zeros nor whole was damaged later.
const (
	sectorBytes = 512
	sectorHead  = 8
	sectorData  = sectorBytes - sectorHead
	// firstSector is where batches begin. The header has the block before to itself, so that no append writes it again.
	firstSector = 8
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	zeros      [256 << 10]byte
	little     = binary.LittleEndian
)

// sectorsFor returns how many sectors n bytes of a batch take.
func sectorsFor(n int) int { return (n + sectorData - 1) / sectorData }

// tagOf is the mark of a batch in its sectors.
func tagOf(batch uint64) uint32 { return uint32(batch%(1<<32-1)) + 1 }

// sealer makes and checks the sums of one segment's sectors.
type sealer uint32

func newSealer(id, number uint64) sealer {
	var b [16]byte
	little.PutUint64(b[:], id)
	little.PutUint64(b[8:], number)
	return sealer(crc32.Checksum(b[:], castagnoli))
}

func (s sealer) sum(sector int, b []byte) uint32 {
	var at [4]byte
	little.PutUint32(at[:], uint32(sector))
	return crc32.Update(crc32.Update(uint32(s), castagnoli, at[:]), castagnoli, b[4:sectorBytes])
}

// seal completes the sectors in b, the first of which is number at.
func (s sealer) seal(at int, tag uint32, b []byte) {
	for ; len(b) > 0; b, at = b[sectorBytes:], at+1 {
		little.PutUint32(b[4:], tag)
		little.PutUint32(b, s.sum(at, b))
	}
}

// whole reports whether b holds sector at as it was written, whatever its tag.
func (s sealer) whole(at int, b []byte) bool {
	return little.Uint32(b) == s.sum(at, b) && little.Uint32(b[4:]) != 0
}

func sectorTag(b []byte) uint32 { return little.Uint32(b[4:]) }

// empty reports whether b is zeros.
func empty(b []byte) bool {
	for len(b) >= 8 {
		if little.Uint64(b) != 0 {
			return false
		}
		b = b[8:]
	}
	return true
}

// unpack moves what sectors carry together, in place, and returns it.
func unpack(b []byte) []byte {
	n := 0
	for at := 0; at+sectorBytes <= len(b); at += sectorBytes {
		n += copy(b[n:], b[at+sectorHead:at+sectorBytes])
	}
	return b[:n]
}
