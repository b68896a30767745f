package replication

import (
	"context"
	"fmt"
	"time"
)

// drainPoll is how often Drain looks whether followers have caught up.
const drainPoll = time.Millisecond

// Drain prepares a controlled stop (R20). New produce requests to partitions that have other replicas are held back, not
// refused, and Drain returns once every in-sync follower holds all that was appended: then leadership can move without
// the loss of a record, those of acks=1 included. The caller asks the controller to move it; requests that were held are
// answered with ErrNotLeader when it has. Resume, or Close, ends the holding in any case.
func (m *Manager) Drain(ctx context.Context) error {
	var waiting []*Partition
	for p := range m.Partitions() {
		if v := p.view.Load(); v.role == RoleLeader && v.replicas > 1 {
			p.hold()
			waiting = append(waiting, p)
		}
	}
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

// Resume ends a Drain: requests that were held are appended where this broker still leads.
func (m *Manager) Resume() {
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

// drained says whether nothing is being appended and the in-sync followers have everything.
func (p *Partition) drained() bool {
	p.queue.Lock()
	busy := p.queue.draining
	p.queue.Unlock()
	if busy {
		return false
	}
	p.mu.Lock()
	defer p.unlock()
	return p.mu.core.Role() != RoleLeader || !p.mu.core.Behind()
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
