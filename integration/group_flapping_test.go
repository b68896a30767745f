package integration

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/integration/cluster"
	"github.com/millrace/millrace/integration/member"
)

var (
	flapStops  = flag.Int("flap.stops", 2, "how often TestBrokerFlaps stops a broker")
	flapLength = flag.Duration("flap.length", 0, "for how long, and how long it runs between two stops; 0: until it is fenced, and until it has its groups back")
)

// flapDamped are stops of which the last ones find the broker fenced still: how many, and the longest, with as long between them.
const flapDamped, flapDampedLength = 10, 8 * time.Second

// TestBrokerFlaps: a broker is stopped (SIGSTOP) again and again, each time until gossip calls it dead and the controller fences it,
// the first time while it is the controller itself. Groups that others coordinate notice nothing of it; members of its own keep their
// ids, and are in exactly one new generation for each time that the broker was fenced, or in none with millrace.group.failover=resume
// (G6, G8, D6). A coordinator moves once with each fence, and back once. The same for both protocols.
//
// With -flap.stops 10 -flap.length 8s it is the trap in full: then the broker is kept fenced, in the end, while it goes on like that.
func TestBrokerFlaps(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three brokers, twice")
	}
	for _, mode := range []string{"rebalance", "resume"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel() // they mostly wait
			flaps(t, mode)
		})
	}
}

// flapping is a cluster with groups, one of whose brokers is stopped again and again.
type flapping struct {
	t      *testing.T
	c      *cluster.Cluster
	adm    *kadm.Client
	groups []*flapGroup
	victim *cluster.Node
	id     int32 // the victim's
	others []*cluster.Node
}

// flapGroup is a group and its members.
type flapGroup struct {
	name, protocol string
	// coordinator is where it is coordinated as long as all brokers run.
	coordinator string
	members     []*kgo.Client
	// evicted counts what a member that is none any more calls back.
	evicted atomic.Int32
	// before are the members as they were at first, with the generation.
	before map[string]int32

	mu    sync.Mutex
	moves []string // coordinators, as they followed each other
}

const flapTopic, flapPartitions = "flap", 6

func flaps(t *testing.T, mode string) {
	c, err := cluster.Open(cluster.Config{
		Binary: millraceBinary(t), Dir: filepath.Join(t.TempDir(), "brokers"),
		Set: []string{"group.initial.rebalance.delay.ms=500", "group.consumer.heartbeat.interval.ms=1000", "millrace.group.failover=" + mode},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience+3*time.Duration(*flapStops)**flapLength)
	defer cancel()
	require.NoError(t, c.Start(ctx))
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Seeds()...), kgo.MetadataMinAge(100*time.Millisecond))
	require.NoError(t, err)
	defer cl.Close()
	f := &flapping{t: t, c: c, adm: kadm.NewClient(cl)}
	made, err := f.adm.CreateTopic(ctx, flapPartitions, 3, nil, flapTopic)
	require.NoError(t, err)
	require.NoError(t, made.Err)
	f.choose(ctx)

	watching, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	for _, g := range f.groups {
		for range 2 {
			g.join(watching, t, c.Seeds(), &work)
		}
	}
	for _, g := range f.groups {
		g.before = f.settled(ctx, g, 0)
	}
	work.Go(func() { f.watch(watching) })

	for i := range *flapStops {
		f.stop(ctx, cl, i == 0)
		f.check(ctx, mode)
	}
	f.await("the broker has its groups back", func() bool { return !f.fenced(ctx) && f.home() })
	f.works(ctx, cl)
	f.check(ctx, mode)
	fences := 0
	for _, g := range f.groups {
		path := g.path()
		if g.coordinator != f.victim.Addr {
			require.Len(t, path, 1, "%s moves", g.name)
			continue
		}
		fences = f.departures(g)
		require.Len(t, path, 1+2*fences, "%s moves there and back, and nothing else", g.name)
	}
	t.Logf("its groups were coordinated by others %d times in %d stops", fences, *flapStops)
	if *flapLength > 0 && *flapLength <= flapDampedLength && *flapStops >= flapDamped {
		require.Less(t, fences, *flapStops*2/3, "the broker comes back between all stops")
	}
}

func (f *flapping) await(what string, done func() bool) {
	f.t.Helper()
	require.Eventually(f.t, done, 2*patience, 50*time.Millisecond, what)
}

// choose takes the controller for the broker that is stopped, and for each broker and protocol a group that it coordinates.
func (f *flapping) choose(ctx context.Context) {
	brokers := map[int32]string{}
	all, err := f.adm.BrokerMetadata(ctx)
	require.NoError(f.t, err)
	for _, b := range all.Brokers {
		brokers[b.NodeID] = fmt.Sprintf("%s:%d", b.Host, b.Port)
	}
	var seen []flapBroker
	f.await("there is a controller", func() bool {
		seen, err = f.brokers(ctx, f.c.Nodes[0])
		return err == nil && slices.ContainsFunc(seen, func(b flapBroker) bool { return b.Controller })
	})
	for _, b := range seen {
		if b.Controller {
			f.id = b.ID
		}
	}
	for _, n := range f.c.Nodes {
		if n.Addr == brokers[f.id] {
			f.victim = n
		} else {
			f.others = append(f.others, n)
		}
	}
	require.NotNil(f.t, f.victim)
	for _, protocol := range []string{"classic", "consumer"} {
		var names []string
		for i := range 40 {
			names = append(names, fmt.Sprintf("flap-%s-%d", protocol, i))
		}
		addrs, err := member.Coordinators(f.victim.Addr, names...)
		require.NoError(f.t, err)
		for _, n := range f.c.Nodes {
			i := slices.Index(addrs, n.Addr)
			require.GreaterOrEqual(f.t, i, 0, "a group for %s", n.Addr)
			f.groups = append(f.groups, &flapGroup{name: names[i], protocol: protocol, coordinator: n.Addr, moves: []string{n.Addr}})
		}
	}
}

// join adds a member, which reads until ctx ends.
func (g *flapGroup) join(ctx context.Context, t *testing.T, seeds []string, work *sync.WaitGroup) {
	spoken := context.WithoutCancel(ctx)
	if g.protocol == "consumer" {
		//lint:ignore SA1029 it is the key that the library looks for
		spoken = context.WithValue(spoken, "opt_in_kafka_next_gen_balancer_beta", true)
	}
	cl, err := kgo.NewClient(kgo.WithContext(spoken), kgo.SeedBrokers(seeds...), kgo.ConsumerGroup(g.name), kgo.ConsumeTopics(flapTopic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.AutoCommitInterval(200*time.Millisecond), kgo.HeartbeatInterval(time.Second), kgo.MetadataMinAge(100*time.Millisecond),
		kgo.FetchMaxWait(250*time.Millisecond), // a partition that has moved waits for the answer to the fetch that its new leader has already
		kgo.OnPartitionsLost(func(context.Context, *kgo.Client, map[string][]int32) { g.evicted.Add(1) }))
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	g.members = append(g.members, cl)
	work.Go(func() {
		for ctx.Err() == nil {
			cl.PollFetches(ctx)
		}
	})
}

// settled returns the members of a stable group with their generation, once all are in the same, which is at least that.
func (f *flapping) settled(ctx context.Context, g *flapGroup, least int32) map[string]int32 {
	seen := map[string]int32{}
	f.await(fmt.Sprintf("%s settles in generation %d or later", g.name, least), func() bool {
		clear(seen)
		_, first := g.members[0].GroupMetadata()
		for _, m := range g.members {
			id, generation := m.GroupMetadata()
			if id == "" || generation < max(1, least) || generation != first {
				return false
			}
			seen[id] = generation
		}
		listed, err := f.adm.ListGroups(ctx)
		return err == nil && listed[g.name].State == "Stable" && len(seen) == len(g.members)
	})
	return seen
}

// stop stops the broker once, until it is fenced and gone from gossip, and lets it go on.
func (f *flapping) stop(ctx context.Context, cl *kgo.Client, first bool) {
	was := f.fenced(ctx)
	printed := map[*cluster.Node]int64{}
	for _, n := range f.others {
		printed[n] = n.LogSize()
	}
	length, cancel := context.WithTimeout(ctx, *flapLength)
	defer cancel()
	require.NoError(f.t, f.victim.Pause())
	f.await("it is fenced", func() bool { return f.fenced(ctx) })
	if !was && (first || *flapLength == 0) {
		f.await("gossip calls it dead", func() bool {
			return slices.ContainsFunc(f.others, func(n *cluster.Node) bool { return strings.Contains(n.LogFrom(printed[n]), "broker gone from gossip") })
		})
	}
	f.await("others coordinate its groups", func() bool {
		return !slices.ContainsFunc(f.groups, func(g *flapGroup) bool { return g.at() == f.victim.Addr })
	})
	<-length.Done()
	require.NoError(f.t, f.victim.Resume())
	if *flapLength > 0 {
		breathe(ctx, *flapLength)
		return
	}
	f.await("the broker has its groups back", func() bool { return !f.fenced(ctx) && f.home() })
	f.works(ctx, cl)
}

// works writes to all partitions, and waits until all groups have read and committed that.
func (f *flapping) works(ctx context.Context, cl *kgo.Client) {
	for range 10 * flapPartitions {
		require.NoError(f.t, cl.ProduceSync(ctx, &kgo.Record{Topic: flapTopic, Value: []byte("v")}).FirstErr())
	}
	ends, err := f.adm.ListEndOffsets(ctx, flapTopic)
	require.NoError(f.t, err)
	for _, g := range f.groups {
		f.await(g.name+" has committed everything", func() bool {
			offsets, err := f.adm.FetchOffsets(ctx, g.name)
			if err != nil {
				return false
			}
			for _, end := range ends[flapTopic] {
				if o, ok := offsets.Lookup(flapTopic, end.Partition); end.Offset > 0 && (!ok || o.At < end.Offset) {
					return false
				}
			}
			return true
		})
	}
}

// path are the brokers that have coordinated the group, as they followed each other, as far as was seen.
func (g *flapGroup) path() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.moves)
}

// at is where the group is coordinated.
func (g *flapGroup) at() string {
	path := g.path()
	return path[len(path)-1]
}

// departures is how often others than the broker that is stopped have taken the group over.
func (f *flapping) departures(g *flapGroup) (n int) {
	path := g.path()
	for _, from := range path[:len(path)-1] {
		if from == f.victim.Addr {
			n++
		}
	}
	return n
}

// check compares the members with those of before, after the broker was fenced so often.
func (f *flapping) check(ctx context.Context, mode string) {
	for _, g := range f.groups {
		more := int32(0)
		if mode == "rebalance" {
			more = int32(f.departures(g))
		}
		want := map[string]int32{}
		for id, generation := range g.before {
			want[id] = generation + more
		}
		least := int32(0)
		for _, generation := range want {
			least = generation
		}
		require.Equal(f.t, want, f.settled(ctx, g, least), "%s, coordinated by %s: %v", g.name, g.coordinator, g.path())
		require.Zero(f.t, g.evicted.Load(), "%s: members that were told that they are none", g.name)
	}
}

// flapBroker is a broker as the admin API tells of it.
type flapBroker struct {
	ID                 int32
	Fenced, Controller bool
}

func (f *flapping) brokers(ctx context.Context, n *cluster.Node) (all []flapBroker, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	body, err := n.Get(ctx, "/v1/brokers")
	if err != nil {
		return nil, err
	}
	return all, json.Unmarshal(body, &all)
}

// fenced reports whether the broker is, as both others know.
func (f *flapping) fenced(ctx context.Context) bool {
	count := 0
	for _, n := range f.others {
		f.await("broker "+n.Addr+" answers", func() bool {
			all, err := f.brokers(ctx, n)
			if slices.Contains(all, flapBroker{ID: f.id, Fenced: true}) {
				count++
			}
			return err == nil
		})
	}
	return count == len(f.others)
}

func (f *flapping) names() (names []string) {
	for _, g := range f.groups {
		names = append(names, g.name)
	}
	return names
}

// home reports whether each group is coordinated where it was at first, as all brokers say.
func (f *flapping) home() bool {
	for _, n := range f.c.Nodes {
		addrs, err := member.Coordinators(n.Addr, f.names()...)
		if err != nil {
			return false
		}
		for i, g := range f.groups {
			if addrs[i] != g.coordinator || g.at() != g.coordinator {
				return false
			}
		}
	}
	return true
}

// watch notes where the groups are coordinated, as one of the other brokers says.
func (f *flapping) watch(ctx context.Context) {
	names := f.names()
	for ctx.Err() == nil {
		addrs, err := member.Coordinators(f.others[0].Addr, names...)
		for i, g := range f.groups {
			if err != nil {
				break
			}
			g.mu.Lock()
			if g.moves[len(g.moves)-1] != addrs[i] {
				g.moves = append(g.moves, addrs[i])
			}
			g.mu.Unlock()
		}
		breathe(ctx, 50*time.Millisecond)
	}
}
