package txn

import (
	"time"

	"github.com/millrace/millrace/metadata"
)

// Instant is a point on a monotonic clock in nanoseconds (I22); its origin is the driver's business. The core never reads
// a clock.
type Instant int64

// Never is later than every Instant a driver passes in.
const Never = Instant(1<<63 - 1)

// Time is what a driver tells a core of the time. Wall is stored, and tells how long a transaction has been open when its
// coordinator died.
type Time struct {
	At   Instant
	Wall int64 // milliseconds since 1970
}

// Waiter is whatever the driver wants back with the answer to a request; nil where nobody waits.
type Waiter any

// Event is what happened to one transactional id. The core may keep a request until it has answered it.
type Event interface{ event() }

// Seen gives the core the committed record: when this broker becomes the coordinator, and whenever there is another one,
// whoever has changed it. They come in the order of the metadata. Requests are refused until the first of them.
type Seen struct {
	// Transaction is the committed record, nil when there is none.
	Transaction *metadata.Transaction
	// Taken: the transaction may have been open for a while before this broker looked.
	Taken bool
}

// LetGo says that this broker no longer coordinates the id. Everything that waits is answered with Err.
type LetGo struct{ Err error }

// Changed is the outcome of [ActionPropose]; a Seen with what is committed after it comes first. metadata.ErrTimeout leaves
// open whether the change is or will be made.
type Changed struct {
	Seq uint64
	Err error
}

// Allocated is the outcome of [ActionAllocate]: a producer id that nobody has or had (P5), or why there is none.
type Allocated struct {
	Seq        uint64
	ProducerID int64
	Err        error
}

// request is what requests have in common.
type request struct {
	Waiter Waiter
	// Until is how long the request may be held while something else of its id is under way.
	Until Instant
	// attempts counts how often it was decided anew because the record had changed.
	attempts int
}

// Init is InitProducerId, answered by [ActionInit].
type Init struct {
	request
	InitRequest
}

// Add is AddPartitionsToTxn and AddOffsetsToTxn, answered by [ActionAnswer], or by whoever carries out [ActionAdd].
type Add struct {
	request
	ProducerID    int64
	ProducerEpoch int16
	Partitions    []metadata.TopicPartitions
	Groups        []string
}

// End is EndTxn, answered by [ActionEnd].
type End struct {
	request
	EndRequest
}

// Abort ends the open transaction, if there is one, and fences its producer: by order, answered by [ActionAnswer], or
// because its time is over.
type Abort struct {
	request
	late bool // its time is over
}

// Tick lets time pass. RetryMax bounds the pause before an abort is tried again that could not be made.
type Tick struct{ RetryMax Instant }

func (*Seen) event()      {}
func (*LetGo) event()     {}
func (*Changed) event()   {}
func (*Allocated) event() {}
func (*Init) event()      {}
func (*Add) event()       {}
func (*End) event()       {}
func (*Abort) event()     {}
func (*Tick) event()      {}

const (
	// heldMax bounds how many requests of one id wait for each other. An honest producer has one.
	heldMax = 32
	// attemptsMax bounds how often one request is decided anew.
	attemptsMax = 20
	// retryMin is the pause after a failed abort of a transaction whose time is over; it doubles up to Tick.RetryMax.
	retryMin = Instant(200 * time.Millisecond)
)
