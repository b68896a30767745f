package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"
)

type describedTopic struct {
	Topic      string               `json:"topic" doc:"name"`
	ID         string               `json:"id" doc:"topic id"`
	Internal   bool                 `json:"internal" doc:"whether the cluster made it for itself"`
	Partitions int                  `json:"partitions" doc:"number of partitions"`
	Replicas   int                  `json:"replicas" doc:"replicas of each partition"`
	Configs    []describedConfig    `json:"configs,omitempty" doc:"with -c or -a all configs, else those that were set"`
	Details    []describedPartition `json:"partition_details,omitempty" doc:"each partition"`
}

type describedConfig struct {
	Key       string  `json:"key" doc:"name"`
	Value     *string `json:"value" doc:"null when secret"`
	Source    string  `json:"source" doc:"where the value comes from, as Kafka names it"`
	Sensitive bool    `json:"sensitive" doc:"whether the value is secret"`
}

type describedPartition struct {
	Partition        int32   `json:"partition" doc:"number"`
	Leader           int32   `json:"leader" doc:"broker id; -1 is none"`
	LeaderEpoch      int32   `json:"leader_epoch" doc:"grows with each leader"`
	Replicas         []int32 `json:"replicas" doc:"broker ids, the preferred leader first"`
	ISR              []int32 `json:"isr" doc:"replicas in sync"`
	Offline          []int32 `json:"offline" doc:"replicas that are offline"`
	LogStartOffset   *int64  `json:"log_start_offset" doc:"first offset; null when the leader did not say"`
	HighWatermark    *int64  `json:"high_watermark" doc:"next offset that consumers will see"`
	LastStableOffset *int64  `json:"last_stable_offset,omitempty" doc:"with --stable: where readers of committed records stand"`
	Error            string  `json:"error,omitempty" doc:"why offsets are missing"`
}

func topicDescribeCommand() *cli.Command {
	return &cli.Command{
		Name:      "describe",
		Aliases:   []string{"info"},
		Usage:     "show topics: summary, configs, partitions",
		ArgsUsage: "NAME…",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "summary", Aliases: []string{"s"}, Usage: "the summary"},
			&cli.BoolFlag{Name: "configs", Aliases: []string{"c"}, Usage: "every config with its source"},
			&cli.BoolFlag{Name: "partitions", Aliases: []string{"p"}, Usage: "the partitions with their offsets"},
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "all three"},
			&cli.BoolFlag{Name: "stable", Usage: "with the last stable offset of each partition"},
			&cli.BoolFlag{Name: "regex", Aliases: []string{"r"}, Usage: "the names are regular expressions, for whole names"},
		},
		Action: runTopicDescribe,
	}
}

func runTopicDescribe(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]describedTopic{}) {
		return nil
	}
	names, err := topicArguments(c, 1)
	if err != nil {
		return err
	}
	summary, configs, partitions := c.Bool("summary"), c.Bool("configs"), c.Bool("partitions")
	allConfigs := configs || c.Bool("all")
	switch {
	case c.Bool("all"), !summary && !configs && !partitions: // unless asked otherwise: all three, but only configs that were set
		summary, configs, partitions = true, true, true
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
	out := make([]describedTopic, 0, len(topics))
	for _, t := range topics {
		b.done++
		out = append(out, describedTopic{Topic: t.Topic, ID: topicID(t.ID), Internal: t.IsInternal, Partitions: len(t.Partitions), Replicas: replicas(t)})
	}
	if configs && len(topics) > 0 {
		if err := conn.addConfigs(ctx, topics, out, allConfigs); err != nil {
			return err
		}
	}
	if partitions && len(topics) > 0 {
		if err := conn.addPartitions(ctx, topics, out, c.Bool("stable")); err != nil {
			return err
		}
	}
	err = e.emit(result{value: out, text: func(w io.Writer, wide bool) {
		for i, t := range out {
			if i > 0 {
				fmt.Fprintln(w)
			}
			e.writeTopic(w, t, summary, configs, partitions, c.Bool("stable"), wide)
		}
	}})
	if err != nil {
		return err
	}
	return b.finish(e)
}

// addConfigs asks for the configs of the topics: all, or those that were set on the topic.
func (c *connection) addConfigs(ctx context.Context, topics []kadm.TopicDetail, out []describedTopic, all bool) error {
	described, err := c.adm.DescribeTopicConfigs(ctx, topicNames(topics)...)
	if err != nil {
		return c.fail("ask for topic configs", err)
	}
	for i := range out {
		j := slices.IndexFunc(described, func(r kadm.ResourceConfig) bool { return r.Name == out[i].Topic })
		if j < 0 {
			continue
		}
		if err := described[j].Err; err != nil {
			return itemFailure("describe the configs of topic "+out[i].Topic, err, &described[j].ErrMessage)
		}
		for _, k := range described[j].Configs {
			if !all && k.Source != kmsg.ConfigSourceDynamicTopicConfig {
				continue
			}
			out[i].Configs = append(out[i].Configs, describedConfig{Key: k.Key, Value: k.Value, Source: k.Source.String(), Sensitive: k.Sensitive})
		}
		slices.SortFunc(out[i].Configs, func(a, b describedConfig) int { return strings.Compare(a.Key, b.Key) })
	}
	return nil
}

// addPartitions asks the leaders for offsets. A partition whose leader does not answer keeps its error.
func (c *connection) addPartitions(ctx context.Context, topics []kadm.TopicDetail, out []describedTopic, stable bool) error {
	names := topicNames(topics)
	starts, err := c.adm.ListStartOffsets(ctx, names...)
	if err != nil {
		return c.fail("ask for offsets", err)
	}
	ends, err := c.adm.ListEndOffsets(ctx, names...)
	if err != nil {
		return c.fail("ask for offsets", err)
	}
	var stables kadm.ListedOffsets
	if stable {
		if stables, err = c.adm.ListCommittedOffsets(ctx, names...); err != nil {
			return c.fail("ask for offsets", err)
		}
	}
	for i, t := range topics {
		for _, p := range t.Partitions.Sorted() {
			d := describedPartition{Partition: p.Partition, Leader: p.Leader, LeaderEpoch: p.LeaderEpoch, Replicas: p.Replicas, ISR: p.ISR, Offline: notNil(p.OfflineReplicas).([]int32)}
			if p.Err != nil {
				d.Error = status(p.Err)
			}
			take := func(from kadm.ListedOffsets) *int64 {
				o, ok := from.Lookup(t.Topic, p.Partition)
				switch {
				case !ok:
					return nil
				case o.Err != nil:
					d.Error = status(o.Err)
					return nil
				}
				return &o.Offset
			}
			d.LogStartOffset, d.HighWatermark = take(starts), take(ends)
			if stable {
				d.LastStableOffset = take(stables)
			}
			out[i].Details = append(out[i].Details, d)
		}
	}
	return nil
}

func (e *env) writeTopic(w io.Writer, t describedTopic, summary, configs, partitions, stable, wide bool) {
	if summary {
		writeTable(w, columns("TOPIC", "PARTITIONS#", "REPLICAS#", "ID"), [][]any{{t.Topic, t.Partitions, t.Replicas, t.ID}}, wide, e.stdoutWidth())
	}
	if configs && len(t.Configs) > 0 {
		if summary {
			fmt.Fprintln(w)
		}
		var rows [][]any
		for _, k := range t.Configs {
			value := "-"
			switch {
			case k.Sensitive:
				value = "(secret)"
			case k.Value != nil:
				value = *k.Value
			}
			rows = append(rows, []any{k.Key, value, k.Source})
		}
		writeTable(w, columns("CONFIG", "VALUE", "SOURCE"), rows, wide, e.stdoutWidth())
	}
	if partitions {
		if summary || configs && len(t.Configs) > 0 {
			fmt.Fprintln(w)
		}
		cols := columns("PARTITION#", "LEADER#", "EPOCH#", "REPLICAS", "ISR", "LOG-START-OFFSET#", "HIGH-WATERMARK#")
		if stable {
			cols = append(cols, columns("LAST-STABLE-OFFSET#")...)
		}
		failed := slices.ContainsFunc(t.Details, func(p describedPartition) bool { return p.Error != "" })
		if failed {
			cols = append(cols, columns("ERROR")...)
		}
		var rows [][]any
		for _, p := range t.Details {
			row := []any{p.Partition, unknown(int64(p.Leader)), p.LeaderEpoch, p.Replicas, p.ISR, offsetCell(p.LogStartOffset), offsetCell(p.HighWatermark)}
			if stable {
				row = append(row, offsetCell(p.LastStableOffset))
			}
			if failed {
				row = append(row, p.Error)
			}
			rows = append(rows, row)
		}
		writeTable(w, cols, rows, wide, e.stdoutWidth())
	}
}

func offsetCell(o *int64) any {
	if o == nil {
		return "-"
	}
	return *o
}
