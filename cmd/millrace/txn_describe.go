package main

import (
	"io"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"
)

func txnDescribeCommand() *cli.Command {
	return &cli.Command{
		Name: "describe", Aliases: []string{"info"}, Usage: "show transactional ids", ArgsUsage: "ID…", Action: runTxnDescribe,
	}
}

func runTxnDescribe(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]transaction{}) {
		return nil
	}
	ids := c.Args().Slice()
	if len(ids) == 0 {
		f := usageError("describe takes at least one transactional id", "millrace txn describe ledger-7")
		f.why = "millrace txn list   shows them"
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
	found, err := conn.transactions(ctx, ids, &b)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return b.finish(e)
	}
	err = e.emit(result{value: found, text: func(w io.Writer, wide bool) {
		for i := range found {
			t := &found[i]
			writeTable(w, columns("TRANSACTIONAL-ID", t.ID), [][]any{
				{"state", t.State}, {"coordinator", t.Coordinator}, {"producer id", t.ProducerID}, {"producer epoch", t.Epoch},
				{"timeout", ageText(time.Duration(t.TimeoutMS) * time.Millisecond)}, {"started", timeText(t.StartedMS)}, {"open", millisCell(t.OpenMS)}, {"partitions", partitionsText(t.Partitions)},
			}, wide, e.stdoutWidth())
		}
	}})
	if err != nil {
		return err
	}
	return b.finish(e)
}

func txnDescribeProducersCommand() *cli.Command {
	return &cli.Command{
		Name: "describe-producers", Usage: "show the producers that the leaders of partitions know",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "topic", Aliases: []string{"t"}, Usage: "of topic `NAME` (repeatable)", Required: false},
			&cli.StringSliceFlag{Name: "partitions", Aliases: []string{"p"}, Usage: "only these: `0,1,4-6`"},
			&cli.BoolFlag{Name: "open", Usage: "only those with an open transaction"},
		},
		Action: runTxnDescribeProducers,
	}
}

func runTxnDescribeProducers(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]producer{}) {
		return nil
	}
	if err := noArguments(c); err != nil {
		return err
	}
	if len(c.StringSlice("topic")) == 0 {
		f := usageError("describe-producers needs a topic", "millrace txn describe-producers -t orders -p 0")
		f.why = "the leader of each partition knows its own producers"
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
	if len(set) == 0 {
		return b.finish(e)
	}
	found, err := conn.producers(ctx, set, &b)
	if err != nil {
		return err
	}
	if c.Bool("open") {
		kept := found[:0]
		for _, p := range found {
			if p.TxnStart != nil {
				kept = append(kept, p)
			}
		}
		found = kept
	}
	r := result{value: found, cols: columns("TOPIC", "PARTITION#", "PRODUCER-ID#", "EPOCH#", "COORDINATOR-EPOCH#", "LAST-SEQUENCE#", "LAST-TIMESTAMP", "TXN-START-OFFSET#")}
	for i := range found {
		p := &found[i]
		last := timeText(&p.LastTimestamp)
		if p.LastTimestamp < 0 {
			last = "-"
		}
		r.rows = append(r.rows, []any{p.Topic, p.Partition, p.ProducerID, p.Epoch, unknown(int64(p.CoordinatorEpoch)), unknown(int64(p.LastSequence)), last, offsetCell(p.TxnStart)})
	}
	if err := e.emit(r); err != nil {
		return err
	}
	return b.finish(e)
}

// partitionName is a partition as others write it: orders-1.
func partitionName(topic string, partition int32) string {
	return topic + "-" + strconv.Itoa(int(partition))
}
