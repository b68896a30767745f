package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/urfave/cli/v2"
)

func topicAlterCommand() *cli.Command {
	return &cli.Command{
		Name: "alter", Usage: "change how many replicas or partitions topics have", ArgsUsage: "NAME…",
		Description: "More replicas go to brokers that have few, on other racks first; fewer are taken from those that are not there or out of sync first, never from a leader\n" +
			"that another could not replace.",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "replicas", Aliases: []string{"r"}, Usage: "how many replicas each partition is to have"},
			&cli.IntFlag{Name: "partitions", Aliases: []string{"p"}, Usage: "how many partitions each topic is to have; it can only grow"},
			dryRunFlag(), waitFlag("wait until the replicas are there; --timeout bounds it"),
		},
		Action: runTopicAlter,
	}
}

func runTopicAlter(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]plannedMove{}) {
		return nil
	}
	names, err := topicArguments(c, 1)
	if err != nil {
		return err
	}
	replicas, partitions := c.Int("replicas"), c.Int("partitions")
	if !c.IsSet("replicas") && !c.IsSet("partitions") || c.IsSet("replicas") && replicas < 1 || c.IsSet("partitions") && partitions < 1 {
		f := usageError("what is to be altered?", c.Command.HelpName+" "+names[0]+" --replicas 3")
		f.why = "the command needs --replicas N or --partitions N, 1 or more"
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
	if len(b.failures) > 0 {
		return b.finish(e)
	}
	if c.IsSet("partitions") {
		if err := e.growTopics(ctx, c, conn, topics, partitions); err != nil {
			return err
		}
		if !c.IsSet("replicas") {
			return nil
		}
		if topics, err = conn.topicMetadata(ctx, names, false, true, &b); err != nil {
			return err
		}
	}
	brokers, err := conn.placementBrokers(ctx)
	if err != nil {
		return err
	}
	moves, err := refactor(topics, brokers, replicas)
	if err != nil {
		return err
	}
	return e.makeMoves(c, conn, moves)
}

// growTopics gives topics more partitions.
func (e *env) growTopics(ctx context.Context, c *cli.Context, conn *connection, topics []kadm.TopicDetail, n int) error {
	var grow []string
	for _, t := range topics {
		switch had := len(t.Partitions); {
		case had > n:
			f := usageError(fmt.Sprintf("topic %s has %d partitions, and cannot have %d", t.Topic, had, n), fmt.Sprintf("--partitions %d or more", had))
			f.why = "partitions cannot be taken away: their records would be lost"
			return f
		case had < n:
			grow = append(grow, t.Topic)
			fmt.Fprintf(e.stderr, "%s: partitions %d → %d; keys are spread anew, records of one key may end up in two of them\n", t.Topic, had, n)
		}
	}
	if len(grow) == 0 {
		return nil
	}
	if c.Bool("dry-run") {
		return nil
	}
	answers, err := conn.adm.UpdatePartitions(ctx, n, grow...)
	if err != nil {
		return conn.fail("add partitions", err)
	}
	var b batch
	return b.emitTopicAnswers(e, "add partitions to topic", grow, func(topic string) topicAnswer {
		a, ok := answers[topic]
		return topicAnswer{a.Err, a.ErrMessage, ok}
	})
}

// placementBroker is a broker that may get replicas.
type placementBroker struct {
	id       int32
	rack     string
	replicas int // of all topics
}

// placementBrokers are the brokers that clients can see, with how many replicas each has.
func (c *connection) placementBrokers(ctx context.Context) ([]placementBroker, error) {
	m, err := c.adm.Metadata(ctx)
	if err != nil {
		return nil, c.fail("ask for the brokers", err)
	}
	var out []placementBroker
	for _, b := range m.Brokers {
		p := placementBroker{id: b.NodeID}
		if b.Rack != nil {
			p.rack = *b.Rack
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b placementBroker) int { return int(a.id - b.id) })
	for _, t := range m.Topics {
		for _, p := range t.Partitions {
			for _, r := range p.Replicas {
				if i := slices.IndexFunc(out, func(b placementBroker) bool { return b.id == r }); i >= 0 {
					out[i].replicas++
				}
			}
		}
	}
	return out, nil
}

// refactor plans another number of replicas for each partition of topics. The preferred leader stays, unless it is not
// there; brokers are taken by how many replicas they have, the plan's own included.
func refactor(topics []kadm.TopicDetail, brokers []placementBroker, n int) ([]plannedMove, error) {
	if n > len(brokers) {
		return nil, &failure{
			code: exitFailed, what: fmt.Sprintf("%d replicas cannot be had", n), why: fmt.Sprintf("%s there, and a broker has at most one replica of a partition", countedAre(len(brokers), "broker")),
			fix: fmt.Sprintf("--replicas %d, or millrace start … --join HOST   on a new machine", len(brokers)),
		}
	}
	brokers = slices.Clone(brokers)
	find := func(id int32) *placementBroker {
		for i := range brokers {
			if brokers[i].id == id {
				return &brokers[i]
			}
		}
		return nil
	}
	var moves []plannedMove
	for _, t := range topics {
		for _, p := range t.Partitions.Sorted() {
			after := slices.Clone(p.Replicas)
			for len(after) > n {
				i := leastNeeded(p, after, find)
				if b := find(after[i]); b != nil {
					b.replicas--
				}
				after = slices.Delete(after, i, i+1)
			}
			for len(after) < n {
				b := bestPlace(brokers, after, find)
				b.replicas++
				after = append(after, b.id)
			}
			if !slices.Equal(after, p.Replicas) {
				moves = append(moves, plannedMove{Topic: p.Topic, Partition: p.Partition, Before: p.Replicas, After: after, Bytes: -1, Status: movePlanned})
			}
		}
	}
	return moves, nil
}

func countedAre(n int, what string) string {
	if n == 1 {
		return "1 " + what + " is"
	}
	return fmt.Sprintf("%d %ss are", n, what)
}

// leastNeeded is the index of the replica to take away first: one whose broker is not there, else one out of sync, else
// one that shares its rack, else that of the fullest broker, and the last of equals. Not the leader, if there is another.
func leastNeeded(p kadm.PartitionDetail, replicas []int32, find func(int32) *placementBroker) int {
	best, worst := -1, -1
	for i, r := range replicas {
		b := find(r)
		weight := 0
		switch {
		case b == nil:
			weight = 1 << 30
		case r == p.Leader:
			weight = -1
		default:
			if !slices.Contains(p.ISR, r) {
				weight += 1 << 29
			}
			if b.rack != "" && slices.ContainsFunc(replicas, func(o int32) bool { return o != r && find(o) != nil && find(o).rack == b.rack }) {
				weight += 1 << 28
			}
			weight += min(b.replicas, 1<<27)
		}
		if best < 0 || weight >= worst {
			best, worst = i, weight
		}
	}
	return best
}

// bestPlace is the broker for another replica: of a rack that has none yet, and of those the one with the fewest.
func bestPlace(brokers []placementBroker, replicas []int32, find func(int32) *placementBroker) *placementBroker {
	var best *placementBroker
	bestShared := false
	for i := range brokers {
		b := &brokers[i]
		if slices.Contains(replicas, b.id) {
			continue
		}
		shared := slices.ContainsFunc(replicas, func(o int32) bool { return find(o) != nil && find(o).rack == b.rack })
		if best == nil || bestShared && !shared || bestShared == shared && b.replicas < best.replicas {
			best, bestShared = b, shared
		}
	}
	return best
}
