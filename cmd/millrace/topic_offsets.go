package main

import (
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/urfave/cli/v2"
)

type topicOffset struct {
	Topic     string `json:"topic" doc:"name"`
	Partition int32  `json:"partition" doc:"number"`
	Start     *int64 `json:"log_start_offset,omitempty" doc:"first offset, without --time"`
	End       *int64 `json:"log_end_offset,omitempty" doc:"next offset, without --time"`
	Offset    *int64 `json:"offset,omitempty" doc:"with --time: the offset; left out when no record is that late"`
	Timestamp *int64 `json:"timestamp,omitempty" doc:"with --time: the record's, in milliseconds"`
	Error     string `json:"error,omitempty" doc:"why there is none"`
}

func topicOffsetsCommand() *cli.Command {
	return &cli.Command{
		Name:      "offsets",
		Usage:     "show the first and last offset of each partition, or the offset at a time",
		ArgsUsage: "NAME…",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "time", Usage: "earliest, latest, max-timestamp, or @`TIME` as for consume -o"},
			&cli.StringSliceFlag{Name: "partitions", Aliases: []string{"p"}, Usage: "only these: `0,1,4-6`"},
			&cli.BoolFlag{Name: "regex", Aliases: []string{"r"}, Usage: "the names are regular expressions, for whole names"},
		},
		Action: runTopicOffsets,
	}
}

func runTopicOffsets(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]topicOffset{}) {
		return nil
	}
	names, err := topicArguments(c, 1)
	if err != nil {
		return err
	}
	wanted, err := partitionList(c.StringSlice("partitions"))
	if err != nil {
		return err
	}
	when := c.String("time")
	millis := int64(-1)
	switch {
	case when == "", when == "earliest", when == "start", when == "max-timestamp", isEnd(when):
	default:
		at, ok := strings.CutPrefix(when, "@")
		if millis, err = parseTime(at, time.Now()); !ok || err != nil {
			f := usageError("--time "+when+" is no time", "--time earliest | latest | max-timestamp | @-1h | @2026-11-29T12:00:00Z")
			f.why = "it is none of the words, and no @TIME"
			if ok {
				f.why = err.Error()
			}
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
	var b batch
	topics, err := conn.topicMetadata(ctx, names, c.Bool("regex"), true, &b)
	if err != nil {
		return err
	}
	if len(topics) == 0 {
		return b.finish(e)
	}
	asked := topicNames(topics)
	var first, second kadm.ListedOffsets
	switch {
	case when == "":
		if first, err = conn.adm.ListStartOffsets(ctx, asked...); err == nil {
			second, err = conn.adm.ListEndOffsets(ctx, asked...)
		}
	case when == "earliest" || when == "start":
		first, err = conn.adm.ListStartOffsets(ctx, asked...)
	case when == "max-timestamp":
		first, err = conn.adm.ListMaxTimestampOffsets(ctx, asked...)
	case isEnd(when):
		first, err = conn.adm.ListEndOffsets(ctx, asked...)
	default:
		first, err = conn.adm.ListOffsetsAfterMilli(ctx, millis, asked...)
	}
	if err != nil {
		return conn.fail("ask for offsets", err)
	}
	r := result{cols: columns("TOPIC", "PARTITION#", "LOG-START-OFFSET#", "LOG-END-OFFSET#")}
	if when != "" {
		r.cols = columns("TOPIC", "PARTITION#", "OFFSET#", "TIMESTAMP#")
	}
	var out []topicOffset
	for _, t := range topics {
		partitions, err := pickPartitions(t, wanted)
		if err != nil {
			return err
		}
		for _, p := range partitions {
			o := topicOffset{Topic: t.Topic, Partition: p.Partition}
			take := func(from kadm.ListedOffsets) (offset, timestamp *int64) {
				l, ok := from.Lookup(t.Topic, p.Partition)
				if !ok {
					return nil, nil
				}
				if l.Err != nil {
					o.Error = status(l.Err)
					b.fail(itemFailure("ask for the offset of "+t.Topic+"-"+itoa(p.Partition), l.Err, nil))
					return nil, nil
				}
				if l.Timestamp >= 0 {
					timestamp = &l.Timestamp
				}
				if l.Offset >= 0 {
					offset = &l.Offset
				}
				return offset, timestamp
			}
			if when == "" {
				o.Start, _ = take(first)
				o.End, _ = take(second)
				r.rows = append(r.rows, []any{o.Topic, o.Partition, offsetCell(o.Start), offsetCell(o.End)})
			} else {
				o.Offset, o.Timestamp = take(first)
				r.rows = append(r.rows, []any{o.Topic, o.Partition, offsetCell(o.Offset), offsetCell(o.Timestamp)})
			}
			if o.Error == "" {
				b.done++
			}
			out = append(out, o)
		}
	}
	r.value = out
	if err := e.emit(r); err != nil {
		return err
	}
	return b.finish(e)
}
