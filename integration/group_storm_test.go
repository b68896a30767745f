package integration

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// stormSession is the session of every member here; what has to wait for one to end has not passed.
const stormSession = 45 * time.Second

// TestRebalanceStorms: members that do not play by the rules do not stop those that do. In each case two real consumers must
// have read everything long before a session of the disturber would have ended by itself.
func TestRebalanceStorms(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for rebalance timeouts")
	}
	b := startBroker(t, "group.initial.rebalance.delay.ms=100")
	for i, c := range []struct {
		name    string
		disturb func(ctx context.Context, m *stormMember)
	}{
		// Trap 24: each repetition leaves an id behind that nobody uses.
		{"a member repeats the join handshake", func(ctx context.Context, m *stormMember) {
			for ctx.Err() == nil {
				m.id = ""
				_, _ = m.join(ctx, 3*time.Second)
				breathe(ctx, 20*time.Millisecond)
			}
		}},
		{"a member never syncs", func(ctx context.Context, m *stormMember) {
			for ctx.Err() == nil {
				if err := m.joinAs(ctx, 2*time.Second); err != nil {
					m.id = ""
				}
				for range 4 { // it lives, and says so
					_, _ = m.heartbeat(ctx)
					breathe(ctx, 500*time.Millisecond)
				}
			}
		}},
		{"a leader dies between join and sync", func(ctx context.Context, m *stormMember) {
			if err := m.joinAs(ctx, 2*time.Second); err == nil && m.leader == m.id {
				m.died.Store(true)
			}
			m.cl.Close()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
			defer cancel()
			topic := "storm-" + strconv.Itoa(i)
			createTopic(t, b, topic, 4)
			producer := b.client(kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
			const records = 200
			for i := range records {
				producer.Produce(ctx, &kgo.Record{Topic: topic, Value: []byte(strconv.Itoa(i))}, nil)
			}
			require.NoError(t, producer.Flush(ctx))

			disturbing, stop := context.WithCancel(ctx)
			var work sync.WaitGroup
			defer work.Wait()
			defer stop()
			m := newStormMember(t, b, topic, topic)
			begun := make(chan struct{})
			work.Go(func() {
				if c.name == "a leader dies between join and sync" { // before there is another member
					c.disturb(disturbing, m)
					close(begun)
					return
				}
				close(begun)
				c.disturb(disturbing, m)
			})
			<-begun
			if c.name == "a leader dies between join and sync" {
				require.True(t, m.died.Load(), "it led, and did not sync")
			}
			var mu sync.Mutex
			got := map[string]bool{}
			for range 2 {
				cl := b.client(kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RebalanceTimeout(5*time.Second))
				work.Go(func() {
					for disturbing.Err() == nil {
						cl.PollFetches(disturbing).EachRecord(func(r *kgo.Record) {
							mu.Lock()
							got[string(r.Value)] = true
							mu.Unlock()
						})
					}
				})
			}
			require.Eventually(t, func() bool {
				mu.Lock()
				defer mu.Unlock()
				return len(got) == records
			}, stormSession*2/3, 20*time.Millisecond, "the consumers wait for the one that does not play by the rules")
		})
	}
}

// TestTwoHundredJoin: 200 members that join within a second are in one generation, each with its own assignment, after few
// others, and nobody is left out.
func TestTwoHundredJoin(t *testing.T) {
	if testing.Short() {
		t.Skip("two hundred members")
	}
	const members = 200
	b := startBroker(t, "group.initial.rebalance.delay.ms=100")
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	var all [members]*stormMember
	for i := range all {
		all[i] = newStormMember(t, b, "crowd", "none")
	}
	together, stop := context.WithCancel(ctx)
	defer stop()
	var work sync.WaitGroup
	var mu sync.Mutex
	in := map[int32]map[string]bool{} // generation → who has an assignment in it
	for _, m := range all {
		work.Go(func() {
			for together.Err() == nil {
				if err := m.joinAs(together, 20*time.Second); err != nil {
					continue
				}
				given, err := m.sync(together)
				if err != nil {
					continue
				}
				if string(given) != m.id {
					t.Errorf("%s was given the share of %q", m.id, given)
				}
				mu.Lock()
				if in[m.generation] == nil {
					in[m.generation] = map[string]bool{}
				}
				in[m.generation][m.id] = true
				whole := len(in[m.generation]) == members
				mu.Unlock()
				if whole {
					stop()
				}
				for together.Err() == nil {
					if _, err := m.heartbeat(together); err != nil {
						break
					}
					breathe(together, 200*time.Millisecond)
				}
			}
		})
	}
	work.Wait()
	require.NoError(t, ctx.Err(), "the members do not get together: generations and their members: %v", len(in))
	t.Logf("%d generations until all were in one", len(in))
	require.LessOrEqual(t, len(in), 12, "generations until all were in one")
}

// stormMember is a member that speaks the protocol by hand.
type stormMember struct {
	cl         *kgo.Client
	group      string
	topic      string
	id, leader string
	generation int32
	members    []string // of the leader
	died       atomic.Bool
}

func newStormMember(t *testing.T, b *broker, group, topic string) *stormMember {
	cl := b.client(kgo.RequestTimeoutOverhead(time.Minute), kgo.RequestRetries(3))
	t.Cleanup(cl.Close)
	return &stormMember{cl: cl, group: group, topic: topic}
}

// join is one JoinGroup.
func (m *stormMember) join(ctx context.Context, rebalance time.Duration) (*kmsg.JoinGroupResponse, error) {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.MemberID, req.ProtocolType = m.group, m.id, "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = int32(stormSession.Milliseconds()), int32(rebalance.Milliseconds())
	for _, name := range []string{"cooperative-sticky", "sticky", "range"} {
		p := kmsg.NewJoinGroupRequestProtocol()
		meta := kmsg.NewConsumerMemberMetadata()
		meta.Topics = []string{m.topic}
		p.Name, p.Metadata = name, meta.AppendTo(nil)
		req.Protocols = append(req.Protocols, p)
	}
	resp, err := req.RequestWith(ctx, m.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	return resp, err
}

// joinAs joins until it is in a generation.
func (m *stormMember) joinAs(ctx context.Context, rebalance time.Duration) error {
	for {
		resp, err := m.join(ctx, rebalance)
		if errors.Is(err, kerr.MemberIDRequired) {
			m.id = resp.MemberID
			continue
		}
		if err != nil {
			if errors.Is(err, kerr.UnknownMemberID) {
				m.id = ""
			}
			return fmt.Errorf("join: %w", err)
		}
		m.id, m.leader, m.generation, m.members = resp.MemberID, resp.LeaderID, resp.Generation, nil
		for _, other := range resp.Members {
			m.members = append(m.members, other.MemberID)
		}
		return nil
	}
}

// sync gives, as the leader, each member its own id.
func (m *stormMember) sync(ctx context.Context) ([]byte, error) {
	req := kmsg.NewPtrSyncGroupRequest()
	req.Group, req.MemberID, req.Generation = m.group, m.id, m.generation
	for _, id := range m.members {
		a := kmsg.NewSyncGroupRequestGroupAssignment()
		a.MemberID, a.MemberAssignment = id, []byte(id)
		req.GroupAssignment = append(req.GroupAssignment, a)
	}
	kind, name := "consumer", "cooperative-sticky"
	req.ProtocolType, req.Protocol = &kind, &name
	resp, err := req.RequestWith(ctx, m.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return nil, fmt.Errorf("sync: %w", err)
	}
	return resp.MemberAssignment, nil
}

func (m *stormMember) heartbeat(ctx context.Context) (*kmsg.HeartbeatResponse, error) {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.MemberID, req.Generation = m.group, m.id, m.generation
	resp, err := req.RequestWith(ctx, m.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	return resp, err
}

// breathe lets time pass between two requests of a member.
func breathe(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
