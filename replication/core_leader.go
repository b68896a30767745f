package replication

import (
	"slices"

	"github.com/millrace/millrace/metadata"
)

// leading is the state of a leader; it is made anew at each leader epoch (R24).
type leading struct {
	// epochStart is the end of the log at the election (R4).
	epochStart int64
	followers  []follower
	// committed waits for the high watermark (acks=all), durable for this replica's own durable end (acks=1), trimmed
	// for the low watermark of all live replicas (DeleteRecords; next is the target offset).
	committed, durable, trimmed waitQueue
	proposal                    proposal
}

// reset forgets the epoch but keeps the queues' memory. The queues are empty by then.
func (l *leading) reset() {
	l.epochStart = 0
	l.followers = l.followers[:0]
	l.proposal = proposal{}
}

// follower is what a leader knows of another replica in this leader epoch.
type follower struct {
	id metadata.BrokerID
	// brokerEpoch is the registration under which the position was reported. A later one starts over (R12, R24).
	brokerEpoch int64
	// position is the follower's fetch offset, -1 until it has fetched in this epoch: it holds everything below.
	position int64
	// start is its log start offset.
	start int64
	// caughtUp is when it last had everything that was in the log at the time of its fetch (R18).
	caughtUp Instant
	// fetchedAt and fetchEnd are the time of its last fetch and the leader's end then.
	fetchedAt Instant
	fetchEnd  int64
	// provenAt is the time of the fetch before, zero when there was none: the last one was sent after that was answered,
	// while when it was sent itself nobody knows. It may have lain in a socket for as long as this process stood still.
	provenAt Instant
	// refusedUntil keeps a refused replica from being proposed in a loop.
	refusedUntil Instant
}

func (c *Core) lead(now Instant) {
	c.role = RoleLeader
	c.following = following{}
	c.leading.reset()
	c.leading.epochStart = c.end
	c.knowPeers(now)
	c.act(Action{Kind: ActionRole})
	c.advance()
}

func (c *Core) follower(id metadata.BrokerID) *follower {
	for i := range c.leading.followers {
		if c.leading.followers[i].id == id {
			return &c.leading.followers[i]
		}
	}
	return nil
}

// knowPeers drops followers that are no longer replicas and adds new ones.
func (c *Core) knowPeers(now Instant) {
	c.leading.followers = slices.DeleteFunc(c.leading.followers, func(f follower) bool { return c.peer(f.id) == nil })
	for _, p := range c.replicas {
		if p.ID != c.self && c.follower(p.ID) == nil {
			// Each replica has the full time before it is called lagging.
			c.leading.followers = append(c.leading.followers, follower{id: p.ID, brokerEpoch: -1, position: -1, start: -1, caughtUp: now})
		}
	}
}

func (c *Core) peer(id metadata.BrokerID) *Peer {
	for i := range c.replicas {
		if c.replicas[i].ID == id {
			return &c.replicas[i]
		}
	}
	return nil
}

func (c *Core) produce(ev *Produce) {
	var err error
	switch {
	case ev.Acks < -1 || ev.Acks > 1:
		err = ErrInvalidAcks
	case c.role != RoleLeader:
		err = ErrNotLeader
	default:
		err = c.fence(ev.LeaderEpoch)
	}
	if err == nil && ev.Acks == -1 && !c.commits() {
		err = ErrNotEnoughReplicas // R19, before the append
	}
	if err != nil {
		c.complete(ev.Waiter, -1, err)
		return
	}
	c.act(Action{Kind: ActionAppend, Waiter: ev.Waiter, LeaderEpoch: c.leaderEpoch})
}

func (c *Core) appended(now Instant, ev *Appended) {
	if ev.Waiter == 0 {
		c.replicated(now, ev)
		return
	}
	if ev.Err != nil {
		c.complete(ev.Waiter, -1, ev.Err)
		return
	}
	if c.role != RoleLeader {
		c.complete(ev.Waiter, -1, ErrLeadershipLost)
		return
	}
	if ev.NextOffset > c.end {
		c.end = ev.NextOffset
		c.lastEpoch = c.leaderEpoch
	}
	w := waiting{waiter: ev.Waiter, base: ev.BaseOffset, next: ev.NextOffset, deadline: ev.Deadline}
	switch {
	case ev.Acks == -1:
		// The duplicate of a batch waits like the original: its offset was never acknowledged before (protocol.md 6).
		c.leading.committed.push(w)
		c.advance()
		c.releaseCommitted()
		return
	case ev.Acks == 1 && c.policy.FlushAck && ev.NextOffset > c.durable:
		c.leading.durable.push(w)
	default:
		c.complete(ev.Waiter, ev.BaseOffset, nil)
	}
	c.advance()
}

// commits says whether the ISR is large enough to commit records. A replica that is eligible though not in the ISR has all
// that was committed only as long as nothing more is (KIP-966): with the record naming one, the controller holds the ISR
// for too small, whatever min.insync.replicas this broker goes by.
func (c *Core) commits() bool { return len(c.isr) >= c.policy.MinInsync && len(c.elr) == 0 }

// advance moves the high watermark to the least position in the maximal ISR and answers what that commits.
func (c *Core) advance() {
	to := c.position()
	for i := range c.leading.followers {
		f := &c.leading.followers[i]
		if f.position < to && c.inMaximalISR(f.id) {
			to = f.position
		}
	}
	if mutated(mutantHighWatermark) {
		to = min(to+1, c.end)
	}
	if !c.commits() {
		// R10: too few to commit anything. What would have been committed by those that are left is told so (R19, at
		// completion).
		for {
			w, ok := c.leading.committed.pop(to)
			if !ok {
				return
			}
			c.complete(w.waiter, -1, ErrNotEnoughReplicasAfterAppend)
		}
	}
	if c.setHighWatermark(to) {
		c.releaseCommitted()
	}
}

func (c *Core) releaseCommitted() {
	if !c.commits() {
		return
	}
	for {
		w, ok := c.leading.committed.pop(c.highWatermark)
		if !ok {
			return
		}
		c.complete(w.waiter, w.base, nil)
	}
}

// releaseDurable answers acks=1 up to the durable end.
func (c *Core) releaseDurable() { c.releaseLocal(c.durable) }

// releaseAppended answers acks=1 up to the end: the topic no longer waits for a flush.
func (c *Core) releaseAppended() { c.releaseLocal(c.end) }

func (c *Core) releaseLocal(to int64) {
	for {
		w, ok := c.leading.durable.pop(to)
		if !ok {
			return
		}
		c.complete(w.waiter, w.base, nil)
	}
}

// failWaiters answers everything that waits with an error that leaves the outcome open.
func (c *Core) failWaiters(err error) {
	fail := func(w waiting) { c.complete(w.waiter, -1, err) }
	c.leading.committed.drain(fail)
	c.leading.durable.drain(fail)
	c.leading.trimmed.drain(fail)
}

func (c *Core) expire(now Instant) {
	fail := func(w waiting) { c.complete(w.waiter, -1, ErrTimeout) }
	c.leading.committed.expire(now, fail)
	c.leading.durable.expire(now, fail)
	c.leading.trimmed.expire(now, fail)
}

// NextDeadline returns when the core next wants a [Tick] because a request runs out of time; Never when none waits.
func (c *Core) NextDeadline() Instant {
	return min(c.leading.committed.deadline(), c.leading.durable.deadline(), c.leading.trimmed.deadline())
}

// Waiting returns the number of unanswered requests.
func (c *Core) Waiting() int {
	return c.leading.committed.len() + c.leading.durable.len() + c.leading.trimmed.len()
}

func (c *Core) fetchRequest(now Instant, ev *FetchRequest) {
	answer := Action{Kind: ActionAnswerFetch, Waiter: ev.Waiter, Offset: ev.Offset, LeaderEpoch: c.leaderEpoch, DivergingEpoch: -1, DivergingEnd: -1}
	f := c.follower(ev.Replica)
	switch {
	case c.role != RoleLeader:
		answer.Err = ErrNotLeader
	case c.fence(ev.LeaderEpoch) != nil:
		answer.Err = c.fence(ev.LeaderEpoch)
	case f == nil:
		answer.Err = ErrNotReplica
	case ev.BrokerEpoch < f.brokerEpoch || ev.BrokerEpoch < c.peer(ev.Replica).BrokerEpoch:
		answer.Err = ErrStaleBrokerEpoch // R12: sent before the follower's restart, which may have cost it the tail it reports
	}
	if answer.Err != nil {
		c.act(answer)
		return
	}
	unknown := ev.LastEpoch >= 0 && ev.FoundEpoch < 0 && ev.StartOffset < ev.Offset
	if !mutated(mutantIgnoreEpoch) && ev.LastEpoch >= 0 && ev.FoundEpoch >= 0 && (ev.FoundEpoch < ev.LastEpoch || ev.FoundEnd < ev.Offset) {
		// R3: the follower's last batch is not in this log. It holds nothing that counts until it has cut.
		answer.DivergingEpoch, answer.DivergingEnd = ev.FoundEpoch, ev.FoundEnd
		c.act(answer)
		return
	}
	// Nothing of the follower's last epoch or an earlier one is left here: nobody can tell whether what it holds is
	// what was deleted here, or something else. The bounds in the answer tell it where to begin anew.
	if unknown || ev.Offset < c.start && !(ev.AtFirstBatch && ev.LastEpoch < 0) || ev.Offset > c.end {
		answer.Err = errOutOfRange
		c.act(answer)
		return
	}
	if ev.BrokerEpoch > f.brokerEpoch {
		*f = follower{id: f.id, brokerEpoch: ev.BrokerEpoch, position: -1, start: -1, caughtUp: f.caughtUp}
	}
	f.position = max(f.position, ev.Offset) // requests may overtake each other; within one broker and leader epoch a follower never loses what it reported
	f.start = ev.StartOffset
	f.caughtUpAt(now, ev.Offset, c.end)
	c.expand(now, f)
	c.advance()
	c.releaseTrimmed()
	c.act(answer)
}

// stillFetching counts a follower that has nothing to fetch as caught up, and takes it into the ISR if it was refused
// before and may join by now.
func (c *Core) stillFetching(now Instant, ev *StillFetching) {
	f := c.follower(ev.Replica)
	if c.role != RoleLeader || f == nil || f.position < 0 || f.brokerEpoch != ev.BrokerEpoch {
		return
	}
	if f.position >= c.end {
		f.caughtUp = max(f.caughtUp, ev.At)
	}
	f.heard(ev.At)
	c.expand(now, f)
}

// FetchedSince returns a time after which each other electable replica (ISR and ELR) has sent a fetch in this leader epoch:
// none of them knew of a later one then. Never when there is no other, the least Instant when one has not.
func (c *Core) FetchedSince() Instant {
	since := Never
	for i := range c.leading.followers {
		f := &c.leading.followers[i]
		if !slices.Contains(c.isr, f.id) && !slices.Contains(c.elr, f.id) {
			continue
		}
		if f.position < 0 || f.provenAt == 0 {
			return -Never
		}
		since = min(since, f.provenAt)
	}
	return since
}

// Behind says whether an in-sync follower lacks something that is in the log.
func (c *Core) Behind() bool {
	for i := range c.leading.followers {
		if f := &c.leading.followers[i]; f.position < c.end && slices.Contains(c.isr, f.id) {
			return true
		}
	}
	return false
}

// FollowerEpoch returns the broker epoch under which a follower has reported its position in this leader epoch, -1 when
// it has not.
func (c *Core) FollowerEpoch(id metadata.BrokerID) int64 {
	if f := c.follower(id); f != nil {
		return f.brokerEpoch
	}
	return -1
}

// caughtUpAt notes a fetch at offset when the log ended at end. A follower that reads what was there at its last fetch
// was caught up then, even if more has come since: lag is time, not records (R18).
func (f *follower) caughtUpAt(now Instant, offset, end int64) {
	switch {
	case offset >= end:
		f.caughtUp = now
	case offset >= f.fetchEnd && f.fetchedAt > f.caughtUp:
		f.caughtUp = f.fetchedAt
	}
	f.heard(now)
	f.fetchEnd = end
}

// heard notes that a request of the follower arrived at that time.
func (f *follower) heard(at Instant) {
	if at > f.fetchedAt {
		f.provenAt, f.fetchedAt = f.fetchedAt, at
	}
}

func (c *Core) deleteRecords(ev *DeleteRecords) {
	if c.role != RoleLeader {
		c.complete(ev.Waiter, -1, ErrNotLeader)
		return
	}
	if err := c.fence(ev.LeaderEpoch); err != nil {
		c.complete(ev.Waiter, -1, err)
		return
	}
	to, limit := ev.Offset, min(c.highWatermark, ev.LastStableOffset)
	if to == -1 {
		to = limit
	}
	if to < 0 || to > limit {
		c.complete(ev.Waiter, -1, errOutOfRange) // L17: nothing that may still be truncated, nor a part of a transaction
		return
	}
	c.leading.trimmed.push(waiting{waiter: ev.Waiter, next: to, deadline: ev.Deadline})
	if to > c.start {
		c.act(Action{Kind: ActionTrim, Offset: to})
		return
	}
	c.releaseTrimmed()
}

func (c *Core) startMoved(ev *StartMoved) {
	if ev.Err != nil {
		c.leading.trimmed.drain(func(w waiting) { c.complete(w.waiter, -1, ev.Err) })
		return
	}
	if ev.StartOffset <= c.start {
		return
	}
	c.start = ev.StartOffset
	c.end = max(c.end, c.start)
	c.durable = max(c.durable, c.start)
	c.setHighWatermark(c.start)
	if c.role == RoleLeader {
		c.advance()
		c.releaseTrimmed()
	}
}

// releaseTrimmed answers DeleteRecords once every live replica's log starts at or above the target.
func (c *Core) releaseTrimmed() {
	if c.leading.trimmed.len() == 0 {
		return
	}
	low := c.start
	for i := range c.leading.followers {
		f := &c.leading.followers[i]
		if p := c.peer(f.id); p != nil && !p.Fenced {
			low = min(low, f.start)
		}
	}
	for {
		w, ok := c.leading.trimmed.pop(low)
		if !ok {
			return
		}
		c.complete(w.waiter, low, nil)
	}
}
