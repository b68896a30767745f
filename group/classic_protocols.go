package group

import (
	"slices"

	"github.com/millrace/millrace/metadata"
)

// supports reports whether a member may join: its protocol type is the group's, and one of its protocols is supported by
// all the others.
func (c *Core) supports(r *JoinRequest, except *member) bool {
	if r.ProtocolType == "" || len(r.Protocols) == 0 {
		return false
	}
	others := len(c.classic.members)
	if except != nil {
		others--
	}
	if others == 0 {
		return true
	}
	if r.ProtocolType != c.classic.protocolType {
		return false
	}
	return slices.ContainsFunc(r.Protocols, func(p Protocol) bool { return c.supportedByAll(p.Name, except) })
}

func (c *Core) supportedByAll(protocol string, except *member) bool {
	return !slices.ContainsFunc(c.classic.members, func(m *member) bool {
		return m != except && !offers(m.record, protocol)
	})
}

func offers(m *metadata.GroupMember, protocol string) bool {
	return slices.ContainsFunc(m.Protocols, func(p metadata.GroupProtocol) bool { return p.Name == protocol })
}

// selectProtocol lets every member vote for the first of its protocols that all support. Among those with the most votes
// it is the one that the first member prefers, so that every coordinator selects the same.
func (c *Core) selectProtocol() string {
	members := c.classic.members
	if len(members) == 0 {
		return ""
	}
	type candidate struct {
		name  string
		votes int
	}
	var candidates []candidate
	for _, p := range members[0].record.Protocols {
		if c.supportedByAll(p.Name, members[0]) && !slices.ContainsFunc(candidates, func(x candidate) bool { return x.name == p.Name }) {
			candidates = append(candidates, candidate{name: p.Name})
		}
	}
	for _, m := range members {
		for _, p := range m.record.Protocols {
			if i := slices.IndexFunc(candidates, func(x candidate) bool { return x.name == p.Name }); i >= 0 {
				candidates[i].votes++
				break
			}
		}
	}
	best := candidate{}
	for _, x := range candidates {
		if x.votes > best.votes {
			best = x
		}
	}
	return best.name
}

// metadataUnder returns what a member says under a protocol, nil if it does not support it.
func metadataUnder(m *metadata.GroupMember, protocol string) []byte {
	for _, p := range m.Protocols {
		if p.Name == protocol {
			return p.Metadata
		}
	}
	return nil
}
