package membership

import (
	"context"
	"slices"
	"sync"

	"github.com/hashicorp/memberlist"
)

// EventKind says what happened to a member.
type EventKind uint8

// The kinds of events.
const (
	Join   EventKind = iota + 1 // it is there, for the first time or again
	Update                      // its Meta or address is another
	Fail                        // it fell silent
	Leave                       // it went on purpose
	Clash                       // it claims this member's own name, from another address
)

// String returns the kind in small letters.
func (k EventKind) String() string {
	switch k {
	case Join:
		return "join"
	case Update:
		return "update"
	case Fail:
		return "fail"
	case Leave:
		return "leave"
	case Clash:
		return "clash"
	}
	return "unknown"
}

// Event is one change.
type Event struct {
	Kind   EventKind
	Member Member
}

// events is the queue between memberlist, which calls with its locks held and must not be held up, and whoever reads.
type events struct {
	c    chan Event
	more chan struct{} // holds one token while queue may be not empty

	mu struct {
		sync.Mutex
		queue []Event // at most one of a member's name, and at most one Clash
	}
}

func newEvents() *events {
	return &events{c: make(chan Event), more: make(chan struct{}, 1)}
}

// add queues an event. One of the same member that waits is replaced, in its place: only the present state matters. A
// member that came and changed has come.
func (e *events) add(next Event) {
	e.mu.Lock()
	same := func(old Event) bool {
		return old.Member.Name == next.Member.Name && (old.Kind == Clash) == (next.Kind == Clash)
	}
	if i := slices.IndexFunc(e.mu.queue, same); i < 0 {
		e.mu.queue = append(e.mu.queue, next)
	} else {
		if next.Kind == Update && e.mu.queue[i].Kind == Join {
			next.Kind = Join
		}
		e.mu.queue[i] = next
	}
	e.mu.Unlock()
	select {
	case e.more <- struct{}{}:
	default:
	}
}

func (e *events) take() (Event, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.mu.queue) == 0 {
		return Event{}, false
	}
	first := e.mu.queue[0]
	e.mu.queue = slices.Delete(e.mu.queue, 0, 1)
	return first, true
}

// deliver hands events over until ctx ends, and closes the channel.
func (e *events) deliver(ctx context.Context) {
	defer close(e.c)
	for {
		next, ok := e.take()
		if !ok {
			select {
			case <-e.more:
			case <-ctx.Done():
				return
			}
			continue
		}
		select {
		case e.c <- next:
		case <-ctx.Done():
			return
		}
	}
}

// delegate is what memberlist calls.
type delegate struct{ m *Membership }

func (d *delegate) NodeMeta(int) []byte {
	d.m.meta.Lock()
	defer d.m.meta.Unlock()
	return d.m.meta.bytes
}

func (d *delegate) NotifyMsg([]byte)                {}
func (d *delegate) GetBroadcasts(int, int) [][]byte { return nil }
func (d *delegate) LocalState(bool) []byte          { return nil }
func (d *delegate) MergeRemoteState([]byte, bool)   {}

func (d *delegate) NotifyJoin(n *memberlist.Node)   { d.event(Join, n) }
func (d *delegate) NotifyUpdate(n *memberlist.Node) { d.event(Update, n) }

func (d *delegate) NotifyLeave(n *memberlist.Node) {
	if leaving(n) {
		d.event(Leave, n)
		return
	}
	d.event(Fail, n)
}

// event is called with memberlist's lock held. Whoever reads the event finds the list of members to agree with it.
func (d *delegate) event(kind EventKind, n *memberlist.Node) {
	present, self := member(n), n.Name == d.m.cfg.Name
	switch {
	case kind == Join || kind == Update:
		d.m.known.put(present, self)
	case !self:
		d.m.known.drop(present.Name)
	}
	d.m.hurry() // what is new here is queued for the others by now
	if !self {
		d.m.events.add(Event{Kind: kind, Member: present})
	}
}

// NotifyConflict is called when a known member's name comes from another address. It concerns this process when the name
// is its own; a third party's clash is for those two to settle.
func (d *delegate) NotifyConflict(_, other *memberlist.Node) {
	if other.Name == d.m.cfg.Name {
		d.m.events.add(Event{Kind: Clash, Member: member(other)})
	}
}

// NotifyAlive keeps members out that are not admitted, whoever speaks of them.
func (d *delegate) NotifyAlive(n *memberlist.Node) error { return d.admit(n) }

// NotifyMerge refuses to exchange lists with somebody whose list has a member that is not admitted: two clusters whose
// lists were merged would see each other's deaths.
func (d *delegate) NotifyMerge(nodes []*memberlist.Node) error {
	for _, n := range nodes {
		if n.State == memberlist.StateAlive {
			if err := d.admit(n); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *delegate) admit(n *memberlist.Node) error {
	if n.Name == d.m.cfg.Name || d.m.cfg.Admit == nil {
		return nil
	}
	return d.m.cfg.Admit(member(n))
}
