package log

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
)

// A producer snapshot is the state of all producers at the offset in its name, so that recovery replays only what lies
// behind it (L8). The format is Kafka's version 1, big endian:
//
//	0  version i16 = 1
//	2  CRC-32C u32 of all that follows
//	6  number of entries i32, each 46 bytes:
//	   producer id i64 | epoch i16 | last sequence i32 | last offset i64 | offset delta i32 | timestamp i64 |
//	   coordinator epoch i32 | first offset of the open transaction i64
//
// Kafka keeps only the last batch of each producer there, so a restarted broker of Kafka's can not recognise a retry
// of the four batches before it. Nor does it know there which decided transactions have a marker that may be truncated
// yet, or whether the index of aborted transactions is whole. We append all that, covered by the same CRC; Kafka's reader
// stops after the entries:
//
//	.. magic "MRP2", the offset of the snapshot i64 (a file under a wrong name is found out), then for each entry in
//	   order: number of older batches u8, each
//	   first sequence i32 | last sequence i32 | last offset i64 | offset delta i32 | timestamp i64 (newest first)
//	.. number of decided transactions u32, each first offset i64 | offset of the marker i64, ascending by marker
//	.. of the segment that the offset lay in: its base i64, number of aborted transactions in its index u32, their
//	   CRC-32C u32. A snapshot taken at a roll says nothing (abortedUnknown): the segment was still to be made, and if that is
//	   cut away again the offset lies in the one before.
//
// With the magic "MRPW" the file ends behind the older batches: it was written when there were no transactions.
const (
	snapshotVersion      = 1
	snapshotHeaderBytes  = 10
	snapshotEntryBytes   = 46
	snapshotWindowMagic  = 0x4d525057 // "MRPW"
	snapshotMagic        = 0x4d525032 // "MRP2"
	snapshotBatchBytes   = 28
	snapshotDecidedBytes = 16
)

// What stands for the base of a segment in a snapshot that tells of none.
const (
	// abortedUnknown: Kafka wrote it, or it was taken at a roll.
	abortedUnknown int64 = -1
	// abortedNever: it was written when there were no transactions.
	abortedNever int64 = -2
)

// snapshot is the content of a producer snapshot.
type snapshot struct {
	producers    producers
	transactions transactions
	// aborted is what the index of aborted transactions of the segment with that base held, abortedUnknown: of none.
	aborted     abortedSum
	abortedBase int64
}

// snapshot encodes the producers as of offset, which is the end of the log; seg is the segment that it lies in, nil if
// that is still to be made. Caller is the writer.
func (l *Log) snapshot(offset int64, seg *segment) []byte {
	l.mu.Lock()
	decided := slices.Clone(l.mu.transactions.decided)
	var sum abortedSum
	base := abortedUnknown
	if seg != nil {
		sum, base = seg.aborted.sumOf(), seg.base
	}
	l.mu.Unlock()
	return l.producers.encode(offset, decided, base, sum)
}

// encode writes the snapshot of the producers as of offset.
func (p *producers) encode(offset int64, decided []decidedTransaction, abortedBase int64, aborted abortedSum) []byte {
	ids := make([]int64, 0, len(p.byID))
	for id := range p.byID {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	b := make([]byte, 0, snapshotHeaderBytes+len(ids)*(snapshotEntryBytes+1)+len(decided)*snapshotDecidedBytes+32)
	b = binary.BigEndian.AppendUint16(b, snapshotVersion)
	b = binary.BigEndian.AppendUint32(b, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(len(ids)))
	for _, id := range ids {
		e := p.byID[id]
		last := producerBatch{lastSequence: -1, lastOffset: -1}
		if e.count > 0 {
			last = e.batches[0]
		}
		b = binary.BigEndian.AppendUint64(b, uint64(id))
		b = binary.BigEndian.AppendUint16(b, uint16(e.epoch))
		b = binary.BigEndian.AppendUint32(b, uint32(last.lastSequence))
		b = binary.BigEndian.AppendUint64(b, uint64(last.lastOffset))
		b = binary.BigEndian.AppendUint32(b, uint32(last.offsetDelta))
		b = binary.BigEndian.AppendUint64(b, uint64(e.lastTimestamp))
		b = binary.BigEndian.AppendUint32(b, uint32(e.coordinatorEpoch))
		b = binary.BigEndian.AppendUint64(b, uint64(e.txnFirstOffset))
	}
	b = binary.BigEndian.AppendUint32(b, snapshotMagic)
	b = binary.BigEndian.AppendUint64(b, uint64(offset))
	for _, id := range ids {
		e := p.byID[id]
		older := e.batches[min(1, e.count):e.count]
		b = append(b, byte(len(older)))
		for i := range older {
			b = binary.BigEndian.AppendUint32(b, uint32(older[i].firstSequence))
			b = binary.BigEndian.AppendUint32(b, uint32(older[i].lastSequence))
			b = binary.BigEndian.AppendUint64(b, uint64(older[i].lastOffset))
			b = binary.BigEndian.AppendUint32(b, uint32(older[i].offsetDelta))
			b = binary.BigEndian.AppendUint64(b, uint64(older[i].timestamp))
		}
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(decided)))
	for _, d := range decided {
		b = binary.BigEndian.AppendUint64(b, uint64(d.first))
		b = binary.BigEndian.AppendUint64(b, uint64(d.marker))
	}
	b = binary.BigEndian.AppendUint64(b, uint64(abortedBase))
	b = binary.BigEndian.AppendUint32(b, uint32(aborted.count))
	b = binary.BigEndian.AppendUint32(b, aborted.checksum)
	binary.BigEndian.PutUint32(b[2:], crc32.Checksum(b[6:], castagnoli))
	return b
}

// decodeSnapshot reads the snapshot of offset; now is the clock at which the producers count as seen, and their
// transactions as begun. Errors match ErrCorrupt: such a snapshot is passed over.
func decodeSnapshot(b []byte, offset, now int64) (snapshot, error) {
	bad := func(format string, args ...any) (snapshot, error) {
		return snapshot{}, fmt.Errorf("%w: producer snapshot: %s", ErrCorrupt, fmt.Sprintf(format, args...))
	}
	if len(b) < snapshotHeaderBytes {
		return bad("%d bytes", len(b))
	}
	if v := binary.BigEndian.Uint16(b); v != snapshotVersion {
		return bad("version %d", v)
	}
	if want, got := binary.BigEndian.Uint32(b[2:]), crc32.Checksum(b[6:], castagnoli); want != got {
		return bad("checksum %08x, computed %08x", want, got)
	}
	count := int(int32(binary.BigEndian.Uint32(b[6:])))
	rest := b[snapshotHeaderBytes:]
	if count < 0 || count > len(rest)/snapshotEntryBytes {
		return bad("%d entries in %d bytes", count, len(rest))
	}
	p := producers{byID: make(map[int64]*producer, count)}
	entries := make([]*producer, count)
	for i := range entries {
		e := &producer{
			epoch:            int16(binary.BigEndian.Uint16(rest[8:])),
			lastTimestamp:    int64(binary.BigEndian.Uint64(rest[26:])),
			coordinatorEpoch: int32(binary.BigEndian.Uint32(rest[34:])),
			txnFirstOffset:   int64(binary.BigEndian.Uint64(rest[38:])),
			seen:             now,
		}
		last := producerBatch{
			lastSequence: int32(binary.BigEndian.Uint32(rest[10:])),
			lastOffset:   int64(binary.BigEndian.Uint64(rest[14:])),
			offsetDelta:  int32(binary.BigEndian.Uint32(rest[22:])),
			timestamp:    e.lastTimestamp,
		}
		if last.lastOffset >= 0 && last.lastSequence >= 0 {
			last.firstSequence = int32((uint32(last.lastSequence) - uint32(last.offsetDelta)) & 0x7fffffff)
			e.batches[0], e.count = last, 1
		}
		entries[i] = e
		p.byID[int64(binary.BigEndian.Uint64(rest))] = e
		rest = rest[snapshotEntryBytes:]
	}
	s := snapshot{producers: p, transactions: transactions{open: openOf(&p, now)}, abortedBase: abortedUnknown}
	if len(rest) == 0 {
		return s, nil // written by Kafka
	}
	if len(rest) < 12 {
		return bad("%d bytes follow the entries", len(rest))
	}
	magic := binary.BigEndian.Uint32(rest)
	if magic != snapshotMagic && magic != snapshotWindowMagic {
		return bad("%08x follows the entries", magic)
	}
	if at := int64(binary.BigEndian.Uint64(rest[4:])); at != offset {
		return bad("it is of offset %d, not %d", at, offset)
	}
	rest = rest[12:]
	for _, e := range entries {
		if len(rest) < 1 || rest[0] >= producerWindow || len(rest) < 1+int(rest[0])*snapshotBatchBytes {
			return bad("older batches are cut short")
		}
		n := int(rest[0])
		rest = rest[1:]
		if n > 0 && e.count == 0 {
			return bad("older batches without a last one")
		}
		for range n {
			e.batches[e.count] = producerBatch{
				firstSequence: int32(binary.BigEndian.Uint32(rest)),
				lastSequence:  int32(binary.BigEndian.Uint32(rest[4:])),
				lastOffset:    int64(binary.BigEndian.Uint64(rest[8:])),
				offsetDelta:   int32(binary.BigEndian.Uint32(rest[16:])),
				timestamp:     int64(binary.BigEndian.Uint64(rest[20:])),
			}
			e.count++
			rest = rest[snapshotBatchBytes:]
		}
	}
	if magic == snapshotWindowMagic {
		s.abortedBase = abortedNever
	} else {
		var err error
		if rest, err = s.decodeTransactions(rest); err != nil {
			return bad("%v", err)
		}
	}
	if len(rest) != 0 {
		return bad("%d bytes at the end", len(rest))
	}
	return s, nil
}

var errCutShort = errors.New("decided transactions are cut short")

// decodeTransactions reads what follows the older batches.
func (s *snapshot) decodeTransactions(b []byte) (rest []byte, err error) {
	if len(b) < 4 {
		return nil, errCutShort
	}
	n := int64(binary.BigEndian.Uint32(b))
	if b = b[4:]; int64(len(b)) < n*snapshotDecidedBytes+16 {
		return nil, errCutShort
	}
	for i := range n {
		d := decidedTransaction{first: int64(binary.BigEndian.Uint64(b)), marker: int64(binary.BigEndian.Uint64(b[8:]))}
		if d.first < 0 || d.marker <= d.first || i > 0 && d.marker <= s.transactions.decided[i-1].marker {
			return nil, fmt.Errorf("decided transaction from %d to %d", d.first, d.marker)
		}
		s.transactions.decided = append(s.transactions.decided, d)
		b = b[snapshotDecidedBytes:]
	}
	s.abortedBase = int64(binary.BigEndian.Uint64(b))
	s.aborted = abortedSum{count: int(binary.BigEndian.Uint32(b[8:])), checksum: binary.BigEndian.Uint32(b[12:])}
	return b[16:], nil
}
