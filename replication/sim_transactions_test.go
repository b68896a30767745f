package replication

// The simulator's records belong to transactions of three producers, or are markers, as their unique values say: so
// every log can be read for what a reader of committed records is shown of it.

type simKind uint8

const (
	simPlain simKind = iota
	simTransactional
	simCommit
	simAbort
)

// transaction returns what a record is, and of which producer.
func (r simRecord) transaction() (kind simKind, producer int) {
	if r.epoch < 0 {
		return simPlain, 0 // deleted
	}
	h := r.value * 0x9e3779b97f4a7c15
	h ^= h >> 29
	switch h % 5 {
	case 0, 1:
		kind = simTransactional
	case 2:
		kind = simCommit
	case 3:
		kind = simAbort
	}
	return kind, int(h>>32) % 3
}

// stable returns the last stable offset of a log (P13): markers below settled count.
func (l *simLog) stable(highWatermark, settled int64) int64 {
	var first [3]int64
	for i := range first {
		first[i] = -1
	}
	stable := highWatermark
	for i := l.start; i < l.end(); i++ {
		switch kind, producer := l.records[i].transaction(); kind {
		case simTransactional:
			if first[producer] < 0 {
				first[producer] = i
			}
		case simCommit, simAbort:
			if first[producer] >= 0 && i >= settled {
				stable = min(stable, first[producer])
			}
			first[producer] = -1
		}
	}
	for _, f := range first {
		if f >= 0 {
			stable = min(stable, f)
		}
	}
	return max(stable, l.start)
}

// outcome is what a reader of committed records concludes about the record at offset: simAbort if it skips it.
func (l *simLog) outcome(offset int64) simKind {
	kind, producer := l.records[offset].transaction()
	if kind != simTransactional {
		return kind
	}
	for i := offset + 1; i < l.end(); i++ {
		if k, p := l.records[i].transaction(); p == producer && (k == simCommit || k == simAbort) {
			return k
		}
	}
	return simTransactional // open: nobody may be shown it
}

// show lets readers of committed records read all that a replica shows them, and remembers what they conclude: nobody may
// ever conclude otherwise (I3, I8, P13).
func (s *sim) show(n *simNode) {
	c := n.core
	high := c.HighWatermark()
	if high == n.shownAt || c.uncleanEpoch >= 0 || s.givenUp(n) || c.Role() != RoleLeader && c.Role() != RoleFollower {
		return
	}
	n.shownAt = high
	settled := high
	if s.mutant.earlyMarkers {
		settled = n.log.end()
	}
	stable := n.log.stable(high, settled)
	if stable > high {
		s.failf("broker %d shows committed records up to %d, its high watermark is %d", n.id, stable, high)
	}
	for i := n.log.start; i < stable; i++ {
		outcome := n.log.outcome(i)
		switch known, ok := s.shown[i]; {
		case outcome == simTransactional:
			s.failf("I3: broker %d shows offset %d of an open transaction", n.id, i)
		case !ok:
			s.shown[i] = outcome
		case known != outcome && n.log.records[i].epoch >= 0:
			s.failf("P13: broker %d shows offset %d as %d, it was shown as %d\n%s", n.id, i, outcome, known, s.dump())
			return
		}
	}
}
