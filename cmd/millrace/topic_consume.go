package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/urfave/cli/v2"
)

func topicConsumeCommand() *cli.Command {
	return consumeCommand("consume", "print records of topics", "start", "value")
}

// topicTailCommand is consume with other defaults: what comes from now on, with time and place.
func topicTailCommand() *cli.Command {
	return consumeCommand("tail", "print records of topics as they come, with time, partition and offset", "end", `%d{strftime[%T]} %p:%o %k %v\n`)
}

func consumeCommand(name, usage, offset, format string) *cli.Command {
	return &cli.Command{
		Name:      name,
		Usage:     usage,
		ArgsUsage: "NAME…",
		Description: "-o says what to read: start, end, :end, 42, +42 (after the start), -42 (the last 42), 10:20, @TIME, @TIME:end.\n" +
			"A TIME is 2026-11-29T12:00:00Z, milliseconds, or relative as -1h.\n" +
			"With -g, or without -g, -o and -p, it reads as a member of a group (named default in the second case): records are\n" +
			"shared with the other members, committed once they are printed, and not read again by the next one. -o then says\n" +
			"where partitions begin that the group has no offset of.\n" +
			"-f is a format such as '%t %p %o %k %v\\n' (%T keys, headers and times as in rpk), json, or value.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "offset", Aliases: []string{"o"}, Value: offset, Usage: "where to begin, and where to stop: `RANGE`"},
			&cli.Int64Flag{Name: "num", Aliases: []string{"n"}, Usage: "stop after `N` records"},
			&cli.StringSliceFlag{Name: "partitions", Aliases: []string{"p"}, Usage: "only these: `0,1,4-6`"},
			&cli.StringFlag{Name: "group", Aliases: []string{"g"}, Usage: "read as a member of consumer `GROUP`; without -g, -o and -p: of default"},
			&cli.BoolFlag{Name: "regex", Aliases: []string{"r"}, Usage: "the names are regular expressions, for whole names"},
			&cli.StringFlag{Name: "f", Value: format, Usage: "record `FORMAT`: json, value, or with % letters"},
			&cli.BoolFlag{Name: "exit-at-end", Aliases: []string{"e"}, Usage: "stop at the end as it is now"},
			&cli.StringFlag{Name: "filter", Usage: "print only records for which the jq `EXPR` is true"},
			&cli.BoolFlag{Name: "meta-only", Usage: "with -f json: sizes instead of keys and values"},
			&cli.BoolFlag{Name: "read-committed", Usage: "only records of committed transactions"},
			&cli.BoolFlag{Name: "print-control-records", Usage: "print transaction markers too"},
			&cli.StringFlag{Name: "rack", Usage: "read from replicas in this rack when there are any"},
		},
		Action: runTopicConsume,
	}
}

// partitionRange is what to read of one partition: [from, to), to < 0 for ever.
type partitionRange struct {
	topic            string
	partition        int32
	from, to         int64
	logStart, logEnd int64
}

// resolveRanges asks the leaders where a range begins and ends in each partition.
func (c *connection) resolveRanges(ctx context.Context, topics []kadm.TopicDetail, wanted []int32, r offsetRange, committed bool) ([]partitionRange, error) {
	names := topicNames(topics)
	starts, err := c.adm.ListStartOffsets(ctx, names...)
	if err != nil {
		return nil, c.fail("ask for offsets", err)
	}
	list := c.adm.ListEndOffsets
	if committed {
		list = c.adm.ListCommittedOffsets
	}
	ends, err := list(ctx, names...)
	if err != nil {
		return nil, c.fail("ask for offsets", err)
	}
	var byTime [2]kadm.ListedOffsets
	for i, b := range []bound{r.from, r.to} {
		if b.kind == boundTime {
			if byTime[i], err = c.adm.ListOffsetsAfterMilli(ctx, b.millis, names...); err != nil {
				return nil, c.fail("ask for offsets by time", err)
			}
		}
	}
	var out []partitionRange
	for _, t := range topics {
		partitions, err := pickPartitions(t, wanted)
		if err != nil {
			return nil, err
		}
		for _, p := range partitions {
			start, _ := starts.Lookup(t.Topic, p.Partition)
			end, _ := ends.Lookup(t.Topic, p.Partition)
			at := [2]int64{-1, -1}
			errs := []error{start.Err, end.Err}
			for i := range byTime {
				if byTime[i] == nil {
					continue
				}
				o, ok := byTime[i].Lookup(t.Topic, p.Partition)
				// The client turns "no record that late" into the end; its timestamp tells.
				if ok && o.Err == nil && o.Timestamp >= 0 {
					at[i] = o.Offset
				}
				errs = append(errs, o.Err)
			}
			for _, err := range errs {
				if err != nil {
					return nil, itemFailure(fmt.Sprintf("ask for the offsets of %s-%d", t.Topic, p.Partition), err, nil)
				}
			}
			out = append(out, partitionRange{
				topic: t.Topic, partition: p.Partition, logStart: start.Offset, logEnd: end.Offset,
				from: r.from.resolve(start.Offset, end.Offset, at[0]),
				to:   r.to.resolve(start.Offset, end.Offset, at[1]),
			})
		}
	}
	return out, nil
}

func runTopicConsume(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]recordJSON{}) {
		return nil
	}
	names, err := topicArguments(c, 1)
	if err != nil {
		return err
	}
	if c.IsSet("filter") {
		f := usageError("--filter cannot be had in this build", "millrace topic consume "+names[0]+" -f json | jq -c 'select(…)'")
		f.why = "the jq engine is not part of it"
		return f
	}
	r, err := parseOffsets(c.String("offset"), time.Now())
	if err != nil {
		return err
	}
	if c.Bool("exit-at-end") && r.to.kind == boundNone {
		r.to = bound{kind: boundEnd}
	}
	limit := c.Int64("num")
	if c.IsSet("num") && limit < 1 {
		f := usageError(fmt.Sprintf("-n %d is no number of records", limit), "-n 10")
		f.why = "it must be at least 1"
		return f
	}
	wanted, err := partitionList(c.StringSlice("partitions"))
	if err != nil {
		return err
	}
	write, err := recordWriter(c, e)
	if err != nil {
		return err
	}
	if group := consumeGroup(c); group != "" {
		return consumeAsMember(c, e, group, names, r, limit, write)
	}
	ctx, cancel := e.ctx(c)
	defer cancel()
	setup, err := e.connect(ctx)
	if err != nil {
		return err
	}
	defer setup.Close()
	var b batch
	topics, err := setup.topicMetadata(ctx, names, c.Bool("regex"), true, &b)
	if err != nil {
		return err
	}
	if len(topics) == 0 {
		return b.finish(e)
	}
	committed := c.Bool("read-committed")
	ranges, err := setup.resolveRanges(ctx, topics, wanted, r, committed)
	if err != nil {
		return err
	}
	return (&consumption{env: e, ranges: ranges, limit: limit, committed: committed, control: c.Bool("print-control-records"), rack: c.String("rack"), write: write}).run(c.Context, &b)
}

// consumeAsMember is consume with a group.
func consumeAsMember(c *cli.Context, e *env, group string, names []string, r offsetRange, limit int64, write func([]byte, *kgo.FetchPartition, *kgo.Record) []byte) error {
	if err := checkGroupName(c, group); err != nil {
		return err
	}
	if c.IsSet("partitions") {
		f := usageError("-g and -p exclude each other", "leave one of them out")
		f.why = "a group divides the partitions among its members"
		return f
	}
	reset, err := groupReset(r, c.String("offset"))
	if err != nil {
		return err
	}
	regex := c.Bool("regex")
	ctx, cancel := e.ctx(c)
	defer cancel()
	setup, err := e.connect(ctx)
	if err != nil {
		return err
	}
	var b batch
	topics, err := setup.topicMetadata(ctx, names, regex, true, &b)
	setup.Close()
	if err != nil {
		return err
	}
	if len(topics) == 0 || len(b.failures) > 0 {
		return b.finish(e) // a member that waits for a topic with a slip in its name would wait for ever
	}
	if !c.IsSet("group") {
		e.hint("reading as a member of group %s, which goes on where it was; -o start reads all without a group, -g NAME joins another", group)
	}
	return (&groupConsumption{env: e, group: group, topics: names, regex: regex, reset: reset, fromStart: r.from.kind == boundStart, exit: r.to.kind == boundEnd, limit: limit,
		committed: c.Bool("read-committed"), control: c.Bool("print-control-records"), rack: c.String("rack"), write: write}).run(c.Context)
}

// recordWriter makes the function that prints one record.
func recordWriter(c *cli.Context, e *env) (func([]byte, *kgo.FetchPartition, *kgo.Record) []byte, error) {
	format := c.String("f")
	if !c.IsSet("f") && (e.format == "json" || e.format == "yaml") {
		format = "json"
	}
	metaOnly := c.Bool("meta-only")
	if metaOnly && !c.IsSet("f") {
		format = "json"
	}
	switch format {
	case "json":
		return func(out []byte, _ *kgo.FetchPartition, r *kgo.Record) []byte {
			return appendRecordJSON(out, r, metaOnly)
		}, nil
	case "value":
		format = "%v\n"
	}
	formatter, err := kgo.NewRecordFormatter(format)
	if err != nil {
		f := usageError(fmt.Sprintf("-f %q is no record format", format), `-f '%t %p %o %k %v\n', -f json or -f value`)
		f.why = err.Error()
		return nil, f
	}
	return formatter.AppendPartitionRecord, nil
}

// consumption reads ranges of partitions without a group.
type consumption struct {
	*env
	ranges    []partitionRange
	limit     int64 // 0: none
	committed bool
	control   bool
	rack      string
	write     func([]byte, *kgo.FetchPartition, *kgo.Record) []byte
}

// total is how many records will be printed at most, 0 when that is not known.
func (c *consumption) total() int64 {
	sum := int64(0)
	for _, r := range c.ranges {
		if r.to < 0 {
			return c.limit
		}
		sum += max(r.to-r.from, 0)
	}
	if c.limit > 0 {
		return min(sum, c.limit)
	}
	return sum
}

func (c *consumption) run(ctx context.Context, b *batch) error {
	offsets := map[string]map[int32]kgo.Offset{}
	open := map[string]map[int32]int64{} // where each partition that is still read ends; < 0 never
	left := 0
	for _, r := range c.ranges {
		if r.to >= 0 && r.from >= r.to {
			continue
		}
		if offsets[r.topic] == nil {
			offsets[r.topic], open[r.topic] = map[int32]kgo.Offset{}, map[int32]int64{}
		}
		offsets[r.topic][r.partition] = kgo.NewOffset().At(r.from)
		open[r.topic][r.partition] = r.to
		left++
	}
	if left == 0 {
		return b.finish(c.env)
	}
	isolation := kgo.ReadUncommitted()
	if c.committed {
		isolation = kgo.ReadCommitted()
	}
	options := []kgo.Opt{
		kgo.ConsumePartitions(offsets),
		kgo.FetchIsolationLevel(isolation),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.KeepControlRecords(), // they count as read, so that a range which ends with one ends
		kgo.FetchMaxWait(500 * time.Millisecond),
	}
	if c.rack != "" {
		options = append(options, kgo.Rack(c.rack))
	}
	// Once a broker could be reached, later failures are waited out: it may be restarting.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn, err := c.connect(ctx, options...)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.fails.arm(func(f *failure) { cancel(f) })
	out := bufio.NewWriterSize(c.stdout, 256<<10)
	var line []byte
	printed := int64(0)
	// A bar beside records on the same terminal would only tear them.
	var bar *progress
	if !terminal(c.stdout) {
		bar = c.newProgress("reading", c.total())
	}
	defer bar.finish()
	for left > 0 {
		fetches := conn.PollFetches(ctx)
		if ctx.Err() != nil {
			break
		}
		var failed error
		fetches.EachError(func(topic string, partition int32, err error) {
			if failed == nil && !errors.Is(err, context.Canceled) {
				failed = itemFailure(fmt.Sprintf("read %s-%d", topic, partition), err, nil)
			}
		})
		full := false
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			end, reading := open[p.Topic][p.Partition]
			if !reading || full {
				return
			}
			for _, r := range p.Records {
				if end >= 0 && r.Offset >= end {
					break
				}
				if r.Attrs.IsControl() && !c.control {
					continue
				}
				line = c.write(line[:0], &p.FetchPartition, r)
				if _, err := out.Write(line); err != nil {
					failed = writeError(err)
					full = true
					return
				}
				printed++
				bar.add(1)
				if c.limit > 0 && printed >= c.limit {
					full = true
					return
				}
			}
			if n := len(p.Records); end >= 0 && n > 0 && p.Records[n-1].Offset+1 >= end {
				delete(open[p.Topic], p.Partition)
				conn.PauseFetchPartitions(map[string][]int32{p.Topic: {p.Partition}})
				left--
			}
		})
		if err := out.Flush(); err != nil && failed == nil {
			failed = writeError(err)
		}
		if failed != nil {
			return failed
		}
		if full {
			break
		}
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	b.done++
	return b.finish(c.env)
}
