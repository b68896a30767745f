package broker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/metadata"
)

// A fourth broker joins while records are written, and gets its share; one of the first three is decommissioned and has
// nothing left; every acknowledged record is read back once, in order.
func TestBalancerMovesReplicas(t *testing.T) {
	if os.Getenv("MILLRACE_LONG") == "" {
		t.Skip("runs with MILLRACE_LONG=1: a new broker must live for five seconds before anything is moved to it")
	}
	g := newGroup(t, 3)
	store := g.brokers[0].Store()
	topics := []metadata.NewTopic{{Name: "three", Partitions: 8, ReplicationFactor: 3}, {Name: "one", Partitions: 8, ReplicationFactor: 1}}
	for _, r := range store.CreateTopics(t.Context(), topics, false) {
		require.NoError(t, r.Err)
	}
	writing, stop := context.WithCancel(t.Context())
	written := make(chan map[string]int)
	cl := client(t, g.brokers[1], kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(10*time.Millisecond))
	go func() {
		n := map[string]int{}
		defer func() { written <- n }()
		for i := 0; writing.Err() == nil; i++ {
			for _, topic := range topics {
				p := i % int(topic.Partitions)
				key := fmt.Sprint(topic.Name, p)
				if err := cl.ProduceSync(context.Background(), &kgo.Record{Topic: topic.Name, Partition: int32(p), Value: fmt.Append(nil, n[key])}).FirstErr(); err != nil {
					t.Errorf("produce: %v", err)
					return
				}
				n[key]++
			}
		}
	}()

	fourth := startBroker(t, memberConfig(t, filepath.Join(t.TempDir(), "data"), 0, g.configs[0].Peers.GossipBind))
	spread := func(im *metadata.Image) map[metadata.BrokerID]int {
		count := map[metadata.BrokerID]int{}
		for topic := range im.Topics() {
			for _, p := range topic.Partitions {
				for _, id := range p.Replicas {
					count[id]++
				}
			}
		}
		return count
	}
	defer func() {
		if t.Failed() {
			status, err := fourth.Store().BalanceStatus(context.Background())
			t.Logf("replicas %v, balancer %+v, %v", spread(store.Image()), status, err)
		}
	}()
	require.Eventually(t, func() bool {
		for id := range metadata.BrokerID(5) {
			if n := spread(store.Image())[id]; id > 0 && (n < 7 || n > 9) {
				return false
			}
		}
		status, err := fourth.Store().BalanceStatus(t.Context())
		return err == nil && !status.Running
	}, 4*patience, 20*time.Millisecond, "the fourth broker has its share")
	status, err := fourth.Store().BalanceStatus(t.Context())
	require.NoError(t, err)
	require.Contains(t, status.Trigger, "4 joined") // with others, if the balancer had not looked since the cluster was formed
	for _, m := range status.Moves {
		require.Equal(t, metadata.MoveDone, m.State, m.Trouble)
	}

	require.NoError(t, store.Image().CheckDecommission(3))
	require.NoError(t, fourth.Store().Decommission(t.Context(), 3, true))
	require.Eventually(t, func() bool { return spread(store.Image())[3] == 0 }, 4*patience, 20*time.Millisecond, "nothing is left on broker 3")
	stop()
	n := <-written

	reader := client(t, g.brokers[0], kgo.ConsumeTopics("three", "one"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	total := 0
	for _, m := range n {
		total += m
	}
	got := map[string]int{}
	for read := 0; read < total; {
		fetches := reader.PollFetches(t.Context())
		require.NoError(t, fetches.Err0())
		fetches.EachRecord(func(r *kgo.Record) {
			key := fmt.Sprint(r.Topic, r.Partition)
			require.Equal(t, fmt.Sprint(got[key]), string(r.Value), key)
			got[key]++
			read++
		})
	}
	require.Equal(t, n, got)
}
