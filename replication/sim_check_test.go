package replication

import "slices"

// observe checks the promises that a node's step may have broken.
func (s *sim) observe(n *simNode) {
	if s.err != nil {
		return
	}
	c := n.core
	if c.HighWatermark() < n.hwSeen && c.uncleanEpoch < 0 {
		s.failf("I4: the high watermark of broker %d went from %d to %d", n.id, n.hwSeen, c.HighWatermark())
	}
	n.hwSeen = c.HighWatermark()
	if c.HighWatermark() > n.log.end() {
		s.failf("R8: the high watermark %d of broker %d is above its end %d", c.HighWatermark(), n.id, n.log.end())
		return
	}
	if c.EndOffset() != n.log.end() || (s.flushAck && c.DurableEnd() > n.log.durable && !s.lying()) {
		s.failf("broker %d believes its log ends at %d/%d, it ends at %d/%d", n.id, c.DurableEnd(), c.EndOffset(), n.log.durable, n.log.end())
	}
	s.show(n)
	if c.Role() != RoleLeader {
		return
	}
	epoch := c.LeaderEpoch()
	if l, ok := s.leaders[epoch]; !ok {
		s.leaders[epoch] = simLeader{n.id, n.brokerEpoch}
	} else if l != (simLeader{n.id, n.brokerEpoch}) {
		s.failf("I9: brokers %d (life %d) and %d (life %d) lead epoch %d", l.id, l.life, n.id, n.brokerEpoch, epoch)
		return
	}
	s.commit(n)
	if !s.givenUp(n) {
		s.latest(c)
	}
}

// givenUp says that a leader's epoch ended in an unclean election: what it still believes committed was given up by
// then.
func (s *sim) givenUp(n *simNode) bool { return n.core.LeaderEpoch() < s.state().uncleanEpoch }

// lying says that the mutant at work reports what is not so on purpose, which is noticed elsewhere.
func (s *sim) lying() bool { return s.mutant.name != "" }

// commit takes what a leader's high watermark has passed as promised for ever (I1), and asks whether every electable
// replica has it (I10, I11).
func (s *sim) commit(n *simNode) {
	hw := n.core.HighWatermark()
	if hw <= int64(len(s.committed)) || s.givenUp(n) {
		return
	}
	from := int64(len(s.committed))
	s.committed = append(s.committed, n.log.records[from:hw]...)
	st := s.state()
	for _, id := range slices.Concat(st.isr, st.elr) {
		s.checkFrom(s.nodes[id], from, "is electable")
	}
}

// latest checks that what leaders tell as the latest offset never goes back from one epoch to a later one (I4, R7).
func (s *sim) latest(c *Core) {
	epoch, hw := c.LeaderEpoch(), c.HighWatermark()
	s.maxHW[epoch] = max(s.maxHW[epoch], hw)
	if _, ok := s.available[epoch]; !ok && c.OffsetAvailable() {
		s.available[epoch] = hw
	}
	for e, first := range s.available {
		for old, told := range s.maxHW {
			if old < e && told > first {
				s.failf("I4: epoch %d told a high watermark of %d, epoch %d began to answer with %d", old, told, e, first)
			}
		}
	}
}

// checkElectable checks that a replica which may be elected holds all that is committed (I10).
func (s *sim) checkElectable(n *simNode, what string) {
	st := s.state()
	if slices.Contains(st.isr, n.id) || slices.Contains(st.elr, n.id) {
		s.checkFrom(n, 0, what)
	}
}

func (s *sim) checkFrom(n *simNode, from int64, what string) {
	if s.err != nil || n.wiped {
		return
	}
	if !s.flushAck && !n.up && !n.clean {
		return // it leaves the electable set when it registers (I12)
	}
	stable := s.stable(n)
	for i := max(from, n.log.start); i < int64(len(s.committed)); i++ {
		if i >= stable {
			s.failf("I10: broker %d %s, but holds the committed log only up to %d of %d\n%s", n.id, what, stable, len(s.committed), s.dump())
			return
		}
		if !n.log.records[i].same(s.committed[i]) {
			s.failf("I1: broker %d %s, but holds %v at offset %d, committed was %v\n%s", n.id, what, n.log.records[i], i, s.committed[i], s.dump())
			return
		}
	}
}

// same compares records; one that was deleted before a log began has no content to compare.
func (r simRecord) same(other simRecord) bool { return r == other || r.epoch < 0 || other.epoch < 0 }
