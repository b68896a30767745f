package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
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
)

// groupReader is a client library that reads in groups: it joins as one member, reads
// until it has n records, commits just those, and leaves.
type groupReader interface {
	ReadInGroup(ctx context.Context, group, protocol, topic string, n int) ([]string, error)
}

// groupClients are the libraries and the group protocols they speak.
var groupClients = []struct {
	name, protocol string
	open           func(t *testing.T, b *broker) groupReader
}{
	{"franz-go", "classic", func(_ *testing.T, b *broker) groupReader { return &franzGo{b: b} }},
	{"franz-go", "consumer", func(_ *testing.T, b *broker) groupReader { return &franzGo{b: b} }},
	{"sarama", "classic", func(_ *testing.T, b *broker) groupReader { return &saramaClient{addr: b.Addr} }},
	{"java", "classic", openGroupReader(openJava)},
	{"java", "consumer", openGroupReader(openJava)},
	{"confluent-go", "classic", openGroupReader(openConfluentGo)},
	{"confluent-go", "consumer", openGroupReader(openConfluentGo)},
	{"kafkajs", "classic", openGroupReader(openNode("kafkajs"))},
	{"platformatic", "classic", openGroupReader(openNode("platformatic"))},
	{"platformatic", "consumer", openGroupReader(openNode("platformatic"))},
}

func openGroupReader(open func(t *testing.T, b *broker) clientLibrary) func(t *testing.T, b *broker) groupReader {
	return func(t *testing.T, b *broker) groupReader { return open(t, b).(groupReader) }
}

// TestGroupClients: each library in both protocols, as far as it speaks them. What one
// member has read and committed the next one does not read again, and what it has not is
// not lost; and franz-go, as another member of the same group, goes on where a library
// has stopped.
func TestGroupClients(t *testing.T) {
	const records, first, second = 200, 60, 90
	b := startBroker(t, "group.initial.rebalance.delay.ms=0", "group.min.session.timeout.ms=1000")
	for _, c := range groupClients {
		t.Run(c.name+" "+c.protocol, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
			defer cancel()
			lib := c.open(t, b)
			topic := "groups-" + c.name + "-" + c.protocol
			createTopic(t, b, topic, 3)
			producer := b.client(kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
			for i := range records {
				producer.Produce(ctx, &kgo.Record{Topic: topic, Value: []byte(strconv.Itoa(i))}, nil)
			}
			require.NoError(t, producer.Flush(ctx))
			group := "group-" + topic
			var all []string
			for _, n := range []int{first, second} {
				got, err := lib.ReadInGroup(ctx, group, c.protocol, topic, n)
				require.NoError(t, err)
				require.Len(t, got, n)
				all = append(all, got...)
			}
			rest, err := (&franzGo{b: b}).ReadInGroup(ctx, group, c.protocol, topic, records-first-second)
			require.NoError(t, err)
			all = append(all, rest...)
			listed, err := kadm.NewClient(producer).ListGroups(ctx)
			require.NoError(t, err)
			require.Equal(t, c.protocol, listed[group].GroupType, "the library spoke another protocol than it was told to")
			slices.SortFunc(all, func(a, b string) int { return len(a)*1000 - len(b)*1000 + strings.Compare(a, b) })
			want := make([]string, records)
			for i := range want {
				want[i] = strconv.Itoa(i)
			}
			require.Equal(t, want, all, "each record once, none lost")
		})
	}
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
