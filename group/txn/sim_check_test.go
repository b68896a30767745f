package txn

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/metadata"
)

// oracle is what the simulator remembers in order to judge.
type oracle struct {
	// decisions are what was committed of each transaction, by number: true is a commit.
	decisions map[uint64]bool
	// pending are offsets that were committed with a transaction, offsets those that are in force, by transactional id.
	pending    map[uint64]int64
	offsets    map[string]int64
	lastOffset int64
	// pairs are who was given each producer id and epoch.
	pairs   map[pair]int
	txns    []*simTxn
	healing bool
}

func (o *oracle) init() {
	o.decisions, o.pending, o.offsets, o.pairs = map[uint64]bool{}, map[uint64]int64{}, map[string]int64{}, map[pair]int{}
}

// given notes that a producer may write with a pair, which nobody else may have been given (P5, P6).
func (s *sim) given(c *simClient, p pair) {
	s.tracef("%v has %v", c, p)
	if other, ok := s.oracle.pairs[p]; ok && other != c.n {
		s.failf("P6: %v was given %v, as was producer %d", c, p, other)
	}
	if p.id < 0 || p.epoch < 0 || p.epoch > epochLast {
		s.failf("P6: %v was given %v", c, p)
	}
	s.oracle.pairs[p] = c.n
	if p != c.pair {
		c.pair, c.sequences = p, [simPartitions]int32{}
	}
}

// checkImage judges one step of the metadata.
func (s *sim) checkImage(old, im *metadata.Image) {
	for i, id := range simIDs {
		a, b := old.Transaction(id), im.Transaction(id)
		if a != b && a != nil {
			s.checkStep(id, a, b)
		}
		want, wanted := s.oracle.offsets[id]
		o, ok := im.Offset(simGroup, simTopicID, int32(i))
		if ok != wanted || ok && o.Offset != want {
			s.failf("I8: the offset of %s is %d (%v), should be %d (%v)", id, o.Offset, ok, want, wanted)
		}
	}
}

func (s *sim) checkStep(id string, a, b *metadata.Transaction) {
	if b == nil {
		if a.State.Active() {
			s.failf("P10: %s was forgotten while %v", id, a.State)
		}
		return
	}
	switch {
	case a.State == metadata.TransactionOngoing && b.State != metadata.TransactionOngoing:
		if b.Number != a.Number || b.State == metadata.TransactionEmpty {
			s.failf("P9: transaction %d of %s became %v without a decision", a.Number, id, b.State)
		}
		if !b.State.Prepared() && len(a.Partitions) > 0 {
			s.failf("P9: transaction %d of %s is complete without markers", a.Number, id)
		}
		s.oracle.decisions[a.Number] = committed(b)
		if v, ok := s.oracle.pending[a.Number]; ok && committed(b) {
			s.oracle.offsets[id] = v
		}
		s.tracef("transaction %d of %s: %v", a.Number, id, b.State)
	case a.State.Prepared():
		if b.Number != a.Number || committed(a) != committed(b) || b.State == metadata.TransactionOngoing || b.State == metadata.TransactionEmpty {
			s.failf("P8: transaction %d of %s was %v and became %v of %d", a.Number, id, a.State, b.State, b.Number)
		}
		for _, topic := range a.Partitions {
			for _, p := range topic.Partitions {
				if !b.HasPartition(topic.TopicID, p) && !s.logs[p].marked(a.Number) {
					s.failf("I8: transaction %d of %s has no marker in partition %d, and the metadata says it has", a.Number, id, p)
				}
			}
		}
	}
}

func (l *simLog) marked(number uint64) bool {
	return slices.ContainsFunc(l.entries, func(e simEntry) bool { return e.marker && e.number == number })
}

// checkAppend judges a batch that is about to be appended by the newest metadata, which its leader may not know.
func (s *sim) checkAppend(l *simLog, r *simRecord) {
	t, m := s.fsm.Image().Transaction(r.member.ID), r.member
	switch {
	case t == nil || !t.State.Active():
		s.failf("P7: %v wrote into partition %d while no transaction is open", r.txn.client, l.partition)
	case t.State == metadata.TransactionOngoing && (t.ProducerID != m.ProducerID || t.ProducerEpoch != m.ProducerEpoch):
		s.failf("%v was fenced and wrote into partition %d", r.txn.client, l.partition)
	case t.State.Prepared() && (t.MarkerProducerID != m.ProducerID || t.MarkerEpoch-m.ProducerEpoch > 1):
		s.failf("%v was fenced and wrote into partition %d", r.txn.client, l.partition)
	case !t.HasPartition(simTopicID, l.partition):
		s.failf("P7: %v wrote into partition %d, which is not in its transaction", r.txn.client, l.partition)
	case l.marked(t.Number):
		s.failf("P7: %v wrote into partition %d behind the marker of transaction %d", r.txn.client, l.partition, t.Number)
	}
	s.tracef("%v wrote %d into partition %d, transaction %d", r.txn.client, r.sequence, l.partition, t.Number)
}

// checkMarker judges a marker that is about to be appended.
func (s *sim) checkMarker(l *simLog, e simEntry) {
	if commit, ok := s.oracle.decisions[e.number]; !ok || commit != e.commit {
		s.failf("P9: marker of transaction %d in partition %d, decided %v, commit %v and the marker %v", e.number, l.partition, ok, commit, e.commit)
	}
	for i := len(l.entries) - 1; i >= 0; i-- {
		switch o := &l.entries[i]; {
		case o.producerID != e.producerID:
		case o.marker:
			return
		case o.number != e.number:
			s.failf("I8: a marker of transaction %d in partition %d ends transaction %d", e.number, l.partition, o.number)
			return
		}
	}
}

// heal ends all faults and asserts that every transaction comes to an end, and every producer to a commit (I20).
func (s *sim) heal() {
	s.quiet = true
	s.tracef("healing")
	seen := map[string]bool{"b": s.rng.IntN(2) == 0} // what is left open there has to time out
	for i := len(s.clients) - 1; i >= 0; i-- {
		c := s.clients[i]
		c.retired = seen[c.id] // they would fence each other for ever
		seen[c.id] = true
		c.commits, c.pausedUntil = 0, 0
	}
	s.oracle.healing = true
	for round := 0; round < 600 && s.err == nil; round++ {
		s.now += Instant(100 * time.Millisecond)
		for _, n := range s.nodes {
			s.start(n)
			if s.fsm.Image().Broker(n.id).Leaving {
				s.crash(n)
				s.start(n)
			}
			s.unfence(n)
		}
		s.expand()
		for range 3 {
			for _, n := range s.nodes {
				s.metadata(n, len(s.images))
				s.tick(n)
				s.writeMarkers(n)
			}
			for i := len(s.net); i > 0 && s.err == nil; i-- {
				s.deliver()
			}
			for _, c := range s.clients {
				c.act(s)
			}
		}
		if round > 300 && s.healed() {
			s.settled()
			return
		}
	}
	if s.err == nil {
		s.failf("I20: something did not come to an end\n%s", s.dump())
	}
}

func (s *sim) healed() bool {
	for _, c := range s.clients {
		if !c.retired && (c.dead || c.commits == 0 || c.txn != nil || c.do != nil) {
			return false
		}
	}
	return s.fsm.Image().ActiveTransactionCount() == 0 && len(s.calls) == 0
}

// settled judges what is left.
func (s *sim) settled() {
	for _, l := range s.logs {
		for id, p := range l.producers {
			if p.open {
				s.failf("P7: a transaction of producer id %d hangs in partition %d", id, l.partition)
			}
		}
	}
	numbers := map[*simTxn]uint64{}
	for _, l := range s.logs {
		for _, e := range l.entries {
			if e.marker {
				continue
			}
			t := e.record.txn
			if n, ok := numbers[t]; ok && n != e.number {
				s.failf("I8: a transaction of %v is in two, %d and %d", t.client, n, e.number)
			}
			numbers[t] = e.number
		}
	}
	for _, t := range s.oracle.txns {
		number, wrote := numbers[t]
		for _, r := range t.records {
			if r.acked && !wrote {
				s.failf("I1: an acknowledged record of %v is nowhere", t.client)
			}
		}
		if commit, ok := s.oracle.decisions[number]; wrote && (!ok || t.told && commit != t.committed) {
			s.failf("I8: transaction %d of %v: decided %v, commit %v, and told %v", number, t.client, ok, commit, t.committed)
		}
	}
	for _, n := range s.nodes {
		for id, c := range n.cores {
			s.failf("broker %d remembers %s, of which nothing is under way: %+v", n.id, id, c.core)
		}
	}
}

func (s *sim) dump() string {
	var b strings.Builder
	for _, n := range s.nodes {
		fmt.Fprintf(&b, "broker %d up=%v applied=%d/%d later=%d markers=%v", n.id, n.up, n.applied, len(s.images)-1, len(n.later), n.markers)
		for _, id := range simIDs {
			if c := n.cores[id]; c != nil {
				fmt.Fprintf(&b, " %s(change=%v allocating=%v queue=%d deadline=%.3f)", id, c.core.change != nil, c.core.allocating != nil, len(c.core.queue), float64(c.core.Deadline()-Instant(time.Hour))/1e9)
			}
		}
		b.WriteByte('\n')
	}
	for _, c := range s.clients {
		fmt.Fprintf(&b, "%v version=%d pair=%v waiting=%v txn=%v left=%d dead=%v retired=%v commits=%d\n", c, c.version, c.pair, c.waiting, c.txn != nil, c.left, c.dead, c.retired, c.commits)
	}
	for _, id := range simIDs {
		fmt.Fprintf(&b, "%s: %+v\n", id, s.fsm.Image().Transaction(id))
	}
	for _, l := range s.logs {
		fmt.Fprintf(&b, "partition %d: epoch %d, %d entries\n", l.partition, l.epoch, len(l.entries))
	}
	fmt.Fprintf(&b, "%d calls not answered, %d messages\n", len(s.calls), len(s.net))
	return b.String()
}
