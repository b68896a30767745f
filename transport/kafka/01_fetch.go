package kafka

import (
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/transport"
)

// Fetch (key 1), versions 4 to 17.
//
//	v4    record batches v2, isolation level, last stable offset
//	v5    log start offset
//	v7    sessions (KIP-227)
//	v9    current leader epoch, for fencing (KIP-320)
//	v10   zstd
//	v11   rack of the consumer: a replica in the same rack may serve it (KIP-392)
//	v12   flexible; last fetched epoch, and diverging epochs in answers (KIP-595)
//	v13   topics by id (KIP-516)
//	v15   replica state in a tag
//	v16   who leads instead, and where it is (KIP-951): complete or not at all
//	v17   directory id of followers
//
// An offset below the log's start or above its end is 1; between the high
// watermark and the end there are no records and there is no error: a consumer
// that was told 1 there after a change of leaders would reset and lose its place.
// Batches are returned whole, so that the first may begin below the offset.
//
// Limits hold in the order of the partitions; the first partition that has
// records gives at least one batch whatever the limits, else a consumer could
// never get past a large one.
//
// The answer waits until there are min bytes or max wait has passed. It is made
// at once when there is nothing to wait for or a partition has an error to tell.
// A fetch that waits is parked on its partitions (replication.FetchWaiter); when
// it is woken the connection's writer makes the answer, so that whoever appended
// pays for no reader.

// fetchCall is one Fetch request in work. See fetch_park.go for its life while it
// waits.
type fetchCall struct {
	call
	msg kmsg.FetchRequest

	// What is read: session's partitions when session is set, else targets.
	session      *fetchSession
	sessionEpoch int32         // that the session must still have when it is answered
	newSession   bool          // full request that asked for a session
	targets      []fetchTarget // full and sessionless requests
	order        []*fetchTarget
	doubts       *fetchDoubts // of the connection

	committed bool   // isolation level read_committed
	rack      string // of the consumer; "" is none
	follower  bool   // claims to be a replica: nothing to read on a client's listener
	beyond    bool   // the last look found a partition asked for what is beyond its log, and that is not proven
	proven    bool   // this broker knew all there was to know when the request had come (fetch_beyond.go)
	endpoints endpoints
	brokers   []kmsg.FetchResponseBroker

	parts    []fetchPartition
	slices   []fetchSlice
	encoder  fetchEncoder
	pieces   []transport.Piece
	spliced  transport.Spliced
	released func() // f.recycle, made once

	park fetchPark
}

func newFetchCall() any {
	f := new(fetchCall)
	f.released = f.recycle
	f.park.init(f)
	return f
}

func (h *Handlers) fetch(c *call) {
	f := h.fetchCalls.Get().(*fetchCall)
	f.call = *c
	if !f.decodeFetch() {
		f.recycle()
		return
	}
	code := f.resolve()
	f.forgetFrame()
	if code != codeNone {
		f.refuse(code)
		return
	}
	f.doubts = doubtsOf(f.req.Conn)
	wait := time.Duration(f.msg.MaxWaitMillis) * time.Millisecond
	minBytes := min(int(f.msg.MinBytes), h.settings.fetchMaxBytes)
	ready, code := f.read(func(bytes int, told bool) bool {
		return !f.beyond && (told || bytes >= minBytes || wait <= 0)
	})
	switch {
	case code != codeNone:
		f.refuse(code)
	case ready:
		f.req.Reply(f.response(codeNone))
	case f.beyond:
		f.prove()
	default:
		f.waitFor(minBytes, wait)
	}
}

// decodeFetch reads the body into f.msg and f.targets. Topic names are the
// metadata's own or copies: a parked fetch outlives its frame.
func (f *fetchCall) decodeFetch() bool {
	topics, forgotten := f.msg.Topics[:0], f.msg.ForgottenTopics[:0]
	f.msg = kmsg.NewFetchRequest() // a field that this version lacks keeps no old value
	f.msg.Topics, f.msg.ForgottenTopics = topics, forgotten
	f.msg.Version = f.req.Version
	if !f.admit() {
		return false
	}
	f.park.budget.Store(f.held)
	f.held = 0
	if err := f.msg.UnsafeReadFrom(f.req.Body); err != nil {
		f.malformed(err)
		return false
	}
	f.committed = f.msg.IsolationLevel == 1
	f.rack = strings.Clone(f.msg.Rack)
	f.follower = f.msg.ReplicaID >= 0 || f.msg.ReplicaState.ID >= 0
	f.proven = false
	image := f.h.cfg.Store.Image()
	f.endpoints = f.h.endpoints(image, f.req.Conn)
	f.targets = f.targets[:0]
	for i := range f.msg.Topics {
		topic := &f.msg.Topics[i]
		name := fetchTopic{id: topic.TopicID}
		if f.req.Version < 13 {
			name.name = ownName(image, topic.Topic)
		}
		for j := range topic.Partitions {
			p := &topic.Partitions[j]
			f.targets = append(f.targets, fetchTarget{
				topic: name, partition: p.Partition, fetchOffset: p.FetchOffset, maxBytes: p.PartitionMaxBytes,
				currentLeaderEpoch: p.CurrentLeaderEpoch, lastFetchedEpoch: p.LastFetchedEpoch, // -1 where the version has none
				sentHighWatermark: -1, sentLogStartOffset: -1,
			})
		}
	}
	return true
}

// forgetFrame drops what still aliases the request's frame.
func (f *fetchCall) forgetFrame() {
	clear(f.msg.Topics)
	clear(f.msg.ForgottenTopics)
	f.msg.Rack, f.msg.ClusterID = "", nil
	f.msg.UnknownTags, f.msg.ReplicaState.UnknownTags = kmsg.Tags{}, kmsg.Tags{}
}

// releaseBudget gives back what the decoded request held, once.
func (f *fetchCall) releaseBudget() {
	if held := f.park.budget.Swap(0); held > 0 {
		f.h.decoding.Release(held)
	}
}

// ownName returns a topic name that outlives the frame it was read from.
func ownName(image *metadata.Image, name string) string {
	if topic := image.Topic(name); topic != nil {
		return topic.Name
	}
	return strings.Clone(name)
}

// resolve finds the session that the request means (protocol.md 4, KIP-227) and
// applies the request to it, or returns the top-level error.
func (f *fetchCall) resolve() int16 {
	f.session, f.newSession = nil, false
	if f.req.Version < 7 {
		return codeNone
	}
	id, epoch := f.msg.SessionID, f.msg.SessionEpoch
	if epoch == initialEpoch || epoch == finalEpoch {
		if id != noSession {
			f.h.sessions.remove(id)
		}
		f.newSession = epoch == initialEpoch
		return codeNone
	}
	s := f.h.sessions.get(id)
	if s == nil {
		return codeFetchSessionIDNotFound
	}
	byID := f.req.Version >= 13
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.mu.epoch != epoch:
		return codeInvalidFetchSessionEpoch
	case s.byID != byID:
		return codeFetchSessionTopicIDError
	}
	for i := range f.targets {
		if len(f.targets[i].topic.name) <= maxTopicName {
			s.addLocked(&f.targets[i])
		}
	}
	for i := range f.msg.ForgottenTopics {
		topic := &f.msg.ForgottenTopics[i]
		key := targetKey{topic: fetchTopic{name: topic.Topic, id: topic.TopicID}}
		for _, key.partition = range topic.Partitions {
			s.forgetLocked(key)
		}
	}
	if len(s.mu.targets) == 0 {
		// Nothing left to remember: the answer is a sessionless one.
		f.h.sessions.remove(id)
		return codeNone
	}
	if !f.h.sessions.grow(s, len(s.mu.targets)) {
		return codeFetchSessionIDNotFound
	}
	s.mu.epoch = nextSessionEpoch(epoch)
	f.session, f.sessionEpoch = s, s.mu.epoch
	return codeNone
}

// refuse answers with a top-level error: no session and no topics.
func (f *fetchCall) refuse(code int16) {
	f.parts, f.session, f.newSession = f.parts[:0], nil, false
	f.req.Reply(f.response(f.error(code)))
}

// recycle gives the call back with everything that may be used again. Nothing of
// the request may be reachable from it.
func (f *fetchCall) recycle() {
	f.releaseBudget()
	f.forgetFrame()
	h, n := f.h, len(f.order)
	if !f.park.reset() || cap(f.targets) > maxPooledPartitions || cap(f.order) > maxPooledPartitions || cap(f.encoder.head) > 1<<20 {
		return
	}
	clear(f.targets)
	clear(f.order)
	clear(f.parts[:min(n, cap(f.parts))])
	clear(f.slices[:min(n, cap(f.slices))])
	clear(f.pieces)
	clear(f.brokers)
	f.call, f.session, f.doubts, f.rack, f.endpoints, f.spliced = call{}, nil, nil, "", endpoints{}, transport.Spliced{}
	f.targets, f.order, f.parts, f.slices = f.targets[:0], f.order[:0], f.parts[:0], f.slices[:0]
	f.pieces, f.brokers = f.pieces[:0], f.brokers[:0]
	h.fetchCalls.Put(f)
}

// readRequest is what is asked of the partition t.
func (f *fetchCall) readRequest(t *fetchTarget, maxBytes int) replication.ReadRequest {
	r := replication.NewReadRequest(t.fetchOffset, maxBytes)
	r.FromFollower = f.req.Version >= 11 // whoever can say its rack knows what a follower's answer means
	r.Committed, r.CurrentLeaderEpoch, r.LastFetchedEpoch = f.committed, t.currentLeaderEpoch, t.lastFetchedEpoch
	return r
}

// find returns the partition t, which may have come and gone since the last look.
func (f *fetchCall) find(t *fetchTarget) (*replication.Partition, error) {
	switch {
	case f.follower:
		return nil, errNotBroker // followers read on the brokers' own listener (S5)
	case f.req.Version >= 13:
		return f.h.cfg.Replicas.PartitionByID(t.topic.id, t.partition)
	default:
		return f.h.cfg.Replicas.Partition(t.topic.name, t.partition)
	}
}
