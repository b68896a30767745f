package replication

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/metadata"
)

// What becomes of a damaged replica (L9, I19). It is offline at once: it leads nothing and reports nothing, and it is
// never cut to what is left. Then it asks the controller to take it out of ISR and ELR, which hands on its leadership.
// When the metadata shows that, and another leads, the copy is deleted and made anew from the leader. The last copy that
// may be complete stays as it is, offline: that is for a person to decide.

// mend takes the next step for a replica whose log is damaged. It belongs to the tick.
func (m *Manager) mend(p *Partition) {
	rec := m.recordOf(p.key())
	if rec == nil || len(rec.Replicas) < 2 {
		return
	}
	if m.counts(rec) {
		m.giveUp(p.key(), rec)
		return
	}
	if rec.Leader == metadata.NoBroker || !slices.Contains(rec.Replicas, m.cfg.BrokerID) {
		return
	}
	select {
	case m.renewals <- p.key():
	default: // the next tick
	}
}

// recordOf returns the committed record of a partition, nil if there is none.
func (m *Manager) recordOf(key TopicIDPartition) *metadata.Partition {
	t := m.cfg.Store.Image().TopicByID(key.TopicID)
	if t == nil || int(key.Partition) >= len(t.Partitions) {
		return nil
	}
	return t.Partitions[key.Partition]
}

// counts says whether this broker's replica is one that others rely on.
func (m *Manager) counts(rec *metadata.Partition) bool {
	id := m.cfg.BrokerID
	return rec.Leader == id || slices.Contains(rec.ISR, id) || slices.Contains(rec.ELR, id)
}

// giveUp asks the controller to take this broker's replica out of ISR and ELR. It is asked again at each tick until it
// is out.
func (m *Manager) giveUp(key TopicIDPartition, rec *metadata.Partition) {
	m.propose(isrProposal{change: m.withoutSelf(key, rec)})
}

func (m *Manager) withoutSelf(key TopicIDPartition, rec *metadata.Partition) metadata.PartitionChange {
	ch := metadata.PartitionChange{TopicID: key.TopicID, Partition: key.Partition, LeaderEpoch: rec.LeaderEpoch, PartitionEpoch: rec.PartitionEpoch}
	for _, id := range rec.ISR {
		if id != m.cfg.BrokerID {
			ch.ISR = append(ch.ISR, metadata.ISRMember{ID: id, Epoch: -1})
		}
	}
	return ch
}

// gaveUp is told what became of it.
func (m *Manager) gaveUp(ch metadata.PartitionChange, err error) {
	if errors.Is(err, metadata.ErrStale) {
		return // the record has changed; the next tick looks at the new one
	}
	if err != nil {
		m.logger.Warn("damaged replica still counts as in sync", "topic_id", ch.TopicID.String(), "partition", ch.Partition, "err", err)
		return
	}
	m.logger.Warn("damaged replica gave up its place", "topic_id", ch.TopicID.String(), "partition", ch.Partition)
}

// renew makes a damaged replica that nobody relies on anew: its log is deleted, for this reason and no other, and a
// follower with an empty one takes its place. It belongs to the reconcile goroutine.
func (m *Manager) renew(key TopicIDPartition) {
	rec, t := m.recordOf(key), m.applied.TopicByID(key.TopicID)
	old := m.table.Load().byID[key.TopicID]
	if rec == nil || t == nil || old == nil || m.counts(rec) || rec.Leader == metadata.NoBroker {
		return
	}
	p, _ := old.partition(key.Partition)
	if p == nil || p.log.Corrupt() == nil {
		return
	}
	r := &round{m: m, img: m.applied, next: m.table.Load().clone()}
	pl := &placement{topicState: old.topicState, partitions: slices.Clone(old.partitions), offline: old.offline}
	pl.partitions[key.Partition] = nil
	r.next.put(pl)
	p.remove(ErrNotLeader)
	p.logger().Warn("replica is deleted and copied anew", "topic_id", key.TopicID.String(), "leader", rec.Leader, "reason", "its log is damaged", "err", p.log.Corrupt())
	if err := m.cfg.Dir.Delete(p.log); err != nil && !errors.Is(err, log.ErrClosed) {
		p.logger().Error("damaged replica not deleted", "err", err)
		m.retry[key] = struct{}{}
		r.finish()
		return
	}
	m.metrics.renewed.Inc()
	r.place(t)
	r.finish()
}

// offlineReplica is renew for a replica whose log could not even be opened; its files are kept aside. True: it may be
// created now.
func (m *Manager) offlineReplica(key TopicIDPartition, rec *metadata.Partition) bool {
	if len(rec.Replicas) < 2 {
		return false
	}
	if m.counts(rec) {
		m.giveUp(key, rec)
		return false
	}
	if rec.Leader == metadata.NoBroker {
		return false
	}
	for _, o := range m.cfg.Dir.Offline() {
		if o.TopicID != [16]byte(key.TopicID) || o.Partition != key.Partition {
			continue
		}
		if err := m.cfg.Dir.SetAsideOffline(o); err != nil {
			m.logger.Error("damaged replica not set aside", "topic", o.Topic, "partition", o.Partition, "err", err)
			return false
		}
		m.metrics.renewed.Inc()
		return true
	}
	return false
}

// disown gives up every replica here that has a copy elsewhere: the write-ahead log was damaged, so that the ends of the
// logs may be missing although nothing shows it (I12). It returns when none counts any more, or the manager ends; the
// replicas then catch up like any other.
func (m *Manager) disown(ctx context.Context) {
	for ctx.Err() == nil {
		var changes []metadata.PartitionChange
		for t := range m.cfg.Store.Image().Topics() {
			for i, rec := range t.Partitions {
				if len(rec.Replicas) > 1 && slices.Contains(rec.Replicas, m.cfg.BrokerID) && m.counts(rec) {
					changes = append(changes, m.withoutSelf(TopicIDPartition{t.ID, int32(i)}, rec))
				}
			}
		}
		left := 0
		for batch := range slices.Chunk(changes, proposalBatch) {
			call, cancel := context.WithTimeout(ctx, m.cfg.ProposalTimeout)
			for _, res := range m.cfg.Store.AlterPartition(call, m.cfg.BrokerID, m.brokerEpoch.Load(), batch) {
				if res.Err != nil && !errors.Is(res.Err, metadata.ErrNoEligibleLeader) && !errors.Is(res.Err, metadata.ErrUnknownTopicID) {
					left++
				}
			}
			cancel()
		}
		if left == 0 {
			if len(changes) > 0 {
				m.logger.Error("replicas gave up their places: the write-ahead log was damaged", "partitions", len(changes))
			}
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(m.cfg.RetryInterval):
		}
	}
}
