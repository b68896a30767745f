package kafka

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// N11: a key or version that is not in the table closes the connection without a
// byte; its neighbours are served.
func TestUnknownCloses(t *testing.T) {
	b := theBroker(t)
	for _, u := range []struct{ key, version int16 }{
		{keyProduce, 2}, {keyProduce, 14}, {keyFetch, 3}, {keyFetch, 18}, {keyListOffsets, 0}, {keyListOffsets, 11},
		{keyMetadata, 14}, {keyMetadata, -1}, {4, 0}, {8, 0}, {11, 10}, {17, 0}, {52, 0}, {94, 0}, {95, 0}, {1000, 0}, {-1, 0},
	} {
		t.Run(fmt.Sprint(u.key, "v", u.version), func(t *testing.T) {
			c := b.dial(t)
			head := binary.BigEndian.AppendUint16(nil, uint16(u.key))
			head = binary.BigEndian.AppendUint16(head, uint16(u.version))
			head = append(head, 0, 0, 0, 1, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0)
			_, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(head))), head...))
			require.NoError(t, err)
			c.requireClosed()
		})
	}
}

// Every version of every API is answered with the right header: testConn.receive
// fails when the tag section is missing or too much. An empty request is one that
// every API understands.
func TestEveryVersionAnswers(t *testing.T) {
	c := theBroker(t).dial(t)
	for _, a := range table() {
		for version := a.minServed; version <= a.max; version++ {
			req := kmsg.RequestForKey(a.key)
			req.SetVersion(version)
			if r, ok := req.(*kmsg.ApiVersionsRequest); ok {
				r.ClientSoftwareName, r.ClientSoftwareVersion, r.NodeID = "tester", "1.0", -1
			}
			if r, ok := req.(*kmsg.ProduceRequest); ok {
				r.Acks = 1
			}
			c.send(req)
			c.receive(req)
		}
	}
}

// Requests that arrive together are answered in their order (trap 9), each with
// its own correlation id.
func TestPipelinedOrder(t *testing.T) {
	b := theBroker(t)
	c, topic := b.dial(t), b.topic(t, 1)
	wait := fetchRequest(11, fetched{topic, 0, 0})
	wait.MaxWaitMillis, wait.SessionEpoch = 60_000, -1
	produce := produceRequest(9, -1, produced{topic, 0, batch(3)})
	metadata := kmsg.NewPtrMetadataRequest()
	metadata.Version = 9
	metadata.Topics = []kmsg.MetadataRequestTopic{}
	c.send(wait) // parked until the produce behind it
	c.send(produce)
	c.send(metadata)
	require.Equal(t, []string{"v0", "v1", "v2"}, values(t, c.receive(wait).(*kmsg.FetchResponse).Topics[0].Partitions[0].RecordBatches))
	require.Zero(t, c.receive(produce).(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode)
	require.Empty(t, c.receive(metadata).(*kmsg.MetadataResponse).Topics)
}

// A body that ends too early closes the connection, with a log line that says who
// sent what; bytes behind a body are tolerated.
func TestMalformed(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	for _, a := range table() {
		if a.key == keyAPIVersions || a.key == keyDescribeCluster {
			continue // shorter than what is cut off below
		}
		c := b.dial(t)
		req := kmsg.RequestForKey(a.key)
		req.SetVersion(a.max)
		whole := c.formatter.AppendRequest(nil, req, 1)
		cut := whole[:len(whole)-2]
		binary.BigEndian.PutUint32(cut, uint32(len(cut)-4))
		_, err := c.Write(cut)
		require.NoError(t, err)
		c.requireClosed()
		require.Contains(t, b.logs.String(), "request="+a.name)
	}
	require.Contains(t, b.logs.String(), "client=tester")

	c := b.dial(t)
	req := kmsg.NewPtrMetadataRequest()
	req.Version = 1
	whole := append(c.formatter.AppendRequest(nil, req, 1), "behind"...)
	binary.BigEndian.PutUint32(whole, uint32(len(whole)-4))
	_, err := c.Write(whole)
	require.NoError(t, err)
	c.receive(req)
}

// N4: only Produce may be as large as the transport allows.
func TestRequestSizes(t *testing.T) {
	c := theBroker(t).dial(t)
	req := kmsg.NewPtrMetadataRequest()
	req.Version = 1
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = kmsg.StringPtr(string(make([]byte, 30_000)))
	for range 100 {
		req.Topics = append(req.Topics, topic)
	}
	// The connection may be reset while we still write.
	_, _ = c.Write(c.formatter.AppendRequest(nil, req, 1))
	_, err := c.frame()
	require.Error(t, err)
}

// ApiVersions from the future: error 35 in the layout of version 0, with the one
// entry that matters; the connection stays (traps 3 and 4).
func TestAPIVersionsFallback(t *testing.T) {
	c := theBroker(t).dial(t)
	for _, version := range []int16{6, 99, 32767} {
		c.sent++
		body := binary.BigEndian.AppendUint16(nil, uint16(keyAPIVersions))
		body = binary.BigEndian.AppendUint16(body, uint16(version))
		body = binary.BigEndian.AppendUint32(body, uint32(c.sent))
		body = append(body, 0, 1, 'x', 0)
		body = append(body, "whatever the future holds"...)
		_, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
		require.NoError(t, err)
		req := kmsg.NewPtrApiVersionsRequest()
		resp := c.receive(req).(*kmsg.ApiVersionsResponse)
		require.EqualValues(t, 35, resp.ErrorCode)
		require.Len(t, resp.ApiKeys, 1)
		require.Equal(t, [3]int16{18, 0, 5}, [3]int16{resp.ApiKeys[0].ApiKey, resp.ApiKeys[0].MinVersion, resp.ApiKeys[0].MaxVersion})
	}
	req := kmsg.NewPtrApiVersionsRequest()
	require.Len(t, ask[*kmsg.ApiVersionsResponse](c, req).ApiKeys, len(table()))
}

// KIP-511 and KIP-1242: what a client says of itself and of us must be possible.
func TestAPIVersionsChecks(t *testing.T) {
	b := theBroker(t)
	c := b.dial(t)
	clusterID := b.store.Image().ClusterID()
	other := "other"
	ask5 := func(name, version string, cluster *string, node int32) int16 {
		req := kmsg.NewPtrApiVersionsRequest()
		req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = 5, name, version
		req.ClusterID, req.NodeID = cluster, node
		resp := ask[*kmsg.ApiVersionsResponse](c, req)
		if resp.ErrorCode == 0 {
			require.Len(t, resp.ApiKeys, len(table()))
			require.Positive(t, resp.FinalizedFeaturesEpoch)
			require.Len(t, resp.SupportedFeatures, len(features))
			require.Len(t, resp.FinalizedFeatures, len(features), "a new cluster has all of them")
			f := resp.FinalizedFeatures[0]
			require.Equal(t, "group.version 1 1", fmt.Sprint(f.Name, " ", f.MinVersionLevel, " ", f.MaxVersionLevel))
		}
		return resp.ErrorCode
	}
	require.EqualValues(t, 0, ask5("librdkafka", "2.0.2-RC1.x", nil, -1))
	require.EqualValues(t, 0, ask5("x", "1", &clusterID, 1))
	require.EqualValues(t, 129, ask5("x", "1", &other, 1))
	require.EqualValues(t, 129, ask5("x", "1", &clusterID, 2))
	require.EqualValues(t, 42, ask5("x", "1", &clusterID, -1))
	require.EqualValues(t, 42, ask5("x", "1", nil, 1))
	for _, bad := range []string{"", "-x", "x-", ".", "a b", "ü", "a_b"} {
		require.EqualValues(t, 42, ask5(bad, "1", nil, -1), bad)
		require.EqualValues(t, 42, ask5("x", bad, nil, -1), bad)
	}
}

// Groups and transactional ids have a coordinator; types that do not exist are 42.
func TestFindCoordinator(t *testing.T) {
	c := theBroker(t).dial(t)
	for version := int16(1); version <= 5; version++ {
		req := kmsg.NewPtrFindCoordinatorRequest()
		req.Version, req.CoordinatorKey, req.CoordinatorKeys = version, "g", []string{"g", "h"}
		for kind, code := range []int16{0, 0, 42} {
			req.CoordinatorType = int8(kind)
			resp := ask[*kmsg.FindCoordinatorResponse](c, req)
			codes, nodes := []int16{resp.ErrorCode}, []int32{resp.NodeID}
			if version >= 4 {
				require.Len(t, resp.Coordinators, 2)
				codes, nodes = nil, nil
				for i, key := range []string{"g", "h"} {
					rc := resp.Coordinators[i]
					require.Equal(t, key, rc.Key)
					codes, nodes = append(codes, rc.ErrorCode), append(nodes, rc.NodeID)
				}
			}
			for i := range codes {
				require.Equal(t, code, codes[i], "version %d type %d", version, kind)
				require.Equal(t, code != 0, nodes[i] == -1)
			}
		}
	}
}
