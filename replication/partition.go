package replication

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/metadata"
)

// Partition is one replica on this broker: the core, its log, and those that wait for them. All methods may be called
// from any goroutine.
type Partition struct {
	m         *Manager
	topic     *topicState
	partition int32
	log       *log.Log

	// What readers need, published by whoever holds the lock. A reader takes view before highWatermark and that before
	// the log's end, so that it never sees a mark above the end.
	view          atomic.Pointer[view]
	highWatermark atomic.Int64
	// lastStable is the last stable offset; it is stored after a higher high watermark, and before a lower one.
	lastStable atomic.Int64
	// seenStart is the log start offset the core knows: the tick compares it with the log's without the lock.
	seenStart atomic.Int64
	// lag is how many records a follower's log lacks of what its leader had at the last answer; 0 for others.
	lag atomic.Int64
	// handing says that requests are held until the new leader is known to lead, see drain.go.
	handing atomic.Bool
	// adding are the replicas that the committed record adds (KIP-455); nil: none.
	adding atomic.Pointer[[]metadata.BrokerID]
	// stays are the replicas that remain when the reassignment under way is done, if this broker is not among them; nil: it
	// is, or there is none.
	stays atomic.Pointer[[]metadata.BrokerID]

	queue struct {
		sync.Mutex
		pending, spare []queued
		draining       bool // somebody is in drain
		held           bool // appends wait until the leadership has moved, see drain.go
	}
	// flushed is set by the log's committer, which never waits for the lock: whoever holds it looks once more before
	// and after letting go (see unlock).
	flushed atomic.Bool

	// committed holds consumers, which wait for the high watermark; stable holds those of committed records, which wait
	// for the last stable offset; tail holds followers, which wait for the log's end.
	committed, stable, tail waiterList

	mu struct {
		sync.Mutex
		core    *Core
		waiters waiterTable
		pace    pace
		// unstable tells how many bytes become readable when the last stable offset moves.
		unstable unstableBytes
		done     outcomes // to deliver by unlock
		failed   int      // produce requests refused since last counted
		timer    *time.Timer
		armed    Instant // when the timer fires, Never when it is not armed
		// Wanted by the core and done without the lock by whoever stepped it: both may take an fsync.
		wantFlush bool
		trimTo    int64 // -1: none
		scratch   scratch
		// The follower's half: the fetcher of the leader it follows, the actions of the answer at hand, the set being
		// appended, and why the log may not be cut.
		fetcher   *fetcher
		following []Action
		sets      [1]log.Set
		cutErr    error
		// The leader's half: what follower brokers follow it, and whether the teller has it in its queue.
		sessions []*sessionPartition
		telling  bool
		choring  bool // in the queue of chores
		handing  bool // as Partition.handing, which outlasts it until the requests that were held are answered
	}

	// fetch belongs to mu.fetcher.
	fetch fetchState
}

// scratch is reused by each round of appends; guarded by the partition's lock.
type scratch struct {
	produce   Produce
	flushed   Flushed
	fetch     FetchRequest
	still     StillFetching
	sets      []log.Set
	out       []log.Appended
	appending []Appended
}

// view is what the core last published for readers. Immutable.
type view struct {
	role        Role
	leader      metadata.BrokerID
	leaderEpoch int32
	available   bool // the high watermark may be told as "latest" (R7)
	isr         []metadata.BrokerID
	preferred   metadata.BrokerID // the first replica
	replicas    int
	minInsync   int
	err         error // RoleHalted: why
}

// check says whether a request that believes in the given leader epoch, -1 for any, may be served.
func (v *view) check(epoch int32) error {
	switch {
	case v.role == RoleHalted:
		return v.err
	case v.role != RoleLeader:
		return ErrNotLeader
	case epoch == -1 || epoch == v.leaderEpoch:
		return nil
	case epoch < v.leaderEpoch:
		return ErrFencedLeaderEpoch
	default:
		return ErrUnknownLeaderEpoch
	}
}

// checkFollower is check for a consumer that may read from a follower.
func (v *view) checkFollower(epoch int32) error {
	if v.role != RoleFollower {
		return v.check(epoch)
	}
	switch {
	case epoch == -1 || epoch == v.leaderEpoch:
		return nil
	case epoch < v.leaderEpoch:
		return ErrFencedLeaderEpoch
	default:
		return ErrUnknownLeaderEpoch
	}
}

// newPartition makes the partition of an open log. It leads and follows nothing until it is told the committed
// metadata.
func newPartition(m *Manager, topic *topicState, partition int32, l *log.Log, restart Restart) *Partition {
	p := &Partition{m: m, topic: topic, partition: partition, log: l}
	p.mu.core = NewCore(m.cfg.BrokerID)
	p.mu.armed, p.mu.trimTo = Never, -1
	p.view.Store(&view{leader: metadata.NoBroker, leaderEpoch: -1})
	p.mu.Lock()
	p.step(m.now(), &restart)
	p.seenStart.Store(restart.StartOffset)
	p.unlock()
	l.Notify(func(int64) { p.notifyFlushed() })
	p.notifyFlushed() // what became durable before anybody was told
	return p
}

// logger makes a logger for a rare line: kept, one for each of 100 000 partitions would be a sizeable heap.
func (p *Partition) logger() *slog.Logger {
	return p.m.logger.With("topic", p.topic.name, "partition", p.partition)
}

// Topic returns the name of the topic.
func (p *Partition) Topic() string { return p.topic.name }

// TopicID returns the id of the topic.
func (p *Partition) TopicID() metadata.TopicID { return p.topic.id }

// ID returns the partition's number.
func (p *Partition) ID() int32 { return p.partition }

// Settings returns the present settings of the topic. They are shared and immutable; a change makes new ones.
func (p *Partition) Settings() *metadata.TopicSettings { return p.topic.settings.Load() }

// Leader returns the committed leader, metadata.NoBroker when there is none, and the leader epoch, -1 before any.
func (p *Partition) Leader() (metadata.BrokerID, int32) {
	v := p.view.Load()
	return v.leader, v.leaderEpoch
}

// LeaderEpoch returns the leader epoch the replica acts in, -1 before any.
func (p *Partition) LeaderEpoch() int32 { return p.view.Load().leaderEpoch }

// IsLeader says whether this broker leads the partition.
func (p *Partition) IsLeader() bool { return p.view.Load().role == RoleLeader }

// HighWatermark returns the first offset not known to be committed.
func (p *Partition) HighWatermark() int64 { return p.highWatermark.Load() }

// LastStableOffset returns the first offset that readers of committed records may not see: the first record of a
// transaction that is open or whose marker is not below the high watermark, or the high watermark (P13).
func (p *Partition) LastStableOffset() int64 { return p.lastStable.Load() }

// StartOffset returns the first offset of the log.
func (p *Partition) StartOffset() int64 { return p.log.StartOffset() }

// EndOffset returns the next offset to be assigned.
func (p *Partition) EndOffset() int64 { return p.log.EndOffset() }

// step feeds the core one event and does what it answers. The lock is held.
func (p *Partition) step(now Instant, ev Event) {
	for _, a := range p.mu.core.Step(now, ev) {
		p.do(a)
	}
}

// do carries out one action. The lock is held. Those that need the request at hand are done by who has it: ActionAppend
// by appendAll, ActionAnswerFetch by followerFetch, ActionReplicate and the cuts by follow.
func (p *Partition) do(a Action) {
	switch a.Kind {
	case ActionComplete:
		p.complete(a)
	case ActionSetHW:
		p.moveHighWatermark(a.Offset)
	case ActionRole:
		p.publish()
		p.stopFollowing()
	case ActionSendFetch:
		p.m.want(p, a)
	case ActionPropose:
		if p.ends(a.ISR) {
			p.handOver()
		}
		p.m.propose(isrProposal{p: p, seq: a.Seq, change: p.proposed(a)})
	case ActionFlush:
		p.mu.wantFlush = true
	case ActionTrim:
		p.mu.trimTo = max(p.mu.trimTo, a.Offset)
		if p.mu.core.Role() == RoleFollower {
			p.m.chore(p)
		}
	case ActionHalt:
		p.logger().Error("replica halted", "offset", a.Offset, "high_watermark", p.highWatermark.Load(), "err", a.Err)
	}
}

func (p *Partition) complete(a Action) {
	s := p.mu.waiters.remove(a.Waiter)
	if a.Err != nil && s.produce {
		p.mu.failed++
	}
	c := p.mu.core
	p.mu.done.results = append(p.mu.done.results, outcome{s, AppendResult{
		BaseOffset: a.Offset, LogStartOffset: c.StartOffset(), LeaderID: c.Leader(), LeaderEpoch: c.LeaderEpoch(), Err: a.Err,
	}})
}

func (p *Partition) moveHighWatermark(to int64) {
	if to < p.lastStable.Load() {
		p.lastStable.Store(to)
	}
	if old := p.highWatermark.Swap(to); to < old {
		// Ahead of a cut after an unclean election: the checkpoint must not name the old one when the cut is there.
		if err := p.m.checkpoint(); err != nil {
			p.mu.cutErr = err
		}
	}
	stable := p.log.SetHighWatermark(to)
	bytes := p.mu.pace.passed(to, p.m.now(), p.m.metrics.lag)
	if bytes == 0 {
		bytes = math.MaxInt32 // appended before this leader's time: the size is not known here, so who waits is woken and looks for itself
	}
	p.committed.advance(to, bytes, &p.mu.done)
	p.moveLastStable(stable, to, bytes)
	if len(p.mu.sessions) > 0 {
		p.tellLater()
	}
}

// moveLastStable publishes the last stable offset after the high watermark has moved to highWatermark, past so many
// bytes. The lock is held.
func (p *Partition) moveLastStable(to, highWatermark, bytes int64) {
	was := p.lastStable.Swap(to)
	if bytes = p.mu.unstable.passed(to, highWatermark, bytes); to > was {
		p.stable.advance(to, bytes, &p.mu.done)
	}
}

// restable publishes the last stable offset anew after the log has moved its start or was begun anew. The lock is held.
func (p *Partition) restable() {
	p.moveLastStable(p.log.LastStableOffset(), p.highWatermark.Load(), 0)
}

// wakeLater has fn called once the lock is let go; nil is nothing to call. The lock is held.
func (p *Partition) wakeLater(fn func()) {
	if fn != nil {
		p.mu.done.wakes = append(p.mu.done.wakes, fn)
	}
}

// publish makes the core's state visible to readers, and wakes those whose answer it changes.
func (p *Partition) publish() {
	c, old := p.mu.core, p.view.Load()
	v := &view{
		role: c.role, leader: c.leader, leaderEpoch: c.leaderEpoch, available: c.OffsetAvailable(), err: c.haltErr,
		isr: slices.Clone(c.isr), replicas: len(c.replicas), minInsync: c.policy.MinInsync,
	}
	if len(c.replicas) > 0 {
		v.preferred = c.replicas[0].ID
	}
	p.view.Store(v)
	if v.role == old.role && v.leaderEpoch == old.leaderEpoch {
		return
	}
	p.mu.pace.reset()
	p.mu.unstable.reset(p.highWatermark.Load())
	switch {
	case old.role == RoleLeader && v.role == RoleFollower && p.m.cfg.Peers != nil:
		p.handOver()
	case old.role == RoleLeader && v.role != RoleLeader && p.mu.handing:
		// Held since this leader proposed the ISR that takes it away. It does not follow the new one: a moment will do.
		time.AfterFunc(removedPatience, p.handedOver)
	case old.role == RoleLeader && v.role != RoleLeader:
		p.wakeLater(p.release) // what a Drain held back
	case v.role != RoleLeader || v.leaderEpoch != old.leaderEpoch:
		p.handedOverLocked()
	}
	for _, sp := range p.mu.sessions {
		p.wakeLater(sp.changed())
	}
	for _, list := range [...]*waiterList{&p.committed, &p.stable, &p.tail} {
		list.wakeBelow(math.MaxInt64, &p.mu.done)
	}
	// A broker that starts says how many it leads, not which (reconcile).
	level := slog.LevelInfo
	if old.role == RoleNone && v.role != RoleHalted {
		level = slog.LevelDebug
	}
	if !p.m.logger.Enabled(context.Background(), level) {
		return
	}
	p.logger().Log(context.Background(), level, "role changed", "role", v.role.String(), "leader", v.leader,
		"leader_epoch", v.leaderEpoch, "high_watermark", c.highWatermark, "end", c.end)
}

// notifyFlushed is called by the log's committer. It must not wait for the lock: an appender may hold it while it waits
// for the committer.
func (p *Partition) notifyFlushed() {
	p.flushed.Store(true)
	if p.mu.TryLock() {
		p.unlock()
	}
}

// unlock ends the critical section: it takes in what the committer reported meanwhile, lets go, and makes the calls
// that are due.
func (p *Partition) unlock() {
	for {
		if p.flushed.Swap(false) {
			// Asked under the lock, not taken from the report: a cut of the log happens under the same lock, so the
			// answer is about the present log (W7).
			ev := &p.mu.scratch.flushed
			*ev = Flushed{LogGeneration: p.mu.core.Generation(), DurableEnd: p.log.DurableEnd()}
			p.step(p.m.now(), ev)
		}
		var due *outcomes
		if !p.mu.done.empty() {
			due = outcomesPool.Get().(*outcomes)
			*due, p.mu.done = p.mu.done, *due
		}
		p.mu.Unlock()
		if due != nil {
			due.deliver()
			outcomesPool.Put(due)
		}
		// A report that found the lock taken is seen here, because it was stored before the lock was tried.
		if !p.flushed.Load() || !p.mu.TryLock() {
			return
		}
	}
}

// armTimer sees to a Tick when the next request runs out of time. The lock is held. Under steady load the timer is
// armed once for the oldest request and fires once per timeout.
func (p *Partition) armTimer(now Instant) {
	next := p.mu.core.NextDeadline()
	if next >= p.mu.armed {
		return
	}
	p.mu.armed = next
	d := time.Duration(max(next-now, 0))
	if p.mu.timer == nil {
		p.mu.timer = time.AfterFunc(d, p.expire)
		return
	}
	p.mu.timer.Reset(d)
}

func (p *Partition) expire() {
	p.mu.Lock()
	now := p.m.now()
	p.mu.armed = Never
	p.step(now, &Tick{})
	p.armTimer(now)
	p.unlock()
}

// setMoving notes the reassignment of the committed record.
func (p *Partition) setMoving(rec *metadata.Partition) {
	p.setAdding(rec.Adding)
	if !slices.Contains(rec.Removing, p.m.cfg.BrokerID) {
		p.stays.Store(nil)
		return
	}
	stays := slices.DeleteFunc(slices.Clone(rec.Replicas), func(id metadata.BrokerID) bool { return slices.Contains(rec.Removing, id) })
	p.stays.Store(&stays)
}

// ends reports whether an ISR completes the reassignment that takes this replica away.
func (p *Partition) ends(isr []metadata.BrokerID) bool {
	stays := p.stays.Load()
	if stays == nil {
		return false
	}
	for _, id := range *stays {
		if !slices.Contains(isr, id) {
			return false
		}
	}
	return true
}

func (p *Partition) setAdding(ids []metadata.BrokerID) {
	if len(ids) == 0 {
		p.adding.Store(nil)
		return
	}
	p.adding.Store(&ids)
}

// tick lets time pass for a partition with other replicas: lagging followers, proposals without an answer. A follower
// that has been told everything is heard of here, not at each of its polls.
func (p *Partition) tick() {
	if p.view.Load().replicas < 2 {
		return
	}
	p.mu.Lock()
	now := p.m.now()
	if p.mu.core.Role() == RoleLeader {
		ev := &p.mu.scratch.still
		for _, sp := range p.mu.sessions {
			if sp.still(ev) {
				p.step(now, ev)
			}
		}
	}
	p.step(now, &Tick{})
	p.unlock()
}

// apply tells the core the committed record of the partition.
func (p *Partition) apply(delta *MetadataDelta) {
	p.mu.Lock()
	p.step(p.m.now(), delta)
	p.unlock()
}

// configure makes the log and the core follow the topic's settings.
func (p *Partition) configure(settings log.Settings, policy Policy) {
	if p.log.Settings() != settings {
		p.log.Configure(settings)
	}
	p.mu.Lock()
	p.step(p.m.now(), &Configure{Policy: policy})
	flush := p.mu.wantFlush
	p.mu.wantFlush = false
	p.publish()
	p.unlock()
	if flush {
		if err := p.log.Flush(); err != nil {
			p.logger().Error("flush after millrace.flush.ack was switched on failed", "err", p.storageError("flush", err))
		}
	}
}

// startMoved looks whether retention moved the log start.
func (p *Partition) startMoved() {
	start := p.log.StartOffset()
	p.mu.Lock()
	p.startMovedLocked(&StartMoved{StartOffset: start})
	p.unlock()
}

func (p *Partition) startMovedLocked(ev *StartMoved) {
	p.step(p.m.now(), ev)
	p.seenStart.Store(p.mu.core.StartOffset())
	p.restable()
	for _, list := range [...]*waiterList{&p.committed, &p.stable, &p.tail} {
		list.wakeBelow(ev.StartOffset, &p.mu.done)
	}
	if len(p.mu.sessions) > 0 {
		p.tellLater()
	}
	if f, c := p.mu.fetcher, p.mu.core; f != nil && c.Fetching() != 0 {
		f.started(p, c.StartOffset()) // the leader waits for it to answer DeleteRecords
	}
}

// fail halts the partition: the directory is poisoned.
func (p *Partition) fail(err error) {
	p.mu.Lock()
	p.step(p.m.now(), &StorageFailed{Err: err})
	p.unlock()
}

// remove ends the partition: nothing is served any more, everything that waits is told err. The log is the caller's.
func (p *Partition) remove(err error) {
	p.mu.Lock()
	p.step(p.m.now(), &Removed{Err: err})
	if p.mu.timer != nil {
		p.mu.timer.Stop()
	}
	p.unlock()
}

// countRecords adds up the records of whole batches, transaction markers not counted.
func countRecords(b []byte) (n int64) {
	for len(b) > 0 {
		batch, rest, err := record.Next(b)
		if err != nil {
			return n
		}
		if !batch.IsControl() {
			n += int64(batch.Count())
		}
		b = rest
	}
	return n
}
