package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/integration/check"
	"github.com/millrace/millrace/integration/cluster"
)

// gapMeter keeps the longest time between two acknowledgements of each partition since it was last asked.
type gapMeter struct {
	mu      sync.Mutex
	last    map[string]time.Time
	longest map[string]time.Duration
	acked   int
	failed  []error
}

func (g *gapMeter) note(key string, err error) {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil {
		g.failed = append(g.failed, err)
		return
	}
	g.acked++
	if last, ok := g.last[key]; ok {
		g.longest[key] = max(g.longest[key], now.Sub(last))
	}
	g.last[key] = now
}

// reset forgets the gaps so far, but not since when each partition waits.
func (g *gapMeter) reset() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.longest)
}

// of returns the longest gap of some partitions, one that still lasts included.
func (g *gapMeter) of(keys []string) (out time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, k := range keys {
		out = max(out, g.longest[k])
		if last, ok := g.last[k]; ok {
			out = max(out, time.Since(last))
		}
	}
	return out
}

// load sends to every partition with one franz-go producer: idempotent, acks=all, a metadata age of 100 ms.
func (g *gapMeter) load(ctx context.Context, r *run, pause time.Duration) (wait func(), err error) {
	g.last, g.longest = map[string]time.Time{}, map[string]time.Duration{}
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.cluster.Seeds()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(100*time.Millisecond), kgo.ProducerLinger(0))
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer cl.Close()
		tick := time.NewTicker(pause)
		defer tick.Stop()
		value := make([]byte, 100)
		for i := 0; ctx.Err() == nil; i++ {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			for _, topic := range topics {
				for p := range int32(partitionsPerTopic) {
					key := check.Key(topic, p)
					cl.TryProduce(context.Background(), &kgo.Record{Topic: topic, Partition: p, Value: value}, func(_ *kgo.Record, err error) {
						if !errors.Is(err, kgo.ErrMaxBuffered) && !errors.Is(err, kgo.ErrClientClosed) {
							g.note(key, err)
						}
					})
				}
			}
		}
	}()
	return func() { <-done }, nil
}

// sample is one fault of the measurement.
type sample struct {
	gap        time.Duration
	controller bool // the victim led the metadata too
	others     bystander
}

// measureFailover prints how long the partitions that a victim led went without an acknowledgement.
func measureFailover(ctx context.Context, o options) (code int, err error) {
	r := &run{options: o, name: "failover", seed: o.seed, random: newRandom(o.seed), topics: topics, perTopic: partitionsPerTopic, dir: filepath.Join(o.keep, "failover")}
	if err := errors.Join(os.RemoveAll(r.dir), os.MkdirAll(r.dir, 0o755)); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, r.closeCluster(), os.RemoveAll(r.dir)) }()
	if err := r.open(ctx, &scenario{name: "failover"}); err != nil {
		return 1, err
	}
	load, stop := context.WithCancel(ctx)
	var meter gapMeter
	begin := meter.load
	if o.client != "kgo" {
		begin = meter.loadBy
	}
	wait, err := begin(load, r, 5*time.Millisecond)
	if err != nil {
		stop()
		return 1, err
	}
	defer func() {
		stop()
		wait()
	}()
	w := table.NewWriter()
	w.SetStyle(table.StyleLight)
	fmt.Printf("client: %s\n", o.client)
	w.AppendHeader(table.Row{"fault", "times", "median gap", "worst gap", "the Raft leader too", "median gap", "worst gap", "errors at the client", "others lead after", "a second producer is served after"})
	for _, f := range []struct {
		name   string
		times  int
		begin  func(*cluster.Node) error
		length time.Duration
		end    func(*cluster.Node) error
	}{
		{"kill -9 of a leader", o.kills, (*cluster.Node).Kill, 3 * time.Second, (*cluster.Node).Start},
		{"planned stop of a leader", max(o.kills/4, 3), (*cluster.Node).Stop, time.Second, (*cluster.Node).Start},
		{"SIGSTOP of a leader for 8 s", max(o.kills/4, 3), (*cluster.Node).Pause, 8 * time.Second, (*cluster.Node).Resume},
	} {
		errorsBefore := len(meter.failed)
		var samples []sample
		for range f.times {
			if !r.settled(ctx, time.Second) {
				return 130, ctx.Err()
			}
			wait, cancel := context.WithTimeout(ctx, healPatience)
			err := r.healthy(wait)
			cancel()
			if err != nil {
				return 1, err
			}
			victim, keys := r.busiest(len(samples)%2 == 1)
			s := sample{controller: victim == r.controller()}
			meter.reset()
			if err := f.begin(victim); err != nil {
				return 1, err
			}
			look, stop := context.WithTimeout(ctx, f.length)
			s.others = r.watch(look, victim, keys)
			r.settled(look, f.length)
			stop()
			if err := f.end(victim); err != nil {
				return 1, err
			}
			r.settled(ctx, r.aftermath())
			s.gap = meter.of(keys)
			samples = append(samples, s)
			r.logf("%s: node %d, controller %t, %d partitions: %s; others lead after %s, serve a second producer after %s", f.name, victim.Index, s.controller, len(keys), s.gap.Round(time.Millisecond),
				s.others.elected.Round(time.Millisecond), s.others.acked.Round(time.Millisecond))
		}
		all, median, worst := spread(samples, false)
		both, medianBoth, worstBoth := spread(samples, true)
		w.AppendRow(table.Row{f.name, all, median, worst, both, medianBoth, worstBoth, len(meter.failed) - errorsBefore,
			middle(samples, func(s sample) time.Duration { return s.others.elected }), middle(samples, func(s sample) time.Duration { return s.others.acked })})
	}
	fmt.Println(w.Render())
	fmt.Printf("%d records acknowledged\n", meter.acked)
	for _, e := range meter.failed[:min(len(meter.failed), 3)] {
		fmt.Printf("an error at the client: %v\n", e)
	}
	return 0, nil
}

// aftermath is how long a gap may last on after the end of the fault: a client of its own defaults may wait for long.
func (r *run) aftermath() time.Duration {
	if r.client == "kgo" {
		return time.Second
	}
	return 5 * time.Second
}

// middle is the median and the worst of a figure, "never" when it was not reached.
func middle(samples []sample, of func(sample) time.Duration) string {
	var all []time.Duration
	for _, s := range samples {
		if of(s) == 0 {
			return "not always"
		}
		all = append(all, of(s).Round(time.Millisecond))
	}
	if len(all) == 0 {
		return ""
	}
	slices.Sort(all)
	return fmt.Sprintf("%s, worst %s", all[len(all)/2], all[len(all)-1])
}

// busiest chooses a node that leads something, the controller if asked for and possible, and what it leads.
func (r *run) busiest(controller bool) (*cluster.Node, []string) {
	led := map[*cluster.Node][]string{}
	for _, topic := range topics {
		for p := range int32(partitionsPerTopic) {
			key := check.Key(topic, p)
			if n := r.epochs.of(key).node; n != nil {
				led[n] = append(led[n], key)
			}
		}
	}
	if n := r.controller(); controller && len(led[n]) > 0 {
		return n, led[n]
	}
	best := r.cluster.Nodes[0]
	for _, n := range r.cluster.Nodes {
		if len(led[n]) > len(led[best]) {
			best = n
		}
	}
	return best, led[best]
}

// spread returns how many samples there are, and their median and worst gap; of those only in which the victim was the
// controller, if so asked.
func spread(samples []sample, controller bool) (n int, median, worst time.Duration) {
	var gaps []time.Duration
	for _, s := range samples {
		if s.controller || !controller {
			gaps = append(gaps, s.gap.Round(time.Millisecond))
		}
	}
	if len(gaps) == 0 {
		return 0, 0, 0
	}
	slices.Sort(gaps)
	return len(gaps), gaps[len(gaps)/2], gaps[len(gaps)-1]
}
