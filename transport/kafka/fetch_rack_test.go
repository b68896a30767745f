package kafka

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

// KIP-392: a consumer is sent to the follower in its rack, at once and without records, and to nobody else.
func TestFetchByRack(t *testing.T) {
	other := func(id metadata.BrokerID, rack, listener string) metadata.Registration {
		return metadata.Registration{ID: id, Incarnation: [16]byte{byte(id)}, Directories: []metadata.DirectoryID{{byte(id)}}, Rack: rack,
			Listeners: []metadata.Listener{{Name: listener, Host: "127.0.0.1", Port: 1, Protocol: "PLAINTEXT"}}}
	}
	b := ownBroker(t, brokerEdit{brokers: []metadata.Registration{other(2, "b", "PLAINTEXT"), other(3, "c", "ELSEWHERE"), other(4, "b", "PLAINTEXT")}})
	ctx, cancel := context.WithTimeout(context.Background(), testDeadline)
	defer cancel()
	one := "1"
	require.NoError(t, b.store.CreateTopics(ctx, []metadata.NewTopic{{Name: "t", Partitions: -1, ReplicationFactor: -1,
		Assignments: [][]metadata.BrokerID{{1, 4, 2, 3}, {1, 2, 3, 4}, {1, 3, 4, 2}}, Configs: map[string]*string{"min.insync.replicas": &one}}}, false)[0].Err)
	require.NoError(t, b.replicas.Await(ctx, b.store.Image().Version()))
	topic := b.store.Image().Topic("t")
	c := b.dial(t)
	fetch := func(version int16, rack string) (preferred []int32) {
		req := fetchRequest(version, fetched{topic, 0, 0}, fetched{topic, 1, 0}, fetched{topic, 2, 0})
		req.SessionEpoch, req.Rack = -1, rack
		if req.Rack == "b" {
			req.MaxWaitMillis, req.MinBytes = 600_000, 1 // it has something to say, so it does not wait
		}
		for _, p := range ask[*kmsg.FetchResponse](c, req).Topics[0].Partitions {
			require.Zero(t, p.ErrorCode)
			require.Empty(t, p.RecordBatches)
			preferred = append(preferred, p.PreferredReadReplica)
		}
		return preferred
	}
	for _, version := range []int16{11, 12, 13, 17} {
		require.Equal(t, []int32{4, 2, 4}, fetch(version, "b"), "v%d", version)
	}
	none := []int32{-1, -1, -1}
	require.Equal(t, none, fetch(17, ""))
	require.Equal(t, none, fetch(17, "z"))
	require.Equal(t, none, fetch(17, "c"), "it has no listener that this consumer could reach")
}
