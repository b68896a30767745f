package kafka

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

// metadataFor asks for topics by name.
func metadataFor(version int16, names ...string) *kmsg.MetadataRequest {
	req := kmsg.NewPtrMetadataRequest()
	req.Version = version
	req.Topics = []kmsg.MetadataRequestTopic{}
	for _, name := range names {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, topic)
	}
	return req
}

// Every version describes brokers and topics, as far as its layout goes.
func TestMetadataVersions(t *testing.T) {
	b := theBroker(t)
	c, topic := b.dial(t), b.topic(t, 3)
	for version := int16(0); version <= 13; version++ {
		req := metadataFor(version, topic.Name, topic.Name) // named twice, answered once
		req.IncludeTopicAuthorizedOperations = version%2 == 0
		req.IncludeClusterAuthorizedOperations = version%2 == 0
		resp := ask[*kmsg.MetadataResponse](c, req)
		require.Len(t, resp.Brokers, 1)
		require.EqualValues(t, 1, resp.Brokers[0].NodeID)
		require.Equal(t, "127.0.0.1", resp.Brokers[0].Host)
		require.Equal(t, b.server.Listeners()[0].AdvertisedPort(), resp.Brokers[0].Port)
		if version >= 1 {
			require.EqualValues(t, 1, resp.ControllerID)
		}
		if version >= 2 {
			require.Equal(t, b.store.Image().ClusterID(), *resp.ClusterID)
		}
		require.Len(t, resp.Topics, 1)
		rt := resp.Topics[0]
		require.Zero(t, rt.ErrorCode)
		require.Equal(t, topic.Name, *rt.Topic)
		require.False(t, rt.IsInternal)
		if version >= 10 {
			require.EqualValues(t, topic.ID, rt.TopicID)
		}
		want := int32(math.MinInt32)
		if version >= 8 && version%2 == 0 {
			want = 3576
		}
		require.Equal(t, want, rt.AuthorizedOperations)
		if version >= 8 && version <= 10 && version%2 == 0 {
			require.EqualValues(t, 8096, resp.AuthorizedOperations)
		} else {
			require.EqualValues(t, math.MinInt32, resp.AuthorizedOperations)
		}
		require.Len(t, rt.Partitions, 3)
		for i, p := range rt.Partitions {
			require.Zero(t, p.ErrorCode)
			require.EqualValues(t, i, p.Partition)
			require.EqualValues(t, 1, p.Leader)
			require.Equal(t, []int32{1}, p.Replicas)
			require.Equal(t, []int32{1}, p.ISR)
			require.Empty(t, p.OfflineReplicas)
			if version >= 7 {
				require.Equal(t, topic.Partitions[i].LeaderEpoch, p.LeaderEpoch)
			}
		}
	}
}

// v0 means all topics by an empty list, later versions by null.
func TestMetadataAllTopics(t *testing.T) {
	b := theBroker(t)
	c := b.dial(t)
	b.topic(t, 1)
	all := b.store.Image().TopicCount()
	for version := int16(0); version <= 13; version++ {
		null := metadataFor(version)
		null.Topics = nil
		empty := metadataFor(version)
		require.Len(t, ask[*kmsg.MetadataResponse](c, null).Topics, all, "v%d null", version)
		want := 0
		if version == 0 {
			want = all
		}
		require.Len(t, ask[*kmsg.MetadataResponse](c, empty).Topics, want, "v%d empty", version)
	}
}

// Topics that are not there: 3, or 17 for a name that can't be; by id 100 from v12
// on, and 42 in the versions that have the field without its meaning.
func TestMetadataUnknown(t *testing.T) {
	b := theBroker(t)
	c, topic := b.dial(t), b.topic(t, 1)
	for version := int16(4); version <= 13; version++ {
		resp := ask[*kmsg.MetadataResponse](c, metadataFor(version, "not-there", "bad name", ""))
		require.EqualValues(t, 3, resp.Topics[0].ErrorCode)
		require.EqualValues(t, 17, resp.Topics[1].ErrorCode)
		require.EqualValues(t, 17, resp.Topics[2].ErrorCode)
		require.Equal(t, "not-there", *resp.Topics[0].Topic)
	}
	for version := int16(10); version <= 13; version++ {
		req := metadataFor(version)
		for _, id := range []metadata.TopicID{topic.ID, {0xff, 3}, {}} {
			rt := kmsg.NewMetadataRequestTopic()
			rt.TopicID = id
			req.Topics = append(req.Topics, rt)
		}
		resp := ask[*kmsg.MetadataResponse](c, req)
		require.Len(t, resp.Topics, 3)
		codes := [3]int16{resp.Topics[0].ErrorCode, resp.Topics[1].ErrorCode, resp.Topics[2].ErrorCode}
		if version < 12 {
			require.Equal(t, [3]int16{42, 42, 42}, codes)
			continue
		}
		require.Equal(t, [3]int16{0, 100, 42}, codes)
		require.Equal(t, topic.Name, *resp.Topics[0].Topic)
		require.EqualValues(t, topic.ID, resp.Topics[0].TopicID)
		require.Nil(t, resp.Topics[1].Topic)
		require.EqualValues(t, metadata.TopicID{0xff, 3}, resp.Topics[1].TopicID)
	}
}

// Topics are made on demand when broker and client agree, and never by a request
// for all topics. The client is told 5 and comes back; the log says who it was.
func TestMetadataAutoCreate(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c := b.dial(t)
	code := func(version int16, allow bool, name string) int16 {
		req := metadataFor(version, name)
		req.AllowAutoTopicCreation = allow
		return ask[*kmsg.MetadataResponse](c, req).Topics[0].ErrorCode
	}
	require.EqualValues(t, 3, code(4, false, "no"))
	require.EqualValues(t, 17, code(4, true, "no way"))
	for version, name := range map[int16]string{0: "old", 3: "three", 4: "four", 13: "thirteen"} {
		require.EqualValues(t, 5, code(version, true, name))
		require.Eventually(t, func() bool { return code(version, true, name) == 0 }, testDeadline, time.Millisecond)
	}
	require.Nil(t, b.store.Image().Topic("no"))
	require.Contains(t, b.logs.String(), "created a topic because a client asked for it")
	require.Contains(t, b.logs.String(), "client=tester")
	require.Contains(t, b.logs.String(), "address=127.0.0.1:")

	off := ownBroker(t, brokerEdit{static: map[string]string{"auto.create.topics.enable": "false"}})
	req := metadataFor(1, "wanted")
	require.EqualValues(t, 3, ask[*kmsg.MetadataResponse](off.dial(t), req).Topics[0].ErrorCode)
}

// Brokers that these clients can't reach are not named; what they lead is 72, and 5
// for old clients; what nobody leads is 5 and keeps its epoch (trap 13).
func TestMetadataEndpoints(t *testing.T) {
	b := ownBroker(t, brokerEdit{brokers: []metadata.Registration{
		{ID: 2, Directories: []metadata.DirectoryID{{2}}, Incarnation: [16]byte{2}, Rack: "r2",
			Listeners: []metadata.Listener{{Name: "INTERNAL", Host: "wrong", Port: 1}, {Name: "PLAINTEXT", Host: "right", Port: 9999}}},
		{ID: 3, Directories: []metadata.DirectoryID{{3}}, Incarnation: [16]byte{3},
			Listeners: []metadata.Listener{{Name: "INTERNAL", Host: "hidden", Port: 1}}},
	}})
	c := b.dial(t)
	topic := b.assigned(t, [][]metadata.BrokerID{{1, 2}, {2, 3}, {3, 1}})
	for _, version := range []int16{1, 5, 6, 13} {
		resp := ask[*kmsg.MetadataResponse](c, metadataFor(version, topic.Name))
		require.Len(t, resp.Brokers, 2)
		require.Equal(t, []any{int32(2), "right", int32(9999), "r2"}, []any{resp.Brokers[1].NodeID, resp.Brokers[1].Host, resp.Brokers[1].Port, *resp.Brokers[1].Rack})
		p := resp.Topics[0].Partitions
		require.Equal(t, []int32{1, 2, -1}, []int32{p[0].Leader, p[1].Leader, p[2].Leader})
		want := codeLeaderNotAvailable
		if version >= 6 {
			want = codeListenerNotFound
		}
		require.Equal(t, [3]int16{0, 0, want}, [3]int16{p[0].ErrorCode, p[1].ErrorCode, p[2].ErrorCode})
		if version >= 5 {
			require.Equal(t, []int32{3}, p[1].OfflineReplicas)
			require.Equal(t, []int32{3}, p[2].OfflineReplicas)
		}
		if version >= 7 {
			require.Equal(t, topic.Partitions[2].LeaderEpoch, p[2].LeaderEpoch)
		}
	}
	cluster := kmsg.NewPtrDescribeClusterRequest()
	resp := ask[*kmsg.DescribeClusterResponse](c, cluster)
	require.Len(t, resp.Brokers, 2)
}

// DescribeCluster: brokers only, and everything is allowed while nobody authorizes.
func TestDescribeCluster(t *testing.T) {
	b := theBroker(t)
	c := b.dial(t)
	for version := int16(0); version <= 2; version++ {
		req := kmsg.NewPtrDescribeClusterRequest()
		req.Version = version
		resp := ask[*kmsg.DescribeClusterResponse](c, req)
		require.Zero(t, resp.ErrorCode)
		require.Equal(t, b.store.Image().ClusterID(), resp.ClusterID)
		require.EqualValues(t, 1, resp.ControllerID)
		require.Len(t, resp.Brokers, 1)
		require.EqualValues(t, math.MinInt32, resp.ClusterAuthorizedOperations)
		req.IncludeClusterAuthorizedOperations = true
		require.EqualValues(t, 8096, ask[*kmsg.DescribeClusterResponse](c, req).ClusterAuthorizedOperations)
	}
	for kind, want := range map[int8]int16{1: 0, 2: 114, 0: 115, 3: 115} {
		req := kmsg.NewPtrDescribeClusterRequest()
		req.Version, req.EndpointType = 1, kind
		resp := ask[*kmsg.DescribeClusterResponse](c, req)
		require.Equal(t, want, resp.ErrorCode, "type %d", kind)
		require.Equal(t, want != 0, resp.ErrorMessage != nil)
	}
}

// Trap 15: a hint never points back at the broker that gives it. A fenced broker
// does not exist for clients.
func TestEndpointsNotGiven(t *testing.T) {
	b := theBroker(t)
	topic := b.topic(t, 1)
	eps := endpoints{h: b.handlers, image: b.store.Image(), listener: b.server.Listeners()[0]}
	_, _, _, ok := eps.leaderHint(fetchTopic{name: topic.Name}, 0)
	require.False(t, ok)
	other := &metadata.Broker{ID: 2, Listeners: []metadata.Listener{{Name: "PLAINTEXT", Host: "other", Port: 9}}}
	ep, ok := eps.ofBroker(other)
	require.True(t, ok)
	require.Equal(t, endpoint{id: 2, host: "other", port: 9}, ep)
	other.Fenced = true
	_, ok = eps.ofBroker(other)
	require.False(t, ok)
}
