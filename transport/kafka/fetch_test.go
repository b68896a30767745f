package kafka

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

// Every version reads what was written, with the marks that belong to it and
// nothing that does not.
func TestFetchVersions(t *testing.T) {
	b := theBroker(t)
	c, topic := b.dial(t), b.topic(t, 2)
	c.produce(topic, 1, batch(2), batch(3))
	for version := int16(4); version <= 17; version++ {
		for _, isolation := range []int8{0, 1} {
			req := fetchRequest(version, fetched{topic, 1, 1}, fetched{topic, 0, 0})
			req.IsolationLevel, req.SessionEpoch = isolation, -1
			resp := ask[*kmsg.FetchResponse](c, req)
			require.Zero(t, resp.ErrorCode)
			require.Zero(t, resp.SessionID)
			require.Zero(t, resp.ThrottleMillis)
			require.Len(t, resp.Topics, 1)
			if version < 13 {
				require.Equal(t, topic.Name, resp.Topics[0].Topic)
			} else {
				require.EqualValues(t, topic.ID, resp.Topics[0].TopicID)
			}
			p := resp.Topics[0].Partitions[0]
			require.Equal(t, []string{"v0", "v1", "v0", "v1", "v2"}, values(t, p.RecordBatches), "whole batches: the first begins below the offset")
			require.EqualValues(t, 5, p.HighWatermark)
			require.EqualValues(t, 5, p.LastStableOffset)
			if version >= 5 {
				require.Zero(t, p.LogStartOffset)
			}
			require.EqualValues(t, -1, p.PreferredReadReplica)
			require.EqualValues(t, -1, p.DivergingEpoch.Epoch)
			require.Equal(t, isolation == 0, p.AbortedTransactions == nil)
			require.Empty(t, p.AbortedTransactions)
			empty := resp.Topics[0].Partitions[1]
			require.Zero(t, empty.ErrorCode)
			require.NotNil(t, empty.RecordBatches)
			require.Empty(t, empty.RecordBatches)
		}
	}
}

// What a partition can be told instead of records. Each makes the answer come at
// once, whatever it was to wait for (test deadline: seconds).
func TestFetchErrors(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c, topic := b.dial(t), b.topic(t, 1)
	c.produce(topic, 0, batch(4))
	b = b.restart(t)
	c = b.dial(t)
	epoch := b.store.Image().Topic(topic.Name).Partitions[0].LeaderEpoch
	require.Positive(t, epoch)
	gone := &metadata.Topic{Name: "never-made", ID: metadata.TopicID{0xff, 2}}
	for _, test := range []struct {
		name    string
		version int16
		part    fetched
		epoch   int32
		code    int16
	}{
		{"above the end", 11, fetched{topic, 0, 5}, -1, 1},
		{"below the start", 11, fetched{topic, 0, -1}, -1, 1},
		{"unknown topic", 12, fetched{gone, 0, 0}, -1, 3},
		{"unknown id", 13, fetched{gone, 0, 0}, -1, 100},
		{"unknown partition", 12, fetched{topic, 1, 0}, -1, 3},
		{"unknown partition by id", 13, fetched{topic, 1, 0}, -1, 3},
		{"old epoch", 9, fetched{topic, 0, 0}, epoch - 1, 74},
		{"new epoch", 9, fetched{topic, 0, 0}, epoch + 1, 75},
	} {
		t.Run(test.name, func(t *testing.T) {
			req := fetchRequest(test.version, test.part)
			req.MaxWaitMillis, req.MinBytes, req.SessionEpoch = 600_000, 1<<20, -1
			req.Topics[0].Partitions[0].CurrentLeaderEpoch = test.epoch
			p := c.fetchOne(req)
			require.Equal(t, test.code, p.ErrorCode)
			require.NotNil(t, p.RecordBatches)
			require.Empty(t, p.RecordBatches)
			require.EqualValues(t, -1, p.HighWatermark, "no offsets beside an error")
			require.EqualValues(t, -1, p.LastStableOffset)
			require.EqualValues(t, -1, p.LogStartOffset)
		})
	}
	// The epoch is not looked at before v9, and the right one is good.
	req := fetchRequest(8, fetched{topic, 0, 0})
	req.SessionEpoch = -1
	require.Len(t, values(t, c.fetchOne(req).RecordBatches), 4)
	req = fetchRequest(9, fetched{topic, 0, 0})
	req.SessionEpoch, req.Topics[0].Partitions[0].CurrentLeaderEpoch = -1, epoch
	require.Len(t, values(t, c.fetchOne(req).RecordBatches), 4)
	// A follower reads elsewhere (S5).
	req.ReplicaID = 7
	require.EqualValues(t, 29, c.fetchOne(req).ErrorCode)
}

// At the end of the log there is nothing to read and no error; with a diverging
// epoch (KIP-595) the answer says where to go back to.
func TestFetchAtTheEndAndDiverging(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c, topic := b.dial(t), b.topic(t, 1)
	c.produce(topic, 0, batch(4))
	req := fetchRequest(12, fetched{topic, 0, 4})
	req.SessionEpoch = -1
	p := c.fetchOne(req)
	require.Zero(t, p.ErrorCode)
	require.Empty(t, p.RecordBatches)

	// The log goes on in another epoch; a reader that has more of the first epoch
	// than there is left the common path at its end.
	b = b.restart(t)
	c = b.dial(t)
	c.produce(topic, 0, batch(3))
	req = fetchRequest(12, fetched{topic, 0, 6})
	req.SessionEpoch, req.MaxWaitMillis, req.MinBytes = -1, 600_000, 1<<20
	req.Topics[0].Partitions[0].LastFetchedEpoch = topic.Partitions[0].LeaderEpoch
	p = c.fetchOne(req)
	require.Zero(t, p.ErrorCode)
	require.Equal(t, topic.Partitions[0].LeaderEpoch, p.DivergingEpoch.Epoch)
	require.EqualValues(t, 4, p.DivergingEpoch.EndOffset)
	require.Empty(t, p.RecordBatches)
	req.Topics[0].Partitions[0].FetchOffset, req.MinBytes = 4, 1
	p = c.fetchOne(req)
	require.EqualValues(t, -1, p.DivergingEpoch.Epoch)
	require.Len(t, values(t, p.RecordBatches), 3)
}

// Limits: in the order of the partitions, by whole batches, and never so tight that
// the first partition with records gives nothing.
func TestFetchLimits(t *testing.T) {
	b := theBroker(t)
	c, topic := b.dial(t), b.topic(t, 3)
	for i := range int32(2) {
		c.produce(topic, i+1, batch(1), batch(1), batch(1))
	}
	size := len(batch(1))
	counts := func(maxBytes, partitionMaxBytes int) (n [3]int) {
		req := fetchRequest(11, fetched{topic, 0, 0}, fetched{topic, 1, 0}, fetched{topic, 2, 0})
		req.SessionEpoch, req.MaxBytes = -1, int32(maxBytes)
		for i := range req.Topics[0].Partitions {
			req.Topics[0].Partitions[i].PartitionMaxBytes = int32(partitionMaxBytes)
		}
		resp := ask[*kmsg.FetchResponse](c, req)
		for i, p := range resp.Topics[0].Partitions {
			require.Zero(t, p.ErrorCode)
			n[i] = len(values(t, p.RecordBatches))
		}
		return n
	}
	require.Equal(t, [3]int{0, 3, 3}, counts(1<<20, 1<<20))
	require.Equal(t, [3]int{0, 2, 2}, counts(1<<20, 2*size+10))
	require.Equal(t, [3]int{0, 3, 1}, counts(4*size+10, 1<<20))
	require.Equal(t, [3]int{0, 3, 0}, counts(3*size, 1<<20))
	require.Equal(t, [3]int{0, 1, 0}, counts(1, 1<<20))
	require.Equal(t, [3]int{0, 1, 0}, counts(1<<20, 1), "only the first may exceed its limit")
	require.Equal(t, [3]int{0, 1, 0}, counts(0, 0))
	require.Equal(t, [3]int{0, 1, 0}, counts(-5, -5))
}

// The broker's own bound holds whatever the client asks.
func TestFetchMaxBytesOfBroker(t *testing.T) {
	b := ownBroker(t, brokerEdit{static: map[string]string{"fetch.max.bytes": "1024"}})
	c, topic := b.dial(t), b.topic(t, 1)
	for range 10 {
		c.produce(topic, 0, batch(20))
	}
	req := fetchRequest(11, fetched{topic, 0, 0})
	req.SessionEpoch, req.MinBytes, req.MaxWaitMillis = -1, 1<<30, 600_000 // min bytes is bounded with it
	p := c.fetchOne(req)
	require.NotEmpty(t, p.RecordBatches)
	require.LessOrEqual(t, len(p.RecordBatches), 1024)
}

// A fetch waits for min bytes over all its partitions, each counted up to its own
// limit, and is answered with everything that is there.
func TestFetchWaits(t *testing.T) {
	b := theBroker(t)
	c, p, topic := b.dial(t), b.dial(t), b.topic(t, 2)
	size := len(batch(1))
	req := fetchRequest(11, fetched{topic, 0, 0}, fetched{topic, 1, 0})
	req.SessionEpoch, req.MaxWaitMillis, req.MinBytes = -1, 600_000, int32(3*size)
	c.send(req)
	b.awaitParked(t, 1)
	p.produce(topic, 0, batch(1))
	p.produce(topic, 1, batch(1))
	b.awaitParked(t, 1) // two are not enough
	p.produce(topic, 0, batch(1))
	resp := c.receive(req).(*kmsg.FetchResponse)
	require.Len(t, values(t, resp.Topics[0].Partitions[0].RecordBatches), 2)
	require.Len(t, values(t, resp.Topics[0].Partitions[1].RecordBatches), 1)
	b.awaitParked(t, 0)
}

// awaitParked waits until n fetches are parked on the shared broker.
func (b *testBroker) awaitParked(t testing.TB, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return b.parked() == n }, testDeadline, time.Millisecond)
}

func (b *testBroker) parked() (n int) {
	ps := &b.handlers.parked
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, f := range ps.mu.conns {
		for ; f != nil; f = f.park.next {
			n++
		}
	}
	return n
}

// Max wait ends the wait with what there is.
func TestFetchMaxWait(t *testing.T) {
	b := theBroker(t)
	c, topic := b.dial(t), b.topic(t, 1)
	c.produce(topic, 0, batch(1))
	req := fetchRequest(11, fetched{topic, 0, 0})
	req.SessionEpoch, req.MaxWaitMillis, req.MinBytes = -1, 20, 1<<20
	started := time.Now()
	require.Len(t, values(t, c.fetchOne(req).RecordBatches), 1)
	require.GreaterOrEqual(t, time.Since(started), 20*time.Millisecond)
	b.awaitParked(t, 0)
}

// What happens to a partition while a fetch waits for it is told at once.
func TestFetchWokenByDeletion(t *testing.T) {
	b := theBroker(t)
	c, topic := b.dial(t), b.topic(t, 1)
	req := fetchRequest(13, fetched{topic, 0, 0})
	req.SessionEpoch, req.MaxWaitMillis = -1, 600_000
	c.send(req)
	b.awaitParked(t, 1)
	ctx, cancel := context.WithTimeout(t.Context(), testDeadline)
	defer cancel()
	require.NoError(t, b.store.DeleteTopics(ctx, []metadata.TopicRef{{Name: topic.Name}})[0].Err)
	p := c.receive(req).(*kmsg.FetchResponse).Topics[0].Partitions[0]
	require.EqualValues(t, codeUnknownTopicID, p.ErrorCode)
	b.awaitParked(t, 0)
}

// N2: a fetch of a connection that died leaves nothing behind.
func TestFetchOfDeadConnection(t *testing.T) {
	b := theBroker(t)
	c, topic := b.dial(t), b.topic(t, 1)
	for range 3 {
		req := fetchRequest(11, fetched{topic, 0, 0})
		req.SessionEpoch, req.MaxWaitMillis = -1, 600_000
		c.send(req)
	}
	b.awaitParked(t, 3)
	require.NoError(t, c.Close())
	b.awaitParked(t, 0)
	// The partition goes on.
	d := b.dial(t)
	d.produce(topic, 0, batch(1))
	require.Len(t, values(t, d.fetchOne(fetchRequest(11, fetched{topic, 0, 0})).RecordBatches), 1)
}

// A server that drains answers what waits, and nothing waits any more.
func TestFetchDrains(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c, topic := b.dial(t), b.topic(t, 1)
	req := fetchRequest(11, fetched{topic, 0, 0})
	req.SessionEpoch, req.MaxWaitMillis = -1, 600_000
	c.send(req)
	b.awaitParked(t, 1)
	ctx, cancel := context.WithTimeout(t.Context(), testDeadline)
	defer cancel()
	require.NoError(t, b.server.Shutdown(ctx))
	require.Empty(t, c.receive(req).(*kmsg.FetchResponse).Topics[0].Partitions[0].RecordBatches)
}

// A sessionless request with nothing in it is answered at once.
func TestFetchNothing(t *testing.T) {
	c := theBroker(t).dial(t)
	for version := int16(4); version <= 17; version++ {
		req := fetchRequest(version)
		req.MaxWaitMillis, req.MinBytes = 600_000, 1<<20
		resp := ask[*kmsg.FetchResponse](c, req)
		require.Zero(t, resp.ErrorCode)
		require.Zero(t, resp.SessionID)
		require.Empty(t, resp.Topics)
	}
}
