package log

import (
	"encoding/binary"
	"hash/crc32"
)

// AbortedTransaction is a transaction that was aborted: readers of committed records skip the records of the producer
// from FirstOffset up to the abort marker that follows.
type AbortedTransaction struct {
	ProducerID  int64
	FirstOffset int64
}

// The index of aborted transactions, Kafka's .txnindex: an entry for each abort marker in the segment that ended a
// transaction, in the order of the markers, big endian. A segment without any has no file.
//
//	0  version i16 = 0
//	2  producer id i64
//	10 first offset of the transaction i64
//	18 offset of the marker i64
//	26 last stable offset i64: the first offset of the transactions open at the marker, or the offset behind it
const (
	abortedEntryBytes = 34
	abortedVersion    = 0
)

// abortedEntry is a row.
type abortedEntry struct {
	producerID int64
	// first is the offset of its first record, last that of its marker.
	first, last int64
	// lastStable says that no entry that follows begins below.
	lastStable int64
}

func (e *abortedEntry) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, abortedVersion)
	b = binary.BigEndian.AppendUint64(b, uint64(e.producerID))
	b = binary.BigEndian.AppendUint64(b, uint64(e.first))
	b = binary.BigEndian.AppendUint64(b, uint64(e.last))
	return binary.BigEndian.AppendUint64(b, uint64(e.lastStable))
}

// abortedSum is how many entries an index of aborted transactions has, and the CRC-32C of all of them. Unlike the other
// indexes it is no cache that betrays itself: without an entry readers are shown records that were aborted. So what
// must be in the file is written elsewhere, in the manifest and in the producer snapshots.
type abortedSum struct {
	count    int
	checksum uint32
}

// abortedIndex is the index of aborted transactions of one segment.
type abortedIndex struct {
	sum     abortedSum
	entries []abortedEntry
}

// add appends the entry of a marker behind all others.
func (x *abortedIndex) add(e abortedEntry) {
	var buf [abortedEntryBytes]byte
	x.entries = append(x.entries, e)
	x.sum = abortedSum{count: x.sum.count + 1, checksum: crc32.Update(x.sum.checksum, castagnoli, e.append(buf[:0]))}
}

// AbortedTransactions returns the aborted transactions that concern a reader from offset from on who is given records
// below to, sorted by first offset: those with records below to whose marker is at or behind from.
//
// Errors: ErrOffsetOutOfRange if from lies below the start.
func (l *Log) AbortedTransactions(from, to int64) ([]AbortedTransaction, error) {
	return nil, nil
}
