package peer

import (
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/millrace/millrace/metadata"
)

// A hello is the first thing said on every connection, in both directions: JSON, so that a later version can add to
// it. What a version does not know it ignores; helloProtocol says what it understands at least.

const (
	// helloProtocol is the version of everything behind the hello.
	helloProtocol = 1
	// maxHelloBytes bounds a hello and its reply.
	maxHelloBytes = 64 << 10
	// maxHelloText bounds each string in it: longer ones are nobody's name.
	maxHelloText = 1 << 10
)

// purpose is what a connection is for.
type purpose string

const (
	forRaft  purpose = "raft"  // the stream behind the hello is hashicorp/raft's
	forCalls purpose = "call"  // calls, many at once
	forFetch purpose = "fetch" // a follower's fetches
	forProbe purpose = "probe" // nothing but the hello
)

// hello is what the one that connects says.
type hello struct {
	Protocol int     `json:"protocol"`
	Purpose  purpose `json:"purpose"`
	identityText
	Address string `json:"address,omitempty"` // where it is reached itself
	Version string `json:"version,omitempty"`
}

// helloReply is the answer. Refusal is nil when the connection may be used.
type helloReply struct {
	Protocol int `json:"protocol"`
	identityText
	Version string          `json:"version,omitempty"`
	Refusal json.RawMessage `json:"refusal,omitempty"` // metadata.EncodeError's
}

// identityText is an Identity on the wire.
type identityText struct {
	Cluster     string `json:"cluster,omitempty"`
	Node        int32  `json:"node"`
	Directory   string `json:"directory"`
	Incarnation string `json:"incarnation"`
}

func textOf(id Identity) identityText {
	return identityText{
		Cluster: id.ClusterID, Node: int32(id.Node),
		Directory: hex.EncodeToString(id.Directory[:]), Incarnation: hex.EncodeToString(id.Incarnation[:]),
	}
}

func (t *identityText) identity() (Identity, error) {
	id := Identity{ClusterID: t.Cluster, Node: metadata.BrokerID(t.Node)}
	if t.Node < -1 || len(t.Cluster) > maxHelloText {
		return id, fmt.Errorf("hello: node %d of a cluster whose name has %d bytes", t.Node, len(t.Cluster))
	}
	for _, f := range []struct {
		name, text string
		to         *[16]byte
	}{{"directory", t.Directory, &id.Directory}, {"incarnation", t.Incarnation, &id.Incarnation}} {
		if hex.DecodedLen(len(f.text)) != len(f.to) {
			return id, fmt.Errorf("hello: %s id of %d characters", f.name, len(f.text))
		}
		if _, err := hex.Decode(f.to[:], []byte(f.text)); err != nil {
			return id, fmt.Errorf("hello: %s id: %w", f.name, err)
		}
	}
	return id, nil
}

// From is a process that called.
type From struct {
	Identity
	// Address is where it says it is reached, "" if it does not.
	Address string
	// Version is its software's.
	Version string
	// Remote is the address it called from.
	Remote string
	// Self says that this process called itself.
	Self bool
}

// decodeHello reads a hello.
func decodeHello(b []byte) (hello, From, error) {
	var h hello
	if len(b) > maxHelloBytes {
		return h, From{}, fmt.Errorf("hello of %d bytes", len(b))
	}
	if err := json.Unmarshal(b, &h); err != nil {
		return h, From{}, fmt.Errorf("hello: %w", err)
	}
	id, err := h.identity()
	if err != nil {
		return h, From{}, err
	}
	if len(h.Address) > maxHelloText || len(h.Version) > maxHelloText || len(h.Purpose) > maxHelloText {
		return h, From{}, fmt.Errorf("hello: a name is longer than %d bytes", maxHelloText)
	}
	return h, From{Identity: id, Address: h.Address, Version: h.Version}, nil
}

// decodeReply reads the answer to a hello. A refusal comes back as err.
func decodeReply(b []byte) (Identity, error) {
	var r helloReply
	if err := json.Unmarshal(b, &r); err != nil {
		return Identity{}, fmt.Errorf("answer to the hello: %w", err)
	}
	if r.Refusal != nil {
		return Identity{}, metadata.DecodeError(r.Refusal)
	}
	return r.identity()
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("peer: encode %T: %v", v, err)) // strings and numbers
	}
	return b
}
