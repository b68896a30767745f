package replication

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/metadata"
)

// drainPoll is how often Drain looks whether followers have caught up.
const drainPoll = time.Millisecond

// Drain prepares a controlled stop (R20). New produce requests to partitions that have other replicas are held back, not
// refused, and Drain returns once every in-sync follower holds all that was appended: then leadership can move without
// the loss of a record, those of acks=1 included. The caller asks the controller to move it; requests that were held are
// answered with ErrNotLeader when it has. Resume, or Close, ends the holding in any case.
func (m *Manager) Drain(ctx context.Context) error {
	m.leaving.Store(true)
	var waiting []*Partition
	for p := range m.Partitions() {
		if v := p.view.Load(); v.role == RoleLeader && v.replicas > 1 {
			p.hold()
			waiting = append(waiting, p)
		}
	}
	return awaitDrained(ctx, waiting)
}

// awaitDrained waits until the partitions are drained. It reorders its argument.
func awaitDrained(ctx context.Context, waiting []*Partition) error {
	ticker := time.NewTicker(drainPoll)
	defer ticker.Stop()
	for {
		kept := waiting[:0]
		for _, p := range waiting {
			if !p.drained() {
				kept = append(kept, p)
			}
		}
		if waiting = kept; len(waiting) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the followers of %d partitions: %w", len(waiting), context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// DrainFor does for some partitions, for a while, what Drain does for all: produce requests are held back until every
// in-sync follower holds what was appended, or ctx ends, and keep longer, so that another replica can be elected
// meanwhile. Where that happens they are answered with ErrNotLeader at once; else they are appended afterwards.
// Partitions that this broker does not lead are passed over.
func (m *Manager) DrainFor(ctx context.Context, partitions []metadata.TopicPartition, keep time.Duration) error {
	var held []*Partition
	for _, tp := range partitions {
		p, err := m.Partition(tp.Topic, tp.Partition)
		if err != nil {
			continue
		}
		if v := p.view.Load(); v.role == RoleLeader && v.replicas > 1 {
			p.hold()
			held = append(held, p)
		}
	}
	err := awaitDrained(ctx, slices.Clone(held))
	if err != nil {
		keep = 0 // there will be no election that is worth the wait
	}
	time.AfterFunc(keep, func() {
		if m.leaving.Load() {
			return // a Drain holds them now
		}
		for _, p := range held {
			p.release()
		}
	})
	return err
}

// Resume ends a Drain: requests that were held are appended where this broker still leads.
func (m *Manager) Resume() {
	m.leaving.Store(false)
	for p := range m.Partitions() {
		p.release()
	}
}

// hold lets appends wait in the queue.
func (p *Partition) hold() {
	p.queue.Lock()
	p.queue.held = true
	p.queue.Unlock()
}

// drained says whether nothing is being appended, and the in-sync followers have everything, and this replica holds it
// too: only then has every request that was appended its answer.
func (p *Partition) drained() bool {
	p.queue.Lock()
	busy := p.queue.draining
	p.queue.Unlock()
	if busy {
		return false
	}
	p.mu.Lock()
	defer p.unlock()
	return p.mu.core.Role() != RoleLeader || !p.mu.core.Behind() && p.mu.core.position() >= p.mu.core.EndOffset()
}

// handoverPatience is how long requests to a leader that was replaced are held until the new one is known to lead.
const handoverPatience = 300 * time.Millisecond

// removedPatience is how long they are held where the old leader is no replica any more.
const removedPatience = 40 * time.Millisecond

// handOver holds requests that come to a leader which has just become a follower, instead of refusing them at once: the
// refusal sends the client to the new leader, which may not have heard of it yet, and whose refusal makes clients wait.
// The first good answer to a fetch in the new epoch shows that it leads, and ends the holding, as does handoverPatience.
// A leader that proposes the end of a reassignment which takes it away begins earlier, so that what it has appended is
// answered by the time it goes.
// The lock of p is held.
func (p *Partition) handOver() {
	p.hold()
	p.mu.handing = true
	p.handing.Store(true)
	time.AfterFunc(handoverPatience, p.handedOver)
}

// handedOver ends what handOver began.
func (p *Partition) handedOver() {
	p.mu.Lock()
	p.handedOverLocked()
	p.unlock()
}

func (p *Partition) handedOverLocked() {
	if p.mu.handing {
		p.mu.handing = false
		p.wakeLater(func() {
			p.release()
			p.handing.Store(false)
		})
	}
}

// HandedOver waits until the new leaders of all partitions that this broker led are known to lead, or did not show it in
// time, and all requests that were held for them are refused.
func (m *Manager) HandedOver(ctx context.Context) error {
	ticker := time.NewTicker(drainPoll)
	defer ticker.Stop()
	for {
		waiting := 0
		for p := range m.Partitions() {
			if p.handing.Load() {
				waiting++
			}
		}
		if waiting == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the new leaders of %d partitions: %w", waiting, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// release appends, or refuses, what was held.
func (p *Partition) release() {
	q := &p.queue
	q.Lock()
	q.held = false
	if q.draining || len(q.pending) == 0 {
		q.Unlock()
		return
	}
	q.draining = true
	q.Unlock()
	p.drain()
}
