package main

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/transport/console"
)

func partitionsRecoverCommand() *cli.Command {
	return &cli.Command{
		Name: "unsafe-recover", Usage: "give partitions a leader again whose brokers are gone for good: what only those had is lost", ArgsUsage: "[TOPIC…]",
		Description: "For partitions without a leader of which no replica with every acknowledged record is left. The live replica that reaches furthest is elected.\n" +
			"The plan says how far that is and who is missing; bringing one of those back loses nothing, and is the better way. Each partition is logged by the controller.",
		Flags: []cli.Flag{
			adminFlag(), dryRunFlag(),
			&cli.StringSliceFlag{Name: "partitions", Aliases: []string{"p"}, Usage: "only these partitions, as 0,1,4-6"},
			&cli.BoolFlag{Name: "all", Usage: "of all topics"},
		},
		Action: runPartitionsRecover,
	}
}

// recoveredPartition is one partition of a recovery: the plan, and what became of it.
type recoveredPartition struct {
	console.RecoveryPlan
	Status string `json:"status" doc:"planned, recovered, safe (nothing has to be lost), lost (no replica lives), or failed"`
}

func runPartitionsRecover(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]recoveredPartition{}) {
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
	if (len(names) == 0) == !c.Bool("all") {
		f := usageError("which partitions?", c.Command.HelpName+" orders, or --all")
		f.why = "records may be lost, so it is either topics by name or --all"
		return f
	}
	a, err := e.openAdmin(c)
	if err != nil {
		return err
	}
	var plan []recoveredPartition
	for _, name := range append(names, map[bool][]string{true: {""}}[c.Bool("all")]...) {
		var found []console.RecoveryPlan
		if err := a.get(c.Context, "/v1/recovery?topic="+url.QueryEscape(name), &found); err != nil {
			return err
		}
		for _, p := range found {
			if only == nil || slices.Contains(only, p.Partition) {
				plan = append(plan, recoveredPartition{p, "planned"})
			}
		}
	}
	if len(plan) == 0 {
		e.hint("nothing to do: every partition has a leader")
		return e.emitRecovered(plan)
	}
	var orders console.RecoveryOrders
	var b batch
	for i := range plan {
		p := &plan[i]
		fmt.Fprintln(e.stderr, recoveryLine(p))
		switch {
		case p.Safe:
			p.Status = "safe"
		case p.Leader < 0:
			p.Status = "lost"
			b.fail(&failure{code: exitFailed, what: fmt.Sprintf("%s-%d cannot be recovered", p.Topic, p.Partition), why: "none of its replicas is on a broker that lives",
				fix: fmt.Sprintf("start one of its brokers, or   millrace topic delete %s   and create it anew", p.Topic)})
		default:
			orders.Partitions = append(orders.Partitions, console.RecoveryOrder{Topic: p.Topic, Partition: p.Partition, PartitionEpoch: p.PartitionEpoch, Leader: p.Leader})
		}
	}
	if c.Bool("dry-run") {
		e.hint("dry run: nothing was changed")
		return e.emitRecovered(plan)
	}
	if len(orders.Partitions) > 0 {
		if err := e.confirm(fmt.Sprintf("recover %s, and lose what the new leaders do not have?", counted(len(orders.Partitions), "partition"))); err != nil {
			return err
		}
		var became []console.Recovered
		if err := a.do(c.Context, "POST", "/v1/recovery", orders, &became); err != nil {
			return err
		}
		for _, r := range became {
			i := slices.IndexFunc(plan, func(p recoveredPartition) bool { return p.Topic == r.Topic && p.Partition == r.Partition })
			if i < 0 {
				continue
			}
			if r.What != "" {
				plan[i].Status = "failed"
				b.fail(&failure{code: exitFailed, what: r.What, why: r.Why, fix: r.Fix})
				continue
			}
			plan[i].Status, plan[i].Leader = "recovered", r.Leader
			b.done++
		}
	}
	if err := e.emitRecovered(plan); err != nil {
		return err
	}
	return b.finish(e)
}

// recoveryLine says of one partition what would be done, and what may be lost by it.
func recoveryLine(p *recoveredPartition) string {
	name := fmt.Sprintf("%s-%d: ", p.Topic, p.Partition)
	end := func(epoch int32, offset int64) string {
		switch {
		case offset < 0:
			return "reaches nobody knows how far"
		case epoch < 0:
			return fmt.Sprintf("ends at %d and is empty", offset)
		}
		return fmt.Sprintf("ends at %d (leader epoch %d)", offset, epoch)
	}
	switch {
	case p.Safe:
		return name + fmt.Sprintf("broker %d has every acknowledged record and is about to lead; nothing is lost", p.Leader)
	case p.Leader < 0:
		return name + "no replica is on a broker that lives"
	}
	line := name + fmt.Sprintf("broker %d would lead; its log %s", p.Leader, end(p.LeaderEpoch, p.Offset))
	if len(p.Missing) > 0 {
		line += "; acknowledged records after that are LOST if only " + brokersText(p.Missing) + " had them"
	} else {
		line += "; acknowledged records after that are LOST"
	}
	for _, o := range p.Others {
		line += fmt.Sprintf("; broker %d's %s, and is cut where they differ", o.Broker, end(o.LeaderEpoch, o.Offset))
	}
	return line
}

func brokersText(ids []int32) string {
	word := "broker "
	if len(ids) > 1 {
		word = "brokers "
	}
	return word + strings.ReplaceAll(joinInts(ids), ",", ", ")
}

func (e *env) emitRecovered(plan []recoveredPartition) error {
	if plan == nil {
		plan = []recoveredPartition{}
	}
	r := result{value: plan, cols: columns("TOPIC", "PARTITION#", "STATUS", "LEADER#", "LOG-END#", "MISSING")}
	for _, p := range plan {
		r.rows = append(r.rows, []any{p.Topic, p.Partition, p.Status, unknown(int64(p.Leader)), unknown(p.Offset), p.Missing})
	}
	return e.emit(r)
}
