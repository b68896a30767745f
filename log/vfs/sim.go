package vfs

import (
	"fmt"
	"hash/fnv"
	"iter"
	"math/rand/v2"
	"sort"
	"strings"
	"sync"
)

// Sim runs tasks as coroutines of one thread. At each Yield (Mem calls it for every file operation when told to), lock
// and condition wait a generator seeded once picks the next task, so the same seed gives the same run, step by step.
// Between two steps the caller may stop everything (Abandon), which is what a crash looks like from inside.
//
// Each task name has a weight drawn from the seed: some seeds starve the flusher, others the appender. That finds
// orders which equal chances almost never produce.
//
// A Sim is used from one goroutine.
type Sim struct {
	seed     uint64
	rng      *rand.Rand
	ready    []*simTask
	blocked  []*simTask
	pausing  []*simTask
	weights  map[string]int
	current  *simTask
	aborting bool
	steps    int
	// stall and stallSteps: one in stall yields becomes a pause of up to stallSteps.
	stall, stallSteps int
	trace             func(task, op string)
}

// simTask is one coroutine.
type simTask struct {
	name    string
	weight  int
	next    func() (struct{}, bool)
	stop    func()
	yield   func(struct{}) bool
	waits   string // what a blocked task waits for
	until   int    // a pausing task is ready again at this step
	blocked bool
	done    bool
}

// simAbort unwinds an abandoned task.
type simAbort struct{}

// NewSim returns a scheduler whose choices follow from seed.
func NewSim(seed uint64) *Sim {
	return &Sim{seed: seed, rng: rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15)), weights: make(map[string]int)}
}

// Rand is the generator of all choices; callers draw their own from it too.
func (s *Sim) Rand() *rand.Rand { return s.rng }

// Steps is the number of steps run so far.
func (s *Sim) Steps() int { return s.steps }

// Trace calls fn before each step with the task and the operation it is about to do; nil ends that.
func (s *Sim) Trace(fn func(task, op string)) { s.trace = fn }

// weight returns the weight of a task name, drawn from the seed and the name.
func (s *Sim) weight(name string) int {
	if w, ok := s.weights[name]; ok {
		return w
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%d/%s", s.seed, name)
	w := []int{1, 2, 4, 4, 8, 16, 32}[h.Sum64()>>8%7]
	s.weights[name] = w
	return w
}

// Go adds a task; it runs when the scheduler picks it.
func (s *Sim) Go(name string, fn func()) {
	if s.aborting {
		panic(simAbort{})
	}
	t := &simTask{name: name, weight: s.weight(name), waits: "start"}
	t.next, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		t.yield = yield
		defer func() {
			t.done = true
			if r := recover(); r != nil {
				if _, ok := r.(simAbort); ok && s.aborting {
					return
				}
				panic(r)
			}
		}()
		fn()
	})
	s.ready = append(s.ready, t)
}

// Yield is a point where another task may run. op names what follows, for traces.
func (s *Sim) Yield(op string) {
	if s.aborting {
		panic(simAbort{})
	}
	t := s.current
	if t == nil {
		return // called from outside of all tasks: setting up or checking
	}
	t.waits = op
	if s.stall > 0 && s.rng.IntN(s.stall) == 0 {
		s.rest(t, 1+s.rng.IntN(s.stallSteps))
		return
	}
	s.pause(t)
}

// Stall makes one in so many yields, whoever's, a pause of up to so many steps: a task that the system does not run for
// a while in the middle of its work. 0 ends that.
func (s *Sim) Stall(oneIn, steps int) { s.stall, s.stallSteps = oneIn, steps }

// pause returns to the scheduler.
func (s *Sim) pause(t *simTask) {
	if !t.yield(struct{}{}) {
		panic(simAbort{})
	}
	if s.aborting {
		panic(simAbort{})
	}
}

// Pause lets the current task rest for so many steps of others; it ends early if nobody else can go on.
func (s *Sim) Pause(steps int) {
	if s.aborting {
		panic(simAbort{})
	}
	t := s.current
	if t == nil || steps <= 0 {
		s.Yield("pause")
		return
	}
	t.waits = "pause"
	s.rest(t, steps)
}

func (s *Sim) rest(t *simTask, steps int) {
	s.unready(t)
	t.until = s.steps + steps
	s.pausing = append(s.pausing, t)
	s.pause(t)
}

// unready takes a task out of the ready list.
func (s *Sim) unready(t *simTask) {
	for i, r := range s.ready {
		if r == t {
			s.ready = append(s.ready[:i], s.ready[i+1:]...)
			return
		}
	}
}

// rouse makes pausing tasks ready whose time has come; if no other task is ready, the one whose time comes first.
func (s *Sim) rouse() {
	kept := s.pausing[:0]
	for _, t := range s.pausing {
		if t.until <= s.steps {
			s.ready = append(s.ready, t)
		} else {
			kept = append(kept, t)
		}
	}
	s.pausing = kept
	if len(s.ready) > 0 || len(kept) == 0 {
		return
	}
	first := 0
	for i, t := range kept {
		if t.until < kept[first].until {
			first = i
		}
	}
	s.ready = append(s.ready, kept[first])
	s.pausing = append(kept[:first], kept[first+1:]...)
}

// block takes the current task out of the ready list until wake.
func (s *Sim) block(waits string) *simTask {
	t := s.current
	if t == nil {
		panic("vfs: a wait (" + waits + ") outside of all tasks of the simulation would never end")
	}
	t.waits, t.blocked = waits, true
	s.blocked = append(s.blocked, t)
	s.unready(t)
	return t
}

func (s *Sim) wake(t *simTask) {
	if !t.blocked {
		return
	}
	t.blocked = false
	for i, b := range s.blocked {
		if b == t {
			s.blocked = append(s.blocked[:i], s.blocked[i+1:]...)
			break
		}
	}
	s.ready = append(s.ready, t)
}

// Run makes at most limit steps and returns how many it made: fewer only if no task can go on (Idle).
func (s *Sim) Run(limit int) int {
	for n := 0; n < limit; n++ {
		if !s.step() {
			return n
		}
	}
	return limit
}

func (s *Sim) step() bool {
	if len(s.pausing) > 0 {
		s.rouse()
	}
	if len(s.ready) == 0 {
		return false
	}
	sum := 0
	for _, t := range s.ready {
		sum += t.weight
	}
	pick := s.rng.IntN(sum)
	t := s.ready[0]
	for _, r := range s.ready {
		if pick < r.weight {
			t = r
			break
		}
		pick -= r.weight
	}
	s.steps++
	if s.trace != nil {
		s.trace(t.name, t.waits)
	}
	s.current = t
	_, alive := t.next()
	s.current = nil
	if !alive {
		s.unready(t)
	}
	return true
}

// Idle says that no task can go on: all are finished or wait for each other.
func (s *Sim) Idle() bool { return len(s.ready) == 0 && len(s.pausing) == 0 }

// Blocked describes the tasks that wait for a lock or a condition, sorted: after Run returned early, those that should
// have finished are a deadlock.
func (s *Sim) Blocked() []string {
	list := make([]string, 0, len(s.blocked))
	for _, t := range s.blocked {
		list = append(list, t.name+": "+t.waits)
	}
	sort.Strings(list)
	return list
}

// Running counts the tasks with this name prefix that are not finished.
func (s *Sim) Running(prefix string) int {
	n := 0
	for _, list := range [][]*simTask{s.ready, s.blocked, s.pausing} {
		for _, t := range list {
			if strings.HasPrefix(t.name, prefix) {
				n++
			}
		}
	}
	return n
}

// Abandon ends all tasks where they stand. Their deferred functions run, but no file operation, lock or wait in them
// has an effect. The Sim can be used further with new tasks; locks made before must not be.
func (s *Sim) Abandon() {
	s.aborting = true
	for _, list := range [][]*simTask{s.ready, s.blocked, s.pausing} {
		for _, t := range list {
			s.current = t
			t.stop()
		}
	}
	s.current = nil
	s.ready, s.blocked, s.pausing, s.aborting = nil, nil, nil, false
}

// Locker returns a lock whose Lock is a step.
func (s *Sim) Locker() sync.Locker { return &simLock{sim: s} }

type simLock struct {
	sim     *Sim
	held    bool
	owner   string
	waiters []*simTask
}

func (l *simLock) Lock() {
	s := l.sim
	s.Yield("lock")
	l.acquire()
}

func (l *simLock) acquire() {
	s := l.sim
	for l.held {
		t := s.block("lock held by " + l.owner)
		l.waiters = append(l.waiters, t)
		s.pause(t)
	}
	l.held = true
	l.owner = "the test"
	if s.current != nil {
		l.owner = s.current.name
	}
}

func (l *simLock) Unlock() {
	if l.sim.aborting {
		return
	}
	if !l.held {
		panic("vfs: unlock of a lock that is not held")
	}
	l.held = false
	for _, t := range l.waiters {
		l.sim.wake(t)
	}
	l.waiters = l.waiters[:0]
}

// Cond returns a condition variable; l must be from Locker of this Sim.
func (s *Sim) Cond(l sync.Locker) Cond { return &simCond{sim: s, lock: l.(*simLock)} }

type simCond struct {
	sim     *Sim
	lock    *simLock
	waiters []*simTask
}

func (c *simCond) Wait() {
	s := c.sim
	if s.aborting {
		panic(simAbort{})
	}
	c.lock.Unlock()
	t := s.block("condition")
	c.waiters = append(c.waiters, t)
	s.pause(t)
	c.lock.acquire()
}

func (c *simCond) Signal() {
	if c.sim.aborting || len(c.waiters) == 0 {
		return
	}
	// Which waiter is woken is not promised; the generator decides.
	i := c.sim.rng.IntN(len(c.waiters))
	t := c.waiters[i]
	c.waiters = append(c.waiters[:i], c.waiters[i+1:]...)
	c.sim.wake(t)
}

func (c *simCond) Broadcast() {
	if c.sim.aborting {
		return
	}
	for _, t := range c.waiters {
		c.sim.wake(t)
	}
	c.waiters = c.waiters[:0]
}
