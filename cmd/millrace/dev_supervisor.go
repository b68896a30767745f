package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// devReadyLimit bounds how long brokers may take to become ready. An empty cluster takes a second; one with much
	// data recovers its logs first.
	devReadyLimit = 2 * time.Minute
	// devStopGrace is how long a broker may take to stop. What was acknowledged is on disk, so that to end it loses
	// nothing; it only makes the next start read more.
	devStopGrace = 10 * time.Second
	// devTemporaryGrace is the same for data that is removed anyway.
	devTemporaryGrace = 2 * time.Second
	// devLastGrace is the moment for those that are left when most have stopped.
	devLastGrace = time.Second
)

// supervisor runs the brokers of a dev cluster as child processes. Orders come from the control port, one at a time.
type supervisor struct {
	e         *env
	states    *devStates // nil: no place to write to, so there are no other dev commands
	dir       string
	temporary bool
	anyPort   bool
	base      int
	settings  []string // of every broker: arguments of start
	layout    devLayout
	profile   *devProfile
	control   *devControl
	ready     chan struct{}   // closed once all brokers were ready
	life      context.Context // ends when the cluster is to stop
	cancel    context.CancelCauseFunc

	// orders serialises what changes processes. It is taken before mu.
	orders sync.Mutex
	mu     struct {
		sync.Mutex
		state    devState
		children map[int]*devChild
		stopping bool
	}
}

// errDevStop is the cause of a stop by dev stop.
var errDevStop = errors.New("stopped by dev stop")

// run starts the brokers, waits for the end, and stops them.
func (s *supervisor) run(ctx context.Context) (err error) {
	ctx, s.cancel = context.WithCancelCause(ctx)
	s.life = ctx
	defer s.cancel(nil)
	began := time.Now()
	defer func() { err = errors.Join(err, s.finish()) }()
	if err := s.startAll(ctx); err != nil {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return nil // Ctrl-C while starting
		}
		return err
	}
	if err := s.profile.take(s.snapshot()); err != nil {
		s.e.hint("  no profile selected: %s", explain("select the profile", err).why)
	}
	s.change(func(st *devState) {
		st.Phase, st.Took, st.Profile = "ready", time.Since(began).Round(10*time.Millisecond).String(), s.profile.taken()
	})
	close(s.ready)
	s.e.devReady(s.snapshot())
	<-ctx.Done()
	return nil
}

// startAll starts every broker of the layout and waits until all are ready. Their ports are held until then, so that
// nobody takes one in between.
func (s *supervisor) startAll(ctx context.Context) error {
	ports := &reserved{states: s.states}
	defer ports.Close()
	for i, p := range s.layout.Brokers {
		if p.Clients == 0 {
			found, err := ports.any(p.ID)
			if err != nil {
				return err
			}
			s.layout.Brokers[i] = found
			continue
		}
		if err := ports.take(p); err != nil {
			return err
		}
	}
	s.base = s.layout.Brokers[0].Clients
	if err := writeLayout(s.dir, &s.layout); err != nil {
		return err
	}
	if err := s.open(); err != nil {
		return err
	}
	ports.Close()
	for _, p := range s.layout.Brokers {
		if err := s.start(p, len(s.layout.Brokers)); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, devReadyLimit)
	defer cancel()
	failed := make(chan error, len(s.layout.Brokers))
	for _, p := range s.layout.Brokers {
		c := s.child(p.ID)
		go func() { failed <- s.awaitReady(ctx, c) }()
	}
	var first error
	for range s.layout.Brokers {
		if err := <-failed; err != nil && first == nil {
			first = err
			cancel() // the others need not go on
		}
	}
	return first
}

// open writes the first state and takes orders from now on.
func (s *supervisor) open() error {
	s.mu.Lock()
	st := &s.mu.state
	*st = devState{Port: s.base, Phase: devStarting, Supervisor: identify(os.Getpid()), Dir: s.dir, Temporary: s.temporary, Began: time.Now().UTC().Truncate(time.Second)}
	for _, p := range s.layout.Brokers {
		st.Brokers = append(st.Brokers, s.newBroker(p))
	}
	s.mu.Unlock()
	if s.states == nil {
		return nil
	}
	var err error
	if s.control, err = openDevControl(s); err != nil {
		return err
	}
	s.change(func(st *devState) { st.Control, st.Token = s.control.address, s.control.token })
	return nil
}

func (s *supervisor) newBroker(p devPorts) devBroker {
	return devBroker{
		ID: p.ID, State: devStarting, Since: now(), Clients: loopback(p.Clients), Peer: loopback(p.Peer), Gossip: loopback(p.Gossip), HTTP: loopback(p.HTTP),
		Data: brokerDir(s.dir, p.ID), Log: brokerLog(s.dir, p.ID),
	}
}

func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// start starts the process of one broker. expect is how many empty brokers form the cluster, 0 to only join one.
func (s *supervisor) start(p devPorts, expect int) error {
	c, err := s.spawn(p, s.arguments(p, expect))
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.mu.children[p.ID] = c
	s.mu.Unlock()
	s.changeBroker(p.ID, func(b *devBroker) {
		b.processID, b.State, b.Exit, b.Since = identify(c.cmd.Process.Pid), devStarting, "", now()
	})
	return nil
}

// arguments are those of a broker's start. Ports and directories come last: nothing may change them.
func (s *supervisor) arguments(p devPorts, expect int) []string {
	args := append([]string{"start", "--until-stdin-closes", "--log-format", "text"}, s.settings...)
	args = append(args, "--data", brokerDir(s.dir, p.ID), "--node-id", fmt.Sprint(p.ID),
		"--set", fmt.Sprintf("listeners=PLAINTEXT://%s,CONTROLLER://%s", loopback(p.Clients), loopback(p.Peer)),
		"--set", "advertised.listeners=PLAINTEXT://"+loopback(p.Clients),
		"--set", "millrace.gossip.listener="+loopback(p.Gossip),
		"--set", "millrace.http.listener="+loopback(p.HTTP))
	if len(s.layout.Brokers) == 1 {
		return args // a cluster of one needs nobody
	}
	var join []string
	for _, other := range s.layout.Brokers {
		join = append(join, loopback(other.Gossip))
	}
	args = append(args, "--join", strings.Join(join, ","))
	if expect > 0 {
		args = append(args, "--bootstrap-expect", fmt.Sprint(expect))
	}
	return args
}

func (s *supervisor) awaitReady(ctx context.Context, c *devChild) error {
	if err := c.waitReady(ctx); err != nil {
		if !errors.Is(err, context.Canceled) {
			s.e.printTail(c)
		}
		return err
	}
	s.changeBroker(c.id, func(b *devBroker) {
		if b.State == devStarting {
			b.State, b.Since = devRunning, now()
		}
	})
	return nil
}

// ended is called by a child's goroutine once its process has ended.
func (s *supervisor) ended(c *devChild) {
	state := c.asked()
	if state == "" {
		state = devExited
	}
	s.mu.Lock()
	current, stopping := s.mu.children[c.id] == c, s.mu.stopping
	s.mu.Unlock()
	if !current {
		return
	}
	wasReady := false
	s.changeBroker(c.id, func(b *devBroker) {
		wasReady = b.State == devRunning
		b.State, b.Exit, b.Since, b.processID = state, c.exit, now(), processID{}
	})
	if stopping {
		return
	}
	switch {
	case state == devKilled:
		s.e.hint("  ✘ broker %d killed      millrace dev restart %d%s   brings it back", c.id, c.id, s.portFlag())
	case state == devExited && wasReady:
		s.e.printTail(c)
		f := c.failed()
		fmt.Fprintf(s.e.stderr, "  ✘ %s      millrace dev restart %d%s   starts it again\n", f.what, c.id, s.portFlag())
	}
}

// portFlag names the cluster in commands, where its port is not the usual one.
func (s *supervisor) portFlag() string {
	if s.base == devPort {
		return ""
	}
	return fmt.Sprintf(" --port %d", s.base)
}

func (s *supervisor) child(id int) *devChild {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.children[id]
}

// snapshot returns a copy of the state.
func (s *supervisor) snapshot() devState {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.mu.state
	st.Brokers = slices.Clone(st.Brokers)
	return st
}

// change changes the state and writes it. A state that cannot be written is told once per change and no reason to stop:
// the brokers do not need it.
func (s *supervisor) change(f func(*devState)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.mu.state)
	if s.states == nil {
		return
	}
	if err := s.states.write(&s.mu.state); err != nil {
		s.e.hint("  the other dev commands will not see this: %s", explain("", err).why)
	}
}

func (s *supervisor) changeBroker(id int, f func(*devBroker)) {
	s.change(func(st *devState) {
		if b := st.broker(id); b != nil {
			f(b)
		}
	})
}

// stopAll asks all brokers at once to stop. Those that are left when most have stopped have nobody to hand over to any
// more, and wait for a controller that will not come: they get a moment instead of the grace time.
func stopAll(children []*devChild, grace time.Duration) {
	hurry := make(chan struct{})
	var left atomic.Int32
	left.Store(int32(len(children)))
	var wait sync.WaitGroup
	for _, c := range children {
		wait.Go(func() {
			c.stop(grace, hurry)
			if n := int(left.Add(-1)); n == len(children)/2 {
				close(hurry)
			}
		})
	}
	wait.Wait()
}

// finish stops every broker, gives the profile back and tidies up.
func (s *supervisor) finish() error {
	s.orders.Lock()
	defer s.orders.Unlock()
	s.mu.Lock()
	s.mu.stopping = true
	var running []*devChild
	for _, c := range s.mu.children {
		running = append(running, c)
	}
	s.mu.Unlock()
	grace := devStopGrace
	if s.temporary {
		grace = devTemporaryGrace
	}
	stopAll(running, grace)
	for _, c := range running {
		_ = c.stdin.Close()
	}
	err := s.profile.giveBack()
	if s.control != nil {
		s.control.close()
	}
	if s.temporary {
		err = errors.Join(err, removeDevDir(s.dir))
	}
	if s.states == nil || s.base == 0 || s.snapshot().Port == 0 {
		return err
	}
	if s.temporary {
		return errors.Join(err, s.states.remove(s.base))
	}
	s.change(func(st *devState) {
		st.Phase, st.Control, st.Token, st.Profile = devStopped, "", "", ""
	})
	return err
}
