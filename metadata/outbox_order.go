package metadata

import (
	"slices"
	"sync"
)

// outboxOrder keeps a group's changes behind the commits that were asked for before them (I18). They travel in different lanes:
// commits of many groups go as one command, and must not wait for changes. But a consumer that commits and then, on the same
// connection and without waiting for the answer, gives partitions up, leaves or joins again, has to find its commit
// applied: behind the change it would be refused as that of a member that is none any more, and what it has read would be read
// again. The other way round nothing is to be kept: who commits in the name of a change has seen it applied.
//
// Lock order: mu before that of a lane.
type outboxOrder struct {
	mu     sync.Mutex
	groups map[string]*groupOrder // those with commits under way or changes held
}

// groupOrder is what is under way of one group.
type groupOrder struct {
	last    uint64   // number of the commit that came last
	commits []uint64 // numbers of those that are not answered, ascending
	held    []heldChange
}

// heldChange is a change that waits for the commits up to a number.
type heldChange struct {
	after uint64
	item  *outboxItem
}

// commit queues a commit.
func (o *outboxOrder) commit(l *outboxLane, group string, item *outboxItem, changes *outboxLane) {
	done := item.done
	o.mu.Lock()
	g := o.groups[group]
	if g == nil {
		g = &groupOrder{}
		o.groups[group] = g
	}
	g.last++
	number := g.last
	item.done = func(revision uint64, refused []error, err error) {
		o.answered(group, number, changes)
		done(revision, refused, err)
	}
	g.commits = append(g.commits, number)
	err := l.put(item)
	o.mu.Unlock()
	if err != nil {
		item.done(0, nil, err)
	}
}

// change queues a change, once the commits before it are answered, and the changes before it queued.
func (o *outboxOrder) change(l *outboxLane, group string, item *outboxItem) {
	o.mu.Lock()
	var err error
	if g := o.groups[group]; g != nil {
		// What is held counts as what waits: while the controller is away, commits wait for seconds, and changes behind them.
		if err = l.reserve(item); err == nil {
			g.held = append(g.held, heldChange{g.last, item})
		}
	} else {
		err = l.put(item)
	}
	o.mu.Unlock()
	if err != nil {
		item.done(0, nil, err)
	}
}

// answered queues the changes that waited for a commit.
func (o *outboxOrder) answered(group string, number uint64, changes *outboxLane) {
	type refusal struct {
		item *outboxItem
		err  error
	}
	var refused []refusal
	o.mu.Lock()
	g := o.groups[group]
	at, _ := slices.BinarySearch(g.commits, number)
	g.commits = slices.Delete(g.commits, at, at+1)
	for len(g.held) > 0 && (len(g.commits) == 0 || g.held[0].after < g.commits[0]) {
		item := g.held[0].item
		g.held[0] = heldChange{} // let go: the slice lives as long as commits follow each other
		g.held = g.held[1:]
		if err := changes.putReserved(item); err != nil {
			refused = append(refused, refusal{item, err})
		}
	}
	if len(g.commits) == 0 {
		delete(o.groups, group) // nothing is held for nothing
	}
	o.mu.Unlock()
	for _, r := range refused {
		r.item.done(0, nil, r.err)
	}
}
