package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/transport/console"
)

func clusterPartitionsCommand() *cli.Command {
	return &cli.Command{
		Name:  "partitions",
		Usage: "list partitions and what is wrong with them, move replicas, elect leaders",
		Subcommands: []*cli.Command{
			{
				Name: "list", Aliases: []string{"ls"}, Usage: "list partitions; those of the topics named, else of all", ArgsUsage: "[TOPIC…]",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "state", Usage: "only those that are offline, under-replicated, or unwell: either"},
					brokerFlag("only those with a replica on this broker `ID`"),
					&cli.BoolFlag{Name: "why", Usage: "say of each that is not well why, and what mends it (asks the admin API)"},
					adminFlag(),
				},
				Action: runPartitionsList,
			},
			partitionsMoveCommand(), partitionsMoveStatusCommand(), partitionsMoveCancelCommand(),
			{
				Name: "elect-leader", Usage: "give partitions back to their preferred leaders; with --unclean, take any replica for those without a leader", ArgsUsage: "[TOPIC…]",
				Flags: []cli.Flag{
					&cli.StringSliceFlag{Name: "partitions", Aliases: []string{"p"}, Usage: "only these partitions, as 0,1,4-6"},
					&cli.BoolFlag{Name: "all", Usage: "of all topics"},
					&cli.BoolFlag{Name: "unclean", Usage: "of partitions without a leader take the most complete replica that is there: what it does not have is lost"},
					dryRunFlag(),
				},
				Action: runPartitionsElect,
			},
			partitionsRecoverCommand(),
		},
	}
}

// listedPartition is one partition by what the Kafka protocol says.
type listedPartition struct {
	Topic     string            `json:"topic" doc:"topic"`
	Partition int32             `json:"partition" doc:"partition"`
	Leader    int32             `json:"leader" doc:"broker id; -1 is none"`
	Epoch     int32             `json:"leader_epoch" doc:"grows with every change of leader"`
	Replicas  []int32           `json:"replicas" doc:"the first is the preferred leader"`
	ISR       []int32           `json:"isr" doc:"replicas in sync"`
	Offline   []int32           `json:"offline_replicas" doc:"replicas whose broker or disk is not there"`
	Status    string            `json:"status" doc:"OK, UNDER-REPLICATED or OFFLINE"`
	Findings  []console.Finding `json:"findings,omitempty" doc:"with --why: what is wrong and what mends it"`
}

const (
	partitionOK      = "OK"
	partitionUnder   = "UNDER-REPLICATED"
	partitionOffline = "OFFLINE"
)

func listPartition(p *kadm.PartitionDetail) listedPartition {
	l := listedPartition{Topic: p.Topic, Partition: p.Partition, Leader: p.Leader, Epoch: p.LeaderEpoch, Replicas: p.Replicas, ISR: p.ISR, Offline: p.OfflineReplicas, Status: partitionOK}
	if l.Offline == nil {
		l.Offline = []int32{}
	}
	switch {
	case p.Leader < 0:
		l.Status = partitionOffline
	case len(p.ISR) < len(p.Replicas):
		l.Status = partitionUnder
	}
	return l
}

func runPartitionsList(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]listedPartition{}) {
		return nil
	}
	names, err := topicArguments(c, 0)
	if err != nil {
		return err
	}
	keep, ok := map[string][]string{"": nil, "offline": {partitionOffline}, "under-replicated": {partitionUnder}, "unwell": {partitionOffline, partitionUnder}}[c.String("state")]
	if !ok {
		f := usageError(fmt.Sprintf("unknown state %q", c.String("state")), "--state unwell")
		f.why = "it is one of offline, under-replicated, unwell"
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
	out := []listedPartition{}
	for _, t := range topics {
		b.done++
		for _, p := range t.Partitions.Sorted() {
			l := listPartition(&p)
			if keep != nil && !slices.Contains(keep, l.Status) || c.Int("broker") >= 0 && !slices.Contains(p.Replicas, int32(c.Int("broker"))) {
				continue
			}
			out = append(out, l)
		}
	}
	if c.Bool("why") {
		if err := e.explainPartitions(c, out); err != nil {
			return err
		}
	}
	r := result{value: out, text: func(w io.Writer, wide bool) {
		var rows [][]any
		for _, l := range out {
			rows = append(rows, []any{l.Topic, l.Partition, unknown(int64(l.Leader)), l.Replicas, l.ISR, l.Offline, l.Status, l.Epoch})
		}
		writeTable(w, columns("TOPIC", "PARTITION#", "LEADER#", "REPLICAS", "ISR", "OFFLINE", "STATUS", "+EPOCH#"), rows, wide, e.stdoutWidth())
		for _, l := range out {
			for _, f := range l.Findings {
				fmt.Fprintf(w, "\n✘ %s\n  why:  %s\n  fix:  %s\n", f.What, f.Why, f.Fix)
			}
		}
	}}
	if err := e.emit(r); err != nil {
		return err
	}
	return b.finish(e)
}

// explainPartitions asks the admin API about those that are not well; 100 at most, since each is a question.
func (e *env) explainPartitions(c *cli.Context, partitions []listedPartition) error {
	const most = 100
	a, err := e.openAdmin(c)
	if err != nil {
		return err
	}
	asked := 0
	for i := range partitions {
		l := &partitions[i]
		if l.Status == partitionOK {
			continue
		}
		if asked++; asked > most {
			e.hint("only the first %d are explained", most)
			return nil
		}
		var d console.Diagnosis
		if err := a.get(c.Context, fmt.Sprintf("/v1/partitions/%s/%d/diagnosis", l.Topic, l.Partition), &d); err != nil {
			return err
		}
		l.Findings = d.Findings
	}
	return nil
}

// electedPartition is what became of one election.
type electedPartition struct {
	Topic     string `json:"topic" doc:"topic"`
	Partition int32  `json:"partition" doc:"partition"`
	Status    string `json:"status" doc:"OK, ELECTION_NOT_NEEDED, or the name of the error"`
	Leader    int32  `json:"leader" doc:"leader afterwards; -1 is none"`
}

func runPartitionsElect(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]electedPartition{}) {
		return nil
	}
	names, err := topicArguments(c, 0)
	if err != nil {
		return err
	}
	only, err := partitionList(c.StringSlice("partitions"))
	if err != nil {
		return err
	}
	switch {
	case len(names) == 0 && !c.Bool("all"):
		f := usageError("no topic was named", c.Command.HelpName+" orders, or --all")
		f.why = "the command needs to know of which partitions"
		return f
	case len(names) > 0 && c.Bool("all"):
		f := usageError("topics and --all do not go together", "leave one of them out")
		f.why = "--all is every topic"
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
	chosen, err := electionsOf(topics, only, c.Bool("unclean"))
	if err != nil {
		return err
	}
	if len(chosen) == 0 {
		if len(b.failures) == 0 {
			what := "every partition has its preferred leader"
			if c.Bool("unclean") {
				what = "every partition has a leader"
			}
			e.hint("nothing to do: %s", what)
			if err := e.emitElected(nil); err != nil {
				return err
			}
		}
		return b.finish(e)
	}
	how, verb := kadm.ElectPreferredReplica, "give back to the preferred leader"
	if c.Bool("unclean") {
		how, verb = kadm.ElectLiveReplica, "elect the most complete replica that is there; records that only the others have are LOST"
	}
	for _, p := range chosen {
		fmt.Fprintf(e.stderr, "%s-%d (leader %v, replicas %s, in sync %s): %s\n", p.Topic, p.Partition, cell(unknown(int64(p.Leader))), joinInts(p.Replicas), joinInts(p.ISR), verb)
	}
	if c.Bool("dry-run") {
		e.hint("dry run: nothing was changed")
		return b.finish(e)
	}
	if c.Bool("unclean") {
		if err := e.confirm(fmt.Sprintf("elect leaders of %s, and lose what they do not have?", counted(len(chosen), "partition"))); err != nil {
			return err
		}
	}
	set := kadm.TopicsSet{}
	for _, p := range chosen {
		set.Add(p.Topic, p.Partition)
	}
	answers, err := conn.adm.ElectLeaders(ctx, how, set)
	if err != nil {
		return conn.fail("elect leaders", err)
	}
	return e.reportElections(ctx, conn, chosen, c.Bool("unclean"), answers, &b)
}

// electionsOf are the partitions where there is something to elect.
func electionsOf(topics []kadm.TopicDetail, only []int32, unclean bool) ([]kadm.PartitionDetail, error) {
	var chosen []kadm.PartitionDetail
	for _, t := range topics {
		for _, n := range only {
			if _, ok := t.Partitions[n]; !ok {
				f := usageError(fmt.Sprintf("topic %s has no partition %d", t.Topic, n), "millrace topic describe "+t.Topic+" -p")
				f.why = fmt.Sprintf("it has %s, numbered from 0", counted(len(t.Partitions), "partition"))
				return nil, f
			}
		}
		for _, p := range t.Partitions.Sorted() {
			if only != nil && !slices.Contains(only, p.Partition) {
				continue
			}
			if unclean && p.Leader < 0 || !unclean && len(p.Replicas) > 0 && p.Leader != p.Replicas[0] {
				chosen = append(chosen, p)
			}
		}
	}
	return chosen, nil
}

// reportElections prints what became of each election, with the leaders as they are afterwards.
func (e *env) reportElections(ctx context.Context, conn *connection, chosen []kadm.PartitionDetail, unclean bool, answers kadm.ElectLeadersResults, b *batch) error {
	var names []string
	for _, p := range chosen {
		names = append(names, p.Topic)
	}
	slices.Sort(names)
	now, err := conn.adm.Metadata(ctx, slices.Compact(names)...)
	if err != nil {
		return conn.fail("ask for the leaders", err)
	}
	var out []electedPartition
	for _, p := range chosen {
		a, ok := answers[p.Topic][p.Partition]
		if !ok {
			a.Err = kerr.UnknownServerError
		}
		row := electedPartition{p.Topic, p.Partition, status(a.Err), -1}
		if t, ok := now.Topics[p.Topic]; ok {
			if q, ok := t.Partitions[p.Partition]; ok {
				row.Leader = q.Leader
			}
		}
		if a.Err == nil && !unclean {
			row.Leader = p.Replicas[0] // whoever was asked for the metadata may not have heard of it yet
		}
		out = append(out, row)
		if a.Err == nil || a.Err == kerr.ElectionNotNeeded {
			b.done++
			continue
		}
		f := itemFailure(fmt.Sprintf("elect a leader of %s-%d", p.Topic, p.Partition), a.Err, &a.ErrMessage)
		if strings.HasPrefix(f.fix, "millrace cluster health") {
			f.fix = fmt.Sprintf("millrace cluster partitions list %s --state unwell --why   says what keeps it from being led", p.Topic)
		}
		b.fail(f)
	}
	if err := e.emitElected(out); err != nil {
		return err
	}
	return b.finish(e)
}

func (e *env) emitElected(out []electedPartition) error {
	r := result{value: out, cols: columns("TOPIC", "PARTITION#", "STATUS", "LEADER#")}
	for _, p := range out {
		r.rows = append(r.rows, []any{p.Topic, p.Partition, p.Status, unknown(int64(p.Leader))})
	}
	return e.emit(r)
}
