package txn

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

// ideal is a metadata store of several brokers whose proposals are applied at once: the real FSM behind a lock.
type ideal struct {
	mu       sync.Mutex
	fsm      *metadata.Replica
	image    atomic.Pointer[metadata.Image]
	signals  map[*metadata.Watcher]func()
	epochs   [3]int64
	ids      int64
	watchers atomic.Int64
	barriers atomic.Int64
	// behind is what the quorum answers to them.
	behind error
}

func newIdeal(t testing.TB, brokers int) *ideal {
	x := &ideal{fsm: metadata.NewReplica(), signals: map[*metadata.Watcher]func(){}}
	var replicas []metadata.BrokerID
	for i := range brokers {
		x.register(t, i)
		replicas = append(replicas, metadata.BrokerID(i))
	}
	require.NoError(t, x.fsm.CreateTopic("t", metadata.TopicID{1}, nil, [][]metadata.BrokerID{replicas, replicas}))
	_, _, err := x.fsm.AllocateProducerIDs()
	require.NoError(t, err)
	x.image.Store(x.fsm.Image())
	return x
}

func (x *ideal) register(t testing.TB, i int) {
	var err error
	x.epochs[i], err = x.fsm.Register(metadata.Registration{
		ID: metadata.BrokerID(i), Incarnation: [16]byte{byte(i) + 1}, Directories: []metadata.DirectoryID{{byte(i) + 1}}, Version: "test",
		Listeners:       []metadata.Listener{{Name: "PLAINTEXT", Host: "localhost", Port: 9092, Protocol: "PLAINTEXT"}},
		MinFeatureLevel: metadata.MinFeatureLevel, MaxFeatureLevel: metadata.MaxFeatureLevel, TailsProven: true,
	}, false)
	require.NoError(t, err)
}

// do changes the metadata and tells the watchers.
func (x *ideal) do(fn func(r *metadata.Replica) error) error {
	x.mu.Lock()
	err := fn(x.fsm)
	x.image.Store(x.fsm.Image())
	var signals []func()
	for _, s := range x.signals {
		signals = append(signals, s)
	}
	x.mu.Unlock()
	for _, signal := range signals {
		signal()
	}
	return err
}

// mark has all markers of an id written.
func (x *ideal) mark(id string) error {
	return x.do(func(r *metadata.Replica) error {
		t := r.Image().Transaction(id)
		return r.MarkersWritten(0, x.epochs[0], []metadata.WrittenMarker{{ProducerID: t.MarkerProducerID, Epoch: t.MarkerEpoch, Number: t.Number, Partitions: t.Partitions}})
	})
}

// idealStore is the store of one broker.
type idealStore struct {
	*ideal
	id metadata.BrokerID
}

func (s idealStore) Image() *metadata.Image { return s.image.Load() }

func (s idealStore) Watch() *metadata.Watcher {
	w, signal := metadata.NewWatcher()
	s.watchers.Add(1)
	s.mu.Lock()
	s.signals[w] = signal
	s.mu.Unlock()
	return w
}

func (s idealStore) ChangeTransaction(change metadata.TransactionChange, done func(uint64, error)) {
	var revision uint64
	err := s.do(func(r *metadata.Replica) (err error) {
		revision, err = r.ChangeTransaction(s.id, s.epochs[s.id], change)
		return err
	})
	done(revision, err)
}

func (s idealStore) AddToTransaction(addition metadata.TransactionAddition, done func(error)) {
	done(s.do(func(r *metadata.Replica) error { return r.AddToTransaction(s.id, s.epochs[s.id], addition) }))
}

func (s idealStore) WhenCurrent(done func(error)) {
	s.barriers.Add(1)
	done(s.behind)
}

func (x *ideal) coordinator(t testing.TB, i int, tune ...func(*Config)) *Coordinator {
	cfg := Config{
		Broker: metadata.BrokerID(i), Incarnation: [16]byte{byte(i) + 1}, Store: idealStore{x, metadata.BrokerID(i)},
		ProducerIDs: func(context.Context) (int64, error) {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.ids++
			return x.ids, nil
		},
	}
	for _, fn := range tune {
		fn(&cfg)
	}
	c, err := New(cfg)
	require.NoError(t, err)
	go func() { _ = c.Run(context.Background()) }()
	t.Cleanup(func() { _ = c.Close() })
	synctest.Wait()
	return c
}

func (c *Coordinator) cores() (n int) {
	c.each(func(*entry) { n++ })
	return n
}

func initialize(c *Coordinator, id string) InitResult {
	done := make(chan InitResult, 1)
	c.InitProducerID(InitRequest{ID: id, Timeout: time.Minute, ProducerID: -1, ProducerEpoch: -1}, func(r InitResult) { done <- r })
	return <-done
}

func addTo(c *Coordinator, id string, p InitResult) error {
	done := make(chan error, 1)
	c.AddPartitions(AddRequest{
		ID: id, ProducerID: p.ProducerID, ProducerEpoch: p.ProducerEpoch, Partitions: []metadata.TopicPartitions{{TopicID: metadata.TopicID{1}, Partitions: []int32{0, 1}}},
	}, func(_ []error, err error) { done <- err })
	return <-done
}

func end(c *Coordinator, id string, p InitResult, version int8, commit bool) EndResult {
	done := make(chan EndResult, 1)
	c.End(EndRequest{ID: id, ProducerID: p.ProducerID, ProducerEpoch: p.ProducerEpoch, Commit: commit, Version: version}, func(r EndResult) { done <- r })
	return <-done
}

// A transaction from its producer's first request to the last marker; nothing is remembered of it while nobody waits.
func TestCoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newIdeal(t, 1)
		c := x.coordinator(t, 0)
		require.True(t, c.Coordinates("a"))
		require.ErrorIs(t, initialize(c, "").Err, ErrInvalidRequest)
		p := initialize(c, "a")
		require.NoError(t, p.Err)
		require.Zero(t, c.cores())
		require.NoError(t, addTo(c, "a", p))
		done := make(chan error, 1)
		c.AddOffsets(AddOffsetsRequest{"a", p.ProducerID, p.ProducerEpoch, "g"}, func(err error) { done <- err })
		require.NoError(t, <-done)
		synctest.Wait()
		require.Equal(t, 1, c.cores(), "its time is measured")
		tx, err := c.Describe("a")
		require.NoError(t, err)
		require.Equal(t, []string{"g"}, tx.Groups)
		list, err := c.List(Filter{States: []metadata.TransactionState{metadata.TransactionOngoing}})
		require.NoError(t, err)
		require.Len(t, list, 1)
		for _, f := range []Filter{
			{States: []metadata.TransactionState{metadata.TransactionEmpty}}, {ProducerIDs: []int64{99}}, {LongerThan: time.Second},
			{Match: func(id string) bool { return id != "a" }},
		} {
			list, err = c.List(f)
			require.NoError(t, err)
			require.Empty(t, list)
		}
		require.NoError(t, end(c, "a", p, 1, true).Err)
		synctest.Wait()
		require.Zero(t, c.cores(), "its markers need nobody")

		// What comes next waits for them.
		next := make(chan error, 1)
		go func() { next <- addTo(c, "a", p) }()
		synctest.Wait()
		require.Empty(t, next)
		require.NoError(t, x.mark("a"))
		require.NoError(t, <-next)
		require.NoError(t, end(c, "a", p, 1, false).Err)
		require.NoError(t, x.mark("a"))
		_, err = c.Describe("b")
		require.ErrorIs(t, err, metadata.ErrTransactionNotFound)
		require.NoError(t, c.Close())
	})
}

// AddPartitionsToTxn that only asks (KIP-890).
func TestVerifyOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newIdeal(t, 1)
		c := x.coordinator(t, 0)
		p := initialize(c, "a")
		r := AddRequest{ID: "a", ProducerID: p.ProducerID, ProducerEpoch: p.ProducerEpoch, VerifyOnly: true, Partitions: []metadata.TopicPartitions{{TopicID: metadata.TopicID{1}, Partitions: []int32{0, 1}}}}
		ask := func() (errs []error, err error) {
			c.AddPartitions(r, func(a []error, b error) { errs, err = a, b })
			return errs, err
		}
		errs, err := ask()
		require.NoError(t, err)
		require.Len(t, errs, 2)
		require.ErrorIs(t, errs[1], ErrAbortable)
		require.NoError(t, addTo(c, "a", p))
		errs, err = ask()
		require.NoError(t, err)
		require.Equal(t, []error{nil, nil}, errs)
		require.NoError(t, end(c, "a", p, 1, true).Err)
		_, err = ask()
		require.ErrorIs(t, err, metadata.ErrConcurrentTransactions)
		r.ProducerEpoch++
		_, err = ask()
		require.ErrorIs(t, err, metadata.ErrProducerFenced)
		r.ProducerID++
		_, err = ask()
		require.ErrorIs(t, err, metadata.ErrInvalidProducerIDMapping)
		require.NoError(t, c.Close())
	})
}

// A transaction hangs no longer than its time-out, whether its coordinator lives, or dies and another takes over.
func TestCoordinatorEndsLateTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newIdeal(t, 2)
		cs := []*Coordinator{x.coordinator(t, 0), x.coordinator(t, 1)}
		ids := []string{"a", "b", "c", "d", "e", "f"}
		var mine []int
		for _, id := range ids {
			for i, c := range cs {
				if c.Coordinates(id) {
					mine = append(mine, i)
					require.NoError(t, addTo(c, id, initialize(c, id)))
				} else {
					require.ErrorIs(t, initialize(c, id).Err, ErrNotCoordinator)
				}
			}
		}
		require.Len(t, mine, len(ids))
		require.Contains(t, mine, 0)
		require.Contains(t, mine, 1)
		time.Sleep(40 * time.Second)
		require.NoError(t, x.do(func(r *metadata.Replica) error { return r.Fence(0, x.epochs[0], true) }))
		synctest.Wait()
		require.Zero(t, cs[0].cores())
		require.Equal(t, len(ids), cs[1].cores())
		time.Sleep(20*time.Second - time.Millisecond)
		require.Equal(t, 6, openTransactions(x))
		time.Sleep(2 * time.Millisecond)
		require.Zero(t, openTransactions(x))
		for _, c := range cs {
			require.NoError(t, c.Close())
		}
	})
}

func openTransactions(x *ideal) (n int) {
	for t := range x.image.Load().ActiveTransactions() {
		if t.State == metadata.TransactionOngoing {
			n++
		}
	}
	return n
}

// P10: an id that nobody uses is forgotten; one with an open transaction is not, nor one whose markers are not written.
func TestCoordinatorForgetsIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newIdeal(t, 1)
		c := x.coordinator(t, 0, func(cfg *Config) {
			cfg.Settings = func() Settings {
				s := DefaultSettings()
				s.IDExpiration, s.MaxTimeout = 24*time.Hour, 100*24*time.Hour
				return s
			}
		})
		initialize(c, "idle")
		p := initialize(c, "decided")
		require.NoError(t, addTo(c, "decided", p))
		require.NoError(t, end(c, "decided", p, 1, true).Err)
		done := make(chan InitResult, 1)
		c.InitProducerID(InitRequest{ID: "open", Timeout: 90 * 24 * time.Hour, ProducerID: -1}, func(r InitResult) { done <- r })
		require.NoError(t, addTo(c, "open", <-done))
		time.Sleep(23 * time.Hour)
		require.NotNil(t, x.image.Load().Transaction("idle"))
		time.Sleep(3 * time.Hour)
		require.Nil(t, x.image.Load().Transaction("idle"))
		require.NotNil(t, x.image.Load().Transaction("decided"))
		require.NotNil(t, x.image.Load().Transaction("open"))
		require.NoError(t, c.Close())
	})
}

// L15, P10: a wall clock that jumped makes every id look as if nobody used it. None is forgotten: its producer would be told
// that there is no such id, which it ends of.
func TestClockJumpForgetsNoIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newIdeal(t, 1)
		var jump atomic.Int64
		c := x.coordinator(t, 0, func(cfg *Config) {
			cfg.Wall = func() time.Time { return time.Now().Add(time.Duration(jump.Load())) }
		})
		initialize(c, "idle")
		time.Sleep(50 * time.Minute)
		jump.Store(int64(30 * 24 * time.Hour))
		time.Sleep(50 * time.Minute)
		jump.Store(0) // set right again
		time.Sleep(5 * time.Hour)
		require.NotNil(t, x.image.Load().Transaction("idle"))
		time.Sleep(8 * 24 * time.Hour)
		require.Nil(t, x.image.Load().Transaction("idle"))
		require.NoError(t, c.Close())
	})
}

// Settings and leases.
func TestCoordinatorRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newIdeal(t, 1)
		leased := true
		c := x.coordinator(t, 0, func(cfg *Config) { cfg.Leased = func() bool { return leased } })
		for _, timeout := range []time.Duration{0, -time.Second, 15*time.Minute + time.Millisecond} {
			c.InitProducerID(InitRequest{ID: "a", Timeout: timeout, ProducerID: -1}, func(r InitResult) { require.ErrorIs(t, r.Err, ErrInvalidTimeout) })
		}
		leased = false
		require.ErrorIs(t, initialize(c, "a").Err, ErrNotCoordinator)
		_, err := c.List(Filter{})
		require.ErrorIs(t, err, ErrNotCoordinator)
		leased = true
		p := initialize(c, "a")
		require.NoError(t, addTo(c, "a", p))
		next := make(chan InitResult, 1)
		go func() { next <- initialize(c, "a") }()
		synctest.Wait()
		require.NoError(t, c.Close())
		require.ErrorIs(t, (<-next).Err, ErrNotCoordinator, "what waits is answered")
	})
}

// The first batch of a transaction waits for the markers of the one before, and no longer than it may; who writes without
// transactions pays nothing.
func TestEnlister(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newIdeal(t, 1)
		c := x.coordinator(t, 0)
		e := NewEnlister(idealStore{x, 0}, 500*time.Millisecond, nil, nil)
		watchers := x.watchers.Load()
		p := initialize(c, "a")
		r := EnlistRequest{Membership{"a", p.ProducerID, p.ProducerEpoch}, []metadata.TopicPartitions{{TopicID: metadata.TopicID{1}, Partitions: []int32{0}}}}
		enlist := func() chan error {
			done := make(chan error, 1)
			e.Enlist(r, func(err error) { done <- err })
			return done
		}
		require.False(t, r.Has(x.image.Load(), metadata.TopicID{1}, 0))
		require.NoError(t, <-enlist())
		require.True(t, r.Has(x.image.Load(), metadata.TopicID{1}, 0))
		require.False(t, r.Has(x.image.Load(), metadata.TopicID{1}, 1))
		require.NoError(t, <-enlist())
		require.Equal(t, int8(2), x.image.Load().Transaction("a").Version)
		require.Equal(t, watchers, x.watchers.Load(), "nobody watches while nobody waits")

		p2 := end(c, "a", p, 2, true)
		require.NoError(t, p2.Err)
		require.ErrorIs(t, <-enlist(), metadata.ErrInvalidProducerEpoch, "it is late (P7)")
		r.ProducerEpoch = p2.ProducerEpoch
		first, second := enlist(), enlist()
		synctest.Wait()
		require.Empty(t, first)
		require.Equal(t, watchers+1, x.watchers.Load())
		require.NoError(t, x.mark("a"))
		require.NoError(t, <-first)
		require.NoError(t, <-second)

		p3 := end(c, "a", InitResult{ProducerID: p2.ProducerID, ProducerEpoch: p2.ProducerEpoch}, 2, false)
		r.ProducerEpoch = p3.ProducerEpoch
		start := time.Now()
		require.ErrorIs(t, <-enlist(), metadata.ErrConcurrentTransactions)
		require.Equal(t, 500*time.Millisecond, time.Since(start))
		last := enlist()
		synctest.Wait()
		e.Close()
		require.ErrorIs(t, <-last, metadata.ErrConcurrentTransactions)
		require.ErrorIs(t, <-enlist(), ErrUnverified)
		require.NoError(t, c.Close())
	})
}

// P7: a batch may begin a transaction only where the newest metadata says so; it is asked for unless what is here says yes.
func TestVerifier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newIdeal(t, 1)
		c := x.coordinator(t, 0)
		v := NewVerifier(idealStore{x, 0})
		p := initialize(c, "a")
		m := Membership{"a", p.ProducerID, p.ProducerEpoch}
		r := EnlistRequest{m, []metadata.TopicPartitions{{TopicID: metadata.TopicID{1}, Partitions: []int32{0}}}}
		verify := func() chan error {
			done := make(chan error, 1)
			v.Verify(r, func(err error) { done <- err })
			return done
		}
		require.ErrorIs(t, v.MayBegin(m, metadata.TopicID{1}, 0), metadata.ErrInvalidTransactionState)
		require.NoError(t, <-verify())
		require.Equal(t, int64(1), x.barriers.Load())
		x.behind = metadata.ErrTimeout
		err := <-verify()
		require.ErrorIs(t, err, ErrUnverified, "the quorum does not answer")
		require.ErrorIs(t, err, metadata.ErrTimeout)
		require.Equal(t, int64(2), x.barriers.Load())

		require.NoError(t, addTo(c, "a", p))
		require.NoError(t, <-verify())
		require.Equal(t, int64(2), x.barriers.Load(), "the Image says yes")
		require.NoError(t, v.MayBegin(m, metadata.TopicID{1}, 0))
		require.NoError(t, end(c, "a", p, 1, true).Err)
		require.ErrorIs(t, v.MayBegin(m, metadata.TopicID{1}, 0), metadata.ErrConcurrentTransactions)
		require.NoError(t, x.mark("a"))
		require.ErrorIs(t, v.MayBegin(m, metadata.TopicID{1}, 0), metadata.ErrInvalidTransactionState)
		m.ProducerEpoch++
		require.ErrorIs(t, v.MayBegin(m, metadata.TopicID{1}, 0), metadata.ErrInvalidProducerEpoch)
		m.ID = "b"
		require.ErrorIs(t, v.MayBegin(m, metadata.TopicID{1}, 0), metadata.ErrInvalidProducerIDMapping)
		require.NoError(t, c.Close())
	})
}

// The way of every transactional batch but the first allocates nothing.
func TestMembershipDoesNotAllocate(t *testing.T) {
	x := newIdeal(t, 1)
	require.NoError(t, x.do(func(r *metadata.Replica) error {
		_, err := r.ChangeTransaction(0, x.epochs[0], metadata.TransactionChange{
			ID: "a", ProducerID: 1, LastProducerID: -1, LastProducerEpoch: -1, MarkerProducerID: -1, MarkerEpoch: -1, Timeout: time.Minute, Version: 2,
		})
		if err != nil {
			return err
		}
		return r.AddToTransaction(0, x.epochs[0], metadata.TransactionAddition{
			ID: "a", ProducerID: 1, Version: 2, Partitions: []metadata.TopicPartitions{{TopicID: metadata.TopicID{1}, Partitions: []int32{0}}},
		})
	}))
	v := NewVerifier(idealStore{x, 0})
	m, im := Membership{"a", 1, 0}, x.image.Load()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if !m.Has(im, metadata.TopicID{1}, 0) || v.MayBegin(m, metadata.TopicID{1}, 0) != nil {
			t.Fail()
		}
	}))
}
