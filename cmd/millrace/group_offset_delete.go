package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/urfave/cli/v2"
)

type deletedOffset struct {
	Topic     string `json:"topic" doc:"name"`
	Partition int32  `json:"partition" doc:"number"`
	Offset    int64  `json:"offset" doc:"what was committed"`
	Status    string `json:"status" doc:"OK, or the error's name"`
}

func groupOffsetDeleteCommand() *cli.Command {
	return &cli.Command{
		Name:      "offset-delete",
		Usage:     "delete offsets of a group, of topics that it does not read any more",
		ArgsUsage: "NAME",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "topic", Aliases: []string{"t"}, Usage: "`TOPIC[:0,1,4-6]`: its offsets, or those of some partitions (repeatable)"},
			dryRunFlag(),
		},
		Action: runGroupOffsetDelete,
	}
}

func runGroupOffsetDelete(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]deletedOffset{}) {
		return nil
	}
	name, err := oneGroup(c)
	if err != nil {
		return err
	}
	wanted, err := topicPartitionFlag("-t", c.StringSlice("topic"))
	if err != nil {
		return err
	}
	if len(wanted) == 0 {
		f := usageError("-t must say which offsets", "millrace group offset-delete "+name+" -t orders:0,1   or   -t orders")
		f.why = "millrace group delete " + name + "   deletes all of them, with the group"
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
	fetched, err := conn.adm.FetchOffsets(ctx, name)
	if err != nil {
		return conn.fail("read the offsets of group "+name, err)
	}
	set := kadm.TopicsSet{}
	out := []deletedOffset{}
	for _, o := range fetched.Sorted() {
		partitions, asked := wanted[o.Topic]
		if asked && o.Err == nil && o.At >= 0 && (partitions == nil || slices.Contains(partitions, o.Partition)) {
			set.Add(o.Topic, o.Partition)
			out = append(out, deletedOffset{o.Topic, o.Partition, o.At, "UNCHANGED"})
		}
	}
	fmt.Fprintf(e.stderr, "plan: delete %s of group %s\n", count(len(out), "offset"), name)
	if len(out) > 0 {
		writeTable(e.stderr, columns("TOPIC", "PARTITION#", "OFFSET#"), deletedRows(out, false), false, 0)
	}
	if c.Bool("dry-run") {
		e.hint("dry run: nothing was deleted")
		return nil
	}
	if len(out) > 0 {
		if err := e.confirm(fmt.Sprintf("delete %s?", count(len(out), "offset"))); err != nil {
			return err
		}
		ctx, cancel = e.ctx(c) // the question took its time
		defer cancel()
		answers, err := conn.adm.DeleteOffsets(ctx, name, set)
		if err != nil {
			return conn.fail("delete offsets of group "+name, err)
		}
		for i := range out {
			o := &out[i]
			err, _ := answers.Lookup(o.Topic, o.Partition)
			if o.Status = status(err); err == nil {
				b.done++
				continue
			}
			f := itemFailure(fmt.Sprintf("delete the offset of %s-%d", o.Topic, o.Partition), err, nil)
			if errors.Is(err, kerr.GroupSubscribedToTopic) {
				f.why, f.fix = "members of the group read the topic", "stop them first; millrace group describe "+name+" --members   shows where they run"
			}
			b.fail(f)
		}
	}
	if err := e.emit(result{value: out, cols: columns("TOPIC", "PARTITION#", "OFFSET#", "STATUS"), rows: deletedRows(out, true)}); err != nil {
		return err
	}
	return b.finish(e)
}

func deletedRows(out []deletedOffset, statuses bool) (rows [][]any) {
	for _, o := range out {
		row := []any{o.Topic, o.Partition, o.Offset}
		if statuses {
			row = append(row, o.Status)
		}
		rows = append(rows, row)
	}
	return rows
}
