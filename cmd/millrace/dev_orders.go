package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// find returns the process of a broker; an unknown id is a failure that names the known ones.
func (s *supervisor) find(id int) (*devChild, error) {
	if c := s.child(id); c != nil {
		return c, nil
	}
	st := s.snapshot()
	return nil, noDevBroker(&st, id)
}

func noDevBroker(st *devState, id int) error {
	var ids []string
	for _, b := range st.Brokers {
		ids = append(ids, fmt.Sprint(b.ID))
	}
	return &failure{code: exitUsage, what: fmt.Sprintf("there is no broker %d in this dev cluster", id), why: "its brokers are " + strings.Join(ids, ", "), fix: "millrace dev status   shows them"}
}

// order waits for the order before to end. While the cluster stops there are no orders.
func (s *supervisor) order() (done func(), err error) {
	s.orders.Lock()
	if s.life.Err() != nil {
		s.orders.Unlock()
		return nil, &failure{code: exitFailed, what: "the dev cluster takes no orders", why: "it is stopping", fix: "millrace dev   starts another"}
	}
	return s.orders.Unlock, nil
}

// killBroker ends a broker's process as kill -9 does, and waits until it is gone.
func (s *supervisor) killBroker(_ context.Context, id int) error {
	done, err := s.order()
	if err != nil {
		return err
	}
	defer done()
	c, err := s.find(id)
	if err != nil {
		return err
	}
	select {
	case <-c.done:
		st := s.snapshot()
		b := st.broker(id)
		return &failure{code: exitFailed, what: fmt.Sprintf("broker %d does not run", id), why: fmt.Sprintf("it is %s since %s", b.State, b.Since.Local().Format(time.TimeOnly)), fix: fmt.Sprintf("millrace dev restart %d%s", id, s.portFlag())}
	default:
	}
	c.kill()
	return nil
}

// restartBroker stops a broker that runs, starts it again with its data, and waits until it is ready.
func (s *supervisor) restartBroker(ctx context.Context, id int) error {
	done, err := s.order()
	if err != nil {
		return err
	}
	defer done()
	c, err := s.find(id)
	if err != nil {
		return err
	}
	select {
	case <-c.done:
	default:
		s.changeBroker(id, func(b *devBroker) { b.State, b.Since = devStopping, now() })
		c.stop(devStopGrace, nil)
	}
	_ = c.stdin.Close()
	for _, p := range s.layout.Brokers {
		if p.ID == id {
			return s.startOne(ctx, p, "again")
		}
	}
	return nil
}

// addBroker adds the next broker to the cluster and waits until it is ready.
func (s *supervisor) addBroker(ctx context.Context, _ int) error {
	done, err := s.order()
	if err != nil {
		return err
	}
	defer done()
	id := s.layout.Brokers[len(s.layout.Brokers)-1].ID + 1
	if id > devMost {
		return &failure{code: exitFailed, what: fmt.Sprintf("broker %d cannot be added", id), why: fmt.Sprintf("a dev cluster has at most %d brokers: ports end at 65535", devMost), fix: "use machines of their own: millrace start --join …"}
	}
	ports := &reserved{states: s.states}
	defer ports.Close()
	var p devPorts
	if s.anyPort {
		p, err = ports.any(id)
	} else if p, err = portsByRule(id, s.base); err == nil {
		err = ports.take(p)
	}
	if err != nil {
		return err
	}
	s.layout.Brokers = append(s.layout.Brokers, p)
	if err := writeLayout(s.dir, &s.layout); err != nil {
		return err
	}
	s.change(func(st *devState) { st.Brokers = append(st.Brokers, s.newBroker(p)) })
	ports.Close()
	if err := s.startOne(ctx, p, "joined"); err != nil {
		return err
	}
	return s.profile.update(s.snapshot())
}

// startOne starts a broker of a running cluster and waits until it is ready.
func (s *supervisor) startOne(ctx context.Context, p devPorts, how string) error {
	began := time.Now()
	if err := s.start(p, 0); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, devReadyLimit)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	if err := s.awaitReady(ctx, s.child(p.ID)); err != nil {
		return err
	}
	s.e.hint("  ✔ broker %d  %s  %s, ready in %s", p.ID, loopback(p.Clients), how, time.Since(began).Round(10*time.Millisecond))
	return nil
}

// stopAll lets the dev process end. The answer leaves before it does.
func (s *supervisor) stopAll(context.Context, int) error {
	s.cancel(errDevStop)
	return nil
}
