package replication

import "github.com/millrace/millrace/metadata"

// Instant is a point on a monotonic clock in nanoseconds; its origin is the driver's business. The core never reads a
// clock: it learns the time from the argument of [Core.Step].
type Instant int64

// Never is later than every Instant a driver passes in: the deadline of a request without one.
const Never = Instant(1<<63 - 1)

// Waiter names a request that waits for a [ActionComplete]. The driver chooses the value; zero is no waiter.
type Waiter uint64

// Event is what happened to one replica. Events are passed by pointer so that a driver can reuse one value per kind and
// the hot path allocates nothing; the core keeps no pointer to an event after Step returns.
type Event interface{ event() }

// Restart is the first event of every core: what recovery found.
type Restart struct {
	// Clean says that the directory carried the marker of a clean stop (I12).
	Clean bool
	// StartOffset ≤ DurableEnd ≤ EndOffset, all as the recovered log reports them.
	StartOffset, DurableEnd, EndOffset int64
	// LastEpoch is the leader epoch of the last batch, -1 for an empty log.
	LastEpoch int32
	// HighWatermark is the checkpointed value, or StartOffset when there is none. It is a lower bound that may be
	// stale, never trusted above what is on disk.
	HighWatermark int64
	// Policy is the topic's present configuration.
	Policy Policy
}

// Policy is the part of a topic's configuration that decides what an acknowledgement means.
type Policy struct {
	// MinInsync is min.insync.replicas, at least 1.
	MinInsync int
	// FlushAck is millrace.flush.ack: positions are durable ends (true) or end offsets (false).
	FlushAck bool
	// LagMax is how long a follower may stay behind before the leader proposes to drop it from the ISR
	// (replica.lag.time.max.ms), in nanoseconds.
	LagMax Instant
	// FetchTimeout is how long a follower waits for the answer to its fetch before it asks again, in nanoseconds. Zero:
	// the driver sees to it that every fetch is answered in the end.
	FetchTimeout Instant
	// RetryMin and RetryMax bound the pause before a follower asks again after an error: it doubles from one to the
	// other, in nanoseconds.
	RetryMin, RetryMax Instant
	// ProposalTimeout is how long a leader waits for the outcome of an ISR proposal before it makes it again, and before
	// it proposes a replica again that was refused, in nanoseconds.
	ProposalTimeout Instant
}

// Configure replaces the policy of a running replica.
type Configure struct{ Policy Policy }

// Peer is another replica of the partition as the committed metadata knows it.
type Peer struct {
	ID metadata.BrokerID
	// BrokerEpoch is the epoch of its present registration; a fetch made under another one comes from an earlier life
	// (R12).
	BrokerEpoch int64
	// Fenced brokers may not join the ISR.
	Fenced bool
}

// MetadataDelta is the committed record of the partition after a change. A record older than what the core already acts
// on is ignored (I13).
type MetadataDelta struct {
	Leader         metadata.BrokerID // -1: none
	LeaderEpoch    int32
	PartitionEpoch int32
	Replicas       []Peer // includes this broker
	ISR            []metadata.BrokerID
	// ELR are the replicas outside the ISR that may be elected when nobody in it lives (KIP-966).
	ELR []metadata.BrokerID
	// UncleanEpoch is the last leader epoch whose leader was elected outside ISR and ELR, -1 if there never was one. A
	// replica whose high watermark is from before it may have to truncate below it, and only then (R25). It stays in
	// the record in later epochs, because a replica may miss the very epoch.
	UncleanEpoch int32
}

// Produce asks to append one batch.
type Produce struct {
	Waiter      Waiter
	Acks        int16 // -1, 0 or 1
	LeaderEpoch int32 // the epoch the client believes in, -1: any
	Deadline    Instant
}

// Appended answers [ActionAppend] (Waiter set) or [ActionReplicate] (Waiter zero). The driver delivers it before
// anything but further Produce events, under the same lock as the action, so that the epoch cannot change between the
// check and the append (R17).
type Appended struct {
	Waiter   Waiter
	Acks     int16
	Deadline Instant
	// BaseOffset and NextOffset (exclusive) of the batch; of the original batch when Duplicate.
	BaseOffset, NextOffset int64
	Duplicate              bool
	// LastEpoch is the leader epoch of the log's last batch after a replicated append. A leader's append is in its own
	// epoch.
	LastEpoch int32
	// Err is set when nothing was appended.
	Err error
}

// Flushed says that the log is on stable storage below DurableEnd. LogGeneration is the generation the flush was
// started in: a flush of a log that has been truncated since speaks of other bytes and is dropped (W7).
type Flushed struct {
	LogGeneration uint64
	DurableEnd    int64
}

// FetchRequest is a follower's fetch. Reaching Offset is the follower's report that it holds everything below it:
// durably when FlushAck.
type FetchRequest struct {
	Waiter      Waiter
	Replica     metadata.BrokerID
	BrokerEpoch int64
	LeaderEpoch int32
	Offset      int64
	// LastEpoch is the epoch of the last batch in the follower's log, -1 when empty.
	LastEpoch int32
	// StartOffset is the follower's log start offset.
	StartOffset int64
	// AtFirstBatch says that Offset, though below the leader's log start, is the base of the batch that holds it: where
	// an empty follower begins anew, because batches are not split. The driver looks it up under the same lock.
	AtFirstBatch bool
	// FoundEpoch and FoundEnd are the leader's own log's answer for LastEpoch: the largest epoch ≤ LastEpoch it holds
	// and the offset at which that epoch ends; -1, -1 when there is none. The driver looks it up under the same lock.
	FoundEpoch int32
	FoundEnd   int64
}

// StillFetching says that a follower which has been told everything still waits for more at its position: the leader
// hears of the position once, not at each of the follower's polls.
type StillFetching struct {
	Replica     metadata.BrokerID
	BrokerEpoch int64
	// At is when the follower last asked.
	At Instant
}

// FetchResponse is the leader's answer to [ActionSendFetch], as received, perhaps late, twice or never.
type FetchResponse struct {
	// Seq is that of the action: an answer to another fetch is dropped (R27).
	Seq uint64
	// LeaderEpoch, Offset and LastEpoch are those of the request.
	LeaderEpoch int32
	Offset      int64
	LastEpoch   int32
	// BaseOffset and NextOffset of the records carried; equal when there are none.
	BaseOffset, NextOffset int64
	HighWatermark          int64
	LogStartOffset         int64
	LogEndOffset           int64
	// DivergingEpoch ≥ 0 says that the logs differ: the largest epoch ≤ LastEpoch that the leader holds, and its end
	// there.
	DivergingEpoch int32
	DivergingEnd   int64
	// LocalEpoch and LocalEnd are this replica's own log's answer for DivergingEpoch, looked up by the driver under the
	// same lock.
	LocalEpoch int32
	LocalEnd   int64
	// OutOfRange: Offset is outside the leader's [LogStartOffset, LogEndOffset]. Failed: any other error, ask again
	// later.
	OutOfRange, Failed bool
}

// Truncated answers [ActionTruncate] and [ActionReset] once the cut is durable (W14).
type Truncated struct {
	StartOffset, EndOffset int64
	LastEpoch              int32
	Err                    error
}

// ISRResult is the outcome of [ActionPropose].
type ISRResult struct {
	Seq     uint64
	Outcome ProposalOutcome
	// PartitionEpoch, ISR and ELR are the committed ones when Outcome is ProposalCommitted.
	PartitionEpoch int32
	ISR, ELR       []metadata.BrokerID
}

// ProposalOutcome says how a proposal ended.
type ProposalOutcome uint8

var outcomeNames = [...]string{"committed", "refused", "stale", "unknown"}

// String returns the name of the outcome.
func (o ProposalOutcome) String() string { return outcomeNames[o] }

// Outcomes of a proposal.
const (
	// ProposalCommitted: the controller applied it.
	ProposalCommitted ProposalOutcome = iota
	// ProposalRefused: the controller looked at it and will never apply it, for example because the replica is
	// ineligible (R12).
	ProposalRefused
	// ProposalStale: an epoch did not match; the metadata that says why is on its way.
	ProposalStale
	// ProposalUnknown: no answer. It may be applied yet, so it keeps counting (R9).
	ProposalUnknown
)

// DeleteRecords asks to move the log start offset to Offset, -1: to the last stable offset.
type DeleteRecords struct {
	Waiter      Waiter
	LeaderEpoch int32
	Offset      int64
	// LastStableOffset is the log's, looked up by the driver under the same lock.
	LastStableOffset int64
	Deadline         Instant
}

// StartMoved says that the log start offset is durable at StartOffset: the answer to [ActionTrim], or retention at
// work. Err fails the requests that wait for it.
type StartMoved struct {
	StartOffset int64
	Err         error
}

// Tick lets time pass: deadlines, lagging followers, lost fetches.
type Tick struct{}

// StorageFailed says that the directory is poisoned: nothing can be read back or appended any more (L2).
type StorageFailed struct{ Err error }

// Removed says that the partition is no longer this broker's: deleted, or assigned elsewhere.
type Removed struct{ Err error }

func (*Restart) event()       {}
func (*Configure) event()     {}
func (*MetadataDelta) event() {}
func (*Produce) event()       {}
func (*Appended) event()      {}
func (*Flushed) event()       {}
func (*FetchRequest) event()  {}
func (*StillFetching) event() {}
func (*FetchResponse) event() {}
func (*Truncated) event()     {}
func (*ISRResult) event()     {}
func (*DeleteRecords) event() {}
func (*StartMoved) event()    {}
func (*Tick) event()          {}
func (*StorageFailed) event() {}
func (*Removed) event()       {}
