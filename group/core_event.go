package group

import "github.com/millrace/millrace/metadata"

// Instant is a point on a monotonic clock in nanoseconds (I22); its origin is the driver's business. The core never reads
// a clock.
type Instant int64

// Never is later than every Instant a driver passes in.
const Never = Instant(1<<63 - 1)

// Time is what a driver tells a core of the time. Wall decides nothing: it is stored for the expiry of offsets.
type Time struct {
	At   Instant
	Wall int64 // milliseconds since 1970
}

// Waiter is whatever the driver wants back with the answer to a request; nil where nobody waits.
type Waiter any

// Event is what happened to one group. The core may keep a Join, Sync, Leave or Delete until it has answered it.
type Event interface{ event() }

// Loaded gives the core the committed record of its group: when this broker becomes its coordinator, when it may have
// been somebody else's in between, and after [ActionReload]. Requests are refused until the first of them.
type Loaded struct {
	// Group is the committed record, nil when there is none.
	Group *metadata.Group
	// LastGeneration is the last generation of a group of that name, 0 if none is known (I15).
	LastGeneration int32
	// Resume: a group whose coordinator died goes on in its generation (millrace.group.failover).
	Resume bool
	// Topics are those that exist now; nil where no group of consumers is about.
	Topics Topics
}

// LetGo says that this broker no longer coordinates the group. Everything that waits is answered with Err.
type LetGo struct{ Err error }

// Changed is the outcome of [ActionPropose]: the committed record after it, nil when the group is deleted, or why it was
// not made. metadata.ErrTimeout leaves open whether it is or will be.
type Changed struct {
	Seq   uint64
	Group *metadata.Group
	Err   error
}

// Join is JoinGroup, answered by [ActionJoin].
type Join struct {
	*JoinRequest
	Waiter Waiter
	// NewID is the id the member gets if it needs one: unique for ever (G9).
	NewID    string
	Settings *Settings
	Topics   Topics // as in Loaded
}

// Disconnected says that nobody waits for the answer to a Join any more: its connection is gone.
type Disconnected struct{ Join *Join }

// Sync is SyncGroup, answered by [ActionSync].
type Sync struct {
	*SyncRequest
	Waiter Waiter
	Topics Topics // as in Loaded
}

// Heartbeat is Heartbeat, answered by [ActionAnswer] in the same step.
type Heartbeat struct{ *HeartbeatRequest }

// Leave is LeaveGroup, answered by [ActionLeave].
type Leave struct {
	*LeaveRequest
	Waiter Waiter
}

// Commit asks whether a commit may be proposed; answered by [ActionAnswer] in the same step. The last word has Apply (G1).
type Commit struct{ *CommitRequest }

// CommitTransaction asks whether offsets may be proposed that are committed with a transaction; answered like Commit. The
// last word has Apply (G14).
type CommitTransaction struct{ *CommitRequest }

// Delete asks for the deletion of the group, answered by [ActionAnswer] with its Waiter.
type Delete struct{ Waiter Waiter }

// Seek sets offsets of the group by order of an administrator, in one change with the end of the members that it has, answered
// by [ActionAnswer] with its Waiter. ErrNonEmpty if there are members and Force says no. What the error is of a change whose
// outcome is not known, the order may be repeated.
type Seek struct {
	*metadata.GroupSeek
	Force  bool
	Waiter Waiter
	putOut int // members; written by the core before it answers
}

// Extend gives all members as much more time: the broker itself was held up and could not hear them (G6).
type Extend struct{ By Instant }

// Tick lets time pass.
type Tick struct{}

func (*Loaded) event()            {}
func (*LetGo) event()             {}
func (*Changed) event()           {}
func (*Join) event()              {}
func (*Disconnected) event()      {}
func (*Sync) event()              {}
func (*Heartbeat) event()         {}
func (*Leave) event()             {}
func (*Commit) event()            {}
func (*CommitTransaction) event() {}
func (*Delete) event()            {}
func (*Seek) event()              {}
func (*Extend) event()            {}
func (*Tick) event()              {}
