package membership

import (
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/memberlist"
)

// members are those that are alive, copied whenever memberlist tells of a change. memberlist's own list has pointers to
// nodes that it goes on to write under its lock, so nobody else can read them: a torn address would be dialled, and a torn
// Meta taken for another's.
//
// Nothing is missed: a node's address changes only while it is dead, which ends with a join, and another Meta is an update.
type members struct {
	mu     sync.Mutex // taken with memberlist's locks held, so nothing of memberlist's is called under it
	self   Member     // stays after this member left
	others map[string]Member
}

// put notes a member that came or changed.
func (s *members) put(m Member, self bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if self {
		s.self = m
		return
	}
	if s.others == nil {
		s.others = make(map[string]Member)
	}
	s.others[m.Name] = m
}

// drop forgets a member that fell silent or left.
func (s *members) drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.others, name)
}

func (s *members) own() Member {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.self
}

// list returns the others by name.
func (s *members) list() []Member {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Member
	for _, m := range s.others {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// member reads a node of memberlist's, which must not change meanwhile: only what a delegate is given, during its call.
func member(n *memberlist.Node) Member {
	addr, _ := netip.AddrFromSlice(n.Addr)
	out := Member{Name: n.Name, Addr: netip.AddrPortFrom(addr.Unmap(), n.Port)}
	if len(n.Meta) > 0 {
		out.Meta = n.Meta[1:]
	}
	return out
}

func leaving(n *memberlist.Node) bool {
	return len(n.Meta) > 0 && n.Meta[metaFlagPositionIn]&metaFlagLeaving != 0
}
