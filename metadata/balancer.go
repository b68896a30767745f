package metadata

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	// balancerPause is how long the balancer leaves the metadata alone after it looked, however often they change.
	balancerPause = 100 * time.Millisecond
	// balancerCall bounds one change that it makes.
	balancerCall = 10 * time.Second
	// leadPoll is how often a broker that is not the controller looks whether it has become it.
	leadPoll = time.Second
	// progressInterval is how often brokers are asked how far moves are.
	progressInterval = 2 * time.Second
)

// balancer drives balancerCore at the controller. What it does is serialized by mu: by itself, and by order.
type balancer struct {
	mu   sync.Mutex
	core balancerCore
	now  func() time.Time
	progress
}

// balance runs the balancer until the Store is closed. It does something at the controller only.
func (s *Store) balance() {
	w := s.Watch()
	defer w.Close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-w.C():
		case <-timer.C:
		case <-s.stop:
			return
		}
		l := s.lead.Load()
		if l == nil {
			s.balancer.mu.Lock()
			s.balancer.core, s.balancer.progress = balancerCore{}, progress{}
			s.balancer.mu.Unlock()
			timer.Reset(leadPoll) // this broker may become the controller without a change of the Image
			continue
		}
		again := s.balanceOnce(s.lifetime, l)
		select {
		case <-time.After(balancerPause):
		case <-s.stop:
			return
		}
		if again > 0 {
			timer.Reset(again)
		}
	}
}

// balanceOnce takes one step and returns after how long the next one is due, 0 for not before the Image changes.
func (s *Store) balanceOnce(ctx context.Context, l *lead) time.Duration {
	b := &s.balancer
	b.mu.Lock()
	defer b.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, balancerCall)
	defer cancel()
	im := s.Image()
	d := b.core.step(im, s.balancerInput(im))
	if !d.idle() {
		if _, err := carryOutBalance(storeHands{s, ctx, l}, im, &d, s.balancer.now().UnixMilli()); err != nil {
			if !errors.Is(err, ErrStale) && !errors.Is(err, ErrNotController) {
				s.logger.Warn("the balancer could not do what it decided, and tries again", "error", err)
			}
			return time.Second
		}
	}
	if plan := im.st.balance.planOrNil(); plan.running() {
		s.askProgress(ctx, im, plan)
		if d.again == 0 || d.again > progressInterval {
			d.again = progressInterval
		}
	}
	return d.again
}

func (b *balance) planOrNil() *balancePlan {
	if b == nil {
		return nil
	}
	return b.Plan
}

// balancerInput is what the configs and the clock say.
func (s *Store) balancerInput(im *Image) balancerInput {
	effective := s.effectiveConfig(im)
	return balancerInput{
		nowMillis: s.balancer.now().UnixMilli(),
		limit:     maxPlannedMoves,
		settles:   cmp.Or(s.cfg.joinSettles, joinSettles),
		mode:      brokerConfigOf(effective, "millrace.balancer.mode"),
		grace:     time.Duration(brokerConfigInt(effective, "millrace.balancer.grace.ms")) * time.Millisecond,
	}
}

// brokerConfigOf is the canonical value of a broker key, its default if there is none or it can't be read.
func brokerConfigOf(effective map[string]string, key string) string {
	if value, err := CheckConfig(ConfigBroker, key, effective[key]); err == nil && effective[key] != "" {
		return value
	}
	return brokerKeys.byName[key].Default
}

func brokerConfigInt(effective map[string]string, key string) int64 {
	n, err := strconv.ParseInt(brokerConfigOf(effective, key), 10, 64)
	if err != nil {
		n, _ = strconv.ParseInt(brokerKeys.byName[key].Default, 10, 64)
	}
	return n
}

// balanceHands are what the balancer changes the metadata with: a Store at the controller, or a simulation.
type balanceHands interface {
	reassign([]Reassignment) []error
	elect([]TopicPartition)
	remember(*alterBalance) error
	newID() [16]byte
}

// carryOutBalance does what was decided on im. The reassignments come first: one whose begin is not written down is found
// in the Image by the next step.
func carryOutBalance(h balanceHands, im *Image, d *balancerDecision, now int64) (*alterBalance, error) {
	plan := im.st.balance.planOrNil()
	var moves []Reassignment
	for _, i := range d.cancel {
		moves = append(moves, Reassignment{TopicPartition: plan.Moves[i].partition()})
	}
	for _, i := range d.begin {
		moves = append(moves, Reassignment{TopicPartition: plan.Moves[i].partition(), Replicas: plan.Moves[i].Replicas})
	}
	if len(moves) > 0 {
		for i, err := range h.reassign(moves)[len(d.cancel):] {
			u := moveUpdate{move: d.begin[i], state: MoveMoving, beganMillis: now}
			switch {
			case temporary(err):
				continue // it waits on
			case err != nil:
				u.state, u.trouble, u.endedMillis = MoveFailed, err.Error(), now
			}
			d.updates = append(d.updates, u)
		}
	}
	var c *alterBalance
	if d.seen != nil || d.plan != nil || len(d.updates) > 0 {
		c = d.command(im, h)
		if err := h.remember(c); err != nil {
			return nil, err
		}
	}
	if len(d.elect) > 0 {
		h.elect(d.elect)
	}
	return c, nil
}

// command is what a decision on im has to be remembered of.
func (d *balancerDecision) command(im *Image, h balanceHands) *alterBalance {
	c := &alterBalance{updates: d.updates, seen: d.seen, plan: d.plan}
	if im.st.balance != nil {
		c.expectedVersion = im.st.balance.Version
	}
	if c.plan != nil && c.plan.ID == ([16]byte{}) {
		c.plan.ID = h.newID()
	}
	return c
}

// temporary reports whether a refusal says nothing about the change itself.
func temporary(err error) bool {
	for _, kind := range []error{ErrStale, ErrNotController, ErrBusy, ErrTimeout, ErrClosed, ErrFailed} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// storeHands are those of a Store at the controller.
type storeHands struct {
	*Store
	ctx context.Context
	l   *lead
}

func (h storeHands) reassign(moves []Reassignment) []error { return h.alterReassignments(h.ctx, moves) }

func (h storeHands) elect(partitions []TopicPartition) { h.electLeaders(h.ctx, Preferred, partitions) }

func (h storeHands) remember(c *alterBalance) error {
	before := h.Image().st.balance.planOrNil()
	if _, err := h.proposeIn(h.ctx, h.l.term, c); err != nil {
		return err
	}
	if c.plan != nil {
		h.logger.Info("balancer: new plan", "plan", planID(c.plan), "trigger", c.plan.Trigger, "moves", len(c.plan.Moves), "cannot", len(c.plan.Cannot))
		h.balancer.progress = progress{}
		h.metrics.plans.Inc()
		return nil
	}
	for _, u := range c.updates {
		if before != nil && (u.state == MoveFailed || u.state == MoveCancelled) {
			h.logger.Warn("balancer: move not made", "partition", before.Moves[u.move].partition(), "state", u.state, "trouble", u.trouble)
		}
	}
	return nil
}

func (m *balancerMove) partition() TopicPartition {
	return TopicPartition{Topic: m.Name, Partition: m.Partition}
}

// PlanBalance says what RunBalance would do now, and changes nothing.
//
// Errors: those of every operation (see CreateTopics).
func (s *Store) PlanBalance(ctx context.Context) (*BalancerPlan, error) {
	plan, err := call(ctx, s, &opPlanBalance, none{})
	if err != nil {
		return nil, err
	}
	return &plan, nil
}

func (s *Store) planBalance(context.Context, none) (BalancerPlan, error) {
	if _, err := s.controller(); err != nil {
		return BalancerPlan{}, err
	}
	im := s.Image()
	plan, p := s.planByHand(im)
	if len(plan.Moves) > 0 {
		plan.ID = s.newID()
	}
	return s.describePlan(im, plan, p), nil
}

// planByHand plans as if the moves under way were done.
func (s *Store) planByHand(im *Image) (*balancePlan, *planner) {
	in := s.balancerInput(im)
	away := awayNow(im, im.balanceSeen().Away, in.nowMillis)
	return makePlan(im, in, func(b *Broker) bool { return deadline(b, away, in.grace) <= in.nowMillis }, "ordered by hand", true)
}

func (im *Image) balanceSeen() balanceSeen {
	if im.st.balance == nil {
		return balanceSeen{}
	}
	return im.st.balance.Seen
}

// RunBalance makes replicas and preferred leaders even: it plans and begins, and returns once the plan is committed.
// Moves under way go on; what waited is planned anew. A plan without moves has no id and changes nothing.
//
// Errors: those of every operation (see CreateTopics).
func (s *Store) RunBalance(ctx context.Context) (*BalancerPlan, error) {
	plan, err := call(ctx, s, &opRunBalance, none{})
	if err != nil {
		return nil, err
	}
	return &plan, nil
}

func (s *Store) runBalance(ctx context.Context, _ none) (BalancerPlan, error) {
	s.balancer.mu.Lock()
	defer s.balancer.mu.Unlock()
	for attempt := 1; ; attempt++ {
		l, err := s.controller()
		if err != nil {
			return BalancerPlan{}, err
		}
		im := s.Image()
		plan, p := s.planByHand(im)
		if len(plan.Moves) == 0 {
			return s.describePlan(im, plan, p), nil
		}
		plan.ID = s.newID()
		plan.Moves = append(underWay(im, im.st.balance.planOrNil()), plan.Moves...)
		seen := im.balanceSeen()
		seen.Takers = p.v.takers() // who is not here now gets a part when it is back
		h := storeHands{s, ctx, l}
		err = h.remember((&balancerDecision{plan: plan, seen: &seen}).command(im, h))
		if err == nil {
			return s.describePlan(im, plan, p), nil
		}
		if !errors.Is(err, ErrStale) || attempt == maxAttempts || ctx.Err() != nil {
			return BalancerPlan{}, err
		}
	}
}

// BalanceStatus says what is under way, or was last: moves that have ended stay listed until the next plan.
//
// Errors: those of every operation (see CreateTopics).
func (s *Store) BalanceStatus(ctx context.Context) (*BalancerStatus, error) {
	status, err := call(ctx, s, &opBalanceStatus, none{})
	if err != nil {
		return nil, err
	}
	return &status, nil
}

func (s *Store) balanceStatus(context.Context, none) (BalancerStatus, error) {
	if _, err := s.controller(); err != nil {
		return BalancerStatus{}, err
	}
	im := s.Image()
	in := s.balancerInput(im)
	out := BalancerStatus{Mode: in.mode}
	plan := im.st.balance.planOrNil()
	if plan == nil {
		plan = &balancePlan{}
	}
	out.Running = plan.running()
	s.balancer.mu.Lock()
	out.BalancerPlan = s.describePlan(im, plan, newPlanner(newBalancerView(im, func(*Broker) bool { return false }, in.grace), 0))
	s.balancer.fill(&out)
	s.balancer.mu.Unlock()
	out.explainWaiting(im, plan)
	return out, nil
}

// rebalance is what the metrics need of the status, nil where this broker is not the controller.
func (s *Store) rebalance() *BalancerStatus {
	if s.lead.Load() == nil {
		return nil
	}
	out := &BalancerStatus{}
	plan := s.Image().st.balance.planOrNil()
	if plan == nil {
		plan = &balancePlan{}
	}
	out.Running = plan.running()
	for i := range plan.Moves {
		m := &plan.Moves[i]
		out.Moves = append(out.Moves, BalancerMove{TopicPartition: m.partition(), To: m.To, State: m.State})
	}
	s.balancer.mu.Lock()
	defer s.balancer.mu.Unlock()
	s.balancer.fill(out)
	return out
}

// CancelBalance drops what waits and takes back what moves, and returns how many moves it ended. The balancer takes them
// up again only when brokers join, leave or die, or by order.
//
// Errors: those of every operation (see CreateTopics).
func (s *Store) CancelBalance(ctx context.Context) (int, error) {
	return call(ctx, s, &opCancelBalance, none{})
}

func (s *Store) cancelBalance(ctx context.Context, _ none) (int, error) {
	s.balancer.mu.Lock()
	defer s.balancer.mu.Unlock()
	for attempt := 1; ; attempt++ {
		l, err := s.controller()
		if err != nil {
			return 0, err
		}
		im := s.Image()
		plan := im.st.balance.planOrNil()
		if !plan.running() {
			return 0, nil
		}
		stopped := *plan
		stopped.Cancelled = true
		stopped.Moves = slices.Clone(plan.Moves)
		var back []Reassignment
		n, now := 0, s.balancer.now().UnixMilli()
		for i := range stopped.Moves {
			m := &stopped.Moves[i]
			if m.State.final() {
				continue
			}
			if t := im.TopicByID(m.Topic); t != nil && int(m.Partition) < len(t.Partitions) && m.begun(t.Partitions[m.Partition]) {
				back = append(back, Reassignment{TopicPartition: m.partition()})
			}
			m.State, m.Trouble, m.EndedMillis = MoveCancelled, "by order", now
			n++
		}
		// Committed first: otherwise the balancer would find moves that somebody else has taken back.
		h := storeHands{s, ctx, l}
		if err = h.remember((&balancerDecision{plan: &stopped}).command(im, h)); err == nil {
			for i, err := range s.alterReassignments(ctx, back) {
				if err != nil && !errors.Is(err, ErrNoReassignment) {
					s.logger.Warn("balancer: a cancelled move could not be taken back", "partition", back[i].TopicPartition, "error", err)
				}
			}
			return n, nil
		}
		if !errors.Is(err, ErrStale) || attempt == maxAttempts || ctx.Err() != nil {
			return 0, err
		}
	}
}
