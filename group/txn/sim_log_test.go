package txn

import (
	"errors"

	"github.com/millrace/millrace/metadata"
)

// simLog is the committed log of a partition. Whoever leads it by what its broker has applied may append, until a leader of a
// later epoch acts.
type simLog struct {
	partition int32
	epoch     int32 // of the latest leader that acts
	entries   []simEntry
	producers map[int64]*simProducer
}

// simEntry is a batch, or a marker.
type simEntry struct {
	producerID int64
	epoch      int16
	marker     bool
	commit     bool
	number     uint64 // of the transaction that it belongs to
	record     *simRecord
}

// simProducer is what a log knows of a producer.
type simProducer struct {
	epoch    int16
	open     bool
	sequence []int32 // of the present epoch
}

var (
	errSimNotLeader = errors.New("not the leader")
	errSimEpoch     = errors.New("producer epoch of the log is later")
	errSimSequence  = errors.New("out of order")
)

// lead has a broker act as the leader of what it leads by its Image.
func (s *sim) lead(n *simNode) {
	if !s.registered(n) {
		return
	}
	t := s.image(n).Topic("t")
	if t == nil {
		return
	}
	for i, p := range t.Partitions {
		if p.Leader == n.id {
			s.logs[i].epoch = max(s.logs[i].epoch, p.LeaderEpoch)
		}
	}
}

// leads says whether a broker may append.
func (s *sim) leads(n *simNode, l *simLog) bool {
	if !s.registered(n) || s.image(n).Topic("t") == nil {
		return false
	}
	p := s.image(n).Topic("t").Partitions[l.partition]
	return p.Leader == n.id && p.LeaderEpoch == l.epoch
}

// produce is what a leader does with a transactional batch: the newer protocol enlists the partition, the older one has it
// verified, and the last word is at its place in the log.
func (s *sim) produce(n *simNode, r *simRecord, done func(error)) {
	l := s.logs[r.partition]
	switch {
	case !s.leads(n, l):
		done(errSimNotLeader)
	case s.mutant.unverified, r.member.Has(s.image(n), simTopicID, r.partition):
		done(s.append(n, l, r))
	case r.txn.client.version == 1:
		n.later = append(n.later, simLater{len(s.images) - 1, func() { done(s.append(n, l, r)) }}) // Store.Barrier
	default:
		s.propose(n, r.member.ID, func(at metadata.ReplicaBatch) error {
			return s.fsm.AddToTransactionAt(at, metadata.TransactionAddition{
				ID: r.member.ID, ProducerID: r.member.ProducerID, ProducerEpoch: r.member.ProducerEpoch,
				Partitions: []metadata.TopicPartitions{{TopicID: simTopicID, Partitions: []int32{r.partition}}}, Version: 2, Time: s.wall(),
			})
		}, func(err error) {
			if err == nil {
				err = s.append(n, l, r)
			}
			done(fromMetadata(err))
		})
	}
}

func (s *sim) append(n *simNode, l *simLog, r *simRecord) error {
	if !s.leads(n, l) {
		return errSimNotLeader
	}
	p := l.producers[r.member.ProducerID]
	if p != nil && r.member.ProducerEpoch < p.epoch {
		return errSimEpoch
	}
	same := p != nil && p.epoch == r.member.ProducerEpoch
	if same {
		for _, q := range p.sequence {
			if q == r.sequence {
				return nil // sent before
			}
		}
	}
	if !(same && p.open) && !s.mutant.unverified {
		if err := r.member.check(s.image(n), simTopicID, r.partition); err != nil {
			return err
		}
	}
	want := int32(0)
	if same && len(p.sequence) > 0 {
		want = p.sequence[len(p.sequence)-1] + 1
	}
	if r.sequence != want && (p != nil || r.txn.client.version == 2) {
		return errSimSequence
	}
	if p == nil {
		p = &simProducer{}
		l.producers[r.member.ProducerID] = p
	}
	if !same {
		p.epoch, p.sequence = r.member.ProducerEpoch, nil
	}
	s.checkAppend(l, r)
	p.open, p.sequence = true, append(p.sequence, r.sequence)
	l.entries = append(l.entries, simEntry{
		producerID: r.member.ProducerID, epoch: r.member.ProducerEpoch, number: s.fsm.Image().Transaction(r.member.ID).Number, record: r,
	})
	return nil
}

// writeMarkers is the writer of package replication: by what a broker sees in its Image.
func (s *sim) writeMarkers(n *simNode) {
	if !s.registered(n) {
		return
	}
	for t := range s.image(n).ActiveTransactions() {
		if !t.State.Prepared() {
			continue
		}
		for _, topic := range t.Partitions {
			for _, partition := range topic.Partitions {
				key := simMarker{t.Number, partition}
				l := s.logs[partition]
				switch state := n.markers[key]; {
				case state == simMarkerWritten:
					s.reportMarker(n, t, key)
				case state == 0 && s.leads(n, l):
					n.markers[key] = simMarkerBusy
					s.to(n, func() {
						if !s.appendMarker(n, t, l) {
							delete(n.markers, key)
							return
						}
						n.markers[key] = simMarkerWritten
						s.reportMarker(n, t, key)
					})
				}
			}
		}
	}
}

// appendMarker appends a marker if the metadata still lacks it at its place in the log.
func (s *sim) appendMarker(n *simNode, t *metadata.Transaction, l *simLog) bool {
	if !s.leads(n, l) {
		return false
	}
	present := s.image(n).Transaction(t.ID)
	wanted := present != nil && present.Number == t.Number && present.State.Prepared() && present.HasPartition(simTopicID, l.partition)
	if !wanted && !s.mutant.late {
		return false
	}
	p := l.producers[t.MarkerProducerID]
	if p == nil {
		p = &simProducer{}
		l.producers[t.MarkerProducerID] = p
	}
	if t.MarkerEpoch < p.epoch {
		return true // of no use any more
	}
	e := simEntry{producerID: t.MarkerProducerID, epoch: t.MarkerEpoch, marker: true, commit: t.State == metadata.TransactionPrepareCommit, number: t.Number}
	s.checkMarker(l, e)
	if p.epoch != t.MarkerEpoch {
		p.epoch, p.sequence = t.MarkerEpoch, nil
	}
	p.open = false
	l.entries = append(l.entries, e)
	return true
}

func (s *sim) reportMarker(n *simNode, t *metadata.Transaction, key simMarker) {
	n.markers[key] = simMarkerBusy
	s.propose(n, "markers", func(at metadata.ReplicaBatch) error {
		m := metadata.WrittenMarker{
			ProducerID: t.MarkerProducerID, Epoch: t.MarkerEpoch, Number: t.Number,
			Partitions: []metadata.TopicPartitions{{TopicID: simTopicID, Partitions: []int32{key.partition}}},
		}
		if s.mutant.anyNumber {
			// Also without its place among the reports of its lane.
			at = s.fsm.Place(n.id, n.epoch, "markers")
			if now := s.fsm.Image().Transaction(t.ID); now != nil {
				m.Number = now.Number
			}
		}
		return s.fsm.MarkersWrittenAt(at, []metadata.WrittenMarker{m})
	}, func(err error) {
		if err != nil {
			n.markers[key] = simMarkerWritten
			return
		}
		delete(n.markers, key)
	})
}
