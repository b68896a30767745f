package broker

import (
	"context"

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
func (b *Broker) replicaBytes(ctx context.Context, of *metadata.Broker, partitions []metadata.TopicPartition) (sizes []int64, err error) {
	err = b.askBroker(ctx, of, replicaBytesMethod, partitions, &sizes)
	return sizes, err
}
