package metadata

import (
	"slices"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// balance is what the balancer must remember beyond a change of the controller: it is part of the state, and all its times
// were decided by a proposer. Immutable.
type balance struct {
	// Version is the index of the entry that changed it last; compared by commands.
	Version uint64
	Plan    *balancePlan // the present one, or the last; nil before the first
	Seen    balanceSeen
}

// balancePlan is a plan with what became of it. Immutable.
type balancePlan struct {
	ID      [16]byte
	Trigger string // in words
	// Dropping are the brokers that it empties, by ascending id.
	Dropping []BrokerID
	// Cannot says what it would have done and can't.
	Cannot []string
	Moves  []balancerMove
	// Cancelled plans are not taken up again until something else happens.
	Cancelled     bool
	PlannedMillis int64 // unix
}

// balanceSeen says which brokers the balancer knows. Immutable.
type balanceSeen struct {
	// Takers are the brokers that took replicas when it last planned; another one has joined since. Ascending.
	Takers []BrokerID
	// Away are the brokers that are fenced and have replicas.
	Away []brokerAway
}

// brokerAway says since when a broker is fenced, for the grace time to end when it should although the controller changes.
type brokerAway struct {
	Broker      BrokerID
	FencedIndex uint64 // of the entry that fenced it: another one begins the time anew
	SinceMillis int64  // unix
}

// running reports whether moves are under way or wait.
func (p *balancePlan) running() bool {
	return p != nil && slices.ContainsFunc(p.Moves, func(m balancerMove) bool { return !m.State.final() })
}

// final reports whether a move in that state stays as it is.
func (s MoveState) final() bool { return s != MoveWaiting && s != MoveMoving }

func encodeBalancePlan(p *balancePlan) *pb.BalancePlan {
	if p == nil {
		return nil
	}
	m := &pb.BalancePlan{
		Id: p.ID[:], Trigger: p.Trigger, Dropping: encodeBrokerIDs(p.Dropping), Cannot: p.Cannot, Cancelled: p.Cancelled,
		PlannedMillis: p.PlannedMillis,
	}
	reasons := make(map[string]uint32)
	for i := range p.Moves {
		move := &p.Moves[i]
		reason, known := reasons[move.Reason]
		if !known {
			reason = uint32(len(m.Reasons))
			reasons[move.Reason] = reason
			m.Reasons = append(m.Reasons, move.Reason)
		}
		m.Moves = append(m.Moves, &pb.BalanceMove{
			TopicId: move.Topic[:], Topic: move.Name, Partition: uint32(move.Partition), From: int32(move.From), To: int32(move.To),
			Replicas: encodeBrokerIDs(move.Replicas), Reason: reason, State: string(move.State), Trouble: move.Trouble,
			BeganMillis: move.BeganMillis, EndedMillis: move.EndedMillis,
		})
	}
	return m
}

func decodeBalancePlan(m *pb.BalancePlan) (*balancePlan, error) {
	if m == nil {
		return nil, nil
	}
	id, err := bytes16(m.Id, "plan id")
	if err != nil {
		return nil, err
	}
	p := &balancePlan{
		ID: id, Trigger: m.Trigger, Dropping: decodeBrokerIDs(m.Dropping), Cannot: m.Cannot, Cancelled: m.Cancelled,
		PlannedMillis: m.PlannedMillis,
	}
	for i, move := range m.Moves {
		topic, err := bytes16(move.TopicId, "topic id")
		if err != nil {
			return nil, err
		}
		if int64(move.Reason) >= int64(len(m.Reasons)) {
			return nil, errNoReason(i)
		}
		p.Moves = append(p.Moves, balancerMove{
			Topic: topic, Name: move.Topic, Partition: int32(move.Partition), From: BrokerID(move.From), To: BrokerID(move.To),
			Replicas: decodeBrokerIDs(move.Replicas), Reason: m.Reasons[move.Reason], State: MoveState(move.State), Trouble: move.Trouble,
			BeganMillis: move.BeganMillis, EndedMillis: move.EndedMillis,
		})
	}
	return p, nil
}

func encodeBalanceSeen(s *balanceSeen) *pb.BalanceSeen {
	m := &pb.BalanceSeen{Takers: encodeBrokerIDs(s.Takers)}
	for _, a := range s.Away {
		m.Away = append(m.Away, &pb.BalanceAway{Broker: int32(a.Broker), FencedIndex: a.FencedIndex, SinceMillis: a.SinceMillis})
	}
	return m
}

func decodeBalanceSeen(m *pb.BalanceSeen) balanceSeen {
	s := balanceSeen{Takers: decodeBrokerIDs(m.GetTakers())}
	for _, a := range m.GetAway() {
		s.Away = append(s.Away, brokerAway{Broker: BrokerID(a.Broker), FencedIndex: a.FencedIndex, SinceMillis: a.SinceMillis})
	}
	return s
}

func encodeBrokerIDs(ids []BrokerID) []int32 {
	var out []int32
	for _, id := range ids {
		out = append(out, int32(id))
	}
	return out
}

func decodeBrokerIDs(ids []int32) []BrokerID {
	var out []BrokerID
	for _, id := range ids {
		out = append(out, BrokerID(id))
	}
	return out
}
