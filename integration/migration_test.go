package integration

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// movingMember is a member of a group that notes what it owns and what it reads.
type movingMember struct {
	cl   *kgo.Client
	done chan struct{}
	mu   struct {
		sync.Mutex
		owns map[int32]bool
	}
}

// readings are the values that all members have read, and how often.
type readings struct {
	mu   sync.Mutex
	seen map[string]int
}

func (r *readings) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen)
}

func (r *readings) join(t *testing.T, b *broker, group, protocol, topic string) *movingMember {
	m := &movingMember{done: make(chan struct{})}
	m.mu.owns = map[int32]bool{}
	ctx := context.Background()
	if protocol == "consumer" {
		//lint:ignore SA1029 it is the key that the library looks for
		ctx = context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true)
	}
	note := func(owned bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			m.mu.Lock()
			defer m.mu.Unlock()
			for _, p := range partitions[topic] {
				if owned {
					m.mu.owns[p] = true
				} else {
					delete(m.mu.owns, p)
				}
			}
		}
	}
	var err error
	m.cl, err = kgo.NewClient(kgo.SeedBrokers(b.Addr), kgo.WithContext(ctx), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.HeartbeatInterval(200*time.Millisecond), kgo.AutoCommitInterval(100*time.Millisecond),
		kgo.OnPartitionsAssigned(note(true)), kgo.OnPartitionsRevoked(note(false)), kgo.OnPartitionsLost(note(false)))
	require.NoError(t, err)
	go func() {
		defer close(m.done)
		for {
			fetches := m.cl.PollFetches(ctx)
			if fetches.IsClientClosed() {
				return
			}
			fetches.EachRecord(func(rec *kgo.Record) {
				r.mu.Lock()
				r.seen[string(rec.Value)]++
				r.mu.Unlock()
			})
		}
	}()
	t.Cleanup(m.leave)
	return m
}

func (m *movingMember) leave() {
	m.cl.Close()
	<-m.done
}

func (m *movingMember) owned() []int32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.mu.owns))
}

// KIP-848, live migration: the members of a group are changed over one by one, forth and back, while records come. At each
// step all partitions are owned, each by one member, and no record is lost.
func TestLiveMigration(t *testing.T) {
	const partitions = 6
	b := startBroker(t, "group.initial.rebalance.delay.ms=0", "group.consumer.heartbeat.interval.ms=200")
	topic, group := "moving", "moving-group"
	createTopic(t, b, topic, partitions)
	producer := b.client(kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	r := &readings{seen: map[string]int{}}
	sent := 0
	step := func(what, kind string, members ...*movingMember) {
		t.Helper()
		require.Eventually(t, func() bool {
			var all []int32
			for _, m := range members {
				owned := m.owned()
				if len(owned) == 0 {
					return false
				}
				all = append(all, owned...)
			}
			slices.Sort(all)
			return slices.Equal(all, []int32{0, 1, 2, 3, 4, 5})
		}, 30*time.Second, 20*time.Millisecond, what)
		for range 60 {
			producer.Produce(context.Background(), &kgo.Record{Topic: topic, Value: []byte(strconv.Itoa(sent))}, nil)
			sent++
		}
		require.NoError(t, producer.Flush(context.Background()))
		require.Eventually(t, func() bool { return r.count() == sent }, 30*time.Second, 20*time.Millisecond, "%s: records are read", what)
		groups, err := kadm.NewClient(producer).ListGroups(context.Background())
		require.NoError(t, err)
		require.Equal(t, kind, groups[group].GroupType, what)
	}
	classic := r.join(t, b, group, "classic", topic)
	step("a classic member alone", "classic", classic)
	modern := r.join(t, b, group, "consumer", topic)
	step("one of each", "consumer", classic, modern)
	classic.leave()
	step("changed over", "consumer", modern)
	again := r.join(t, b, group, "classic", topic)
	step("a classic member comes back", "consumer", modern, again)
	modern.leave()
	step("changed back", "classic", again)
}
