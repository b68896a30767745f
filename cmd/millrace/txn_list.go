package main

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

// transactionStates are all that a transactional id can be in.
var transactionStates = []string{"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"}

func txnListCommand() *cli.Command {
	return &cli.Command{
		Name: "list", Aliases: []string{"ls"}, Usage: "list transactional ids, the longest open transaction first",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "open", Usage: "only those with a transaction that is not over"},
			&cli.StringSliceFlag{Name: "state", Aliases: []string{"s"}, Usage: "only those in `STATE`: " + strings.Join(transactionStates, ", ") + " (repeatable)"},
			&cli.Int64SliceFlag{Name: "producer-id", Usage: "only that of producer id `N` (repeatable)"},
			&cli.DurationFlag{Name: "longer-than", Usage: "only those whose transaction has been open for longer than `TIME`"},
			&cli.StringFlag{Name: "regex", Aliases: []string{"r"}, Usage: "only ids that match `EXPRESSION` as a whole"},
		},
		Action: runTxnList,
	}
}

func runTxnList(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]transaction{}) {
		return nil
	}
	if err := noArguments(c); err != nil {
		return err
	}
	states := c.StringSlice("state")
	for i, s := range states {
		at := slices.IndexFunc(transactionStates, func(known string) bool { return strings.EqualFold(known, s) })
		if at < 0 {
			f := usageError(s+" is no state of a transactional id", "--state Ongoing")
			f.why = "they are " + strings.Join(transactionStates, ", ")
			return f
		}
		states[i] = transactionStates[at]
	}
	if c.Bool("open") {
		states = append(states, openStates...)
	}
	var match *regexp.Regexp
	if expression := c.String("regex"); expression != "" {
		var err error
		if match, err = regexp.Compile("^(?:" + expression + ")$"); err != nil {
			f := usageError(expression+" is no regular expression", "--regex 'ledger-.*'")
			f.why = err.Error()
			return f
		}
	}
	ctx, cancel := e.ctx(c)
	defer cancel()
	conn, err := e.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	listed, err := conn.adm.ListTransactions(ctx, c.Int64Slice("producer-id"), states)
	if err != nil && len(listed) == 0 {
		return conn.fail("list transactions", firstShardError(err))
	}
	var b batch
	if err != nil {
		b.fail(itemFailure("list all transactions", firstShardError(err), nil))
	}
	var ids []string
	for _, l := range listed.Sorted() {
		if match == nil || match.MatchString(l.TxnID) {
			ids = append(ids, l.TxnID)
		}
	}
	slices.Sort(ids)
	found, err := conn.transactions(ctx, ids, &b)
	if err != nil {
		return err
	}
	if least := c.Duration("longer-than"); least > 0 {
		found = slices.DeleteFunc(found, func(t transaction) bool { return t.OpenMS == nil || *t.OpenMS <= least.Milliseconds() })
	}
	age := func(t *transaction) int64 {
		if t.OpenMS == nil {
			return -1
		}
		return *t.OpenMS
	}
	slices.SortStableFunc(found, func(a, b transaction) int { return int(min(max(age(&b)-age(&a), -1), 1)) })
	r := result{value: found, cols: columns("TRANSACTIONAL-ID", "STATE", "OPEN", "TIMEOUT", "COORDINATOR#", "PRODUCER-ID#", "EPOCH#", "+PARTITIONS")}
	for i := range found {
		t := &found[i]
		r.rows = append(r.rows, []any{t.ID, t.State, millisCell(t.OpenMS), ageText(time.Duration(t.TimeoutMS) * time.Millisecond), t.Coordinator, t.ProducerID, t.Epoch, partitionsText(t.Partitions)})
	}
	if err := e.emit(r); err != nil {
		return err
	}
	b.done++ // the list itself
	return b.finish(e)
}
