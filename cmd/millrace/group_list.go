package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

type listedGroup struct {
	Group        string `json:"group" doc:"name"`
	State        string `json:"state" doc:"Empty, PreparingRebalance, CompletingRebalance, Stable; Assigning or Reconciling"`
	Type         string `json:"type" doc:"classic or consumer: the protocol its members speak"`
	ProtocolType string `json:"protocol_type" doc:"consumer, connect, or what the members call it"`
	Coordinator  int32  `json:"coordinator" doc:"id of the broker that coordinates it"`
}

func groupListCommand() *cli.Command {
	return &cli.Command{
		Name:    "list",
		Aliases: []string{"ls"},
		Usage:   "list the groups",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "state", Aliases: []string{"s", "states"}, Usage: "only groups in this `STATE`: Stable, Empty, PreparingRebalance, … (repeatable)"},
			&cli.StringSliceFlag{Name: "type", Usage: "only groups of this `TYPE`: classic, consumer"},
		},
		Action: runGroupList,
	}
}

func runGroupList(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]listedGroup{}) {
		return nil
	}
	if err := noArguments(c); err != nil {
		return err
	}
	states, types := commaWords(c.StringSlice("state")), commaWords(c.StringSlice("type"))
	for _, t := range types {
		if !slices.Contains([]string{"classic", "consumer", "share"}, t) {
			f := usageError(fmt.Sprintf("--type %s is no type of groups", t), "--type classic   or   --type consumer")
			f.why = "groups are classic, consumer or share"
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
	listed, err := conn.adm.ListGroupsByType(ctx, types, states...)
	if err != nil {
		if len(listed) == 0 {
			return conn.fail("ask for groups", firstShardError(err))
		}
		b.fail(itemFailure("ask all brokers for their groups", firstShardError(err), nil))
	}
	r := result{cols: columns("GROUP", "STATE", "TYPE", "PROTOCOL-TYPE", "COORDINATOR#")}
	var out []listedGroup
	for _, g := range listed.Sorted() {
		b.done++
		out = append(out, listedGroup{g.Group, g.State, g.GroupType, g.ProtocolType, g.Coordinator})
		r.rows = append(r.rows, []any{g.Group, g.State, g.GroupType, g.ProtocolType, g.Coordinator})
	}
	r.value = out
	if err := e.emit(r); err != nil {
		return err
	}
	if len(out) == 0 && len(states)+len(types) == 0 && len(b.failures) == 0 {
		e.hint("no groups yet; millrace topic consume TOPIC -g NAME joins one")
	}
	return b.finish(e)
}

// commaWords takes values of the form A,B apart.
func commaWords(values []string) (out []string) {
	for _, v := range values {
		for w := range strings.SplitSeq(v, ",") {
			if w = strings.TrimSpace(w); w != "" {
				out = append(out, w)
			}
		}
	}
	return out
}
