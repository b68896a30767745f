package replication

import (
	"errors"
	"slices"

	"github.com/millrace/millrace/metadata"
)

// step feeds an event to a running node and carries out the actions.
func (s *sim) step(n *simNode, ev Event) {
	if !n.up || s.err != nil {
		return
	}
	if s.mutant.before != nil {
		s.mutant.before(s, n, ev)
	}
	acts := slices.Clone(n.core.Step(s.now, ev))
	if s.opt.trace != nil {
		s.tracef("%5d broker %d %T %+v", s.now, n.id, ev, ev)
		for _, a := range acts {
			s.tracef("        %v w=%d off=%d epoch=%d/%d div=%d,%d seq=%d isr=%v err=%v", a.Kind, a.Waiter, a.Offset, a.LeaderEpoch, a.PartitionEpoch, a.DivergingEpoch, a.DivergingEnd, a.Seq, a.ISR, a.Err)
		}
	}
	if s.mutant.after != nil {
		acts = s.mutant.after(s, n, ev, acts)
	}
	for _, a := range acts {
		if s.onAction != nil {
			s.onAction(n, ev, a)
		}
		s.act(n, ev, a)
	}
	s.observe(n)
}

func (s *sim) act(n *simNode, ev Event, a Action) {
	if s.err != nil {
		return
	}
	switch a.Kind {
	case ActionAppend:
		p := n.waiters[a.Waiter]
		p.epoch = a.LeaderEpoch
		n.waiters[a.Waiter] = p
		base := n.log.end()
		rec := simRecord{a.LeaderEpoch, p.value}
		key := simKey{base, a.LeaderEpoch}
		if old, ok := s.registry[key]; ok && old != rec {
			s.failf("I5: broker %d appends another record at offset %d of epoch %d", n.id, base, a.LeaderEpoch)
			return
		}
		s.registry[key] = rec
		n.log.records = append(n.log.records, rec)
		s.step(n, &Appended{Waiter: a.Waiter, Acks: p.acks, BaseOffset: base, NextOffset: n.log.end(), Deadline: ev.(*Produce).Deadline})
	case ActionReplicate:
		r := ev.(*FetchResponse)
		msg := s.delivering
		if r.BaseOffset != n.log.end() {
			s.step(n, &Appended{Err: errors.New("unexpected offset")})
			return
		}
		n.log.records = append(n.log.records, msg.records...)
		s.step(n, &Appended{BaseOffset: r.BaseOffset, NextOffset: n.log.end(), LastEpoch: n.log.lastEpoch()})
	case ActionFlush:
		s.flush(n)
	case ActionSetHW:
		if n.core.Role() == RoleFollower {
			n.checkpoint = min(n.checkpoint, a.Offset)
		}
		if n.core.Role() == RoleLeader {
			s.commit(n)
		}
	case ActionTruncate, ActionReset:
		s.cut(n, a)
	case ActionTrim:
		// Durable before it counts (W15).
		n.log.durable = max(n.log.durable, a.Offset)
		n.log.start = max(n.log.start, a.Offset)
		s.step(n, &StartMoved{StartOffset: n.log.start})
	case ActionSendFetch:
		s.sendFetch(n, a)
	case ActionAnswerFetch:
		s.answerFetch(n, ev.(*FetchRequest), a)
	case ActionPropose:
		s.net = append(s.net, simMessage{to: metadata.NoBroker, from: n.id, life: n.brokerEpoch, propose: &a, members: n.members(a)})
	case ActionComplete:
		s.completed(n, a)
	case ActionHalt:
		s.failf("R25: broker %d halted at %d: %v\n%s", n.id, a.Offset, a.Err, s.dump())
	}
}

func (s *sim) cut(n *simNode, a Action) {
	if a.Kind == ActionReset {
		n.log = simLog{start: a.Offset, durable: a.Offset, records: make([]simRecord, a.Offset)}
		for i := range n.log.records {
			n.log.records[i].epoch = -1
		}
	} else {
		n.log.records = n.log.records[:a.Offset]
		n.log.durable = a.Offset
	}
	s.checkElectable(n, "was truncated")
	s.step(n, &Truncated{StartOffset: n.log.start, EndOffset: n.log.end(), LastEpoch: n.log.lastEpoch()})
}

func (s *sim) produce(n *simNode) {
	if !n.up {
		return
	}
	s.nextID++
	p := simProduce{value: s.nextID, acks: []int16{-1, -1, -1, 1}[s.rng.IntN(4)]}
	w := Waiter(s.nextID)
	n.waiters[w] = p
	epoch := int32(-1)
	if s.rng.IntN(3) == 0 {
		epoch = s.meta[s.rng.IntN(len(s.meta))].leaderEpoch
	}
	deadline := Never
	if s.rng.IntN(4) == 0 {
		deadline = s.now + Instant(s.rng.IntN(300))
	}
	s.step(n, &Produce{Waiter: w, Acks: p.acks, LeaderEpoch: epoch, Deadline: deadline})
}

// completed judges an answer to a produce request.
func (s *sim) completed(n *simNode, a Action) {
	p, ok := n.waiters[a.Waiter]
	if !ok {
		if a.Waiter != 0 && a.Waiter < trimWaiters {
			s.failf("broker %d answers request %d twice, or never had it", n.id, a.Waiter)
		}
		return
	}
	delete(n.waiters, a.Waiter)
	switch {
	case a.Err == nil && p.acks == -1:
		s.acked++
		if s.givenUp(n) {
			return
		}
		if n.core.LeaderEpoch() != p.epoch {
			s.failf("R23: broker %d acknowledges in epoch %d what it appended in epoch %d", n.id, n.core.LeaderEpoch(), p.epoch)
		}
		if a.Offset >= int64(len(s.committed)) || s.committed[a.Offset] != (simRecord{p.epoch, p.value}) {
			s.failf("I1: broker %d acknowledges value %d at offset %d, which is not committed there\n%s", n.id, p.value, a.Offset, s.dump())
			return
		}
		holders := 0
		for _, r := range s.nodes {
			// A disk that is gone held what its broker had reported, and the leader may not know yet: that is what the
			// other min.insync.replicas - 1 are for.
			if r.wiped || r.fresh > n.applied || a.Offset < s.stable(r) && (a.Offset < r.log.start || r.log.records[a.Offset] == s.committed[a.Offset]) {
				holders++
			}
		}
		if holders < n.min && s.flushAck {
			s.failf("I2: broker %d acknowledges offset %d, stable on %d replicas, min.insync.replicas %d\n%s", n.id, a.Offset, holders, n.min, s.dump())
		}
	case a.Err == nil && p.acks == 1:
		if s.flushAck && a.Offset >= n.log.durable {
			s.failf("I2: broker %d acknowledges offset %d with acks=1, durable end %d", n.id, a.Offset, n.log.durable)
		}
	case errors.Is(a.Err, ErrNotLeader), errors.Is(a.Err, ErrNotEnoughReplicas), errors.Is(a.Err, ErrFencedLeaderEpoch), errors.Is(a.Err, ErrUnknownLeaderEpoch):
		if p.epoch != 0 || p.value != 0 && s.appendedValue(n, p.value) {
			s.failf("I17: broker %d refuses value %d for good (%v), but has appended it", n.id, p.value, a.Err)
		}
	}
}

func (s *sim) appendedValue(n *simNode, value uint64) bool {
	return slices.ContainsFunc(n.log.records, func(r simRecord) bool { return r.value == value })
}

// stable is the offset below which a node's log survives what may happen to it now.
func (s *sim) stable(n *simNode) int64 {
	if s.flushAck || !n.up {
		return n.log.durable
	}
	return n.log.end()
}

func (s *sim) flush(n *simNode) {
	if n.up && n.log.durable < n.log.end() {
		n.flushes = append(n.flushes, Flushed{LogGeneration: n.core.Generation(), DurableEnd: n.log.end()})
	}
}

// flushed completes a flush: the device has it now. A flush of a log that was cut meanwhile reports all the same, late
// (W7).
func (s *sim) flushed(n *simNode) {
	if !n.up || len(n.flushes) == 0 {
		return
	}
	if s.quiet { // the device has caught up
		n.flushes = n.flushes[len(n.flushes)-1:]
	}
	i := s.rng.IntN(len(n.flushes))
	f := n.flushes[i]
	n.flushes = slices.Delete(n.flushes, i, i+1)
	if f.LogGeneration == n.core.Generation() {
		n.log.durable = max(n.log.durable, f.DurableEnd)
	}
	s.step(n, &f)
}

func (s *sim) trim(n *simNode) {
	if n.up && n.core.Role() == RoleLeader && n.core.HighWatermark() > n.log.start {
		s.nextID++
		stable := n.log.stable(n.core.HighWatermark(), n.core.HighWatermark())
		to := n.log.start + s.rng.Int64N(stable-n.log.start+1)
		s.step(n, &DeleteRecords{Waiter: trimWaiters + Waiter(s.nextID), LeaderEpoch: -1, Offset: to, LastStableOffset: stable, Deadline: s.now + 500})
	}
}

// trimWaiters separates the waiters of DeleteRecords from those of Produce.
const trimWaiters = Waiter(1 << 40)

// deliver delivers one message, or a copy of it.
func (s *sim) deliver(keep bool) {
	if len(s.net) == 0 {
		return
	}
	i := s.rng.IntN(len(s.net))
	var m simMessage
	if keep {
		m = s.net[i]
	} else {
		m = s.take(i)
	}
	s.handle(m)
}

// handle lets a message arrive.
func (s *sim) handle(m simMessage) {
	if m.propose != nil {
		s.propose(m)
		return
	}
	n := s.nodes[m.to]
	if !n.up || (m.life != n.brokerEpoch && m.request == nil) {
		return
	}
	switch {
	case m.request != nil:
		ev := *m.request
		ev.Waiter = Waiter(m.seq)
		ev.FoundEpoch, ev.FoundEnd = -1, -1
		if ev.LastEpoch >= 0 {
			ev.FoundEpoch, ev.FoundEnd = n.log.epochEnd(ev.LastEpoch)
		}
		s.delivering = &m
		s.step(n, &ev)
	case m.response != nil:
		ev := *m.response
		if ev.DivergingEpoch >= 0 {
			ev.LocalEpoch, ev.LocalEnd = n.log.epochEnd(ev.DivergingEpoch)
		}
		s.delivering = &m
		s.step(n, &ev)
	case m.result != nil:
		s.step(n, m.result)
	}
	s.delivering = nil
}

func (s *sim) take(i int) simMessage {
	m := s.net[i]
	s.net[i] = s.net[len(s.net)-1]
	s.net = s.net[:len(s.net)-1]
	return m
}

func (s *sim) sendFetch(n *simNode, a Action) {
	n.reported = a.Offset
	s.net = append(s.net, simMessage{to: a.Broker, from: n.id, life: n.brokerEpoch, seq: a.Seq, request: &FetchRequest{
		Replica: n.id, BrokerEpoch: n.brokerEpoch, LeaderEpoch: a.LeaderEpoch, Offset: a.Offset, LastEpoch: a.LastEpoch, StartOffset: n.log.start,
	}})
}

func (s *sim) answerFetch(n *simNode, q *FetchRequest, a Action) {
	r := &FetchResponse{
		Seq: uint64(q.Waiter), LeaderEpoch: q.LeaderEpoch, Offset: q.Offset, LastEpoch: q.LastEpoch, BaseOffset: q.Offset, NextOffset: q.Offset,
		HighWatermark: n.core.HighWatermark(), LogStartOffset: n.log.start, LogEndOffset: n.log.end(), DivergingEpoch: a.DivergingEpoch, DivergingEnd: a.DivergingEnd,
	}
	m := simMessage{to: q.Replica, from: n.id, life: q.BrokerEpoch, response: r}
	switch {
	case errors.Is(a.Err, errOutOfRange):
		r.OutOfRange = true
	case a.Err != nil:
		r.Failed = true
	case a.DivergingEpoch < 0:
		k := min(n.log.end(), q.Offset+1+s.rng.Int64N(4))
		m.records = slices.Clone(n.log.records[q.Offset:k])
		r.NextOffset = k
	}
	s.net = append(s.net, m)
}

// metadata lets a node apply the committed metadata up to some later index. Before its own registration is there it
// does nothing (M16).
func (s *sim) metadata(n *simNode) {
	if !n.up || n.applied >= len(s.meta)-1 {
		return
	}
	n.applied += 1 + s.rng.IntN(len(s.meta)-1-n.applied)
	if n.applied < n.registered && !s.mutant.replay {
		return
	}
	st := &s.meta[n.applied]
	if n.min != st.min {
		n.min = st.min
		s.step(n, &Configure{Policy: s.policy(n)})
	}
	s.step(n, &MetadataDelta{
		Leader: st.leader, LeaderEpoch: st.leaderEpoch, PartitionEpoch: st.partitionEpoch, Replicas: st.peers, ISR: st.isr, ELR: st.elr, UncleanEpoch: st.uncleanEpoch,
	})
}

// stop ends a process: cleanly with everything synced, or by a crash that keeps some prefix of what was not.
func (s *sim) stop(n *simNode, clean bool) {
	if !n.up {
		return
	}
	if clean {
		n.log.durable = n.log.end()
		n.checkpoint = n.core.HighWatermark()
	} else {
		n.log.records = n.log.records[:n.log.durable+s.rng.Int64N(n.log.end()-n.log.durable+1)]
		n.log.durable = n.log.end() // recovery syncs what it found before it reports it (L4)
	}
	n.up, n.clean, n.brokerEpoch = false, clean, -1
	n.flushes = n.flushes[:0]
	clear(n.waiters)
	s.tracef("broker %d stops clean=%v end=%d", n.id, clean, n.log.end())
	if s.flushAck || clean {
		s.checkElectable(n, "restarted")
	}
}

// wipe gives a stopped node an empty disk (L11), unless it is the last that could be elected.
func (s *sim) wipe(n *simNode) {
	if n.up || n.wiped {
		return
	}
	st := s.state()
	for _, id := range slices.Concat(st.isr, st.elr) {
		if other := s.nodes[id]; other != n && !other.wiped {
			n.log, n.checkpoint, n.wiped, n.clean = simLog{}, 0, true, false
			return
		}
	}
}

// start runs a stopped node's process and registers it.
func (s *sim) start(n *simNode) {
	if n.up {
		return
	}
	n.up = true
	n.core = NewCore(n.id)
	n.applied, n.hwSeen = -1, 0
	if s.fsm == nil {
		s.nextLife++
		n.brokerEpoch = s.nextLife
	}
	if s.mutant.replay {
		n.applied = -1
	}
	s.register(n)
	n.min = s.state().min
	if n.wiped {
		n.fresh = n.registered
	}
	s.step(n, &Restart{Clean: n.clean, StartOffset: n.log.start, DurableEnd: n.log.durable, EndOffset: n.log.end(), LastEpoch: n.log.lastEpoch(), HighWatermark: n.checkpoint, Policy: s.policy(n)})
	n.wiped = false
}
