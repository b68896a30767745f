package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

func groupDescribeCommand() *cli.Command {
	return &cli.Command{
		Name:      "describe",
		Aliases:   []string{"info"},
		Usage:     "show the members, offsets and lag of groups",
		ArgsUsage: "NAME…",
		Description: "LAG counts records that wait to be read; LAG-TIME is the age of the first batch that waits, as its header has it.\n" +
			"Without -s, -c, -t and --members: the summary and the partitions.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "summary", Aliases: []string{"s"}, Usage: "one line for each group"},
			&cli.BoolFlag{Name: "commits", Aliases: []string{"c"}, Usage: "the partitions"},
			&cli.BoolFlag{Name: "topics", Aliases: []string{"t"}, Usage: "totals for each topic"},
			&cli.BoolFlag{Name: "members", Usage: "the members, and what each is to read"},
			&cli.BoolFlag{Name: "regex", Aliases: []string{"r"}, Usage: "the names are regular expressions, for whole names"},
		},
		Action: runGroupDescribe,
	}
}

func runGroupDescribe(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]groupLag{}) {
		return nil
	}
	names, err := groupArguments(c, 1)
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
	if names, err = conn.groupNames(ctx, names, c.Bool("regex"), &b); err != nil {
		return err
	}
	states, err := conn.groupStates(ctx, names, &b)
	if err != nil {
		return err
	}
	groups, err := conn.groupLags(ctx, states, &b)
	if err != nil {
		return err
	}
	b.done += len(groups)
	parts := groupParts{c.Bool("summary"), c.Bool("commits"), c.Bool("topics"), c.Bool("members")}
	if parts == (groupParts{}) {
		parts.summary, parts.commits = true, true
	}
	err = e.emit(result{value: groups, text: func(w io.Writer, wide bool) {
		for i, g := range groups {
			if i > 0 {
				fmt.Fprintln(w)
			}
			e.writeGroup(w, g, parts, wide)
		}
	}})
	if err != nil {
		return err
	}
	return b.finish(e)
}

// groupParts says what describe prints.
type groupParts struct{ summary, commits, topics, members bool }

func (e *env) writeGroup(w io.Writer, g *groupLag, parts groupParts, wide bool) {
	if parts.summary {
		protocol := g.Type
		if g.Protocol != "" {
			protocol += "/" + g.Protocol
		}
		fmt.Fprintf(w, "GROUP %s   STATE %s   COORDINATOR %v   PROTOCOL %s   MEMBERS %d   TOTAL-LAG %s\n",
			g.Group, g.State, unknown(int64(g.Coordinator)), protocol, len(g.Members), lagText(g.TotalLag, g.MaxLagMS))
	}
	width := e.stdoutWidth()
	if parts.topics {
		type total struct{ partitions, lag, millis int64 }
		totals, order := map[string]*total{}, []string{}
		for i := range g.Partitions {
			p := &g.Partitions[i]
			t := totals[p.Topic]
			if t == nil {
				t = &total{}
				totals[p.Topic], order = t, append(order, p.Topic)
			}
			t.partitions++
			if p.Lag != nil {
				t.lag += *p.Lag
			}
			if p.LagMS != nil {
				t.millis = max(t.millis, *p.LagMS)
			}
		}
		var rows [][]any
		for _, topic := range order {
			t := totals[topic]
			rows = append(rows, []any{topic, t.partitions, t.lag, ageText(time.Duration(t.millis) * time.Millisecond)})
		}
		writeTable(w, columns("TOPIC", "PARTITIONS#", "LAG#", "LAG-TIME#"), rows, wide, width)
	}
	if parts.members {
		var rows [][]any
		for i := range g.Members {
			m := &g.Members[i]
			var assigned []string
			for _, a := range m.Partitions {
				assigned = append(assigned, a.Topic+":"+joinInts(a.Partitions))
			}
			rows = append(rows, []any{m.ID, m.Instance, m.ClientID, m.Host, len(m.assigned), strings.Join(assigned, " "), strings.Join(m.Topics, ",")})
		}
		writeTable(w, columns("MEMBER-ID", "INSTANCE-ID", "CLIENT-ID", "HOST", "PARTITIONS#", "ASSIGNED", "+TOPICS"), rows, wide, width)
	}
	if parts.commits && len(g.Partitions) > 0 {
		failed := false
		for i := range g.Partitions {
			failed = failed || g.Partitions[i].Error != ""
		}
		cols := columns("TOPIC", "PARTITION#", "CURRENT-OFFSET#", "LOG-START-OFFSET#", "LOG-END-OFFSET#", "LAG#", "LAG-TIME#", "+RETENTION-LEFT#", "+LOST#", "MEMBER-ID", "CLIENT-ID", "HOST", "+INSTANCE-ID")
		if failed {
			cols = append(cols, column{name: "ERROR"})
		}
		var rows [][]any
		for i := range g.Partitions {
			p := &g.Partitions[i]
			row := []any{p.Topic, p.Partition, offsetCell(p.Current), offsetCell(p.LogStart), offsetCell(p.LogEnd), offsetCell(p.Lag), millisCell(p.LagMS),
				retentionCell(p.RetentionMS, p.RetentionBy), p.Lost, p.Member, p.ClientID, p.Host, p.Instance}
			if failed {
				row = append(row, p.Error)
			}
			rows = append(rows, row)
		}
		writeTable(w, cols, rows, wide, width)
	}
}
