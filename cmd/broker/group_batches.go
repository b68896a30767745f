package broker

import (
	"cmp"
	"context"

	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/transport/console"
)

// batchesLooked bounds how many batches are read for one report.
const batchesLooked = 64

// addBatches looks at the batches that the group has stood at for long: their size, and whether their leader's copy is what it was.
func (r groupReports) addBatches(ctx context.Context, partitions []console.GroupPartition) {
	im := r.b.store.Image()
	after := cmp.Or(r.b.cfg.groupPatience, console.GroupPatience).Milliseconds()
	var questions []placeQuestion
	var indexes []int
	for i := range partitions {
		p := &partitions[i]
		t := im.Topic(p.Topic)
		if t == nil || p.Lag <= 0 || p.LagMS < after || p.Current >= 0 && p.CommittedMS < after || len(indexes) == batchesLooked {
			continue
		}
		indexes = append(indexes, i)
		questions = append(questions, placeQuestion{Topic: t.ID, Partition: p.Partition, Offset: max(p.Current, 0), Batch: true})
	}
	if len(questions) == 0 {
		return
	}
	for j, place := range r.b.lag.read(ctx, questions) {
		p := &partitions[indexes[j]]
		p.BatchBytes, p.BatchTrouble = place.BatchBytes, place.BatchTrouble
	}
}

// lookAtBatch reads the batch at an offset and compares its checksum.
func (p *place) lookAtBatch(part *replication.Partition, offset int64) {
	bytes, err := part.CheckBatch(offset)
	if err != nil {
		p.BatchTrouble = oneLine(err.Error())
	}
	p.BatchBytes = bytes
}
