package peer

import (
	"fmt"

	"github.com/millrace/millrace/metadata"
)

// judge says whether a connection of that kind is welcome: nil, or the refusal that both sides are shown. It compares
// who calls with who is called; whether the caller may do what it asks for is decided where it asks.
func judge(h hello, from From, own Identity) *metadata.Error {
	switch {
	case h.Protocol < helloProtocol:
		return &metadata.Error{
			Kind: metadata.ErrInvalidRequest,
			What: fmt.Sprintf("%s speaks version %d of the protocol between brokers", from.name(), h.Protocol),
			Why:  fmt.Sprintf("%s needs version %d or later", own.name(), helloProtocol),
			Fix:  "upgrade " + from.name(),
		}
	case own.ClusterID != "" && from.ClusterID != "" && own.ClusterID != from.ClusterID:
		return &metadata.Error{
			Kind: metadata.ErrClusterMismatch,
			What: fmt.Sprintf("%s is of cluster %q, %s is of cluster %q", from.name(), from.ClusterID, own.name(), own.ClusterID),
			Why:  "brokers of two clusters call each other, so an address leads to the wrong one",
			Fix:  "check --join (millrace.join) and the advertised addresses of both; to move a broker into the other cluster start it with an empty data directory",
		}
	case from.Incarnation == own.Incarnation:
		if h.Purpose == forRaft || h.Purpose == forFetch {
			return &metadata.Error{
				Kind: metadata.ErrInvalidRequest,
				What: own.name() + " called itself",
				Why:  "another broker is registered with this broker's address",
				Fix:  "give each broker an advertised address of its own",
			}
		}
	case from.Directory == own.Directory:
		return &metadata.Error{
			Kind: metadata.ErrDuplicateBroker,
			What: fmt.Sprintf("%s has the data directory of %s", from.name(), own.name()),
			Why:  "both processes run, and the id inside their data directories is the same: one is a copy of the other",
			Fix:  "stop the copy; a new broker starts with an empty data directory",
		}
	case from.Node >= 0 && from.Node == own.Node:
		return &metadata.Error{
			Kind: metadata.ErrDuplicateBroker,
			What: fmt.Sprintf("two brokers have node id %d", own.Node),
			Why:  "both processes run, on different data directories",
			Fix:  "give one of them another node.id, or leave node.id out: the cluster then chooses",
		}
	}
	switch h.Purpose {
	case forCalls, forProbe:
	case forFetch:
		if from.Node < 0 || own.ClusterID == "" || from.ClusterID == "" {
			return notYet(from, own)
		}
	case forRaft:
		if from.Node < 0 || own.Node < 0 {
			return notYet(from, own)
		}
	default:
		return &metadata.Error{
			Kind: metadata.ErrInvalidRequest,
			What: fmt.Sprintf("%s wants a connection for %q", from.name(), h.Purpose),
			Why:  own.name() + " does not know what that is",
			Fix:  "upgrade " + own.name(),
		}
	}
	return nil
}

func notYet(from From, own Identity) *metadata.Error {
	return &metadata.Error{
		Kind: metadata.ErrInvalidRequest,
		What: fmt.Sprintf("%s called %s too early", from.name(), own.name()),
		Why:  "one of them has no id yet, or belongs to no cluster yet",
		Fix:  "none is needed if they are starting: the call is repeated",
	}
}

// name is how a process is called in messages.
func (id Identity) name() string {
	if id.Node < 0 {
		return "a broker without an id"
	}
	return "broker " + id.Node.String()
}

// name is that of the identity, with the address it called from.
func (f From) name() string {
	if f.Remote == "" {
		return f.Identity.name()
	}
	return fmt.Sprintf("%s at %s", f.Identity.name(), f.Remote)
}
