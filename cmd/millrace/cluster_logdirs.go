package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/urfave/cli/v2"
)

func clusterLogdirsCommand() *cli.Command {
	return &cli.Command{
		Name:  "logdirs",
		Usage: "show what is on the brokers' disks",
		Subcommands: []*cli.Command{{
			Name: "describe", Aliases: []string{"info"}, Usage: "show log directories and the replicas in them; of the topics named, else of all", ArgsUsage: "[TOPIC…]",
			Flags: []cli.Flag{
				brokerFlag("only of this broker `ID`"),
				&cli.StringFlag{Name: "aggregate-into", Usage: "sum up by broker, dir or topic"},
			},
			Action: runLogdirsDescribe,
		}},
	}
}

// describedReplica is one replica on a disk, or with --aggregate-into the sum of several.
type describedReplica struct {
	Broker    int32  `json:"broker" doc:"broker id; -1 in a sum by topic"`
	Dir       string `json:"dir" doc:"log directory; empty in a sum by broker or topic"`
	Error     string `json:"error" doc:"why the directory cannot be used; empty when it can"`
	Topic     string `json:"topic" doc:"topic; empty in a sum by broker or dir"`
	Partition int32  `json:"partition" doc:"partition; -1 in a sum"`
	Replicas  int    `json:"replicas" doc:"how many replicas are summed up; 0 is an empty directory"`
	Bytes     int64  `json:"size_bytes" doc:"size of the segments"`
	Lag       int64  `json:"offset_lag" doc:"records behind the high watermark; the most in a sum"`
	Total     int64  `json:"volume_bytes" doc:"size of the file system; -1 is unknown, or in a sum by topic"`
	Usable    int64  `json:"usable_bytes" doc:"what is free of it; -1 likewise"`
}

func runLogdirsDescribe(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]describedReplica{}) {
		return nil
	}
	names, err := topicArguments(c, 0)
	if err != nil {
		return err
	}
	into := c.String("aggregate-into")
	if !slices.Contains([]string{"", "broker", "dir", "topic"}, into) {
		f := usageError(fmt.Sprintf("unknown --aggregate-into %q", into), "--aggregate-into topic")
		f.why = "it is one of broker, dir, topic"
		return f
	}
	ctx, cancel := e.ctx(c)
	defer cancel()
	conn, err := e.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	brokers, err := conn.adm.ListBrokers(ctx)
	if err != nil {
		return conn.fail("ask for the brokers", err)
	}
	ids := brokers.NodeIDs()
	if id := c.Int("broker"); id >= 0 {
		if !slices.Contains(ids, int32(id)) {
			return &failure{code: exitFailed, what: fmt.Sprintf("there is no broker %d", id), why: "the cluster names no such broker, or it is fenced", fix: "millrace cluster brokers list   shows the brokers"}
		}
		ids = []int32{int32(id)}
	}
	var b batch
	out := []describedReplica{}
	for _, id := range ids {
		dirs, err := conn.adm.DescribeBrokerLogDirs(ctx, id, nil)
		if err != nil {
			f := conn.fail(fmt.Sprintf("ask broker %d for its log directories", id), err)
			f.what = fmt.Sprintf("broker %d does not tell of its log directories", id)
			b.fail(f)
			continue
		}
		b.done++
		for _, d := range dirs {
			base := describedReplica{Broker: id, Dir: d.Dir, Partition: -1, Total: d.TotalBytes, Usable: d.UsableBytes}
			if d.Err != nil {
				base.Error = d.Err.Error()
			}
			empty := true
			for _, p := range d.Topics.Sorted() {
				if len(names) > 0 && !slices.Contains(names, p.Topic) {
					continue
				}
				empty = false
				r := base
				r.Topic, r.Partition, r.Replicas, r.Bytes, r.Lag = p.Topic, p.Partition, 1, p.Size, p.OffsetLag
				out = append(out, r)
			}
			if empty && len(names) == 0 {
				out = append(out, base)
			}
		}
	}
	if into != "" {
		out = aggregateReplicas(out, into)
	}
	slices.SortStableFunc(out, func(x, y describedReplica) int {
		return cmp.Or(cmp.Compare(x.Broker, y.Broker), cmp.Compare(x.Dir, y.Dir), cmp.Compare(x.Topic, y.Topic), cmp.Compare(x.Partition, y.Partition))
	})
	if err := e.emit(logdirsResult(out, into)); err != nil {
		return err
	}
	return b.finish(e)
}

// aggregateReplicas sums up by broker, dir or topic.
func aggregateReplicas(all []describedReplica, into string) []describedReplica {
	out := []describedReplica{}
	index := map[string]int{}
	volumes := map[string]bool{}
	for _, r := range all {
		key := r.Topic
		switch into {
		case "broker":
			key = strconv.Itoa(int(r.Broker))
		case "dir":
			key = fmt.Sprintf("%d %s", r.Broker, r.Dir)
		default:
			if r.Topic == "" {
				continue // an empty directory
			}
		}
		i, ok := index[key]
		if !ok {
			i = len(out)
			index[key] = i
			sum := describedReplica{Broker: -1, Partition: -1, Total: -1, Usable: -1}
			switch into {
			case "broker":
				sum.Broker = r.Broker
			case "dir":
				sum.Broker, sum.Dir, sum.Error = r.Broker, r.Dir, r.Error
			default:
				sum.Topic = r.Topic
			}
			out = append(out, sum)
		}
		out[i].Replicas += r.Replicas
		out[i].Bytes += r.Bytes
		out[i].Lag = max(out[i].Lag, r.Lag)
		if volume := fmt.Sprintf("%d %s", r.Broker, r.Dir); into != "topic" && !volumes[volume] && r.Total >= 0 {
			volumes[volume] = true
			out[i].Total = max(out[i].Total, 0) + r.Total
			out[i].Usable = max(out[i].Usable, 0) + r.Usable
		}
	}
	return out
}

func logdirsResult(out []describedReplica, into string) result {
	r := result{value: out}
	used := func(d *describedReplica) any {
		if d.Total <= 0 || d.Usable < 0 {
			return nil
		}
		return fmt.Sprintf("%d%%", (d.Total-d.Usable)*100/d.Total)
	}
	switch into {
	case "broker":
		r.cols = columns("BROKER#", "REPLICAS#", "SIZE#", "DISK-USED#", "DISK-FREE#")
	case "dir":
		r.cols = columns("BROKER#", "DIR", "REPLICAS#", "SIZE#", "DISK-USED#", "DISK-FREE#", "ERROR")
	case "topic":
		r.cols = columns("TOPIC", "REPLICAS#", "SIZE#", "LAG#")
	default:
		r.cols = columns("BROKER#", "DIR", "TOPIC", "PARTITION#", "SIZE#", "LAG#", "ERROR")
	}
	for i := range out {
		d := &out[i]
		switch into {
		case "broker":
			r.rows = append(r.rows, []any{d.Broker, d.Replicas, sizeText(d.Bytes), used(d), sizeText(d.Usable)})
		case "dir":
			r.rows = append(r.rows, []any{d.Broker, d.Dir, d.Replicas, sizeText(d.Bytes), used(d), sizeText(d.Usable), d.Error})
		case "topic":
			r.rows = append(r.rows, []any{d.Topic, d.Replicas, sizeText(d.Bytes), d.Lag})
		default:
			partition, size, lag := any(d.Partition), any(sizeText(d.Bytes)), any(d.Lag)
			if d.Replicas == 0 {
				partition, size, lag = nil, nil, nil
			}
			r.rows = append(r.rows, []any{d.Broker, d.Dir, d.Topic, partition, size, lag, d.Error})
		}
	}
	return r
}
