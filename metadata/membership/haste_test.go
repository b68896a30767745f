package membership

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/stretchr/testify/require"
)

// wires is a network in memory.
type wires struct {
	sync.Mutex
	of map[string]*wire
	// packets counts those that were sent.
	packets int
}

// wire is a member's place in it. A dead one gets and sends nothing.
type wire struct {
	net     *wires
	address *net.UDPAddr
	packets chan *memberlist.Packet
	streams chan net.Conn
	stop    chan struct{}
	closing sync.Once
	dead    bool
}

func (w *wires) wire(i int) *wire {
	end := &wire{
		net: w, address: &net.UDPAddr{IP: net.IPv4(10, 0, 0, byte(i)), Port: 9094},
		packets: make(chan *memberlist.Packet, 1000), streams: make(chan net.Conn), stop: make(chan struct{}),
	}
	w.Lock()
	w.of[end.address.String()] = end
	w.Unlock()
	return end
}

func (w *wire) to(address string) *wire {
	w.net.Lock()
	defer w.net.Unlock()
	other := w.net.of[address]
	if w.dead || other == nil || other.dead {
		return nil
	}
	return other
}

func (w *wire) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return w.address.IP.To4(), w.address.Port, nil
}

func (w *wire) WriteTo(b []byte, address string) (time.Time, error) {
	w.net.Lock()
	w.net.packets++
	w.net.Unlock()
	if other := w.to(address); other != nil {
		other.packets <- &memberlist.Packet{Buf: slices.Clone(b), From: w.address, Timestamp: time.Now()}
	}
	return time.Now(), nil
}

func (w *wire) PacketCh() <-chan *memberlist.Packet { return w.packets }

func (w *wire) DialTimeout(address string, timeout time.Duration) (net.Conn, error) {
	other := w.to(address)
	if other == nil {
		time.Sleep(timeout)
		return nil, errors.New("no answer")
	}
	mine, theirs := net.Pipe()
	select {
	case other.streams <- theirs:
		return mine, nil
	case <-other.stop:
		return nil, errors.New("refused")
	}
}

func (w *wire) StreamCh() <-chan net.Conn { return w.streams }

func (w *wire) Shutdown() error {
	w.closing.Do(func() { close(w.stop) })
	return nil
}

// D5: all notice a death within the times of dataplane.md 11, and news reaches all at once, though nobody ticks at that pace while there is
// none.
func TestNewsAndDeathsSpreadInTime(t *testing.T) {
	for _, c := range []struct {
		members, rounds int
		median, worst   time.Duration
	}{{3, 15, 1100 * time.Millisecond, 2 * time.Second}, {10, 7, 1400 * time.Millisecond, 2500 * time.Millisecond}} {
		t.Run(fmt.Sprint(c.members, " members"), func(t *testing.T) {
			var deaths, updates []time.Duration
			for range c.rounds {
				synctest.Test(t, func(t *testing.T) {
					w := &wires{of: map[string]*wire{}}
					var all []*Membership
					defer func() {
						for _, m := range all {
							require.NoError(t, m.Close())
						}
						time.Sleep(10 * time.Second) // memberlist's own end by themselves
					}()
					for i := range c.members {
						m, err := Open(Config{Name: fmt.Sprint("m", i), Transport: w.wire(i + 1), Join: []string{"10.0.0.1:9094"}})
						require.NoError(t, err)
						all = append(all, m)
					}
					await := func(m *Membership, kind EventKind) bool {
						for {
							select {
							case e := <-m.Events():
								if e.Kind == kind {
									return true
								}
							case <-time.After(10 * time.Second):
								return false
							}
						}
					}
					heard := func(kind EventKind) time.Duration {
						began := time.Now()
						for _, m := range all[:c.members-1] {
							require.True(t, await(m, kind))
						}
						return time.Since(began)
					}
					time.Sleep(10 * time.Second)
					for _, m := range all {
						require.Len(t, m.Members(), c.members-1)
						await(m, Clash) // there is none: an update of a member whose coming nobody has read would be part of that
					}
					last := all[c.members-1]
					go func() { _ = last.UpdateMeta([]byte("new")) }()
					updates = append(updates, heard(Update))
					time.Sleep(5 * time.Second)

					w.Lock()
					w.of[last.Self().Addr.String()].dead = true
					w.Unlock()
					deaths = append(deaths, heard(Fail))
				})
			}
			slices.Sort(deaths)
			slices.Sort(updates)
			t.Log("deaths", deaths[len(deaths)/2], deaths[len(deaths)-1], "updates", updates[len(updates)/2], updates[len(updates)-1])
			require.LessOrEqual(t, deaths[len(deaths)/2], c.median)
			require.LessOrEqual(t, deaths[len(deaths)-1], c.worst)
			require.LessOrEqual(t, updates[len(updates)-1], 150*time.Millisecond)
		})
	}
}
