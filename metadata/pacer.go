package metadata

import "time"

// Pacer lets a long computation that nobody waits for give way to what somebody does. A goroutine that computes without
// a pause is in the way of all that wait for the network: where there is one processor for them, each of their steps comes
// up to 20 ms late, and a commit takes ten. It is not enough to yield, for what yields is run again before the network is
// looked at; only who sleeps lets all others in.
//
// A nil Pacer never rests. A Pacer belongs to one goroutine.
type Pacer struct {
	parts int
	hurry <-chan struct{}
	since time.Time // of the present stretch of work; zero before the first
	left  time.Duration
}

const (
	// paceWork is how long is worked before a rest, about: Breathe is to be called more often.
	paceWork = time.Millisecond
	// paceRest bounds one rest. Work seems long too when others have the processor.
	paceRest = 20 * time.Millisecond
	// paceTotal bounds all rests of a Pacer together: what is not urgent has to be done some time, on the busiest machine.
	paceTotal = 10 * time.Second
)

// NewPacer returns a Pacer that works for one part in parts of the time: with 4 it rests three times as long as it worked, up
// to 20 ms each time and ten seconds in all. Once hurry is closed it rests no more; nil never is.
func NewPacer(parts int, hurry <-chan struct{}) *Pacer {
	return &Pacer{parts: parts, hurry: hurry, left: paceTotal}
}

// Breathe rests if it is time to. It is to be called between pieces of work of much less than a millisecond.
func (p *Pacer) Breathe() {
	if p == nil || p.left <= 0 {
		return
	}
	now := time.Now()
	if p.since.IsZero() {
		p.since = now
	}
	worked := now.Sub(p.since)
	if worked < paceWork {
		return
	}
	rest := min(worked*time.Duration(p.parts-1), paceRest, p.left)
	p.left -= rest
	timer := time.NewTimer(rest)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.hurry:
		p.left = 0
	}
	p.since = time.Now()
}
