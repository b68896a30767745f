package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/integration/check"
	"github.com/millrace/millrace/integration/cluster"
	"github.com/millrace/millrace/integration/proxy"
)

// mutants are the broken brokers of correctness.md part 4, each with the shortest series of faults that shows it. The
// same series passes with the rule in force, or it would prove nothing.
var mutants = []*scenario{
	{name: "high-watermark-off-by-one", what: "a leader cut off, a record sent to it, then killed", links: true, script: killHighWatermark},
	{name: "ack-before-sync", what: "power cut while the disk is slow", brokers: 1, disks: true, script: killAckBeforeSync},
	{name: "skip-dedup", what: "answers to an idempotent producer lost", brokers: 1, proxy: true, script: killSkipDedup},
	{name: "ignore-epoch", what: "a leader with records of its own comes back as a follower", script: killIgnoreEpoch},
	{name: "truncate-to-high-watermark", what: "all killed, then the new leader at once", script: killTruncation},
	{name: "commit-before-apply", what: "a commit that reaches nobody else, its coordinator killed", script: killCommitEarly},
	{name: "unfenced-commit", what: "a commit of a member that was put out of its group", script: killUnfenced},
	{name: "given-twice", what: "members join while the owner does not give up what it has", script: killGivenTwice},
	{name: "read-past-last-stable", what: "transactions, no fault", transactional: true, script: killByTransactions},
	{name: "no-aborted-list", what: "transactions, no fault", transactional: true, script: killByTransactions},
	{name: "late-produce", what: "batches arrive when their transactions are aborted", transactional: true, late: true, proxy: true, script: killLateProduce},
	{name: "skip-marker", what: "a transaction in three partitions", transactional: true, late: true, script: killSkipMarker},
	{name: "offsets-before-end", what: "offsets of a transaction that is aborted", script: killOffsetsBeforeEnd},
}

// killMutants runs each series twice and wants the checker to find something, and nothing.
func (o options) killMutants(ctx context.Context, list []*scenario) (int, error) {
	w := table.NewWriter()
	w.SetStyle(table.StyleLight)
	w.AppendHeader(table.Row{"mutant", "the rule broken", "the rule in force"})
	bad := 0
	for _, s := range list {
		if (s.disks || s.links) && !cluster.InSandbox() {
			w.AppendRow(table.Row{s.name, "left out: power cuts and partitions need root", ""})
			continue
		}
		broken := o
		broken.mutant = s.name
		found := broken.run(ctx, s, o.seed)
		sound := o
		sound.mutant = ""
		clean := sound.run(ctx, s, o.seed)
		verdict := "SURVIVED"
		if found.report != nil && !found.report.OK() {
			verdict = fmt.Sprintf("killed by %v", found.report.Counts)
			_ = os.RemoveAll(found.dir)
		} else {
			bad++
		}
		passed := "passes"
		if !clean.ok() {
			passed = "FAILS"
			bad++
		}
		w.AppendRow(table.Row{s.name, verdict, passed})
	}
	fmt.Println(w.Render())
	if ctx.Err() != nil {
		return 130, errors.New("interrupted")
	}
	if bad > 0 {
		return 1, nil
	}
	return 0, nil
}

// scripted is a plain producer of one partition that a script leads step by step.
type scripted struct {
	r       *run
	topic   string
	process int
	n       int64
}

func (r *run) scripted() *scripted {
	s := &scripted{r: r, topic: topics[0], process: r.newProcess()}
	r.history.Log(check.Op{F: check.Producer, Type: check.OK, Process: s.process, Text: "plain"})
	return s
}

func (s *scripted) key() string { return check.Key(s.topic, 0) }

// send sends one record to a node, and says how that ended.
func (s *scripted) send(n *cluster.Node) check.Type {
	cl, err := direct(n)
	if err != nil {
		return check.Fail
	}
	defer cl.Close()
	o := check.Op{F: check.Send, Type: check.Invoke, Process: s.process, Key: s.key(), Value: check.Value(s.process, s.n)}
	s.n++
	s.r.history.Log(o)
	base, err := sendOnce(cl, s.topic, 0, []int64{o.Value})
	o.Type, o.Offset = check.OK, base
	if err != nil {
		o.Type, o.Offset, o.Error = outcome(err), 0, err.Error()
	}
	s.r.history.Log(o)
	return o.Type
}

// sendAcked sends until so many records were acknowledged, wherever the leader is.
func (s *scripted) sendAcked(ctx context.Context, records int) error {
	ctx, cancel := context.WithTimeout(ctx, healPatience)
	defer cancel()
	for records > 0 {
		n, err := s.leader(ctx, nil)
		if err != nil {
			return err
		}
		if s.send(n) == check.OK {
			records--
		} else if !s.r.settled(ctx, 100*time.Millisecond) {
			return fmt.Errorf("no acknowledgement from node %d: %w", n.Index, ctx.Err())
		}
	}
	return nil
}

// leader waits until some broker that runs says who leads, and that it is not one node.
func (s *scripted) leader(ctx context.Context, not *cluster.Node) (*cluster.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, healPatience)
	defer cancel()
	for {
		for _, n := range s.r.cluster.Nodes {
			if !n.Running() || n.Paused() {
				continue
			}
			if cl, err := direct(n); err == nil {
				_, _ = s.r.refresh(ctx, cl)
				cl.Close()
			}
		}
		if n := s.r.epochs.of(s.key()).node; n != nil && n != not && n.Running() {
			return n, nil
		}
		if !s.r.settled(ctx, 50*time.Millisecond) {
			return nil, fmt.Errorf("nobody else leads %s: %w", s.key(), ctx.Err())
		}
	}
}

// alone acknowledges some records everywhere, pauses the followers, and returns the leader.
func (s *scripted) alone(ctx context.Context) (leader *cluster.Node, err error) {
	if err := s.sendAcked(ctx, 10); err != nil {
		return nil, err
	}
	s.r.settled(ctx, 500*time.Millisecond) // every follower has them, and knows that they are committed
	if leader, err = s.leader(ctx, nil); err != nil {
		return nil, err
	}
	return leader, s.r.fault(ctx, 0, "SIGSTOP of the followers", func() error {
		var errs []error
		for _, n := range s.r.cluster.Nodes {
			if n != leader {
				errs = append(errs, n.Pause())
			}
		}
		return errors.Join(errs...)
	}, 50*time.Millisecond, nil)
}

// succeed kills the leader, lets the followers go on, and waits until one of them leads.
func (s *scripted) succeed(ctx context.Context, leader *cluster.Node) error {
	return s.r.fault(ctx, leader.Index, "kill -9 of the leader, the followers go on", func() error {
		if err := leader.Kill(); err != nil {
			return err
		}
		for _, n := range s.r.cluster.Nodes {
			if n.Paused() {
				if err := n.Resume(); err != nil {
					return err
				}
			}
		}
		_, err := s.leader(ctx, leader)
		return err
	}, 0, nil)
}

func killHighWatermark(ctx context.Context, r *run) error {
	s := r.scripted()
	if err := s.sendAcked(ctx, 10); err != nil {
		return err
	}
	r.settled(ctx, 500*time.Millisecond) // every follower has them, and knows that they are committed
	leader, err := s.leader(ctx, nil)
	if err != nil {
		return err
	}
	// Not by pausing the followers: what the leader answers to a fetch that waits would be in their sockets already.
	if err := r.fault(ctx, leader.Index, "the leader cut off", func() error { return r.cluster.Isolate(leader) }, 50*time.Millisecond, nil); err != nil {
		return err
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		s.send(leader)
	}()
	select {
	case <-answered:
	case <-time.After(1500 * time.Millisecond): // no answer, as it should be
	}
	err = s.succeed(ctx, leader)
	<-answered // at the latest now: its connection is gone
	if err != nil {
		return err
	}
	return r.scripted().sendAcked(ctx, 5)
}

func killIgnoreEpoch(ctx context.Context, r *run) error {
	s := r.scripted()
	leader, err := s.alone(ctx)
	if err != nil {
		return err
	}
	var waiting []chan check.Type
	for range 3 {
		lost := r.scripted() // one that never learns what became of its record
		answered := make(chan check.Type, 1)
		go func() { answered <- lost.send(leader) }()
		waiting = append(waiting, answered)
	}
	r.settled(ctx, 1500*time.Millisecond) // appended and synced, by the leader alone
	err = s.succeed(ctx, leader)
	for _, answered := range waiting {
		<-answered
	}
	if err != nil {
		return err
	}
	if err := s.sendAcked(ctx, 10); err != nil {
		return err
	}
	if err := leader.Start(); err != nil {
		return err
	}
	r.awaitHealth(ctx, "when the old leader is back")
	return s.sendAcked(ctx, 5)
}

func killAckBeforeSync(ctx context.Context, r *run) error {
	s, n := r.scripted(), r.cluster.Nodes[0]
	if err := s.sendAcked(ctx, 20); err != nil {
		return err
	}
	return r.fault(ctx, n.Index, "power cut, 700 ms after syncs became slow", func() error {
		end, err := n.SlowSyncs(2 * time.Second)
		if err != nil {
			return err
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for s.send(n) == check.OK { // none, as it should be
			}
		}()
		r.settled(ctx, 700*time.Millisecond)
		err = n.PowerCut()
		<-done
		return errors.Join(err, end())
	}, 0, n.Start)
}

func killSkipDedup(ctx context.Context, r *run) error {
	n := r.cluster.Nodes[0]
	process := r.newProcess()
	cl, err := kgo.NewClient(kgo.SeedBrokers(n.Addr), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0), kgo.MetadataMinAge(50*time.Millisecond))
	if err != nil {
		return err
	}
	defer cl.Close()
	r.history.Log(check.Op{F: check.Producer, Type: check.OK, Process: process, Text: "idempotent"})
	const lose, send = 3, 20
	var lost atomic.Int32
	first := proxy.First(lose, proxy.Key(proxy.Answer, 0))
	defer n.Proxy.Add(func(f proxy.Frame) proxy.Verdict {
		if !first(f) {
			return proxy.Verdict{}
		}
		lost.Add(1)
		return proxy.Verdict{Drop: true, Cut: true}
	})()
	for i := range int64(send) {
		o := check.Op{F: check.Send, Type: check.Invoke, Process: process, Key: check.Key(topics[0], 0), Value: check.Value(process, i)}
		r.history.Log(o)
		bound, cancel := context.WithTimeout(ctx, 30*time.Second)
		result := cl.ProduceSync(bound, &kgo.Record{Topic: topics[0], Partition: 0, Value: recordValue(o.Value)})[0]
		cancel()
		o.Type, o.Offset = check.OK, result.Record.Offset
		if result.Err != nil {
			return result.Err
		}
		r.history.Log(o)
	}
	if lost.Load() != lose {
		return fmt.Errorf("%d answers were lost, not %d", lost.Load(), lose)
	}
	return nil
}

func killTruncation(ctx context.Context, r *run) error {
	r.startWorkload()
	r.settled(ctx, 4*time.Second)
	for range 3 {
		s := r.scripted()
		err := r.fault(ctx, 0, "kill -9 of all, then of the new leader as soon as there is one", func() error {
			for _, n := range r.cluster.Nodes {
				if err := n.Kill(); err != nil {
					return err
				}
			}
			if err := r.restart(); err != nil {
				return err
			}
			before := r.epochs.of(s.key()).epoch
			for ctx.Err() == nil && r.epochs.of(s.key()).epoch <= before {
				if _, err := s.leader(ctx, nil); err != nil {
					return err
				}
			}
			leader, err := s.leader(ctx, nil)
			if err != nil {
				return err
			}
			return leader.Kill()
		}, 3*time.Second, r.restart)
		if err != nil {
			return err
		}
		r.settled(ctx, 4*time.Second) // not until all is whole: with the rule broken that may never be
	}
	return nil
}
