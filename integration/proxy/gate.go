package proxy

import "sync"

// Gate holds the frames that match, until it is opened.
type Gate struct {
	match  func(Frame) bool
	after  Verdict // what becomes of a held frame once it may go on
	opened chan struct{}
	once   sync.Once
	held   chan Frame
	remove func()
}

// Hold makes a gate in front of the frames that match. then, but for its Hold, says what becomes of them when the gate
// opens: nothing set lets them pass.
func (p *Proxy) Hold(match func(Frame) bool, then Verdict) *Gate {
	g := &Gate{match: match, after: then, opened: make(chan struct{}), held: make(chan Frame, 1024)}
	g.after.Hold = g.opened
	g.remove = p.Add(g.judge)
	return g
}

func (g *Gate) judge(f Frame) Verdict {
	if !g.match(f) {
		return Verdict{}
	}
	select {
	case <-g.opened:
		return Verdict{} // opened between the match and now
	default:
	}
	f.Payload = nil
	select {
	case g.held <- f:
	default: // nobody counts that many
	}
	return g.after
}

// Held gives each frame that is held, without its payload.
func (g *Gate) Held() <-chan Frame { return g.held }

// Open lets what is held go on, and holds nothing more.
func (g *Gate) Open() {
	g.once.Do(func() {
		g.remove()
		close(g.opened)
	})
}

// Key matches the frames of one API key in one direction.
func Key(d Direction, key int16) func(Frame) bool {
	return func(f Frame) bool { return f.Direction == d && f.Key == key }
}

// First makes a match of the first n frames that match.
func First(n int, match func(Frame) bool) func(Frame) bool {
	var mu sync.Mutex
	return func(f Frame) bool {
		mu.Lock()
		defer mu.Unlock()
		if n == 0 || !match(f) {
			return false
		}
		n--
		return true
	}
}
