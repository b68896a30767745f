package main

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/urfave/cli/v2"
)

type groupStatus struct {
	Group  string `json:"group" doc:"name"`
	Status string `json:"status" doc:"OK, or the error's name"`
}

func groupDeleteCommand() *cli.Command {
	return &cli.Command{
		Name:      "delete",
		Aliases:   []string{"rm"},
		Usage:     "delete groups without members, with their offsets",
		ArgsUsage: "NAME…",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "regex", Aliases: []string{"r"}, Usage: "the names are regular expressions, for whole names"},
			dryRunFlag(),
		},
		Action: runGroupDelete,
	}
}

func runGroupDelete(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]groupStatus{}) {
		return nil
	}
	names, err := groupArguments(c, 1)
	if err != nil {
		return err
	}
	ctx, cancel := e.ctx(c)
	defer cancel()
	conn, err := e.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	var b batch
	if names, err = conn.groupNames(ctx, names, c.Bool("regex"), &b); err != nil {
		return err
	}
	states, err := conn.groupStates(ctx, names, &b)
	if err != nil {
		return err
	}
	if len(states) == 0 {
		return b.finish(e)
	}
	var rows [][]any
	names = names[:0:0]
	offsets := conn.adm.FetchManyOffsets(ctx, groupStateNames(states)...)
	for _, g := range states {
		n := 0
		offsets[g.Group].Fetched.Each(func(o kadm.OffsetResponse) {
			if o.At >= 0 {
				n++
			}
		})
		rows = append(rows, []any{g.Group, g.State, len(g.Members), n})
		names = append(names, g.Group)
	}
	fmt.Fprintf(e.stderr, "plan: delete %s with all offsets\n", count(len(states), "group"))
	writeTable(e.stderr, columns("GROUP", "STATE", "MEMBERS#", "OFFSETS#"), rows, false, 0)
	if c.Bool("dry-run") {
		e.hint("dry run: nothing was deleted")
		return b.finish(e)
	}
	if err := e.confirm(fmt.Sprintf("delete %s?", count(len(states), "group"))); err != nil {
		return err
	}
	ctx, cancel = e.ctx(c) // the question took its time
	defer cancel()
	answers, err := conn.adm.DeleteGroups(ctx, names...)
	if err != nil && len(answers) == 0 {
		return conn.fail("delete groups", firstShardError(err))
	}
	var out []groupStatus
	r := result{cols: columns("GROUP", "STATUS")}
	for _, n := range names {
		a, ok := answers[n]
		if !ok {
			a.Err = firstShardError(err)
		}
		if a.Err != nil {
			f := itemFailure("delete group "+n, a.Err, nil)
			if errors.Is(a.Err, kerr.NonEmptyGroup) {
				f.why, f.fix = "it has members", "stop them first; millrace group describe "+n+" --members   shows where they run"
			}
			b.fail(f)
		} else {
			b.done++
		}
		out = append(out, groupStatus{n, status(a.Err)})
		r.rows = append(r.rows, []any{n, status(a.Err)})
	}
	r.value = out
	if err := e.emit(r); err != nil {
		return err
	}
	return b.finish(e)
}

func groupStateNames(states []*groupState) []string {
	var names []string
	for _, g := range states {
		names = append(names, g.Group)
	}
	return names
}
