package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/urfave/cli/v2"
)

func groupCommand() *cli.Command {
	return &cli.Command{
		Name:    "group",
		Aliases: []string{"g"},
		Usage:   "look at consumer groups, their lag and their offsets, and move them",
		Subcommands: []*cli.Command{
			groupListCommand(), groupDescribeCommand(), groupLagCommand(), groupDiagnoseCommand(), groupSeekCommand(), groupExportCommand(),
			groupDeleteCommand(), groupOffsetDeleteCommand(), groupKickCommand(),
		},
	}
}

// groupArguments returns the groups that were named, at least least of them.
func groupArguments(c *cli.Context, least int) ([]string, error) {
	names := c.Args().Slice()
	seen := map[string]bool{}
	for _, n := range names {
		if err := checkGroupName(c, n); err != nil {
			return nil, err
		}
		if seen[n] {
			f := usageError(fmt.Sprintf("group %s is named twice", n), c.Command.HelpName+" "+n)
			f.why = "each group can be named once"
			return nil, f
		}
		seen[n] = true
	}
	if len(names) < least {
		f := usageError("no group was named", c.Command.HelpName+" "+c.Command.ArgsUsage)
		f.why = "the command needs the name of a group"
		return nil, f
	}
	return names, nil
}

// checkGroupName refuses what is no name of a group but a slip.
func checkGroupName(c *cli.Context, n string) error {
	if strings.HasPrefix(n, "-") {
		f := usageError(fmt.Sprintf("%q is not a group name", n), c.Command.HelpName+" --help   lists the flags")
		f.why = "it starts with a dash, so it looks like a flag"
		return f
	}
	if n == "" {
		f := usageError("a group name is empty", c.Command.HelpName+" NAME")
		f.why = "perhaps a variable in the command line is not set"
		return f
	}
	return nil
}

// oneGroup returns the one group of commands about one.
func oneGroup(c *cli.Context) (string, error) {
	names, err := groupArguments(c, 1)
	if err != nil {
		return "", err
	}
	if len(names) > 1 {
		f := usageError(c.Command.HelpName+" takes one group", c.Command.HelpName+" "+names[0])
		f.why = fmt.Sprintf("%d were named", len(names))
		return "", f
	}
	return names[0], nil
}

// groupState is a group without its offsets.
type groupState struct {
	Group        string        `json:"group" doc:"name"`
	State        string        `json:"state" doc:"Empty, PreparingRebalance, CompletingRebalance, Stable; Assigning or Reconciling"`
	Type         string        `json:"type" doc:"classic or consumer: the protocol its members speak"`
	Coordinator  int32         `json:"coordinator" doc:"id of the broker that coordinates it"`
	ProtocolType string        `json:"protocol_type" doc:"consumer, connect, or what the members call it"`
	Protocol     string        `json:"protocol" doc:"the assignor in use; empty while there is none"`
	Members      []groupMember `json:"members" doc:"each member"`
}

type groupMember struct {
	ID         string              `json:"member_id" doc:"given by the coordinator"`
	Instance   string              `json:"instance_id" doc:"of a static member; empty for others"`
	ClientID   string              `json:"client_id" doc:"as its program calls itself"`
	Host       string              `json:"host" doc:"where it runs"`
	Topics     []string            `json:"topics" doc:"what it wants to read"`
	Partitions []assignedPartition `json:"assigned" doc:"what it is to read"`
	assigned   map[topicPartition]bool
}

type assignedPartition struct {
	Topic      string  `json:"topic" doc:"name"`
	Partitions []int32 `json:"partitions" doc:"numbers"`
}

type topicPartition struct {
	topic     string
	partition int32
}

// empty says whether the group has no members.
func (g *groupState) empty() bool { return len(g.Members) == 0 }

// groupNames are those that were named, or with regex those whose whole name matches one of the expressions, or all.
func (c *connection) groupNames(ctx context.Context, names []string, regex bool, b *batch) ([]string, error) {
	if len(names) > 0 && !regex {
		return names, nil
	}
	var patterns []*regexp.Regexp
	for _, n := range names {
		p, err := regexp.Compile("^(?:" + n + ")$")
		if err != nil {
			f := usageError(fmt.Sprintf("%q is not a regular expression", n), "-r 'billing-.*'")
			f.why = err.Error()
			return nil, f
		}
		patterns = append(patterns, p)
	}
	listed, err := c.adm.ListGroups(ctx)
	if err != nil {
		return nil, c.fail("ask for groups", firstShardError(err))
	}
	var out []string
	for _, g := range listed.Groups() {
		if patterns == nil || slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return p.MatchString(g) }) {
			out = append(out, g)
		}
	}
	if len(names) > 0 && len(out) == 0 {
		b.fail(&failure{code: exitFailed, what: "no group matches " + strings.Join(names, ", "), why: "an expression must match the whole name", fix: "millrace group list   shows the groups"})
	}
	return out, nil
}

// firstShardError is the first reason why a request to several brokers failed.
func firstShardError(err error) error {
	var shards *kadm.ShardErrors
	if errors.As(err, &shards) && len(shards.Errs) > 0 {
		return shards.Errs[0].Err
	}
	return err
}

// groupStates describes groups, by name. Those that do not exist, or whose coordinator does not answer, are failures of b.
func (c *connection) groupStates(ctx context.Context, names []string, b *batch) ([]*groupState, error) {
	if len(names) == 0 {
		return nil, nil
	}
	described, err := c.adm.DescribeGroups(ctx, names...)
	if err != nil && len(described) == 0 {
		return nil, c.fail("describe groups", firstShardError(err))
	}
	var out []*groupState
	var others []string
	for _, d := range described.Sorted() {
		switch {
		case errors.Is(d.Err, kerr.GroupIDNotFound), d.Err == nil && d.State == "Dead":
			others = append(others, d.Group) // does not exist, or speaks the other protocol
		case d.Err != nil:
			b.fail(itemFailure("describe group "+d.Group, d.Err, nil))
		default:
			out = append(out, classicState(&d))
		}
	}
	for _, n := range names {
		if _, ok := described[n]; !ok {
			b.fail(itemFailure("describe group "+n, firstShardError(err), nil))
		}
	}
	if len(others) > 0 {
		found := c.consumerStates(ctx, others)
		for _, n := range others {
			if g := found[n]; g != nil {
				out = append(out, g)
				continue
			}
			b.fail(unknownGroup(n))
		}
	}
	slices.SortFunc(out, func(a, b *groupState) int { return strings.Compare(a.Group, b.Group) })
	return out, nil
}

func unknownGroup(name string) *failure {
	return &failure{code: exitFailed, what: "there is no group " + name, why: "nobody has joined it or stored an offset under that name, or it has expired", fix: "millrace group list   shows the groups"}
}

func classicState(d *kadm.DescribedGroup) *groupState {
	g := &groupState{Group: d.Group, State: d.State, Type: "classic", Coordinator: d.Coordinator.NodeID, ProtocolType: d.ProtocolType, Protocol: d.Protocol, Members: []groupMember{}}
	for i := range d.Members {
		from := &d.Members[i]
		m := groupMember{ID: from.MemberID, ClientID: from.ClientID, Host: from.ClientHost, Topics: []string{}}
		if from.InstanceID != nil {
			m.Instance = *from.InstanceID
		}
		if meta, ok := from.Join.AsConsumer(); ok {
			m.Topics = slices.Sorted(slices.Values(meta.Topics))
		}
		set := kadm.TopicsSet{}
		if a, ok := from.Assigned.AsConsumer(); ok {
			for _, t := range a.Topics {
				set.Add(t.Topic, t.Partitions...)
			}
		}
		m.assign(set)
		g.Members = append(g.Members, m)
	}
	return g
}

// consumerStates describes groups of the newer protocol (KIP-848), as far as there are any.
func (c *connection) consumerStates(ctx context.Context, names []string) map[string]*groupState {
	described, err := c.adm.DescribeConsumerGroups(ctx, names...)
	if err != nil && len(described) == 0 {
		return nil // a broker without them
	}
	out := map[string]*groupState{}
	for _, d := range described {
		if d.Err != nil || d.State == "Dead" {
			continue
		}
		g := &groupState{Group: d.Group, State: d.State, Type: "consumer", Coordinator: d.Coordinator.NodeID, ProtocolType: "consumer", Protocol: d.AssignorName, Members: []groupMember{}}
		for i := range d.Members {
			from := &d.Members[i]
			m := groupMember{ID: from.MemberID, ClientID: from.ClientID, Host: from.ClientHost, Topics: slices.Sorted(slices.Values(from.SubscribedTopics))}
			if from.InstanceID != nil {
				m.Instance = *from.InstanceID
			}
			m.assign(from.Assignment)
			g.Members = append(g.Members, m)
		}
		out[d.Group] = g
	}
	return out
}

func (m *groupMember) assign(set kadm.TopicsSet) {
	m.Partitions, m.assigned = []assignedPartition{}, map[topicPartition]bool{}
	for _, topic := range slices.Sorted(maps.Keys(set)) {
		partitions := slices.Sorted(maps.Keys(set[topic]))
		m.Partitions = append(m.Partitions, assignedPartition{topic, partitions})
		for _, p := range partitions {
			m.assigned[topicPartition{topic, p}] = true
		}
	}
}

// topicPartitionFlag reads values of the form TOPIC or TOPIC:0,1,4-6; nil partitions stand for all.
func topicPartitionFlag(flag string, values []string) (map[string][]int32, error) {
	out := map[string][]int32{}
	for _, v := range values {
		topic, list, some := strings.Cut(v, ":")
		if topic == "" || some && list == "" {
			f := usageError(fmt.Sprintf("%s %s names no topic and partitions", flag, v), flag+" orders:0,1   or "+flag+" orders   for all partitions")
			f.why = "it is TOPIC or TOPIC:PARTITIONS"
			return nil, f
		}
		if !some {
			out[topic] = nil
			continue
		}
		partitions, err := partitionList([]string{list})
		if err != nil {
			return nil, err
		}
		if had, ok := out[topic]; ok && had == nil {
			continue // all of them already
		}
		out[topic] = append(out[topic], partitions...)
	}
	return out, nil
}
