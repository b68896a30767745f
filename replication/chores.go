package replication

import "sync"

// chores are what partitions have to do that takes a sync, and that nobody waits for with a lock held: a follower moves
// its log start as its leader did.
type chores struct {
	kick chan struct{} // capacity 1
	mu   struct {
		sync.Mutex
		queue []*Partition
	}
}

// chore queues the partition. Its lock is held.
func (m *Manager) chore(p *Partition) {
	if p.mu.choring {
		return
	}
	p.mu.choring = true
	m.chores.mu.Lock()
	m.chores.mu.queue = append(m.chores.mu.queue, p)
	m.chores.mu.Unlock()
	select {
	case m.chores.kick <- struct{}{}:
	default:
	}
}

func (m *Manager) choreLoop(done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case <-m.chores.kick:
		}
		m.chores.mu.Lock()
		queue := m.chores.mu.queue
		m.chores.mu.queue = nil
		m.chores.mu.Unlock()
		for _, p := range queue {
			p.mu.Lock()
			trim := p.mu.trimTo
			p.mu.choring, p.mu.trimTo = false, -1
			p.unlock()
			if trim >= 0 {
				p.trim(trim)
			}
		}
	}
}
