package replication

import (
	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/metadata"
)

// FollowerSession is the leader's end of a [Fetcher]: what one follower broker follows here, what it reported of each
// partition and was told. It costs what has news, not what there is: a partition without news is not looked at, however
// many there are.
//
// A handler makes one per fetch session and uses it from one goroutine at a time:
//
//	Update  the request: positions are reports, which may move high watermarks (R9)
//	Ready   is there an answer now?
//	Park    if not: wake is called once there is
//	Collect makes the answer
//	Close   when the session or its connection ends
type FollowerSession struct {
	m       *Manager
	replica metadata.BrokerID
}

// FollowerNews is one partition of an answer to a follower; as [FetchedPartition], with the records still in their
// file. The caller releases Slice.
type FollowerNews struct {
	TopicID                                     metadata.TopicID
	Partition                                   int32
	Err                                         error
	HighWatermark, LogStartOffset, LogEndOffset int64
	DivergingEpoch                              int32
	DivergingEnd                                int64
	Slice                                       log.Slice
}

// OpenFollowerSession opens a session for the follower broker. Only a handler on the brokers' own listener may, after it
// has made sure who calls (S5).
func (m *Manager) OpenFollowerSession(replica metadata.BrokerID) *FollowerSession {
	return &FollowerSession{m: m, replica: replica}
}

// Update takes in a request. The caller may reuse it afterwards.
func (s *FollowerSession) Update(*FollowerFetch) {}

// Ready says whether there are minBytes of records or other news (errors, a diverging epoch, a high watermark or log
// start that the follower has not been told for a while).
func (s *FollowerSession) Ready(minBytes int) bool { return false }

// Park calls wake once when Ready(minBytes) becomes true, perhaps at once, from any goroutine, without locks of this
// package held; wake must not block. A second Park replaces the first; Unpark ends it.
func (s *FollowerSession) Park(minBytes int, wake func()) {}

// Unpark takes back a Park; a wake under way may still come.
func (s *FollowerSession) Unpark() {}

// Collect hands out what there is to say, in turn, with at most maxBytes of records: the first partition that has any
// gives at least one batch (R22). What does not fit comes with the next answer. Records given out are not given out
// again before the follower has reported a position for the partition.
func (s *FollowerSession) Collect(maxBytes int, each func(FollowerNews)) {}

// Close ends the session. It may be called more than once.
func (s *FollowerSession) Close() {}
