package membership

import (
	"context"
	"math/rand/v2"
	"net"
	"time"

	"github.com/hashicorp/memberlist"
)

// News - of a member that came, changed, left or died, and of the first suspicion - goes out at the pace of hasteInterval, to
// hasteMembers at a time, for hasteRounds. Who has news tells members that he has not told yet, so that among up to ten each hears it from
// its source too: with targets drawn anew each time, one of ten was forgotten by all in one spreading of fifty. memberlist's own pace
// of telling could be the same, but it ticks whether there is news or not, and those ticks were half of the timers of a broker at rest.
// At its gossipInterval it tells what is left, and its probes and their answers carry news too.
const (
	hasteInterval = 50 * time.Millisecond
	hasteMembers  = 3
	hasteRounds   = 4
)

// hurry has news told now.
func (m *Membership) hurry() {
	select {
	case m.news <- struct{}{}:
	default: // it is about to be
	}
}

// spread tells news until ctx ends. A ping carries what memberlist has to tell, like everything it sends.
func (m *Membership) spread(ctx context.Context) {
	for {
		select {
		case <-m.news:
		case <-ctx.Done():
			return
		}
		others := m.known.list()
		rand.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
		for round := range hasteRounds {
			for i := range min(len(others), hasteMembers) {
				other := others[(round*hasteMembers+i)%len(others)]
				// Nobody wants the answer, and to have none says nothing: the probes find out who is dead.
				m.running.Go(func() { _, _ = m.list.Ping(other.Name, net.UDPAddrFromAddrPort(other.Addr)) })
			}
			select {
			case <-time.After(hasteInterval):
			case <-ctx.Done():
				return
			}
		}
	}
}

// heeding is a transport that notices when memberlist begins to doubt a member: it then tries to reach that one by TCP, with less patience
// than it has for an exchange of lists, and suspects it a moment later if it can't.
type heeding struct {
	memberlist.Transport
	doubts func()
}

// WriteToAddress implements memberlist.NodeAwareTransport.
func (h heeding) WriteToAddress(b []byte, to memberlist.Address) (time.Time, error) {
	if aware, ok := h.Transport.(memberlist.NodeAwareTransport); ok {
		return aware.WriteToAddress(b, to)
	}
	return h.WriteTo(b, to.Addr)
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (h heeding) DialAddressTimeout(to memberlist.Address, timeout time.Duration) (net.Conn, error) {
	if timeout < streamTimeout {
		h.doubts()
	}
	if aware, ok := h.Transport.(memberlist.NodeAwareTransport); ok {
		return aware.DialAddressTimeout(to, timeout)
	}
	return h.DialTimeout(to.Addr, timeout)
}
