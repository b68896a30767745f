package metadata

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// transactionBytesPerRecord bounds a record of transactional ids, but for one that is larger alone.
const transactionBytesPerRecord = 64 << 10

// writeTransactions writes all there is of transactions. A state of an older feature level has nothing of it.
func (sw *snapshotWriter) writeTransactions(st *state) error {
	m := &pb.SnapshotTransactions{}
	rec := &pb.SnapshotRecord{Record: &pb.SnapshotRecord_Transactions{Transactions: m}}
	size, left := 0, st.transactions.len()
	for _, t := range st.transactions.all() {
		encoded := t.message()
		m.Transactions = append(m.Transactions, encoded)
		left--
		if size += proto.Size(encoded); size < transactionBytesPerRecord && left > 0 {
			continue
		}
		if err := sw.write(rec); err != nil {
			return err
		}
		m.Transactions, size = m.Transactions[:0], 0
	}
	for group, of := range st.pending.all() {
		for producerID, pending := range of.producers.all() {
			if err := sw.writePending(group, producerID, pending); err != nil {
				return err
			}
		}
	}
	return nil
}

func (sw *snapshotWriter) writePending(group string, producerID int64, pending producerPending) error {
	var m *pb.SnapshotPending
	var e offsetEncoder
	left := pending.offsets.len()
	for tp, o := range pending.offsets.all() {
		if m == nil {
			m, e = &pb.SnapshotPending{Group: group, ProducerId: producerID, Offsets: &pb.OffsetColumns{}}, offsetEncoder{}
		}
		e.add(m.Offsets, tp, o.Offset, o.LeaderEpoch, o.Metadata)
		e.addTimes(m.Offsets, o.CommittedAt, o.ExpiresAt)
		m.Orders = append(m.Orders, o.order)
		if o.superseded && m.Superseded == nil {
			m.Superseded = make([]bool, e.n-1, e.n)
		}
		if m.Superseded != nil {
			m.Superseded = append(m.Superseded, o.superseded)
		}
		if left--; left > 0 && e.n < offsetsPerRecord {
			continue
		}
		if err := sw.write(&pb.SnapshotRecord{Record: &pb.SnapshotRecord_Pending{Pending: m}}); err != nil {
			return err
		}
		m = nil
	}
	return nil
}

// transactionBuilder is the part of snapshotBuilder that takes transactions.
type transactionBuilder struct {
	last string // transactional id
	// The pending offset that came last.
	group      string
	producerID int64
	offset     TopicIDPartition
	pending    bool // there was one
}

func (b *snapshotBuilder) addTransactions(m *pb.SnapshotTransactions) error {
	if len(m.Transactions) == 0 {
		return errors.New("no transactions")
	}
	st := &b.d.st
	for _, encoded := range m.Transactions {
		t, err := decodeTransaction(encoded)
		if err != nil {
			return err
		}
		switch {
		case b.transactions.last >= t.ID:
			return fmt.Errorf("transaction %s out of order", quoteShort(t.ID))
		case t.Revision == 0 || t.Revision > st.transactionRevision || t.Number > t.Revision:
			return fmt.Errorf("transaction %s, number %d, has revision %d of %d", quoteShort(t.ID), t.Number, t.Revision, st.transactionRevision)
		case !ascend(t.Partitions) || !strictlyAscending(t.Groups) || !t.State.Active() && t.Partitions != nil || t.State != TransactionOngoing && t.Groups != nil:
			return fmt.Errorf("transaction %s: what was added to it in state %v is out of order", quoteShort(t.ID), t.State)
		case t.State.Prepared() != (t.MarkerProducerID >= 0) || t.State.Prepared() && t.Partitions == nil:
			return fmt.Errorf("transaction %s in state %v with markers of producer %d", quoteShort(t.ID), t.State, t.MarkerProducerID)
		}
		for _, topic := range t.Partitions {
			if found := st.topicByID(topic.TopicID); found == nil || int(topic.Partitions[len(topic.Partitions)-1]) >= len(found.Partitions) {
				return fmt.Errorf("transaction %s has partitions of topic %s that are not there", quoteShort(t.ID), topic.TopicID)
			}
		}
		for _, id := range t.producerIDs() {
			if other := st.transactionByProducer(id); other != nil {
				return fmt.Errorf("transactions %s and %s share producer id %d", quoteShort(other.ID), quoteShort(t.ID), id)
			}
		}
		b.transactions.last = t.ID
		b.d.indexTransaction(nil, t)
		st.transactions = st.transactions.set(b.d.edit, t.ID, t)
	}
	return nil
}

func (b *snapshotBuilder) addPending(m *pb.SnapshotPending) error {
	at := &b.transactions
	if !at.pending || at.group != m.Group || at.producerID != m.ProducerId {
		switch {
		case at.pending && (at.group > m.Group || at.group == m.Group && at.producerID > m.ProducerId):
			return fmt.Errorf("pending offsets of group %s out of order", quoteShort(m.Group))
		case b.d.st.group(m.Group) == nil:
			return fmt.Errorf("pending offsets of group %s, which is not there", quoteShort(m.Group))
		}
		if t := b.d.st.transactionByProducer(m.ProducerId); t == nil || t.State != TransactionOngoing || !t.HasGroup(m.Group) {
			return fmt.Errorf("pending offsets of group %s by producer %d, which is in no transaction with it", quoteShort(m.Group), m.ProducerId)
		}
		at.group, at.producerID, at.offset, at.pending = b.d.st.group(m.Group).Name, m.ProducerId, TopicIDPartition{}, true
	}
	n := len(m.Offsets.GetPartitions())
	if n == 0 || len(m.Orders) != n || len(m.Superseded) > 0 && len(m.Superseded) != n {
		return fmt.Errorf("pending offsets of group %s in columns of %d, %d and %d", quoteShort(m.Group), n, len(m.Orders), len(m.Superseded))
	}
	of := b.d.ownPending(at.group)
	i := 0
	return decodeOffsets(m.Offsets, func(int) {}, func(tp TopicIDPartition, o CommittedOffset) error {
		if compareTopicIDPartitions(at.offset, tp) >= 0 || m.Orders[i] > b.d.st.transactionRevision {
			return fmt.Errorf("pending offsets of group %s: %s out of order, or of a later time", quoteShort(m.Group), tp.TopicID)
		}
		at.offset = tp
		b.d.putPendingOffset(of, m.ProducerId, tp, pendingOffset{CommittedOffset: o, order: m.Orders[i], superseded: len(m.Superseded) > 0 && m.Superseded[i]})
		i++
		return nil
	})
}
