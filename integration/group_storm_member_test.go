package integration

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// stormMember is a member that speaks the protocols by hand.
type stormMember struct {
	t          *testing.T
	cl         *kgo.Client
	group      string
	topic      string
	topicID    [16]byte
	id, leader string
	generation int32    // or the member epoch
	members    []string // of the leader
	// owned is what it says that it has, given what it was told to have last; nil if it was told nothing.
	owned, given []int32
	heard        time.Time // when it sent the last heartbeat that was accepted, by KIP-848
	answered     func()    // is called when it has got its id, or its first epoch
}

// newStormMember makes a member that has not joined yet. By KIP-848 it has named itself.
func newStormMember(r *stormRun, topic string, topicID [16]byte) *stormMember {
	m := &stormMember{t: r.t, cl: r.c.client(r.t, kgo.RequestTimeoutOverhead(time.Minute), kgo.RequestRetries(3)), group: r.group, topic: topic, topicID: topicID, answered: func() {}}
	if r.protocol == "consumer" {
		m.id = rand.Text()
	}
	return m
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
			m.answered()
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

func (m *stormMember) heartbeat(ctx context.Context) error {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.MemberID, req.Generation = m.group, m.id, m.generation
	resp, err := req.RequestWith(ctx, m.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	return err
}

// beat is one heartbeat by KIP-848, that says everything.
func (m *stormMember) beat(ctx context.Context, rebalance time.Duration) error {
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Group, req.MemberID, req.MemberEpoch = m.group, m.id, m.generation
	req.RebalanceTimeoutMillis, req.SubscribedTopicNames = int32(rebalance.Milliseconds()), []string{m.topic}
	req.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	if len(m.owned) > 0 {
		req.Topics = append(req.Topics, kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: m.topicID, Partitions: m.owned})
	}
	resp, err := req.RequestWith(ctx, m.cl)
	if err != nil {
		m.cl.ForceMetadataRefresh() // see soon
	} else {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	m.generation, m.given = resp.MemberEpoch, nil
	if resp.Assignment != nil {
		m.given = []int32{}
		for _, t := range resp.Assignment.Topics {
			m.given = append(m.given, t.Partitions...)
		}
	}
	m.answered()
	return nil
}

// leave says goodbye by KIP-848.
func (m *stormMember) leave(ctx context.Context) {
	m.generation = -1
	if err := m.beat(ctx, time.Second); err != nil {
		m.t.Errorf("goodbye: %v", err)
	}
}

// putOut says whether an answer means that the sender has to join anew.
func putOut(err error) bool {
	return errors.Is(err, kerr.UnknownMemberID) || errors.Is(err, kerr.FencedMemberEpoch)
}

// breathe lets time pass between two requests of a member.
func breathe(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
