package metadata

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Values of millrace.balancer.mode.
const (
	balancerOff        = "off"
	balancerNodeChange = "node-change"
	balancerContinuous = "continuous"
)

const (
	// movesPerBroker bounds the moves under way that copy to one broker, and those that copy from one leader.
	movesPerBroker = 2
	// reordersPerStep bounds the changes of preferred leaders that begin together; they copy nothing.
	reordersPerStep = 64
	// joinSettles is balancerInput.settles outside of tests.
	joinSettles = 5 * time.Second
	// planAgain is when a broker that could not be emptied is tried again.
	planAgain = time.Minute
	// evennessCheck is how often the mode continuous looks whether replicas are even.
	evennessCheck = time.Minute
)

// balancerCore decides what the balancer does next. It has no clock, goroutine or I/O: step is given an Image, in which
// everything is that must outlive this controller, and the time. What it remembers itself costs a delay when it is lost.
type balancerCore struct {
	// joined is since when a broker that takes replicas was not there before, unix milliseconds.
	joined map[BrokerID]int64
	// planned is when a plan was last tried for which there was nothing to do; checked when evenness was last looked at.
	planned, checked int64
	// fruitless are the brokers that it was to empty.
	fruitless []BrokerID
}

// balancerInput is what step goes by beside the Image.
type balancerInput struct {
	nowMillis int64 // unix
	mode      string
	grace     time.Duration
	// limit bounds the moves of one plan.
	limit int
	// settles is how long a new broker must live before replicas are moved to it; brokers that come together make one plan.
	settles time.Duration
}

// balancerDecision is what is to be done; the zero decision is nothing. Seen, plan and updates are one command.
type balancerDecision struct {
	seen    *balanceSeen
	plan    *balancePlan // its ID is not set yet
	updates []moveUpdate
	begin   []int            // moves whose reassignment is to begin
	cancel  []int            // moves whose reassignment is to be taken back
	elect   []TopicPartition // whose preferred leader can lead now
	// again is after how long to look again although nothing changed; 0 = never.
	again time.Duration
}

func (d *balancerDecision) idle() bool {
	return d.seen == nil && d.plan == nil && len(d.updates)+len(d.begin)+len(d.cancel)+len(d.elect) == 0
}

// after asks for another look, unless one is due earlier.
func (d *balancerDecision) after(millis int64) {
	wait := time.Duration(max(millis, 1)) * time.Millisecond
	if d.again == 0 || wait < d.again {
		d.again = wait
	}
}

// step decides. What it decides about moves comes before new plans, which are for the next step.
func (c *balancerCore) step(im *Image, in balancerInput) balancerDecision {
	var d balancerDecision
	st := im.st.balance
	if st == nil {
		st = &balance{}
	}
	away := awayNow(im, st.Seen.Away, in.nowMillis)
	if !slices.Equal(away, st.Seen.Away) {
		d.seen = &balanceSeen{Takers: st.Seen.Takers, Away: away}
		d.after(1)
		return d
	}
	dead := func(b *Broker) bool { return deadline(b, away, in.grace) <= in.nowMillis }
	for _, a := range away {
		if at := a.SinceMillis + in.grace.Milliseconds(); at > in.nowMillis {
			d.after(at - in.nowMillis)
		}
	}
	if st.Plan.running() {
		c.follow(im, st.Plan, in, dead, &d)
	}
	if d.idle() {
		c.trigger(im, st, in, dead, &d)
	}
	return d
}

// awayNow returns the brokers that are fenced, with the times at which they were first seen so.
func awayNow(im *Image, known []brokerAway, now int64) (out []brokerAway) {
	for _, b := range im.Brokers() {
		if !b.Fenced {
			continue
		}
		a := brokerAway{Broker: b.ID, FencedIndex: b.fencedIndex, SinceMillis: now}
		for _, k := range known {
			if k.Broker == b.ID && k.FencedIndex == b.fencedIndex {
				a.SinceMillis = k.SinceMillis
			}
		}
		out = append(out, a)
	}
	return out
}

// deadline is when a broker counts as dead, in unix milliseconds.
func deadline(b *Broker, away []brokerAway, grace time.Duration) int64 {
	for _, a := range away {
		if a.Broker == b.ID && b.Fenced {
			return a.SinceMillis + grace.Milliseconds()
		}
	}
	return 1<<63 - 1
}

// follow finds out how far the moves of a plan are, and which may begin.
func (c *balancerCore) follow(im *Image, plan *balancePlan, in balancerInput, dead func(*Broker) bool, d *balancerDecision) {
	f := follower{im: im, plan: plan, now: in.nowMillis, dead: dead, d: d, to: make(map[BrokerID]int), from: make(map[BrokerID]int), last: make(map[topicIDPartition]MoveState)}
	for i := range plan.Moves {
		m := &plan.Moves[i]
		if m.To == NoBroker || m.State.final() {
			continue
		}
		if p := f.partition(m); m.begun(p) {
			f.to[m.To]++
			f.from[p.Leader]++
		}
	}
	for i := range plan.Moves {
		m := &plan.Moves[i]
		key := topicIDPartition{m.Topic, m.Partition}
		before := f.last[key]
		f.last[key] = m.State
		switch m.State {
		case MoveWaiting:
			f.last[key] = f.waiting(i, before)
		case MoveMoving:
			f.last[key] = f.moving(i)
		}
	}
}

// follower is one look at the moves of a plan.
type follower struct {
	im       *Image
	plan     *balancePlan
	now      int64
	dead     func(*Broker) bool
	d        *balancerDecision
	to, from map[BrokerID]int // moves under way, by the broker that gets a replica and by the leader that it is copied from
	reorders int
	last     map[topicIDPartition]MoveState // of the last move of a partition so far
}

func (f *follower) partition(m *balancerMove) *Partition {
	t := f.im.TopicByID(m.Topic)
	if t == nil || int(m.Partition) >= len(t.Partitions) {
		return nil
	}
	return t.Partitions[m.Partition]
}

// begun reports whether the partition, nil if there is none, is being reassigned as the move wants it.
func (m *balancerMove) begun(p *Partition) bool {
	return p != nil && p.Reassigning() && slices.Equal(p.target(), m.Replicas)
}

// end gives a move its last state.
func (f *follower) end(i int, state MoveState, trouble string) MoveState {
	m := &f.plan.Moves[i]
	f.d.updates = append(f.d.updates, moveUpdate{move: i, state: state, trouble: trouble, beganMillis: cmp.Or(m.BeganMillis, f.now), endedMillis: f.now})
	return state
}

func (f *follower) waiting(i int, before MoveState) MoveState {
	m := &f.plan.Moves[i]
	p := f.partition(m)
	switch {
	case p == nil:
		return f.end(i, MoveCancelled, "its topic was deleted")
	case before == MoveFailed || before == MoveCancelled:
		return f.end(i, MoveCancelled, "a move of the same partition before it was not made")
	case before != "" && !before.final():
		return MoveWaiting
	case m.begun(p):
		// Begun by a controller that did not live to write it down.
		f.d.updates = append(f.d.updates, moveUpdate{move: i, state: MoveMoving, beganMillis: f.now})
		return MoveMoving
	case p.Reassigning():
		return MoveWaiting
	case slices.Equal(p.Replicas, m.Replicas):
		return f.end(i, MoveDone, "")
	case !m.fits(p.Replicas):
		return f.end(i, MoveCancelled, "its replicas were changed meanwhile")
	case p.Leader == NoBroker:
		return MoveWaiting
	}
	if m.To == NoBroker {
		if f.reorders++; f.reorders <= reordersPerStep {
			f.d.begin = append(f.d.begin, i)
		}
		return MoveWaiting
	}
	b := f.im.Broker(m.To)
	switch {
	case b == nil || b.Removing || f.dead(b):
		return f.end(i, MoveCancelled, fmt.Sprintf("broker %d is to have no replicas any more", m.To))
	case b.mayTake() && f.to[m.To] < movesPerBroker && f.from[p.Leader] < movesPerBroker:
		f.to[m.To]++
		f.from[p.Leader]++
		f.d.begin = append(f.d.begin, i)
	}
	return MoveWaiting
}

func (f *follower) moving(i int) MoveState {
	m := &f.plan.Moves[i]
	p := f.partition(m)
	switch {
	case p == nil:
		return f.end(i, MoveCancelled, "its topic was deleted")
	case m.begun(p):
		if b := f.im.Broker(m.To); m.To != NoBroker && (b == nil || b.Removing || f.dead(b)) {
			f.d.cancel = append(f.d.cancel, i)
			return f.end(i, MoveFailed, fmt.Sprintf("broker %d is to have no replicas any more", m.To))
		}
		return MoveMoving
	case slices.Equal(p.Replicas, m.Replicas):
		if p.Leader != p.Replicas[0] && slices.Contains(p.ISR, p.Replicas[0]) {
			f.d.elect = append(f.d.elect, TopicPartition{Topic: m.Name, Partition: m.Partition})
		}
		return f.end(i, MoveDone, "")
	}
	return f.end(i, MoveCancelled, "it was taken back, or its replicas were changed meanwhile")
}

// fits reports whether the move leads from these replicas to its own.
func (m *balancerMove) fits(replicas []BrokerID) bool {
	if len(replicas) != len(m.Replicas) {
		return false
	}
	for _, id := range replicas {
		if id != m.From && !slices.Contains(m.Replicas, id) {
			return false
		}
	}
	return m.From == NoBroker || slices.Contains(replicas, m.From) && !slices.Contains(replicas, m.To)
}

// trigger decides whether there is a reason for a new plan.
func (c *balancerCore) trigger(im *Image, st *balance, in balancerInput, dead func(*Broker) bool, d *balancerDecision) {
	takers := []BrokerID{}
	var leave []BrokerID // brokers that are to have no replicas, whether they have any or not
	for _, b := range im.Brokers() {
		if b.mayTake() {
			takers = append(takers, b.ID)
		}
		if b.Removing || dead(b) && in.mode != balancerOff {
			leave = append(leave, b.ID)
		}
	}
	if st.Version == 0 || st.Seen.Takers == nil {
		// The first look: what there is has been placed when it was created.
		if len(takers) > 0 {
			d.seen = &balanceSeen{Takers: takers, Away: st.Seen.Away}
		}
		return
	}
	if im.TopicCount() == 0 && !subset(takers, st.Seen.Takers) {
		d.seen = &balanceSeen{Takers: known(im, st.Seen.Takers, takers), Away: st.Seen.Away} // nothing to share: a cluster that forms
		return
	}
	joined := c.joinedBrokers(takers, st.Seen.Takers, in, d)
	running := st.Plan.running()
	switch {
	case len(joined) > 0 && running && st.Plan.Trigger == joinedTrigger(joined):
		// One plan was not enough for it; the next follows when this one is done.
	case len(joined) > 0:
		c.propose(im, st, in, dead, takers, joinedTrigger(joined), true, d)
		if d.plan == nil && d.seen == nil {
			d.seen = &balanceSeen{Takers: known(im, st.Seen.Takers, takers), Away: st.Seen.Away}
		}
	case running && !subset(st.Plan.Dropping, leave):
		c.propose(im, st, in, dead, takers, "broker "+joinIDs(minus(st.Plan.Dropping, leave))+" may keep replicas again", false, d)
	case running && subset(leave, st.Plan.Dropping):
	case len(leave) > 0:
		c.drop(im, st, in, dead, takers, leave, d)
	case in.mode == balancerContinuous && !running && !(st.Plan != nil && st.Plan.Cancelled):
		if due := c.checked + evennessCheck.Milliseconds(); in.nowMillis < due {
			d.after(due - in.nowMillis)
			return
		}
		c.checked = in.nowMillis
		d.after(evennessCheck.Milliseconds())
		if newBalancerView(im, dead, in.grace).uneven() {
			c.propose(im, st, in, dead, takers, "replicas were uneven by more than a tenth", true, d)
		}
	}
}

// joinedBrokers are those that take replicas, did not before, and have been here for long enough.
func (c *balancerCore) joinedBrokers(takers, seen []BrokerID, in balancerInput, d *balancerDecision) []BrokerID {
	fresh := minus(takers, seen)
	if len(fresh) == 0 || in.mode == balancerOff {
		c.joined = nil
		return nil
	}
	since := make(map[BrokerID]int64, len(fresh))
	latest := int64(0)
	for _, id := range fresh {
		since[id] = cmp.Or(c.joined[id], in.nowMillis)
		latest = max(latest, since[id])
	}
	c.joined = since
	if due := latest + in.settles.Milliseconds(); in.nowMillis < due {
		d.after(due - in.nowMillis)
		return nil
	}
	return fresh
}

// drop plans for brokers that are to have no replicas, when they have some and it was not tried a moment ago.
func (c *balancerCore) drop(im *Image, st *balance, in balancerInput, dead func(*Broker) bool, takers, leave []BrokerID, d *balancerDecision) {
	same := st.Plan != nil && slices.Equal(st.Plan.Dropping, leave)
	if same && st.Plan.Cancelled {
		return
	}
	due := int64(0)
	if same {
		due = st.Plan.PlannedMillis + planAgain.Milliseconds()
	}
	if slices.Equal(c.fruitless, leave) {
		due = max(due, c.planned+planAgain.Milliseconds())
	}
	if in.nowMillis < due && !st.Plan.running() {
		d.after(due - in.nowMillis)
		return
	}
	v := newBalancerView(im, dead, in.grace)
	var reasons []string
	for i := range v.brokers {
		if b := &v.brokers[i]; slices.Contains(leave, b.id) && v.has(b.id) > 0 {
			reasons = append(reasons, b.drops)
		}
	}
	if len(reasons) > 0 {
		c.propose(im, st, in, dead, takers, strings.Join(reasons, ", "), false, d)
	}
	if d.plan == nil {
		c.fruitless, c.planned = leave, in.nowMillis
		d.after(planAgain.Milliseconds())
	}
}

// propose makes a plan the decision, if it has moves or says something new. Moves under way go on as part of it; those
// that wait are planned anew, or not.
func (c *balancerCore) propose(im *Image, st *balance, in balancerInput, dead func(*Broker) bool, takers []BrokerID, trigger string, even bool, d *balancerDecision) {
	plan, p := makePlan(im, in, dead, trigger, even)
	var old *balancePlan
	if old = st.Plan; old == nil {
		old = &balancePlan{}
	}
	if !old.running() && len(plan.Moves) == 0 && (len(plan.Cannot) == 0 || slices.Equal(plan.Cannot, old.Cannot)) {
		return
	}
	plan.Moves = append(underWay(im, old), plan.Moves...)
	d.plan = plan
	// Who is not here now has no part in this plan, and gets one when it is back.
	d.seen = &balanceSeen{Takers: takers, Away: st.Seen.Away}
	switch {
	case p.full && even:
		d.seen.Takers = st.Seen.Takers // who joined has still to get the rest
	case !even:
		d.seen.Takers = minus(st.Seen.Takers, plan.Dropping) // whoever comes back has joined; who joins now has still to be counted
	}
}

// underWay are the moves of a plan, nil for none, that are being made.
func underWay(im *Image, plan *balancePlan) (moves []balancerMove) {
	if plan == nil {
		return nil
	}
	for _, m := range plan.Moves {
		t := im.TopicByID(m.Topic)
		if !m.State.final() && t != nil && int(m.Partition) < len(t.Partitions) && m.begun(t.Partitions[m.Partition]) {
			moves = append(moves, m)
		}
	}
	return moves
}

// makePlan plans, and returns the planner too for what else it knows.
func makePlan(im *Image, in balancerInput, dead func(*Broker) bool, trigger string, even bool) (*balancePlan, *planner) {
	v := newBalancerView(im, dead, in.grace)
	if in.mode == balancerOff && !even {
		for i := range v.brokers {
			if b := &v.brokers[i]; !im.Broker(b.id).Removing {
				b.drops = "" // only orders count
			}
		}
	}
	plan := &balancePlan{Trigger: trigger, PlannedMillis: in.nowMillis}
	for i := range v.brokers {
		if v.brokers[i].drops != "" {
			plan.Dropping = append(plan.Dropping, v.brokers[i].id)
		}
	}
	p := newPlanner(v, in.limit)
	p.plan(even)
	plan.Moves, plan.Cannot = p.moves, p.cannot
	if p.full {
		plan.Cannot = append(plan.Cannot, fmt.Sprintf("more than %d moves are too many for one plan: another one has to follow", in.limit))
	}
	return plan, p
}

// known are the brokers that need no plan any more to be taken into account: those of before that are still registered,
// and those now.
func known(im *Image, before, now []BrokerID) []BrokerID {
	out := slices.Clone(now)
	for _, id := range before {
		if im.Broker(id) != nil && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

func subset(a, b []BrokerID) bool { return len(minus(a, b)) == 0 }

func joinedTrigger(ids []BrokerID) string {
	if len(ids) == 1 {
		return fmt.Sprintf("broker %d joined", ids[0])
	}
	return "brokers " + joinIDs(ids) + " joined"
}

func joinIDs(ids []BrokerID) string {
	var names []string
	for _, id := range ids {
		names = append(names, id.String())
	}
	return strings.Join(names, ", ")
}
