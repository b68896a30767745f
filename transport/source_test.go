package transport

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// addressedConn is a connection from an address.
type addressedConn struct {
	net.Conn
	from net.TCPAddr
}

func (c addressedConn) RemoteAddr() net.Addr { return &c.from }

// dialFrom connects as if from another machine. The server has one listener, in memory.
func (s *testServer) dialFrom(ip string) *testClient {
	s.t.Helper()
	s.mem[0].wrap = func(c net.Conn) net.Conn {
		return addressedConn{c, net.TCPAddr{IP: net.ParseIP(ip), Port: 1000}}
	}
	return s.dial()
}

// half sends half of a frame without waiting for it to be taken.
func (c *testClient) half(size int) {
	f := produceFrame(1, -1, size)
	go func() { _, _ = c.Write(f[:len(f)/2]) }()
}

// TestHalfFramesOfOneAddress: five hundred connections of one address that send half of their frames leave room for those of another one, which
// waits for nobody; and their own address gets on too, in time (I23, N1).
func TestHalfFramesOfOneAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, handlerFunc(answering), func(cfg *Config) { cfg.FrameBudgetBytes = 24 << 20 })
		b := s.listeners[0].budget
		for range 500 {
			s.dialFrom("192.0.2.66").half(1 << 20)
		}
		synctest.Wait()
		require.LessOrEqual(t, b.inUse(), b.main+b.main/3) // the token's owner may have more
		require.Positive(t, b.waitCount(), "the attack fills its part")

		good := s.dialFrom("192.0.2.1")
		began := time.Now()
		for i := range int32(20) {
			go good.send(produceFrame(i, -1, 1<<20))
			good.expect(fmt.Sprintf("%d ok", i))
		}
		require.Zero(t, time.Since(began), "the good client had to wait")

		beside := s.dialFrom("192.0.2.66")
		began = time.Now()
		go beside.send(produceFrame(7, -1, 16<<10))
		beside.expect("7 ok")
		// It stands behind five hundred of its own address, each of which would have FrameTimeout if nobody waited.
		require.Less(t, time.Since(began), 5*time.Minute, "pressed frames have less time")
	})
}

// TestPressedFrames: a frame that holds memory has its whole time while nobody asks for that memory, and little while somebody does; after that
// its address gets less.
func TestPressedFrames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, handlerFunc(answering), func(cfg *Config) {
			cfg.FrameBudgetBytes, cfg.FirstRequestTimeout = 4<<20, time.Minute
		})
		b := s.listeners[0].budget
		slow := s.dialFrom("192.0.2.66")
		slow.half(2 << 20)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		require.Len(t, s.conns(), 1, "nobody waits")

		// Another one takes what is left, and a third one waits.
		held, ok := b.tryEnter(nil, b.main-b.inUse(), b.main)
		require.True(t, ok)
		good := s.dialFrom("192.0.2.1")
		began := time.Now()
		go good.send(produceFrame(1, -1, 16<<10))
		good.expect("1 ok")
		require.LessOrEqual(t, time.Since(began), pressAfter+pressedTimeout+time.Second)
		synctest.Wait() // the memory is free before the connection that held it is counted
		require.EqualValues(t, 1, s.rejected(rejectFirstRequest))
		b.release(&held)
		synctest.Wait()
		require.Len(t, s.conns(), 1)
		s.mu.Lock()
		defer s.mu.Unlock()
		for ip, from := range s.mu.sources {
			require.Equal(t, ip.String() == "192.0.2.66", b.distrusts(&from.frames), "%v", ip)
		}
	})
}

// TestDistrust: an address whose pressed frame did not arrive has a tenth of what is left, for a minute, and the token after others.
func TestDistrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(4 << 20)
		bad, good := newSource(), newSource()
		b.distrust(bad)
		b.distrust(nil)
		var held []charge
		enter := func(s *source, n int64) int {
			for i := 0; ; i++ {
				c, ok := b.tryEnter(s, n, b.main)
				if !ok {
					return i
				}
				held = append(held, c)
			}
		}
		require.Equal(t, 4, enter(bad, 64<<10), "of 48")
		require.Equal(t, 29, enter(good, 64<<10), "two thirds of the rest")
		b.mu.Lock()
		require.True(t, b.tokenLocked(&bad.frames), "nobody else asks")
		b.mu.waiting = append(b.mu.waiting, &good.frames)
		good.frames.growers.push(&waiter{})
		require.False(t, b.tokenLocked(&bad.frames))
		require.True(t, b.tokenLocked(&good.frames))
		good.frames.growers, b.mu.waiting = waiters{}, nil
		b.mu.Unlock()
		for i := range held {
			b.release(&held[i])
		}
		time.Sleep(distrustedFor + time.Second)
		held = nil
		require.Equal(t, 32, enter(bad, 64<<10), "two thirds, as everybody")
	})
}

// TestTurnsGoRound: a turn goes from one address to the next, however many connections each of them has, and within an address in the order of
// arrival (N8).
func TestTurnsGoRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := &turns{}
		turns.mu.free = 1
		turns.take(nil, nil)
		var mu sync.Mutex
		var order []string
		wait := func(name string, s *source) {
			go func() {
				turns.take(s, &turnWaiter{ready: make(chan struct{}, 1)})
				mu.Lock()
				defer mu.Unlock()
				order = append(order, name)
			}()
			synctest.Wait()
		}
		many, few := newSource(), newSource()
		for i := range 4 {
			wait(fmt.Sprintf("many%d", i), many)
		}
		wait("few0", few)
		wait("few1", few)
		wait("other", nil)
		for range 7 {
			turns.give()
			synctest.Wait()
		}
		require.Equal(t, []string{"many0", "few0", "other", "many1", "few1", "many2", "many3"}, order)
		turns.give()
		require.Equal(t, 1, turns.mu.free)
		require.Empty(t, turns.mu.waiting)
	})
}

// TestChunksOfOneAddress: connections of one address that don't read hold half of the large chunks at most, and none when they are done (N8).
func TestChunksOfOneAddress(t *testing.T) {
	p := &chunks{max: 8}
	bad, good := newSource(), newSource()
	take := func(s *source) (large int) {
		for range 20 {
			b := p.get(s, 1<<20)
			if cap(b.b) == chunkCapacity {
				large++
				defer p.put(s, b)
			}
		}
		return large
	}
	require.Equal(t, 4, take(bad))
	require.Zero(t, p.out.Load())
	require.Zero(t, bad.chunks.Load())
	var held []*buffer
	for range 4 {
		held = append(held, p.get(bad, 1<<20))
	}
	require.Equal(t, 2, take(good), "half of what the other one left")
	for _, b := range held {
		p.put(bad, b)
	}
	require.Equal(t, 8, take(nil), "connections without an address are not bounded")
	require.Zero(t, p.out.Load())
}

// TestRejectedConnectionsAreSpaced: an address that connects again as soon as it is thrown out is thrown out at a bounded rate (N6), the first
// ones at once.
func TestRejectedConnectionsAreSpaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, handlerFunc(answering), nil)
		http := func(ip string) {
			c := s.dialFrom(ip)
			go func() { _, _ = c.Write([]byte("GET / HTTP/1.1\r\n\r\n")) }()
			require.Empty(t, c.ends())
		}
		began := time.Now()
		for range rejectBurst {
			http("192.0.2.66")
		}
		require.Zero(t, time.Since(began), "a few are closed at once")
		for range 100 {
			http("192.0.2.66")
		}
		require.Equal(t, 2*time.Second, time.Since(began).Round(100*time.Millisecond))
		http("192.0.2.1")
		require.Less(t, time.Since(began), 2100*time.Millisecond, "another address doesn't wait")

		// However many there are at once, none is kept for long, and a server that stops waits for none.
		began = time.Now()
		var all sync.WaitGroup
		for range 2000 {
			c := s.dialFrom("192.0.2.66")
			all.Go(func() {
				go func() { _, _ = c.Write([]byte("GET / HTTP/1.1\r\n\r\n")) }()
				c.ends()
			})
		}
		all.Wait()
		require.LessOrEqual(t, time.Since(began), maxCloseDelay)
	})
}
