package metadata

import (
	"encoding/hex"
	"fmt"
	"slices"
	"time"
)

// planID is how people and logs name a plan; "" for one that was not committed.
func planID(p *balancePlan) string {
	if p.ID == ([16]byte{}) {
		return ""
	}
	return hex.EncodeToString(p.ID[:4])
}

// describePlan says what a plan is about. p has the brokers as the plan leaves them, or as they are.
func (s *Store) describePlan(im *Image, plan *balancePlan, p *planner) BalancerPlan {
	out := BalancerPlan{
		ID: planID(plan), Trigger: plan.Trigger, Cannot: plan.Cannot,
		ThrottleBytesPerSecond: brokerConfigInt(s.effectiveConfig(im), "millrace.balancer.throttle.bytes.per.sec"),
	}
	if len(plan.Moves) == 0 && out.ID == "" {
		out.Trigger = ""
	}
	after := slices.Clone(p.count)
	now := make([]int, len(p.count))
	for t := range im.Topics() {
		for _, part := range t.Partitions {
			for _, id := range part.Replicas {
				if b, ok := p.v.at[id]; ok && !slices.Contains(part.Adding, id) {
					now[b]++
				}
			}
		}
	}
	for i := range plan.Moves {
		m := &plan.Moves[i]
		out.Moves = append(out.Moves, BalancerMove{
			TopicPartition: m.partition(), From: m.From, To: m.To, Replicas: m.Replicas, Reason: m.Reason, State: m.State, Trouble: m.Trouble,
			BytesMoved: -1, BytesTotal: -1, BytesPerSecond: -1, Began: millisTime(m.BeganMillis), Ended: millisTime(m.EndedMillis),
		})
		// The planner that made the moves has counted them; one of the present Image has those that are under way.
		if m.State == MoveWaiting && len(p.moves) == 0 {
			shift(after, p.v.at, m.From, -1)
			shift(after, p.v.at, m.To, 1)
		}
	}
	out.Spread, out.SpreadAfter = p.spread(now), p.spread(after)
	return out
}

func shift(count []int, at map[BrokerID]int, id BrokerID, n int) {
	if b, ok := at[id]; ok {
		count[b] += n
	}
}

func millisTime(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// explainWaiting says of moves why they are not getting on.
func (out *BalancerStatus) explainWaiting(im *Image, plan *balancePlan) {
	for i := range out.Moves {
		m := &out.Moves[i]
		if m.State.final() {
			continue
		}
		t := im.TopicByID(plan.Moves[i].Topic)
		if t == nil || int(m.Partition) >= len(t.Partitions) {
			continue
		}
		b := im.Broker(m.To)
		switch {
		case t.Partitions[m.Partition].Leader == NoBroker:
			m.Trouble = "the partition has no leader to copy from"
		case m.To == NoBroker || b == nil:
		case b.Fenced:
			m.Trouble = fmt.Sprintf("broker %d does not answer", m.To)
		case b.Draining && m.State == MoveWaiting:
			m.Trouble = fmt.Sprintf("broker %d is in maintenance", m.To)
		case b.Leaving && m.State == MoveWaiting:
			m.Trouble = fmt.Sprintf("broker %d is being stopped", m.To)
		}
	}
}
