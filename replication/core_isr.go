package replication

import (
	"slices"

	"github.com/millrace/millrace/metadata"
)

// proposal is an ISR change on its way to the controller. While it is there, the high watermark counts the committed
// ISR and the proposed one, because either may be the set from which the next leader is elected (R9).
type proposal struct {
	isr []metadata.BrokerID // nil: none
	seq uint64
	// sentAt is when it was last sent; unknown is set once an attempt had no definite outcome, so that an earlier copy
	// may be applied yet.
	sentAt  Instant
	unknown bool
}

func (p *proposal) open() bool { return p.isr != nil }

// inMaximalISR says whether the broker is in the committed or in the proposed ISR.
func (c *Core) inMaximalISR(id metadata.BrokerID) bool {
	return slices.Contains(c.isr, id) || slices.Contains(c.leading.proposal.isr, id)
}

// expand proposes to take the follower into the ISR once it holds all that is or may be committed (R9).
func (c *Core) expand(now Instant, f *follower) {
	p := c.peer(f.id)
	switch {
	case c.leading.proposal.open(), slices.Contains(c.isr, f.id), p == nil, p.Fenced:
		return
	case f.brokerEpoch != p.BrokerEpoch: // R12: not yet, or no longer, the registered one
		return
	case f.position < c.highWatermark, f.position < c.leading.epochStart:
		return
	case c.highWatermark < c.leading.epochStart && c.commits():
		// R7. Not with an ISR below min.insync: the high watermark stands still then (R10), so nobody could ever join
		// again. It is safe without, because whoever holds everything below the epoch's start holds all that was
		// committed before.
		return
	case now < f.refusedUntil:
		return
	}
	c.propose(now, append(slices.Clone(c.isr), f.id))
}

// shrink proposes to drop the followers that have been behind for too long, and repeats a proposal without an answer.
func (c *Core) shrink(now Instant) {
	if p := &c.leading.proposal; p.open() {
		if now-p.sentAt >= c.policy.ProposalTimeout {
			p.unknown = true
			c.propose(now, p.isr)
		}
		return
	}
	if c.policy.LagMax <= 0 {
		return
	}
	kept := slices.Clone(c.isr)
	kept = slices.DeleteFunc(kept, func(id metadata.BrokerID) bool {
		f := c.follower(id)
		return f != nil && now-f.caughtUp > c.policy.LagMax && (f.position < c.end || f.fetchedAt < now-c.policy.LagMax)
	})
	if len(kept) < len(c.isr) {
		c.propose(now, kept)
	}
}

func (c *Core) propose(now Instant, isr []metadata.BrokerID) {
	c.seq++
	c.leading.proposal = proposal{isr: isr, seq: c.seq, sentAt: now, unknown: c.leading.proposal.unknown}
	c.act(Action{Kind: ActionPropose, Seq: c.seq, LeaderEpoch: c.leaderEpoch, PartitionEpoch: c.partitionEpoch, ISR: slices.Clone(isr)})
}

func (c *Core) isrResult(now Instant, ev *ISRResult) {
	p := &c.leading.proposal
	if c.role != RoleLeader || !p.open() || ev.Seq != p.seq {
		return
	}
	switch ev.Outcome {
	case ProposalCommitted:
		if ev.PartitionEpoch <= c.partitionEpoch {
			return
		}
		c.partitionEpoch = ev.PartitionEpoch
		c.isr = append(c.isr[:0], ev.ISR...)
		c.elr = append(c.elr[:0], ev.ELR...)
		c.isrCommitted()
		c.advance()
	case ProposalRefused:
		if p.unknown {
			// An earlier copy of it had no answer and may be applied yet: it counts until the partition epoch says
			// otherwise.
			return
		}
		for i := range c.leading.followers {
			if f := &c.leading.followers[i]; slices.Contains(p.isr, f.id) && !slices.Contains(c.isr, f.id) {
				f.refusedUntil = now + c.policy.ProposalTimeout
			}
		}
		c.leading.proposal = proposal{}
		c.advance()
	case ProposalStale, ProposalUnknown:
		// Stale: the record has changed, perhaps by an earlier copy of this very proposal. Nothing may be forgotten
		// before the new record is here.
		p.unknown = true
	}
}

// isrCommitted is called when the committed record moved to a later partition epoch: a proposal for an earlier one can
// no longer be applied.
func (c *Core) isrCommitted() {
	c.leading.proposal = proposal{}
	c.act(Action{Kind: ActionRole})
}
