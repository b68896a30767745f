package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/millrace/millrace/integration/check"
	"github.com/millrace/millrace/integration/cluster"
)

// rawMember is a member of a group that a script leads step by step. All that counts are the partitions of the first topic.
type rawMember struct {
	r          *run
	group      string
	process    int
	id         string
	generation int32
	cl         *kgo.Client
	node       *cluster.Node // its coordinator, nil: found by the client
}

func (r *run) rawMember(group string) (*rawMember, error) {
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(8, 9) // topics by name
	versions.SetMaxKeyVersion(9, 8)
	versions.SetMaxKeyVersion(26, 4) // the first protocol of transactions, step by step
	versions.SetMaxKeyVersion(28, 4)
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.cluster.Seeds()...), kgo.MaxVersions(versions), kgo.MetadataMinAge(100*time.Millisecond), kgo.RequestRetries(0), kgo.RetryTimeout(time.Second),
		kgo.RequestTimeoutOverhead(3*time.Second), kgo.DialTimeout(3*time.Second))
	if err != nil {
		return nil, err
	}
	return &rawMember{r: r, group: group, process: r.newProcess(), generation: -1, cl: cl}, nil
}

// join is JoinGroup and SyncGroup by which the member gets everything; it must be alone, or the only one that speaks.
func (m *rawMember) join(ctx context.Context) error {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis, req.ProtocolType = m.group, 6000, 6000, "consumer"
	protocol := kmsg.NewJoinGroupRequestProtocol()
	protocol.Name, protocol.Metadata = "range", (&kmsg.ConsumerMemberMetadata{Topics: topics}).AppendTo(nil)
	req.Protocols = append(req.Protocols, protocol)
	for {
		req.MemberID = m.id
		resp, err := req.RequestWith(ctx, m.cl)
		if err != nil {
			return err
		}
		switch err := kerr.ErrorForCode(resp.ErrorCode); {
		case errors.Is(err, kerr.MemberIDRequired):
			m.id = resp.MemberID
			continue
		case err != nil:
			return fmt.Errorf("join %s: %w", m.group, err)
		}
		m.id, m.generation = resp.MemberID, resp.Generation
		break
	}
	sync := kmsg.NewPtrSyncGroupRequest()
	sync.Group, sync.MemberID, sync.Generation = m.group, m.id, m.generation
	kind, name := "consumer", "range"
	sync.ProtocolType, sync.Protocol = &kind, &name
	given := kmsg.NewSyncGroupRequestGroupAssignment()
	given.MemberID = m.id
	assignment := kmsg.ConsumerMemberAssignment{Topics: []kmsg.ConsumerMemberAssignmentTopic{{Topic: topics[0], Partitions: []int32{0}}}}
	given.MemberAssignment = assignment.AppendTo(nil)
	sync.GroupAssignment = append(sync.GroupAssignment, given)
	resp, err := sync.RequestWith(ctx, m.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("sync %s: %w", m.group, err)
	}
	m.claim(0)
	return nil
}

func (m *rawMember) claim(partitions ...int32) {
	for _, p := range partitions {
		m.r.history.Log(check.Op{F: check.Claim, Type: check.OK, Process: m.process, Group: m.group, Key: check.Key(topics[0], p), Epoch: m.generation, Text: m.id})
	}
}

// heartbeat is one heartbeat of the consumer protocol; it returns what the member was given with it.
func (m *rawMember) heartbeat(ctx context.Context) (given []int32, err error) {
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Group, req.MemberID, req.MemberEpoch = m.group, m.id, max(m.generation, 0)
	if m.generation < 0 {
		req.RebalanceTimeoutMillis, req.SubscribedTopicNames, req.Topics = 30_000, topics[:1], []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	}
	resp, err := req.RequestWith(ctx, m.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return nil, fmt.Errorf("heartbeat of %s: %w", m.id, err)
	}
	m.generation = resp.MemberEpoch
	if resp.Assignment != nil {
		for _, t := range resp.Assignment.Topics {
			given = append(given, t.Partitions...)
		}
	}
	return given, nil
}

// commit commits the start of a partition of the first topic, outside of a generation if the member is in none.
func (m *rawMember) commit(ctx context.Context, partition int32) check.Type {
	o := check.Op{F: check.Commit, Type: check.Invoke, Process: m.process, Group: m.group, Key: check.Key(topics[0], partition), Epoch: m.generation}
	m.r.history.Log(o)
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Generation, req.MemberID = m.group, m.generation, m.id
	t, p := kmsg.NewOffsetCommitRequestTopic(), kmsg.NewOffsetCommitRequestTopicPartition()
	t.Topic, p.Partition = topics[0], partition
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	var to kmsg.Requestor = m.cl
	if m.node != nil { // and not by way of one that does not answer
		cl, err := direct(m.node)
		if err != nil {
			return check.Fail
		}
		defer cl.Close()
		to = cl.SeedBrokers()[0]
	}
	resp, err := req.RequestWith(ctx, to)
	switch o.Type = check.OK; {
	case err != nil:
		o.Type, o.Error = check.Info, err.Error()
	case resp.Topics[0].Partitions[0].ErrorCode != 0:
		err := kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
		o.Type, o.Error = check.Info, err.Error()
		for _, fenced := range []error{kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.FencedInstanceID, kerr.RebalanceInProgress, kerr.StaleMemberEpoch, kerr.FencedMemberEpoch} {
			if errors.Is(err, fenced) {
				o.Type = check.Fail
			}
		}
	}
	m.r.history.Log(o)
	return o.Type
}

// askOffsets asks until there is an answer.
func (r *run) askOffsets(ctx context.Context, group string) error {
	ctx, cancel := context.WithTimeout(ctx, healPatience)
	defer cancel()
	cl, err := r.byName()
	if err != nil {
		return err
	}
	defer cl.Close()
	for {
		if _, err = r.offsets(ctx, cl, r.newProcess(), groupSpec{name: group}); err == nil {
			return nil
		}
		if !r.settled(ctx, 200*time.Millisecond) {
			return err
		}
	}
}

// killUnfenced has a member commit that was put out of its group while another took over.
func killUnfenced(ctx context.Context, r *run) error {
	if err := r.scripted().sendAcked(ctx, 5); err != nil {
		return err
	}
	old, err := r.rawMember("zombies")
	if err != nil {
		return err
	}
	defer old.cl.Close()
	if err := old.join(ctx); err != nil {
		return err
	}
	if done := old.commit(ctx, 0); done != check.OK {
		return fmt.Errorf("the owner's commit: %s", done)
	}
	r.remark("the owner falls silent")
	successor, err := r.rawMember("zombies")
	if err != nil {
		return err
	}
	defer successor.cl.Close()
	if err := successor.join(ctx); err != nil {
		return err
	}
	if done := successor.commit(ctx, 0); done != check.OK {
		return fmt.Errorf("the new owner's commit: %s", done)
	}
	old.commit(ctx, 0)
	return nil
}

// killGivenTwice has a second member join while the first, which has everything, says nothing about giving any of it up.
func killGivenTwice(ctx context.Context, r *run) error {
	if err := r.scripted().sendAcked(ctx, 5); err != nil {
		return err
	}
	var members []*rawMember
	for i := range 3 {
		m, err := r.rawMember("shares")
		if err != nil {
			return err
		}
		defer m.cl.Close()
		m.id = fmt.Sprintf("00000000-0000-4000-8000-00000000000%d", i)
		members = append(members, m)
	}
	owner := members[0]
	beat := func(m *rawMember, patience time.Duration) ([]int32, error) {
		for until := time.Now().Add(patience); ; {
			given, err := m.heartbeat(ctx)
			if len(given) > 0 || err != nil || time.Now().After(until) {
				return given, err
			}
			r.settled(ctx, 200*time.Millisecond)
		}
	}
	all, err := beat(owner, 10*time.Second)
	if err != nil || len(all) != r.perTopic {
		return fmt.Errorf("the first member got %v: %w", all, err)
	}
	owner.claim(all...)
	for _, m := range members[1:] { // neither gets anything before the owner has spoken
		given, err := beat(m, 1500*time.Millisecond)
		if err != nil {
			return err
		}
		m.claim(given...)
	}
	for _, p := range all {
		if done := owner.commit(ctx, p); done != check.OK {
			return fmt.Errorf("the owner's commit: %s", done)
		}
	}
	return nil
}

// killCommitEarly commits at a coordinator whose word reaches nobody, kills it, and asks the next one.
func killCommitEarly(ctx context.Context, r *run) error {
	if err := r.scripted().sendAcked(ctx, 5); err != nil {
		return err
	}
	m, n, err := r.coordinatedByController(ctx)
	if err != nil {
		return err
	}
	defer m.cl.Close()
	if err := r.askOffsets(ctx, m.group); err != nil {
		return err
	}
	err = r.fault(ctx, n.Index, "SIGSTOP of all but the coordinator, a commit, kill -9 of the coordinator", func() error {
		for _, o := range r.cluster.Nodes {
			if o != n {
				if err := o.Pause(); err != nil {
					return err
				}
			}
		}
		bound, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
		defer cancel()
		m.commit(bound, 0) // no answer, as it should be
		err := n.Kill()
		for _, o := range r.cluster.Nodes {
			if o != n {
				err = errors.Join(err, o.Resume())
			}
		}
		return err
	}, 0, nil)
	if err != nil {
		return err
	}
	if err := r.askOffsets(ctx, m.group); err != nil {
		return err
	}
	return n.Start()
}

// coordinatedByController finds a group that the controller coordinates, so that a commit is on its way to nobody else.
func (r *run) coordinatedByController(ctx context.Context) (*rawMember, *cluster.Node, error) {
	for i := range 100 {
		m, err := r.rawMember(fmt.Sprintf("early-%d", i))
		if err != nil {
			return nil, nil, err
		}
		if cl, err := direct(r.cluster.Nodes[0]); err == nil {
			_, _ = r.refresh(ctx, cl)
			cl.Close()
		}
		if n := r.findCoordinator(ctx, m.cl, m.group); n != nil && n == r.epochs.Controller() {
			m.node = n
			return m, n, nil
		}
		m.cl.Close()
	}
	return nil, nil, errors.New("the controller coordinates none of a hundred groups")
}
