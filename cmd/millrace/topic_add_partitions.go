package main

import (
	"fmt"

	"github.com/urfave/cli/v2"
)

func topicAddPartitionsCommand() *cli.Command {
	return &cli.Command{
		Name:        "add-partitions",
		Usage:       "add partitions to topics",
		ArgsUsage:   "NAME…",
		Description: "Keys are spread anew over all partitions: records of one key may end up in two of them.",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "n", Aliases: []string{"num"}, Usage: "how many to add to each topic"},
			&cli.BoolFlag{Name: "dry-run", Aliases: []string{"dry"}, Usage: "check everything, change nothing"},
		},
		Action: runTopicAddPartitions,
	}
}

func runTopicAddPartitions(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]topicStatus{}) {
		return nil
	}
	names, err := topicArguments(c, 1)
	if err != nil {
		return err
	}
	n := c.Int("n")
	if n < 1 {
		f := usageError("-n must say how many partitions to add", "millrace topic add-partitions "+names[0]+" -n 3")
		f.why = fmt.Sprintf("it is %d, and partitions cannot be taken away", n)
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
	topics, err := conn.topicMetadata(ctx, names, false, true, &b)
	if err != nil {
		return err
	}
	if len(topics) == 0 {
		return b.finish(e)
	}
	create := conn.adm.CreatePartitions
	if c.Bool("dry-run") {
		create = conn.adm.ValidateCreatePartitions
	}
	answers, err := create(ctx, n, topicNames(topics)...)
	if err != nil {
		return conn.fail("add partitions", err)
	}
	err = b.emitTopicAnswers(e, "add partitions to topic", topicNames(topics), func(topic string) topicAnswer {
		a, ok := answers[topic]
		return topicAnswer{a.Err, a.ErrMessage, ok}
	})
	if err != nil {
		return err
	}
	if c.Bool("dry-run") {
		e.hint("dry run: nothing was changed")
	}
	return b.finish(e)
}
