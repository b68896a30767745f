package replication

// RenewLease extends the lease under which this broker serves what a newer leader could contradict: reads, and produce
// requests with acks 0 and 1 (D5, R16). The caller takes m.Now() before it calls the controller and passes that plus the
// session time once it has been answered. Before the first call there is no lease and nothing lapses: a broker without a
// controller to lose.
func (m *Manager) RenewLease(until Instant) {}

// Now returns the time on the clock of leases: monotonic, counting time during which the machine was suspended.
func (m *Manager) Now() Instant { return m.now() }
