package replication

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/metadata"
)

// TopicIDPartition names a partition by the id of its topic, so that a topic that was made again under its name never
// inherits (D14).
type TopicIDPartition struct {
	TopicID   metadata.TopicID
	Partition int32
}

// String returns topic id-partition.
func (tp TopicIDPartition) String() string { return fmt.Sprintf("%v-%d", tp.TopicID, tp.Partition) }

// Peers is how a Manager reaches other brokers. transport/peer implements it over the network; [Manager.OpenFollowerSession]
// is the other end.
type Peers interface {
	// OpenFetcher returns a fetcher for the partitions that broker leads. It does not connect: the first Fetch does.
	OpenFetcher(broker metadata.BrokerID) Fetcher
}

// Fetcher is one fetch session with a leader, on a connection of its own. A Manager has one per leader broker and
// calls it from one goroutine.
type Fetcher interface {
	// Fetch sends what changed since the last call, waits at the leader until there is something to say, at most
	// req.MaxWait, and returns it. The first call after OpenFetcher, and after an error, opens a new session: Changed
	// names all partitions then. After an error nothing is known of what the leader took in; the caller says everything
	// again. req is the caller's and not kept.
	Fetch(ctx context.Context, req *FollowerFetch) (*FollowerAnswer, error)
	// Wake makes a Fetch that waits at the leader come back at once with what there is, as if MaxWait had passed: the
	// caller has other positions to report. It may be called from any goroutine and keeps the session. A wake that comes
	// while the request is still on its way out counts; one that comes too late may end the next wait early instead.
	Wake()
	// Close ends the session and the connection; a Fetch under way fails.
	Close()
}

// FollowerFetch is one request of a follower: the whole of a new session, or what changed since the request before.
type FollowerFetch struct {
	// BrokerEpoch is that of the follower's present registration (R12).
	BrokerEpoch int64
	// MaxWait bounds the wait at the leader for MinBytes of records or other news; zero: do not wait.
	MaxWait  time.Duration
	MinBytes int
	// MaxBytes bounds the records of the answer, [FetchPosition].MaxBytes those of one partition; the first batch of
	// an answer comes whatever its size (R22).
	MaxBytes int
	// Changed are partitions that are new in the session or whose position moved.
	Changed []FetchPosition
	// Forgotten are partitions that leave the session.
	Forgotten []TopicIDPartition
}

// FetchPosition is where a follower's replica stands: a report that it holds everything below Offset, durably when the
// topic has millrace.flush.ack (I2), and the wish for what follows.
type FetchPosition struct {
	TopicID   metadata.TopicID
	Partition int32
	// LeaderEpoch is the leader epoch in which the follower follows.
	LeaderEpoch int32
	Offset      int64
	// LastEpoch is the leader epoch of the last batch in the follower's log, -1 when it is empty (R3).
	LastEpoch      int32
	LogStartOffset int64
	MaxBytes       int
}

// FollowerAnswer is the answer to a FollowerFetch. Partitions with nothing to say are left out.
type FollowerAnswer struct {
	Partitions []FetchedPartition
	// Free is called by Release, once; nil: nothing to free.
	Free func()
}

// Release ends the use of the answer: records that were not retained through their Owner may be overwritten.
func (a *FollowerAnswer) Release() {
	if free := a.Free; free != nil {
		a.Free = nil // first: freed, the answer may be another's
		free()
	}
}

// FetchedPartition is one partition of a FollowerAnswer.
type FetchedPartition struct {
	TopicID   metadata.TopicID
	Partition int32
	// Err is nil or matches an error of this package, or ErrOffsetOutOfRange of package log; then LogStartOffset and
	// LogEndOffset are the leader's bounds (all other offsets are -1 with an error).
	Err error
	// HighWatermark (exclusive), LogStartOffset and LogEndOffset (exclusive) are the leader's.
	HighWatermark, LogStartOffset, LogEndOffset int64
	// DivergingEpoch ≥ 0 says that the follower's last batch is not in the leader's log: the largest epoch ≤ LastEpoch
	// that the leader holds, and where it ends there. -1 otherwise.
	DivergingEpoch int32
	DivergingEnd   int64
	// Records are whole batches from the position's offset on, as they are in the leader's log. They alias a frame that
	// Owner owns; valid until Release unless retained. With Owner nil they are valid until Release only.
	Records []byte
	Owner   log.Buffer
}
