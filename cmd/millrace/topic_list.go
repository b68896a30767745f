package main

import (
	"fmt"

	"github.com/urfave/cli/v2"
)

type listedTopic struct {
	Topic      string            `json:"topic" doc:"name"`
	ID         string            `json:"id" doc:"topic id"`
	Internal   bool              `json:"internal" doc:"whether the cluster made it for itself"`
	Partitions int               `json:"partitions" doc:"number of partitions"`
	Replicas   int               `json:"replicas" doc:"replicas of each partition"`
	Details    []partitionLeader `json:"partition_details,omitempty" doc:"with -d: each partition"`
}

type partitionLeader struct {
	Partition   int32   `json:"partition" doc:"number"`
	Leader      int32   `json:"leader" doc:"broker id; -1 is none"`
	LeaderEpoch int32   `json:"leader_epoch" doc:"grows with each leader"`
	Replicas    []int32 `json:"replicas" doc:"broker ids, the preferred leader first"`
	ISR         []int32 `json:"isr" doc:"replicas in sync"`
}

func topicListCommand() *cli.Command {
	return &cli.Command{
		Name:      "list",
		Aliases:   []string{"ls"},
		Usage:     "list topics",
		ArgsUsage: "[NAME…]",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "detailed", Aliases: []string{"d"}, Usage: "a line for each partition"},
			&cli.BoolFlag{Name: "internal", Aliases: []string{"i"}, Usage: "internal topics too"},
			&cli.BoolFlag{Name: "regex", Aliases: []string{"r"}, Usage: "the names are regular expressions, for whole names"},
		},
		Action: runTopicList,
	}
}

func runTopicList(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]listedTopic{}) {
		return nil
	}
	names, err := topicArguments(c, 0)
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
	topics, err := conn.topicMetadata(ctx, names, c.Bool("regex") && len(names) > 0, c.Bool("internal"), &b)
	if err != nil {
		return err
	}
	detailed := c.Bool("detailed")
	r := result{cols: columns("NAME", "PARTITIONS#", "REPLICAS#", "+ID", "+INTERNAL")}
	if detailed {
		r.cols = columns("NAME", "PARTITION#", "LEADER#", "EPOCH#", "REPLICAS", "ISR")
	}
	var out []listedTopic
	for _, t := range topics {
		b.done++
		row := listedTopic{Topic: t.Topic, ID: topicID(t.ID), Internal: t.IsInternal, Partitions: len(t.Partitions), Replicas: replicas(t)}
		if !detailed {
			r.rows = append(r.rows, []any{row.Topic, row.Partitions, row.Replicas, row.ID, fmt.Sprint(row.Internal)})
		}
		for _, p := range t.Partitions.Sorted() {
			if detailed {
				row.Details = append(row.Details, partitionLeader{p.Partition, p.Leader, p.LeaderEpoch, p.Replicas, p.ISR})
				r.rows = append(r.rows, []any{row.Topic, p.Partition, unknown(int64(p.Leader)), p.LeaderEpoch, p.Replicas, p.ISR})
			}
		}
		out = append(out, row)
	}
	r.value = out
	if err := e.emit(r); err != nil {
		return err
	}
	if len(out) == 0 && len(names) == 0 {
		e.hint("no topics yet; millrace topic create NAME makes one")
	}
	return b.finish(e)
}
