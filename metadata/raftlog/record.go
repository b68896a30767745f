package raftlog

import (
	"errors"
	"fmt"
	"hash/crc32"
)

// Record keeps the few bytes that say which segments there are. The log gives it whole new ones, one call at a time.
type Record interface {
	// Load returns what was stored last, nil for nothing. The caller owns it.
	Load() ([]byte, error)
	// Store replaces it durably, as a whole or not at all; after an error either may be there. It may not keep the bytes.
	Store([]byte) error
}

// record is what it holds:
//
//	1 byte    version
//	8 bytes   each of the fields below, in their order
//	4 bytes   CRC-32C over all before
type record struct {
	id uint64 // of this log, chosen at random
	// The segments first … last are there, whole files, and nothing in them but batches or zeros; none if last < first. A
	// number is never used again.
	first, last uint64
	// batch is the number of the first batch in segment first, or of the next one if there is none yet.
	batch uint64
	// head is the index below which entries don't count.
	head uint64
	// durable is the number of a batch before which every one is on the disk; there may be more.
	durable uint64
	// closed is the number of the next batch when the log was closed, 0 once anything else was stored since.
	closed uint64
}

const (
	recordVersion = 1
	recordBytes   = 1 + 7*8 + 4
)

// ErrNewer is matched by the error of a log that a later version has written.
var ErrNewer = errors.New("written by a newer version")

func (r *record) fields() []*uint64 {
	return []*uint64{&r.id, &r.first, &r.last, &r.batch, &r.head, &r.durable, &r.closed}
}

func (r record) encode() []byte {
	b := append(make([]byte, 0, recordBytes), recordVersion)
	for _, f := range r.fields() {
		b = little.AppendUint64(b, *f)
	}
	return withSum(b)
}

func withSum(b []byte) []byte { return little.AppendUint32(b, crc32.Checksum(b, castagnoli)) }

func decodeRecord(b []byte) (r record, err error) {
	if len(b) < 5 || little.Uint32(b[len(b)-4:]) != crc32.Checksum(b[:len(b)-4], castagnoli) {
		return r, fmt.Errorf("the record of its segments: %w", ErrDamaged)
	}
	if b[0] > recordVersion {
		return r, fmt.Errorf("the record of its segments has version %d: %w", b[0], ErrNewer)
	}
	if len(b) != recordBytes {
		return r, fmt.Errorf("the record of its segments has %d bytes: %w", len(b), ErrDamaged)
	}
	for i, f := range r.fields() {
		*f = little.Uint64(b[1+8*i:])
	}
	return r, nil
}
