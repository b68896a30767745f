package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/urfave/cli/v2"
)

type trimmedPartition struct {
	Topic     string `json:"topic" doc:"name"`
	Partition int32  `json:"partition" doc:"number"`
	OldStart  int64  `json:"old_log_start_offset" doc:"first offset before"`
	NewStart  int64  `json:"new_log_start_offset" doc:"first offset after"`
	Status    string `json:"status" doc:"OK, UNCHANGED, or the error's name"`
}

func itoa(n int32) string { return strconv.Itoa(int(n)) }

func topicTrimPrefixCommand() *cli.Command {
	return &cli.Command{
		Name:      "trim-prefix",
		Usage:     "delete the oldest records of a topic, up to an offset or a time",
		ArgsUsage: "NAME",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "offset", Aliases: []string{"o"}, Usage: "new first offset: `47`, @TIME, or end for all"},
			&cli.StringSliceFlag{Name: "partitions", Aliases: []string{"p"}, Usage: "only these: `0,1,4-6`"},
			&cli.BoolFlag{Name: "dry-run", Aliases: []string{"dry"}, Usage: "show what would be deleted"},
		},
		Action: runTopicTrimPrefix,
	}
}

func runTopicTrimPrefix(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]trimmedPartition{}) {
		return nil
	}
	names, err := topicArguments(c, 1)
	if err != nil {
		return err
	}
	if len(names) > 1 {
		f := usageError("trim-prefix takes one topic", "millrace topic trim-prefix "+names[0]+" -o 47")
		f.why = "an offset means something else in every topic"
		return f
	}
	if !c.IsSet("offset") {
		f := usageError("-o must say where the topic is to begin", "millrace topic trim-prefix "+names[0]+" -o 47 | -o @-7d | -o end")
		f.why = "without it nothing can be deleted safely"
		return f
	}
	r, err := parseOffsets(c.String("offset"), time.Now())
	if err != nil {
		return err
	}
	if r.to.kind != boundNone {
		f := usageError("-o "+c.String("offset")+" is a range", "-o 47 | -o @-7d | -o end")
		f.why = "only the beginning of a topic can be deleted"
		return f
	}
	wanted, err := partitionList(c.StringSlice("partitions"))
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
	topics, err := conn.topicMetadata(ctx, names, false, true, &b)
	if err != nil {
		return err
	}
	if len(topics) == 0 {
		return b.finish(e)
	}
	ranges, err := conn.resolveRanges(ctx, topics, wanted, r, false)
	if err != nil {
		return err
	}
	targets := kadm.Offsets{}
	out := make([]trimmedPartition, 0, len(ranges))
	table := result{cols: columns("TOPIC", "PARTITION#", "OLD-START#", "NEW-START#", "STATUS")}
	total := int64(0)
	var plan [][]any
	for _, p := range ranges {
		if r.from.kind == boundExact && r.from.offset > p.logEnd {
			return &failure{
				code: exitFailed, what: fmt.Sprintf("cannot trim %s-%d to offset %d", p.topic, p.partition, r.from.offset),
				why: fmt.Sprintf("its log ends at %d", p.logEnd), fix: "-o end   deletes all records, or name the partitions with -p",
			}
		}
		out = append(out, trimmedPartition{p.topic, p.partition, p.logStart, p.from, "UNCHANGED"})
		plan = append(plan, []any{p.topic, p.partition, p.logStart, p.from, p.from - p.logStart})
		if p.from > p.logStart {
			targets.AddOffset(p.topic, p.partition, p.from, -1)
			total += p.from - p.logStart
		}
	}
	fmt.Fprintf(e.stderr, "plan: delete %d offsets of topic %s\n", total, names[0])
	writeTable(e.stderr, columns("TOPIC", "PARTITION#", "OLD-START#", "NEW-START#", "OFFSETS#"), plan, false, 0)
	if c.Bool("dry-run") {
		e.hint("dry run: nothing was deleted")
		return b.finish(e)
	}
	if total > 0 {
		if err := e.confirm(fmt.Sprintf("delete %d offsets?", total)); err != nil {
			return err
		}
		ctx, cancel = e.ctx(c) // the question took its time
		defer cancel()
		answers, err := conn.adm.DeleteRecords(ctx, targets)
		if err != nil {
			return conn.fail("delete records", err)
		}
		for i := range out {
			a, ok := answers.Lookup(out[i].Topic, out[i].Partition)
			if !ok {
				continue
			}
			out[i].Status = status(a.Err)
			if a.Err != nil {
				b.fail(itemFailure(fmt.Sprintf("trim %s-%d", out[i].Topic, out[i].Partition), a.Err, nil))
				out[i].NewStart = out[i].OldStart
			} else {
				b.done++
				out[i].NewStart = a.LowWatermark
			}
		}
	}
	for _, p := range out {
		table.rows = append(table.rows, []any{p.Topic, p.Partition, p.OldStart, p.NewStart, p.Status})
	}
	table.value = out
	if err := e.emit(table); err != nil {
		return err
	}
	return b.finish(e)
}
