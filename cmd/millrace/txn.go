package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/urfave/cli/v2"
)

func txnCommand() *cli.Command {
	return &cli.Command{
		Name:        "txn",
		Usage:       "look at transactions, and end those that hold readers back",
		Subcommands: []*cli.Command{txnListCommand(), txnDescribeCommand(), txnDescribeProducersCommand(), txnAbortCommand(), txnFindHangingCommand()},
	}
}

// transaction is one transactional id as its coordinator sees it.
type transaction struct {
	ID          string              `json:"transactional_id" doc:"name"`
	State       string              `json:"state" doc:"Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort"`
	Coordinator int32               `json:"coordinator" doc:"id of the broker that coordinates it"`
	ProducerID  int64               `json:"producer_id" doc:"producer id that writes under it"`
	Epoch       int16               `json:"producer_epoch" doc:"its epoch"`
	TimeoutMS   int32               `json:"timeout_ms" doc:"how long a transaction may be open"`
	StartedMS   *int64              `json:"started" doc:"when the present or last transaction began, in milliseconds since 1970; null when there was none"`
	OpenMS      *int64              `json:"open_ms" doc:"for how long it has been open; null when none is"`
	Partitions  []assignedPartition `json:"partitions" doc:"that are part of it, or lack its marker"`
}

// openStates are those in which a transaction is not over.
var openStates = []string{"Ongoing", "PrepareCommit", "PrepareAbort"}

// transactions describes transactional ids, in order. Those that cannot be described are failures of b.
func (c *connection) transactions(ctx context.Context, ids []string, b *batch) ([]transaction, error) {
	out := []transaction{}
	if len(ids) == 0 {
		return out, nil
	}
	described, err := c.adm.DescribeTransactions(ctx, ids...)
	if err != nil && len(described) == 0 {
		return nil, c.fail("describe transactions", firstShardError(err))
	}
	now := time.Now()
	for _, id := range ids {
		d, ok := described[id]
		switch {
		case !ok:
			b.fail(itemFailure("describe transactional id "+id, firstShardError(err), nil))
			continue
		case errors.Is(d.Err, kerr.TransactionalIDNotFound):
			b.fail(&failure{code: exitFailed, what: "there is no transactional id " + id, why: "nobody writes under it, or nobody has for transactional.id.expiration.ms", fix: "millrace txn list   shows them", cause: d.Err})
			continue
		case d.Err != nil:
			b.fail(itemFailure("describe transactional id "+id, d.Err, nil))
			continue
		}
		t := transaction{ID: id, State: d.State, Coordinator: d.Coordinator, ProducerID: d.ProducerID, Epoch: d.ProducerEpoch, TimeoutMS: d.TimeoutMillis, Partitions: []assignedPartition{}}
		if d.StartTimestamp > 0 {
			t.StartedMS = &d.StartTimestamp
			if slices.Contains(openStates, d.State) {
				open := max(now.UnixMilli()-d.StartTimestamp, 0)
				t.OpenMS = &open
			}
		}
		for _, topic := range d.Topics.Sorted() {
			t.Partitions = append(t.Partitions, assignedPartition{topic.Topic, topic.Partitions})
		}
		b.done++
		out = append(out, t)
	}
	return out, nil
}

// partitionsText writes partitions as orders:0,1 pay:3.
func partitionsText(topics []assignedPartition) string {
	text := ""
	for i, t := range topics {
		if i > 0 {
			text += " "
		}
		text += t.Topic + ":" + joinInts(t.Partitions)
	}
	return text
}

// producer is a producer of one partition, as the partition's leader knows it.
type producer struct {
	Topic            string `json:"topic" doc:"name"`
	Partition        int32  `json:"partition" doc:"number"`
	ProducerID       int64  `json:"producer_id" doc:"producer id"`
	Epoch            int16  `json:"producer_epoch" doc:"its epoch"`
	CoordinatorEpoch int32  `json:"coordinator_epoch" doc:"of its last transaction marker; -1 when there was none"`
	LastSequence     int32  `json:"last_sequence" doc:"of its last record; -1 when the last it wrote was a marker"`
	LastTimestamp    int64  `json:"last_timestamp" doc:"of its last batch, in milliseconds since 1970"`
	TxnStart         *int64 `json:"transaction_start_offset" doc:"first offset of its open transaction here; null when none is open"`
}

// producers describes the producers of partitions, in order.
func (c *connection) producers(ctx context.Context, set kadm.TopicsSet, b *batch) ([]producer, error) {
	described, err := c.adm.DescribeProducers(ctx, set)
	if err != nil && len(described) == 0 {
		return nil, c.fail("describe producers", firstShardError(err))
	}
	out := []producer{}
	for _, p := range described.SortedPartitions() {
		if p.Err != nil {
			b.fail(itemFailure(fmt.Sprintf("describe the producers of %s-%d", p.Topic, p.Partition), p.Err, &p.ErrMessage))
			continue
		}
		b.done++
		for _, a := range p.ActiveProducers.Sorted() {
			row := producer{Topic: p.Topic, Partition: p.Partition, ProducerID: a.ProducerID, Epoch: a.ProducerEpoch, CoordinatorEpoch: a.CoordinatorEpoch, LastSequence: a.LastSequence, LastTimestamp: a.LastTimestamp}
			if a.CurrentTxnStartOffset >= 0 {
				row.TxnStart = &a.CurrentTxnStartOffset
			}
			out = append(out, row)
		}
	}
	return out, nil
}

// partitionSet are partitions of topics that exist: all, or those that were asked for.
func (c *connection) partitionSet(ctx context.Context, names, partitions []string, b *batch) (kadm.TopicsSet, error) {
	wanted, err := partitionList(partitions)
	if err != nil {
		return nil, err
	}
	topics, err := c.topicMetadata(ctx, names, false, false, b)
	if err != nil {
		return nil, err
	}
	set := kadm.TopicsSet{}
	for _, t := range topics {
		picked, err := pickPartitions(t, wanted)
		if err != nil {
			return nil, err
		}
		for _, p := range picked {
			set.Add(t.Topic, p.Partition)
		}
	}
	return set, nil
}

// timeText writes milliseconds since 1970 as others read them; nil is none.
func timeText(ms *int64) any {
	if ms == nil {
		return "-"
	}
	return time.UnixMilli(*ms).UTC().Format(time.RFC3339)
}
