package check

import "fmt"

// Type says which end of an operation a line is, and how it ended.
type Type string

// The types of lines.
const (
	Invoke Type = "invoke"
	OK     Type = "ok"
	Fail   Type = "fail" // it did not happen, and never will
	Info   Type = "info" // nobody knows
)

// F is what an operation does.
type F string

// The operations. Those of clients have an invocation and a completion; what the driver notes is a line of type OK or
// Info alone, unless said otherwise.
const (
	// Producer opens the producer Process; Text is "idempotent", "transactional" or "plain".
	Producer F = "producer"
	// Send appends Value to Key; its completion with type OK has the Offset. Many may be under way in one process. Txn is the
	// transaction that it is part of, 0 for none; Source and SourceOffset name the record that it was made from, "" for none.
	Send F = "send"
	// Assign makes the consumer Process read Key from Offset.
	Assign F = "assign"
	// Poll returns records of one Key: Values at Offsets, or from Offset on without a gap when Offsets is empty.
	Poll F = "poll"
	// Reread is a poll of the reading from the start at the end.
	Reread F = "reread"
	// HighWatermark asks Node for the end of Key, in the newest leader epoch that the client knows: the invocation's
	// Epoch; the completion has Offset and the Epoch of the answer.
	HighWatermark F = "hw"
	// LogStart asks in the same way for the first offset.
	LogStart F = "start"
	// Dump is a part of what lies in the files of Key on Node: Batches, and their records as in Poll.
	Dump F = "dump"
	// State is the hash, in Text, of the metadata that Node had applied up to Offset.
	State F = "state"
	// CreateTopic, DeleteTopic and DescribeTopic change and read topic Key at the controller. The completion's Text is the topic id, ""
	// where an answer does not say it; Error is [Exists] or [Missing] in a completion of type Fail that speaks of the
	// topic.
	CreateTopic   F = "create"
	DeleteTopic   F = "delete"
	DescribeTopic F = "describe"
	// AlterTopic sets a config of topic Key. It is noise, nothing is checked.
	AlterTopic F = "alter"
	// LastStable is HighWatermark of a reader of committed records: the end that does not pass an open transaction.
	LastStable F = "lso"
	// PollCommitted and RereadCommitted are Poll and Reread of one that reads committed records only.
	PollCommitted   F = "poll-committed"
	RereadCommitted F = "reread-committed"

	// Claim says that the member Process of Group was given Key in the generation (or member epoch) Epoch; Text is who it is
	// for the group: its instance id, or its member id when it has none. Release says that it has given it up, or was told
	// that it lost it.
	Claim   F = "claim"
	Release F = "release"
	// Take is a poll of a member of Group, with Text [ReadCommitted] if it reads committed records only. A member takes
	// before it commits.
	Take F = "take"
	// Commit sets the offset of Key in Group, by the member Process in the generation Epoch: the one that it is in, at the
	// invocation and at the completion. Epoch -1 commits without a membership.
	Commit F = "commit"
	// FetchOffset asks for it; Offset -1: there is none. The answer is a stable one: no transaction is about to change it.
	FetchOffset F = "offset"

	// Begin opens the transaction Txn of the producer Process, whose transactional id is Text. Txn is unique as values are.
	// What was sent in it has its Txn; TxnOffsets adds a commit of Offset of Key by Group to it. End ends it, with Text
	// "commit" or "abort"; one without an end was never told to be committed. An end that failed otherwise than by a refusal
	// of the commit is of type Info.
	Begin      F = "begin"
	TxnOffsets F = "txn-offsets"
	End        F = "end"
	// Adopt says that Value, which its producer sent in another transaction, may have become a part of Txn: transactions of
	// the first protocol share their producer's epoch, so that nobody can tell a request that comes too late for one of them
	// from a request of the next (P7, P8, KIP-890). Whether it has is seen at the end.
	Adopt F = "adopt"

	// Fault begins (Invoke) and ends (OK) what the driver does to the cluster; Text says what, Node to whom.
	Fault F = "fault"
	// Phase is a remark: which part of a run begins.
	Phase F = "phase"
)

// What a refusal of [CreateTopic], [DeleteTopic] or [DescribeTopic] says of the topic.
const (
	Exists  = "exists"
	Missing = "missing"
)

// Batch is a record batch in a file of a replica. Equal offsets and epochs mean equal bytes (I5), of which CRC is the sum.
type Batch struct {
	Base  int64  `json:"b"`
	Last  int64  `json:"l"`
	Epoch int32  `json:"e"`
	CRC   uint32 `json:"c"`
}

// Op is one line of a history. Which fields count depends on F; see there.
type Op struct {
	// Time is the monotonic time since the start of the history, in nanoseconds. The writer sets it.
	Time    int64   `json:"t"`
	Process int     `json:"p"`
	Type    Type    `json:"type"`
	F       F       `json:"f"`
	Key     string  `json:"k,omitempty"`
	Value   int64   `json:"v,omitempty"`
	Offset  int64   `json:"o,omitempty"`
	Epoch   int32   `json:"e,omitempty"`
	Node    int     `json:"n,omitempty"`
	Offsets []int64 `json:"os,omitempty"`
	Values  []int64 `json:"vs,omitempty"`
	Batches []Batch `json:"bs,omitempty"`
	Text    string  `json:"x,omitempty"`
	Group   string  `json:"g,omitempty"`
	Txn     int64   `json:"tx,omitempty"`
	// Source and SourceOffset are the record that a sent one was made from.
	Source       string `json:"sk,omitempty"`
	SourceOffset int64  `json:"so,omitempty"`
	Error        string `json:"err,omitempty"`
}

// records calls visit for each record of a poll or dump, in order.
func (o *Op) records(visit func(offset, value int64)) {
	for i, v := range o.Values {
		if len(o.Offsets) > 0 {
			visit(o.Offsets[i], v)
		} else {
			visit(o.Offset+int64(i), v)
		}
	}
}

// valueShift leaves 2^40 values to each process.
const valueShift = 40

// Value makes the n-th value of a process.
func Value(process int, n int64) int64 { return int64(process)<<valueShift | n }

// SplitValue undoes [Value].
func SplitValue(v int64) (process int, n int64) {
	return int(v >> valueShift), v & (1<<valueShift - 1)
}

// ValueString prints a value as process:n.
func ValueString(v int64) string {
	p, n := SplitValue(v)
	return fmt.Sprintf("%d:%d", p, n)
}

// The ends of a transaction, in the Text of [End].
const (
	CommitIt = "commit"
	AbortIt  = "abort"
)

// ReadCommitted is the Text of a [Take] at that level.
const ReadCommitted = "read_committed"

// Key names a partition in a history.
func Key(topic string, partition int32) string { return fmt.Sprintf("%s/%d", topic, partition) }
