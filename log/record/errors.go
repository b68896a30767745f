package record

import (
	"errors"
	"strconv"
	"strings"
)

// Errors of this package. They are returned wrapped with detail; match them
// with errors.Is.
var (
	// ErrCorrupt means that the bytes are not a record batch, or one whose
	// contents contradict its header or its checksum.
	ErrCorrupt = errors.New("corrupt record batch")
	// ErrShort means that the bytes end inside a batch: what is there may be
	// the beginning of a good one.
	ErrShort = errors.New("record batch cut short")
	// ErrTooLarge means that a batch is larger than Rules.MaxBytes.
	ErrTooLarge = errors.New("record batch too large")
	// ErrUnsupportedCodec means a compression codec that does not exist, or
	// zstd in a produce request older than version 7 (KIP-110).
	ErrUnsupportedCodec = errors.New("unsupported compression codec")
	// ErrInvalidTimestamp means a record outside the timestamp bounds of its
	// topic. Validate reports it as an *InvalidError.
	ErrInvalidTimestamp = errors.New("invalid record timestamp")
	// ErrInvalidRecord means a well-formed batch that a leader must not
	// accept. Validate reports it as an *InvalidError.
	ErrInvalidRecord = errors.New("invalid record")
	// ErrDecompressedTooLarge means that the records would take more bytes
	// than the caller allows once decompressed.
	ErrDecompressedTooLarge = errors.New("decompressed records too large")
)

// InvalidError says why a batch was refused, and which of its records are to
// blame (KIP-467). errors.Is matches ErrInvalidTimestamp if a timestamp was out
// of bounds, ErrInvalidRecord otherwise.
type InvalidError struct {
	// Message describes the whole batch, for the producer's eyes.
	Message string
	// Records lists the offending records in batch order, at most
	// MaxRecordErrors of them; empty if the fault lies in the header.
	Records []RecordError

	kind error // ErrInvalidTimestamp; nil = ErrInvalidRecord
}

// RecordError is the fault of one record.
type RecordError struct {
	Index   int32 // position in the batch, from 0
	Message string
}

// MaxRecordErrors bounds the list in an InvalidError, so that a batch of a
// million bad records cannot ask for a response of a million entries.
const MaxRecordErrors = 100

// Error implements error.
func (e *InvalidError) Error() string {
	var s strings.Builder
	s.WriteString(e.is().Error())
	s.WriteString(": ")
	s.WriteString(e.Message)
	if len(e.Records) > 0 {
		s.WriteString(" (record ")
		s.WriteString(strconv.Itoa(int(e.Records[0].Index)))
		s.WriteString(": ")
		s.WriteString(e.Records[0].Message)
		s.WriteString(")")
	}
	return s.String()
}

// Is implements the match of errors.Is.
func (e *InvalidError) Is(target error) bool { return target == e.is() }

func (e *InvalidError) is() error {
	if e.kind != nil {
		return e.kind
	}
	return ErrInvalidRecord
}
