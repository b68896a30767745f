package kafka

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

// twoBrokers starts a broker whose cluster has a second one that never does anything.
func twoBrokers(t *testing.T) *testBroker {
	return ownBroker(t, brokerEdit{brokers: []metadata.Registration{{
		ID: 2, Directories: []metadata.DirectoryID{{2}}, Incarnation: [16]byte{2},
		Listeners: []metadata.Listener{{Name: "PLAINTEXT", Host: "other", Port: 9}},
	}}})
}

// ElectLeaders: what has its preferred leader is 84 when asked for and left out of
// "all"; what can't be had says why; every partition is answered once.
func TestElectLeaders(t *testing.T) {
	b := twoBrokers(t)
	c := b.dial(t)
	topic := b.assigned(t, [][]metadata.BrokerID{{1, 2}, {1, 2}})
	elect := func(version int16, kind int8, topics []kmsg.ElectLeadersRequestTopic) *kmsg.ElectLeadersResponse {
		req := kmsg.NewPtrElectLeadersRequest()
		req.Version, req.ElectionType, req.Topics, req.TimeoutMillis = version, kind, topics, 10_000
		return ask[*kmsg.ElectLeadersResponse](c, req)
	}
	named := func(name string, partitions ...int32) kmsg.ElectLeadersRequestTopic {
		rt := kmsg.NewElectLeadersRequestTopic()
		rt.Topic, rt.Partitions = name, partitions
		return rt
	}
	for version := int16(0); version <= 2; version++ {
		resp := elect(version, 0, nil)
		require.Zero(t, resp.ErrorCode)
		require.Empty(t, resp.Topics)

		resp = elect(version, 0, []kmsg.ElectLeadersRequestTopic{})
		require.Empty(t, resp.Topics, "none is not all")

		resp = elect(version, 0, []kmsg.ElectLeadersRequestTopic{named(topic.Name, 0, 1, 0, 9), named("not-there", 0)})
		codes := map[string][]int16{}
		for i := range resp.Topics {
			for _, p := range resp.Topics[i].Partitions {
				codes[resp.Topics[i].Topic] = append(codes[resp.Topics[i].Topic], p.ErrorCode)
				require.NotEmpty(t, p.ErrorMessage)
			}
		}
		require.Equal(t, map[string][]int16{topic.Name: {84, 84, 3}, "not-there": {3}}, codes)
	}
	resp := elect(1, 1, []kmsg.ElectLeadersRequestTopic{named(topic.Name, 0)})
	require.EqualValues(t, 84, resp.Topics[0].Partitions[0].ErrorCode, "it has a leader")
	require.EqualValues(t, 42, elect(1, 7, nil).ErrorCode)
}

// Reassignments: one begins, is listed with all replicas, is not begun twice in one
// request, and is cancelled once.
func TestPartitionReassignments(t *testing.T) {
	b := twoBrokers(t)
	c := b.dial(t)
	topic := b.assigned(t, [][]metadata.BrokerID{{1}, {1}})
	type move struct {
		name      string
		partition int32
		replicas  []int32
	}
	alter := func(moves ...move) (codes []int16) {
		req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
		req.TimeoutMillis = 10_000
		for _, m := range moves {
			rt := kmsg.NewAlterPartitionAssignmentsRequestTopic()
			rt.Topic = m.name
			rp := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
			rp.Partition, rp.Replicas = m.partition, m.replicas
			rt.Partitions = append(rt.Partitions, rp)
			req.Topics = append(req.Topics, rt)
		}
		resp := ask[*kmsg.AlterPartitionAssignmentsResponse](c, req)
		require.Zero(t, resp.ErrorCode)
		require.Len(t, resp.Topics, len(moves))
		for i, rt := range resp.Topics {
			require.Equal(t, moves[i].name, rt.Topic)
			require.Equal(t, moves[i].partition, rt.Partitions[0].Partition)
			require.Equal(t, rt.Partitions[0].ErrorCode != 0, rt.Partitions[0].ErrorMessage != nil)
			codes = append(codes, rt.Partitions[0].ErrorCode)
		}
		return codes
	}
	list := func(topics []kmsg.ListPartitionReassignmentsRequestTopic) []kmsg.ListPartitionReassignmentsResponseTopic {
		req := kmsg.NewPtrListPartitionReassignmentsRequest()
		req.Topics = topics
		resp := ask[*kmsg.ListPartitionReassignmentsResponse](c, req)
		require.Zero(t, resp.ErrorCode)
		return resp.Topics
	}
	require.Empty(t, alter())
	require.Empty(t, list(nil))
	require.Equal(t, []int16{0, 3, 3, 39, 39, 85},
		alter(move{topic.Name, 0, []int32{2}}, move{"not-there", 0, []int32{1}}, move{topic.Name, 9, []int32{1}},
			move{topic.Name, 1, []int32{}}, move{b.topic(t, 1).Name, 0, []int32{1, 99}}, move{b.topic(t, 1).Name, 0, nil}))

	got := list(nil)
	require.Len(t, got, 1)
	require.Equal(t, topic.Name, got[0].Topic)
	require.Len(t, got[0].Partitions, 1)
	p := got[0].Partitions[0]
	require.ElementsMatch(t, []int32{1, 2}, p.Replicas)
	require.Equal(t, []int32{2}, p.AddingReplicas)
	require.Equal(t, []int32{1}, p.RemovingReplicas)

	rt := kmsg.NewListPartitionReassignmentsRequestTopic()
	rt.Topic, rt.Partitions = topic.Name, []int32{1, 7}
	require.Empty(t, list([]kmsg.ListPartitionReassignmentsRequestTopic{rt}), "not those that were asked for")
	rt.Partitions = []int32{0}
	require.Equal(t, got, list([]kmsg.ListPartitionReassignmentsRequestTopic{rt}))
	require.Empty(t, list([]kmsg.ListPartitionReassignmentsRequestTopic{}))

	require.Equal(t, []int16{42, 42}, alter(move{topic.Name, 0, nil}, move{topic.Name, 0, []int32{1, 2}}))
	require.Equal(t, []int16{0}, alter(move{topic.Name, 0, nil}))
	require.Empty(t, list(nil))
	require.Equal(t, []int16{85}, alter(move{topic.Name, 0, nil}))
	require.Equal(t, []metadata.BrokerID{1}, b.store.Image().Topic(topic.Name).Partitions[0].Replicas)
}

// DescribeQuorum: the Raft log as the one partition of __cluster_metadata, and no
// other one.
func TestDescribeQuorum(t *testing.T) {
	b := theBroker(t)
	c := b.dial(t)
	for version := int16(0); version <= 2; version++ {
		req := kmsg.NewPtrDescribeQuorumRequest()
		req.Version = version
		rt := kmsg.NewDescribeQuorumRequestTopic()
		rt.Topic = "__cluster_metadata"
		rt.Partitions = append(rt.Partitions, kmsg.NewDescribeQuorumRequestTopicPartition())
		req.Topics = append(req.Topics, rt)
		began := time.Now()
		resp := ask[*kmsg.DescribeQuorumResponse](c, req)
		require.Zero(t, resp.ErrorCode)
		require.Len(t, resp.Topics, 1)
		p := resp.Topics[0].Partitions[0]
		require.Zero(t, p.ErrorCode)
		require.EqualValues(t, 1, p.LeaderID)
		require.Positive(t, p.LeaderEpoch)
		require.Positive(t, p.HighWatermark)
		require.Len(t, p.CurrentVoters, 1)
		require.Empty(t, p.Observers)
		v := p.CurrentVoters[0]
		require.EqualValues(t, 1, v.ReplicaID)
		require.GreaterOrEqual(t, v.LogEndOffset, p.HighWatermark)
		if version >= 1 {
			require.GreaterOrEqual(t, v.LastFetchTimestamp, began.UnixMilli())
			require.Equal(t, v.LastFetchTimestamp, v.LastCaughtUpTimestamp)
		}
		if version >= 2 {
			require.EqualValues(t, b.dir.ID(), v.ReplicaDirectoryID)
			require.Len(t, resp.Nodes, 1)
			require.EqualValues(t, 1, resp.Nodes[0].NodeID)
		}

		req.Topics[0].Topic = "other"
		resp = ask[*kmsg.DescribeQuorumResponse](c, req)
		require.Zero(t, resp.ErrorCode)
		require.EqualValues(t, 3, resp.Topics[0].Partitions[0].ErrorCode)
	}
	states := quorumReplicas(&metadata.QuorumStatus{CommitIndex: 9}, []metadata.QuorumMember{
		{Server: metadata.Server{ID: 2}, LastContact: -1},
		{Server: metadata.Server{ID: 3}, LastContact: time.Second, LogIndex: 8},
	}, time.UnixMilli(5000))
	require.Equal(t, [][3]int64{{-1, -1, -1}, {9, 4000, -1}}, [][3]int64{
		{states[0].LogEndOffset, states[0].LastFetchTimestamp, states[0].LastCaughtUpTimestamp},
		{states[1].LogEndOffset, states[1].LastFetchTimestamp, states[1].LastCaughtUpTimestamp},
	})
	nodes := quorumNodes([]metadata.QuorumMember{{Server: metadata.Server{ID: 2, Address: "host:9093"}}, {Server: metadata.Server{ID: 3, Address: "gone."}}})
	require.Equal(t, "host", nodes[0].Listeners[0].Host)
	require.EqualValues(t, 9093, nodes[0].Listeners[0].Port)
	require.Empty(t, nodes[1].Listeners)
}

// Fenced brokers are told of to whom asks for them, and only there; a replica whose
// broker is fenced is offline.
func TestFencedBrokers(t *testing.T) {
	b := ownBroker(t, brokerEdit{fenced: []metadata.Registration{{
		ID: 2, Directories: []metadata.DirectoryID{{2}}, Incarnation: [16]byte{2},
		Listeners: []metadata.Listener{{Name: "PLAINTEXT", Host: "other", Port: 9}},
	}}})
	c := b.dial(t)
	topic := b.assigned(t, [][]metadata.BrokerID{{1, 2}})
	for version := int16(0); version <= 2; version++ {
		req := kmsg.NewPtrDescribeClusterRequest()
		req.Version = version
		require.Len(t, ask[*kmsg.DescribeClusterResponse](c, req).Brokers, 1)
	}
	req := kmsg.NewPtrDescribeClusterRequest()
	req.Version, req.IncludeFencedBrokers = 2, true
	brokers := ask[*kmsg.DescribeClusterResponse](c, req).Brokers
	require.Len(t, brokers, 2)
	require.Equal(t, []any{false, true, "other"}, []any{brokers[0].IsFenced, brokers[1].IsFenced, brokers[1].Host})
	resp := ask[*kmsg.MetadataResponse](c, metadataFor(13, topic.Name))
	require.Len(t, resp.Brokers, 1)
	require.Equal(t, []int32{2}, resp.Topics[0].Partitions[0].OfflineReplicas)
}
