package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/urfave/cli/v2"
)

// hanging is an open transaction in a partition that no coordinator will end.
type hanging struct {
	producer
	ID     string `json:"transactional_id" doc:"whose producer id it is; empty when nobody knows it"`
	Why    string `json:"why" doc:"why nobody will end it"`
	IdleMS int64  `json:"idle_ms" doc:"for how long its producer has written nothing to the partition"`
	Fix    string `json:"fix" doc:"the command that ends it"`
}

func txnFindHangingCommand() *cli.Command {
	return &cli.Command{
		Name: "find-hanging", Usage: "find open transactions that no coordinator will end",
		Description: "A transaction is taken for one when its producer has written nothing for longer than any transaction may be open, and the coordinator of its\n" +
			"transactional id does not count the partition to a transaction of it. The exit code is 5 when there are some.",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "topic", Aliases: []string{"t"}, Usage: "only in topic `NAME` (repeatable)"},
			&cli.StringSliceFlag{Name: "partitions", Aliases: []string{"p"}, Usage: "only in these partitions: `0,1,4-6`"},
			&cli.DurationFlag{Name: "max-transaction-timeout", Value: 15 * time.Minute, Usage: "how long the brokers let a transaction be open (transaction.max.timeout.ms)"},
		},
		Action: runTxnFindHanging,
	}
}

func runTxnFindHanging(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]hanging{}) {
		return nil
	}
	if err := noArguments(c); err != nil {
		return err
	}
	if len(c.StringSlice("partitions")) > 0 && len(c.StringSlice("topic")) == 0 {
		f := usageError("--partitions needs --topic", "-t orders -p 0")
		f.why = "a partition is one of a topic"
		return f
	}
	ctx, cancel := e.ctx(c)
	defer cancel()
	conn, err := e.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	var b batch
	set, err := conn.partitionSet(ctx, c.StringSlice("topic"), c.StringSlice("partitions"), &b)
	if err != nil {
		return err
	}
	found := []hanging{}
	if len(set) > 0 {
		all, err := conn.producers(ctx, set, &b)
		if err != nil {
			return err
		}
		if found, err = conn.hanging(ctx, all, c.Duration("max-transaction-timeout"), time.Now()); err != nil {
			return err
		}
	}
	r := result{value: found, cols: columns("TOPIC", "PARTITION#", "TXN-START-OFFSET#", "PRODUCER-ID#", "EPOCH#", "IDLE", "TRANSACTIONAL-ID", "WHY")}
	for i := range found {
		h := &found[i]
		r.rows = append(r.rows, []any{h.Topic, h.Partition, offsetCell(h.TxnStart), h.ProducerID, h.Epoch, ageText(time.Duration(h.IdleMS) * time.Millisecond), h.ID, h.Why})
	}
	if err := e.emit(r); err != nil {
		return err
	}
	for i := range found {
		e.hint("fix: %s", found[i].Fix)
	}
	if len(found) == 0 {
		e.hint("no transaction hangs")
	}
	if err := b.finish(e); err != nil {
		return err
	}
	if len(found) > 0 {
		return silent(exitCondition)
	}
	return nil
}

// hanging are those of the producers whose open transaction nobody will end.
func (c *connection) hanging(ctx context.Context, all []producer, longest time.Duration, now time.Time) ([]hanging, error) {
	out := []hanging{}
	var ids []int64
	for i := range all {
		p := &all[i]
		idle := now.UnixMilli() - p.LastTimestamp
		if p.TxnStart == nil || idle <= longest.Milliseconds() {
			continue
		}
		if !slices.Contains(ids, p.ProducerID) {
			ids = append(ids, p.ProducerID)
		}
		out = append(out, hanging{producer: *p, IdleMS: idle})
	}
	if len(ids) == 0 {
		return out, nil
	}
	of, err := c.transactionsOf(ctx, ids)
	if err != nil {
		return nil, err
	}
	out = slices.DeleteFunc(out, func(h hanging) bool {
		t := of[h.ProducerID]
		return t != nil && t.has(h.Topic, h.Partition)
	})
	for i := range out {
		h := &out[i]
		h.Fix = fmt.Sprintf("millrace txn abort --topic %s --partition %d --start-offset %d", h.Topic, h.Partition, *h.TxnStart)
		switch t := of[h.ProducerID]; {
		case t == nil:
			h.Why = "no transactional id has that producer id"
		case !slices.Contains(openStates, t.State):
			h.ID, h.Why = t.ID, "its transactional id has no open transaction: "+t.State
		default:
			h.ID, h.Why = t.ID, "it is no part of the open transaction of its transactional id"
		}
	}
	return out, nil
}

// has says whether the partition is part of an open transaction.
func (t *transaction) has(topic string, partition int32) bool {
	return slices.Contains(openStates, t.State) && slices.ContainsFunc(t.Partitions, func(a assignedPartition) bool {
		return a.Topic == topic && slices.Contains(a.Partitions, partition)
	})
}

// transactionsOf finds the transactional ids of producer ids. All coordinators must answer: one that does not may know the
// id that is looked for.
func (c *connection) transactionsOf(ctx context.Context, ids []int64) (map[int64]*transaction, error) {
	listed, err := c.adm.ListTransactions(ctx, ids, nil)
	if err != nil {
		return nil, c.fail("list the transactions of all coordinators", firstShardError(err))
	}
	var names []string
	for _, l := range listed.Sorted() {
		names = append(names, l.TxnID)
	}
	var b batch
	described, err := c.transactions(ctx, names, &b)
	if err != nil {
		return nil, err
	}
	for _, f := range b.failures {
		if !errors.Is(f.cause, kerr.TransactionalIDNotFound) { // it has gone meanwhile
			return nil, f
		}
	}
	out := map[int64]*transaction{}
	for i := range described {
		out[described[i].ProducerID] = &described[i]
	}
	return out, nil
}
