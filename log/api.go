package log

// Buffer owns record bytes that are handed to a log. The log calls Retain if it keeps them beyond the call and Release
// when it is done with them.
type Buffer interface {
	// Retain adds one use.
	Retain()
	// Release ends one use; the owner may reuse the bytes after the last.
	Release()
}

// Set is what one caller appends at once: all of it or nothing.
type Set struct {
	// Records is one or more whole record batches v2. Append patches base offset and leader epoch in place.
	Records []byte
	// Owner owns Records. Nil: the bytes are valid only during the call, and the log copies what it keeps longer.
	Owner Buffer
	// MayBegin is asked when everything else speaks for a batch that would open a transaction of its producer here, at
	// the batch's place in the log, and of a marker, always: an error refuses the set and is its outcome (P7, KIP-890).
	// Nil: not asked. It is called by the writer and must not block. Replicate does not ask.
	MayBegin func() error
	// TransactionVersion is the transaction protocol of the producer, as far as it matters here: with 2 each transaction
	// has an epoch of its own (KIP-890). So the first batch that is known of a producer must begin at sequence 0, and a
	// marker must have a later epoch than the records that it ends.
	TransactionVersion int8
}

// Appended is the outcome of one set.
type Appended struct {
	// BaseOffset is the offset of the first record, NextOffset that behind the last (exclusive).
	BaseOffset, NextOffset int64
	// Duplicate says that the producer had sent this batch before: the offsets are those of the original (P1). The
	// caller still waits for NextOffset to become durable and replicated.
	Duplicate bool
	// Err is nil, or says why nothing of the set was appended.
	Err error
}

// RecoveryStats says what OpenDir did.
type RecoveryStats struct {
	// Partitions were opened, Offline of them could not be (corruption), Strays were left aside.
	Partitions, Offline, Strays int
	// BytesRead counts all bytes read from files of partitions and of the write-ahead log.
	BytesRead int64
	// BytesScanned counts those of them that were checked record batch by record batch, above the recovery points.
	BytesScanned int64
	// BytesTruncated counts the torn tails cut off (L1).
	BytesTruncated int64
	// WALRecords were found in the live files of the write-ahead log.
	WALRecords int
	// WALDamage lists what is wrong with the write-ahead log and can not come from a torn tail: nothing proves then
	// that the tails of the partitions are complete, and the directory's replicas must catch up before they count (I12).
	WALDamage []string
	// Seconds is the time it took.
	Seconds float64
}

// OfflinePartition is a partition whose directory can not be served: its bytes are kept, nothing is guessed (L9, L10).
type OfflinePartition struct {
	// Topic and Partition come from the name of the directory, TopicID from its files (zero if unreadable).
	Topic     string
	TopicID   [16]byte
	Partition int32
	// Path is the directory.
	Path string
	// Err says why; it matches ErrCorrupt.
	Err error
}

// ProducerState is what a partition knows about one producer id (KIP-360, KIP-664).
type ProducerState struct {
	ProducerID    int64 `json:"producer_id"`
	ProducerEpoch int16 `json:"producer_epoch"`
	// LastSequence is -1 if no batch is known.
	LastSequence int32 `json:"last_sequence"`
	// LastOffset is the last offset of the last batch, -1 if none is known.
	LastOffset int64 `json:"last_offset"`
	// LastTimestamp is the largest record timestamp of the last batch, in milliseconds.
	LastTimestamp int64 `json:"last_timestamp"`
	// CoordinatorEpoch is that of the last transaction marker, -1 if none.
	CoordinatorEpoch int32 `json:"coordinator_epoch"`
	// CurrentTxnFirstOffset is the first offset of the open transaction, -1 if none.
	CurrentTxnFirstOffset int64 `json:"current_txn_first_offset"`
}
