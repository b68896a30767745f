package main

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/urfave/cli/v2"
)

func topicAlterConfigCommand() *cli.Command {
	return &cli.Command{
		Name:      "alter-config",
		Usage:     "set, delete, extend or shorten configs of topics",
		ArgsUsage: "NAME…",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "set", Usage: "`KEY=VALUE` (repeatable), as retention.ms=7d"},
			&cli.StringSliceFlag{Name: "delete", Usage: "take `KEY` back to its default (repeatable)"},
			&cli.StringSliceFlag{Name: "append", Usage: "`KEY=VALUE`: add to a list (repeatable)"},
			&cli.StringSliceFlag{Name: "subtract", Usage: "`KEY=VALUE`: take from a list (repeatable)"},
			&cli.BoolFlag{Name: "dry-run", Aliases: []string{"dry"}, Usage: "check everything, change nothing"},
		},
		Action: runTopicAlterConfig,
	}
}

func runTopicAlterConfig(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]topicStatus{}) {
		return nil
	}
	names, err := topicArguments(c, 1)
	if err != nil {
		return err
	}
	var changes []kadm.AlterConfig
	for _, op := range []struct {
		flag string
		op   kadm.IncrementalOp
	}{{"set", kadm.SetConfig}, {"append", kadm.AppendConfig}, {"subtract", kadm.SubtractConfig}} {
		pairs, err := topicConfigFlags(op.flag, c.StringSlice(op.flag))
		if err != nil {
			return err
		}
		for _, kv := range pairs {
			changes = append(changes, kadm.AlterConfig{Op: op.op, Name: kv[0], Value: &kv[1]})
		}
	}
	for _, key := range c.StringSlice("delete") {
		changes = append(changes, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: key})
	}
	if len(changes) == 0 {
		f := usageError("nothing to change", "millrace topic alter-config "+names[0]+" --set retention.ms=7d")
		f.why = "none of --set, --delete, --append, --subtract was given"
		return f
	}
	ctx, cancel := e.ctx(c)
	defer cancel()
	conn, err := e.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	alter := conn.adm.AlterTopicConfigs
	if c.Bool("dry-run") {
		alter = conn.adm.ValidateAlterTopicConfigs
	}
	answers, err := alter(ctx, changes, names...)
	if err != nil {
		return conn.fail("alter topic configs", err)
	}
	var b batch
	var out []topicStatus
	r := result{cols: columns("TOPIC", "STATUS")}
	for _, n := range names {
		i := slices.IndexFunc(answers, func(a kadm.AlterConfigsResponse) bool { return a.Name == n })
		if i < 0 {
			b.fail(&failure{code: exitFailed, what: "cannot alter the configs of topic " + n, why: "the broker's answer does not mention it", fix: "millrace topic describe " + n + " -c"})
			continue
		}
		if err := answers[i].Err; err != nil {
			b.fail(itemFailure("alter the configs of topic "+n, err, &answers[i].ErrMessage))
		} else {
			b.done++
		}
		out = append(out, topicStatus{n, status(answers[i].Err)})
		r.rows = append(r.rows, []any{n, status(answers[i].Err)})
	}
	r.value = out
	if err := e.emit(r); err != nil {
		return err
	}
	if c.Bool("dry-run") {
		e.hint("dry run: nothing was changed")
	}
	return b.finish(e)
}
