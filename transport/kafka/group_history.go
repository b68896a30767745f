package kafka

import (
	"sync"
	"time"

	"github.com/millrace/millrace/group"
)

// historySpan is how far back a group's history is told.
const historySpan = 10 * time.Minute

const (
	historyGenerations = 64   // of one group, kept
	historyDepartures  = 16   // of one group, kept
	historyGroups      = 4096 // that have a history; above it the one that was quiet longest is forgotten
)

// GroupDeparture is a member that left its group by LeaveGroup.
type GroupDeparture struct {
	Member   string
	ClientID string // of the connection that said so: the member itself, or an administrator
	Reason   string // as the client gave it (KIP-800), "" for none
	At       time.Time
}

// groupHistories remember, for people, what happened lately to the groups that this broker answered for. They decide
// nothing, are not persistent, and are bounded.
type groupHistories struct {
	mu     sync.Mutex
	groups map[string]*groupHistory
}

type groupHistory struct {
	last       time.Time // when it was last written to
	generation int32     // the last one seen
	began      []time.Time
	left       []GroupDeparture
}

func (hs *groupHistories) ofLocked(name string, now time.Time) *groupHistory {
	g := hs.groups[name]
	if g == nil {
		if hs.groups == nil {
			hs.groups = map[string]*groupHistory{}
		}
		if len(hs.groups) >= historyGroups {
			oldest, since := "", now
			for n, other := range hs.groups {
				if !other.last.After(since) {
					oldest, since = n, other.last
				}
			}
			delete(hs.groups, oldest)
		}
		g = &groupHistory{generation: -1}
		hs.groups[name] = g
	}
	g.last = now
	return g
}

// joined notes that a member was told of a generation.
func (hs *groupHistories) joined(name string, generation int32, now time.Time) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	g := hs.ofLocked(name, now)
	if g.generation != generation {
		g.generation = generation
		g.began = keepLast(append(g.began, now), historyGenerations)
	}
}

// leaving notes that members have left.
func (hs *groupHistories) leaving(r group.LeaveRequest, client string, errs []error, now time.Time) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for i, m := range r.Members {
		if errs[i] != nil {
			continue
		}
		g := hs.ofLocked(r.Group, now)
		id := m.Member
		if id == "" {
			id = m.Instance
		}
		g.left = keepLast(append(g.left, GroupDeparture{Member: id, ClientID: client, Reason: m.Reason, At: now}), historyDepartures)
	}
}

// keepLast drops from the front what is more than n.
func keepLast[T any](s []T, n int) []T {
	if len(s) <= n {
		return s
	}
	return append(s[:0:0], s[len(s)-n:]...)
}

// GroupHistory says how many generations of a group began lately, as far as this broker answered its members, and who left
// it by saying so, the latest first.
func (h *Handlers) GroupHistory(name string) (generations int, left []GroupDeparture) {
	since := time.Now().Add(-historySpan)
	h.history.mu.Lock()
	defer h.history.mu.Unlock()
	g := h.history.groups[name]
	if g == nil {
		return 0, nil
	}
	for _, at := range g.began {
		if at.After(since) {
			generations++
		}
	}
	for i := len(g.left) - 1; i >= 0; i-- {
		if g.left[i].At.After(since) {
			left = append(left, g.left[i])
		}
	}
	return generations, left
}
