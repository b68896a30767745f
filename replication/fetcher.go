package replication

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/millrace/millrace/metadata"
)

// fetchState is what the fetcher of a partition's leader knows of the partition. Guarded by that fetcher's lock.
type fetchState struct {
	// wanted says that the core has a fetch in flight: at position, numbered seq.
	wanted   bool
	seq      uint64
	position fetchPoint
	// pending: the position has to be sent. sent: the leader knows the position told, which the fetch numbered sentSeq
	// asks for.
	pending, sent bool
	told          fetchPoint
	sentSeq       uint64
	// syncing: what was appended is not durable yet, the next position comes when it is.
	syncing bool
	// delayed: in the heap of those that wait after an error.
	delayed bool
}

// fetchPoint is the part of a FetchPosition that moves.
type fetchPoint struct {
	leaderEpoch, lastEpoch int32
	offset, start          int64
}

// fetcher follows one leader broker on behalf of all partitions that it leads: one goroutine, one session, one request
// at a time. The next request goes out as soon as everything of the last answer is durable, because it is the
// acknowledgement that moves the high watermark (I2); what takes longer than syncPatience is reported when it is ready.
type fetcher struct {
	m      *Manager
	broker metadata.BrokerID
	kick   chan struct{} // something to look at for the goroutine that waits

	mu struct {
		sync.Mutex
		// parts are what it follows: an answer finds its partition here, and not in the manager's table, which a new
		// partition may enter only after its first answer.
		parts     map[TopicIDPartition]*Partition
		pending   []*Partition // in the order of their wishes; may name partitions that have left
		forgotten []TopicIDPartition
		// live counts the parts that are pending or sent, syncing those that are syncing since syncSince.
		live, syncing int
		syncSince     Instant
		delayed       delayHeap
		client        Fetcher
		// waiting: the goroutine waits for kick. parked: it is in a Fetch that may wait at the leader.
		waiting, parked bool
		stopped         bool
	}

	// The goroutine's own.
	req      FollowerFetch
	failures int
	retryAt  Instant
	timer    *time.Timer
}

// syncPatience is how long the positions that are ready wait for those of the same answer that are being synced: one
// request then carries them all.
const syncPatience = Instant(2 * time.Millisecond)

// fetchers are the fetchers of a manager. Their lock is taken before that of a fetcher.
type fetchers struct {
	mu struct {
		sync.Mutex
		closed   bool
		byBroker map[metadata.BrokerID]*fetcher
	}
	tasks sync.WaitGroup
}

// want notes the fetch that the core of p asks of a leader, and starts the leader's fetcher when it is the first. The
// lock of p is held.
func (m *Manager) want(p *Partition, a Action) {
	if m.cfg.Peers == nil {
		return // alone: there is nobody to ask
	}
	fs := &m.fetchers
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.mu.byBroker[a.Broker]
	if f == nil {
		if fs.mu.closed {
			return
		}
		f = &fetcher{m: m, broker: a.Broker, kick: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
		f.mu.parts = map[TopicIDPartition]*Partition{}
		if fs.mu.byBroker == nil {
			fs.mu.byBroker = map[metadata.BrokerID]*fetcher{}
		}
		fs.mu.byBroker[a.Broker] = f
		ctx := m.lifetime
		fs.tasks.Go(func() { f.run(ctx) })
	}
	if p.mu.fetcher != f {
		if p.mu.fetcher != nil {
			p.mu.fetcher.forget(p)
		}
		p.mu.fetcher = f
	}
	f.want(p, a.Seq, fetchPoint{leaderEpoch: a.LeaderEpoch, lastEpoch: a.LastEpoch, offset: a.Offset, start: p.mu.core.StartOffset()})
}

// want is Manager.want for this leader. A request that waits at the leader is ended once the lock of p is let go.
func (f *fetcher) want(p *Partition, seq uint64, at fetchPoint) {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := &p.fetch
	if !f.hasLocked(p) {
		f.mu.parts[p.key()] = p
		*st = fetchState{}
	}
	f.notSyncingLocked(st)
	st.wanted, st.seq, st.position = true, seq, at
	if st.sent && st.told == at {
		st.sentSeq = seq // the leader knows, and will say when there is more
		return
	}
	if !st.pending {
		if !st.sent {
			f.mu.live++
		}
		st.pending = true
		f.mu.pending = append(f.mu.pending, p)
	}
	if client := f.signalLocked(); client != nil {
		p.wakeLater(client.Wake)
	}
}

// hasLocked says whether the partition is among the parts; another one of its name, which it replaced or which replaced
// it, is not.
func (f *fetcher) hasLocked(p *Partition) bool { return f.mu.parts[p.key()] == p }

// signalLocked tells the goroutine to look; the Fetcher it returns is to be woken without the lock.
func (f *fetcher) signalLocked() Fetcher {
	if f.mu.waiting {
		f.mu.waiting = false
		f.kick <- struct{}{}
	}
	if f.mu.parked {
		f.mu.parked = false
		return f.mu.client
	}
	return nil
}

func (f *fetcher) notSyncingLocked(st *fetchState) {
	if st.syncing {
		st.syncing = false
		f.mu.syncing--
	}
}

// forget takes a partition out of the session. The lock of p is held.
func (f *fetcher) forget(p *Partition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.hasLocked(p) {
		return
	}
	delete(f.mu.parts, p.key())
	st := &p.fetch
	f.notSyncingLocked(st)
	if st.pending || st.sent {
		f.mu.live--
	}
	if st.sent {
		f.mu.forgotten = append(f.mu.forgotten, p.key())
	}
	if st.delayed {
		f.mu.delayed.remove(p)
	}
	*st = fetchState{}
	if len(f.mu.parts) == 0 {
		f.signalLocked() // it may end
	}
}

// started notes that the log of a partition begins later now, which the leader wants to know. The lock of p is held.
func (f *fetcher) started(p *Partition, start int64) {
	f.mu.Lock()
	st := &p.fetch
	mine := f.hasLocked(p)
	seq, at := st.seq, st.position
	at.start = start
	again := mine && st.wanted && at != st.position
	f.mu.Unlock()
	if again {
		f.want(p, seq, at)
	}
}

// settle notes where an answer left a partition whose core asks for nothing at present: waiting for its flush, or for
// retryAt after an error. The lock of p is held.
func (f *fetcher) settle(p *Partition, retryAt Instant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := &p.fetch
	if !f.hasLocked(p) || st.wanted {
		return
	}
	if retryAt != Never {
		if !st.delayed {
			st.delayed = true
			f.mu.delayed.push(p, retryAt)
		}
		return
	}
	if !st.syncing {
		if f.mu.syncing == 0 {
			f.mu.syncSince = f.m.now()
		}
		st.syncing = true
		f.mu.syncing++
	}
}

// run is the fetcher's goroutine.
func (f *fetcher) run(ctx context.Context) {
	defer f.timer.Stop()
	defer f.close()
	for {
		client := f.next(ctx)
		if client == nil {
			return
		}
		answer, err := client.Fetch(ctx, &f.req)
		f.mu.Lock()
		f.mu.parked = false
		f.mu.Unlock()
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			f.broken(err)
			continue
		}
		if f.failures > 0 {
			f.m.logger.Info("leader answers again", "leader", f.broker)
		}
		f.failures, f.retryAt = 0, 0
		f.take(answer)
		answer.Release()
	}
}

func (f *fetcher) close() {
	f.mu.Lock()
	client := f.mu.client
	f.mu.client = nil
	f.mu.Unlock()
	if client != nil {
		client.Close()
	}
}

// next waits until there is a request to make and prepares it in f.req; nil: the fetcher ends.
func (f *fetcher) next(ctx context.Context) Fetcher {
	for {
		now := f.m.now()
		f.retryDelayed(now)
		f.mu.Lock()
		wake := f.mu.delayed.next()
		switch {
		case ctx.Err() != nil:
			f.mu.Unlock()
			return nil
		case len(f.mu.parts) == 0:
			f.mu.Unlock()
			if f.end() {
				return nil
			}
			continue
		case now < f.retryAt:
			wake = f.retryAt // nobody is reached before
		case f.mu.syncing > 0 && len(f.mu.pending) > 0 && now < f.mu.syncSince+syncPatience:
			wake = min(wake, f.mu.syncSince+syncPatience)
		case f.mu.syncing > 0 && len(f.mu.pending) > 0, f.mu.syncing == 0 && f.mu.live > 0:
			client := f.prepareLocked()
			f.mu.Unlock()
			return client
		}
		f.mu.waiting = true
		f.mu.Unlock()
		f.wait(ctx, now, wake)
	}
}

func (f *fetcher) wait(ctx context.Context, now, wake Instant) {
	var timer <-chan time.Time
	if wake != Never {
		f.timer.Reset(time.Duration(max(wake-now, 0)))
		timer = f.timer.C
	}
	select {
	case <-ctx.Done():
	case <-f.kick:
	case <-timer:
	}
	f.mu.Lock()
	if !f.mu.waiting {
		select {
		case <-f.kick: // sent, and not received above
		default:
		}
	}
	f.mu.waiting = false
	f.mu.Unlock()
}

// end takes the fetcher off the list unless it has partitions again.
func (f *fetcher) end() bool {
	fs := &f.m.fetchers
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.mu.parts) > 0 {
		return false
	}
	if fs.mu.byBroker[f.broker] == f {
		delete(fs.mu.byBroker, f.broker)
	}
	return true
}

// prepareLocked builds the request out of what is pending.
func (f *fetcher) prepareLocked() Fetcher {
	cfg := &f.m.cfg
	if f.mu.client == nil {
		f.mu.client = cfg.Peers.OpenFetcher(f.broker)
		f.mu.forgotten = f.mu.forgotten[:0]
	}
	req := &f.req
	*req = FollowerFetch{
		BrokerEpoch: f.m.brokerEpoch.Load(), MaxWait: min(cfg.FetchWait, cfg.ReplicaLagMax/3), MinBytes: cfg.FetchMinBytes, MaxBytes: cfg.FetchMaxBytes,
		Changed: req.Changed[:0], Forgotten: append(req.Forgotten[:0], f.mu.forgotten...),
	}
	f.mu.forgotten = f.mu.forgotten[:0]
	for _, p := range f.mu.pending {
		st := &p.fetch
		if !f.hasLocked(p) || !st.pending {
			continue
		}
		if pause := f.m.throttle.follower.pause(p); pause > 0 {
			st.pending = false
			if !st.sent {
				f.mu.live--
			}
			if !st.delayed {
				st.delayed = true
				f.mu.delayed.push(p, f.m.now()+pause)
			}
			continue
		}
		st.pending, st.sent, st.told, st.sentSeq = false, true, st.position, st.seq
		req.Changed = append(req.Changed, FetchPosition{
			TopicID: p.topic.id, Partition: p.partition, LeaderEpoch: st.told.leaderEpoch, Offset: st.told.offset,
			LastEpoch: st.told.lastEpoch, LogStartOffset: st.told.start, MaxBytes: cfg.FetchPartitionBytes,
		})
	}
	clear(f.mu.pending)
	f.mu.pending = f.mu.pending[:0]
	if f.mu.syncing > 0 {
		req.MaxWait = 0 // the positions that are still missing must not wait behind this request
	}
	f.mu.parked = req.MaxWait > 0
	return f.mu.client
}

// broken is the end of a session: everything is said again to the next one, after a pause.
func (f *fetcher) broken(err error) {
	f.close()
	f.mu.Lock()
	clear(f.mu.pending)
	f.mu.pending, f.mu.live = f.mu.pending[:0], 0
	for _, p := range f.mu.parts {
		st := &p.fetch
		st.sent, st.pending = false, st.wanted
		if st.wanted {
			f.mu.live++
			f.mu.pending = append(f.mu.pending, p)
		}
	}
	partitions := len(f.mu.parts)
	f.mu.Unlock()
	pause := min(f.m.cfg.FetchRetryMin<<min(f.failures, 16), f.m.cfg.FetchRetryMax)
	pause += rand.N(pause/4 + 1) // so that all followers of a broker that comes back do not call at one instant
	f.retryAt = f.m.now() + Instant(pause)
	if f.failures++; f.failures == 1 {
		f.m.logger.Warn("leader cannot be reached", "leader", f.broker, "partitions", partitions, "err", err)
	}
	if fn := f.m.cfg.OnPeerFailure; fn != nil {
		fn(f.broker, err)
	}
}

// retryDelayed lets the partitions ask again whose pause after an error is over.
func (f *fetcher) retryDelayed(now Instant) {
	for {
		f.mu.Lock()
		p := f.mu.delayed.popDue(now)
		if p == nil {
			f.mu.Unlock()
			return
		}
		st := &p.fetch
		st.delayed = false
		throttled := st.wanted
		if throttled && !st.pending {
			if !st.sent {
				f.mu.live++
			}
			st.pending = true
			f.mu.pending = append(f.mu.pending, p)
		}
		f.mu.Unlock()
		if !throttled {
			p.retryFetch(f)
		}
	}
}

// take hands the answer to the partitions. What has to cut its log comes last, several at a time: a cut takes syncs,
// and must not hold up the others' reports.
func (f *fetcher) take(answer *FollowerAnswer) {
	var cuts sync.WaitGroup
	var slots chan struct{}
	for i := range answer.Partitions {
		part := &answer.Partitions[i]
		if part.mayCut() {
			continue
		}
		if p, ev := f.match(part); p != nil {
			p.fetched(f, ev, part.Records, part.Owner)
		}
	}
	for i := range answer.Partitions {
		part := &answer.Partitions[i]
		if !part.mayCut() {
			continue
		}
		p, ev := f.match(part)
		if p == nil {
			continue
		}
		if slots == nil {
			slots = make(chan struct{}, f.m.cfg.Workers)
		}
		slots <- struct{}{}
		cuts.Go(func() {
			p.fetched(f, ev, nil, nil)
			<-slots
		})
	}
	cuts.Wait()
}

func (part *FetchedPartition) mayCut() bool {
	return part.DivergingEpoch >= 0 && part.Err == nil || isOutOfRange(part.Err)
}

// match finds the partition an answer is about and the fetch it answers; nil when it is no longer wanted.
func (f *fetcher) match(part *FetchedPartition) (*Partition, *FetchResponse) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.mu.parts[TopicIDPartition{part.TopicID, part.Partition}]
	if p == nil || !p.fetch.sent {
		return nil, nil
	}
	st := &p.fetch
	ev := &FetchResponse{
		Seq: st.sentSeq, LeaderEpoch: st.told.leaderEpoch, Offset: st.told.offset, LastEpoch: st.told.lastEpoch,
		BaseOffset: st.told.offset, NextOffset: st.told.offset,
		HighWatermark: part.HighWatermark, LogStartOffset: part.LogStartOffset, LogEndOffset: part.LogEndOffset,
		DivergingEpoch: part.DivergingEpoch, DivergingEnd: part.DivergingEnd, LocalEpoch: -1, LocalEnd: -1,
		OutOfRange: isOutOfRange(part.Err), Failed: part.Err != nil && !isOutOfRange(part.Err),
	}
	if ev.Failed || ev.OutOfRange {
		ev.DivergingEpoch = -1
	}
	if st.seq == st.sentSeq {
		st.wanted = false
	}
	if len(part.Records) > 0 || part.Err != nil || part.DivergingEpoch >= 0 {
		// The leader waits for the next position, even if it is the same one.
		st.sent = false
		if !st.pending {
			f.mu.live--
		}
	}
	return p, ev
}

// shut ends all fetchers; the manager's lifetime has ended before.
func (fs *fetchers) shut() {
	fs.mu.Lock()
	fs.mu.closed = true
	for _, f := range fs.mu.byBroker {
		f.mu.Lock()
		client := f.mu.client
		f.mu.Unlock()
		if client != nil {
			client.Close() // a call that does not mind its context
		}
	}
	fs.mu.Unlock()
	fs.tasks.Wait()
}
