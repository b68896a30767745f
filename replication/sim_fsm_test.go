package replication

import (
	"slices"
	"strconv"

	"github.com/millrace/millrace/metadata"
)

// The controller of the random simulation is the real FSM of package metadata, behind an ideal log. simState is what
// the brokers see of it, one for each version.

const simTopic = "t"

var simTopicID = metadata.TopicID{1}

// commit takes over what the FSM has decided as the next version of the record, if it has changed.
func (s *sim) commitRecord() {
	im, old := s.fsm.Image(), s.state()
	p := im.Topic(simTopic).Partitions[0]
	st := simState{
		leader: p.Leader, leaderEpoch: p.LeaderEpoch - s.skew, partitionEpoch: p.PartitionEpoch, isr: p.ISR, elr: p.ELR, uncleanEpoch: p.UncleanEpoch, min: old.min,
	}
	if v, err := strconv.Atoi(im.Topic(simTopic).Configs["min.insync.replicas"]); err == nil {
		st.min = v
	}
	for _, n := range s.nodes {
		b := im.Broker(n.id)
		st.peers = append(st.peers, Peer{ID: n.id, BrokerEpoch: b.Epoch, Fenced: b.Fenced})
	}
	if st.partitionEpoch == old.partitionEpoch && st.min == old.min && slices.Equal(st.peers, old.peers) {
		return
	}
	s.meta = append(s.meta, st)
	s.tracef("metadata %d: leader %d epoch %d/%d isr %v elr %v unclean %d", len(s.meta)-1, st.leader, st.leaderEpoch, st.partitionEpoch, st.isr, st.elr, st.uncleanEpoch)
	if st.uncleanEpoch > old.uncleanEpoch && st.leader >= 0 {
		s.forget(s.nodes[st.leader])
	}
	for _, id := range slices.Concat(st.isr, st.elr) {
		if !slices.Contains(old.isr, id) && !slices.Contains(old.elr, id) {
			s.checkElectable(s.nodes[id], "became electable")
		}
	}
}

// form registers the brokers once, as processes that never did anything, and creates the partition on them.
func (s *sim) form() {
	s.fsm = metadata.NewReplica()
	s.fsm.Settings = metadata.ReplicaSettings{MinInsyncReplicas: s.min, FlushLazily: !s.flushAck}
	var replicas []metadata.BrokerID
	for _, n := range s.nodes {
		s.registerFSM(n, true)
		replicas = append(replicas, n.id)
	}
	s.rng.Shuffle(len(replicas), func(i, j int) { replicas[i], replicas[j] = replicas[j], replicas[i] })
	if err := s.fsm.CreateTopic(simTopic, simTopicID, nil, [][]metadata.BrokerID{replicas}); err != nil {
		s.failf("create the topic: %v", err)
		return
	}
	s.commitRecord()
}

// registerFSM registers a new process of a broker.
func (s *sim) registerFSM(n *simNode, clean bool) {
	n.incarnation++
	if n.wiped {
		n.disk++
	}
	epoch, err := s.fsm.Register(metadata.Registration{
		ID: n.id, Incarnation: [16]byte{byte(n.id) + 1, byte(n.incarnation), byte(n.incarnation >> 8)},
		Directories: []metadata.DirectoryID{{byte(n.id) + 1, byte(n.disk + 1)}}, Version: "sim",
		Listeners:       []metadata.Listener{{Name: "PLAINTEXT", Host: "localhost", Port: 9092, Protocol: "PLAINTEXT"}},
		MinFeatureLevel: metadata.MinFeatureLevel, MaxFeatureLevel: metadata.MaxFeatureLevel,
		TailsProven: clean || s.mutant.keepUnclean,
	}, false)
	if err != nil {
		s.failf("register broker %d: %v", n.id, err)
	}
	n.brokerEpoch = epoch
}

// alterMinInsync sets min.insync.replicas of the topic. Who is eligible though not in the ISR depends on it (KIP-966).
func (s *sim) alterMinInsync() {
	if s.fsm == nil {
		return
	}
	if err := s.fsm.AlterTopic(simTopic, map[string]string{"min.insync.replicas": strconv.Itoa(1 + s.rng.IntN(len(s.nodes)))}); err != nil {
		s.failf("alter min.insync.replicas: %v", err)
	}
	s.commitRecord()
}

// electFSM moves the leadership for no reason: the leader is asked to go for a moment, or the preferred one elected.
func (s *sim) electFSM() {
	st := s.state()
	if st.leader < 0 {
		s.orderElection()
		return
	}
	if s.rng.IntN(2) == 0 {
		// Refused when there is nothing to do.
		_ = s.fsm.Elect(metadata.Preferred, metadata.TopicPartition{Topic: simTopic}, metadata.NoBroker)
		s.commitRecord()
		return
	}
	b := s.fsm.Image().Broker(st.leader)
	for _, on := range []bool{true, false} {
		if err := s.fsm.Maintain(b.ID, b.Epoch, on); err != nil {
			s.failf("maintain broker %d: %v", b.ID, err)
		}
		s.commitRecord()
	}
}

// orderElection is what a person does when nobody electable is left and the last leader's disk is gone: the most
// complete of the replicas leads, by order (R15).
func (s *sim) orderElection() {
	st := s.state()
	if s.fsm == nil || st.leader >= 0 || len(st.isr)+len(st.elr) > 0 {
		return
	}
	var best *simNode
	for _, n := range s.nodes {
		if !n.up || st.peers[n.id].Fenced {
			continue
		}
		if best == nil || n.log.lastEpoch() > best.log.lastEpoch() || n.log.lastEpoch() == best.log.lastEpoch() && n.log.end() > best.log.end() {
			best = n
		}
	}
	if best == nil {
		return
	}
	if err := s.fsm.Elect(metadata.Unclean, metadata.TopicPartition{Topic: simTopic}, best.id); err != nil {
		s.failf("elect broker %d by order: %v", best.id, err)
	}
	s.commitRecord()
}

// proposeFSM has the FSM judge an ISR proposal.
func (s *sim) proposeFSM(m simMessage) *ISRResult {
	a := m.propose
	ch := metadata.PartitionChange{TopicID: simTopicID, LeaderEpoch: a.LeaderEpoch + s.skew, PartitionEpoch: a.PartitionEpoch, ISR: m.members}
	epoch := m.life
	if s.mutant.noCAS {
		p := s.fsm.Image().Topic(simTopic).Partitions[0]
		if m.from != p.Leader {
			return &ISRResult{Seq: a.Seq, Outcome: ProposalStale}
		}
		ch.LeaderEpoch, ch.PartitionEpoch, epoch = p.LeaderEpoch, p.PartitionEpoch, s.fsm.Image().Broker(m.from).Epoch
		ch.ISR = slices.Clone(ch.ISR)
		for i := range ch.ISR {
			ch.ISR[i].Epoch = -1
		}
	}
	p, err := s.fsm.AlterPartition(m.from, epoch, ch)
	s.commitRecord()
	res := &ISRResult{Seq: a.Seq, Outcome: outcomeOf(err)}
	if err == nil {
		res.PartitionEpoch, res.ISR, res.ELR = p.PartitionEpoch, slices.Clone(p.ISR), slices.Clone(p.ELR)
	}
	return res
}

// members are the proposed replicas with the broker epochs under which the leader saw them, as the driver adds them.
func (n *simNode) members(a Action) (ms []metadata.ISRMember) {
	for _, id := range a.ISR {
		m := metadata.ISRMember{ID: id, Epoch: -1}
		switch {
		case id == n.id:
			m.Epoch = n.brokerEpoch
		case !slices.Contains(n.core.ISR(), id):
			m.Epoch = n.core.FollowerEpoch(id)
		}
		ms = append(ms, m)
	}
	return ms
}
