package raftlog

import (
	"bytes"
	"fmt"

	"github.com/hashicorp/raft"
)

const segmentSuffix = ".entries"

func segmentName(number uint64) string { return fmt.Sprintf("%016d%s", number, segmentSuffix) }

// segmentNumber returns the number in a name, 0 if it is none of a segment.
func segmentNumber(name string) (n uint64) {
	if _, err := fmt.Sscanf(name, "%d"+segmentSuffix, &n); err != nil || segmentName(n) != name {
		return 0
	}
	return n
}

// headerMagic begins the header: with the log's id, the segment's number and how many sectors it has it fills sector 0, as
// a batch would.
const headerMagic = "millrace raft log 1\n"

// segment is one file. All fields but file and those of its size are guarded by Log.mu; next and nextBatch change under
// Log.writing too.
type segment struct {
	number  uint64
	file    file
	sectors int // of the file; never changes
	sealer  sealer

	next                  int    // sector of the next batch
	firstBatch, nextBatch uint64 // batches firstBatch … nextBatch-1 are in it
	last                  int    // sector of the last of them

	// The entries that are here and count, without a gap; none if at is empty.
	first uint64
	at    []position
}

// end is the index after the last entry.
func (s *segment) end() uint64 { return s.first + uint64(len(s.at)) }

// cut forgets the entries from index on.
func (s *segment) cut(index uint64) {
	if len(s.at) > 0 && index < s.end() {
		s.at = s.at[:max(index, s.first)-s.first]
	}
}

// behead forgets the entries before index.
func (s *segment) behead(index uint64) {
	if len(s.at) > 0 && index > s.first {
		n := min(index-s.first, uint64(len(s.at)))
		s.at, s.first = s.at[n:], s.first+n
	}
}

func header(id, number uint64, sectors int, s sealer) []byte {
	b := make([]byte, sectorBytes)
	n := sectorHead + copy(b[sectorHead:], headerMagic)
	little.PutUint64(b[n:], id)
	little.PutUint64(b[n+8:], number)
	little.PutUint64(b[n+16:], uint64(sectors))
	s.seal(0, 1, b)
	return b
}

// checkHeader returns how many sectors a segment has.
func checkHeader(b []byte, id, number uint64, s sealer) (sectors int, ok bool) {
	at := sectorHead + len(headerMagic)
	sectors = int(little.Uint64(b[at+16:]))
	return sectors, sectors > firstSector && bytes.Equal(b, header(id, number, sectors, s))
}

// read reads an entry. b is memory to use.
func (s *segment) read(index uint64, p position, b []byte, l *raft.Log) ([]byte, error) {
	from, to := int(p.off)/sectorData, int(p.off+p.n-1)/sectorData+1
	n := (to - from) * sectorBytes
	if cap(b) < n {
		b = make([]byte, n)
	}
	b = b[:n]
	if _, err := s.file.ReadAt(b, int64(from)*sectorBytes); err != nil {
		return b, fmt.Errorf("segment %d: %w", s.number, err)
	}
	for i := from; i < to; i++ {
		if !s.sealer.whole(i, b[(i-from)*sectorBytes:][:sectorBytes]) {
			return b, fmt.Errorf("segment %d, sector %d: %w", s.number, i, ErrDamaged)
		}
	}
	data := unpack(b)[int(p.off)-from*sectorData:][:p.n]
	if !readEntry(index, data, l) {
		return b, fmt.Errorf("segment %d, entry %d: %w", s.number, index, ErrDamaged)
	}
	return b, nil
}
