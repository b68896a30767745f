package main

import (
	"context"
	"fmt"
	"io"
	"reflect"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/transport/console"
)

func clusterRebalanceCommand() *cli.Command {
	return &cli.Command{
		Name:  "rebalance",
		Usage: "see what the balancer would do and does, start it by hand, take it back",
		Subcommands: []*cli.Command{
			{Name: "plan", Usage: "show what it would do now, with the reasons", Flags: []cli.Flag{adminFlag()}, Action: runRebalancePlan},
			{
				Name: "run", Usage: "plan and begin", Flags: []cli.Flag{adminFlag(), dryRunFlag(), waitFlag("wait until all is moved; --timeout bounds it")},
				Description: "The balancer works by itself when brokers join, leave or die (millrace.balancer.mode); this is for all other times.",
				Action:      runRebalanceRun,
			},
			{
				Name: "status", Usage: "show its moves, with progress", Action: runRebalanceStatus,
				Flags: []cli.Flag{
					adminFlag(), &cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "go on until all are done"},
					&cli.DurationFlag{Name: "interval", Value: time.Second, Usage: "how often to look"},
				},
			},
			{Name: "cancel", Usage: "drop the moves that wait and take back those under way", Flags: []cli.Flag{adminFlag(), dryRunFlag()}, Action: runRebalanceCancel},
		},
	}
}

func runRebalancePlan(c *cli.Context) error {
	e := envOf(c)
	_, r, err := adminAnswer[console.Rebalance](c, "/v1/rebalance/plan")
	if err != nil || r == nil {
		return err
	}
	if len(r.Moves) == 0 {
		e.hint("nothing to do: the replicas are spread evenly, and nobody is to go")
	}
	return e.emitRebalancePlan(r)
}

func (e *env) emitRebalancePlan(r *console.Rebalance) error {
	return e.emit(result{value: r, text: func(w io.Writer, wide bool) {
		var rows [][]any
		for i, m := range r.Moves {
			rows = append(rows, []any{i + 1, m.Topic, m.Partition, fromTo(&m), sizeText(m.BytesTotal), m.Reason})
		}
		writeTable(w, columns("MOVE#", "TOPIC", "PARTITION#", "FROM → TO", "SIZE#", "REASON"), rows, wide, e.stdoutWidth())
		fmt.Fprintf(w, "\nreplicas per broker: %d to %d now, %d to %d after; throttle %s per broker\n", r.LeastReplicas, r.MostReplicas, r.LeastAfter, r.MostAfter, rateOr(r.Throttle))
		for _, line := range r.Cannot {
			fmt.Fprintln(w, "✘ "+line)
		}
	}})
}

func rateOr(n int64) string {
	if n <= 0 {
		return "none"
	}
	return sizeText(n) + "/s"
}

func fromTo(m *console.Move) string {
	side := func(id int32) string {
		if id < 0 {
			return "-"
		}
		return fmt.Sprint(id)
	}
	return side(m.From) + " → " + side(m.To)
}

func runRebalanceRun(c *cli.Context) error {
	e := envOf(c)
	a, plan, err := adminAnswer[console.Rebalance](c, "/v1/rebalance/plan")
	if err != nil || plan == nil {
		return err
	}
	if len(plan.Moves) == 0 {
		e.hint("nothing to do: the replicas are spread evenly, and nobody is to go")
		return e.emitRebalancePlan(plan)
	}
	if c.Bool("dry-run") {
		e.hint("dry run: nothing was changed")
		return e.emitRebalancePlan(plan)
	}
	var total int64
	for i := range plan.Moves {
		m := &plan.Moves[i]
		total += max(m.BytesTotal, 0)
		fmt.Fprintf(e.stderr, "%s-%d: %s, %s\n", m.Topic, m.Partition, fromTo(m), m.Reason)
	}
	if err := e.confirm(fmt.Sprintf("make %s, about %s to copy?", counted(len(plan.Moves), "move"), sizeText(total))); err != nil {
		return err
	}
	var r console.Rebalance
	if err := a.do(c.Context, "POST", "/v1/rebalance", nil, &r); err != nil {
		return err
	}
	if c.Bool("wait") {
		return e.watchRebalance(c, a, time.Second, false)
	}
	e.hint("to watch it: millrace cluster rebalance status -w")
	return e.emitRebalance(&r, nil)
}

func runRebalanceStatus(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields(console.Rebalance{}) {
		return nil
	}
	if err := noArguments(c); err != nil {
		return err
	}
	a, err := e.openAdmin(c)
	if err != nil {
		return err
	}
	if c.Bool("watch") {
		return e.watchRebalance(c, a, max(c.Duration("interval"), 50*time.Millisecond), true)
	}
	var r console.Rebalance
	if err := a.get(c.Context, "/v1/rebalance", &r); err != nil {
		return err
	}
	e.measureMoves(c, &r)
	return e.emitRebalance(&r, nil)
}

// watchRebalance waits until no move is under way: each change is printed when every is wanted, and the end in any case.
func (e *env) watchRebalance(c *cli.Context, a *admin, interval time.Duration, every bool) error {
	ctx, cancel := e.waitContext(c)
	defer cancel()
	rates := &moveRates{}
	var r, last console.Rebalance
	var bar *progress
	printed, copied := false, int64(0)
	err := poll(ctx, interval, func(ctx context.Context) (bool, error) {
		r = console.Rebalance{}
		if err := a.get(ctx, "/v1/rebalance", &r); err != nil {
			return false, err
		}
		e.measureMoves(c, &r)
		var moved, total int64
		for i := range r.Moves {
			rates.add(r.Moves[i].Topic, r.Moves[i].Partition, r.Moves[i].BytesMoved, time.Now())
			moved, total = moved+max(r.Moves[i].BytesMoved, 0), total+max(r.Moves[i].BytesTotal, 0)
		}
		switch {
		case every && (!printed || !reflect.DeepEqual(r, last)):
			printed, last = true, r
			if err := e.streamRebalance(&r, rates); err != nil {
				return false, err
			}
		case !every:
			if bar == nil {
				bar = e.newProgress("rebalance", total)
			}
			bar.add(max(moved-copied, 0))
			copied = max(moved, copied)
		}
		return !r.Running, nil
	})
	bar.finish()
	if err != nil {
		return e.waitFailure(err, "not all is moved", fmt.Sprintf("%d of %s done", r.Done, counted(len(r.Moves), "move")), "it goes on: millrace cluster rebalance status -w")
	}
	if !every {
		if err := e.emitRebalance(&r, rates); err != nil {
			return err
		}
	}
	if r.Failed > 0 {
		return silent(exitSome)
	}
	return nil
}

func (e *env) streamRebalance(r *console.Rebalance, rates *moveRates) error {
	if e.format == "json" {
		return writeJSONLine(e.stdout, r)
	}
	return e.emitRebalance(r, rates)
}

// measureMoves fills in how far moves are from the sizes of the replicas, where the balancer itself does not know.
// Without an answer they stay unknown: sizes are for people.
func (e *env) measureMoves(c *cli.Context, r *console.Rebalance) {
	set := kadm.TopicsSet{}
	for _, m := range r.Moves {
		if m.State == "moving" && m.BytesMoved < 0 {
			set.Add(m.Topic, m.Partition)
		}
	}
	if len(set) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(c.Context, min(2*time.Second, e.timeout))
	defer cancel()
	conn, err := e.connect(ctx)
	if err != nil {
		return
	}
	defer conn.Close()
	sizes := conn.sizesOf(ctx, set)
	for i := range r.Moves {
		m := &r.Moves[i]
		size, ok := sizes.largest(m.Topic, m.Partition)
		if m.State != "moving" || m.BytesMoved >= 0 || !ok {
			continue
		}
		m.BytesTotal, m.BytesMoved = size, min(sizes[m.Topic][m.Partition][m.To], size)
	}
}

func (e *env) emitRebalance(r *console.Rebalance, rates *moveRates) error {
	return e.emit(result{value: r, text: func(w io.Writer, wide bool) {
		var rows [][]any
		for i := range r.Moves {
			m := &r.Moves[i]
			var rate float64
			if rates != nil && m.State == "moving" {
				rate = rates.last[fmt.Sprintf("%s-%d", m.Topic, m.Partition)].rate
			}
			done := percent(m.BytesMoved, m.BytesTotal)
			if m.State != "moving" {
				done = m.State
			}
			rows = append(rows, []any{i + 1, m.Topic, m.Partition, fromTo(m), done, ofTotal(m.BytesMoved, m.BytesTotal), rateText(rate), eta(m.BytesMoved, m.BytesTotal, rate), m.Reason, m.Trouble})
		}
		writeTable(w, columns("MOVE#", "TOPIC", "PARTITION#", "FROM → TO", "DONE#", "MOVED/TOTAL", "RATE", "ETA", "+REASON", "+TROUBLE"), rows, wide, e.stdoutWidth())
		state := "idle"
		if r.Running {
			state = "running"
		}
		line := fmt.Sprintf("\n%s, mode %s: %d of %s done", state, cell(r.Mode), r.Done, counted(len(r.Moves), "move"))
		if r.Failed > 0 {
			line += fmt.Sprintf(", %d failed or cancelled", r.Failed)
		}
		fmt.Fprintf(w, "%s, throttle %s per broker\n", line, rateOr(r.Throttle))
		if r.Trigger != "" {
			fmt.Fprintln(w, "because: "+r.Trigger)
		}
		for i := range r.Moves {
			if m := &r.Moves[i]; m.Trouble != "" {
				fmt.Fprintf(w, "✘ %s-%d: %s\n", m.Topic, m.Partition, m.Trouble)
			}
		}
		for _, line := range r.Cannot {
			fmt.Fprintln(w, "✘ "+line)
		}
	}})
}

func runRebalanceCancel(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields(console.Cancelled{}) {
		return nil
	}
	if err := noArguments(c); err != nil {
		return err
	}
	a, err := e.openAdmin(c)
	if err != nil {
		return err
	}
	var r console.Rebalance
	if err := a.get(c.Context, "/v1/rebalance", &r); err != nil {
		return err
	}
	open := 0
	for i := range r.Moves {
		if m := &r.Moves[i]; m.State == "moving" || m.State == "waiting" {
			open++
			fmt.Fprintf(e.stderr, "%s-%d: %s, %s\n", m.Topic, m.Partition, fromTo(m), m.State)
		}
	}
	if open == 0 {
		e.hint("nothing to do: no move waits or is under way")
		return e.emitCancelled(console.Cancelled{})
	}
	if c.Bool("dry-run") {
		e.hint("dry run: nothing was changed")
		return nil
	}
	if err := e.confirm(fmt.Sprintf("drop or take back %s?", counted(open, "move"))); err != nil {
		return err
	}
	var done console.Cancelled
	if err := a.do(c.Context, "DELETE", "/v1/rebalance", nil, &done); err != nil {
		return err
	}
	return e.emitCancelled(done)
}

func (e *env) emitCancelled(done console.Cancelled) error {
	return e.emit(result{value: done, cols: columns("CANCELLED#"), rows: [][]any{{done.Moves}}})
}
