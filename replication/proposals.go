package replication

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/millrace/millrace/metadata"
)

// proposals are the ISR changes on their way to the controller. One goroutine carries them there: what comes while a
// request is under way goes with the next one.
type proposals struct {
	kick chan struct{} // capacity 1
	mu   struct {
		sync.Mutex
		queue []isrProposal
	}
}

type isrProposal struct {
	p      *Partition // nil: this broker gives up its own replica, see corrupt.go
	seq    uint64
	change metadata.PartitionChange
}

// proposalBatch bounds one request: the controller makes commands of bounded size of it anyway (M20).
const proposalBatch = 2000

// propose queues a proposal; it never blocks.
func (m *Manager) propose(p isrProposal) {
	q := &m.proposals
	q.mu.Lock()
	q.mu.queue = append(q.mu.queue, p)
	q.mu.Unlock()
	select {
	case q.kick <- struct{}{}:
	default:
	}
}

func (q *proposals) take() []isrProposal {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.mu.queue), proposalBatch)
	batch := q.mu.queue[:n:n]
	if q.mu.queue = q.mu.queue[n:]; len(q.mu.queue) == 0 {
		q.mu.queue = nil
	}
	return batch
}

// proposeLoop carries proposals to the controller, one request at a time.
func (m *Manager) proposeLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.proposals.kick:
		}
		for {
			batch := m.proposals.take()
			if len(batch) == 0 {
				break
			}
			m.carry(ctx, batch)
		}
	}
}

// carry asks the controller and tells each partition what became of its proposal. A request without an answer in time
// has an unknown outcome: it keeps counting (R9), and the core makes it again.
func (m *Manager) carry(ctx context.Context, batch []isrProposal) {
	changes := make([]metadata.PartitionChange, len(batch))
	for i := range batch {
		changes[i] = batch[i].change
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.ProposalTimeout)
	results := m.cfg.Store.AlterPartition(ctx, m.cfg.BrokerID, m.brokerEpoch.Load(), changes)
	cancel()
	for i := range batch {
		if batch[i].p == nil {
			m.gaveUp(changes[i], results[i].Err)
			continue
		}
		ev := &ISRResult{Seq: batch[i].seq, Outcome: outcomeOf(results[i].Err)}
		if ev.Outcome == ProposalCommitted {
			ev.PartitionEpoch, ev.ISR, ev.ELR = results[i].Partition.PartitionEpoch, results[i].Partition.ISR, results[i].Partition.ELR
		}
		batch[i].p.proposalEnded(ev, results[i].Err, len(changes[i].ISR))
	}
}

// outcomeOf says what the controller's answer means for a proposal.
func outcomeOf(err error) ProposalOutcome {
	switch {
	case err == nil:
		return ProposalCommitted
	case errors.Is(err, metadata.ErrIneligibleReplica), errors.Is(err, metadata.ErrInvalidRequest):
		return ProposalRefused
	case errors.Is(err, metadata.ErrNotController), errors.Is(err, metadata.ErrBusy):
		return ProposalRefused // never proposed, so it is never applied
	case errors.Is(err, metadata.ErrFencedLeaderEpoch), errors.Is(err, metadata.ErrStale), errors.Is(err, metadata.ErrStaleBrokerEpoch),
		errors.Is(err, metadata.ErrUnknownTopicID), errors.Is(err, metadata.ErrUnknownPartition):
		return ProposalStale
	default:
		return ProposalUnknown
	}
}

func (p *Partition) proposalEnded(ev *ISRResult, err error, size int) {
	p.mu.Lock()
	was := len(p.mu.core.ISR())
	p.step(p.m.now(), ev)
	isr := slices.Clone(p.mu.core.ISR())
	if ev.Outcome != ProposalCommitted {
		p.handedOverLocked() // it would have ended a reassignment, perhaps: this broker leads on
	}
	p.unlock()
	if ev.Outcome != ProposalCommitted {
		p.logger().Info("in-sync replicas not changed", "outcome", ev.Outcome.String(), "err", err)
		return
	}
	switch {
	case size < was:
		p.m.metrics.isrShrinks.Inc()
		p.logger().Warn("in-sync replicas shrank", "isr", isr, "was", was)
	case size > was:
		p.m.metrics.isrExpands.Inc()
		p.logger().Info("in-sync replicas grew", "isr", isr, "was", was)
	}
}
