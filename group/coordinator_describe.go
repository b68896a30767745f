package group

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/millrace/millrace/metadata"
)

// Landed waits until no change of the group is on its way to the quorum, or ctx ends: what a client was answered before, a
// leave above all, then shows in what is described next.
func (c *Coordinator) Landed(ctx context.Context, group string) {
	for {
		e := c.lookup(group, false)
		if e == nil {
			return
		}
		e.mu.Lock()
		if e.mu.gone || !e.mu.core.Changing() {
			e.mu.Unlock()
			return
		}
		if e.mu.landed == nil {
			e.mu.landed = make(chan struct{})
		}
		landed := e.mu.landed
		e.mu.Unlock()
		select {
		case <-landed:
		case <-ctx.Done():
			return
		case <-c.life.Done():
			return
		}
	}
}

// Settled reports whether a group is in no rebalance, as far as this broker knows: its committed record does not show one that
// is being prepared. It does not wait.
func (c *Coordinator) Settled(group string) bool {
	e := c.lookup(group, false)
	if e == nil {
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	core := e.mu.core
	if e.mu.gone || !core.loaded {
		return true
	}
	if core.consumer != nil {
		return core.change == nil
	}
	return core.change == nil && (core.classic.state == StateStable || core.classic.state == StateEmpty)
}

// Describe is DescribeGroups for one group; ErrGroupNotFound if there is none.
func (c *Coordinator) Describe(group string) (Description, error) {
	im, err := c.check(group)
	if err != nil {
		return Description{}, err
	}
	if e := c.lookup(group, false); e != nil {
		e.mu.Lock()
		core := e.mu.core
		if !e.mu.gone && core.loaded && core.members() > 0 {
			d := core.describe(c.now())
			e.mu.Unlock()
			return d, nil
		}
		e.mu.Unlock()
	}
	g := im.Group(group)
	if g == nil {
		return Description{}, ErrGroupNotFound
	}
	d := Description{Group: g.Name, Type: typeOf(g), State: recordState(g), Generation: g.Generation, ProtocolType: g.ProtocolType, Protocol: g.Protocol, Leader: g.Leader}
	for _, m := range g.Members {
		d.Members = append(d.Members, describeMember(m, g))
	}
	return d, nil
}

func (c *Core) describe(now Instant) Description {
	if c.consumer != nil {
		return c.describeAsAny(now)
	}
	k := &c.classic
	d := Description{
		Group: c.name, Type: TypeClassic, State: k.state, Generation: c.generation(), ProtocolType: k.protocolType,
		Since: time.Duration(now - k.since), Reason: string(k.reason),
	}
	if g := c.record; g != nil {
		d.Protocol, d.Leader = g.Protocol, g.Leader
	}
	for _, m := range k.members {
		x := describeMember(m.record, c.record)
		x.LastSeen, x.Joined = time.Duration(now-m.seen), m.join != nil
		d.Members = append(d.Members, x)
	}
	return d
}

// listing is what is told of a group with members in a list.
func (c *Core) listing() Listing {
	if g := c.consumer; g != nil {
		return Listing{Group: c.name, Type: TypeConsumer, State: g.stateNow(), ProtocolType: consumerProtocolType}
	}
	return Listing{Group: c.name, Type: TypeClassic, State: c.classic.state, ProtocolType: c.classic.protocolType}
}

func describeMember(m *metadata.GroupMember, g *metadata.Group) DescribedMember {
	x := DescribedMember{ID: m.ID, Instance: m.InstanceID, ClientID: m.ClientID, ClientHost: m.ClientHost, SessionTimeout: m.SessionTimeout, RebalanceTimeout: m.RebalanceTimeout}
	for _, p := range m.Protocols {
		x.Offered = append(x.Offered, p.Name)
	}
	if g == nil {
		return x
	}
	x.Metadata = metadataUnder(m, g.Protocol)
	if r := g.Member(m.ID); r != nil && g.State == metadata.GroupStable {
		x.Assignment = r.Assignment
	}
	return x
}

func typeOf(g *metadata.Group) Type {
	if g.Type == metadata.ConsumerGroup {
		return TypeConsumer
	}
	return TypeClassic
}

// recordState is the state of a group that no core is at work on.
func recordState(g *metadata.Group) State {
	switch {
	case len(g.Members) == 0:
		return StateEmpty
	case g.State == metadata.GroupCompleting:
		return StateCompleting
	}
	return StateStable
}

// List returns the groups that this broker coordinates, by name, those without members too.
func (c *Coordinator) List() ([]Listing, error) {
	if !c.cfg.Leased() {
		return nil, ErrNotCoordinator
	}
	im := c.cfg.Store.Image()
	if !c.registered(im) {
		return nil, ErrCoordinatorLoading
	}
	at := map[string]Listing{}
	c.each(func(e *entry) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if core := e.mu.core; !e.mu.gone && core.loaded && core.members() > 0 {
			at[e.name] = core.listing()
		}
	})
	out := make([]Listing, 0, len(at))
	for g := range im.Groups() {
		if _, mine := c.mine(im, g.Name); !mine {
			continue
		}
		l, ok := at[g.Name]
		if !ok {
			l = Listing{Group: g.Name, Type: typeOf(g), State: recordState(g), ProtocolType: g.ProtocolType}
		}
		delete(at, g.Name)
		out = append(out, l)
	}
	for _, l := range at {
		out = append(out, l) // about to form
	}
	slices.SortFunc(out, func(a, b Listing) int { return cmp.Compare(a.Group, b.Group) })
	return out, nil
}
