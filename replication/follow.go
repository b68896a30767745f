package replication

import (
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/metadata"
)

// isOutOfRange says whether a leader's error means that the position is outside its log.
func isOutOfRange(err error) bool { return errors.Is(err, log.ErrOffsetOutOfRange) }

// key names the partition by topic id.
func (p *Partition) key() TopicIDPartition { return TopicIDPartition{p.topic.id, p.partition} }

// fetched takes in the leader's answer for this replica: append and epoch check are under one lock, which is held until
// a cut that the answer asks for is durable (R17, W14). Records are retained through owner or copied.
func (p *Partition) fetched(f *fetcher, ev *FetchResponse, records []byte, owner log.Buffer) {
	p.mu.Lock()
	now := p.m.now()
	if ev.DivergingEpoch >= 0 {
		ev.LocalEpoch, ev.LocalEnd = p.log.EpochEnd(ev.DivergingEpoch)
	}
	var bad error
	if len(records) > 0 && !ev.Failed {
		bad = spanOf(records, ev)
		ev.Failed = bad != nil
	}
	current := ev.LeaderEpoch == p.mu.core.LeaderEpoch()
	p.follow(now, ev, records, owner)
	if current && !ev.Failed {
		p.handedOverLocked()
	}
	if bad != nil {
		p.logger().Warn("answer of the leader refused", "leader", p.mu.core.Leader(), "offset", ev.Offset, "err", bad)
	}
	if ev.LogEndOffset >= 0 && !ev.Failed {
		p.lag.Store(max(ev.LogEndOffset-p.mu.core.EndOffset(), 0))
	}
	p.settleFetch(f)
	p.unlock()
}

// settleFetch tells the fetcher what the core waits for if it has no fetch in flight. The lock is held.
func (p *Partition) settleFetch(f *fetcher) {
	c := p.mu.core
	if p.mu.fetcher == f && c.Role() == RoleFollower && c.Fetching() == 0 {
		f.settle(p, c.RetryAt())
	}
}

// retryFetch lets the core ask again after an error.
func (p *Partition) retryFetch(f *fetcher) {
	p.mu.Lock()
	now := p.m.now()
	p.step(now, &Tick{})
	p.settleFetch(f)
	p.unlock()
}

// follow feeds a follower's core the leader's answer and does what follows from it. The lock is held throughout.
func (p *Partition) follow(now Instant, ev *FetchResponse, records []byte, owner log.Buffer) {
	p.mu.following = p.mu.following[:0]
	p.mu.following = append(p.mu.following, p.mu.core.Step(now, ev)...)
	for _, a := range p.mu.following {
		switch a.Kind {
		case ActionReplicate:
			p.replicate(now, a.LeaderEpoch, records, owner)
		case ActionTruncate, ActionReset:
			p.cut(now, a)
		default:
			p.do(a)
		}
	}
}

// replicate appends the leader's records as they are.
func (p *Partition) replicate(now Instant, leaderEpoch int32, records []byte, owner log.Buffer) {
	p.mu.sets[0] = log.Set{Records: records, Owner: owner}
	err := p.log.Replicate(leaderEpoch, p.mu.sets[:])
	p.mu.sets[0] = log.Set{}
	ev := &Appended{Err: err}
	if err == nil {
		ev.NextOffset, ev.LastEpoch = p.log.EndOffset(), p.log.LastEpoch()
		p.topic.metrics.replicationBytesIn.Add(int64(len(records)))
		if ids := p.adding.Load(); ids != nil && slices.Contains(*ids, p.m.cfg.BrokerID) {
			p.topic.metrics.reassignmentBytesIn.Add(int64(len(records)))
		}
		p.m.throttle.follower.spent(p, p.m.cfg.BrokerID, len(records))
	}
	switch {
	case err == nil:
	case errors.Is(err, log.ErrPoisoned):
		err = p.storageError("replicate to", err)
		p.step(now, &StorageFailed{Err: err})
		p.m.storageFailed(err)
		return
	case errors.Is(err, log.ErrCorrupt):
		p.step(now, &StorageFailed{Err: p.corruptError(err)})
		return
	default:
		p.logger().Warn("records of the leader not appended", "leader", p.mu.core.Leader(), "err", err)
	}
	p.step(now, ev)
}

// cut makes the log end, or begin anew, where the core says, and tells it when that is durable.
func (p *Partition) cut(now Instant, a Action) {
	p.logger().Info("log is cut to what its leader has", "leader", p.mu.core.Leader(), "leader_epoch", p.mu.core.LeaderEpoch(),
		"to", a.Offset, "end", p.log.EndOffset(), "high_watermark", p.highWatermark.Load(), "anew", a.Kind == ActionReset)
	err := p.mu.cutErr
	p.mu.cutErr = nil
	switch {
	case err != nil:
	case a.Kind == ActionReset:
		err = p.log.StartAt(a.Offset)
	default:
		err = p.log.Truncate(a.Offset)
	}
	if err != nil {
		err = p.storageError("cut", err)
		if errors.Is(err, ErrStorage) {
			p.m.storageFailed(err)
		}
	}
	p.step(now, &Truncated{StartOffset: p.log.StartOffset(), EndOffset: p.log.EndOffset(), LastEpoch: p.log.LastEpoch(), Err: err})
	p.seenStart.Store(p.mu.core.StartOffset())
	p.restable()
}

// spanOf finds the offsets of whole batches. A batch of a later leader epoch than the one that was asked has no place in
// the answer: the leader has been superseded and cut its log while it was being read, and what follows a cut may not fit
// what was sent before it.
func spanOf(records []byte, ev *FetchResponse) error {
	base := int64(-1)
	for rest := records; len(rest) > 0; {
		b, r, err := record.Next(rest)
		if err != nil {
			return err
		}
		if b.LeaderEpoch() > ev.LeaderEpoch {
			return fmt.Errorf("batch at %d is of leader epoch %d, asked in %d: %w", b.BaseOffset(), b.LeaderEpoch(), ev.LeaderEpoch, ErrFencedLeaderEpoch)
		}
		if base < 0 {
			base = b.BaseOffset()
		}
		ev.NextOffset = b.NextOffset()
		rest = r
	}
	ev.BaseOffset = base
	return nil
}

// noteReadError takes the partition offline at once when its log turned out to be damaged (L9), not at the next tick.
func (p *Partition) noteReadError(err error) {
	if errors.Is(err, log.ErrCorrupt) {
		p.fail(p.corruptError(err))
	}
}

// stopFollowing takes the partition off its fetcher if it no longer follows that leader. The lock is held.
func (p *Partition) stopFollowing() {
	f, c := p.mu.fetcher, p.mu.core
	if f != nil && (c.Role() != RoleFollower || c.Leader() != f.broker) {
		f.forget(p)
		p.mu.fetcher = nil
		p.lag.Store(0)
	}
}

// proposed is what the driver adds to an ISR proposal: the broker epochs under which the members were seen (KIP-903).
func (p *Partition) proposed(a Action) metadata.PartitionChange {
	ch := metadata.PartitionChange{TopicID: p.topic.id, Partition: p.partition, LeaderEpoch: a.LeaderEpoch, PartitionEpoch: a.PartitionEpoch}
	c := p.mu.core
	for _, id := range a.ISR {
		m := metadata.ISRMember{ID: id, Epoch: -1}
		switch {
		case id == p.m.cfg.BrokerID:
			m.Epoch = p.m.brokerEpoch.Load()
		case !slices.Contains(c.ISR(), id):
			m.Epoch = c.FollowerEpoch(id)
		}
		ch.ISR = append(ch.ISR, m)
	}
	return ch
}
