package kafka

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// awaitNoBudget waits until nothing of the decode budget is held.
func (b *testBroker) awaitNoBudget(t *testing.T) {
	t.Helper()
	all := b.handlers.cfg.DecodeBudgetBytes
	require.Eventually(t, func() bool {
		if !b.handlers.decoding.TryAcquire(all) {
			return false
		}
		b.handlers.decoding.Release(all)
		return true
	}, testDeadline, time.Millisecond, "decode budget is still held")
}

// holds reports whether a part of the decode budget is held.
func (b *testBroker) holds() bool {
	all := b.handlers.cfg.DecodeBudgetBytes
	if b.handlers.decoding.TryAcquire(all) {
		b.handlers.decoding.Release(all)
		return false
	}
	return true
}

// N4: what large requests hold of the decode budget comes back on every path:
// answered, malformed, parked and answered, parked and abandoned.
func TestDecodeBudgetComesBack(t *testing.T) {
	b := ownBroker(t, brokerEdit{static: map[string]string{"auto.create.topics.enable": "false"}})
	c, topic := b.dial(t), b.topic(t, 1)
	metadata := metadataFor(9)
	for range 2000 {
		name := kmsg.NewMetadataRequestTopic()
		name.Topic = &topic.Name
		metadata.Topics = append(metadata.Topics, name)
	}
	ask[*kmsg.MetadataResponse](c, metadata)
	b.awaitNoBudget(t)

	wide := produceRequest(9, -1)
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic = topic.Name
	for i := range int32(1000) {
		p := kmsg.NewProduceRequestTopicPartition()
		p.Partition, p.Records = i+1, []byte{}
		rt.Partitions = append(rt.Partitions, p)
	}
	wide.Topics = append(wide.Topics, rt)
	require.Len(t, ask[*kmsg.ProduceResponse](c, wide).Topics[0].Partitions, 1000)
	b.awaitNoBudget(t)

	var parts []fetched
	for range 300 {
		parts = append(parts, fetched{topic, 0, 0})
	}
	fetch := fetchRequest(11, parts...)
	fetch.SessionEpoch, fetch.MaxWaitMillis = -1, 600_000
	c.send(fetch)
	b.awaitParked(t, 1)
	require.True(t, b.holds(), "a large fetch that waits holds its share")
	d := b.dial(t)
	d.produce(topic, 0, batch(1))
	c.receive(fetch)
	b.awaitNoBudget(t)

	for i := range fetch.Topics[0].Partitions {
		fetch.Topics[0].Partitions[i].FetchOffset = 1
	}
	c.send(fetch)
	b.awaitParked(t, 1)
	require.NoError(t, c.Close())
	b.awaitParked(t, 0)
	b.awaitNoBudget(t)

	for _, req := range []kmsg.Request{metadata, fetch} {
		e := b.dial(t)
		whole := e.formatter.AppendRequest(nil, req, 1)
		cut := whole[:len(whole)-9]
		binary.BigEndian.PutUint32(cut, uint32(len(cut)-4))
		_, err := e.Write(cut)
		require.NoError(t, err)
		e.requireClosed()
		b.awaitNoBudget(t)
	}
}

// N4: requests that would hold more than there is wait for their turn, and get it.
func TestDecodeBudgetIsShared(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	topic := b.topic(t, 1)
	all := b.handlers.cfg.DecodeBudgetBytes
	require.NoError(t, b.handlers.decoding.Acquire(t.Context(), all))
	large, small := metadataFor(9), metadataFor(9, topic.Name)
	for range 2000 {
		large.Topics = append(large.Topics, small.Topics[0])
	}
	c, d := b.dial(t), b.dial(t)
	c.send(large)
	require.Len(t, ask[*kmsg.MetadataResponse](d, small).Topics, 1, "small requests need no budget")
	b.handlers.decoding.Release(all)
	require.Len(t, c.receive(large).(*kmsg.MetadataResponse).Topics, 1)
	b.awaitNoBudget(t)
}
