package metadata

import (
	"context"
	"time"
)

// progress is how far the moves of the present plan are, as their brokers say. It is this controller's own.
type progress struct {
	asked time.Time
	sizes map[progressKey]moveProgress
	// rate is a moving average of the bytes that all moves together copy in a second, -1 before it is known.
	rate    float64
	copied  int64 // by all moves so far, of which rate is the growth
	counted time.Time
}

type progressKey struct {
	TopicPartition
	to BrokerID
}

type moveProgress struct {
	moved, total int64 // bytes, -1 = not known
	rate         float64
	at           time.Time
}

// askProgress asks the brokers how much of the moves under way is there, and how much that will be.
func (s *Store) askProgress(ctx context.Context, im *Image, plan *balancePlan) {
	if s.cfg.ReplicaBytes == nil {
		return
	}
	p := &s.balancer.progress
	now := s.balancer.now()
	if now.Sub(p.asked) < progressInterval {
		return
	}
	first := p.sizes == nil
	if first {
		p.sizes = make(map[progressKey]moveProgress)
		p.rate = -1
	}
	p.asked = now
	questions := make(map[BrokerID][]TopicPartition)
	for i := range plan.Moves {
		m := &plan.Moves[i]
		if m.To == NoBroker || m.State.final() || m.State == MoveWaiting && !first {
			continue
		}
		if t := im.TopicByID(m.Topic); t != nil && int(m.Partition) < len(t.Partitions) {
			if leader := t.Partitions[m.Partition].Leader; leader != NoBroker {
				questions[leader] = append(questions[leader], m.partition())
			}
		}
		if m.State == MoveMoving {
			questions[m.To] = append(questions[m.To], m.partition())
		}
	}
	answers := make(map[progressKey]int64)
	for id, partitions := range questions {
		b := im.Broker(id)
		if b == nil {
			continue
		}
		sizes, err := s.cfg.ReplicaBytes(ctx, b, partitions)
		if err != nil || len(sizes) != len(partitions) {
			continue // shown as not known
		}
		for i, tp := range partitions {
			answers[progressKey{tp, id}] = sizes[i]
		}
	}
	p.note(im, plan, answers, now)
}

// note takes the answers.
func (p *progress) note(im *Image, plan *balancePlan, answers map[progressKey]int64, now time.Time) {
	copied := p.copied
	for i := range plan.Moves {
		m := &plan.Moves[i]
		t := im.TopicByID(m.Topic)
		if m.To == NoBroker || m.State.final() || t == nil || int(m.Partition) >= len(t.Partitions) {
			continue
		}
		key := progressKey{m.partition(), m.To}
		old, known := p.sizes[key]
		next := moveProgress{moved: -1, total: -1, rate: -1, at: now}
		if known {
			next = old
		}
		if total, ok := answers[progressKey{m.partition(), t.Partitions[m.Partition].Leader}]; ok {
			next.total = total
		}
		if moved, ok := answers[key]; ok && m.State == MoveMoving {
			if old.moved >= 0 && known && now.After(old.at) {
				next.rate = smooth(old.rate, float64(max(moved-old.moved, 0))/now.Sub(old.at).Seconds())
			}
			copied += max(moved-max(old.moved, 0), 0)
			next.moved, next.at = moved, now
		}
		p.sizes[key] = next
	}
	if !p.counted.IsZero() && now.After(p.counted) {
		p.rate = smooth(p.rate, float64(copied-p.copied)/now.Sub(p.counted).Seconds())
	}
	p.copied, p.counted = copied, now
}

// smooth is the moving average of a rate; a rate below 0 was not known.
func smooth(old, measured float64) float64 {
	if old < 0 {
		return measured
	}
	return 0.7*old + 0.3*measured
}

// fill adds to a status what is known of the bytes.
func (p *progress) fill(out *BalancerStatus) {
	out.BytesRemaining, out.ETA = -1, -1
	if p.sizes == nil {
		return
	}
	remaining := int64(0)
	for i := range out.Moves {
		m := &out.Moves[i]
		size, ok := p.sizes[progressKey{m.TopicPartition, m.To}]
		if !ok {
			continue
		}
		m.BytesTotal, m.BytesMoved = size.total, size.moved
		switch m.State {
		case MoveDone:
			m.BytesMoved = m.BytesTotal
		case MoveMoving:
			m.BytesPerSecond = int64(size.rate)
			remaining += max(size.total-max(size.moved, 0), 0)
		case MoveWaiting:
			m.BytesMoved = 0
			remaining += max(size.total, 0)
		}
	}
	if !out.Running {
		return
	}
	out.BytesRemaining = remaining
	if p.rate > 0 {
		out.ETA = time.Duration(float64(remaining) / p.rate * float64(time.Second)).Round(time.Second)
	}
}
