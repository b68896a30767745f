package replication

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/metadata"
)

// markerWriter writes the markers of decided transactions into the partitions that this broker leads. Nobody tells it to: a
// prepared transaction and the partitions that lack its marker are committed metadata, so whoever leads one of them writes
// it, after any crash and any change of leaders, and no coordinator is needed for that (P9). What is written is reported, and
// the transaction is complete when nothing is missing.
type markerWriter struct {
	m    *Manager
	core markerCore
	seen *metadata.Image // acted upon last
	kick chan struct{}   // capacity 1
	mu   struct {
		sync.Mutex
		appended []markerOutcome
		reported []reportOutcome
	}
}

type markerOutcome struct {
	m   *marker
	err error
}

type reportOutcome struct {
	ms  []*marker
	err error
}

// markerWarnAfter is from when on a marker that can't be written is worth a line: its partition holds back all readers of
// committed records.
const markerWarnAfter = Instant(10 * time.Second)

// markerLoop runs the writer.
func (m *Manager) markerLoop(ctx context.Context) {
	w := m.cfg.Store.Watch()
	defer w.Close()
	mw := &m.markers
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.C():
		case <-mw.kick:
		case <-timer.C:
		}
		mw.round()
		if at := mw.core.deadline(); at != Never {
			timer.Reset(time.Duration(max(0, at-m.now())))
		}
	}
}

// round takes in what has happened and does what follows. Outcomes come first: the Image is at least as new as they are.
func (mw *markerWriter) round() {
	now := mw.m.now()
	mw.takeOutcomes(now)
	if im := mw.m.cfg.Store.Image(); im != mw.seen {
		mw.follow(now, im)
	}
	toAppend, toReport := mw.core.due(now)
	for _, m := range toAppend {
		mw.append(now, m)
	}
	mw.report(toReport)
}

// follow acts upon an Image: the transactions that changed, or all that are prepared when leaders have.
func (mw *markerWriter) follow(now Instant, im *metadata.Image) {
	if self := im.Broker(mw.m.cfg.BrokerID); self == nil || self.Incarnation != mw.m.cfg.Incarnation {
		return // what this Image says was said to an earlier process (M16)
	}
	old := mw.seen
	mw.seen = im
	if im.ActiveTransactionCount() == 0 && mw.core.idle() {
		return
	}
	led := func(topic metadata.TopicID, partition int32) (int32, bool) {
		t := im.TopicByID(topic)
		if t == nil || int(partition) >= len(t.Partitions) {
			return -1, false
		}
		p := t.Partitions[partition]
		return p.LeaderEpoch, p.Leader == mw.m.cfg.BrokerID
	}
	for before, t := range im.ChangedTransactions(old) {
		if before != nil && before.State.Prepared() && (t == nil || !t.State.Prepared() || t.Number != before.Number) {
			mw.core.over(before.Number)
		}
		if t != nil && t.State.Prepared() {
			mw.core.decided(now, t, led)
		}
	}
	if old == nil || !leadersChanged(im, old) {
		return
	}
	for t := range im.ActiveTransactions() {
		if t.State.Prepared() {
			mw.core.decided(now, t, led)
		}
	}
}

// leadersChanged reports whether any partition has another leader, or another leader epoch.
func leadersChanged(im, old *metadata.Image) bool {
	for before, after := range im.ChangedTopics(old) {
		if after == nil {
			continue // its partitions went from the transactions with it
		}
		for i, p := range after.Partitions {
			if before == nil || i >= len(before.Partitions) || before.Partitions[i].LeaderEpoch != p.LeaderEpoch || before.Partitions[i].Leader != p.Leader {
				return true
			}
		}
	}
	return false
}

func (mw *markerWriter) takeOutcomes(now Instant) {
	mw.mu.Lock()
	appended, reported := mw.mu.appended, mw.mu.reported
	mw.mu.appended, mw.mu.reported = nil, nil
	mw.mu.Unlock()
	for _, o := range appended {
		mw.core.appended(now, o.m, mw.written(now, o.m, o.err))
	}
	for _, o := range reported {
		mw.core.reported(now, o.ms, o.err == nil)
	}
}

// written tells whether a marker is in the log for good.
func (mw *markerWriter) written(now Instant, m *marker, err error) bool {
	switch {
	case err == nil:
		return true
	case errors.Is(err, errMarkerNotWanted):
		return false // it is about to be forgotten
	case errors.Is(err, log.ErrInvalidProducerEpoch):
		// The producer has written with a later epoch: the transaction is not open here, and this marker could only do harm.
		mw.m.logger.Error("transaction marker is of no use any more", mw.fields(m, "err", err)...)
		return true
	case errors.Is(err, log.ErrCoordinatorFenced):
		// Somebody has written a marker of his own here, with an epoch that no coordinator has had. That this one has its
		// place was judged by the metadata.
		if p, lookup := mw.m.PartitionByID(m.topic, m.partition); lookup == nil {
			for _, s := range p.Producers() {
				if s.ProducerID == m.of.producerID {
					m.of.coordinatorEpoch = max(m.of.coordinatorEpoch, s.CoordinatorEpoch)
				}
			}
		}
	}
	if now-m.since > markerWarnAfter {
		m.since = now
		mw.m.logger.Warn("transaction marker can't be written; readers of committed records wait for it", mw.fields(m, "err", err)...)
	}
	return false
}

func (mw *markerWriter) fields(m *marker, more ...any) []any {
	topic := m.topic.String()
	if t := mw.m.cfg.Store.Image().TopicByID(m.topic); t != nil {
		topic = t.Name
	}
	return append([]any{
		"transactionalId", m.of.id, "producerId", m.of.producerID, "producerEpoch", m.of.epoch, "topic", topic, "partition", m.partition,
	}, more...)
}

// errMarkerNotWanted: the transaction is over, as far as this partition goes.
var errMarkerNotWanted = errors.New("the transaction does not lack this marker")

// append sends a marker into its log. It waits there until it is committed or the leader epoch ends: giving up earlier would
// only leave one more marker behind.
func (mw *markerWriter) append(now Instant, m *marker) {
	p, err := mw.m.PartitionByID(m.topic, m.partition)
	if err != nil {
		mw.core.appended(now, m, mw.written(now, m, err))
		return
	}
	d := m.of
	if mutated(mutantSkipMarker) && m.partition == 1 {
		mw.core.appended(now, m, true)
		mw.wake()
		return
	}
	p.AppendMarker(MarkerRequest{
		ProducerID: d.producerID, ProducerEpoch: d.epoch, Commit: d.commit, CoordinatorEpoch: d.coordinatorEpoch, TransactionVersion: d.version,
		CurrentLeaderEpoch: m.leaderEpoch, Timeout: -1, Waiter: markerWaiter{mw, m}, MayAppend: func() error { return mw.wanted(d, m.topic, m.partition) },
	})
}

// wanted looks once more, at the marker's place in the log, whether its transaction still lacks it. Another leader may have
// written it before this one did, and then the next transaction may have begun here already, by the same metadata: this
// marker would end it.
func (mw *markerWriter) wanted(d *decision, topic metadata.TopicID, partition int32) error {
	t := mw.m.cfg.Store.Image().Transaction(d.id)
	if t == nil || t.Number != d.number || !t.State.Prepared() || !t.HasPartition(topic, partition) {
		return errMarkerNotWanted
	}
	return nil
}

// markerWaiter hears of one append.
type markerWaiter struct {
	mw *markerWriter
	m  *marker
}

// Appended implements AppendWaiter.
func (w markerWaiter) Appended(_ int, r AppendResult) {
	w.mw.mu.Lock()
	w.mw.mu.appended = append(w.mw.mu.appended, markerOutcome{w.m, r.Err})
	w.mw.mu.Unlock()
	w.mw.wake()
}

func (mw *markerWriter) wake() {
	select {
	case mw.kick <- struct{}{}:
	default:
	}
}

// report tells the metadata of markers that are written, of all that are at the moment in one call.
func (mw *markerWriter) report(ms []*marker) {
	if len(ms) == 0 {
		return
	}
	mw.m.cfg.Store.MarkersWritten(writtenMarkers(ms), func(err error) {
		mw.mu.Lock()
		mw.mu.reported = append(mw.mu.reported, reportOutcome{ms, err})
		mw.mu.Unlock()
		mw.wake()
	})
}

// writtenMarkers puts markers together by transaction and topic.
func writtenMarkers(ms []*marker) []metadata.WrittenMarker {
	ms = slices.Clone(ms)
	slices.SortFunc(ms, func(a, b *marker) int {
		return cmp.Or(cmp.Compare(a.of.number, b.of.number), slices.Compare(a.topic[:], b.topic[:]), cmp.Compare(a.partition, b.partition))
	})
	var out []metadata.WrittenMarker
	for i, m := range ms {
		if i == 0 || ms[i-1].of != m.of {
			out = append(out, metadata.WrittenMarker{ProducerID: m.of.producerID, Epoch: m.of.epoch, Number: m.of.number})
		}
		w := &out[len(out)-1]
		if n := len(w.Partitions); n == 0 || w.Partitions[n-1].TopicID != m.topic {
			w.Partitions = append(w.Partitions, metadata.TopicPartitions{TopicID: m.topic})
		}
		t := &w.Partitions[len(w.Partitions)-1]
		t.Partitions = append(t.Partitions, m.partition)
	}
	return out
}
