package replication

import (
	"slices"

	"github.com/millrace/millrace/metadata"
)

// The ideal controller of the scenarios: one partition record, changed atomically, every version kept in order for the brokers to apply
// when they get to it.

// change commits the next version of the record.
func (s *sim) change(fn func(st *simState)) {
	old := s.state()
	st := *old
	st.isr, st.elr, st.peers = slices.Clone(old.isr), slices.Clone(old.elr), slices.Clone(old.peers)
	fn(&st)
	st.partitionEpoch++
	if st.leader != old.leader {
		st.leaderEpoch++
	}
	if st.leader >= 0 {
		s.last = st.leader
	}
	s.meta = append(s.meta, st)
	s.tracef("metadata %d: leader %d epoch %d/%d isr %v elr %v", len(s.meta)-1, st.leader, st.leaderEpoch, st.partitionEpoch, st.isr, st.elr)
	for _, id := range slices.Concat(st.isr, st.elr) {
		if !slices.Contains(old.isr, id) && !slices.Contains(old.elr, id) {
			s.checkElectable(s.nodes[id], "became electable")
		}
	}
}

// setISR replaces the ISR; who leaves it while it is too small to commit anything stays electable (KIP-966).
func (s *sim) setISR(st *simState, isr []metadata.BrokerID) {
	if len(isr) >= s.min {
		st.elr = nil
	} else {
		for _, id := range st.isr {
			if !slices.Contains(isr, id) && !slices.Contains(st.elr, id) {
				st.elr = append(st.elr, id)
			}
		}
		st.elr = slices.DeleteFunc(st.elr, func(id metadata.BrokerID) bool { return slices.Contains(isr, id) })
	}
	st.isr = isr
}

func without(ids []metadata.BrokerID, id metadata.BrokerID) []metadata.BrokerID {
	return slices.DeleteFunc(slices.Clone(ids), func(x metadata.BrokerID) bool { return x == id })
}

// register takes in a started broker: a new broker epoch, a new leader epoch if it leads (R14), and no place among the
// electable if its disk may lack what they hold (I12, L11).
func (s *sim) register(n *simNode) {
	if s.fsm != nil {
		led := s.state()
		s.registerFSM(n, n.clean)
		if p := s.fsm.Image().Topic(simTopic).Partitions[0]; s.mutant.noEpochBump && led.leader == n.id && p.Leader == n.id && p.LeaderEpoch-s.skew > led.leaderEpoch {
			s.skew++
		}
		s.commitRecord()
		n.registered = len(s.meta) - 1
		return
	}
	s.change(func(st *simState) {
		st.peers[n.id].BrokerEpoch, st.peers[n.id].Fenced = n.brokerEpoch, false
		if n.wiped || (!s.flushAck && !n.clean && !s.mutant.keepUnclean) {
			st.isr, st.elr = without(st.isr, n.id), without(st.elr, n.id)
			if st.leader == n.id {
				st.leader = metadata.NoBroker
			}
		}
		s.choose(st)
		if st.leader == n.id && !s.mutant.noEpochBump {
			st.leaderEpoch++
		}
	})
	n.registered = len(s.meta) - 1
}

// choose elects a leader if there is none: from the ISR, else from the ELR, else, when nobody electable is left, the
// last known leader.
func (s *sim) choose(st *simState) {
	if st.leader >= 0 {
		return
	}
	for _, set := range [][]metadata.BrokerID{st.isr, st.elr} {
		var live []metadata.BrokerID
		for _, id := range set {
			if !st.peers[id].Fenced {
				live = append(live, id)
			}
		}
		if len(live) == 0 {
			continue
		}
		st.leader = live[s.rng.IntN(len(live))]
		if !slices.Contains(st.isr, st.leader) {
			s.setISR(st, append(slices.Clone(st.isr), st.leader))
		}
		return
	}
	if len(st.isr)+len(st.elr) == 0 && s.last >= 0 && !st.peers[s.last].Fenced {
		// Its epoch is one more, whether the broker is another or the same one registering again.
		st.leader, st.uncleanEpoch = s.last, st.leaderEpoch+1
		st.isr = []metadata.BrokerID{s.last}
		s.forget(s.nodes[s.last])
	}
}

// forget is what the promises allow when every electable replica lost its disk or its cache: acknowledged is what the
// last leader still has.
func (s *sim) forget(n *simNode) {
	k := int64(0)
	for k < int64(len(s.committed)) && k < n.log.end() && (k < n.log.start || s.committed[k].same(n.log.records[k])) {
		k++
	}
	s.committed = s.committed[:k]
	clear(s.maxHW)
	clear(s.available)
}

// fence is the controller's judgement that a broker is gone, right or wrong, or back.
func (s *sim) fence(n *simNode, fenced bool) {
	st := s.state()
	if st.peers[n.id].Fenced == fenced || (!fenced && (!n.up || st.peers[n.id].BrokerEpoch != n.brokerEpoch)) {
		return
	}
	if s.fsm != nil {
		if err := s.fsm.Fence(n.id, st.peers[n.id].BrokerEpoch, fenced); err != nil {
			s.failf("fence broker %d: %v", n.id, err)
		}
		s.commitRecord()
		return
	}
	s.change(func(st *simState) {
		st.peers[n.id].Fenced = fenced
		if fenced {
			if slices.Contains(st.isr, n.id) {
				s.setISR(st, without(st.isr, n.id))
			}
			if st.leader == n.id {
				st.leader = metadata.NoBroker
			}
		}
		s.choose(st)
	})
}

// elect moves the leadership for no reason.
func (s *sim) elect() {
	if s.fsm != nil {
		s.electFSM()
		return
	}
	st := s.state()
	if len(st.isr) < 2 {
		return
	}
	to := st.isr[s.rng.IntN(len(st.isr))]
	if to != st.leader && !st.peers[to].Fenced {
		s.change(func(st *simState) { st.leader = to })
	}
}

// propose applies an ISR proposal by compare and set (R11), and answers; the answer may get lost.
func (s *sim) propose(m simMessage) {
	st, a := s.state(), m.propose
	res := &ISRResult{Seq: a.Seq}
	switch {
	case s.fsm != nil:
		res = s.proposeFSM(m)
	case !s.mutant.noCAS && (a.LeaderEpoch != st.leaderEpoch || a.PartitionEpoch != st.partitionEpoch || m.from != st.leader || st.peers[m.from].BrokerEpoch != m.life):
		res.Outcome = ProposalStale
	case slices.ContainsFunc(a.ISR, func(id metadata.BrokerID) bool { return st.peers[id].Fenced && !slices.Contains(st.isr, id) }):
		res.Outcome = ProposalRefused
	default:
		s.change(func(st *simState) { s.setISR(st, a.ISR) })
		res.Outcome, res.PartitionEpoch, res.ISR = ProposalCommitted, s.state().partitionEpoch, a.ISR
	}
	if !s.quiet {
		switch s.rng.IntN(4) {
		case 0:
			return
		case 1:
			res = &ISRResult{Seq: a.Seq, Outcome: ProposalUnknown}
		}
	}
	s.net = append(s.net, simMessage{to: m.from, life: m.life, result: res})
}
