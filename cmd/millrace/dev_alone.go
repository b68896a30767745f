package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/millrace/millrace/cmd/broker"
)

// devAlone is a dev cluster of one broker inside this process: what test suites use. It takes only the order to stop.
type devAlone struct {
	e         *env
	states    *devStates
	cfg       broker.Config
	temporary bool
	anyPort   bool

	printBrokers bool
	profile      *devProfile

	mu      sync.Mutex
	state   devState
	control *devControl
}

func (d *devAlone) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now()
	err := d.e.runBroker(ctx, d.cfg, func(b *broker.Broker) {
		d.began(b, time.Since(began), cancel)
		if d.printBrokers {
			fmt.Fprintln(d.e.stdout, b.Advertised())
		}
		d.e.devReady(d.snapshot())
	})
	if giveBackErr := d.ended(); err == nil {
		err = giveBackErr
	}
	err = devAddressFailure(err, d.anyPort)
	if err == nil && d.temporary {
		d.e.hint("  stopped; %s is removed", d.cfg.DataDir)
	}
	return err
}

// began writes down where the broker is, for the other dev commands.
func (d *devAlone) began(b *broker.Broker, took time.Duration, cancel context.CancelFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	me := identify(os.Getpid())
	address := b.Advertised()
	port := 0
	if _, text, err := net.SplitHostPort(address); err == nil {
		port, _ = strconv.Atoi(text) // an address without a number names no cluster, and is not written down
	}
	http := ""
	if a, ok := b.Addrs()["HTTP"]; ok {
		http = a.String()
	}
	d.state = devState{
		Port: port, Phase: "ready", Supervisor: me, InProcess: true, Dir: d.cfg.DataDir, Temporary: d.temporary, Began: time.Now().UTC().Truncate(time.Second),
		Took:    took.Round(10 * time.Millisecond).String(),
		Brokers: []devBroker{{ID: int(b.NodeID()), processID: me, State: devRunning, Since: now(), Clients: address, HTTP: http, Data: d.cfg.DataDir}},
	}
	if d.states == nil || port == 0 {
		return
	}
	control, err := serveDevControl(d.snapshot, map[string]devOrder{
		"stop":    func(context.Context, int) error { cancel(); return nil },
		"kill":    d.refuse,
		"restart": d.refuse,
		"add":     d.refuse,
	})
	if err != nil {
		d.e.hint("  the other dev commands will not see this cluster: %s", explain("", err).why)
		return
	}
	d.control = control
	d.state.Control, d.state.Token = control.address, control.token
	if err := d.profile.take(d.state); err != nil {
		d.e.hint("  no profile selected: %s", explain("select the profile", err).why)
	}
	d.state.Profile = d.profile.taken()
	if err := d.states.write(&d.state); err != nil {
		d.e.hint("  the other dev commands will not see this cluster: %s", explain("", err).why)
	}
}

// refuse is the answer to orders that need processes of their own.
func (d *devAlone) refuse(context.Context, int) error {
	return &failure{code: exitFailed, what: "this dev cluster has no broker to be killed, restarted or added", why: "its only broker is inside the dev process", fix: "millrace dev -n 3, or millrace dev -n 1 --processes"}
}

func (d *devAlone) snapshot() devState {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state
}

func (d *devAlone) ended() error {
	d.mu.Lock()
	control, port := d.control, d.state.Port
	d.mu.Unlock()
	if control == nil {
		return nil
	}
	control.close()
	if err := d.profile.giveBack(); err != nil {
		return err
	}
	return d.states.remove(port)
}
