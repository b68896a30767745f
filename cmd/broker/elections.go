package broker

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/transport/peer"
)

const (
	// logEndsMethod is the call between brokers that asks how far replicas reach, before an unclean election.
	logEndsMethod = "election.log_ends"
	// drainMethod is the call of the controller that asks the leader of partitions to let their followers catch up, before
	// another replica is elected.
	drainMethod = "election.drain"
	// drainKeep is for how long a leader holds produce requests back after its followers have caught up: until the election
	// is committed and has reached it. It bounds what a controller that dies meanwhile costs.
	drainKeep = 300 * time.Millisecond
)

// serveLogEnds says how far this broker's replicas reach; those that it has not, or that are offline, are left out.
func (b *Broker) serveLogEnds(_ context.Context, partitions []metadata.TopicPartition) ([]metadata.LogEnd, error) {
	ends := make([]metadata.LogEnd, 0, len(partitions))
	for _, tp := range partitions {
		p, err := b.replicas.Partition(tp.Topic, tp.Partition)
		if err != nil {
			continue
		}
		if epoch, end, err := p.LogEnd(); err == nil {
			ends = append(ends, metadata.LogEnd{TopicPartition: tp, LeaderEpoch: epoch, Offset: end})
		}
	}
	return ends, nil
}

// logEnds asks a broker, this one included.
func (b *Broker) logEnds(ctx context.Context, of *metadata.Broker, partitions []metadata.TopicPartition) (ends []metadata.LogEnd, err error) {
	err = b.askBroker(ctx, of, logEndsMethod, partitions, &ends)
	return ends, err
}

// drainOf asks the leader of partitions to let their followers catch up.
func (b *Broker) drainOf(ctx context.Context, leader *metadata.Broker, partitions []metadata.TopicPartition) error {
	return b.askBroker(ctx, leader, drainMethod, partitions, nil)
}

// askBroker calls a broker at the address that the metadata has.
func (b *Broker) askBroker(ctx context.Context, of *metadata.Broker, method string, question, answer any) error {
	if of.PeerAddress == "" {
		return fmt.Errorf("ask broker %d for %s: it has no address for other brokers", of.ID, method)
	}
	if err := callJSON(ctx, b.peers, of.PeerAddress, method, question, answer); err != nil {
		return fmt.Errorf("ask broker %d for %s: %w", of.ID, method, err)
	}
	return nil
}

// serveDrain holds what is produced to partitions that this broker leads until the followers have all of it, and a moment
// longer. Only the controller may ask, and it gains nothing but that pause: who leads is what the log says (M10).
func (b *Broker) serveDrain(ctx context.Context, from peer.From, partitions []metadata.TopicPartition) error {
	if controller := b.store.Image().ControllerID(); from.Node != controller {
		return &metadata.Error{
			Kind: metadata.ErrNotController, What: fmt.Sprintf("broker %d asked to drain partitions", from.Node),
			Why: fmt.Sprintf("the controller is broker %d", controller), Fix: "none is needed if the controller has just changed",
		}
	}
	return b.replicas.DrainFor(ctx, partitions, drainKeep)
}
