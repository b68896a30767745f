package replication

import "github.com/millrace/millrace/metadata"

// ActionKind says what the driver has to do.
type ActionKind uint8

// Actions. Each names the fields of [Action] it sets.
const (
	// ActionAppend: append Waiter's batch in LeaderEpoch and answer with [Appended], see there.
	ActionAppend ActionKind = iota + 1
	// ActionReplicate: append the records of the response at hand as they are and answer with [Appended] before any
	// other event (R17, R21).
	ActionReplicate
	// ActionFlush: make the log durable up to its end. Needed only when FlushAck has just been switched on; a log with
	// FlushAck commits by itself.
	ActionFlush
	// ActionTruncate: cut the log to end at Offset, durably, and answer with [Truncated] before any other event (W14).
	ActionTruncate
	// ActionReset: drop the whole log and start again, empty, at Offset; answer with [Truncated].
	ActionReset
	// ActionTrim: move the log start to Offset, durably, and answer with [StartMoved], now or later.
	ActionTrim
	// ActionSendFetch: ask Broker for records from Offset in LeaderEpoch; LastEpoch and Seq go with it.
	ActionSendFetch
	// ActionAnswerFetch: answer the follower's fetch of Waiter: Err, or DivergingEpoch ≥ 0 with DivergingEnd, or
	// records from Offset up to the end.
	ActionAnswerFetch
	// ActionPropose: ask the controller to make ISR the in-sync replicas if LeaderEpoch and PartitionEpoch are still
	// the committed ones (R11).
	ActionPropose
	// ActionComplete: answer Waiter: Err, or success with BaseOffset in Offset. For DeleteRecords Offset is the low
	// watermark.
	ActionComplete
	// ActionSetHW: publish the high watermark Offset (exclusive) to readers, before any completion that follows in the
	// list. It is lower than before only ahead of a cut after an unclean election; then the checkpoint must not name a
	// higher one any more before the cut is made.
	ActionSetHW
	// ActionRole: the role, the leader epoch or the availability of offsets (R7) changed; publish the state of the core
	// to readers and wake those that wait.
	ActionRole
	// ActionHalt: this replica must not go on, Err says why; an operator has to look (R25).
	ActionHalt
)

var actionNames = [...]string{
	ActionAppend: "append", ActionReplicate: "replicate", ActionFlush: "flush", ActionTruncate: "truncate",
	ActionReset: "reset", ActionTrim: "trim", ActionSendFetch: "send-fetch", ActionAnswerFetch: "answer-fetch",
	ActionPropose: "propose", ActionComplete: "complete", ActionSetHW: "set-hw", ActionRole: "role", ActionHalt: "halt",
}

// String returns the name of the action as the scenario scripts print it.
func (k ActionKind) String() string { return actionNames[k] }

// Action is one thing to do, in the order of the list that [Core.Step] returns. It is a flat struct so that a list of
// them needs no allocation of its own.
type Action struct {
	Kind           ActionKind
	Waiter         Waiter
	Offset         int64
	LeaderEpoch    int32
	LastEpoch      int32
	PartitionEpoch int32
	DivergingEpoch int32
	DivergingEnd   int64
	Broker         metadata.BrokerID
	Seq            uint64
	ISR            []metadata.BrokerID // ActionPropose: not shared with the core
	Err            error
}
