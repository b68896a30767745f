package transport

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// check reports the first broken invariant of the budget whose frames hold charges.
func (b *budget) check(charges []*charge, sources []*source) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var used, overflow int64
	tokens := 0
	for _, c := range charges {
		used += c.main
		overflow += c.overflow
		if c.token {
			tokens++
		} else if c.overflow != 0 {
			return fmt.Errorf("overflow of %d without the token", c.overflow)
		}
		if c.main < 0 || c.overflow < 0 {
			return fmt.Errorf("negative charge %+v", *c)
		}
	}
	switch {
	case used != b.mu.used || overflow != b.mu.overflow:
		return fmt.Errorf("charged %d and %d, counted %d and %d", used, overflow, b.mu.used, b.mu.overflow)
	case b.mu.used > b.main:
		return fmt.Errorf("%d of %d in use", b.mu.used, b.main)
	case tokens > 1 || (tokens == 1) != b.mu.token:
		return fmt.Errorf("%d owners of the token, which is taken: %v", tokens, b.mu.token)
	}
	for _, s := range sources {
		l, held := b.laneLocked(s), int64(0)
		for _, c := range charges {
			if c.source == s {
				held += c.main
			}
		}
		grower, entrant := l.growers.first, l.entrants.first
		switch {
		case held != l.held:
			return fmt.Errorf("a source holds %d, counted %d", held, l.held)
		case grower != nil && b.tokenLocked(l):
			return fmt.Errorf("a frame waits to grow, and the token is free")
		case grower != nil && b.fitsLocked(l, grower.n):
			return fmt.Errorf("a frame waits to grow, and there is room")
		case grower == nil && entrant != nil && b.fitsLocked(l, entrant.n):
			return fmt.Errorf("a new frame waits, and there is room")
		case (grower != nil || entrant != nil) && !slices.Contains(b.mu.waiting, l):
			return fmt.Errorf("a source with frames that wait is not in the round")
		}
	}
	return nil
}

// TestBudgetModel drives the budget with random frames that enter, grow, shrink, are cancelled and released, and checks after each step that
// charges add up, that nobody waits without need, and in the end that everybody got what they asked for.
func TestBudgetModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(*testing.T) {
			b := newBudget(int64(rapid.IntRange(minBudgetBytes, 400<<10).Draw(rt, "total")))
			type frame struct {
				c       charge
				waiting bool
				cancel  context.CancelFunc
			}
			var frames []*frame
			var held []*charge
			var mu sync.Mutex // of the fields the goroutines of waits write
			collect := func() []*charge {
				held = held[:0]
				for _, f := range frames {
					held = append(held, &f.c)
				}
				return held
			}
			drop := func(f *frame) {
				for i := range frames {
					if frames[i] == f {
						frames = append(frames[:i], frames[i+1:]...)
						return
					}
				}
			}
			entering := 0
			sources := []*source{nil, newSource(), newSource()}
			for range rapid.IntRange(1, 60).Draw(rt, "steps") {
				var idle, busy []*frame
				mu.Lock()
				for _, f := range frames {
					if f.waiting {
						busy = append(busy, f)
					} else {
						idle = append(idle, f)
					}
				}
				mu.Unlock()
				switch op := rapid.IntRange(0, 9).Draw(rt, "op"); {
				case op < 3 || len(idle) == 0 && len(busy) == 0:
					n := int64(rapid.IntRange(1, int(b.main)).Draw(rt, "enter"))
					from := rapid.SampledFrom(sources).Draw(rt, "source")
					ctx, cancel := context.WithCancel(context.Background())
					entering++
					go func() {
						defer cancel()
						c, err := b.enter(ctx, from, n)
						mu.Lock()
						defer mu.Unlock()
						entering--
						if err == nil {
							frames = append(frames, &frame{c: c, cancel: func() {}})
						}
					}()
				case op < 7 && len(idle) > 0:
					f := idle[rapid.IntRange(0, len(idle)-1).Draw(rt, "grower")]
					n := int64(rapid.IntRange(1, 500<<10).Draw(rt, "grow"))
					ctx, cancel := context.WithCancel(context.Background())
					f.waiting, f.cancel = true, cancel
					go func() {
						err := b.grow(ctx, &f.c, n)
						cancel()
						if err != nil {
							b.release(&f.c)
						}
						mu.Lock()
						defer mu.Unlock()
						if f.waiting = false; err != nil {
							drop(f)
						}
					}()
				case op < 8 && len(idle) > 0:
					f := idle[rapid.IntRange(0, len(idle)-1).Draw(rt, "shrinker")]
					b.shrink(&f.c, (f.c.main+f.c.overflow)/2)
				case op < 9 && len(busy) > 0:
					busy[rapid.IntRange(0, len(busy)-1).Draw(rt, "cancelled")].cancel()
				case len(idle) > 0:
					f := idle[rapid.IntRange(0, len(idle)-1).Draw(rt, "released")]
					mu.Lock()
					drop(f)
					mu.Unlock()
					b.release(&f.c)
				}
				synctest.Wait()
				mu.Lock()
				err := b.check(collect(), sources)
				mu.Unlock()
				if err != nil {
					rt.Fatal(err)
				}
			}
			// Whoever holds memory and doesn't wait gives it back in the end: then nobody waits for ever.
			for {
				synctest.Wait()
				mu.Lock()
				var done *frame
				for _, f := range frames {
					if !f.waiting {
						done = f
					}
				}
				left := len(frames) + entering
				mu.Unlock()
				if left == 0 {
					break
				}
				if done == nil {
					rt.Fatalf("%d frames wait for ever", left)
				}
				mu.Lock()
				drop(done)
				mu.Unlock()
				b.release(&done.c)
			}
			if b.inUse() != 0 {
				rt.Fatalf("%d bytes left", b.inUse())
			}
		})
	})
}

// TestBackpressure: at the budget, connections stop reading, whoever is in work can finish, and then all others do.
func TestBackpressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var parked []*Request
		s := startServer(t, handlerFunc(func(r *Request) {
			r.Frame.Retain() // as the log does while the records wait to be written
			mu.Lock()
			parked = append(parked, r)
			mu.Unlock()
		}), func(cfg *Config) { cfg.FrameBudgetBytes = 256 << 10 })
		b := s.listeners[0].budget
		const clients = 40
		var answered sync.WaitGroup
		for range clients {
			c := s.dial()
			go c.send(produceFrame(1, -1, 16<<10))
			answered.Go(func() { c.expect("1 ok") })
		}
		synctest.Wait()
		n := int(b.main / int64(frameClasses[2]))
		require.Len(t, parked, n)
		require.EqualValues(t, clients-n, b.waitCount())
		for done := 0; done < clients; {
			synctest.Wait()
			require.LessOrEqual(t, b.inUse(), b.main)
			mu.Lock()
			batch := parked
			parked = nil
			mu.Unlock()
			require.NotEmpty(t, batch, "%d of %d answered, and nothing moves", done, clients)
			for _, r := range batch {
				r.Frame.Release()
				r.Reply(Message(respond("ok")))
				done++
			}
		}
		answered.Wait()
	})
}

// TestSmallAnswersLeaveBeforeAWait: an answer that was held back for the request behind it leaves before the reader waits for memory.
func TestSmallAnswersLeaveBeforeAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, handlerFunc(answering), func(cfg *Config) { cfg.FrameBudgetBytes = minBudgetBytes })
		b := s.listeners[0].budget
		c, ok := b.tryEnter(nil, b.main-1<<10, b.main)
		require.True(t, ok)
		client := s.dial()
		go client.send(metadataFrame(1, "a"), metadataFrame(2, string(bytes.Repeat([]byte{'x'}, 2000))))
		client.expect("1 ok")
		synctest.Wait()
		client.nothing()
		b.release(&c)
		client.expect("2 ok")
	})
}

// TestLargeFrameAlone: a frame beyond the whole budget is let in, one at a time, while small requests go on; and many that grow at once
// and hold all of the budget half-read don't wait for each other for ever.
func TestLargeFrameAlone(t *testing.T) {
	seeds := uint64(20)
	if raceBuild {
		seeds = 4
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 0))
			const total, largest = 1 << 20, 6 << 20
			var peak atomic.Int64
			var b *budget
			s := startServer(t, handlerFunc(func(r *Request) {
				peak.Store(max(peak.Load(), b.inUse()))
				r.Frame.Retain()
				r.Go(func() {
					time.Sleep(time.Duration(r.CorrelationID) * time.Millisecond)
					for _, x := range r.Frame.Bytes()[len(r.Frame.Bytes())-100:] {
						if x != 'r' && x != 0 {
							t.Error("a frame's bytes were overwritten")
							break
						}
					}
					r.Frame.Release()
					r.Reply(Message(respond("ok")))
				})
			}), func(cfg *Config) { cfg.FrameBudgetBytes = total })
			b = s.listeners[0].budget
			var clients sync.WaitGroup
			for i := range 12 {
				c := s.dial()
				size := rnd.IntN(largest)
				if i%2 == 0 {
					size = rnd.IntN(200 << 10)
				}
				f := produceFrame(int32(rnd.IntN(2000)), -1, size)
				step := 1 + rnd.IntN(300<<10)
				clients.Go(func() {
					go func() {
						for rest := f; len(rest) > 0; {
							n := min(len(rest), step)
							c.send(rest[:n])
							rest = rest[n:]
						}
					}()
					_, text := c.receiveText()
					if text != "ok" {
						t.Error(text)
					}
				})
			}
			clients.Wait()
			// The one frame beyond the budget has the class that holds the largest request, and below it the class that it
			// outgrew, for as long as it is copied.
			class := classOf(largest)
			require.LessOrEqual(t, peak.Load(), int64(total/4*3+frameClasses[class]+frameClasses[class-1]))
			require.Greater(t, peak.Load(), int64(0))
		})
	}
}

// TestClientsCantStarveBrokers: when the clients' requests fill their budget, followers' fetches, on which those may depend, still get in.
func TestClientsCantStarveBrokers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var parked []*Request
		fetched := false
		s := startServer(t, handlerFunc(func(r *Request) {
			mu.Lock()
			defer mu.Unlock()
			if r.Conn.Listener().Internal() {
				r.Reply(Message(respond("fetched")))
				for _, p := range parked {
					p.Frame.Release()
					p.Reply(Message(respond("replicated")))
				}
				parked, fetched = nil, true
				return
			}
			if fetched {
				r.Reply(Message(respond("replicated")))
				return
			}
			parked = append(parked, r)
			r.Frame.Retain()
		}), func(cfg *Config) {
			cfg.FrameBudgetBytes = 256 << 10
			cfg.Listeners = []ListenerConfig{
				{Name: "PLAINTEXT", Protocol: Plaintext, Listener: newMemListener()},
				{Name: "CONTROLLER", Protocol: Plaintext, Listener: newMemListener(), Internal: true},
			}
		})
		b := s.listeners[0].budget
		n := int(b.main / int64(frameClasses[2]))
		var clients sync.WaitGroup
		for range n + 1 {
			c := s.dial()
			go c.send(produceFrame(1, -1, 16<<10))
			clients.Go(func() { c.expect("1 replicated") })
			synctest.Wait()
		}
		require.Len(t, parked, n)
		require.EqualValues(t, 1, b.waitCount())
		raw, err := s.mem[1].Dial()
		require.NoError(t, err)
		follower := &testClient{t: t, Conn: raw}
		defer raw.Close()
		go follower.send(metadataFrame(1, string(bytes.Repeat([]byte{'x'}, 10<<10))))
		follower.expect("1 fetched")
		clients.Wait()
	})
}

// TestWaitingForMemoryIsNotTheClientsFault: the time a half-read frame waits for its next step doesn't count against its client.
func TestWaitingForMemoryIsNotTheClientsFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, handlerFunc(answering), func(cfg *Config) { cfg.FrameBudgetBytes = 1 << 20 })
		b := s.listeners[0].budget
		c := s.dial()
		go c.send(metadataFrame(1, "x"))
		c.expect("1 ok")
		var token charge
		other, ok := b.tryEnter(nil, b.main-64<<10, b.main)
		require.True(t, ok)
		require.NoError(t, b.grow(context.Background(), &token, b.main))
		go c.send(produceFrame(2, -1, 1<<20))
		time.Sleep(10 * s.cfg.FrameTimeout)
		synctest.Wait()
		require.EqualValues(t, 1, b.waitCount())
		b.release(&token)
		c.expect("2 ok")
		b.release(&other)
	})
}

// TestCancelledWaitMakesRoom: whoever stood behind a wait that was given up is looked at again.
func TestCancelledWaitMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(minBudgetBytes)
		held, ok := b.tryEnter(nil, b.main/2, b.main)
		require.True(t, ok)
		ctx, cancel := context.WithCancelCause(context.Background())
		var small charge
		go func() {
			_, err := b.enter(ctx, nil, b.main)
			require.ErrorIs(t, err, ErrPeerClosed)
		}()
		synctest.Wait()
		go func() { small, _ = b.enter(context.Background(), nil, 1) }()
		synctest.Wait()
		require.Zero(t, small.main, "it stands behind the other")
		cancel(ErrPeerClosed)
		synctest.Wait()
		require.EqualValues(t, 1, small.main)
		b.release(&small)
		b.release(&held)
		require.Zero(t, b.inUse())
	})
}

// TestFrameReferences: memory goes back with the last reference, and mistakes with references are found.
func TestFrameReferences(t *testing.T) {
	b := newBudget(minBudgetBytes)
	c, ok := b.tryEnter(nil, frameBytes(100), b.main)
	require.True(t, ok)
	f := newFrame(b, c, 100)
	f.Retain()
	f.Release()
	require.EqualValues(t, 1<<10, b.inUse())
	f.Release()
	require.Zero(t, b.inUse())
	require.Panics(t, f.Release)
	require.Panics(t, f.Retain)
}
