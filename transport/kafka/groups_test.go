package kafka

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/group"
	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/transport"
)

// testGroups is a coordinator that answers as a test tells it to, and keeps what it
// was asked.
type testGroups struct {
	mu struct {
		sync.Mutex
		joins        []group.JoinRequest
		syncs        []group.SyncRequest
		leaves       []group.LeaveRequest
		commits      []group.CommitRequest
		transactions []group.CommitTransactionRequest
		fetches      []group.FetchRequest
		parked       []func(group.JoinResult)
		gone         int // joins whose connections ended
		beats        []group.ConsumerHeartbeatRequest
	}
	park      bool // joins wait
	join      func(group.JoinRequest) group.JoinResult
	sync      func(group.SyncRequest) group.SyncResult
	heartbeat error
	leave     func(group.LeaveRequest) ([]error, error)
	commit    func(group.CommitRequest) ([]error, error)
	fetch     func(group.FetchRequest) ([]group.FetchedOffset, error)
	describe  func(string) (group.Description, error)
	beat      func(group.ConsumerHeartbeatRequest) group.ConsumerHeartbeatResult
	pulse     func(group.ConsumerHeartbeatRequest) (group.ConsumerHeartbeatResult, bool)
	consumers func(string) (group.ConsumerDescription, error)
	list      []group.Listing
	delete    func([]string) []error
	forget    func(string, []group.TopicIDPartition) ([]error, error)
}

func (g *testGroups) Join(r group.JoinRequest, done func(group.JoinResult)) (gone func()) {
	gone = func() { g.mu.Lock(); g.mu.gone++; g.mu.Unlock() }
	g.mu.Lock()
	g.mu.joins = append(g.mu.joins, r)
	if g.park {
		g.mu.parked = append(g.mu.parked, done)
		g.mu.Unlock()
		return gone
	}
	g.mu.Unlock()
	if g.join == nil {
		done(group.JoinResult{Err: group.ErrInvalidGroup, Generation: -1})
		return gone
	}
	done(g.join(r))
	return gone
}

func (g *testGroups) Sync(r group.SyncRequest, done func(group.SyncResult)) {
	g.mu.Lock()
	g.mu.syncs = append(g.mu.syncs, r)
	g.mu.Unlock()
	if g.sync == nil {
		done(group.SyncResult{Err: group.ErrUnknownMember})
		return
	}
	done(g.sync(r))
}

func (g *testGroups) Heartbeat(group.HeartbeatRequest) error { return g.heartbeat }

func (g *testGroups) Leave(r group.LeaveRequest, done func([]error, error)) {
	g.mu.Lock()
	g.mu.leaves = append(g.mu.leaves, r)
	g.mu.Unlock()
	if g.leave == nil {
		done(make([]error, len(r.Members)), nil)
		return
	}
	done(g.leave(r))
}

func (g *testGroups) Commit(r group.CommitRequest, done func([]error, error)) {
	g.mu.Lock()
	g.mu.commits = append(g.mu.commits, r)
	g.mu.Unlock()
	if g.commit == nil {
		done(make([]error, len(r.Offsets)), nil)
		return
	}
	go func() { done(g.commit(r)) }() // as after the quorum, on another goroutine
}

func (g *testGroups) CommitTransaction(r group.CommitTransactionRequest, done func([]error, error)) {
	g.mu.Lock()
	g.mu.transactions = append(g.mu.transactions, r)
	g.mu.Unlock()
	if g.commit == nil {
		done(make([]error, len(r.Offsets)), nil)
		return
	}
	go func() { done(g.commit(r.CommitRequest)) }()
}

func (g *testGroups) Fetch(r group.FetchRequest) ([]group.FetchedOffset, error) {
	g.mu.Lock()
	g.mu.fetches = append(g.mu.fetches, r)
	g.mu.Unlock()
	if g.fetch != nil {
		return g.fetch(r)
	}
	var out []group.FetchedOffset
	for _, p := range r.Partitions {
		out = append(out, group.FetchedOffset{TopicIDPartition: p, Offset: -1, LeaderEpoch: -1})
	}
	return out, nil
}

func (g *testGroups) Landed(context.Context, string) {}

func (g *testGroups) Describe(name string) (group.Description, error) {
	if g.describe == nil {
		return group.Description{}, group.ErrGroupNotFound
	}
	return g.describe(name)
}

func (g *testGroups) List() ([]group.Listing, error) { return g.list, nil }

func (g *testGroups) Delete(names []string, done func([]error)) {
	if g.delete == nil {
		done(make([]error, len(names)))
		return
	}
	done(g.delete(names))
}

func (g *testGroups) DeleteOffsets(name string, partitions []group.TopicIDPartition, done func([]error, error)) {
	if g.forget == nil {
		done(make([]error, len(partitions)), nil)
		return
	}
	done(g.forget(name, partitions))
}

// parked returns the joins that wait.
func (g *testGroups) parked() []func(group.JoinResult) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]func(group.JoinResult){}, g.mu.parked...)
}

func joinRequest(version int16, name string) *kmsg.JoinGroupRequest {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.ProtocolType, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = version, name, "consumer", 10_000, 60_000
	p := kmsg.NewJoinGroupRequestProtocol()
	p.Name, p.Metadata = "range", []byte("what I want")
	req.Protocols = append(req.Protocols, p)
	return req
}

// JoinGroup, each version: what the coordinator is asked, what the client is told.
// Before version 7 the protocol of a refusal is "" and not null; before version 4
// nobody is asked to come back with an id.
func TestJoinGroupVersions(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c := b.dial(t)
	for version := int16(0); version <= 9; version++ {
		t.Run(fmt.Sprint("v", version), func(t *testing.T) {
			b.groups.join = func(r group.JoinRequest) group.JoinResult {
				return group.JoinResult{
					Member: "m1", Generation: 7, ProtocolType: "consumer", Protocol: "range", Leader: "m1", SkipAssignment: r.CanSkipAssignment,
					Members: []group.JoinedMember{{ID: "m1", Instance: r.Instance, Metadata: r.Protocols[0].Metadata}, {ID: "m2", Metadata: []byte("b")}},
				}
			}
			req := joinRequest(version, "billing")
			if version >= 5 {
				req.InstanceID = kmsg.StringPtr("static-1")
			}
			resp := ask[*kmsg.JoinGroupResponse](c, req)
			require.Zero(t, resp.ErrorCode)
			require.Equal(t, [4]any{int32(7), "range", "m1", "m1"}, [4]any{resp.Generation, *resp.Protocol, resp.LeaderID, resp.MemberID})
			require.Equal(t, version >= 7, resp.ProtocolType != nil)
			require.Equal(t, version >= 9, resp.SkipAssignment)
			require.Len(t, resp.Members, 2)
			require.Equal(t, "what I want", string(resp.Members[0].ProtocolMetadata))
			require.Equal(t, version >= 5, resp.Members[0].InstanceID != nil)
			require.Nil(t, resp.Members[1].InstanceID)

			r := b.groups.mu.joins[len(b.groups.mu.joins)-1]
			require.Equal(t, version >= 4, r.RequireKnownMember)
			require.Equal(t, 10*time.Second, r.SessionTimeout)
			require.Equal(t, "/127.0.0.1", r.ClientHost)
			require.Equal(t, "tester", r.ClientID)
			want := time.Minute
			if version == 0 {
				want = 0 // the session timeout counts
			}
			require.Equal(t, want, r.RebalanceTimeout)

			b.groups.join = func(group.JoinRequest) group.JoinResult {
				return group.JoinResult{Err: group.ErrMemberIDRequired, Member: "tester-1", Generation: -1}
			}
			resp = ask[*kmsg.JoinGroupResponse](c, req)
			require.EqualValues(t, 79, resp.ErrorCode)
			require.Equal(t, "tester-1", resp.MemberID)
			require.EqualValues(t, -1, resp.Generation)
			require.Equal(t, version < 7, resp.Protocol != nil)

			req.MemberID = "mine"
			b.groups.join = func(group.JoinRequest) group.JoinResult {
				return group.JoinResult{Err: fmt.Errorf("%w: the quorum did not answer", metadata.ErrTimeout), Generation: -1}
			}
			resp = ask[*kmsg.JoinGroupResponse](c, req)
			require.EqualValues(t, 15, resp.ErrorCode, "clients know no 7 here, and Java's throws")
			require.Equal(t, "mine", resp.MemberID)
		})
	}
}

// SyncGroup 5 without protocol type or name is 23, and the coordinator hears
// nothing of it; assignments are never null.
func TestSyncGroupVersions(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c := b.dial(t)
	for version := int16(0); version <= 5; version++ {
		req := kmsg.NewPtrSyncGroupRequest()
		req.Version, req.Group, req.MemberID, req.Generation = version, "billing", "m1", 3
		a := kmsg.NewSyncGroupRequestGroupAssignment()
		a.MemberID, a.MemberAssignment = "m2", []byte("work")
		req.GroupAssignment = append(req.GroupAssignment, a)
		if version == 5 {
			req.ProtocolType = kmsg.StringPtr("consumer")
			resp := ask[*kmsg.SyncGroupResponse](c, req)
			require.EqualValues(t, 23, resp.ErrorCode)
			require.Len(t, b.groups.mu.syncs, 10)
			req.Protocol = kmsg.StringPtr("range")
		}
		b.groups.sync = func(r group.SyncRequest) group.SyncResult {
			require.Equal(t, []group.Assignment{{Member: "m2", Bytes: []byte("work")}}, r.Assignments)
			require.Equal(t, version == 5, r.HasProtocol && r.HasProtocolType)
			return group.SyncResult{ProtocolType: "consumer", Protocol: "range", Assignment: []byte{}}
		}
		resp := ask[*kmsg.SyncGroupResponse](c, req)
		require.Zero(t, resp.ErrorCode)
		require.NotNil(t, resp.MemberAssignment)
		b.groups.sync = func(group.SyncRequest) group.SyncResult { return group.SyncResult{Err: group.ErrRebalanceInProgress} }
		resp = ask[*kmsg.SyncGroupResponse](c, req)
		require.EqualValues(t, 27, resp.ErrorCode)
		require.NotNil(t, resp.MemberAssignment)
	}
}

// Heartbeat to a coordinator that loads is 0 and not 14.
func TestHeartbeatCodes(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c := b.dial(t)
	for _, want := range []struct {
		err  error
		code int16
	}{{nil, 0}, {group.ErrCoordinatorLoading, 0}, {group.ErrRebalanceInProgress, 27}, {group.ErrUnknownMember, 25}, {group.ErrIllegalGeneration, 22}, {group.ErrFencedInstance, 82}, {group.ErrNotCoordinator, 16}, {group.ErrInvalidGroup, 24}} {
		for version := int16(0); version <= 4; version++ {
			b.groups.heartbeat = want.err
			req := kmsg.NewPtrHeartbeatRequest()
			req.Version, req.Group, req.MemberID = version, "billing", "m1"
			require.Equal(t, want.code, ask[*kmsg.HeartbeatResponse](c, req).ErrorCode, "%v", want.err)
		}
	}
}

// LeaveGroup: one member before version 3, whose error is that of the answer; then
// several with an error each.
func TestLeaveGroupVersions(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c := b.dial(t)
	b.groups.leave = func(r group.LeaveRequest) ([]error, error) {
		if r.Group == "moved" {
			return nil, group.ErrNotCoordinator
		}
		errs := make([]error, len(r.Members))
		errs[len(errs)-1] = group.ErrUnknownMember
		return errs, nil
	}
	for version := int16(0); version <= 5; version++ {
		req := kmsg.NewPtrLeaveGroupRequest()
		req.Version, req.Group, req.MemberID = version, "billing", "m1"
		for _, id := range []string{"m1", "m2"} {
			m := kmsg.NewLeaveGroupRequestMember()
			m.MemberID, m.InstanceID, m.Reason = id, kmsg.StringPtr("i-"+id), kmsg.StringPtr("tired")
			req.Members = append(req.Members, m)
		}
		resp := ask[*kmsg.LeaveGroupResponse](c, req)
		r := b.groups.mu.leaves[len(b.groups.mu.leaves)-1]
		if version < 3 {
			require.EqualValues(t, 25, resp.ErrorCode)
			require.Equal(t, []group.LeavingMember{{Member: "m1"}}, r.Members)
		} else {
			require.Zero(t, resp.ErrorCode)
			require.Len(t, resp.Members, 2)
			require.Equal(t, [2]int16{0, 25}, [2]int16{resp.Members[0].ErrorCode, resp.Members[1].ErrorCode})
			require.Equal(t, "i-m2", *resp.Members[1].InstanceID)
			require.Equal(t, "i-m2", r.Members[1].Instance)
		}
		req.Group = "moved"
		require.EqualValues(t, 16, ask[*kmsg.LeaveGroupResponse](c, req).ErrorCode)
	}
}

func commitRequest(version int16, topics ...kmsg.OffsetCommitRequestTopic) *kmsg.OffsetCommitRequest {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group, req.MemberID, req.Generation, req.Topics = version, "billing", "m1", 4, topics
	return req
}

func commitTopic(topic *metadata.Topic, offsets ...int64) kmsg.OffsetCommitRequestTopic {
	rt := kmsg.NewOffsetCommitRequestTopic()
	rt.Topic, rt.TopicID = topic.Name, topic.ID
	for i, o := range offsets {
		rp := kmsg.NewOffsetCommitRequestTopicPartition()
		rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata = int32(i), o, 5, kmsg.StringPtr("note")
		rt.Partitions = append(rt.Partitions, rp)
	}
	return rt
}

func commitCodes(resp *kmsg.OffsetCommitResponse) (codes [][]int16) {
	for _, t := range resp.Topics {
		var of []int16
		for _, p := range t.Partitions {
			of = append(of, p.ErrorCode)
		}
		codes = append(codes, of)
	}
	return codes
}

// OffsetCommit, each version: topics and partitions that do not exist, negative
// offsets and texts that are too long are refused alone; a refusal of the group is
// that of every partition, and nothing is stored.
func TestOffsetCommitMatrix(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c, topic := b.dial(t), b.topic(t, 3)
	nowhere := &metadata.Topic{Name: strings.Repeat("n", 300), ID: metadata.TopicID{9}}
	for version := int16(1); version <= 10; version++ {
		t.Run(fmt.Sprint("v", version), func(t *testing.T) {
			b.groups.commit = func(r group.CommitRequest) ([]error, error) {
				errs := make([]error, len(r.Offsets))
				errs[1] = group.ErrMetadataTooLarge
				return errs, nil
			}
			req := commitRequest(version, commitTopic(nowhere, 1), commitTopic(topic, 10, -1, 12, 13))
			req.Topics[1].Partitions[2].Metadata = nil
			req.RetentionTimeMillis = 7000
			missing := int16(3)
			if version >= 10 {
				missing = 100
			}
			require.Equal(t, [][]int16{{missing}, {0, 28, 12, 3}}, commitCodes(ask[*kmsg.OffsetCommitResponse](c, req)))
			r := b.groups.mu.commits[len(b.groups.mu.commits)-1]
			retention := time.Duration(0)
			if version >= 2 && version <= 4 {
				retention = 7 * time.Second
			}
			require.Equal(t, retention, r.Retention)
			epoch := int32(-1)
			if version >= 6 {
				epoch = 5
			}
			require.Equal(t, []group.OffsetEntry{
				{TopicID: topic.ID, Partition: 0, Offset: 10, LeaderEpoch: epoch, Metadata: "note"},
				{TopicID: topic.ID, Partition: 2, Offset: 12, LeaderEpoch: epoch},
			}, r.Offsets)
			require.Equal(t, [3]any{"billing", "m1", int32(4)}, [3]any{r.Group, r.Member, r.Generation})

			notFound, stale := int16(22), int16(35)
			if version >= 9 {
				notFound, stale = 69, 113
			}
			for _, refused := range []struct {
				err  error
				code int16
			}{
				{group.ErrUnknownMember, 25}, {group.ErrIllegalGeneration, 22}, {group.ErrRebalanceInProgress, 27}, {group.ErrGroupNotFound, notFound}, {group.ErrStaleMemberEpoch, stale},
				{group.ErrNotCoordinator, 16}, {group.ErrCoordinatorLoading, 14}, {group.ErrFencedInstance, 82}, {metadata.ErrTimeout, 15}, {metadata.ErrBusy, 15}, {metadata.ErrInvalidFeatureLevel, 15},
			} {
				b.groups.commit = func(group.CommitRequest) ([]error, error) { return nil, refused.err }
				code := refused.code
				require.Equal(t, [][]int16{{code}, {code, code, code, code}}, commitCodes(ask[*kmsg.OffsetCommitResponse](c, req)), "%v", refused.err)
			}
		})
	}
	// The group is asked also when nothing is left to store: it may refuse the member.
	b.groups.commit = func(group.CommitRequest) ([]error, error) { return nil, group.ErrUnknownMember }
	require.Equal(t, [][]int16{{25}}, commitCodes(ask[*kmsg.OffsetCommitResponse](c, commitRequest(8, commitTopic(nowhere, 1)))))
	require.Empty(t, ask[*kmsg.OffsetCommitResponse](c, commitRequest(8)).Topics)
}

// OffsetFetch, each version: where errors go, what null topics mean, and that a
// partition without an offset is -1 without an error (trap 33, G13, M21).
func TestOffsetFetchVersions(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c, topic := b.dial(t), b.topic(t, 3)
	stored := []group.FetchedOffset{
		{TopicIDPartition: group.TopicIDPartition{TopicID: topic.ID, Partition: 1}, Offset: 42, LeaderEpoch: 3, Metadata: "note"},
		{TopicIDPartition: group.TopicIDPartition{TopicID: metadata.TopicID{7}, Partition: 0}, Offset: 9, LeaderEpoch: -1}, // of a topic that is gone
	}
	fetch := func(r group.FetchRequest) ([]group.FetchedOffset, error) {
		switch {
		case r.Group == "moved":
			return nil, group.ErrNotCoordinator
		case r.All:
			return stored, nil
		}
		var out []group.FetchedOffset
		for _, p := range r.Partitions {
			o := group.FetchedOffset{TopicIDPartition: p, Offset: -1, LeaderEpoch: -1}
			if p == stored[0].TopicIDPartition {
				o = stored[0]
			}
			out = append(out, o)
		}
		return out, nil
	}
	b.groups.fetch = fetch
	for version := int16(1); version <= 10; version++ {
		t.Run(fmt.Sprint("v", version), func(t *testing.T) {
			asked := ask[*kmsg.OffsetFetchResponse](c, fetchOffsetsRequest(version, "billing", false, topic))
			got, code := flattenOffsets(asked)
			require.Zero(t, code)
			epoch := int32(-1)
			if version >= 5 {
				epoch = 3
			}
			none := func(topic string, p int32) string { return fmt.Sprintf("%s-%d -1 -1 %q 0", topic, p, "") }
			name, unknown := topic.Name, "nowhere"
			missing := none(unknown, 0)
			if version >= 10 {
				name, unknown = topic.ID.String(), metadata.TopicID{9}.String()
				missing = fmt.Sprintf("%s-0 -1 -1 %q 100", unknown, "")
			}
			require.Equal(t, []string{none(name, 0), fmt.Sprintf("%s-1 42 %d %q 0", name, epoch, "note"), none(name, 7), missing}, got)

			moved := ask[*kmsg.OffsetFetchResponse](c, fetchOffsetsRequest(version, "moved", false, topic))
			_, code = flattenOffsets(moved)
			if version < 2 {
				for _, p := range moved.Topics[0].Partitions {
					require.EqualValues(t, 16, p.ErrorCode)
				}
			} else {
				require.EqualValues(t, 16, code)
			}

			all, code := flattenOffsets(ask[*kmsg.OffsetFetchResponse](c, fetchOffsetsRequest(version, "billing", true, topic)))
			require.Zero(t, code)
			if version < 2 {
				require.Empty(t, all, "null is no question before version 2")
				return
			}
			require.Equal(t, []string{fmt.Sprintf("%s-1 42 %d %q 0", name, epoch, "note")}, all)
		})
	}
}

func fetchOffsetsRequest(version int16, name string, all bool, topic *metadata.Topic) *kmsg.OffsetFetchRequest {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Version, req.Group = version, name
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = name
	if !all {
		for _, t := range []*metadata.Topic{topic, {Name: "nowhere", ID: metadata.TopicID{9}}} {
			partitions := []int32{0}
			if t == topic {
				partitions = []int32{0, 1, 7}
			}
			rt := kmsg.NewOffsetFetchRequestTopic()
			rt.Topic, rt.Partitions = t.Name, partitions
			req.Topics = append(req.Topics, rt)
			gt := kmsg.NewOffsetFetchRequestGroupTopic()
			gt.Topic, gt.TopicID, gt.Partitions = t.Name, t.ID, partitions
			g.Topics = append(g.Topics, gt)
		}
	}
	req.Groups = append(req.Groups, g)
	return req
}

func flattenOffsets(resp *kmsg.OffsetFetchResponse) (out []string, code int16) {
	add := func(topic string, partition int32, offset int64, epoch int32, metadata *string, code int16) {
		out = append(out, fmt.Sprintf("%s-%d %d %d %q %d", topic, partition, offset, epoch, *metadata, code))
	}
	code = resp.ErrorCode
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			add(t.Topic, p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode)
		}
	}
	for _, g := range resp.Groups {
		code = g.ErrorCode
		for _, t := range g.Topics {
			name := t.Topic
			if name == "" {
				name = metadata.TopicID(t.TopicID).String()
			}
			for _, p := range t.Partitions {
				add(name, p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode)
			}
		}
	}
	return out, code
}

// DescribeGroups of a group that is not there, or not for it: Dead without an error, 69 with a text
// from version 6 on. What a group shows while it rebalances has no assignments.
func TestDescribeGroupsVersions(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c := b.dial(t)
	state := group.StateStable
	b.groups.describe = func(name string) (group.Description, error) {
		switch name {
		case "billing":
			return group.Description{
				Group: name, Type: group.TypeClassic, State: state, ProtocolType: "consumer", Protocol: "range",
				Members: []group.DescribedMember{{ID: "m1", Instance: "i1", ClientID: "c", ClientHost: "/10.0.0.7", Metadata: []byte("meta"), Assignment: []byte("work")}},
			}, nil
		case "moved":
			return group.Description{}, group.ErrNotCoordinator
		case "modern":
			return group.Description{Group: name, Type: group.TypeConsumer, State: group.StateStable, ProtocolType: "consumer", Members: []group.DescribedMember{{ID: "m1"}}}, nil
		}
		return group.Description{}, group.ErrGroupNotFound
	}
	for version := int16(0); version <= 6; version++ {
		req := kmsg.NewPtrDescribeGroupsRequest()
		req.Version, req.Groups, req.IncludeAuthorizedOperations = version, []string{"billing", "nowhere", "moved", "modern"}, true
		resp := ask[*kmsg.DescribeGroupsResponse](c, req)
		g := resp.Groups[0]
		require.Equal(t, [5]any{int16(0), "Stable", "consumer", "range", "work"}, [5]any{g.ErrorCode, g.State, g.ProtocolType, g.Protocol, string(g.Members[0].MemberAssignment)})
		require.Equal(t, version >= 4, g.Members[0].InstanceID != nil)
		operations := int32(-1 << 31)
		if version >= 3 {
			operations = groupOperations
		}
		require.Equal(t, operations, g.AuthorizedOperations)
		want := [2]any{int16(0), "Dead"}
		if version >= 6 {
			want[0] = int16(69)
		}
		require.Equal(t, want, [2]any{resp.Groups[1].ErrorCode, resp.Groups[1].State})
		require.EqualValues(t, 16, resp.Groups[2].ErrorCode)
		require.Equal(t, want, [2]any{resp.Groups[3].ErrorCode, resp.Groups[3].State}, "a group of KIP-848 is described by ConsumerGroupDescribe alone")
		require.Empty(t, resp.Groups[3].Members)
	}
	state = group.StatePreparing
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Version, req.Groups = 5, []string{"billing"}
	g := ask[*kmsg.DescribeGroupsResponse](c, req).Groups[0]
	require.Equal(t, "PreparingRebalance", g.State)
	require.Empty(t, g.Protocol)
	require.Empty(t, g.Members[0].MemberAssignment)
}

func TestListGroupsFilters(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c := b.dial(t)
	b.groups.list = []group.Listing{{Group: "a", Type: group.TypeClassic, State: group.StateStable, ProtocolType: "consumer"}, {Group: "b", Type: group.TypeConsumer, State: group.StateEmpty}}
	names := func(version int16, states, types []string) (out []string) {
		req := kmsg.NewPtrListGroupsRequest()
		req.Version, req.StatesFilter, req.TypesFilter = version, states, types
		for _, g := range ask[*kmsg.ListGroupsResponse](c, req).Groups {
			out = append(out, g.Group+g.GroupState+g.GroupType)
		}
		return out
	}
	require.Equal(t, []string{"a", "b"}, names(3, nil, nil))
	require.Equal(t, []string{"aStable", "bEmpty"}, names(4, nil, nil))
	require.Equal(t, []string{"aStable"}, names(4, []string{"stable"}, nil))
	require.Equal(t, []string{"bEmptyconsumer"}, names(5, nil, []string{"Consumer"}))
	require.Empty(t, names(5, []string{"Stable"}, []string{"consumer"}))
}

func TestDeleteGroupsAndOffsets(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c, topic := b.dial(t), b.topic(t, 2)
	b.groups.delete = func(names []string) []error { return []error{nil, group.ErrNonEmpty, group.ErrGroupNotFound} }
	for version := int16(0); version <= 2; version++ {
		req := kmsg.NewPtrDeleteGroupsRequest()
		req.Version, req.Groups = version, []string{"a", "b", "c"}
		resp := ask[*kmsg.DeleteGroupsResponse](c, req)
		require.Equal(t, [3]int16{0, 68, 69}, [3]int16{resp.Groups[0].ErrorCode, resp.Groups[1].ErrorCode, resp.Groups[2].ErrorCode})
	}
	b.groups.forget = func(name string, partitions []group.TopicIDPartition) ([]error, error) {
		if name != "billing" {
			return nil, group.ErrGroupNotFound
		}
		require.Equal(t, []group.TopicIDPartition{{TopicID: topic.ID, Partition: 0}, {TopicID: topic.ID, Partition: 1}}, partitions)
		return []error{nil, group.ErrSubscribed}, nil
	}
	req := kmsg.NewPtrOffsetDeleteRequest()
	req.Group = "billing"
	for _, name := range []string{"nowhere", topic.Name} {
		rt := kmsg.NewOffsetDeleteRequestTopic()
		rt.Topic = name
		for p := range int32(2) {
			rp := kmsg.NewOffsetDeleteRequestTopicPartition()
			rp.Partition = p
			rt.Partitions = append(rt.Partitions, rp)
		}
		req.Topics = append(req.Topics, rt)
	}
	resp := ask[*kmsg.OffsetDeleteResponse](c, req)
	require.Zero(t, resp.ErrorCode)
	var codes []int16
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			codes = append(codes, p.ErrorCode)
		}
	}
	require.Equal(t, []int16{3, 3, 0, 86}, codes)
	req.Group = "nowhere"
	require.EqualValues(t, 69, ask[*kmsg.OffsetDeleteResponse](c, req).ErrorCode)
}

func awaitThat(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, testDeadline, time.Millisecond, what)
}

// A join that waits holds nothing of the decode budget, and its metadata is no part
// of a frame that is used again. Its connection goes on to be read, and answers
// leave in order.
func TestParkedJoinHoldsNothing(t *testing.T) {
	b := ownBroker(t, brokerEdit{kafka: func(c *Config) { c.DecodeBudgetBytes = int64(c.MaxRequestBytes) }})
	b.groups.park = true
	c := b.dial(t)
	req := joinRequest(5, "billing")
	req.Protocols[0].Metadata = []byte(strings.Repeat("m", 60_000)) // 24 times that is most of the budget
	for range 3 {
		c.send(req)
	}
	list := kmsg.NewPtrListGroupsRequest()
	c.send(list) // overwrites frames that were given back
	awaitThat(t, "all three wait", func() bool { return len(b.groups.parked()) == 3 })
	require.Equal(t, 3, b.handlers.groupCalls.waiting())
	for i, done := range b.groups.parked() {
		require.Equal(t, strings.Repeat("m", 60_000), string(b.groups.mu.joins[i].Protocols[0].Metadata))
		go done(group.JoinResult{Member: fmt.Sprint("m", i), Generation: 1, Protocol: "range"})
	}
	for i := range 3 {
		require.Equal(t, fmt.Sprint("m", i), c.receive(req).(*kmsg.JoinGroupResponse).MemberID)
	}
	c.receive(list)
	require.Zero(t, b.handlers.groupCalls.waiting())
}

// N2: a connection that dies takes its waiting calls with it; a coordinator that
// answers them later does no harm.
func TestParkedJoinOfDeadConnection(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	b.groups.park = true
	c := b.dial(t)
	for range 4 {
		c.send(joinRequest(9, "billing"))
	}
	awaitThat(t, "they wait", func() bool { return len(b.groups.parked()) == 4 })
	require.NoError(t, c.Close())
	awaitThat(t, "they are gone", func() bool { return b.handlers.groupCalls.waiting() == 0 })
	awaitThat(t, "the coordinator is told", func() bool {
		b.groups.mu.Lock()
		defer b.groups.mu.Unlock()
		return b.groups.mu.gone == 4
	})
	for _, done := range b.groups.parked() {
		done(group.JoinResult{Member: "late", Generation: 1})
	}
	b.handlers.groupCalls.mu.Lock()
	defer b.handlers.groupCalls.mu.Unlock()
	require.Empty(t, b.handlers.groupCalls.mu.conns)
}

// N2: a call that begins when its connection has ended already, which was looked for its calls before, does not stay for ever.
func TestGroupCallOfConnectionThatHasEnded(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	b.groups.park = true
	c := b.dial(t)
	c.send(joinRequest(9, "billing"))
	cs := &b.handlers.groupCalls
	var req *transport.Request
	awaitThat(t, "the join waits", func() bool {
		cs.mu.Lock()
		defer cs.mu.Unlock()
		for _, g := range cs.mu.conns {
			g.mu.Lock()
			if g.mu.c != nil {
				req = g.mu.c.req
			}
			g.mu.Unlock()
		}
		return req != nil
	})
	require.NoError(t, c.Close())
	awaitThat(t, "it is gone", func() bool { return cs.waiting() == 0 })
	told := false
	g := cs.begin(&call{h: b.handlers, req: req, started: req.Received}, nil)
	g.whenGone(func() { told = true })
	require.True(t, told)
	require.Zero(t, cs.waiting())
	require.False(t, cs.has(req.Conn))
	g.answer(func(*call) kmsg.Response { t.Error("answered"); return nil })
}

// Many calls of one connection, answered in any order, leave nothing behind, also when it ends in between.
func TestGroupCallsOfConnection(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	b.groups.park = true
	c := b.dial(t)
	for range 9 {
		c.send(joinRequest(9, "billing"))
	}
	awaitThat(t, "they wait", func() bool { return len(b.groups.parked()) == 9 })
	cs := &b.handlers.groupCalls
	dones := b.groups.parked()
	for i, at := range []int{4, 0, 8, 1, 7} { // from the middle, from both ends
		dones[at](group.JoinResult{Member: "m", Generation: 1, Protocol: "range"})
		require.Equal(t, 8-i, cs.waiting())
	}
	require.NoError(t, c.Close())
	awaitThat(t, "they are gone", func() bool { return cs.waiting() == 0 })
	for _, done := range dones {
		done(group.JoinResult{Member: "late", Generation: 1})
	}
	require.Zero(t, cs.waiting())
	cs.mu.Lock()
	defer cs.mu.Unlock()
	require.Empty(t, cs.mu.conns)
}

// A broker that stops answers what waits: its members look for the next coordinator
// at once. A commit under way is waited for, its outcome is worth it.
func TestParkedJoinOfStoppingBroker(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	b.groups.park = true
	topic := b.topic(t, 1)
	c, other := b.dial(t), b.dial(t)
	req := joinRequest(5, "billing")
	c.send(req)
	committing, release := make(chan struct{}), make(chan struct{})
	b.groups.commit = func(r group.CommitRequest) ([]error, error) {
		close(committing)
		<-release
		return make([]error, len(r.Offsets)), nil
	}
	commit := commitRequest(8, commitTopic(topic, 1))
	other.send(commit)
	awaitThat(t, "it waits", func() bool { return len(b.groups.parked()) == 1 })
	<-committing
	ctx, cancel := context.WithTimeout(context.Background(), testDeadline)
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- b.server.Shutdown(ctx) }()
	resp := c.receive(req).(*kmsg.JoinGroupResponse)
	require.EqualValues(t, 16, resp.ErrorCode)
	close(release)
	require.Equal(t, [][]int16{{0}}, commitCodes(other.receive(commit).(*kmsg.OffsetCommitResponse)))
	require.NoError(t, <-stopped)
}

// FindCoordinator names the broker that the metadata name, by the address of the
// listener that was asked.
func TestFindGroupCoordinator(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c := b.dial(t)
	for version := int16(0); version <= 5; version++ {
		req := kmsg.NewPtrFindCoordinatorRequest()
		req.Version, req.CoordinatorKey, req.CoordinatorKeys = version, "billing", []string{"billing", "other"}
		resp := ask[*kmsg.FindCoordinatorResponse](c, req)
		l := b.server.Listeners()[0]
		if version < 4 {
			require.Equal(t, [4]any{int16(0), int32(1), l.AdvertisedHost(), l.AdvertisedPort()}, [4]any{resp.ErrorCode, resp.NodeID, resp.Host, resp.Port})
			continue
		}
		require.Len(t, resp.Coordinators, 2)
		for _, k := range resp.Coordinators {
			require.Equal(t, [4]any{int16(0), int32(1), l.AdvertisedHost(), l.AdvertisedPort()}, [4]any{k.ErrorCode, k.NodeID, k.Host, k.Port})
		}
	}
}

// Null and negative array lengths where the protocol has no null: no panic, and the
// broker lives (trap 33, N4).
func TestGroupRequestsWithNullArrays(t *testing.T) {
	b := theBroker(t)
	for _, a := range table() {
		switch a.key {
		case keyOffsetCommit, keyOffsetFetch, keyJoinGroup, keyLeaveGroup, keySyncGroup, keyDescribeGroups, keyListGroups, keyDeleteGroups, keyOffsetDelete:
		default:
			continue
		}
		for version := a.minServed; version <= a.max; version++ {
			c := b.dial(t)
			req := kmsg.RequestForKey(a.key)
			req.SetVersion(version)
			whole := c.formatter.AppendRequest(nil, req, 1)
			for _, tail := range []int{4, 8} {
				if len(whole) < tail+16 || req.IsFlexible() {
					continue
				}
				bad := append([]byte{}, whole...)
				binary.BigEndian.PutUint32(bad[len(bad)-tail:], 0xffffffff)
				_, err := c.Write(bad)
				require.NoError(t, err)
			}
			_ = c.Close()
		}
	}
	c := b.dial(t)
	c.send(kmsg.NewPtrListGroupsRequest())
	c.receive(kmsg.NewPtrListGroupsRequest())
}

func (g *testGroups) ConsumerHeartbeat(r group.ConsumerHeartbeatRequest, done func(group.ConsumerHeartbeatResult)) {
	g.mu.Lock()
	g.mu.beats = append(g.mu.beats, r)
	g.mu.Unlock()
	if g.beat == nil {
		done(group.ConsumerHeartbeatResult{Err: group.ErrGroupNotFound, Member: r.Member})
		return
	}
	done(g.beat(r))
}

func (g *testGroups) ConsumerPulse(r group.ConsumerHeartbeatRequest) (group.ConsumerHeartbeatResult, bool) {
	if g.pulse == nil {
		return group.ConsumerHeartbeatResult{}, false
	}
	return g.pulse(r)
}

func (g *testGroups) DescribeConsumers(name string) (group.ConsumerDescription, error) {
	if g.consumers == nil {
		return group.ConsumerDescription{}, group.ErrGroupNotFound
	}
	return g.consumers(name)
}

// ConsumerGroupHeartbeat: null is "as before", empty is something else, and what Kafka refuses as contradictory never
// reaches the coordinator.
func TestConsumerGroupHeartbeat(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c := b.dial(t)
	id := metadata.TopicID{15: 9}
	b.groups.beat = func(r group.ConsumerHeartbeatRequest) group.ConsumerHeartbeatResult {
		return group.ConsumerHeartbeatResult{
			Member: "m", Epoch: 3, HeartbeatInterval: 5 * time.Second, HasAssignment: r.Epoch == 0,
			Assignment: []metadata.TopicPartitions{{TopicID: id, Partitions: []int32{1, 2}}},
		}
	}
	for version := range int16(2) {
		req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
		req.Version, req.Group, req.MemberID, req.RebalanceTimeoutMillis = version, "g", "m", 60_000
		req.SubscribedTopicNames, req.Topics = []string{"a"}, []kmsg.ConsumerGroupHeartbeatRequestTopic{}
		if version >= 1 {
			req.SubscribedTopicRegex = kmsg.StringPtr("a.*")
		}
		resp := ask[*kmsg.ConsumerGroupHeartbeatResponse](c, req)
		require.Zero(t, resp.ErrorCode)
		require.Equal(t, [3]int32{3, 5000, 2}, [3]int32{resp.MemberEpoch, resp.HeartbeatIntervalMillis, int32(len(resp.Assignment.Topics[0].Partitions))})
		r := b.groups.mu.beats[len(b.groups.mu.beats)-1]
		require.Equal(t, [4]bool{true, version >= 1, false, true}, [4]bool{r.HasTopics, r.HasRegex, r.HasAssignor, r.HasOwned})
		require.Equal(t, time.Minute, r.RebalanceTimeout)

		req = kmsg.NewPtrConsumerGroupHeartbeatRequest()
		req.Version, req.Group, req.MemberID, req.MemberEpoch = version, "g", "m", 3
		resp = ask[*kmsg.ConsumerGroupHeartbeatResponse](c, req)
		require.Nil(t, resp.Assignment, "it has not changed")
		r = b.groups.mu.beats[len(b.groups.mu.beats)-1]
		require.Equal(t, [4]bool{}, [4]bool{r.HasTopics, r.HasRegex, r.HasAssignor, r.HasOwned})
		require.Negative(t, r.RebalanceTimeout)
	}
	heard := len(b.groups.mu.beats)
	for _, spoil := range []func(*kmsg.ConsumerGroupHeartbeatRequest){
		func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.Group = "" },
		func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberID = "" },
		func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.InstanceID = kmsg.StringPtr("") },
		func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.RackID = kmsg.StringPtr(" ") },
		func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.SubscribedTopicNames = []string{"a", ""} },
	} {
		req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
		req.Version, req.Group, req.MemberID = 1, "g", "m"
		spoil(req)
		resp := ask[*kmsg.ConsumerGroupHeartbeatResponse](c, req)
		require.EqualValues(t, 42, resp.ErrorCode)
		require.Contains(t, *resp.ErrorMessage, "empty")
	}
	require.Len(t, b.groups.mu.beats, heard)
	for err, code := range map[error]int16{group.ErrFencedMemberEpoch: 110, group.ErrUnreleasedInstance: 111, group.ErrUnsupportedAssignor: 112, group.ErrInvalidRegex: 128, group.ErrGroupNotFound: 69, group.ErrUnknownMember: 25} {
		b.groups.beat = func(group.ConsumerHeartbeatRequest) group.ConsumerHeartbeatResult {
			return group.ConsumerHeartbeatResult{Err: err}
		}
		req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
		req.Version, req.Group, req.MemberID = 1, "g", "m"
		resp := ask[*kmsg.ConsumerGroupHeartbeatResponse](c, req)
		require.Equal(t, code, resp.ErrorCode)
		require.NotNil(t, resp.ErrorMessage)
	}
}

// ConsumerGroupDescribe tells topics by name too, and which members still speak the classic protocol.
func TestConsumerGroupDescribe(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c := b.dial(t)
	req := kmsg.NewPtrConsumerGroupDescribeRequest()
	req.Version, req.Groups = 1, []string{"g"}
	resp := ask[*kmsg.ConsumerGroupDescribeResponse](c, req)
	require.EqualValues(t, 69, resp.Groups[0].ErrorCode)
	b.groups.consumers = func(string) (group.ConsumerDescription, error) {
		return group.ConsumerDescription{
			State: group.StateReconciling, Epoch: 7, AssignmentEpoch: 6, Assignor: "uniform",
			Members: []group.ConsumerDescribedMember{
				{ID: "m1", Epoch: 6, Topics: []string{"a"}, Target: []metadata.TopicPartitions{{TopicID: metadata.TopicID{15: 9}, Partitions: []int32{0}}}},
				{ID: "m2", Instance: "i", Classic: true},
			},
		}, nil
	}
	req.IncludeAuthorizedOperations = true
	g := ask[*kmsg.ConsumerGroupDescribeResponse](c, req).Groups[0]
	require.Zero(t, g.ErrorCode)
	require.Equal(t, [4]any{"Reconciling", int32(7), int32(6), "uniform"}, [4]any{g.State, g.Epoch, g.AssignmentEpoch, g.AssignorName})
	require.Equal(t, groupOperations, g.AuthorizedOperations)
	require.Equal(t, [2]int8{memberConsumer, memberClassic}, [2]int8{g.Members[0].MemberType, g.Members[1].MemberType})
	require.Equal(t, []int32{0}, g.Members[0].TargetAssignment.TopicPartitions[0].Partitions)
	require.Equal(t, "i", *g.Members[1].InstanceID)
}
