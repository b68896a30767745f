package kafka

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/transport"
)

// Followers fetch on the brokers' own listener, each on a connection of its own, with one request at a time and a
// session that lives and dies with the connection. What has news is the session's business
// (replication.FollowerSession): a request costs what it changes and an answer what it says, not what is followed.
//
// A request that finds nothing waits. It is woken by news, by its timer, by a wake from its follower (which has other
// positions to report), by the draining of the server; the first one has an effect, and the goroutine that writes to
// the connection makes the answer.

// KeyWakeReplicaFetch is a request without answer that ends the wait of the fetch before it on the same connection. Only
// brokers among themselves know it.
const KeyWakeReplicaFetch int16 = 20_002

const (
	// maxReplicaRequestBytes bounds a follower's request: 500,000 partitions.
	maxReplicaRequestBytes = 20 << 20
	// maxReplicaAnswerBytes bounds the records of an answer, apart from one batch that is larger.
	maxReplicaAnswerBytes = 64 << 20
)

// ReplicaHandlers answer what followers ask of this broker's partitions. They implement transport.Handler for a listener
// of brokers among themselves, which must have made sure who calls: transport.Conn.Broker (S5).
type ReplicaHandlers struct {
	h    *Handlers
	open func(metadata.BrokerID) followerSession

	answers sync.Pool // of *replicaAnswer
	once    sync.Once // of the watch for draining

	mu struct {
		sync.Mutex
		fetchers map[*replicaFetcher]struct{}
		draining bool
	}
}

// followerSession is *replication.FollowerSession.
type followerSession interface {
	Update(*replication.FollowerFetch)
	Ready(minBytes int) bool
	Park(minBytes int, wake func())
	Unpark()
	Collect(maxBytes int, each func(replication.FollowerNews))
	Close()
}

// Replicas returns the handlers for followers.
func (h *Handlers) Replicas() *ReplicaHandlers {
	r := &ReplicaHandlers{h: h, open: func(id metadata.BrokerID) followerSession { return h.cfg.Replicas.OpenFollowerSession(id) }}
	r.mu.fetchers = map[*replicaFetcher]struct{}{}
	r.answers.New = r.newAnswer
	return r
}

// Accept implements transport.Handler.
func (r *ReplicaHandlers) Accept(key, version int16) (flexible, ok bool) {
	switch key {
	case keyFetch:
		return true, version == replicaFetchVersion
	case KeyWakeReplicaFetch:
		return false, version == 0
	case keyOffsetForLeaderEpoch:
		return r.h.Accept(key, version)
	}
	return false, false
}

// MaxRequestBytes implements transport.RequestLimiter.
func (r *ReplicaHandlers) MaxRequestBytes(key, version int16) int {
	if key == keyFetch {
		return maxReplicaRequestBytes
	}
	return r.h.MaxRequestBytes(key, version)
}

// Handle implements transport.Handler.
func (r *ReplicaHandlers) Handle(req *transport.Request) {
	id, ok := req.Conn.Broker()
	if !ok || !req.Conn.Listener().Internal() {
		req.CloseConn("only brokers on their own listener may follow")
		return
	}
	f, _ := req.Conn.Value(replicaFetcherKey{}).(*replicaFetcher)
	switch req.Key {
	case keyFetch:
		if f == nil {
			f = r.newFetcher(req, metadata.BrokerID(id))
		}
		f.fetch(req)
	case KeyWakeReplicaFetch:
		if f != nil {
			f.wake()
		}
		req.ReplyNothing()
	default:
		r.h.Handle(req)
	}
}

type replicaFetcherKey struct{}

// States of a replicaFetcher.
const (
	replicaIdle   int32 = iota // no request, or one that is being taken in
	replicaParked              // the request waits
	replicaWoken               // its answer is due
)

// replicaFetcher is the leader's end of one follower's connection.
type replicaFetcher struct {
	r       *ReplicaHandlers
	replica metadata.BrokerID

	state   atomic.Int32
	waiting *transport.Request // set while state is not replicaIdle
	since   time.Time          // when it was parked
	timer   *time.Timer

	wakeFunc   func()
	answerFunc func() transport.Response

	// mu is held while the session is used: by the connection's reader, by whoever writes to it, and at its end.
	mu struct {
		sync.Mutex
		closed  bool
		session followerSession // nil: none
		at      ReplicaSession  // what the next request must carry
		fetch   replicaFetch    // the last request
	}
}

func (r *ReplicaHandlers) newFetcher(req *transport.Request, replica metadata.BrokerID) *replicaFetcher {
	f := &replicaFetcher{r: r, replica: replica}
	f.wakeFunc, f.answerFunc = f.wake, f.answer
	req.Conn.SetValue(replicaFetcherKey{}, f)
	r.mu.Lock()
	r.mu.fetchers[f] = struct{}{}
	r.mu.Unlock()
	context.AfterFunc(req.Context(), f.close)
	r.once.Do(func() {
		draining := req.Draining()
		r.h.work.Go(func() {
			select {
			case <-draining:
			case <-r.h.ctx.Done():
			}
			r.drain()
		})
	})
	return f
}

// drain answers whatever waits, now and from now on.
func (r *ReplicaHandlers) drain() {
	r.mu.Lock()
	r.mu.draining = true
	fetchers := make([]*replicaFetcher, 0, len(r.mu.fetchers))
	for f := range r.mu.fetchers {
		fetchers = append(fetchers, f)
	}
	r.mu.Unlock()
	for _, f := range fetchers {
		f.wake()
	}
}

func (r *ReplicaHandlers) isDraining() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.draining
}

// close ends the session with its connection.
func (f *replicaFetcher) close() {
	f.r.mu.Lock()
	delete(f.r.mu.fetchers, f)
	f.r.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.closed = true
	f.endLocked()
	if f.timer != nil {
		f.timer.Stop()
	}
}

func (f *replicaFetcher) endLocked() {
	if f.mu.session != nil {
		f.mu.session.Unpark()
		f.mu.session.Close()
		f.mu.session = nil
	}
	f.mu.at = ReplicaSession{}
}

// fetch takes in a request, on the connection's reader goroutine.
func (f *replicaFetcher) fetch(req *transport.Request) {
	f.r.h.metrics.request(keyFetch, replicaFetchVersion)
	if f.state.Load() != replicaIdle {
		req.CloseConn("a second fetch before the answer to the first")
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	in := &f.mu.fetch
	if err := in.decode(req.Body); err != nil {
		req.CloseConn(err.Error())
		return
	}
	if in.replica != f.replica {
		req.CloseConn(fmt.Sprintf("broker %d fetches as broker %d", f.replica, in.replica)) // S5
		return
	}
	f.since = req.Received
	if code := f.enterLocked(); code != codeNone {
		req.Reply(f.r.refuse(code))
		return
	}
	s := f.mu.session
	s.Update(&in.FollowerFetch)
	minBytes := max(in.MinBytes, 1)
	if in.MaxWait <= 0 || s.Ready(minBytes) || f.r.isDraining() {
		req.Reply(f.collectLocked(req.Received))
		return
	}
	f.waiting = req
	if f.timer == nil {
		f.timer = time.AfterFunc(in.MaxWait, f.wakeFunc)
	} else {
		f.timer.Reset(in.MaxWait)
	}
	f.state.Store(replicaParked)
	s.Park(minBytes, f.wakeFunc)
	if f.r.isDraining() { // since it was looked at
		f.wake()
	}
}

// enterLocked finds the session that the request means (KIP-227), or returns the top-level error.
func (f *replicaFetcher) enterLocked() int16 {
	asked := f.mu.fetch.session
	switch {
	case f.mu.closed:
		return codeFetchSessionIDNotFound
	case asked.Epoch == initialEpoch:
		f.endLocked()
		f.mu.session = f.r.open(f.replica)
		f.mu.at = ReplicaSession{ID: rand.Int32N(1<<31-1) + 1, Epoch: nextSessionEpoch(initialEpoch)}
		return codeNone
	case f.mu.session == nil || asked.ID != f.mu.at.ID:
		return codeFetchSessionIDNotFound
	case asked.Epoch != f.mu.at.Epoch:
		f.endLocked()
		return codeInvalidFetchSessionEpoch
	}
	f.mu.at.Epoch = nextSessionEpoch(f.mu.at.Epoch)
	return codeNone
}

// wake lets the answer be made. It may be called at any time, from any goroutine; it does not block.
func (f *replicaFetcher) wake() {
	if f.state.CompareAndSwap(replicaParked, replicaWoken) {
		f.waiting.ReplyFunc(f.answerFunc)
	}
}

// answer makes the answer of a request that waited.
func (f *replicaFetcher) answer() transport.Response {
	f.mu.Lock()
	defer f.mu.Unlock()
	received := f.waiting.Received
	f.waiting = nil
	f.timer.Stop()                   // one that fires all the same ends the next wait early, which does no harm
	defer f.state.Store(replicaIdle) // the follower's next request comes only after this answer
	s := f.mu.session
	if s == nil {
		return f.r.refuse(codeFetchSessionIDNotFound) // the connection has ended: nobody reads this
	}
	s.Unpark()
	return f.collectLocked(received)
}

// replicaAnswer is the memory of an answer until it is sent.
type replicaAnswer struct {
	r       *ReplicaHandlers
	parts   []fetchPartition
	slices  []fetchSlice
	encoder fetchEncoder
	pieces  []transport.Piece
	spliced transport.Spliced

	each     func(replication.FollowerNews)
	released func()
}

func (r *ReplicaHandlers) newAnswer() any {
	a := &replicaAnswer{r: r}
	a.each, a.released = a.news, a.recycle
	return a
}

func (f *replicaFetcher) collectLocked(received time.Time) transport.Response {
	a := f.r.answers.Get().(*replicaAnswer)
	f.mu.session.Collect(min(max(f.mu.fetch.MaxBytes, 0), maxReplicaAnswerBytes), a.each)
	f.r.h.metrics.duration(keyFetch, time.Since(received), 0)
	return a.response(codeNone, f.mu.at.ID)
}

// refuse is the answer with a top-level error.
func (r *ReplicaHandlers) refuse(code int16) transport.Response {
	r.h.metrics.error(keyFetch, code)
	return r.answers.Get().(*replicaAnswer).response(code, noSession)
}

// news adds one partition to the answer.
func (a *replicaAnswer) news(n replication.FollowerNews) {
	p := newFetchPartition(fetchTopic{id: n.TopicID}, n.Partition)
	p.abortedNull = true
	p.highWatermark, p.lastStableOffset, p.logStartOffset, p.logEndOffset = n.HighWatermark, n.HighWatermark, n.LogStartOffset, n.LogEndOffset
	if n.Err != nil {
		p.errorCode = codeOf(n.Err)
		a.r.h.metrics.error(keyFetch, p.errorCode)
	}
	if n.DivergingEpoch >= 0 {
		p.divergingEpoch, p.divergingOffset = n.DivergingEpoch, n.DivergingEnd
	}
	a.parts = append(a.parts, p)
	a.slices = append(a.slices, fetchSlice{Slice: n.Slice}) // one for each partition, so that they may move until all are here
}

// response encodes the answer, which the transport owns from here on.
func (a *replicaAnswer) response(code int16, sessionID int32) transport.Response {
	for i := range a.parts {
		if a.slices[i].Len() > 0 {
			a.parts[i].records = &a.slices[i]
		} else {
			a.slices[i].Release()
		}
	}
	e := &a.encoder
	e.encode(replicaFetchVersion, code, sessionID, a.parts, nil)
	a.pieces = slices.Grow(a.pieces[:0], len(e.cuts)+1)
	at := 0
	for _, cut := range e.cuts {
		a.pieces = append(a.pieces, transport.Piece{Header: e.head[at:cut.end], Body: a.parts[cut.index].records.(*fetchSlice)})
		at = cut.end
	}
	a.pieces = append(a.pieces, transport.Piece{Header: e.head[at:]})
	a.spliced = transport.Spliced{Flexible: true, Pieces: a.pieces, Released: a.released}
	return transport.Splice(&a.spliced)
}

// recycle gives the memory back once it is sent; the sources were released.
func (a *replicaAnswer) recycle() {
	if cap(a.parts) > maxPooledPartitions || cap(a.encoder.head) > 1<<20 {
		return
	}
	clear(a.parts)
	clear(a.slices)
	clear(a.pieces)
	a.parts, a.slices, a.pieces, a.spliced = a.parts[:0], a.slices[:0], a.pieces[:0], transport.Spliced{}
	a.r.answers.Put(a)
}
