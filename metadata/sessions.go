package metadata

import (
	"sync"
	"time"
)

// sessions is what a controller knows of the brokers' liveness, in memory, by the monotonic clock. It begins anew with each
// lead: the new controller gives every broker a full session (M9).
type sessions struct {
	timeout time.Duration
	// hint is how soon a broker that was suspected and then answered must be heard from.
	hint time.Duration

	mu struct {
		sync.Mutex
		of map[BrokerID]*session
	}
}

// session is about one broker.
type session struct {
	epoch int64
	// until is when the broker is given up if it is silent; suspect is when it will be asked, before that. Zero = never.
	until, suspect time.Time
	// applied is the highest Heartbeat.Applied in this lead; 0 until the first.
	applied uint64
	// probing is closed when the probe under way has ended; nil when there is none.
	probing chan struct{}
	// fenced are the times of the last flapMemory at which the controller fenced the broker, or would have if it had not been fenced.
	fenced []time.Time
	// steady is since when a fenced broker has been heard from without a pause; zero before it is heard from.
	steady time.Time
	// returned is when the fence was lifted, until leaders have been given back to the broker.
	returned time.Time
}

const (
	// flapMemory is how long a fencing counts against a broker, and flapFree how many of them cost nothing.
	flapMemory = 5 * time.Minute
	flapFree   = 2
	// flapPenalty is how long the first fencing that costs something keeps a broker fenced that is heard from again; each one more
	// doubles it, up to flapPenaltyMax.
	flapPenalty    = 2 * time.Second
	flapPenaltyMax = 20 * time.Second
)

func newSessions(timeout, interval time.Duration, brokers []*Broker, now time.Time) *sessions {
	ss := &sessions{timeout: timeout, hint: interval + interval/2}
	ss.mu.of = make(map[BrokerID]*session)
	for _, b := range brokers {
		ss.mu.of[b.ID] = &session{epoch: b.Epoch, until: now.Add(timeout)}
	}
	return ss
}

// get returns the session of a broker, a new one if it is unknown or has registered anew.
func (ss *sessions) getLocked(b *Broker, now time.Time) *session {
	s := ss.mu.of[b.ID]
	if s == nil {
		s = &session{epoch: b.Epoch, until: now.Add(ss.timeout)}
		ss.mu.of[b.ID] = s
	}
	if s.epoch != b.Epoch {
		s.epoch, s.applied, s.suspect, s.returned, s.steady = b.Epoch, 0, time.Time{}, time.Time{}, time.Time{}
		s.until = now.Add(ss.timeout)
	}
	return s
}

// heard notes a heartbeat and reports whether a fence may be lifted: a broker that was fenced again and again has to be heard from
// for a while first (G8). Were it the time since the fence, one that stands still for longer would come back each time.
func (ss *sessions) heard(b *Broker, applied uint64, now time.Time) (mayReturn bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s := ss.getLocked(b, now)
	switch silent := now.Sub(s.until) + ss.timeout; {
	case s.steady.IsZero():
		s.steady = now
	case b.Fenced && silent > ss.timeout/2:
		s.steady = now
		s.fenced = append(s.fenced, now)
	}
	s.until, s.suspect = now.Add(ss.timeout), time.Time{}
	s.applied = max(s.applied, applied)
	return now.Sub(s.steady) >= s.penalty(now)
}

// penalty is how long a fenced broker has to be heard from before it may return.
func (s *session) penalty(now time.Time) time.Duration {
	for len(s.fenced) > 0 && now.Sub(s.fenced[0]) > flapMemory {
		s.fenced = s.fenced[1:]
	}
	n := len(s.fenced) - flapFree
	switch {
	case n <= 0:
		return 0
	case n > 4: // further on the doublings would overflow
		return flapPenaltyMax
	}
	return min(flapPenaltyMax, flapPenalty<<(n-1))
}

// fencedNow notes that the controller fenced the broker, and unfencedNow that its fence was lifted.
func (ss *sessions) fencedNow(b *Broker, now time.Time) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s := ss.getLocked(b, now)
	s.fenced = append(s.fenced, now)
	s.returned, s.suspect, s.steady = time.Time{}, time.Time{}, time.Time{}
}

func (ss *sessions) unfencedNow(b *Broker, now time.Time) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s := ss.getLocked(b, now)
	s.until = now.Add(ss.timeout)
	s.returned = now
}

// overdue returns the brokers that have been silent for a session, and those that must be asked whether they live.
func (ss *sessions) overdue(brokers []*Broker, now time.Time) (silent, ask []*Broker) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, b := range brokers {
		if b.Fenced {
			continue
		}
		switch s := ss.getLocked(b, now); {
		case !now.Before(s.until):
			silent = append(silent, b)
		case !s.suspect.IsZero() && !now.Before(s.suspect):
			ask = append(ask, b)
		}
	}
	return silent, ask
}

// rest is how long nobody need look for those that are overdue: up to the moment at which the first would be, as far as is
// known now, but no shorter than watchInterval and no longer than most. A broker that is heard from puts its moment off. One
// that is suspected from now on gets a moment at least hint away, which is more than most; nothing else brings one nearer.
func (ss *sessions) rest(brokers []*Broker, now time.Time, most time.Duration) time.Duration {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, b := range brokers {
		if b.Fenced {
			continue
		}
		s := ss.getLocked(b, now)
		next := s.until
		if !s.suspect.IsZero() && s.suspect.Before(next) {
			next = s.suspect
		}
		most = min(most, next.Sub(now))
	}
	return max(most, watchInterval)
}

// extend gives all brokers more time: the controller itself was held up.
func (ss *sessions) extend(by time.Duration) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, s := range ss.mu.of {
		s.until = s.until.Add(by)
	}
}

// begin starts a probe of a broker, or returns the channel that the one under way will close.
func (ss *sessions) begin(b *Broker, now time.Time) (underWay <-chan struct{}) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s := ss.getLocked(b, now)
	if s.probing != nil {
		return s.probing
	}
	s.probing = make(chan struct{})
	return nil
}

// end ends the probe that begin started. A broker that answered must soon be heard from by itself.
func (ss *sessions) end(b *Broker, answered bool, now time.Time) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s := ss.mu.of[b.ID]
	close(s.probing)
	s.probing = nil
	if answered && s.epoch == b.Epoch {
		s.suspect = now.Add(ss.hint)
	}
}

// applied returns the version that all brokers have acted on, and false if one of them has not said so in this lead.
func (ss *sessions) applied(brokers []*Broker) (through uint64, ok bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	through = ^uint64(0)
	for _, b := range brokers {
		s := ss.mu.of[b.ID]
		if s == nil || s.epoch != b.Epoch || s.applied == 0 {
			return 0, false
		}
		through = min(through, s.applied)
	}
	return through, len(brokers) > 0
}

// returning returns the brokers whose fence was lifted at least settle ago, and that have not been given their leaders back.
// One that flaps is left to the regular balance.
func (ss *sessions) returning(brokers []*Broker, settle time.Duration, now time.Time) (out []*Broker) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, b := range brokers {
		s := ss.mu.of[b.ID]
		if s == nil || b.Fenced || s.returned.IsZero() || now.Sub(s.returned) < settle {
			continue
		}
		if now.Sub(s.returned) > flapMemory || len(s.fenced) > flapFree {
			s.returned = time.Time{}
			continue
		}
		out = append(out, b)
	}
	return out
}

// given notes that a returned broker has its leaders back.
func (ss *sessions) given(id BrokerID) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s := ss.mu.of[id]; s != nil {
		s.returned = time.Time{}
	}
}
