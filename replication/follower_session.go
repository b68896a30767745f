package replication

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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
	// brokerEpoch is that of the last request, at when it came.
	brokerEpoch atomic.Int64
	at          atomic.Int64

	mu struct {
		sync.Mutex
		parts map[TopicIDPartition]*sessionPartition
		// ready are those with something to say, in turn. bytes counts the records known to wait in them.
		ready    []*sessionPartition
		bytes    int64
		urgent   int // those among ready that have other things to say
		minBytes int64
		wake     func()
		closed   bool
	}

	again []*sessionPartition // Collect's own
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

// States of a partition in a session.
const (
	sessionIdle   uint8 = iota // told everything; waits for news
	sessionReady               // in the queue
	sessionServed              // told something that the follower has to act upon; waits for its next position
	sessionGone                // no longer in the session
)

// sessionPartition is one partition of a session.
type sessionPartition struct {
	s   *FollowerSession
	key TopicIDPartition
	// home is the partition it is attached to, nil while this broker has none; written by the session's goroutine.
	home atomic.Pointer[Partition]

	// Guarded by the session's lock.
	position FetchPosition
	state    uint8
	// recheck: the core has to judge the position anew before anything is read. urgent: counted in mu.urgent.
	recheck, urgent bool
	bytes           int64 // counted in mu.bytes
	toldHW          int64 // -1: nothing
	toldStart       int64
	// suspect is an offset that was served and asked for again: checksums are looked at before it is served once more
	// (I19). -1: none.
	suspect int64
}

// followerSessions are the open sessions of a manager.
type followerSessions struct {
	mu struct {
		sync.Mutex
		set map[*FollowerSession]struct{}
	}
}

// OpenFollowerSession opens a session for the follower broker. Only a handler on the brokers' own listener may, after it
// has made sure who calls (S5).
func (m *Manager) OpenFollowerSession(replica metadata.BrokerID) *FollowerSession {
	s := &FollowerSession{m: m, replica: replica}
	s.mu.parts = map[TopicIDPartition]*sessionPartition{}
	fs := &m.followers
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.mu.set == nil {
		fs.mu.set = map[*FollowerSession]struct{}{}
	}
	fs.mu.set[s] = struct{}{}
	return s
}

// Update takes in a request. The caller may reuse it afterwards.
func (s *FollowerSession) Update(req *FollowerFetch) {
	s.brokerEpoch.Store(req.BrokerEpoch)
	s.at.Store(int64(s.m.now()))
	for _, key := range req.Forgotten {
		s.mu.Lock()
		sp := s.mu.parts[key]
		if sp != nil {
			delete(s.mu.parts, key)
			s.leaveQueueLocked(sp, sessionGone)
		}
		s.mu.Unlock()
		if sp != nil {
			sp.detach()
		}
	}
	for i := range req.Changed {
		pos := &req.Changed[i]
		key := TopicIDPartition{pos.TopicID, pos.Partition}
		s.mu.Lock()
		if s.mu.closed {
			s.mu.Unlock()
			return
		}
		sp := s.mu.parts[key]
		if sp == nil {
			sp = &sessionPartition{s: s, key: key, toldHW: -1, toldStart: -1, suspect: -1}
			s.mu.parts[key] = sp
		}
		sp.suspect = -1
		if sp.state == sessionServed && sp.position.Offset == pos.Offset && sp.position.LeaderEpoch == pos.LeaderEpoch {
			sp.suspect = pos.Offset // it did not like what it got
		}
		sp.position = *pos
		s.mu.Unlock()
		sp.report()
	}
}

// leaveQueueLocked takes a partition's share out of the sums; the queue itself skips what is no longer ready.
func (s *FollowerSession) leaveQueueLocked(sp *sessionPartition, state uint8) {
	if sp.state == sessionReady {
		s.mu.bytes -= sp.bytes
		if sp.urgent {
			s.mu.urgent--
		}
	}
	sp.state, sp.bytes, sp.urgent, sp.recheck = state, 0, false, false
}

// enqueueLocked notes news of a partition and returns the function to call without locks, nil if nobody waits for it.
func (s *FollowerSession) enqueueLocked(sp *sessionPartition, bytes int64, urgent bool) func() {
	if sp.state != sessionReady {
		sp.state = sessionReady
		s.mu.ready = append(s.mu.ready, sp)
	}
	sp.bytes += bytes
	s.mu.bytes += bytes
	if urgent && !sp.urgent {
		sp.urgent = true
		s.mu.urgent++
	}
	if s.mu.wake == nil || !s.readyLocked(s.mu.minBytes) {
		return nil
	}
	wake := s.mu.wake
	s.mu.wake = nil
	return wake
}

func (s *FollowerSession) readyLocked(minBytes int64) bool {
	return s.mu.urgent > 0 || s.mu.bytes >= max(minBytes, 1)
}

// Ready says whether there are minBytes of records or other news: errors, a diverging epoch, a high watermark or log
// start that the follower has not been told for a while.
func (s *FollowerSession) Ready(minBytes int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readyLocked(int64(minBytes))
}

// Park calls wake once when Ready(minBytes) becomes true, perhaps at once, from any goroutine, without locks of this
// package held; wake must not block. A second Park replaces the first; Unpark ends it.
func (s *FollowerSession) Park(minBytes int, wake func()) {
	s.mu.Lock()
	if !s.readyLocked(int64(minBytes)) {
		s.mu.wake, s.mu.minBytes = wake, int64(minBytes)
		wake = nil
	}
	s.mu.Unlock()
	if wake != nil {
		wake()
	}
}

// Unpark takes back a Park; a wake under way may still come.
func (s *FollowerSession) Unpark() {
	s.mu.Lock()
	s.mu.wake = nil
	s.mu.Unlock()
}

// Close ends the session. It may be called more than once.
func (s *FollowerSession) Close() {
	fs := &s.m.followers
	fs.mu.Lock()
	delete(fs.mu.set, s)
	fs.mu.Unlock()
	s.mu.Lock()
	parts := s.mu.parts
	s.mu.parts, s.mu.ready, s.mu.wake, s.mu.closed = nil, nil, nil, true
	for _, sp := range parts {
		s.leaveQueueLocked(sp, sessionGone)
	}
	s.mu.Unlock()
	for _, sp := range parts {
		sp.detach()
	}
}

// Collect hands out what there is to say, in turn, with at most maxBytes of records: the first partition that has any
// gives at least one batch (R22). What does not fit comes with the next answer. Records given out are not given out
// again before the follower has reported a position for the partition.
func (s *FollowerSession) Collect(maxBytes int, each func(FollowerNews)) {
	s.mu.Lock()
	ready := s.mu.ready
	s.mu.ready = nil
	s.mu.Unlock()
	s.again = s.again[:0]
	first := true
	for _, sp := range ready {
		s.mu.Lock()
		if sp.state != sessionReady {
			s.mu.Unlock()
			continue
		}
		recheck := sp.recheck
		s.mu.Unlock()
		if recheck && !sp.report() {
			continue
		}
		news, ok := sp.read(max(maxBytes, 0), first)
		if !ok {
			continue
		}
		if n := news.Slice.Len(); n > 0 {
			maxBytes -= n
			first = false
		}
		each(news)
	}
	s.mu.Lock()
	// What came meanwhile stands behind what had to wait.
	s.mu.ready = append(s.again, s.mu.ready...)
	s.again = ready[:0]
	s.mu.Unlock()
}

// requeue puts a partition back that had no room in the answer.
func (sp *sessionPartition) requeueLocked() { sp.s.again = append(sp.s.again, sp) }

// resolve finds the partition on this broker and attaches to it: false while there is none.
func (sp *sessionPartition) resolve() *Partition {
	p, _ := sp.s.m.table.Load().byID[sp.key.TopicID].partition(sp.key.Partition)
	if p == sp.home.Load() {
		return p
	}
	sp.detach()
	if p == nil {
		return nil
	}
	p.mu.Lock()
	if p.mu.core.Role() == RoleRemoved {
		p.unlock()
		return nil
	}
	p.mu.sessions = append(p.mu.sessions, sp)
	p.unlock()
	sp.home.Store(p)
	return p
}

func (sp *sessionPartition) detach() {
	p := sp.home.Swap(nil)
	if p == nil {
		return
	}
	p.mu.Lock()
	p.mu.sessions = slices.DeleteFunc(p.mu.sessions, func(o *sessionPartition) bool { return o == sp })
	p.unlock()
}

// report lets the core judge the follower's position and notes what there is to say; false: nothing.
func (sp *sessionPartition) report() bool {
	s := sp.s
	p := sp.resolve()
	if p == nil {
		// Not here, or not yet: the follower may have heard of it first. It is looked for again when the table of
		// partitions changes.
		s.mu.Lock()
		s.leaveQueueLocked(sp, sessionIdle)
		s.mu.Unlock()
		return false
	}
	p.mu.Lock()
	answer := p.followerFetch(&sp.position, s.replica, s.brokerEpoch.Load())
	c := p.mu.core
	behind := sp.position.Offset < c.EndOffset()
	later := sp.position.LeaderEpoch > c.LeaderEpoch()
	hw, start := c.HighWatermark(), c.StartOffset()
	s.mu.Lock()
	s.leaveQueueLocked(sp, sessionIdle)
	var wake func()
	news := true
	switch {
	case answer.Err != nil && later:
		news = false // it knows a later leader epoch than this broker does yet: the answer follows when we do
	case answer.Err != nil || answer.DivergingEpoch >= 0:
		wake = s.enqueueLocked(sp, 0, true)
		sp.recheck = true // what is said is made anew when it is said
	case behind:
		wake = s.enqueueLocked(sp, math.MaxInt32, false)
	case sp.toldHW < hw || sp.toldStart < start:
		p.tellLater()
		news = false
	default:
		news = false
	}
	s.mu.Unlock()
	p.unlock()
	if wake != nil {
		wake()
	}
	return news
}

// read makes the partition's part of the answer.
func (sp *sessionPartition) read(maxBytes int, minOne bool) (FollowerNews, bool) {
	s, p := sp.s, sp.home.Load()
	news := FollowerNews{TopicID: sp.key.TopicID, Partition: sp.key.Partition, HighWatermark: -1, LogStartOffset: -1, LogEndOffset: -1, DivergingEpoch: -1, DivergingEnd: -1}
	s.mu.Lock()
	pos, suspect, recheck := sp.position, sp.suspect, sp.recheck
	sp.recheck = false // done here; rest wants to know of another one
	s.mu.Unlock()
	if p == nil {
		return news, false
	}
	if recheck {
		p.mu.Lock()
		answer := p.followerFetch(&pos, s.replica, s.brokerEpoch.Load())
		p.unlock()
		if answer.Err != nil || answer.DivergingEpoch >= 0 {
			if news.Err = answer.Err; isOutOfRange(news.Err) {
				news.LogStartOffset, news.LogEndOffset = p.beginning(), p.log.EndOffset()
			} else if news.Err == nil {
				p.bounds(&news)
				news.DivergingEpoch, news.DivergingEnd = answer.DivergingEpoch, answer.DivergingEnd
			}
			sp.told(&news)
			return news, true
		}
	}
	v := p.view.Load()
	if v.check(pos.LeaderEpoch) != nil {
		sp.again()
		return news, false
	}
	p.bounds(&news)
	allowed := p.m.throttle.leader.take(p, s.replica, pos.MaxBytes)
	if pos.Offset < news.LogEndOffset && allowed > 0 {
		read := p.log.Read
		if suspect == pos.Offset {
			read = p.log.ReadChecked
		}
		// An empty follower begins at the base of the first batch, which may lie below the log's start.
		slice, err := read(max(pos.Offset, news.LogStartOffset), news.LogEndOffset, min(maxBytes, allowed), minOne)
		if err != nil {
			p.noteReadError(err)
			news.Err = p.storageError("read", err)
			sp.told(&news)
			return news, true
		}
		if p.view.Load() != v && p.view.Load().check(pos.LeaderEpoch) != nil {
			slice.Release() // the log may have been cut under the read
			sp.again()
			return news, false
		}
		if news.Slice = slice; slice.Len() > 0 {
			p.m.throttle.leader.spent(p, s.replica, slice.Len())
			p.topic.metrics.replicationBytesOut.Add(int64(slice.Len()))
			sp.told(&news)
			return news, true
		}
	}
	if sp.toldHW == news.HighWatermark && sp.toldStart == news.LogStartOffset || pos.Offset < news.LogEndOffset && allowed > 0 {
		if pos.Offset < news.LogEndOffset && allowed > 0 {
			s.mu.Lock()
			sp.requeueLocked() // no room in this answer
			s.mu.Unlock()
			return news, false
		}
		sp.rest(p, pos.Offset, &news, allowed <= 0)
		return news, false
	}
	s.mu.Lock()
	sp.toldHW, sp.toldStart = news.HighWatermark, news.LogStartOffset
	s.mu.Unlock()
	sp.rest(p, pos.Offset, &news, allowed <= 0)
	return news, true
}

// told notes what an answer says that the follower has to act upon: its next position is judged anew, whatever has come
// since.
func (sp *sessionPartition) told(news *FollowerNews) {
	s := sp.s
	s.mu.Lock()
	defer s.mu.Unlock()
	sp.toldHW, sp.toldStart = news.HighWatermark, news.LogStartOffset
	if sp.state != sessionGone {
		s.leaveQueueLocked(sp, sessionServed)
	}
}

// rest leaves a partition idle that was looked at and has no more to say, for now if it is throttled. What has come since
// it was looked at found it still in the queue, and would be lost with its place there: it is put back for that.
func (sp *sessionPartition) rest(p *Partition, position int64, seen *FollowerNews, throttled bool) {
	s := sp.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if sp.state != sessionReady {
		return
	}
	recheck := sp.recheck
	s.leaveQueueLocked(sp, sessionIdle)
	var now FollowerNews
	p.bounds(&now)
	switch {
	case recheck || sp.toldHW < now.HighWatermark || sp.toldStart < now.LogStartOffset:
		s.enqueueLocked(sp, 0, true)
		sp.recheck = recheck
	case seen.LogEndOffset < now.LogEndOffset:
		s.enqueueLocked(sp, math.MaxInt32, false)
	case throttled && position < seen.LogEndOffset:
		p.m.throttle.leader.wait(sp) // it is put back when the rate allows
	}
}

// again has the core judge the position anew, in a later answer.
func (sp *sessionPartition) again() {
	s := sp.s
	s.mu.Lock()
	var wake func()
	if sp.state != sessionGone {
		s.leaveQueueLocked(sp, sessionIdle)
		wake = s.enqueueLocked(sp, 0, true)
		sp.recheck = true
	}
	s.mu.Unlock()
	if wake != nil {
		wake()
	}
}

// appended notes that bytes were appended to the partition. Its lock is held; the function returned is called without.
func (sp *sessionPartition) appended(bytes int64) func() {
	s := sp.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if sp.state != sessionIdle && sp.state != sessionReady {
		return nil
	}
	return s.enqueueLocked(sp, bytes, false)
}

// changed notes that the partition's role or leader epoch changed. Its lock is held.
func (sp *sessionPartition) changed() func() {
	s := sp.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if sp.state == sessionGone || sp.state == sessionServed {
		return nil
	}
	wake := s.enqueueLocked(sp, 0, true)
	sp.recheck = true
	return wake
}

// stale notes that the follower should be told marks. The partition's lock is held.
func (sp *sessionPartition) stale(highWatermark, start int64) func() {
	s := sp.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if sp.state != sessionIdle || sp.toldHW >= highWatermark && sp.toldStart >= start {
		return nil
	}
	return s.enqueueLocked(sp, 0, true)
}

// still reports to the core that the follower waits for more, if it does. The partition's lock is held.
func (sp *sessionPartition) still(ev *StillFetching) bool {
	s := sp.s
	s.mu.Lock()
	defer s.mu.Unlock()
	*ev = StillFetching{Replica: s.replica, BrokerEpoch: s.brokerEpoch.Load(), At: Instant(s.at.Load())}
	return sp.state == sessionIdle
}

// partitionsChanged looks again for the partitions that sessions wait for.
func (m *Manager) partitionsChanged() {
	fs := &m.followers
	fs.mu.Lock()
	sessions := make([]*FollowerSession, 0, len(fs.mu.set))
	for s := range fs.mu.set {
		sessions = append(sessions, s)
	}
	fs.mu.Unlock()
	table := m.table.Load()
	for _, s := range sessions {
		var wake func()
		s.mu.Lock()
		for key, sp := range s.mu.parts {
			if sp.state != sessionIdle {
				continue
			}
			if p, _ := table.byID[key.TopicID].partition(key.Partition); p != nil && p != sp.home.Load() {
				if w := s.enqueueLocked(sp, 0, true); w != nil {
					wake = w
				}
				sp.recheck = true
			}
		}
		s.mu.Unlock()
		if wake != nil {
			wake()
		}
	}
}

// teller tells followers of high watermarks and log starts that moved, a little later: mostly the next records carry
// them along, and a follower that is told at once of each would be called twice for every record.
type teller struct {
	kick chan struct{} // capacity 1
	mu   struct {
		sync.Mutex
		queue []*Partition
	}
}

// tellDelay is how long marks may be stale at a follower that gets nothing else.
const tellDelay = 5 * time.Millisecond

// tellLater queues the partition for the teller. Its lock is held.
func (p *Partition) tellLater() {
	if p.mu.telling {
		return
	}
	p.mu.telling = true
	t := &p.m.teller
	t.mu.Lock()
	t.mu.queue = append(t.mu.queue, p)
	n := len(t.mu.queue)
	t.mu.Unlock()
	if n == 1 {
		select {
		case t.kick <- struct{}{}:
		default:
		}
	}
}

// tell tells the followers of the partition what they have not been told.
func (p *Partition) tell() {
	p.mu.Lock()
	p.mu.telling = false
	c := p.mu.core
	for _, sp := range p.mu.sessions {
		p.wakeLater(sp.stale(c.HighWatermark(), c.StartOffset()))
	}
	p.unlock()
}

func (m *Manager) tellLoop(done <-chan struct{}) {
	timer := time.NewTimer(tellDelay)
	defer timer.Stop()
	for {
		select {
		case <-done:
			return
		case <-m.teller.kick:
		}
		timer.Reset(tellDelay)
		select {
		case <-done:
			return
		case <-timer.C:
		}
		t := &m.teller
		t.mu.Lock()
		queue := t.mu.queue
		t.mu.queue = nil
		t.mu.Unlock()
		for _, p := range queue {
			p.tell()
		}
	}
}
