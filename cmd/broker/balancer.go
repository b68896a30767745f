package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/millrace/millrace/metadata"
)

// replicaBytesMethod is the call between brokers that asks how large copies of partitions are, for the balancer's progress.
const replicaBytesMethod = "balancer.replica_bytes"

// serveReplicaBytes says how many bytes this broker's copies of partitions have, -1 for one that it has not.
func (b *Broker) serveReplicaBytes(_ context.Context, partitions []metadata.TopicPartition) ([]int64, error) {
	sizes := make([]int64, len(partitions))
	for i, tp := range partitions {
		sizes[i] = -1
		if p, err := b.replicas.Partition(tp.Topic, tp.Partition); err == nil {
			sizes[i] = p.Describe().SizeBytes
		}
	}
	return sizes, nil
}

// replicaBytes asks a broker, this one included.
func (b *Broker) replicaBytes(ctx context.Context, of *metadata.Broker, partitions []metadata.TopicPartition) ([]int64, error) {
	if of.PeerAddress == "" {
		return nil, errors.New("broker has no address for other brokers")
	}
	body, err := json.Marshal(partitions)
	if err != nil {
		return nil, fmt.Errorf("ask broker %d for the size of its replicas: %w", of.ID, err)
	}
	answer, err := b.peers.Call(ctx, of.PeerAddress, replicaBytesMethod, body)
	if err != nil {
		return nil, fmt.Errorf("ask broker %d for the size of its replicas: %w", of.ID, err)
	}
	var sizes []int64
	if err := json.Unmarshal(answer, &sizes); err != nil {
		return nil, fmt.Errorf("read the size of replicas of broker %d: %w", of.ID, err)
	}
	return sizes, nil
}
