package transport

import (
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// source is an address that clients connect from. What connections share is divided among sources first and among a source's connections
// second, so that one machine with a thousand connections gets no more of it than another one with two. Clients that can't be told apart
// by address, behind a translating gateway or a proxy, share one source's part.
//
// A nil *source stands for whom nothing is divided: the brokers' own listener, and connections without an address.
type source struct {
	conns int // guarded by Server.mu

	frames lane     // guarded by budget.mu
	writes turnLane // guarded by turns.mu
	// chunks is how many large chunks its connections hold.
	chunks atomic.Int64
	// rejects spaces the closing of its connections that were rejected: see closeDelay.
	rejects *rate.Limiter
}

const (
	// rejectBurst connections of a source are closed at once when they are rejected, further ones rejectsPerSecond: an attacker, or a
	// client with the wrong settings, that connects again as soon as it is thrown out would else cost as much CPU as it has.
	rejectBurst      = 20
	rejectsPerSecond = 50
	// maxCloseDelay bounds how long a rejected connection keeps its descriptor.
	maxCloseDelay = 10 * time.Second
)

func newSource() *source {
	return &source{rejects: rate.NewLimiter(rejectsPerSecond, rejectBurst)}
}

// quiet reports whether nothing is lost if s is forgotten: it has no connections and did nothing wrong of late.
func (s *source) quiet(b *budget) bool {
	return s.conns == 0 && s.rejects.Tokens() >= rejectBurst && !b.distrusts(&s.frames)
}

// sourceLocked is the source of an address.
func (s *Server) sourceLocked(ip netip.Addr, b *budget) *source {
	from := s.mu.sources[ip]
	if from != nil {
		return from
	}
	// Sources without connections are remembered for what they did wrong, and forgotten once there are twice as many as after the last
	// time: their number is bounded by that of the connections of a minute.
	if len(s.mu.sources) >= s.mu.forgetSources {
		for ip, from := range s.mu.sources {
			if from.quiet(b) {
				delete(s.mu.sources, ip)
			}
		}
		s.mu.forgetSources = 2*len(s.mu.sources) + 64
	}
	from = newSource()
	s.mu.sources[ip] = from
	return from
}

// closeDelay is how long a rejected connection of the source stays open, unread, before it is closed.
func (s *source) closeDelay() time.Duration {
	if s == nil {
		return 0
	}
	now := time.Now()
	r := s.rejects.ReserveN(now, 1)
	d := r.DelayFrom(now)
	if d > maxCloseDelay {
		r.CancelAt(now) // the queue is as long as the longest delay
		return maxCloseDelay
	}
	return d
}
