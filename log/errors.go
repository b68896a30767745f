package log

import "errors"

// Errors of this package. They come wrapped with the partition and the offsets; test with errors.Is. Those marked
// definite promise that nothing of the set was appended and nothing of it will ever be visible (I17).
var (
	// ErrOffsetOutOfRange says that an offset lies below the start or above the end of the log.
	ErrOffsetOutOfRange = errors.New("offset out of range")
	// ErrCorrupt says that bytes which were durable are missing or changed: the partition is offline until its
	// directory is mended or refetched (L9, L10). Nothing is truncated or skipped because of it.
	ErrCorrupt = errors.New("log is corrupt")
	// ErrPoisoned says that a write or sync of the directory failed: nothing is acknowledged any more, the process
	// must end (L2, W17). Indefinite for sets already handed over.
	ErrPoisoned = errors.New("log directory failed")
	// ErrNoSpace says that the disk is full, or that less than the reserve is free (L13). Definite, retriable.
	ErrNoSpace = errors.New("no space left for records")
	// ErrOutOfOrderSequence says that a producer's sequence number leaves a gap or is older than the window (P1).
	// Definite.
	ErrOutOfOrderSequence = errors.New("out of order sequence number")
	// ErrInvalidProducerEpoch says that a newer epoch of the producer id has written here. Definite.
	ErrInvalidProducerEpoch = errors.New("producer epoch is older than the partition's")
	// ErrInvalidTransactionState says that a producer with an open transaction sent a batch that is no part of it.
	// Definite.
	ErrInvalidTransactionState = errors.New("batch does not belong to the open transaction of its producer")
	// ErrCoordinatorFenced says that a transaction marker comes from a coordinator that a later one has superseded.
	// Definite.
	ErrCoordinatorFenced = errors.New("transaction coordinator epoch is older than the partition's")
	// ErrInvalidBatch says that bytes handed to Append or Replicate are not whole record batches v2. Definite.
	ErrInvalidBatch = errors.New("not a whole record batch")
	// ErrUnexpectedOffset says that a replicated batch does not begin at the end of the log (R21). Definite.
	ErrUnexpectedOffset = errors.New("batch does not begin at the end of the log")
	// ErrStaleEpoch says that an append carries a leader epoch below the last one in the log. Definite.
	ErrStaleEpoch = errors.New("leader epoch is older than the log's")
	// ErrClosed says that the log or its directory was closed or deleted.
	ErrClosed = errors.New("log is closed")
	// ErrExists says that the partition exists already, or exists offline, in this directory.
	ErrExists = errors.New("partition exists")
	// ErrLocked says that another process uses the directory.
	ErrLocked = errors.New("log directory is in use")
)
