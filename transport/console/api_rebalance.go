package console

import (
	"time"

	"github.com/millrace/millrace/metadata"
)

// Rebalance is a plan of the balancer, or what it does.
type Rebalance struct {
	Mode     string   `json:"mode" doc:"millrace.balancer.mode: off, node-change, continuous; empty in a plan"`
	Running  bool     `json:"running" doc:"whether moves are under way or wait"`
	Plan     string   `json:"plan" doc:"id of the plan; empty when there is nothing to do"`
	Trigger  string   `json:"trigger" doc:"what asked for it; empty when nothing did"`
	Throttle int64    `json:"throttle_bytes_per_second" doc:"bound of what each broker sends and receives for moves"`
	Moves    []Move   `json:"moves" doc:"in the order in which they are begun"`
	Done     int      `json:"moves_done" doc:"how many are done"`
	Failed   int      `json:"moves_failed" doc:"how many failed or were cancelled"`
	Cannot   []string `json:"cannot" doc:"what should be done and cannot, each with its reason"`
	// Spread is how even the cluster is.
	LeastReplicas int `json:"least_replicas" doc:"replicas of the broker that has the fewest now"`
	MostReplicas  int `json:"most_replicas" doc:"replicas of the broker that has the most now"`
	LeastAfter    int `json:"least_replicas_after" doc:"the fewest once all is done"`
	MostAfter     int `json:"most_replicas_after" doc:"the most once all is done"`
}

// Move takes one replica from one broker to another.
type Move struct {
	Topic      string     `json:"topic" doc:"topic"`
	Partition  int32      `json:"partition" doc:"partition"`
	From       int32      `json:"from" doc:"broker that loses its replica; -1 is none"`
	To         int32      `json:"to" doc:"broker that gets one; -1 is none"`
	Replicas   []int32    `json:"replicas" doc:"the replicas once it is done, the preferred leader first"`
	Reason     string     `json:"reason" doc:"why it is made"`
	State      string     `json:"state" doc:"waiting, moving, done, failed, cancelled"`
	Trouble    string     `json:"trouble" doc:"why it waits or failed; empty when all is well"`
	BytesMoved int64      `json:"bytes_moved" doc:"bytes that are there; -1 while unknown"`
	BytesTotal int64      `json:"bytes_total" doc:"bytes to move; -1 while unknown"`
	Began      *time.Time `json:"began" doc:"null while it waits"`
	Ended      *time.Time `json:"ended" doc:"null until it has ended"`
}

// Cancelled says how many moves were ended.
type Cancelled struct {
	Moves int `json:"moves" doc:"moves that were dropped or taken back"`
}

// noBalancer is the answer when there is none.
func (c *call) balancer() (Balancer, error) {
	if c.Balancer == nil {
		return nil, &metadata.Error{Kind: metadata.ErrInvalidRequest, What: "there is no balancer", Why: "this broker was started without one", Fix: "millrace cluster partitions move   moves replicas by hand"}
	}
	return c.Balancer, nil
}

func rebalance(p *metadata.BalancerPlan) Rebalance {
	r := Rebalance{
		Plan: p.ID, Trigger: p.Trigger, Throttle: p.ThrottleBytesPerSecond, Moves: []Move{}, Cannot: p.Cannot,
		LeastReplicas: p.Spread[0], MostReplicas: p.Spread[1], LeastAfter: p.SpreadAfter[0], MostAfter: p.SpreadAfter[1],
	}
	if r.Cannot == nil {
		r.Cannot = []string{}
	}
	for i := range p.Moves {
		m := &p.Moves[i]
		switch m.State {
		case metadata.MoveDone:
			r.Done++
		case metadata.MoveFailed, metadata.MoveCancelled:
			r.Failed++
		}
		r.Moves = append(r.Moves, Move{
			Topic: m.Topic, Partition: m.Partition, From: int32(m.From), To: int32(m.To), Replicas: ids(m.Replicas), Reason: m.Reason, State: string(m.State), Trouble: m.Trouble,
			BytesMoved: m.BytesMoved, BytesTotal: m.BytesTotal, Began: timeOrNil(m.Began), Ended: timeOrNil(m.Ended),
		})
	}
	return r
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC().Truncate(time.Millisecond)
	return &t
}

// ids turns broker ids into numbers of JSON; none is [].
func ids(brokers []metadata.BrokerID) []int32 {
	out := make([]int32, len(brokers))
	for i, b := range brokers {
		out[i] = int32(b)
	}
	return out
}

func getRebalance(c *call) (any, error) {
	b, err := c.balancer()
	if err != nil {
		return nil, err
	}
	s, err := b.BalanceStatus(c.ctx)
	if err != nil {
		return nil, err
	}
	r := rebalance(&s.BalancerPlan)
	r.Mode, r.Running = s.Mode, s.Running
	return r, nil
}

func getRebalancePlan(c *call) (any, error) {
	b, err := c.balancer()
	if err != nil {
		return nil, err
	}
	p, err := b.PlanBalance(c.ctx)
	if err != nil {
		return nil, err
	}
	return rebalance(p), nil
}

func postRebalance(c *call) (any, error) {
	b, err := c.balancer()
	if err != nil {
		return nil, err
	}
	p, err := b.RunBalance(c.ctx)
	if err != nil {
		return nil, err
	}
	r := rebalance(p)
	r.Running = len(r.Moves) > 0
	return r, nil
}

func deleteRebalance(c *call) (any, error) {
	b, err := c.balancer()
	if err != nil {
		return nil, err
	}
	n, err := b.CancelBalance(c.ctx)
	if err != nil {
		return nil, err
	}
	return Cancelled{n}, nil
}
