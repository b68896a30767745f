package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

// lagLine is the lag of one group.
type lagLine struct {
	Group       string `json:"group" doc:"name"`
	State       string `json:"state" doc:"Empty, PreparingRebalance, CompletingRebalance, Stable; Assigning or Reconciling"`
	Members     int    `json:"members" doc:"how many there are"`
	Lag         int64  `json:"lag" doc:"records that wait to be read, over all partitions with an offset"`
	LagMS       int64  `json:"lag_ms" doc:"age of the oldest record that waits, in milliseconds; 0 when none does"`
	RetentionMS *int64 `json:"retention_left_ms" doc:"until retention may delete what waits, in milliseconds; null when it will not, or when is not known"`
	RetentionBy string `json:"retention_by" doc:"time, or size: by retention.bytes, if the log goes on growing as in the last ten minutes, about; empty for neither"`
	Lost        int64  `json:"lost" doc:"records that were deleted before they were read"`
	Worst       string `json:"worst" doc:"the partition that is farthest behind in time, TOPIC-PARTITION; empty for none"`
}

func groupLagCommand() *cli.Command {
	return &cli.Command{
		Name:      "lag",
		Usage:     "show how far groups are behind, in records and in time, also those without members",
		ArgsUsage: "[NAME…]",
		Description: "LAG-TIME is the age of the first batch that waits. RETENTION-LEFT says how long the records that wait are safe from retention:\n" +
			"by time, or with ≈ by size, if the log goes on growing as in the last ten minutes. --fail-if-lag-over ends with code 5 when a group is farther behind: 10000 records, or 5m.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "print again every two seconds"},
			&cli.StringFlag{Name: "sort", Value: "name", Usage: "by `KEY`: name, lag, lag-time, retention"},
			&cli.StringSliceFlag{Name: "fail-if-lag-over", Usage: "`RECORDS` or a time such as 5m (repeatable)"},
			&cli.BoolFlag{Name: "regex", Aliases: []string{"r"}, Usage: "the names are regular expressions, for whole names"},
		},
		Action: runGroupLag,
	}
}

// lagLimit is what --fail-if-lag-over allows.
type lagLimit struct {
	records int64
	time    time.Duration // instead of records, when above 0
	text    string
}

func lagLimits(values []string) ([]lagLimit, error) {
	var out []lagLimit
	for _, v := range values {
		l := lagLimit{text: v}
		n, err := strconv.ParseInt(v, 10, 64)
		switch {
		case err == nil && n >= 0:
			l.records = n
		default:
			if l.time, err = parseAge(v); err != nil || l.time <= 0 {
				f := usageError(fmt.Sprintf("--fail-if-lag-over %s is no limit", v), "--fail-if-lag-over 10000   (records) or   --fail-if-lag-over 5m")
				f.why = "it is a number of records, or a time"
				return nil, f
			}
		}
		out = append(out, l)
	}
	return out, nil
}

// parseAge reads a duration as Go writes it, and days: 5m, 1h30m, 2d.
func parseAge(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return 0, err
		}
		return time.Duration(n) * 24 * time.Hour, nil
	}
	return time.ParseDuration(s)
}

// lagWatchInterval is how often --watch looks.
const lagWatchInterval = 2 * time.Second

func runGroupLag(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]lagLine{}) {
		return nil
	}
	names, err := groupArguments(c, 0)
	if err != nil {
		return err
	}
	limits, err := lagLimits(c.StringSlice("fail-if-lag-over"))
	if err != nil {
		return err
	}
	by := c.String("sort")
	if !slices.Contains([]string{"name", "lag", "lag-time", "retention"}, by) {
		f := usageError(fmt.Sprintf("--sort %s is no order", by), "--sort lag-time")
		f.why = "groups are sorted by name, lag, lag-time or retention"
		return f
	}
	ctx, cancel := e.ctx(c)
	conn, err := e.connect(ctx)
	cancel()
	if err != nil {
		return err
	}
	defer conn.Close()
	once := func() error {
		ctx, cancel := e.ctx(c)
		defer cancel()
		var b batch
		lines, err := conn.lagLines(ctx, names, c.Bool("regex"), by, &b)
		if err != nil {
			return err
		}
		if err := e.emit(lagResult(lines)); err != nil {
			return err
		}
		if len(lines) == 0 && len(names) == 0 && len(b.failures) == 0 {
			e.hint("no groups yet; millrace topic consume TOPIC -g NAME joins one")
		}
		if err := b.finish(e); err != nil {
			return err
		}
		return lagVerdict(lines, limits)
	}
	if !c.Bool("watch") {
		return once()
	}
	ticker := time.NewTicker(lagWatchInterval)
	defer ticker.Stop()
	for {
		if err := once(); err != nil {
			return err
		}
		select {
		case <-ticker.C:
			fmt.Fprintln(e.stdout)
		case <-c.Context.Done():
			return c.Context.Err()
		}
	}
}

func (c *connection) lagLines(ctx context.Context, names []string, regex bool, by string, b *batch) ([]lagLine, error) {
	names, err := c.groupNames(ctx, names, regex, b)
	if err != nil {
		return nil, err
	}
	states, err := c.groupStates(ctx, names, b)
	if err != nil {
		return nil, err
	}
	groups, err := c.groupLags(ctx, states, b)
	if err != nil {
		return nil, err
	}
	lines := make([]lagLine, 0, len(groups))
	for _, g := range groups {
		b.done++
		l := lagLine{Group: g.Group, State: g.State, Members: len(g.Members), Lag: g.TotalLag, LagMS: g.MaxLagMS}
		for i := range g.Partitions {
			p := &g.Partitions[i]
			l.Lost += p.Lost
			if p.LagMS != nil && *p.LagMS == g.MaxLagMS && g.MaxLagMS > 0 {
				l.Worst = fmt.Sprintf("%s-%d", p.Topic, p.Partition)
			}
			if p.RetentionMS != nil && (l.RetentionMS == nil || *p.RetentionMS < *l.RetentionMS) {
				l.RetentionMS, l.RetentionBy = p.RetentionMS, p.RetentionBy
			}
		}
		lines = append(lines, l)
	}
	slices.SortFunc(lines, func(a, b lagLine) int {
		order := 0
		switch by {
		case "lag":
			order = cmp.Compare(b.Lag, a.Lag)
		case "lag-time":
			order = cmp.Compare(b.LagMS, a.LagMS)
		case "retention":
			order = cmp.Compare(retentionOrder(a), retentionOrder(b))
		}
		return cmp.Or(order, cmp.Compare(a.Group, b.Group))
	})
	return lines, nil
}

func retentionOrder(l lagLine) int64 {
	if l.RetentionMS == nil {
		return 1<<63 - 1
	}
	return *l.RetentionMS
}

func lagResult(lines []lagLine) result {
	r := result{value: lines, cols: columns("GROUP", "STATE", "MEMBERS#", "LAG#", "LAG-TIME#", "RETENTION-LEFT#", "+LOST#", "WORST")}
	for _, l := range lines {
		r.rows = append(r.rows, []any{l.Group, l.State, l.Members, l.Lag, ageText(time.Duration(l.LagMS) * time.Millisecond), retentionCell(l.RetentionMS, l.RetentionBy), l.Lost, l.Worst})
	}
	return r
}

// lagVerdict is the failure of the groups that are too far behind.
func lagVerdict(lines []lagLine, limits []lagLimit) error {
	for _, limit := range limits {
		for _, l := range lines {
			over := limit.time == 0 && l.Lag > limit.records || limit.time > 0 && time.Duration(l.LagMS)*time.Millisecond > limit.time
			if over {
				return &failure{code: exitCondition, what: fmt.Sprintf("group %s is more than %s behind", l.Group, limit.text),
					why: lagText(l.Lag, l.LagMS) + " records wait to be read", fix: "millrace group diagnose " + l.Group}
			}
		}
	}
	return nil
}
