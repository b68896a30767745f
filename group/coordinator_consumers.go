package group

import (
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/metadata"
)

// ConsumerHeartbeat is ConsumerGroupHeartbeat (KIP-848). It waits for nothing but the commit of what it changes.
func (c *Coordinator) ConsumerHeartbeat(r ConsumerHeartbeatRequest, done func(ConsumerHeartbeatResult)) {
	fail := func(err error) { done(ConsumerHeartbeatResult{Err: err, Member: r.Member}) }
	if err := r.check(); err != nil {
		fail(err)
		return
	}
	if r.HasOwned {
		r.Owned = normalized(r.Owned)
	}
	s := c.cfg.Settings()
	ev := &ConsumerHeartbeat{ConsumerHeartbeatRequest: &r, Waiter: done, Settings: &s, Topics: c.topics.at(c.cfg.Store.Image())}
	if r.Member == "" {
		ev.NewID = newMemberID(r.ClientID)
	}
	if err := c.step(r.Group, ev); err != nil {
		fail(err)
	}
}

// ConsumerPulse is ConsumerHeartbeat for a request that only says that its member is there, answered at once: nearly all that a
// coordinator at rest has to do. It reports false for any other request, and if there is more to say to the member; nothing has
// happened then. Nothing of r is kept: its strings may be somebody's memory.
func (c *Coordinator) ConsumerPulse(r ConsumerHeartbeatRequest) (result ConsumerHeartbeatResult, answered bool) {
	if r.says() || !c.cfg.Leased() {
		return result, false
	}
	e := c.lookup(r.Group, false)
	if e == nil {
		return result, false
	}
	ev := pulses.Get().(*ConsumerPulse)
	*ev.Request, *ev.Settings, ev.Topics = r, c.cfg.Settings(), c.topics.at(c.cfg.Store.Image())
	if _, ok := c.with(e, ev); ok {
		result, answered = ev.Result, ev.Answered
	}
	*ev.Request, *ev.Settings = ConsumerHeartbeatRequest{}, Settings{}
	*ev = ConsumerPulse{Request: ev.Request, Settings: ev.Settings}
	pulses.Put(ev)
	return result, answered
}

// pulses are events to be used again: cores do not keep them.
var pulses = sync.Pool{New: func() any { return &ConsumerPulse{Request: new(ConsumerHeartbeatRequest), Settings: new(Settings)} }}

// check finds requests that contradict themselves.
func (r *ConsumerHeartbeatRequest) check() error {
	bad := func(what string) error { return fmt.Errorf("%w: %s", ErrInvalidRequest, what) }
	switch {
	case r.Epoch < staticMemberAway:
		return bad("the member epoch is below -2")
	case r.Epoch != 0 && r.Member == "":
		return bad("a member that does not join has an id")
	case r.Epoch == staticMemberAway && r.Instance == "":
		return bad("only a static member may leave for a while")
	case r.Epoch != 0:
		return nil
	case r.RebalanceTimeout < 0:
		return bad("a member that joins says its rebalance timeout")
	case !r.HasOwned || len(r.Owned) > 0:
		return bad("a member that joins owns no partitions")
	case !r.HasTopics && (!r.HasRegex || r.Regex == ""):
		return bad("a member that joins subscribes to something")
	}
	return nil
}

// DescribeConsumers is ConsumerGroupDescribe for one group; ErrGroupNotFound if there is none or it is a classic one.
func (c *Coordinator) DescribeConsumers(group string) (ConsumerDescription, error) {
	im, err := c.check(group)
	if err != nil {
		return ConsumerDescription{}, err
	}
	if e := c.lookup(group, false); e != nil {
		e.mu.Lock()
		core := e.mu.core
		if !e.mu.gone && core.loaded && core.consumer != nil {
			d := core.describeConsumers(c.now())
			e.mu.Unlock()
			return d, nil
		}
		e.mu.Unlock()
	}
	g := im.Group(group)
	if g == nil || g.Type != metadata.ConsumerGroup {
		return ConsumerDescription{}, ErrGroupNotFound
	}
	core := NewCore(group)
	core.Step(c.time(), &Loaded{Group: g, LastGeneration: g.Generation, Resume: true})
	if core.consumer == nil { // without members
		return ConsumerDescription{Group: group, State: StateEmpty, Epoch: g.Generation, AssignmentEpoch: g.AssignmentEpoch, Assignor: g.Assignor}, nil
	}
	return core.describeConsumers(c.now()), nil
}

func (c *Core) describeConsumers(now Instant) ConsumerDescription {
	g := c.consumer
	d := ConsumerDescription{
		Group: c.name, State: g.stateNow(), Epoch: g.epoch, AssignmentEpoch: g.assignmentEpoch, Assignor: g.assignor,
		Since: time.Duration(now - g.since), Reason: string(g.reason),
	}
	for _, m := range g.sorted() {
		r := m.record
		d.Members = append(d.Members, ConsumerDescribedMember{
			ID: r.ID, Instance: r.InstanceID, Rack: r.Rack, ClientID: r.ClientID, ClientHost: r.ClientHost, Epoch: r.MemberEpoch,
			Topics: r.Subscription, Regex: r.SubscriptionRegex, Assigned: r.Assigned, Revoking: r.Revoking, Target: r.Target,
			LastSeen: time.Duration(now - m.seen), Classic: m.classical(),
		})
	}
	return d
}

// describeAsAny tells of a consumer group what can be told of any group.
func (c *Core) describeAsAny(now Instant) Description {
	g := c.consumer
	d := Description{
		Group: c.name, Type: TypeConsumer, State: g.stateNow(), Generation: g.epoch, ProtocolType: consumerProtocolType, Protocol: g.assignor,
		Since: time.Duration(now - g.since), Reason: string(g.reason),
	}
	for _, m := range g.sorted() {
		x := describeMember(m.record, nil)
		x.LastSeen = time.Duration(now - m.seen)
		x.Assigned, x.Topics, x.Away = m.record.Assigned, m.record.Subscription, m.record.MemberEpoch == staticMemberAway
		d.Members = append(d.Members, x)
	}
	return d
}

// topicViews turn Images into [Topics], whose version only changes with the topics. Cores keep what they are given, so all of
// them get the same view for as long as it is true, and none that shows anything but topics: each would keep the groups alive
// as they were when its last member joined.
type topicViews struct {
	mu     sync.Mutex
	latest *topicView
	// version is that of the newest Image asked about, and seen has its topics: those of latest, but for what is of no
	// interest here.
	version uint64
	seen    *metadata.Image
}

type topicView struct {
	im      *metadata.Image // nothing but topics
	version uint64
}

func (t *topicViews) at(im *metadata.Image) *topicView {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.latest == nil:
		t.seen, t.version = im.TopicsOnly(), im.Version()
		t.latest = &topicView{im: t.seen, version: 1}
		return t.latest
	case im.Version() <= t.version:
		return t.latest
	}
	t.version = im.Version()
	if im.SharesTopics(t.seen) {
		return t.latest
	}
	before := t.seen
	t.seen = im.TopicsOnly()
	for old, now := range t.seen.ChangedTopics(before) {
		if old == nil || now == nil || old.ID != now.ID || len(old.Partitions) != len(now.Partitions) {
			t.latest = &topicView{im: t.seen, version: t.latest.version + 1}
			break
		}
	}
	return t.latest
}

// Version implements Topics.
func (v *topicView) Version() uint64 { return v.version }

// Topic implements Topics.
func (v *topicView) Topic(name string) (metadata.TopicID, int32, bool) {
	t := v.im.Topic(name)
	if t == nil {
		return metadata.TopicID{}, 0, false
	}
	return t.ID, int32(len(t.Partitions)), true
}

// Name implements Topics.
func (v *topicView) Name(id metadata.TopicID) (string, bool) {
	t := v.im.TopicByID(id)
	if t == nil {
		return "", false
	}
	return t.Name, true
}

// Names implements Topics.
func (v *topicView) Names(yield func(string) bool) {
	for t := range v.im.Topics() {
		if !yield(t.Name) {
			return
		}
	}
}
