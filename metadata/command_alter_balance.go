package metadata

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// alterBalance changes what the balancer remembers: it puts a plan in the place of the last one, says how far moves are,
// or which brokers were seen.
type alterBalance struct {
	expectedVersion uint64
	plan            *balancePlan // nil = stays
	updates         []moveUpdate
	seen            *balanceSeen // nil = stays
}

// moveUpdate is the present state of one move of the plan.
type moveUpdate struct {
	move        int
	state       MoveState
	trouble     string
	beganMillis int64
	endedMillis int64
}

func errNoReason(move int) error { return fmt.Errorf("move %d has no reason", move) }

func (c *alterBalance) kind() pb.CommandType { return pb.CommandType_COMMAND_ALTER_BALANCE }

func (c *alterBalance) message() proto.Message {
	m := &pb.AlterBalance{ExpectedVersion: c.expectedVersion, Plan: encodeBalancePlan(c.plan)}
	for _, u := range c.updates {
		m.Updates = append(m.Updates, &pb.BalanceUpdate{
			Move: uint32(u.move), State: string(u.state), Trouble: u.trouble, BeganMillis: u.beganMillis, EndedMillis: u.endedMillis,
		})
	}
	if c.seen != nil {
		m.Seen = encodeBalanceSeen(c.seen)
	}
	return m
}

func decodeAlterBalance(body []byte) (command, error) {
	var m pb.AlterBalance
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	plan, err := decodeBalancePlan(m.Plan)
	if err != nil {
		return nil, fmt.Errorf("alter balance: %w", err)
	}
	c := &alterBalance{expectedVersion: m.ExpectedVersion, plan: plan}
	for _, u := range m.Updates {
		c.updates = append(c.updates, moveUpdate{
			move: int(u.Move), state: MoveState(u.State), trouble: u.Trouble, beganMillis: u.BeganMillis, endedMillis: u.EndedMillis,
		})
	}
	if m.Seen != nil {
		seen := decodeBalanceSeen(m.Seen)
		c.seen = &seen
	}
	return c, nil
}

// apply returns the new version.
func (c *alterBalance) apply(d *draft, at position) (any, error) {
	next := balance{}
	if d.st.balance != nil {
		next = *d.st.balance
	}
	if next.Version != c.expectedVersion {
		return nil, ErrStale
	}
	if c.plan != nil {
		next.Plan = c.plan
	}
	if len(c.updates) > 0 {
		if next.Plan == nil {
			return nil, ErrStale
		}
		plan := *next.Plan
		plan.Moves = slices.Clone(plan.Moves)
		for _, u := range c.updates {
			if u.move >= len(plan.Moves) {
				return nil, ErrStale
			}
			m := &plan.Moves[u.move]
			m.State, m.Trouble, m.BeganMillis, m.EndedMillis = u.state, u.trouble, u.beganMillis, u.endedMillis
		}
		next.Plan = &plan
	}
	if c.seen != nil {
		next.Seen = *c.seen
	}
	next.Version = at.index
	d.st.balance = &next
	return at.index, nil
}
