package group

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/metadata"
)

// historySpan is how far back a group's history is told.
const historySpan = Instant(10 * time.Minute)

// Bounds of what is remembered: of one group, and of all. Above historyGroups and historyAll, the groups that were quiet longest
// are forgotten.
const (
	historyGenerations = 64
	historyComings     = 128
	historyRefusals    = 16 // different ones
	historyGroups      = 4096
	historyAll         = 32_768 // comings, goings and refusals
	// historyText bounds each text in bytes, historyProtocol the name of a protocol. Clients choose most of them, may make them
	// 32 KiB long, and need not be in any group to be refused (I23).
	historyText, historyProtocol = 200, 64
	// historyName is how long the name of a group may be that has a history.
	historyName = 1024
)

// History is what happened to a group in the last ten minutes, as far as its coordinator has seen it. It is for people: it
// decides nothing, does not last, and is bounded.
type History struct {
	// Generations is how many began.
	Generations int
	// Comings of members and their goings, the latest first.
	Comings []Coming
	// Refusals of who wanted to join, the latest first.
	Refusals []Refusal
}

// Coming is a member that came, or that went.
type Coming struct {
	Member, Instance     string
	ClientID, ClientHost string
	// Address is where the request came from, "" where there was none or it is not known.
	Address string
	// Reason is why the member went; "" if it came. Note is what it said itself (KIP-800).
	Reason Reason
	Note   string
	Ago    time.Duration
}

// Refusal is a client that was not let in, for the same reason each time.
type Refusal struct {
	Member, Instance     string
	ClientID, ClientHost string
	// Protocols are the names of those that it offered in the classic protocol, or the assignor that it asked for.
	Protocols []string
	Err       error
	Times     int
	Ago       time.Duration // since the last time
}

// histories are the histories of the groups of one coordinator.
type histories struct {
	mu     sync.Mutex
	groups map[string]*history
	all    int // comings and refusals of all groups
}

type history struct {
	last     Instant // when it was last written to
	began    []Instant
	comings  []pastComing
	refusals []pastRefusal
}

// pastComing is a Coming, whose Ago is open.
type pastComing struct {
	Coming
	at Instant
}

type pastRefusal struct {
	Refusal
	at Instant
}

// note remembers what an action tells.
func (hs *histories) note(group string, now Instant, a *Action) {
	if len(group) > historyName {
		return
	}
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := hs.ofLocked(group, now)
	switch a.Kind {
	case ActionGeneration:
		h.began = keepLast(append(h.began, now), historyGenerations)
	case ActionCame, ActionWent:
		h.comings = append(h.comings, pastComing{Coming{
			Member: shortened(a.Who.ID), Instance: shortened(a.Who.InstanceID), ClientID: shortened(a.Who.ClientID), ClientHost: shortened(a.Who.ClientHost),
			Address: shortened(a.Address), Reason: a.Reason, Note: shortened(a.Note),
		}, now})
		hs.all++
		if n := len(h.comings) - historyComings; n > 0 {
			h.comings = keepLast(h.comings, historyComings)
			hs.all -= n
		}
	case ActionRefused:
		hs.all += h.refused(a, now)
	}
	for hs.all > historyAll && len(hs.groups) > 1 {
		hs.forgetLocked(group)
	}
}

// shortened bounds what clients may have us keep.
func shortened(s string) string { return shortenedTo(s, historyText) }

// shortenedTo returns s, or its first most bytes, which are no part of s then.
func shortenedTo(s string, most int) string {
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// refused notes a refusal, and returns how many more there are then.
func (h *history) refused(a *Action, now Instant) int {
	before := len(h.refusals)
	r := pastRefusal{Refusal{
		Member: shortened(a.Who.ID), Instance: shortened(a.Who.InstanceID), ClientID: shortened(a.Who.ClientID), ClientHost: shortened(a.Who.ClientHost),
		Protocols: offered(a.Who), Err: root(a.Err), Times: 1,
	}, now}
	// The same client comes with a new id each time.
	same := func(o pastRefusal) bool {
		return o.ClientID == r.ClientID && o.ClientHost == r.ClientHost && o.Instance == r.Instance && errors.Is(o.Err, r.Err) && now-o.at < historySpan
	}
	if i := slices.IndexFunc(h.refusals, same); i >= 0 {
		r.Times += h.refusals[i].Times
		h.refusals = slices.Delete(h.refusals, i, i+1)
	}
	h.refusals = keepLast(append(h.refusals, r), historyRefusals)
	return len(h.refusals) - before
}

// root is the sentinel behind an error that says more.
func root(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

// offered are the names of the protocols that a member offers, a few at most.
func offered(m *metadata.GroupMember) []string {
	const most = 8
	var out []string
	for _, p := range m.Protocols {
		if len(out) < most {
			out = append(out, shortenedTo(p.Name, historyProtocol))
		}
	}
	if m.ServerAssignor != "" {
		out = append(out, shortenedTo(m.ServerAssignor, historyProtocol))
	}
	return out
}

func (hs *histories) ofLocked(group string, now Instant) *history {
	h := hs.groups[group]
	if h == nil {
		if hs.groups == nil {
			hs.groups = map[string]*history{}
		}
		if len(hs.groups) >= historyGroups {
			hs.forgetLocked(group)
		}
		h = &history{}
		hs.groups[group] = h
	}
	h.last = now
	return h
}

// forgetLocked makes room: a quarter of the groups goes, those that were quiet longest; never the one that is kept.
func (hs *histories) forgetLocked(kept string) {
	names := make([]string, 0, len(hs.groups))
	for name := range hs.groups {
		if name != kept {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(hs.groups[a].last, hs.groups[b].last), cmp.Compare(a, b))
	})
	for _, name := range names[:(len(names)+3)/4] {
		hs.all -= len(hs.groups[name].comings) + len(hs.groups[name].refusals)
		delete(hs.groups, name)
	}
}

// keepLast drops from the front what is more than n.
func keepLast[T any](s []T, n int) []T {
	if len(s) <= n {
		return s
	}
	return append(s[:0:0], s[len(s)-n:]...)
}

// of returns a group's history.
func (hs *histories) of(group string, now Instant) History {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := hs.groups[group]
	if h == nil {
		return History{}
	}
	var out History
	for _, at := range h.began {
		if now-at < historySpan {
			out.Generations++
		}
	}
	for _, c := range slices.Backward(h.comings) {
		if now-c.at < historySpan {
			c.Ago = time.Duration(now - c.at)
			out.Comings = append(out.Comings, c.Coming)
		}
	}
	for _, r := range slices.Backward(h.refusals) {
		if now-r.at < historySpan {
			r.Ago = time.Duration(now - r.at)
			out.Refusals = append(out.Refusals, r.Refusal)
		}
	}
	return out
}

// History tells what happened to a group lately.
func (c *Coordinator) History(group string) History { return c.past.of(group, c.now()) }
