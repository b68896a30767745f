package metadata

import (
	"fmt"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// offsetEncoder fills columns of offsets. Columns in which nothing differs from its default are left out.
type offsetEncoder struct {
	last TopicID
	n    int
}

func (e *offsetEncoder) add(m *pb.OffsetColumns, tp TopicIDPartition, offset int64, leaderEpoch int32, metadata string) {
	if e.n == 0 || tp.TopicID != e.last {
		e.last = tp.TopicID
		m.TopicIds = append(m.TopicIds, tp.TopicID[:]...)
		m.Counts = append(m.Counts, 0)
	}
	m.Counts[len(m.Counts)-1]++
	m.Partitions = append(m.Partitions, uint32(tp.Partition))
	m.Offsets = append(m.Offsets, offset)
	if leaderEpoch != -1 && m.LeaderEpochs == nil {
		for range e.n {
			m.LeaderEpochs = append(m.LeaderEpochs, -1)
		}
	}
	if leaderEpoch != -1 || m.LeaderEpochs != nil {
		m.LeaderEpochs = append(m.LeaderEpochs, leaderEpoch)
	}
	if metadata != "" && m.Metadata == nil {
		m.Metadata = make([]string, e.n)
	}
	if metadata != "" || m.Metadata != nil {
		m.Metadata = append(m.Metadata, metadata)
	}
	e.n++
}

// addTimes adds what only a snapshot says of the offset that was added last.
func (e *offsetEncoder) addTimes(m *pb.OffsetColumns, committedAt, expiresAt int64) {
	m.CommittedAt = append(m.CommittedAt, committedAt)
	if expiresAt != 0 && m.ExpiresAt == nil {
		m.ExpiresAt = make([]int64, e.n-1, e.n)
	}
	if m.ExpiresAt != nil {
		m.ExpiresAt = append(m.ExpiresAt, expiresAt)
	}
}

// decodeOffsets yields the offsets of columns after it has told their number.
func decodeOffsets(m *pb.OffsetColumns, begin func(n int), yield func(TopicIDPartition, CommittedOffset) error) error {
	if m == nil {
		m = &pb.OffsetColumns{}
	}
	n := len(m.Partitions)
	fits := func(column int) bool { return column == 0 || column == n }
	if len(m.TopicIds) != len(m.Counts)*len(TopicID{}) || len(m.Offsets) != n || !fits(len(m.LeaderEpochs)) || !fits(len(m.Metadata)) ||
		!fits(len(m.CommittedAt)) || !fits(len(m.ExpiresAt)) {
		return fmt.Errorf("columns of %d partitions: %d bytes of topic ids for %d counts, %d offsets, %d leader epochs, %d texts, %d and %d times",
			n, len(m.TopicIds), len(m.Counts), len(m.Offsets), len(m.LeaderEpochs), len(m.Metadata), len(m.CommittedAt), len(m.ExpiresAt))
	}
	if n > 0 {
		begin(n)
	}
	at := 0
	for i, count := range m.Counts {
		if int64(count) > int64(n-at) {
			return fmt.Errorf("count %d with %d partitions left", count, n-at)
		}
		tp := TopicIDPartition{TopicID: TopicID(m.TopicIds[i*16 : i*16+16])}
		for end := at + int(count); at < end; at++ {
			if m.Partitions[at] > 1<<31-1 {
				return fmt.Errorf("partition %d", m.Partitions[at])
			}
			tp.Partition = int32(m.Partitions[at])
			o := CommittedOffset{Offset: m.Offsets[at], LeaderEpoch: -1}
			if len(m.LeaderEpochs) > 0 {
				o.LeaderEpoch = m.LeaderEpochs[at]
			}
			if len(m.Metadata) > 0 {
				o.Metadata = m.Metadata[at]
			}
			if len(m.CommittedAt) > 0 {
				o.CommittedAt = m.CommittedAt[at]
			}
			if len(m.ExpiresAt) > 0 {
				o.ExpiresAt = m.ExpiresAt[at]
			}
			if err := yield(tp, o); err != nil {
				return err
			}
		}
	}
	if at != n {
		return fmt.Errorf("%d partitions of no topic", n-at)
	}
	return nil
}
