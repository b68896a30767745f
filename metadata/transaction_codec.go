package metadata

import (
	"errors"
	"fmt"
	"math"
	"time"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

func (t *Transaction) message() *pb.Transaction {
	return &pb.Transaction{
		Id: t.ID, Revision: t.Revision, Number: t.Number, State: uint32(t.State), ProducerId: t.ProducerID, ProducerEpoch: int32(t.ProducerEpoch),
		LastProducerId: t.LastProducerID, LastProducerEpoch: int32(t.LastProducerEpoch),
		MarkerProducerId: t.MarkerProducerID, MarkerEpoch: int32(t.MarkerEpoch), Timeout: t.Timeout.Milliseconds(), Version: uint32(t.Version),
		Partitions: encodeGroupPartitions(t.Partitions), Groups: t.Groups, StartedAt: t.StartedAt, UpdatedAt: t.UpdatedAt,
		CoordinatorEpoch: t.CoordinatorEpoch,
	}
}

// decodeTransaction checks that the values are in range, and leaves it to the caller whether they make sense together.
func decodeTransaction(m *pb.Transaction) (*Transaction, error) {
	switch {
	case m == nil || m.Id == "":
		return nil, errors.New("a transaction without id")
	case m.State > uint32(TransactionCompleteAbort) || m.Version > math.MaxInt8:
		return nil, fmt.Errorf("transaction %s in state %d of protocol %d: %w", quoteShort(m.Id), m.State, m.Version, errNewerVersion)
	case m.ProducerId < 0 || m.LastProducerId < -1 || m.MarkerProducerId < -1 || m.Timeout < 0 || m.Timeout > math.MaxInt64/int64(time.Millisecond):
		return nil, fmt.Errorf("transaction %s with producer ids %d, %d, %d and a timeout of %d ms", quoteShort(m.Id), m.ProducerId, m.LastProducerId, m.MarkerProducerId, m.Timeout)
	}
	for _, epoch := range [...]int32{m.ProducerEpoch, m.LastProducerEpoch, m.MarkerEpoch} {
		if epoch < -1 || epoch > math.MaxInt16 {
			return nil, fmt.Errorf("transaction %s with producer epoch %d", quoteShort(m.Id), epoch)
		}
	}
	partitions, err := decodeGroupPartitions(m.Partitions)
	if err != nil {
		return nil, fmt.Errorf("transaction %s: %w", quoteShort(m.Id), err)
	}
	return &Transaction{
		ID: m.Id, Revision: m.Revision, Number: m.Number, State: TransactionState(m.State), ProducerID: m.ProducerId, ProducerEpoch: int16(m.ProducerEpoch),
		LastProducerID: m.LastProducerId, LastProducerEpoch: int16(m.LastProducerEpoch),
		MarkerProducerID: m.MarkerProducerId, MarkerEpoch: int16(m.MarkerEpoch), Timeout: time.Duration(m.Timeout) * time.Millisecond, Version: int8(m.Version),
		Partitions: partitions, Groups: m.Groups, StartedAt: m.StartedAt, UpdatedAt: m.UpdatedAt, CoordinatorEpoch: m.CoordinatorEpoch,
	}, nil
}

func (c *TransactionChange) message() *pb.TransactionStep {
	t := Transaction{
		ID: c.ID, Revision: c.Revision, State: c.State, ProducerID: c.ProducerID, ProducerEpoch: c.ProducerEpoch,
		LastProducerID: c.LastProducerID, LastProducerEpoch: c.LastProducerEpoch, MarkerProducerID: c.MarkerProducerID, MarkerEpoch: c.MarkerEpoch,
		Timeout: c.Timeout, Version: c.Version, UpdatedAt: c.UpdatedAt,
	}
	return &pb.TransactionStep{Step: &pb.TransactionStep_Change{Change: &pb.TransactionChange{Transaction: t.message(), Delete: c.Delete}}}
}

func decodeTransactionChange(m *pb.TransactionChange) (*TransactionChange, error) {
	t, err := decodeTransaction(m.Transaction)
	if err != nil {
		return nil, err
	}
	if t.Partitions != nil || t.Groups != nil || t.Number != 0 || t.StartedAt != 0 || t.CoordinatorEpoch != 0 {
		return nil, fmt.Errorf("change of transaction %s says what is not its to say", quoteShort(t.ID))
	}
	return &TransactionChange{
		ID: t.ID, Revision: t.Revision, State: t.State, ProducerID: t.ProducerID, ProducerEpoch: t.ProducerEpoch,
		LastProducerID: t.LastProducerID, LastProducerEpoch: t.LastProducerEpoch, MarkerProducerID: t.MarkerProducerID, MarkerEpoch: t.MarkerEpoch,
		Timeout: t.Timeout, Version: t.Version, UpdatedAt: t.UpdatedAt, Delete: m.Delete,
	}, nil
}

func (a *TransactionAddition) message() *pb.TransactionStep {
	return &pb.TransactionStep{Step: &pb.TransactionStep_Addition{Addition: &pb.TransactionAddition{
		Id: a.ID, ProducerId: a.ProducerID, ProducerEpoch: int32(a.ProducerEpoch), Partitions: encodeGroupPartitions(a.Partitions),
		Groups: a.Groups, Version: uint32(a.Version), Time: a.Time,
	}}}
}

func decodeTransactionAddition(m *pb.TransactionAddition) (*TransactionAddition, error) {
	switch {
	case m.Id == "":
		return nil, errors.New("an addition to no transaction")
	case m.ProducerEpoch < math.MinInt16 || m.ProducerEpoch > math.MaxInt16 || m.Version > math.MaxInt8:
		return nil, fmt.Errorf("addition to transaction %s with producer epoch %d of protocol %d", quoteShort(m.Id), m.ProducerEpoch, m.Version)
	}
	partitions, err := decodeGroupPartitions(m.Partitions)
	if err != nil {
		return nil, fmt.Errorf("addition to transaction %s: %w", quoteShort(m.Id), err)
	}
	return &TransactionAddition{
		ID: m.Id, ProducerID: m.ProducerId, ProducerEpoch: int16(m.ProducerEpoch), Partitions: partitions, Groups: m.Groups, Version: int8(m.Version), Time: m.Time,
	}, nil
}

func (o *TransactionOffsets) message() *pb.TransactionStep {
	return &pb.TransactionStep{Step: &pb.TransactionStep_Offsets{Offsets: &pb.TransactionOffsets{
		Id: o.TransactionalID, ProducerId: o.ProducerID, ProducerEpoch: int32(o.ProducerEpoch), Implicit: o.Implicit, Number: o.number,
		Commit: o.OffsetCommit.message(),
	}}}
}

func decodeTransactionOffsets(m *pb.TransactionOffsets) (*TransactionOffsets, error) {
	switch {
	case m.Id == "":
		return nil, errors.New("offsets of no transaction")
	case m.ProducerEpoch < math.MinInt16 || m.ProducerEpoch > math.MaxInt16:
		return nil, fmt.Errorf("offsets of transaction %s with producer epoch %d", quoteShort(m.Id), m.ProducerEpoch)
	case m.Commit == nil:
		return nil, fmt.Errorf("no offsets of transaction %s", quoteShort(m.Id))
	}
	o := &TransactionOffsets{TransactionalID: m.Id, ProducerID: m.ProducerId, ProducerEpoch: int16(m.ProducerEpoch), Implicit: m.Implicit, number: m.Number}
	return o, o.OffsetCommit.decode(m.Commit)
}

// writtenMarkers is what one call of MarkersWritten reports.
type writtenMarkers []WrittenMarker

func (ms writtenMarkers) message() *pb.TransactionStep {
	out := &pb.WrittenMarkers{}
	for _, m := range ms {
		out.Markers = append(out.Markers, &pb.WrittenMarker{
			ProducerId: m.ProducerID, Epoch: int32(m.Epoch), Number: m.Number, Partitions: encodeGroupPartitions(m.Partitions),
		})
	}
	return &pb.TransactionStep{Step: &pb.TransactionStep_Markers{Markers: out}}
}

func decodeWrittenMarkers(m *pb.WrittenMarkers) (writtenMarkers, error) {
	out := make(writtenMarkers, len(m.Markers))
	for i, from := range m.Markers {
		if from.Epoch < math.MinInt16 || from.Epoch > math.MaxInt16 {
			return nil, fmt.Errorf("marker of producer %d with epoch %d", from.ProducerId, from.Epoch)
		}
		partitions, err := decodeGroupPartitions(from.Partitions)
		if err != nil {
			return nil, fmt.Errorf("marker of producer %d: %w", from.ProducerId, err)
		}
		out[i] = WrittenMarker{ProducerID: from.ProducerId, Epoch: int16(from.Epoch), Number: from.Number, Partitions: partitions}
	}
	return out, nil
}
