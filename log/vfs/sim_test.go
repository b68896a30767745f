package vfs

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// simRun lets four tasks count under a lock and hand a token round, and returns the trace.
func simRun(t *testing.T, seed uint64, tasks Tasks, run func()) (trace []string) {
	lock := tasks.Locker()
	cond := tasks.Cond(lock)
	inside, turn := 0, 0
	for i := range 4 {
		tasks.Go(fmt.Sprint("task", i), func() {
			for range 5 {
				lock.Lock()
				inside++
				require.Equal(t, 1, inside)
				for turn%4 != i {
					inside--
					cond.Wait()
					inside++
				}
				require.Equal(t, 1, inside)
				turn++
				trace = append(trace, fmt.Sprint(i))
				inside--
				cond.Broadcast()
				lock.Unlock()
			}
		})
	}
	run()
	require.Equal(t, 20, turn)
	return trace
}

// TestSimReplays: the same seed makes the same steps, other seeds make others, and locks and conditions do what those
// of package sync do.
func TestSimReplays(t *testing.T) {
	steps := func(seed uint64) string {
		sim := NewSim(seed)
		if seed%2 == 0 {
			sim.Stall(5, 20)
		}
		var trace []string
		sim.Trace(func(task, op string) { trace = append(trace, task+" "+op) })
		simRun(t, seed, sim, func() { sim.Run(10000) })
		require.True(t, sim.Idle())
		require.Empty(t, sim.Blocked())
		return strings.Join(trace, "\n")
	}
	different := map[string]bool{}
	for seed := range uint64(50) {
		s := steps(seed)
		require.Equal(t, s, steps(seed))
		different[s] = true
	}
	require.Len(t, different, 50)
}

// TestSimDeadlock: two tasks that take two locks in opposite order are caught by some seed, and named.
func TestSimDeadlock(t *testing.T) {
	found := 0
	for seed := range uint64(100) {
		sim := NewSim(seed)
		a, b := sim.Locker(), sim.Locker()
		both := 0
		take := func(first, second sync.Locker) func() {
			return func() {
				first.Lock()
				defer first.Unlock()
				second.Lock()
				defer second.Unlock()
				both++
			}
		}
		sim.Go("ab", take(a, b))
		sim.Go("ba", take(b, a))
		sim.Run(100)
		require.True(t, sim.Idle())
		if list := sim.Blocked(); len(list) > 0 {
			require.Equal(t, []string{"ab: lock held by ba", "ba: lock held by ab"}, list)
			require.Equal(t, 1, sim.Running("ab"))
			found++
		}
		sim.Abandon()
	}
	require.Greater(t, found, 5)
	require.Less(t, found, 95)
}

// TestSimAbandon: a crash ends tasks wherever they stand; what their deferred functions do reaches neither the file
// system nor a lock, and no goroutine stays behind.
func TestSimAbandon(t *testing.T) {
	before := runtime.NumGoroutine()
	for seed := range uint64(100) {
		sim := NewSim(seed)
		m := memOf(t, seed)
		m.SetYield(sim.Yield)
		lock := sim.Locker()
		cond := sim.Cond(lock)
		touched := false
		for i := range 4 {
			sim.Go(fmt.Sprint("t", i), func() {
				lock.Lock()
				defer lock.Unlock()
				f, err := m.Create(fmt.Sprint("d/", i))
				require.NoError(t, err)
				defer func() {
					f.Truncate(7)
					touched = true
				}()
				cond.Wait()
			})
		}
		sim.Run(int(seed))
		sim.Abandon()
		require.True(t, sim.Idle())
		require.Zero(t, sim.Running(""))
		require.False(t, touched)
		ran := false
		sim.Go("next life", func() { ran = true })
		sim.Run(10)
		require.True(t, ran)
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before)
}

// TestSimPause: a task that pauses leaves the steps to the others, and comes back at once when there are none.
func TestSimPause(t *testing.T) {
	sim := NewSim(3)
	var order []string
	say := func(what string) { order = append(order, fmt.Sprint(what, " ", sim.Steps() >= 20)) }
	sim.Go("resting", func() {
		sim.Pause(20)
		say("rested")
		sim.Pause(1000)
		say("rested again")
	})
	sim.Go("busy", func() {
		for range 40 {
			sim.Yield("work")
		}
		say("done")
	})
	sim.Run(100)
	require.True(t, sim.Idle())
	require.Less(t, sim.Steps(), 60)
	require.Equal(t, []string{"rested true", "done true", "rested again true"}, order)
	sim.Go("resting", func() { sim.Pause(20) })
	sim.Run(1)
	require.False(t, sim.Idle())
	require.Equal(t, 1, sim.Running("resting"))
	sim.Abandon()
	require.True(t, sim.Idle())
}

// TestSimPanics: a panic of a task is the caller's.
func TestSimPanics(t *testing.T) {
	sim := NewSim(1)
	sim.Go("bad", func() { panic("broken invariant") })
	require.PanicsWithValue(t, "broken invariant", func() { sim.Run(5) })
}

// TestRealTasks: the same program runs on goroutines.
func TestRealTasks(t *testing.T) {
	tasks := RealTasks()
	var order []string
	done := make(chan struct{})
	var trace []string
	lock := tasks.Locker()
	left := 4
	trace = simRun(t, 0, countingTasks{tasks, func() {
		lock.Lock()
		defer lock.Unlock()
		if left--; left == 0 {
			close(done)
		}
	}}, func() { <-done })
	order = trace
	require.Len(t, order, 20)
	for i, s := range order {
		require.Equal(t, fmt.Sprint(i%4), s)
	}
}

// countingTasks calls ended after each task.
type countingTasks struct {
	Tasks
	ended func()
}

func (c countingTasks) Go(name string, fn func()) {
	c.Tasks.Go(name, func() { defer c.ended(); fn() })
}
