package group

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

// ideal is a metadata store of several brokers whose proposals are applied at once: the real FSM behind a lock.
type ideal struct {
	mu      sync.Mutex
	fsm     *metadata.Replica
	image   atomic.Pointer[metadata.Image]
	signals []func()
	epochs  [3]int64
}

func newIdeal(t testing.TB, brokers int) *ideal {
	x := &ideal{fsm: metadata.NewReplica()}
	for i := range brokers {
		epoch, err := x.fsm.Register(registration(metadata.BrokerID(i), 1), false)
		require.NoError(t, err)
		x.epochs[i] = epoch
	}
	x.image.Store(x.fsm.Image())
	return x
}

// do changes the metadata and tells the watchers.
func (x *ideal) do(fn func(r *metadata.Replica) error) error {
	x.mu.Lock()
	err := fn(x.fsm)
	x.image.Store(x.fsm.Image())
	signals := x.signals
	x.mu.Unlock()
	for _, signal := range signals {
		signal()
	}
	return err
}

// idealStore is the store of one broker.
type idealStore struct {
	*ideal
	id metadata.BrokerID
}

func (s idealStore) Image() *metadata.Image { return s.image.Load() }

func (s idealStore) Watch() *metadata.Watcher {
	w, signal := metadata.NewWatcher()
	s.mu.Lock()
	s.signals = append(s.signals, signal)
	s.mu.Unlock()
	return w
}

func (s idealStore) ChangeGroup(change metadata.GroupChange, done func(uint64, error)) {
	change.Broker, change.BrokerEpoch = s.id, s.epochs[s.id]
	var revision uint64
	err := s.do(func(r *metadata.Replica) (err error) { revision, err = r.ChangeGroup(change); return err })
	done(revision, err)
}

func (s idealStore) CommitOffsets(commit metadata.OffsetCommit, done func([]error, error)) {
	var entries []error
	err := s.do(func(r *metadata.Replica) (err error) {
		entries, err = r.CommitOffsets(s.id, s.epochs[s.id], commit)
		return err
	})
	done(entries, err)
}

func (s idealStore) CommitTransactionOffsets(commit metadata.TransactionOffsets, done func([]error, error)) {
	var entries []error
	err := s.do(func(r *metadata.Replica) (err error) {
		entries, err = r.CommitTransactionOffsets(s.id, s.epochs[s.id], commit)
		return err
	})
	done(entries, err)
}

func (s idealStore) DeleteOffsets(deletion metadata.OffsetDeletion, done func(error)) {
	done(s.do(func(r *metadata.Replica) error { return r.DeleteOffsets(s.id, s.epochs[s.id], deletion) }))
}

// coordinators starts one for each broker, with no initial delay.
func (x *ideal) coordinators(t testing.TB, brokers int, leased func() bool) []*Coordinator {
	var all []*Coordinator
	for i := range brokers {
		c, err := New(Config{
			Broker: metadata.BrokerID(i), Incarnation: [16]byte{byte(i) + 1, 1}, Store: idealStore{x, metadata.BrokerID(i)}, Leased: leased,
			Settings: func() Settings { s := DefaultSettings(); s.InitialRebalanceDelay = 0; return s },
		})
		require.NoError(t, err)
		go func() { _ = c.Run(context.Background()) }()
		t.Cleanup(func() { _ = c.Close() })
		all = append(all, c)
	}
	return all
}

func join(c *Coordinator, group, member string) JoinResult {
	done := make(chan JoinResult, 1)
	c.Join(JoinRequest{
		Group: group, Member: member, ClientID: "c", SessionTimeout: 10 * time.Second, RebalanceTimeout: 30 * time.Second,
		ProtocolType: "test", Protocols: []Protocol{{Name: "p", Metadata: make([]byte, 100)}},
	}, func(r JoinResult) { done <- r })
	return <-done
}

func syncGroup(c *Coordinator, group string, j JoinResult) SyncResult {
	r := SyncRequest{Group: group, Member: j.Member, Generation: j.Generation}
	for _, m := range j.Members {
		r.Assignments = append(r.Assignments, Assignment{Member: m.ID, Bytes: make([]byte, 100)})
	}
	done := make(chan SyncResult, 1)
	c.Sync(r, func(r SyncResult) { done <- r })
	return <-done
}

// stable makes a group of one member stable at whoever coordinates it.
func stable(t testing.TB, x *ideal, all []*Coordinator, group string) (*Coordinator, JoinResult) {
	id, _ := x.image.Load().Coordinator(metadata.GroupCoordinator, group)
	j := join(all[id], group, "")
	require.NoError(t, j.Err)
	require.NoError(t, syncGroup(all[id], group, j).Err)
	return all[id], j
}

// A planned move resumes, a death starts one generation, and the broker that lost the group answers nothing for it (G5, G6).
func TestCoordinatorMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newIdeal(t, 2)
		all := x.coordinators(t, 2, nil)
		synctest.Wait()
		c, j := stable(t, x, all, "g")
		heartbeat := func(c *Coordinator) error {
			return c.Heartbeat(HeartbeatRequest{Group: "g", Member: j.Member, Generation: j.Generation})
		}
		require.NoError(t, heartbeat(c))
		other := all[1-c.cfg.Broker]
		require.ErrorIs(t, heartbeat(other), ErrNotCoordinator)

		require.NoError(t, x.do(func(r *metadata.Replica) error { return r.Maintain(c.cfg.Broker, x.epochs[c.cfg.Broker], true) }))
		synctest.Wait()
		require.ErrorIs(t, heartbeat(c), ErrNotCoordinator)
		require.NoError(t, heartbeat(other), "the generation goes on")
		time.Sleep(9 * time.Second)
		require.NoError(t, heartbeat(other), "a full session")

		require.NoError(t, x.do(func(r *metadata.Replica) error { return r.Maintain(c.cfg.Broker, x.epochs[c.cfg.Broker], false) }))
		synctest.Wait()
		require.NoError(t, heartbeat(c))
		require.NoError(t, x.do(func(r *metadata.Replica) error { return r.Fence(c.cfg.Broker, x.epochs[c.cfg.Broker], true) }))
		synctest.Wait()
		require.ErrorIs(t, heartbeat(other), ErrRebalanceInProgress)
		next := join(other, "g", j.Member)
		require.NoError(t, next.Err)
		require.Equal(t, j.Generation+1, next.Generation)
		require.Equal(t, j.Member, next.Member)
		closeAll(all)
	})
}

func closeAll(all []*Coordinator) {
	for _, c := range all {
		_ = c.Close()
	}
}

// A silent member goes when its session ends, and with the last one the group has nothing left in memory (I20, I22).
func TestSessionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newIdeal(t, 1)
		all := x.coordinators(t, 1, nil)
		synctest.Wait()
		c, j := stable(t, x, all, "g")
		time.Sleep(8 * time.Second)
		require.NoError(t, c.Heartbeat(HeartbeatRequest{Group: "g", Member: j.Member, Generation: j.Generation}))
		time.Sleep(9 * time.Second)
		require.Len(t, x.image.Load().Group("g").Members, 1)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		g := x.image.Load().Group("g")
		require.Empty(t, g.Members)
		require.NotZero(t, g.EmptySince)
		require.Nil(t, c.lookup("g", false))
		closeAll(all)
	})
}

// While the lease towards the controller has lapsed nothing is answered and nobody is given up; then everyone has a full
// session again (D5, G6).
func TestLapsedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newIdeal(t, 1)
		var lapsed atomic.Bool
		all := x.coordinators(t, 1, func() bool { return !lapsed.Load() })
		synctest.Wait()
		c, j := stable(t, x, all, "g")
		lapsed.Store(true)
		heartbeat := func() error {
			return c.Heartbeat(HeartbeatRequest{Group: "g", Member: j.Member, Generation: j.Generation})
		}
		require.ErrorIs(t, heartbeat(), ErrNotCoordinator)
		_, err := c.Fetch(FetchRequest{Group: "g", All: true})
		require.ErrorIs(t, err, ErrNotCoordinator)
		time.Sleep(time.Minute)
		lapsed.Store(false)
		time.Sleep(9 * time.Second)
		require.NoError(t, heartbeat())
		closeAll(all)
	})
}

// Requests for groups that are not there leave nothing behind (I23).
func TestUnknownGroupsLeaveNothing(t *testing.T) {
	x := newIdeal(t, 1)
	c := x.coordinators(t, 1, nil)[0]
	for i := range 100 {
		g := fmt.Sprint("no", i)
		require.ErrorIs(t, c.Heartbeat(HeartbeatRequest{Group: g, Member: "m", Generation: 1}), ErrUnknownMember)
		c.Leave(LeaveRequest{Group: g, Members: []LeavingMember{{Member: "m"}}}, func(errs []error, err error) {
			require.NoError(t, err)
			require.ErrorIs(t, errs[0], ErrUnknownMember)
		})
		_, err := c.Describe(g)
		require.ErrorIs(t, err, ErrGroupNotFound)
	}
	n := 0
	c.each(func(*entry) { n++ })
	require.Zero(t, n)
}

// trio makes stable groups of three members.
func trio(t testing.TB, c *Coordinator, groups int) {
	var wait sync.WaitGroup
	for i := range groups {
		name := fmt.Sprint("g", i)
		wait.Go(func() {
			first := join(c, name, "")
			for _, id := range []string{first.Member, "", ""} {
				wait.Go(func() {
					for { // as clients do
						j := join(c, name, id)
						if !assert.NoError(t, j.Err) {
							return
						}
						id = j.Member
						err := syncGroup(c, name, j).Err
						for err == nil {
							if g := c.cfg.Store.Image().Group(name); len(g.Members) == 3 && g.State == metadata.GroupStable && g.Generation == j.Generation {
								return
							}
							time.Sleep(time.Second)
							err = c.Heartbeat(HeartbeatRequest{Group: name, Member: id, Generation: j.Generation})
						}
						if !assert.ErrorIs(t, err, ErrRebalanceInProgress) {
							return
						}
					}
				})
			}
		})
	}
	wait.Wait()
}

// A group of three members takes at most 64 KiB at its coordinator.
func TestMemoryOfAGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newIdeal(t, 1)
		all := x.coordinators(t, 1, nil)
		synctest.Wait()
		heap := func() uint64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		before := heap()
		const groups = 200
		trio(t, all[0], groups)
		per := (heap() - before) / groups
		t.Logf("%d bytes for each group of three", per)
		require.Less(t, per, uint64(64<<10))
		require.Equal(t, 3, len(x.image.Load().Group("g0").Members))
		closeAll(all)
	})
}

// BenchmarkHeartbeat is one heartbeat; 1,000 groups of three members send 1,000 of them in a second.
func BenchmarkHeartbeat(b *testing.B) {
	x := newIdeal(b, 1)
	c := x.coordinators(b, 1, nil)[0]
	j := join(c, "g", "")
	require.NoError(b, syncGroup(c, "g", j).Err)
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Heartbeat(HeartbeatRequest{Group: "g", Member: j.Member, Generation: j.Generation}); err != nil {
			b.Fatal(err)
		}
	}
}
