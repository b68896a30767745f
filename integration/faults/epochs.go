package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/integration/check"
	"github.com/millrace/millrace/integration/cluster"
)

// leader is what the clients know of a partition: the newest leader epoch that any broker told, and whom it named.
type leader struct {
	epoch int32
	node  *cluster.Node // nil: nobody
}

// epochs is shared by those clients that address brokers themselves.
type epochs struct {
	mu         sync.Mutex
	leaders    map[string]leader
	controller *cluster.Node
}

// learn takes in an epoch; one that is not newer changes nothing.
func (e *epochs) learn(key string, epoch int32, node *cluster.Node) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.leaders == nil {
		e.leaders = map[string]leader{}
	}
	if known, ok := e.leaders[key]; !ok || epoch > known.epoch || epoch == known.epoch && known.node == nil {
		e.leaders[key] = leader{epoch, node}
	}
}

// of returns what is known of a partition; epoch -1 when nothing is.
func (e *epochs) of(key string) leader {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l, ok := e.leaders[key]; ok {
		return l
	}
	return leader{epoch: -1}
}

// Controller is the node that leads the metadata, as far as is known.
func (e *epochs) Controller() *cluster.Node {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.controller
}

// refresh asks one node for the metadata of the workload's topics, and learns from it.
func (r *run) refresh(ctx context.Context, cl *kgo.Client) (*kmsg.MetadataResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	req := kmsg.NewPtrMetadataRequest()
	for _, topic := range r.topics {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(topic)
		req.Topics = append(req.Topics, t)
	}
	answer, err := cl.SeedBrokers()[0].Request(ctx, req)
	if err != nil {
		return nil, err
	}
	resp := answer.(*kmsg.MetadataResponse)
	nodes := map[int32]*cluster.Node{}
	for _, b := range resp.Brokers {
		nodes[b.NodeID] = r.node(b.Host, b.Port)
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if t.ErrorCode == 0 && p.LeaderEpoch >= 0 {
				r.epochs.learn(check.Key(*t.Topic, p.Partition), p.LeaderEpoch, nodes[p.Leader])
			}
		}
	}
	if n := nodes[resp.ControllerID]; n != nil {
		r.epochs.mu.Lock()
		r.epochs.controller = n
		r.epochs.mu.Unlock()
	}
	return resp, nil
}

// unhealthy asks every node whether all is as it should be: one view of all partitions, each with a leader and a full
// ISR (I20).
func (r *run) unhealthy(ctx context.Context) error {
	type view struct {
		leader, epoch int32
	}
	seen := map[string]view{}
	for _, n := range r.cluster.Nodes {
		cl, err := direct(n)
		if err != nil {
			return err
		}
		resp, err := r.refresh(ctx, cl)
		cl.Close()
		if err != nil {
			return fmt.Errorf("node %d: %w", n.Index, err)
		}
		if len(resp.Brokers) != len(r.cluster.Nodes) {
			return fmt.Errorf("node %d knows %d of %d brokers", n.Index, len(resp.Brokers), len(r.cluster.Nodes))
		}
		if len(resp.Topics) != len(r.topics) {
			return fmt.Errorf("node %d knows %d of %d topics", n.Index, len(resp.Topics), len(r.topics))
		}
		for _, t := range resp.Topics {
			if t.ErrorCode != 0 || len(t.Partitions) != r.perTopic {
				return fmt.Errorf("node %d: %s has %d partitions and error %d", n.Index, *t.Topic, len(t.Partitions), t.ErrorCode)
			}
			for _, p := range t.Partitions {
				key := check.Key(*t.Topic, p.Partition)
				if p.Leader < 0 || len(p.ISR) < len(p.Replicas) || len(p.OfflineReplicas) > 0 {
					return fmt.Errorf("node %d: %s has leader %d, replicas %v, isr %v, offline %v, error %d", n.Index, key, p.Leader, p.Replicas, p.ISR, p.OfflineReplicas, p.ErrorCode)
				}
				v := view{p.Leader, p.LeaderEpoch}
				if other, known := seen[key]; known && other != v {
					return fmt.Errorf("%s: node %d has leader %d in epoch %d, others %d in %d", key, n.Index, v.leader, v.epoch, other.leader, other.epoch)
				}
				seen[key] = v
			}
		}
	}
	// Metadata may know a leader that cannot serve.
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.cluster.Seeds()...), kgo.MetadataMinAge(50*time.Millisecond), kgo.RetryTimeout(3*time.Second))
	if err != nil {
		return err
	}
	defer cl.Close()
	if _, err := r.askEnds(ctx, cl, 0); err != nil {
		return fmt.Errorf("ask for the ends: %w", err)
	}
	return nil
}

// healthy waits until nothing is unhealthy.
func (r *run) healthy(ctx context.Context) error {
	for tries := 0; ; tries++ {
		err := r.unhealthy(ctx)
		if err == nil {
			return nil
		}
		if tries%40 == 39 {
			r.logf("not whole yet: %v", err)
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
