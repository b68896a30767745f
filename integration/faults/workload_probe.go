package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/integration/check"
	"github.com/millrace/millrace/integration/cluster"
)

const probePause = 300 * time.Millisecond

// probe asks one broker for the ends and starts of all partitions, again and again, in the newest epoch that any client
// knows (I4).
func (r *run) probe(n *cluster.Node) {
	process := r.newProcess()
	cl, err := direct(n)
	if err != nil {
		r.fail("a probe: %v", err)
		return
	}
	defer cl.Close()
	for i := 0; ; i++ {
		select {
		case <-r.reading.Done():
			return
		case <-time.After(probePause):
		}
		if i%3 == 0 {
			_, _ = r.refresh(r.reading, cl)
		}
		f, timestamp := check.HighWatermark, int64(-1)
		switch {
		case i%8 == 7:
			f, timestamp = check.LogStart, -2
		case r.transactions && i%2 == 1:
			f = check.LastStable
		}
		r.probeOnce(process, n, cl, f, timestamp)
		if i%5 == 4 {
			_, _ = r.state(r.reading, n) // a broker that is down has none
		}
	}
}

func (r *run) probeOnce(process int, n *cluster.Node, cl *kgo.Client, f check.F, timestamp int64) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	if f == check.LastStable {
		req.IsolationLevel = 1
	}
	asked := map[string]bool{}
	for _, topic := range r.topics {
		t := kmsg.NewListOffsetsRequestTopic()
		t.Topic = topic
		for p := range int32(r.perTopic) {
			key := check.Key(topic, p)
			epoch := r.epochs.of(key).epoch
			if epoch < 0 {
				continue
			}
			r.history.Log(check.Op{F: f, Type: check.Invoke, Process: process, Key: key, Epoch: epoch, Node: n.Index})
			asked[key] = true
			q := kmsg.NewListOffsetsRequestTopicPartition()
			q.Partition, q.CurrentLeaderEpoch, q.Timestamp = p, epoch, timestamp
			t.Partitions = append(t.Partitions, q)
		}
		req.Topics = append(req.Topics, t)
	}
	if len(asked) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	answer, err := cl.SeedBrokers()[0].Request(ctx, req)
	if err == nil {
		for _, t := range answer.(*kmsg.ListOffsetsResponse).Topics {
			for _, p := range t.Partitions {
				key := check.Key(t.Topic, p.Partition)
				if !asked[key] {
					continue
				}
				delete(asked, key)
				o := check.Op{F: f, Type: check.OK, Process: process, Key: key, Epoch: p.LeaderEpoch, Offset: p.Offset, Node: n.Index}
				if p.ErrorCode != 0 {
					o.Type, o.Epoch, o.Offset, o.Error = check.Fail, 0, 0, fmt.Sprint(p.ErrorCode)
				} else {
					r.epochs.learn(key, p.LeaderEpoch, n)
				}
				r.history.Log(o)
			}
		}
	}
	for key := range asked {
		r.history.Log(check.Op{F: f, Type: check.Info, Process: process, Key: key, Node: n.Index, Error: fmt.Sprint(err)})
	}
}

// ends asks the leaders for the ends of all partitions.
func (r *run) ends(ctx context.Context) (map[string]int64, error) { return r.endsAt(ctx, 0) }

// stableEnds asks for the ends that readers of committed records see.
func (r *run) stableEnds(ctx context.Context) (map[string]int64, error) { return r.endsAt(ctx, 1) }

func (r *run) endsAt(ctx context.Context, level int8) (map[string]int64, error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.cluster.Seeds()...), kgo.MetadataMinAge(100*time.Millisecond))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	for {
		out, err := r.askEnds(ctx, cl, level)
		if err == nil {
			return out, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (r *run) askEnds(ctx context.Context, cl *kgo.Client, level int8) (map[string]int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID, req.IsolationLevel = -1, level
	for _, topic := range r.topics {
		t := kmsg.NewListOffsetsRequestTopic()
		t.Topic = topic
		for p := range int32(r.perTopic) {
			q := kmsg.NewListOffsetsRequestTopicPartition()
			q.Partition, q.Timestamp = p, -1
			t.Partitions = append(t.Partitions, q)
		}
		req.Topics = append(req.Topics, t)
	}
	out := map[string]int64{}
	for _, shard := range cl.RequestSharded(ctx, req) {
		if shard.Err != nil {
			return nil, shard.Err
		}
		for _, t := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics {
			for _, p := range t.Partitions {
				if p.ErrorCode != 0 {
					return nil, fmt.Errorf("%s: error %d", check.Key(t.Topic, p.Partition), p.ErrorCode)
				}
				out[check.Key(t.Topic, p.Partition)] = p.Offset
			}
		}
	}
	if len(out) != len(r.topics)*r.perTopic {
		return nil, fmt.Errorf("ends of %d partitions", len(out))
	}
	return out, nil
}
