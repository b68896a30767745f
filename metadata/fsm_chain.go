package metadata

import (
	"bytes"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// Bounds of commands that span entries. An entry stays small so that heartbeats and other proposals get between (M20); a
// command that does not fit is proposed in parts, which the FSM keeps until the last one and then applies as a whole.
const (
	// maxEntryBytes bounds the data of one Raft entry.
	maxEntryBytes = 256 << 10
	// maxCommandBytes bounds one command in an entry, its envelope included; a larger one becomes a chain. At half an entry,
	// one that has room for any command is at least half full.
	maxCommandBytes = maxEntryBytes / 2
	// maxPartBytes is the payload of one part; it leaves room for the envelope.
	maxPartBytes = maxCommandBytes - 256
	// maxChainBytes bounds a command as a whole.
	maxChainBytes = 16 << 20
	// maxChains bounds the unfinished chains that the state may hold: those of proposers that died half-way. When another
	// one begins, the oldest goes.
	maxChains = 8
)

// requestID is random per command, decided by the proposer; it makes a repeated proposal recognizable (M11).
type requestID [16]byte

// chain holds the parts so far of a command that spans entries. Immutable: a further part makes another chain.
type chain struct {
	ID     requestID
	Parts  uint32
	Bodies [][]byte // fewer than Parts
}

// chainPart is the command that carries one part.
type chainPart struct {
	chain requestID
	part  uint32 // from 0
	parts uint32
	data  []byte
}

func (c *chainPart) kind() pb.CommandType { return pb.CommandType_COMMAND_CHAIN_PART }

func (c *chainPart) message() proto.Message {
	return &pb.ChainPart{ChainId: c.chain[:], Part: c.part, Parts: c.parts, Data: c.data}
}

func decodeChainPart(body []byte) (command, error) {
	var m pb.ChainPart
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	id, err := bytes16(m.ChainId, "chain id")
	if err != nil {
		return nil, err
	}
	if m.Part >= m.Parts || m.Parts > maxChainBytes/maxPartBytes+1 || len(m.Data) > maxEntryBytes {
		return nil, fmt.Errorf("part %d of %d with %d bytes", m.Part, m.Parts, len(m.Data))
	}
	return &chainPart{chain: id, part: m.Part, parts: m.Parts, data: m.Data}, nil
}

// apply keeps the part; the last one takes the chain out and applies the command that the parts make up. A part that
// is there already is a repetition and changes nothing.
func (c *chainPart) apply(d *draft, at position) (any, error) {
	i := slices.IndexFunc(d.st.chains, func(ch *chain) bool { return ch.ID == c.chain })
	var had [][]byte
	if i >= 0 {
		had = d.st.chains[i].Bodies
		if d.st.chains[i].Parts != c.parts {
			return nil, ErrStale
		}
	}
	switch {
	case int(c.part) < len(had):
		return nil, nil
	case int(c.part) > len(had):
		return nil, ErrStale // an earlier part was lost, or the chain had to make room
	}
	bodies := append(slices.Clone(had), c.data)
	chains := slices.Clone(d.st.chains)
	if c.part+1 < c.parts {
		next := &chain{ID: c.chain, Parts: c.parts, Bodies: bodies}
		if i >= 0 {
			chains[i] = next
		} else {
			chains = append(chains, next)
		}
		if len(chains) > maxChains {
			chains = slices.Delete(chains, 0, 1)
		}
		d.st.chains = chains
		return nil, nil
	}
	if i >= 0 {
		d.st.chains = slices.Delete(chains, i, i+1)
	}
	var whole pb.Command
	if err := unmarshal(bytes.Join(bodies, nil), &whole); err != nil {
		return nil, fatalError{fmt.Errorf("decode the command of chain %x: %w", c.chain, err)}
	}
	if whole.Type == pb.CommandType_COMMAND_CHAIN_PART {
		return nil, fatalError{fmt.Errorf("chain %x holds a chain part", c.chain)}
	}
	return applyCommand(d, envelope{kind: whole.Type, term: whole.Term, body: whole.Body}, at)
}
