package replication

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/metadata"
)

var rewrite = flag.Bool("rewrite", false, "write what the scenarios print into testdata")

// TestScenarios plays the scripts of testdata: a command, a line of four dashes, what it prints, an empty line.
// Commands:
//
//	cluster replicas=3 min=2 flush=on   three stopped brokers, a partition on all of them
//	start 0 [1 2]                       start and register brokers, and apply the metadata on them
//	apply [0 1 2]                       apply the newest metadata on these brokers, or all that run
//	produce 0 acks=all [epoch=1]        produce one record at broker 0
//	flush 0                             what broker 0 has written becomes durable
//	fetch 1                             the fetch of broker 1 in flight reaches the leader, the answer comes back
//	request 1, response 1 [again]       the two halves of it; again: a copy of its last divergence answer
//	elect 1 · fence 0 · unfence 0       the controller acts
//	crash 0 [keep=2] · stop 0           broker 0 loses what was not durable, but for keep records, or stops cleanly
//	propose commit|drop|refuse          what becomes of the oldest ISR proposal on its way; its answer is delivered
//	lose-answer                         the oldest ISR proposal is committed, its answer lost
//	delete 0 2                          DeleteRecords at broker 0 up to offset 2
//	tick 40s                            time passes on all brokers
//
// The promises of the simulator are checked after each command. Run with -rewrite to accept what is printed, and read
// the diff.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.scenario")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".scenario"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got, err := playScenario(want)
			if err != nil {
				t.Fatal(err)
			}
			if *rewrite {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if !bytes.Equal(got, want) {
				t.Errorf("prints something else; see with -rewrite and git diff. Got:\n%s", got)
			}
		})
	}
}

type scenario struct {
	s        *sim
	out      bytes.Buffer
	repeated map[metadata.BrokerID]simMessage // last divergence answer per follower
}

func playScenario(script []byte) ([]byte, error) {
	sc := &scenario{repeated: map[metadata.BrokerID]simMessage{}}
	var result bytes.Buffer
	skipping := false
	for line := range strings.Lines(string(script)) {
		line = strings.TrimRight(line, "\n")
		switch {
		case skipping && line != "":
		case line == "" || strings.HasPrefix(line, "#"):
			skipping = false
			result.WriteString(line + "\n")
		case line == "----":
			skipping = true
		default:
			sc.out.Reset()
			if err := sc.command(strings.Fields(line)); err != nil {
				return nil, fmt.Errorf("%s: %w after\n%s", line, err, result.Bytes())
			}
			result.WriteString(line + "\n----\n")
			result.Write(sc.out.Bytes())
			if sc.s.err != nil {
				return nil, fmt.Errorf("%s: %w", line, sc.s.err)
			}
		}
	}
	return result.Bytes(), nil
}

// argument returns the value of name=value among the fields, or a default.
func argument(fields []string, name, otherwise string) string {
	for _, f := range fields {
		if v, ok := strings.CutPrefix(f, name+"="); ok {
			return v
		}
	}
	return otherwise
}

func (sc *scenario) command(f []string) error {
	if f[0] == "cluster" {
		return sc.cluster(f)
	}
	s := sc.s
	brokers := func() (ns []*simNode) {
		for _, a := range f[1:] {
			if id, err := strconv.Atoi(a); err == nil && id < len(s.nodes) {
				ns = append(ns, s.nodes[id])
			}
		}
		if len(ns) == 0 {
			return s.nodes
		}
		return ns
	}
	n := brokers()[0]
	switch f[0] {
	case "start":
		for _, n := range brokers() {
			s.start(n)
			sc.apply(n)
		}
	case "apply":
		for _, n := range brokers() {
			sc.apply(n)
		}
	case "produce":
		sc.produce(n, f)
	case "flush":
		s.flush(n)
		for len(n.flushes) > 0 {
			s.flushed(n)
		}
	case "fetch":
		if err := sc.message(n.id, true); err != nil {
			return err
		}
		return sc.finish(sc.message(n.id, false))
	case "request":
		return sc.finish(sc.message(n.id, true))
	case "response":
		if slices.Contains(f, "again") {
			s.net = append(s.net, sc.repeated[n.id])
		}
		return sc.finish(sc.message(n.id, false))
	case "elect":
		s.change(func(st *simState) { st.leader = n.id })
	case "fence", "unfence":
		s.fence(n, f[0] == "fence")
	case "crash":
		keep, err := strconv.ParseInt(argument(f, "keep", "0"), 10, 64)
		if err != nil {
			return err
		}
		n.log.records = n.log.records[:min(n.log.durable+keep, n.log.end())]
		n.log.durable = n.log.end()
		s.stop(n, false)
	case "stop":
		s.stop(n, true)
	case "propose", "lose-answer":
		if err := sc.propose(f); err != nil {
			return err
		}
	case "delete":
		to, err := strconv.ParseInt(f[2], 10, 64)
		if err != nil {
			return err
		}
		s.nextID++
		s.step(n, &DeleteRecords{Waiter: trimWaiters + Waiter(s.nextID), LeaderEpoch: -1, Offset: to, LastStableOffset: n.core.HighWatermark(), Deadline: Never})
	case "tick":
		seconds, err := strconv.Atoi(strings.TrimSuffix(f[1], "s"))
		if err != nil {
			return err
		}
		s.now += Instant(seconds)
		for _, n := range s.nodes {
			s.step(n, &Tick{})
		}
	default:
		return fmt.Errorf("unknown command %q", f[0])
	}
	return sc.finish(nil)
}

func (sc *scenario) cluster(f []string) error {
	replicas, err := strconv.Atoi(argument(f, "replicas", "3"))
	if err != nil {
		return err
	}
	s := newSim(simOptions{})
	s.nodes, s.meta, s.quiet = nil, nil, true
	s.rng = rand.New(rand.NewPCG(1, 1))
	s.flushAck = argument(f, "flush", "on") == "on"
	if s.min, err = strconv.Atoi(argument(f, "min", "1")); err != nil {
		return err
	}
	s.lag, s.timeout = 30, 10
	s.populate(replicas)
	s.onAction = sc.print
	sc.s = s
	return sc.finish(nil)
}

// apply applies the newest metadata.
func (sc *scenario) apply(n *simNode) {
	if n.up {
		n.applied = len(sc.s.meta) - 2
		sc.s.metadata(n)
	}
}

func (sc *scenario) produce(n *simNode, f []string) {
	s := sc.s
	s.nextID++
	p := simProduce{value: s.nextID, acks: map[string]int16{"all": -1, "1": 1, "0": 0}[argument(f, "acks", "all")]}
	n.waiters[Waiter(s.nextID)] = p
	epoch, err := strconv.Atoi(argument(f, "epoch", "-1"))
	if err != nil {
		epoch = -1
	}
	s.step(n, &Produce{Waiter: Waiter(s.nextID), Acks: p.acks, LeaderEpoch: int32(epoch), Deadline: s.now + 120})
}

// message delivers the newest fetch from a follower, or the newest answer to it; older ones get lost.
func (sc *scenario) message(follower metadata.BrokerID, request bool) error {
	s := sc.s
	var m simMessage
	found := false
	s.net = slices.DeleteFunc(s.net, func(x simMessage) bool {
		fits := request && x.request != nil && x.from == follower || !request && x.response != nil && x.to == follower
		if fits {
			m, found = x, true
		}
		return fits
	})
	if !found {
		return fmt.Errorf("nothing of broker %d is on its way", follower)
	}
	if m.response != nil && m.response.DivergingEpoch >= 0 {
		sc.repeated[follower] = m
	}
	s.handle(m)
	return nil
}

func (sc *scenario) propose(f []string) error {
	s := sc.s
	i := slices.IndexFunc(s.net, func(m simMessage) bool { return m.propose != nil })
	if i < 0 {
		return fmt.Errorf("no proposal is on its way")
	}
	m := s.net[i]
	s.net = slices.Delete(s.net, i, i+1)
	switch {
	case f[0] == "propose" && f[1] == "drop":
		return nil
	case f[0] == "propose" && f[1] == "refuse":
		s.handle(simMessage{to: m.from, life: m.life, result: &ISRResult{Seq: m.propose.Seq, Outcome: ProposalRefused}})
		return nil
	}
	s.propose(m)
	answer := s.net[len(s.net)-1]
	s.net = s.net[:len(s.net)-1]
	if f[0] == "propose" {
		s.handle(answer)
	}
	return nil
}

// print shows an action.
func (sc *scenario) print(n *simNode, ev Event, a Action) {
	o := &sc.out
	switch a.Kind {
	case ActionRole, ActionAnswerFetch:
		return
	}
	fmt.Fprintf(o, "broker %d: %v", n.id, a.Kind)
	switch a.Kind {
	case ActionAppend:
		fmt.Fprintf(o, " #%d at offset %d in epoch %d", a.Waiter, n.log.end(), a.LeaderEpoch)
	case ActionReplicate:
		r := ev.(*FetchResponse)
		fmt.Fprintf(o, " offsets %d to %d", r.BaseOffset, r.NextOffset-1)
	case ActionComplete:
		name := "#" + strconv.Itoa(int(a.Waiter))
		if a.Waiter >= trimWaiters {
			name = "delete"
		}
		if a.Err != nil {
			fmt.Fprintf(o, " %s: %v", name, a.Err)
		} else {
			fmt.Fprintf(o, " %s: offset %d", name, a.Offset)
		}
	case ActionSendFetch:
		fmt.Fprintf(o, " to broker %d from offset %d, last epoch %d", a.Broker, a.Offset, a.LastEpoch)
	case ActionSetHW, ActionTruncate, ActionTrim, ActionReset:
		fmt.Fprintf(o, " %d", a.Offset)
	case ActionPropose:
		fmt.Fprintf(o, " isr %v on partition epoch %d", a.ISR, a.PartitionEpoch)
	case ActionHalt:
		fmt.Fprintf(o, " at %d: %v", a.Offset, a.Err)
	}
	fmt.Fprintln(o)
}

// finish prints the state.
func (sc *scenario) finish(err error) error {
	s := sc.s
	st := s.state()
	fmt.Fprintf(&sc.out, "controller: leader %d epoch %d isr %v", st.leader, st.leaderEpoch, st.isr)
	if len(st.elr) > 0 {
		fmt.Fprintf(&sc.out, " elr %v", st.elr)
	}
	fmt.Fprintln(&sc.out)
	for _, n := range s.nodes {
		if !n.up {
			fmt.Fprintf(&sc.out, "  %d down      end %d\n", n.id, n.log.end())
			continue
		}
		fmt.Fprintf(&sc.out, "  %d %-8v epoch %d  start %d  hw %d  durable %d  end %d ", n.id, n.core.Role(), n.core.LeaderEpoch(), n.log.start, n.core.HighWatermark(), n.log.durable, n.log.end())
		for _, r := range n.log.records[n.log.start:] {
			fmt.Fprintf(&sc.out, " #%d/%d", r.value, r.epoch)
		}
		fmt.Fprintln(&sc.out)
	}
	return err
}
