package broker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/metadata/membership"
)

// gossipMeta is what a broker says of itself in gossip. It fits membership.MetaMaxBytes with room to spare.
type gossipMeta struct {
	cluster     string // "" while it belongs to none
	node        metadata.BrokerID
	directory   metadata.DirectoryID
	incarnation [16]byte
	expect      int    // --bootstrap-expect, 0 for none
	address     string // of its listener for other brokers
	// joining says that it takes no part in forming a cluster: it only joins one, or is past that.
	joining bool
	// member says that it is registered with its cluster: it is no newcomer any more (M13).
	member bool
}

// A gossip meta on the wire, version 1. Later versions append; what a version does not know it skips.
//
//	version(1) flags(1) node(int32) directory(16) incarnation(16) expect(1) len(1) cluster len(1) address
const (
	gossipMetaVersion = 1
	gossipMetaFixed   = 1 + 1 + 4 + 16 + 16 + 1

	gossipJoining = 1 << 0
	gossipMember  = 1 << 1
)

func (m *gossipMeta) encode() ([]byte, error) {
	if len(m.cluster) > 128 || len(m.address) > 255 || m.expect > 255 {
		return nil, fmt.Errorf("cluster id %q, address %q or size %d does not fit into gossip", m.cluster, m.address, m.expect)
	}
	flags := byte(0)
	if m.joining {
		flags |= gossipJoining
	}
	if m.member {
		flags |= gossipMember
	}
	b := append(make([]byte, 0, gossipMetaFixed+2+len(m.cluster)+len(m.address)), gossipMetaVersion, flags)
	b = binary.BigEndian.AppendUint32(b, uint32(m.node))
	b = append(b, m.directory[:]...)
	b = append(b, m.incarnation[:]...)
	b = append(b, byte(m.expect), byte(len(m.cluster)))
	b = append(b, m.cluster...)
	b = append(b, byte(len(m.address)))
	return append(b, m.address...), nil
}

var errGossipMeta = errors.New("not what a broker says of itself")

func decodeGossipMeta(b []byte) (m gossipMeta, err error) {
	if len(b) < gossipMetaFixed+2 || b[0] == 0 {
		return m, errGossipMeta
	}
	m.joining, m.member = b[1]&gossipJoining != 0, b[1]&gossipMember != 0
	m.node = metadata.BrokerID(int32(binary.BigEndian.Uint32(b[2:])))
	copy(m.directory[:], b[6:])
	copy(m.incarnation[:], b[22:])
	m.expect = int(b[38])
	rest := b[gossipMetaFixed:]
	for _, text := range []*string{&m.cluster, &m.address} {
		if len(rest) == 0 || len(rest) < 1+int(rest[0]) {
			return m, errGossipMeta
		}
		*text, rest = string(rest[1:1+rest[0]]), rest[1+rest[0]:]
	}
	if m.node < metadata.NoBroker || m.directory == (metadata.DirectoryID{}) || m.address == "" {
		return m, errGossipMeta
	}
	return m, nil
}

// neighbour is another broker as gossip shows it.
type neighbour struct {
	gossipMeta
	gossip netip.AddrPort
}

func readNeighbour(m membership.Member) (neighbour, error) {
	meta, err := decodeGossipMeta(m.Meta)
	return neighbour{gossipMeta: meta, gossip: m.Addr}, err
}

func (n *neighbour) candidate() candidate {
	return candidate{
		directory: n.directory, gossip: n.gossip, address: n.address, cluster: n.cluster, node: n.node, expect: n.expect, joining: n.joining,
	}
}

// name is how people find it.
func (n *neighbour) name() string {
	if n.cluster != "" && n.node >= 0 {
		return fmt.Sprintf("broker %d (%s)", n.node, n.gossip)
	}
	return n.gossip.String()
}
