package broker

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/transport/console"
)

// heldPartition is a partition that this broker leads and whose readers of committed records wait for a transaction.
type heldPartition struct {
	heldKey
	topicName string
	// id is the transactional id, "" if nobody knows the producer: then nobody will end its transaction (KIP-664).
	id string
	// state is that of the transactional id; Ongoing unless the transaction is decided and its marker is missing.
	state metadata.TransactionState
	epoch int16 // of the producer, -1 without an id
	// open is for how long the transaction has been open, at least.
	open time.Duration
	// left is how long it may still be, negative if it should be over; 0 without an id.
	left time.Duration
	// waiting is how many offsets lie behind its first record, up to the high watermark.
	waiting int64
}

// heldKey names a transaction in a partition.
type heldKey struct {
	topic     metadata.TopicID
	partition int32
	producer  int64
	first     int64 // offset of its first record there
}

// heldPartition looks at one partition; ok is false when nothing holds it back.
func (b *Broker) heldPartition(im *metadata.Image, p *replication.Partition, now time.Time) (h heldPartition, ok bool) {
	if !p.IsLeader() || p.LastStableOffset() >= p.HighWatermark() {
		return h, false
	}
	open, ok := p.OldestTransaction()
	if !ok { // decided: the marker is on its way to the followers
		return h, false
	}
	h = heldPartition{
		heldKey: heldKey{topic: p.TopicID(), partition: p.ID(), producer: open.ProducerID, first: open.FirstOffset}, topicName: p.Topic(),
		epoch: -1, waiting: p.HighWatermark() - open.FirstOffset,
		open: now.Sub(time.Now().Add(-open.Age)), // the log has a clock of its own
	}
	if t := im.TransactionByProducer(open.ProducerID); t != nil && t.State.Active() && t.HasPartition(h.topic, h.partition) {
		h.id, h.state, h.epoch = t.ID, t.State, t.ProducerEpoch
		// The clock is the proposer's: what this process has seen itself is at least as old.
		h.open = max(h.open, now.Sub(time.UnixMilli(t.StartedAt)))
		h.left = t.Timeout - h.open
	}
	return h, true
}

// report is the transaction in the form of the admin API.
func (h *heldPartition) report() *console.HeldTransaction {
	t := &console.HeldTransaction{ID: h.id, ProducerID: h.producer, Epoch: h.epoch, Start: h.first, OpenMS: h.open.Milliseconds(), LeftMS: h.left.Milliseconds()}
	if h.id != "" {
		t.State = h.state.String()
	}
	return t
}

// heldPartitions are those that a transaction has held back for longer than least, the longest first, and of more than most
// those: what is exported and written down does not change from one look to the next.
func (b *Broker) heldPartitions(least time.Duration, most int) []heldPartition {
	var out []heldPartition
	im, now := b.store.Image(), b.now()
	for p := range b.replicas.Partitions() {
		if h, ok := b.heldPartition(im, p, now); ok && h.open >= least {
			out = append(out, h)
		}
	}
	slices.SortFunc(out, func(x, y heldPartition) int {
		return cmp.Or(cmp.Compare(y.open, x.open), strings.Compare(x.topicName, y.topicName), cmp.Compare(x.partition, y.partition))
	})
	return out[:min(len(out), most)]
}

// transactionWatch writes a line about each transaction that holds a partition back for long.
type transactionWatch struct {
	b      *Broker
	logger *slog.Logger
	said   map[heldKey]bool // of those that the last look has seen
}

const (
	// watchInterval is how often it looks, watchAfter from when on a transaction is worth a line: most clients' time out
	// after a minute, and are aborted then.
	watchInterval = 10 * time.Second
	watchAfter    = 90 * time.Second
	// watchMost bounds the lines of one look.
	watchMost = 50
)

func (w *transactionWatch) run(ctx context.Context) {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.look()
		}
	}
}

func (w *transactionWatch) look() {
	held := map[heldKey]bool{}
	for _, h := range w.b.heldPartitions(watchAfter, watchMost) {
		held[h.heldKey] = true
		if w.said[h.heldKey] {
			continue
		}
		logger := w.logger.With("topic", h.topicName, "partition", h.partition, "producerId", h.producer, "firstOffset", h.first,
			"open", h.open.Round(time.Second).String(), "offsetsWaiting", h.waiting)
		if h.id == "" {
			logger.Warn("a transaction that nobody knows holds a partition back: millrace txn find-hanging")
		} else {
			logger.Warn("a transaction holds a partition back", "transactionalId", h.id, "state", h.state.String(), "timeoutIn", h.left.Round(time.Second).String())
		}
	}
	w.said = held
}
