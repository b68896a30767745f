package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"
)

// aborted is what became of a transaction.
type aborted struct {
	ID         string `json:"transactional_id" doc:"whose transaction it was; empty when nobody knows"`
	Topic      string `json:"topic" doc:"where a marker was written by hand; empty when the coordinator aborted"`
	Partition  int32  `json:"partition" doc:"number; -1 when the coordinator aborted"`
	ProducerID int64  `json:"producer_id" doc:"whose transaction it was"`
	Epoch      int16  `json:"producer_epoch" doc:"its epoch then"`
	How        string `json:"how" doc:"coordinator: its producer is fenced, and all partitions are freed; marker: this partition is freed"`
}

func txnAbortCommand() *cli.Command {
	return &cli.Command{
		Name: "abort", Usage: "abort an open transaction", ArgsUsage: "[ID]",
		Description: "With a transactional id its coordinator aborts, and the producer that had it open is fenced. With a partition and the offset at which a\n" +
			"transaction begins there it is the same, when a coordinator knows the transaction; one that hangs is ended by a marker in the partition.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "topic", Aliases: []string{"t"}, Usage: "the transaction in a partition of topic `NAME`"},
			&cli.IntFlag{Name: "partition", Aliases: []string{"p"}, Value: -1, Usage: "in partition `N`"},
			&cli.Int64Flag{Name: "start-offset", Value: -1, Usage: "the one whose first record there has offset `N`"},
			&cli.Int64Flag{Name: "producer-id", Value: -1, Usage: "the one of producer id `N`"},
			dryRunFlag(),
		},
		Action: runTxnAbort,
	}
}

func runTxnAbort(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields(aborted{}) {
		return nil
	}
	ids := c.Args().Slice()
	byPartition := c.IsSet("topic") || c.IsSet("partition") || c.IsSet("start-offset") || c.IsSet("producer-id")
	switch {
	case len(ids) > 1:
		f := usageError("abort takes one transactional id", "millrace txn abort "+ids[0])
		f.why = fmt.Sprintf("%d were named", len(ids))
		return f
	case len(ids) == 1 && byPartition:
		f := usageError("a transaction is named by its id or by its partition", "millrace txn abort "+ids[0])
		f.why = "both were given"
		return f
	case len(ids) == 0 && (c.String("topic") == "" || c.Int("partition") < 0 || c.Int64("start-offset") < 0 && c.Int64("producer-id") < 0):
		f := usageError("abort needs a transactional id, or a partition and an offset", "millrace txn abort --topic orders --partition 1 --start-offset 46918")
		f.why = "millrace txn list --open   and   millrace txn find-hanging   show what can be aborted"
		return f
	}
	ctx, cancel := e.ctx(c)
	defer cancel()
	conn, err := e.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	a := abortion{env: e, conn: conn, dryRun: c.Bool("dry-run")}
	if len(ids) == 1 {
		var b batch
		found, err := conn.transactions(ctx, ids, &b)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return b.finish(e)
		}
		return a.byCoordinator(c, &found[0])
	}
	return a.inPartition(c, c.String("topic"), int32(c.Int("partition")), c.Int64("start-offset"), c.Int64("producer-id"))
}

// abortion carries an abort out.
type abortion struct {
	*env
	conn   *connection
	dryRun bool
}

// inPartition finds the transaction and the way to end it.
func (a *abortion) inPartition(c *cli.Context, topic string, partition int32, offset, producerID int64) error {
	ctx, cancel := a.ctx(c)
	defer cancel()
	var b batch
	set := kadm.TopicsSet{}
	set.Add(topic, partition)
	all, err := a.conn.producers(ctx, set, &b)
	if err != nil {
		return err
	}
	if len(b.failures) > 0 {
		return b.finish(a.env)
	}
	at := slices.IndexFunc(all, func(p producer) bool {
		return p.TxnStart != nil && (offset < 0 || *p.TxnStart == offset) && (producerID < 0 || p.ProducerID == producerID)
	})
	if at < 0 {
		return &failure{code: exitFailed, what: "no such transaction is open in " + partitionName(topic, partition), why: "it has ended, or begins at another offset",
			fix: fmt.Sprintf("millrace txn describe-producers -t %s -p %d --open   shows those that are", topic, partition)}
	}
	p := &all[at]
	of, err := a.conn.transactionsOf(ctx, []int64{p.ProducerID})
	if err != nil {
		return err
	}
	if t := of[p.ProducerID]; t != nil && t.has(topic, partition) {
		return a.byCoordinator(c, t)
	}
	return a.byMarker(c, p, of[p.ProducerID])
}

// byCoordinator has the coordinator abort: whoever asks for the producer of a transactional id anew fences the one before,
// and what that one has left open is aborted.
func (a *abortion) byCoordinator(c *cli.Context, t *transaction) error {
	switch t.State {
	case "Ongoing":
	case "PrepareCommit", "PrepareAbort":
		return &failure{code: exitFailed, what: "the transaction of " + t.ID + " cannot be aborted", why: "it is decided (" + t.State + "); the markers of " + partitionsText(t.Partitions) + " are being written",
			fix: "millrace cluster health   shows which of these partitions have no leader"}
	default:
		return &failure{code: exitFailed, what: t.ID + " has no open transaction", why: "it is " + t.State, fix: "millrace txn list --open   shows those that have"}
	}
	age := "since a moment ago"
	if t.OpenMS != nil {
		age = "for " + ageText(time.Duration(*t.OpenMS)*time.Millisecond)
	}
	fmt.Fprintf(a.stderr, "the transaction of %s, open %s, is aborted in %s; its producer (id %d, epoch %d) is fenced\n", t.ID, age, partitionsText(t.Partitions), t.ProducerID, t.Epoch)
	out := aborted{ID: t.ID, Partition: -1, ProducerID: t.ProducerID, Epoch: t.Epoch, How: "coordinator"}
	if a.dryRun {
		a.hint("dry run: nothing was changed")
		return a.emitAborted(out)
	}
	if err := a.confirm("abort the transaction of " + t.ID + "?"); err != nil {
		return err
	}
	ctx, cancel := a.ctx(c) // the question took its time
	defer cancel()
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID, req.TransactionTimeoutMillis = &t.ID, t.TimeoutMS
	err := poll(ctx, waitInterval, func(ctx context.Context) (bool, error) {
		resp, err := req.RequestWith(ctx, a.conn.Client)
		if err != nil {
			return false, err
		}
		err = codeError(resp.ErrorCode)
		if errors.Is(err, kerr.ConcurrentTransactions) { // it is being ended
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return a.waitFailure(a.conn.fail("abort the transaction of "+t.ID, err), "the transaction of "+t.ID+" was not seen to end", "its markers are being written", "millrace txn describe "+t.ID+"   shows which are missing")
	}
	return a.emitAborted(out)
}

// byMarker ends a transaction that hangs, in one partition.
func (a *abortion) byMarker(c *cli.Context, p *producer, t *transaction) error {
	why := "no transactional id has its producer id"
	out := aborted{Topic: p.Topic, Partition: p.Partition, ProducerID: p.ProducerID, Epoch: p.Epoch, How: "marker"}
	if t != nil {
		out.ID, why = t.ID, "it is no part of what "+t.ID+" has open ("+t.State+")"
	}
	fmt.Fprintf(a.stderr, "the transaction of producer %d, epoch %d, that begins at offset %d of %s hangs: %s; an abort marker is written there\n", p.ProducerID, p.Epoch, *p.TxnStart, partitionName(p.Topic, p.Partition), why)
	if a.dryRun {
		a.hint("dry run: nothing was changed")
		return a.emitAborted(out)
	}
	if err := a.confirm("write an abort marker to " + partitionName(p.Topic, p.Partition) + "?"); err != nil {
		return err
	}
	ctx, cancel := a.ctx(c)
	defer cancel()
	set := kadm.TopicsSet{}
	set.Add(p.Topic, p.Partition)
	responses, err := a.conn.adm.WriteTxnMarkers(ctx, kadm.TxnMarkers{ProducerID: p.ProducerID, ProducerEpoch: p.Epoch, CoordinatorEpoch: max(p.CoordinatorEpoch, 0), Topics: set})
	if err != nil {
		return a.conn.fail("write a marker to "+partitionName(p.Topic, p.Partition), firstShardError(err))
	}
	var failed error
	responses.EachPartition(func(r kadm.TxnMarkersPartitionResponse) { failed = r.Err })
	if failed != nil {
		return itemFailure("write a marker to "+partitionName(p.Topic, p.Partition), failed, nil)
	}
	return a.emitAborted(out)
}

func (a *abortion) emitAborted(out aborted) error {
	where := "-"
	if out.Topic != "" {
		where = partitionName(out.Topic, out.Partition)
	}
	return a.emit(result{value: out, cols: columns("TRANSACTIONAL-ID", "PARTITION", "PRODUCER-ID#", "EPOCH#", "BY"), rows: [][]any{{out.ID, where, out.ProducerID, out.Epoch, out.How}}})
}
