package integration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/integration/cluster"
)

// groupReader is a client library that reads in groups: it joins as one member, reads
// until it has n records, commits just those, and leaves.
type groupReader interface {
	ReadInGroup(ctx context.Context, group, protocol, topic string, n int) ([]string, error)
}

// groupClients are the libraries and the group protocols they speak, and the programs that they take.
var groupClients = []struct {
	name, protocol string
	tools          []string
	open           func(t *testing.T, b *broker) groupReader
}{
	{"franz-go", "classic", nil, func(_ *testing.T, b *broker) groupReader { return &franzGo{b: b} }},
	{"franz-go", "consumer", nil, func(_ *testing.T, b *broker) groupReader { return &franzGo{b: b} }},
	{"sarama", "classic", nil, func(_ *testing.T, b *broker) groupReader { return &saramaClient{addr: b.Addr} }},
	{"java", "classic", []string{"java", "javac", "mvn"}, openGroupReader(openJava)},
	{"java", "consumer", []string{"java", "javac", "mvn"}, openGroupReader(openJava)},
	{"confluent-go", "classic", []string{"go", "gcc"}, openGroupReader(openConfluentGo)},
	{"confluent-go", "consumer", []string{"go", "gcc"}, openGroupReader(openConfluentGo)},
	{"kafkajs", "classic", []string{"node", "npm", "kcat"}, openGroupReader(openNode("kafkajs"))},
	{"platformatic", "classic", []string{"node", "npm", "kcat"}, openGroupReader(openNode("platformatic"))},
	{"platformatic", "consumer", []string{"node", "npm", "kcat"}, openGroupReader(openNode("platformatic"))},
}

func openGroupReader(open func(t *testing.T, b *broker) clientLibrary) func(t *testing.T, b *broker) groupReader {
	return func(t *testing.T, b *broker) groupReader { return open(t, b).(groupReader) }
}

// TestGroupClients: each library in both protocols, as far as it speaks them, on three brokers and in both settings of
// millrace.group.failover. What one member has read and committed the next one does not read again, and what it has not is not lost,
// though a broker that coordinates has died in between; and franz-go, as another member of the same group, goes on where a library
// has stopped.
func TestGroupClients(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three brokers, twice")
	}
	for _, mode := range []string{"rebalance", "resume"} {
		t.Run(mode, func(t *testing.T) { groupClientsOfThree(t, mode) })
	}
}

func groupClientsOfThree(t *testing.T, mode string) {
	const records, first, second = 200, 60, 90
	c, err := cluster.Open(cluster.Config{
		Binary: millraceBinary(t), Dir: filepath.Join(t.TempDir(), "brokers"),
		Set: []string{"group.initial.rebalance.delay.ms=0", "group.min.session.timeout.ms=1000", "millrace.group.failover=" + mode},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	require.NoError(t, c.Start(ctx))
	b := &broker{t: t, Addr: c.Nodes[0].Addr} // stays
	producer := b.client(kgo.RecordPartitioner(kgo.RoundRobinPartitioner()), kgo.MetadataMinAge(100*time.Millisecond))
	adm := kadm.NewClient(producer)

	type reading struct {
		lib   groupReader
		topic string
		got   []string
	}
	all := make([]*reading, len(groupClients))
	each := func(part string, do func(t *testing.T, protocol string, r *reading)) {
		t.Run(part, func(t *testing.T) {
			for i, c := range groupClients {
				if all[i] == nil {
					continue
				}
				t.Run(c.name+" "+c.protocol, func(t *testing.T) {
					t.Parallel()
					do(t, c.protocol, all[i])
				})
			}
		})
	}
	var groups []string
	for i, c := range groupClients {
		here := false
		t.Run(c.name+" "+c.protocol, func(t *testing.T) {
			requireTools(t, c.tools...)
			here = true
		})
		if !here {
			continue
		}
		r := &reading{topic: "groups-" + c.name + "-" + c.protocol}
		r.lib = c.open(t, b)
		createTopic(t, b, r.topic, 3)
		for i := range records {
			producer.Produce(ctx, &kgo.Record{Topic: r.topic, Value: []byte(strconv.Itoa(i))}, nil)
		}
		all[i] = r
		groups = append(groups, "group-"+r.topic)
	}
	require.NoError(t, producer.Flush(ctx))
	each("before", func(t *testing.T, protocol string, r *reading) {
		got, err := r.lib.ReadInGroup(ctx, "group-"+r.topic, protocol, r.topic, first)
		require.NoError(t, err)
		require.Len(t, got, first)
		r.got = got
		listed, err := adm.ListGroups(ctx) // before another library makes the group what it speaks
		require.NoError(t, err)
		require.Equal(t, protocol, listed["group-"+r.topic].GroupType, "the library spoke another protocol than it was told to")
	})

	victim, of := c.Nodes[1], 0
	for _, found := range adm.FindGroupCoordinators(ctx, groups...) {
		require.NoError(t, found.Err)
		if net.JoinHostPort(found.Host, strconv.Itoa(int(found.Port))) == victim.Addr {
			of++
		}
	}
	require.Positive(t, of, "it coordinates none of %d groups", len(groups))
	require.NoError(t, victim.Kill())
	require.Eventually(t, func() bool {
		for _, found := range adm.FindGroupCoordinators(ctx, groups...) {
			if found.Err != nil || net.JoinHostPort(found.Host, strconv.Itoa(int(found.Port))) == victim.Addr {
				return false
			}
		}
		return true
	}, patience, 20*time.Millisecond, "others coordinate its groups")

	each("after", func(t *testing.T, protocol string, r *reading) {
		got, err := r.lib.ReadInGroup(ctx, "group-"+r.topic, protocol, r.topic, second)
		require.NoError(t, err)
		require.Len(t, got, second)
		rest, err := (&franzGo{b: b}).ReadInGroup(ctx, "group-"+r.topic, protocol, r.topic, records-first-second)
		require.NoError(t, err)
		all := slices.Concat(r.got, got, rest)
		slices.SortFunc(all, func(a, b string) int { return len(a)*1000 - len(b)*1000 + strings.Compare(a, b) })
		want := make([]string, records)
		for i := range want {
			want[i] = strconv.Itoa(i)
		}
		require.Equal(t, want, all, "each record once, none lost")
	})
}

// ReadInGroup implements groupReader.
func (f *franzGo) ReadInGroup(ctx context.Context, group, protocol, topic string, n int) ([]string, error) {
	if protocol == "consumer" {
		//lint:ignore SA1029 it is the key that the library looks for
		ctx = context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true)
	}
	cl, err := kgo.NewClient(kgo.WithContext(ctx), kgo.SeedBrokers(f.b.Addr), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	var got []string
	for len(got) < n {
		fetches := cl.PollRecords(ctx, n-len(got))
		if err := fetches.Err0(); err != nil {
			return got, err
		}
		records := fetches.Records()
		for _, r := range records {
			got = append(got, string(r.Value))
		}
		if err := cl.CommitRecords(ctx, records...); err != nil {
			return got, err
		}
	}
	return got, cl.LeaveGroupContext(ctx)
}

// ReadInGroup implements groupReader.
func (s *saramaClient) ReadInGroup(ctx context.Context, group, _, topic string, n int) ([]string, error) {
	cfg := sarama.NewConfig()
	cfg.Version = sarama.V2_8_0_0
	cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
	cfg.Consumer.Offsets.AutoCommit.Enable = false
	cfg.Consumer.Group.Rebalance.Timeout = 10 * time.Second
	g, err := sarama.NewConsumerGroup([]string{s.addr}, group, cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h := &saramaHandler{n: n, enough: cancel}
	err = g.Consume(ctx, []string{topic}, h)
	return h.got, errors.Join(err, g.Close())
}

// saramaHandler takes n records of all claims together.
type saramaHandler struct {
	mu     sync.Mutex
	n      int
	got    []string
	enough func()
}

func (h *saramaHandler) Setup(sarama.ConsumerGroupSession) error { return nil }

func (h *saramaHandler) Cleanup(s sarama.ConsumerGroupSession) error {
	s.Commit()
	return nil
}

func (h *saramaHandler) ConsumeClaim(s sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case m, ok := <-claim.Messages():
			if !ok || !h.take(string(m.Value)) {
				return nil
			}
			s.MarkMessage(m, "")
		case <-s.Context().Done():
			return nil
		}
	}
}

func (h *saramaHandler) take(value string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.got) == h.n {
		return false
	}
	if h.got = append(h.got, value); len(h.got) == h.n {
		h.enough()
	}
	return true
}

// ReadInGroup implements groupReader.
func (p *program) ReadInGroup(ctx context.Context, group, protocol, topic string, n int) ([]string, error) {
	name := p.file()
	if _, err := p.do(ctx, "group", group, protocol, topic, n, name); err != nil {
		return nil, err
	}
	content, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	records, err := parseRecords(content)
	if err != nil {
		return nil, fmt.Errorf("what %s read in a group: %w", p.dir, err)
	}
	var got []string
	for _, r := range records {
		got = append(got, string(r.Value))
	}
	return got, nil
}
