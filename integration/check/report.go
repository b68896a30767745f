package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Kind names what is wrong, in Jepsen's words where it has one.
type Kind string

// The findings. None is ever allowed but where it is said.
const (
	// InconsistentOffset: two values at one offset of a partition, from acknowledgements, polls or files (I1).
	InconsistentOffset Kind = "inconsistent-offset"
	// LostWrite: an acknowledged or once delivered record below the highest offset that was read is not there (I1, I2).
	LostWrite Kind = "lost-write"
	// AbortedRead: a record is visible though its sender was told that it was refused, or to a reader of committed records
	// though its transaction was aborted or never committed (I3, I17; G1a).
	AbortedRead Kind = "aborted-read"
	// Duplicate: one value at two offsets. With a plain producer it is allowed, and counted in [Report.PlainDuplicates].
	Duplicate Kind = "duplicate"
	// NonmonotonicSend: records of one producer stand in another order than they were sent (I7).
	NonmonotonicSend Kind = "nonmonotonic-send"
	// IntNonmonotonicPoll: offsets go back inside one poll.
	IntNonmonotonicPoll Kind = "int-nonmonotonic-poll"
	// PollSkip: a consumer was not given a record that stands between two which it was given.
	PollSkip Kind = "poll-skip"
	// NonmonotonicPoll: offsets go back from one poll of a consumer to the next.
	NonmonotonicPoll Kind = "nonmonotonic-poll"
	// Unseen: acknowledged, and still not readable at the end (I20).
	Unseen Kind = "unseen"
	// HWRegress: the end or the start of a partition, as answered to clients, goes back (I4).
	HWRegress Kind = "hw-regress"
	// ReplicaDiff: two replicas differ below the high watermark (I5).
	ReplicaDiff Kind = "replica-diff"
	// FSMHash: two nodes differ though they applied the same entries (I14).
	FSMHash Kind = "fsm-hash"
	// CommitRegress: an acknowledged commit of an offset is not there any more (I18, G3, G4).
	CommitRegress Kind = "commit-regress"
	// CommitAhead: an offset was committed, and no member of the group was given all that is below it (at least once).
	CommitAhead Kind = "commit-ahead"
	// DoubleOwner: two members had a partition in one generation, or a commit was accepted from one that had lost it before
	// (I18, G1).
	DoubleOwner Kind = "double-owner"
	// TornTxn: some but not all of what a transaction wrote is visible, offsets included (I8).
	TornTxn Kind = "torn-txn"
	// PrecommittedRead: a reader of committed records was given one before anybody asked to commit it (I3).
	PrecommittedRead Kind = "precommitted-read"
	// NotLinearizable: what clients saw of topics, configs or offsets has no order that explains it (I13, I18).
	NotLinearizable Kind = "not-linearizable"
	// Malformed: the history breaks its own rules, so that nothing else can be believed.
	Malformed Kind = "malformed"
)

// keptPerKind bounds how many findings of a kind are kept with their text; all are counted.
const keptPerKind = 10

// Finding is one thing that is wrong.
type Finding struct {
	Kind Kind
	Key  string
	Text string
}

// String prints a finding on one line.
func (f Finding) String() string { return fmt.Sprintf("%s %s: %s", f.Kind, f.Key, f.Text) }

// Report is what a history shows.
type Report struct {
	// Findings holds the first of each kind; Counts has them all.
	Findings []Finding
	Counts   map[Kind]int

	// Lines of the history, and what the sends came to.
	Lines, Sent, Acknowledged, Refused, Indefinite int
	// Polled and Reread count delivered records, PlainDuplicates those of plain producers that stand twice.
	Polled, Reread, PlainDuplicates int
	// Taken counts records that members of groups were given, Claims how often they were given a partition, Commits
	// acknowledged commits of one offset outside of transactions.
	Taken, Claims, Commits int
	// Committed, Aborted and Undecided count transactions; of an undecided one nobody knows the end.
	Committed, Aborted, Undecided int
	// Made counts visible records that were made from consumed ones in transactions.
	Made int
	// Faults has a window for each fault, in order.
	Faults []Window
	// LongestGap is the longest time between two acknowledgements of any producer, while there were producers.
	LongestGap time.Duration
}

// Window is the time from the beginning of a fault to that of the next, or to the end of the producers.
type Window struct {
	Fault        string
	Begin, End   time.Duration // since the start of the history
	Acknowledged int
	// LongestGap is the longest time without an acknowledgement that touches the window.
	LongestGap time.Duration
}

// OK says that nothing is wrong.
func (r *Report) OK() bool { return len(r.Counts) == 0 }

// String prints the findings, the counts of the rest first.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d lines, %d sent, %d acknowledged, %d refused, %d indefinite, %d polled, %d read at the end, longest gap %s",
		r.Lines, r.Sent, r.Acknowledged, r.Refused, r.Indefinite, r.Polled, r.Reread, r.LongestGap.Round(time.Millisecond))
	if r.Claims > 0 {
		fmt.Fprintf(&b, "; groups: %d partitions given, %d records taken, %d offsets committed", r.Claims, r.Taken, r.Commits)
	}
	if n := r.Committed + r.Aborted + r.Undecided; n > 0 {
		fmt.Fprintf(&b, "; transactions: %d committed, %d aborted, %d undecided, %d records made of others", r.Committed, r.Aborted, r.Undecided, r.Made)
	}
	for _, k := range slices.Sorted(maps.Keys(r.Counts)) {
		fmt.Fprintf(&b, "\n%s: %d", k, r.Counts[k])
		for _, f := range r.Findings {
			if f.Kind == k {
				fmt.Fprintf(&b, "\n    %s: %s", f.Key, f.Text)
			}
		}
	}
	return b.String()
}

// add notes a finding. format is only carried out for those that are kept.
func (r *Report) add(kind Kind, key, format string, args ...any) {
	if r.Counts == nil {
		r.Counts = map[Kind]int{}
	}
	r.Counts[kind]++
	if r.Counts[kind] <= keptPerKind {
		r.Findings = append(r.Findings, Finding{kind, key, fmt.Sprintf(format, args...)})
	}
}
