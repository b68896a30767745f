package replication

import "sync/atomic"

// lease is the time up to which this broker may serve what a newer leader could contradict (D5, R16). Zero: no lease was
// ever given, nothing lapses.
type lease struct{ until atomic.Int64 }

// RenewLease extends the lease under which this broker serves what a newer leader could contradict (D5, R16): reads, and
// produce requests. With acks=all nothing could be acknowledged against a newer leader (R10), but much could be said that is
// not so: that sequence numbers do not follow each other, because those between are in the newer leader's log. The caller takes m.Now() before it calls the controller and passes that plus the
// session time once it has been answered; a value earlier than the present one is ignored. Before the first call there
// is no lease and nothing lapses.
//
// A partition whose lease lapsed is served on while every other electable replica fetches in the present leader epoch:
// whoever could have been elected did not know of an election then, so a lost quorum does not stop a healthy data plane
// (M19).
func (m *Manager) RenewLease(until Instant) {
	for {
		old := m.lease.until.Load()
		if int64(until) <= old || m.lease.until.CompareAndSwap(old, int64(until)) {
			return
		}
	}
}

// Now returns the time on the clock of leases: monotonic, counting time during which the machine was suspended.
func (m *Manager) Now() Instant { return m.now() }

// Leased reports whether this broker may speak as one that is not fenced: what a newer one could contradict must not be
// said without.
func (m *Manager) Leased() bool { return m.leased(m.Now()) }

// leased says whether the broker's own lease holds.
func (m *Manager) leased(now Instant) bool {
	until := m.lease.until.Load()
	return until == 0 || int64(now) < until
}

// mayServe says whether the partition may serve what a newer leader could contradict. A request pays one look at the
// clock; only with a lapsed lease the core is asked.
func (p *Partition) mayServe() error {
	now := p.m.now()
	if p.m.leased(now) {
		return nil
	}
	p.mu.Lock()
	err := p.mayServeLocked(now)
	p.unlock()
	return err
}

func (p *Partition) mayServeLocked(now Instant) error {
	if p.m.leased(now) {
		return nil
	}
	c := p.mu.core
	if c.Role() == RoleLeader {
		if since := c.FetchedSince(); since == Never || now-since < Instant(p.m.cfg.SessionTimeout) {
			return nil
		}
	}
	return ErrLeaseLapsed
}
