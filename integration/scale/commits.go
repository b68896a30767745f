package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/integration/cluster"
	"github.com/millrace/millrace/integration/member"
)

// Goals of issue 5 for commits.
const (
	commitsGoal  = 10_000 // a second
	commitsRatio = 2      // produce p99 with them, times that without
)

// measureCommits has members of classic groups commit offsets, each on a connection of its own and so many by one request as
// asked for, at rising rates and at last as fast as they are answered, while paced producers write. It compares the producers'
// p99 with that without commits, in turns, and says how many commits share a Raft entry.
func (b *bench) measureCommits(ctx context.Context) (err error) {
	c, err := b.open(ctx, "commits", "min.insync.replicas=2", "group.initial.rebalance.delay.ms=500")
	if err != nil {
		return err
	}
	defer b.end(c, "commits", &err)
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Seeds()...))
	if err != nil {
		return err
	}
	defer cl.Close()
	const partitions, groups = 12, 334
	topics := []string{"paced", "read"}
	if err := create(ctx, cl, topics, partitions, 3); err != nil {
		return err
	}
	if err := whole(ctx, c, topics, 2*partitions, 3); err != nil {
		return err
	}
	var l load
	var end func()
	producer := 0
	if interval := partitions * time.Second / time.Duration(b.produced); b.together {
		end, err = l.start(c.Seeds(), "paced", partitions, interval, 100)
	} else {
		end, producer, err = l.startApart(c.Seeds(), "paced", partitions, interval, 100)
	}
	if err != nil {
		return err
	}
	defer end()
	k := newCommitters(c.Seeds(), "read", partitions, groups, 3)
	k.producer, k.each = producer, b.each
	if err := k.start(ctx); err != nil {
		return err
	}
	defer k.end()
	b.logf("%d members in %d groups", len(k.all), groups)
	if err := pause(ctx, 3*time.Second); err != nil {
		return err
	}
	calm, err := k.step(ctx, c, &l, 0, b.step)
	if err != nil {
		return err
	}
	b.tell(fmt.Sprintf("%d members of %d groups, heartbeats only: CPU of the brokers; producers' median, p99", len(k.all), groups), "%s; %s, %s", calm.load(), round(calm.median), round(calm.p99))
	last := calm
	for _, rate := range b.rates {
		// With and without commits in turns, and the median of each: the disk and the cores are others' too, whose moment is in
		// one of the turns.
		with, without := []commitStep{}, []commitStep{last}
		for range b.turns {
			s, err := k.step(ctx, c, &l, rate, b.step)
			if err != nil {
				return err
			}
			if last, err = k.step(ctx, c, &l, 0, b.step); err != nil {
				return err
			}
			with, without = append(with, s), append(without, last)
		}
		s, base := median(with), median(without).p99
		what := fmt.Sprintf("%d offsets/s asked for, %d by a request", rate, b.each)
		if rate == unpaced {
			what = fmt.Sprintf("%d members commit as fast as they are answered", len(k.all))
		}
		worst, elections, refused := time.Duration(0), 0, 0
		for _, w := range with {
			worst, elections, refused = max(worst, w.commitWorst), elections+w.elections, refused+w.refused
		}
		got := fmt.Sprintf("%.0f/s, commit p50 %s p99 %s worst %s, %.0f commits per entry, produce p99 %s (%.1fx of %s; in turns %s; %s), CPU %s, elections %d, refused %d",
			s.rate, round(s.commitMedian), round(s.commitP99), round(worst), s.perEntry, round(s.p99), float64(s.p99)/float64(base), round(base), p99s(with), p99s(without), s.load(), elections, refused)
		if rate == commitsGoal {
			b.judge(what, s.rate >= 0.98*commitsGoal && s.p99 <= commitsRatio*base && elections == 0 && refused == 0, "≥ 10,000/s, produce p99 ≤ 2x, no election", "%s", got)
		} else {
			b.tell(what, "%s", got)
		}
	}
	if errs := l.failed(); len(errs) > 0 {
		return fmt.Errorf("%d records were refused, such as: %w", len(errs), errs[0])
	}
	return nil
}

// unpaced has each member commit again as soon as it is answered.
const unpaced = -1

// committers are members that commit.
type committers struct {
	topic string
	all   []*member.Member
	// interval is how long each member waits between commits: 0 does not commit, 1 does not wait.
	interval atomic.Int64
	stop     context.CancelFunc
	work     sync.WaitGroup
	producer int // its process, 0: this one
	each     int // offsets by each request

	mu      sync.Mutex
	took    []time.Duration
	refused int
	lost    int
}

func newCommitters(seeds []string, topic string, partitions, groups, size int) *committers {
	k := &committers{topic: topic}
	for i := range groups * size {
		k.all = append(k.all, member.New(member.Config{Seeds: seeds, Group: fmt.Sprintf("group-%04d", i/size), Topics: []string{topic}, Partitions: partitions, Notice: k.notice}))
	}
	return k
}

func (k *committers) notice(e member.Event) {
	if e.Kind == member.Lost {
		k.mu.Lock()
		k.lost++
		k.mu.Unlock()
	}
}

// start has all join, and waits until they have. They begin over the interval of their heartbeats, as clients are that know nothing of each
// other: a thousand heartbeats at once would hold all else up, at times with commits and at times without.
func (k *committers) start(ctx context.Context) error {
	ctx, k.stop = context.WithCancel(ctx)
	var joined atomic.Int64
	begin := make(chan struct{}, 100) // so many connect at once
	first := time.Now()
	for i, m := range k.all {
		if err := pause(ctx, time.Until(first.Add(3*time.Second*time.Duration(i)/time.Duration(len(k.all))))); err != nil {
			return err
		}
		begin <- struct{}{}
		k.work.Go(func() {
			if err := m.Connect(ctx); err != nil {
				k.mu.Lock()
				k.refused++
				k.mu.Unlock()
			}
			<-begin
			k.run(ctx, i, m, &joined)
		})
	}
	return until(ctx, patience, 50*time.Millisecond, func(context.Context) error {
		if n := int(joined.Load()); n < len(k.all) {
			return fmt.Errorf("%d of %d members have joined", n, len(k.all))
		}
		return nil
	})
}

// run is one member's life.
func (k *committers) run(ctx context.Context, i int, m *member.Member, joined *atomic.Int64) {
	seen := false
	mine := make([]int32, k.each) // a group's three members commit different partitions, as they read them
	for j := range mine {
		mine[j] = int32((i + 3*j) % 12)
	}
	var next time.Time
	interval := int64(0)
	for offset := int64(0); ctx.Err() == nil; {
		if seen != m.Joined() && !seen {
			seen = true
			joined.Add(1)
		}
		if now := k.interval.Load(); now != interval {
			// Spread over the interval, as clients are that know nothing of each other.
			interval, next = now, time.Now().Add(time.Duration(now)*time.Duration(i)/time.Duration(len(k.all)))
		}
		if interval == 0 || m.Conn() == nil || !m.Joined() || m.NextBeat().Before(time.Now()) {
			turn, cancel := ctx, context.CancelFunc(func() {})
			if m.Joined() && m.NextBeat().After(time.Now()) {
				turn, cancel = context.WithTimeout(ctx, time.Second) // to look at the interval again
			}
			err := m.Turn(turn)
			cancel()
			if err != nil {
				m.Drop()
				_ = pause(ctx, 100*time.Millisecond)
			}
			continue
		}
		if interval > 1 {
			if wait := time.Until(next); wait > 0 {
				_ = pause(ctx, min(wait, time.Second))
				if time.Until(next) > 0 {
					continue
				}
			}
			if next = next.Add(time.Duration(interval)); time.Since(next) > time.Duration(interval) {
				next = time.Now()
			}
		}
		began := time.Now()
		code, err := m.Commit(k.topic, mine, offset)
		took := time.Since(began)
		offset++
		k.mu.Lock()
		if err == nil && code == 0 {
			k.took = append(k.took, took)
		} else if ctx.Err() == nil {
			k.refused++
		}
		k.mu.Unlock()
		if err != nil {
			m.Drop()
		}
	}
	m.Drop()
}

func (k *committers) end() {
	k.stop()
	k.work.Wait()
}

// commitStep is what a while of commits came to.
type commitStep struct {
	rate                                 float64 // offsets whose commit was answered, in a second
	commitMedian, commitP99, commitWorst time.Duration
	perEntry                             float64 // commits for each Raft entry
	median, p99                          time.Duration
	cores                                []float64 // CPU of each broker
	client, producer, others, stolen     float64   // CPU of this process, of the producers' if that is another, of what is not part of this, and of the host
	elections, refused                   int
	entries, syncs                       float64       // Raft entries, and syncs of records' logs by all brokers, in a second
	sync                                 time.Duration // one of those, on average
}

// load tells the CPU of the brokers, of this process and the producers', of all else on the machine, and what its host has taken, in percent
// of a core.
func (s commitStep) load() string {
	var out []string
	for _, c := range s.cores {
		out = append(out, fmt.Sprintf("%.0f", 100*c))
	}
	return fmt.Sprintf("%s %%, clients %.0f+%.0f %%, others %.0f %%, stolen %.0f %%; %.0f entries/s, %.0f syncs of records/s of %s", strings.Join(out, "+"), 100*s.client, 100*s.producer, 100*s.others, 100*s.stolen, s.entries, s.syncs, round(s.sync))
}

// median returns the step whose produce p99 is the middle one, of two the lower one.
func median(all []commitStep) commitStep {
	all = slices.SortedFunc(slices.Values(all), func(x, y commitStep) int { return cmp.Compare(x.p99, y.p99) })
	return all[(len(all)-1)/2]
}

// p99s lists the produce p99 of steps in their order.
func p99s(all []commitStep) string {
	var out []string
	for _, s := range all {
		out = append(out, round(s.p99).String())
	}
	return strings.Join(out, " ")
}

// step measures a while of commits at a rate, all members together.
func (k *committers) step(ctx context.Context, c *cluster.Cluster, l *load, rate int, length time.Duration) (s commitStep, err error) {
	switch rate {
	case 0:
		k.interval.Store(0)
	case unpaced:
		k.interval.Store(1)
	default:
		k.interval.Store(int64(len(k.all)*k.each) * int64(time.Second) / int64(rate))
	}
	defer k.interval.Store(0)
	if err := pause(ctx, 1500*time.Millisecond); err != nil { // until all have begun
		return s, err
	}
	before, err := counters(ctx, c)
	if err != nil {
		return s, err
	}
	all, err := lookAtMachine()
	if err != nil {
		return s, err
	}
	produced, err := cpuOfProcess(k.producer)
	if err != nil {
		return s, err
	}
	k.mu.Lock()
	k.took, k.refused = k.took[:0], 0
	k.mu.Unlock()
	from := time.Now()
	if err := pause(ctx, length); err != nil {
		return s, err
	}
	to := time.Now()
	k.mu.Lock()
	took := slices.Clone(k.took)
	s.refused = k.refused + k.lost
	k.mu.Unlock()
	after, err := counters(ctx, c)
	if err != nil {
		return s, err
	}
	now, err := lookAtMachine()
	if err != nil {
		return s, err
	}
	producedNow, err := cpuOfProcess(k.producer)
	if err != nil {
		return s, err
	}
	if err := pause(ctx, 2*reportEvery); err != nil { // until the producers have told of what came by now
		return s, err
	}
	slices.Sort(took)
	s.rate = float64(len(took)*k.each) / to.Sub(from).Seconds()
	if n := len(took); n > 0 {
		s.commitMedian, s.commitP99, s.commitWorst = took[n/2], took[n*99/100], took[n-1]
	}
	_, s.median, s.p99, _ = l.latency(from, to)
	var commits, entries, term, was float64
	for i := range after {
		commits += after[i].commits - before[i].commits
		entries += after[i].entries - before[i].entries
		term, was = max(term, after[i].term), max(was, before[i].term)
		s.cores = append(s.cores, (after[i].cpu-before[i].cpu).Seconds()/to.Sub(from).Seconds())
	}
	s.elections = int(term - was)
	s.client = (now.self - all.self).Seconds() / now.at.Sub(all.at).Seconds()
	s.producer = (producedNow - produced).Seconds() / now.at.Sub(all.at).Seconds()
	s.stolen = (now.stolen - all.stolen).Seconds() / now.at.Sub(all.at).Seconds()
	s.others = (now.busy-all.busy).Seconds()/now.at.Sub(all.at).Seconds() - s.client - s.producer
	for _, c := range s.cores {
		s.others -= c
	}
	s.others = max(s.others, 0)
	s.entries = entries / to.Sub(from).Seconds()
	for i := range after {
		s.syncs += after[i].syncs - before[i].syncs
		s.sync += time.Duration((after[i].syncing - before[i].syncing) * float64(time.Second))
	}
	if s.syncs > 0 {
		s.sync = time.Duration(float64(s.sync) / s.syncs)
	}
	s.syncs /= to.Sub(from).Seconds()
	if entries > 0 {
		s.perEntry = commits / entries
	}
	return s, nil
}
