package main

import (
	"fmt"

	"github.com/urfave/cli/v2"
)

type topicStatus struct {
	Topic  string `json:"topic" doc:"name"`
	Status string `json:"status" doc:"OK, or the error's name"`
}

func topicDeleteCommand() *cli.Command {
	return &cli.Command{
		Name:      "delete",
		Aliases:   []string{"rm"},
		Usage:     "delete topics and all their records",
		ArgsUsage: "NAME…",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "regex", Aliases: []string{"r"}, Usage: "the names are regular expressions, for whole names"},
			&cli.BoolFlag{Name: "dry-run", Aliases: []string{"dry"}, Usage: "show what would be deleted"},
		},
		Action: runTopicDelete,
	}
}

func runTopicDelete(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]topicStatus{}) {
		return nil
	}
	names, err := topicArguments(c, 1)
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
	topics, err := conn.topicMetadata(ctx, names, c.Bool("regex"), true, &b)
	if err != nil {
		return err
	}
	if len(topics) == 0 {
		return b.finish(e)
	}
	fmt.Fprintf(e.stderr, "plan: delete %s with all records\n", count(len(topics), "topic"))
	var rows [][]any
	ends, err := conn.adm.ListEndOffsets(ctx, topicNames(topics)...)
	if err != nil {
		return conn.fail("ask for offsets", err)
	}
	for _, t := range topics {
		records := int64(0)
		for _, o := range ends[t.Topic] {
			records += max(o.Offset, 0)
		}
		rows = append(rows, []any{t.Topic, len(t.Partitions), records})
	}
	writeTable(e.stderr, columns("TOPIC", "PARTITIONS#", "OFFSETS-WRITTEN#"), rows, false, 0)
	if c.Bool("dry-run") {
		e.hint("dry run: nothing was deleted")
		return b.finish(e)
	}
	if err := e.confirm(fmt.Sprintf("delete %s?", count(len(topics), "topic"))); err != nil {
		return err
	}
	ctx, cancel = e.ctx(c) // the question took its time
	defer cancel()
	answers, err := conn.adm.DeleteTopics(ctx, topicNames(topics)...)
	if err != nil {
		return conn.fail("delete topics", err)
	}
	err = b.emitTopicAnswers(e, "delete topic", topicNames(topics), func(topic string) topicAnswer {
		a, ok := answers[topic]
		return topicAnswer{a.Err, a.ErrMessage, ok}
	})
	if err != nil {
		return err
	}
	return b.finish(e)
}

// count says "1 topic", "2 topics".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
