package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/metadata"
)

type createdTopic struct {
	Topic      string `json:"topic" doc:"name"`
	Status     string `json:"status" doc:"OK, EXISTS, or the error's name"`
	ID         string `json:"id" doc:"topic id; empty when it was not created"`
	Partitions int32  `json:"partitions" doc:"number of partitions; -1 when unknown"`
	Replicas   int16  `json:"replicas" doc:"replicas of each partition; -1 when unknown"`
}

func topicCreateCommand() *cli.Command {
	return &cli.Command{
		Name:      "create",
		Usage:     "create topics",
		ArgsUsage: "NAME…",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "partitions", Aliases: []string{"p"}, Value: -1, Usage: "`N` partitions (default: the broker's num.partitions)"},
			&cli.IntFlag{Name: "replicas", Aliases: []string{"r"}, Value: -1, Usage: "`N` replicas of each (default: the broker's choice)"},
			&cli.StringSliceFlag{Name: "topic-config", Aliases: []string{"c"}, Usage: "`KEY=VALUE` (repeatable), as retention.ms=7d"},
			&cli.BoolFlag{Name: "if-not-exists", Usage: "a topic that exists is fine"},
			&cli.StringFlag{Name: "assignment", Usage: "place replicas by hand: `0:1,2,3;1:2,3,1`"},
			&cli.BoolFlag{Name: "dry-run", Aliases: []string{"dry"}, Usage: "check everything, create nothing"},
		},
		Action: runTopicCreate,
	}
}

func runTopicCreate(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]createdTopic{}) {
		return nil
	}
	names, err := topicArguments(c, 1)
	if err != nil {
		return err
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = int32(e.timeout.Milliseconds())
	req.ValidateOnly = c.Bool("dry-run")
	partitions, factor := c.Int("partitions"), c.Int("replicas")
	if c.IsSet("partitions") && (partitions < 1 || partitions > 1<<31-1) || c.IsSet("replicas") && (factor < 1 || factor > 1<<15-1) {
		f := usageError("the number of partitions and replicas must be at least 1", "millrace topic create "+names[0]+" -p 6 -r 3")
		f.why = fmt.Sprintf("-p %d -r %d", partitions, factor)
		return f
	}
	assignment, err := parseAssignment(c.String("assignment"))
	if err != nil {
		return err
	}
	if assignment != nil && (c.IsSet("partitions") || c.IsSet("replicas")) {
		f := usageError("--assignment and -p or -r contradict each other", "leave -p and -r out")
		f.why = "the assignment says how many partitions and replicas there are"
		return f
	}
	configs, err := topicConfigFlags("topic-config", c.StringSlice("topic-config"))
	if err != nil {
		return err
	}
	for _, n := range names {
		t := kmsg.NewCreateTopicsRequestTopic()
		t.Topic, t.NumPartitions, t.ReplicationFactor, t.ReplicaAssignment = n, int32(partitions), int16(factor), assignment
		for _, kv := range configs {
			config := kmsg.NewCreateTopicsRequestTopicConfig()
			config.Name, config.Value = kv[0], &kv[1]
			t.Configs = append(t.Configs, config)
		}
		req.Topics = append(req.Topics, t)
	}
	ctx, cancel := e.ctx(c)
	defer cancel()
	conn, err := e.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	resp, err := req.RequestWith(ctx, conn.Client)
	if err != nil {
		return conn.fail("create topics", err)
	}
	answers := map[string]kmsg.CreateTopicsResponseTopic{}
	for _, t := range resp.Topics {
		answers[t.Topic] = t
	}
	var b batch
	var out []createdTopic
	var made []string
	r := result{cols: columns("TOPIC", "STATUS", "PARTITIONS#", "REPLICAS#", "+ID")}
	for _, n := range names {
		t, ok := answers[n]
		if !ok {
			b.fail(&failure{code: exitFailed, what: "cannot create topic " + n, why: "the broker's answer does not mention it", fix: "millrace topic list"})
			continue
		}
		err := codeError(t.ErrorCode)
		row := createdTopic{Topic: n, Status: status(err), Partitions: t.NumPartitions, Replicas: t.ReplicationFactor}
		switch {
		case err == kerr.TopicAlreadyExists && c.Bool("if-not-exists"):
			row.Status = "EXISTS"
			b.done++
		case err != nil:
			f := itemFailure("create topic "+n, err, t.ErrorMessage)
			if t.ErrorCode == kerr.InvalidReplicationFactor.Code && f.fix == "" {
				f.fix = "leave -r out for the broker's default"
			}
			b.fail(f)
			row.Partitions, row.Replicas = -1, -1
		default:
			b.done++
			if !req.ValidateOnly && t.TopicID != ([16]byte{}) {
				row.ID = topicID(t.TopicID)
				made = append(made, n)
			}
		}
		out = append(out, row)
		r.rows = append(r.rows, []any{row.Topic, row.Status, unknown(int64(row.Partitions)), unknown(int64(row.Replicas)), row.ID})
	}
	r.value = out
	conn.awaitTopics(ctx, made)
	if err := e.emit(r); err != nil {
		return err
	}
	if req.ValidateOnly {
		e.hint("dry run: nothing was created")
	}
	return b.finish(e)
}

// awaitTopics waits until every broker knows topics that were just created, so that the next command may ask any of them.
// The answer to the creation came from one; the others hear of it a moment later. A broker that does not answer, or takes
// longer than settleLimit, is not waited for: the topics exist.
func (c *connection) awaitTopics(ctx context.Context, names []string) {
	if len(names) == 0 {
		return
	}
	const settleLimit, every = 2 * time.Second, 20 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	brokers, err := c.adm.ListBrokers(ctx)
	if err != nil || len(brokers) < 2 {
		return
	}
	ask := func() *kmsg.MetadataRequest { // one each: the client writes to it
		req := kmsg.NewPtrMetadataRequest()
		for _, n := range names {
			t := kmsg.NewMetadataRequestTopic()
			t.Topic = kmsg.StringPtr(n)
			req.Topics = append(req.Topics, t)
		}
		return req
	}
	var wait sync.WaitGroup
	for _, b := range brokers {
		wait.Go(func() {
			_ = poll(ctx, every, func(ctx context.Context) (bool, error) {
				resp, err := c.Broker(int(b.NodeID)).Request(ctx, ask())
				if err != nil {
					return true, err
				}
				return !slices.ContainsFunc(resp.(*kmsg.MetadataResponse).Topics, func(t kmsg.MetadataResponseTopic) bool {
					return t.ErrorCode == kerr.UnknownTopicOrPartition.Code || t.ErrorCode == kerr.LeaderNotAvailable.Code
				}), nil
			})
		})
	}
	wait.Wait()
}

// unknown shows a negative number as "-".
func unknown(n int64) any {
	if n < 0 {
		return "-"
	}
	return n
}

// topicConfigFlags reads k=v pairs and writes their values as Kafka does ("7d" is 604800000), so that they work with
// any broker. Keys that the table does not know go as they are: the broker knows best what it has.
func topicConfigFlags(flag string, pairs []string) ([][2]string, error) {
	configs, err := keyValues(flag, pairs)
	if err != nil {
		return nil, err
	}
	for i, kv := range configs {
		k, known := metadata.LookupConfig(metadata.ConfigTopic, kv[0])
		if !known || k.Unit == metadata.UnitNone {
			continue
		}
		if v, err := k.Canonical(kv[1]); err == nil {
			configs[i][1] = v
		}
	}
	return configs, nil
}

// parseAssignment reads 0:1,2,3;1:2,3,1 — for each partition its brokers, the preferred leader first.
func parseAssignment(s string) ([]kmsg.CreateTopicsRequestTopicReplicaAssignment, error) {
	if s == "" {
		return nil, nil
	}
	bad := func(why string) error {
		f := usageError("--assignment "+s+" cannot be read", "--assignment '0:1,2,3;1:2,3,1'   partition:brokers, the leader first")
		f.why = why
		return f
	}
	var out []kmsg.CreateTopicsRequestTopicReplicaAssignment
	for part := range strings.SplitSeq(s, ";") {
		id, brokers, ok := strings.Cut(part, ":")
		partition, err := strconv.ParseInt(strings.TrimSpace(id), 10, 32)
		if !ok || err != nil || partition < 0 {
			return nil, bad(fmt.Sprintf("%q has no partition before a colon", part))
		}
		a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		a.Partition = int32(partition)
		for item := range strings.SplitSeq(brokers, ",") {
			broker, err := strconv.ParseInt(strings.TrimSpace(item), 10, 32)
			if err != nil || broker < 0 {
				return nil, bad(fmt.Sprintf("%q is not a broker's id", item))
			}
			a.Replicas = append(a.Replicas, int32(broker))
		}
		out = append(out, a)
	}
	return out, nil
}
