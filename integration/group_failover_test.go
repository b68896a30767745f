package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/integration/cluster"
)

// TestCoordinatorKilled: a broker that coordinates a group dies. With the default, its members are in one new generation
// soon after, under the ids they had; with millrace.group.failover=resume nothing changes for them. In both, what was
// committed stays committed as every answer tells it (G4, G6, D6), and the members read on until they have everything. The same
// for members of the classic protocol and of that of consumer groups (KIP-848), whose epoch is bumped.
func TestCoordinatorKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three brokers, four times")
	}
	for _, mode := range []string{"rebalance", "resume"} {
		for _, protocol := range []string{"classic", "consumer"} {
			t.Run(mode+" "+protocol, func(t *testing.T) {
				t.Parallel() // they mostly wait
				coordinatorKilled(t, mode, protocol)
			})
		}
	}
}

// failoverMember is one consumer of the group.
type failoverMember struct {
	cl  *kgo.Client
	got map[string]int
}

func coordinatorKilled(t *testing.T, mode, protocol string) {
	const group, topic, members, records = "billing", "orders", 3, 3000
	c, err := cluster.Open(cluster.Config{
		Binary: millraceBinary(t), Dir: filepath.Join(t.TempDir(), "brokers"),
		Set: []string{"group.initial.rebalance.delay.ms=1000", "millrace.group.failover=" + mode},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	defer cancel()
	require.NoError(t, c.Start(ctx))
	admin, err := kgo.NewClient(kgo.SeedBrokers(c.Seeds()...), kgo.MetadataMinAge(100*time.Millisecond))
	require.NoError(t, err)
	defer admin.Close()
	adm := kadm.NewClient(admin)
	made, err := adm.CreateTopic(ctx, 6, 3, nil, topic)
	require.NoError(t, err)
	require.NoError(t, made.Err)

	var mu sync.Mutex
	all := make([]*failoverMember, members)
	polling, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	spoken := ctx
	if protocol == "consumer" {
		//lint:ignore SA1029 it is the key that the library looks for
		spoken = context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true)
	}
	for i := range all {
		cl, err := kgo.NewClient(kgo.WithContext(spoken), kgo.SeedBrokers(c.Seeds()...), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
			kgo.AutoCommitInterval(200*time.Millisecond), kgo.MetadataMinAge(100*time.Millisecond))
		require.NoError(t, err)
		defer cl.Close()
		m := &failoverMember{cl: cl, got: map[string]int{}}
		all[i] = m
		work.Go(func() {
			for polling.Err() == nil {
				fetches := cl.PollFetches(polling)
				mu.Lock()
				fetches.EachRecord(func(r *kgo.Record) { m.got[string(r.Value)]++ })
				mu.Unlock()
			}
		})
	}
	settled := func(not map[string]int32) map[string]int32 {
		seen := map[string]int32{}
		require.Eventually(t, func() bool {
			listed, err := adm.ListGroups(ctx)
			if err != nil || listed[group].State != "Stable" || listed[group].GroupType != protocol {
				return false
			}
			clear(seen)
			_, first := all[0].cl.GroupMetadata()
			for _, m := range all {
				id, generation := m.cl.GroupMetadata()
				if before, ok := not[id]; id == "" || generation < 1 || generation != first || ok && before >= generation {
					return false
				}
				seen[id] = generation
			}
			return len(seen) == members
		}, 2*patience, 20*time.Millisecond, "the members do not settle")
		return seen
	}
	before := settled(nil)
	produce := func(from, to int) {
		for i := from; i < to; i++ {
			admin.Produce(ctx, &kgo.Record{Topic: topic, Key: []byte(strconv.Itoa(i)), Value: []byte(strconv.Itoa(i))}, nil)
		}
		require.NoError(t, admin.Flush(ctx))
	}
	produce(0, records/2)
	committed := func() (sum int64) {
		offsets, err := adm.FetchOffsets(ctx, group)
		if err != nil {
			return -1
		}
		offsets.Each(func(o kadm.OffsetResponse) { sum += o.At })
		return sum
	}
	require.Eventually(t, func() bool { return committed() >= records/2 }, patience, 20*time.Millisecond, "the first half is committed")

	found := adm.FindGroupCoordinators(ctx, group)
	require.NoError(t, found[group].Err)
	// Ids follow the order of addresses, not that of our list.
	victim := c.Nodes[slices.IndexFunc(c.Nodes, func(n *cluster.Node) bool {
		return n.Addr == net.JoinHostPort(found[group].Host, fmt.Sprint(found[group].Port))
	})]
	diagnosed(t, c, victim, found[group].NodeID, group, members)
	killed := time.Now()
	require.NoError(t, victim.Kill())
	produce(records/2, records)
	switch mode {
	case "rebalance":
		after := settled(before)
		t.Logf("all members in the new generation %s after the kill", time.Since(killed).Round(10*time.Millisecond))
		for id, generation := range after {
			require.Contains(t, before, id, "members keep their ids")
			require.Equal(t, before[id]+1, generation, "exactly one new generation")
		}
	case "resume":
		require.Eventually(t, func() bool {
			now := adm.FindGroupCoordinators(ctx, group)[group]
			return now.Err == nil && now.NodeID != found[group].NodeID
		}, patience, 20*time.Millisecond, "another broker coordinates the group")
	}
	low := int64(0)
	require.Eventually(t, func() bool {
		if now := committed(); now >= 0 {
			require.GreaterOrEqual(t, now, low, "a commit was lost")
			low = now
		}
		return low >= records
	}, 2*patience, 20*time.Millisecond, "everything is committed")
	require.GreaterOrEqual(t, low, int64(records))
	if mode == "resume" {
		for _, m := range all {
			id, generation := m.cl.GroupMetadata()
			require.Contains(t, before, id, "members keep their ids")
			require.Equal(t, before[id], generation, "the generation goes on")
		}
	}
	mu.Lock()
	defer mu.Unlock()
	times := map[string]int{}
	for _, m := range all {
		for v, n := range m.got {
			times[v] += n
		}
	}
	for i := range records {
		require.Positive(t, times[strconv.Itoa(i)], "record %d was read by nobody", i)
	}
}

// diagnosed asks a broker that does not coordinate the group for its diagnosis, and each for its metrics: the coordinator
// alone exports the group's, with the ends of logs that others lead.
func diagnosed(t *testing.T, c *cluster.Cluster, coordinator *cluster.Node, id int32, group string, members int) {
	t.Helper()
	other := c.Nodes[coordinator.Index%len(c.Nodes)]
	resp, err := http.Get(fmt.Sprintf("http://%s/v1/groups/%s/diagnosis", other.HTTP, group))
	require.NoError(t, err)
	defer resp.Body.Close()
	var d struct {
		Coordinator int32
		Members     []struct{ Partitions int }
		Partitions  []struct {
			Topic   string
			Lag     int64
			Trouble string
		}
		Findings []struct{ What, Why string }
	}
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&d))
	require.Equal(t, id, d.Coordinator)
	require.Len(t, d.Members, members)
	require.Len(t, d.Partitions, 6)
	leaders := 0
	for _, p := range d.Partitions {
		require.Empty(t, p.Trouble)
		require.GreaterOrEqual(t, p.Lag, int64(0))
	}
	require.Empty(t, d.Findings)
	for _, n := range c.Nodes {
		series := metrics(t, n.HTTP)
		_, ok := series[`kafka_consumergroup_lag_sum{consumergroup="`+group+`",topic="orders"}`]
		require.Equal(t, n == coordinator, ok, "broker %d", n.Index)
		if ok {
			leaders++
			require.Equal(t, strconv.Itoa(members), series[`kafka_consumergroup_members{consumergroup="`+group+`"}`])
			require.Contains(t, series, `kafka_consumergroup_lag_seconds{consumergroup="`+group+`",partition="5",topic="orders"}`)
		}
	}
	require.Equal(t, 1, leaders)
}

// metrics are a broker's series with their values.
func metrics(t *testing.T, addr string) map[string]string {
	t.Helper()
	resp, err := http.Get("http://" + addr + "/metrics")
	require.NoError(t, err)
	defer resp.Body.Close()
	series := map[string]string{}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), "} "); ok {
			series[name+"}"] = value
		}
	}
	return series
}
