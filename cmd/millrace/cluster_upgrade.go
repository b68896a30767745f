package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/transport/console"
)

func clusterUpgradeCommand() *cli.Command {
	return &cli.Command{
		Name:  "upgrade",
		Usage: "see how far brokers are with a new release, and turn on what it brings",
		Subcommands: []*cli.Command{
			{
				Name: "status", Usage: "show the version and feature level of each broker, and which to restart next", Flags: []cli.Flag{adminFlag()},
				Description: "Until finalize is given, a broker may go back to the older version.",
				Action:      runUpgradeStatus,
			},
			{
				Name: "finalize", Usage: "raise the cluster's feature level to what every broker knows", Flags: []cli.Flag{adminFlag(), dryRunFlag()},
				Description: "It cannot be taken back: from then on the metadata holds what the older version can't read.",
				Action:      runUpgradeFinalize,
			},
		},
	}
}

func runUpgradeStatus(c *cli.Context) error {
	_, u, err := adminAnswer[console.Upgrade](c, "/v1/upgrade")
	if err != nil || u == nil {
		return err
	}
	return envOf(c).emitUpgrade(u)
}

func (e *env) emitUpgrade(u *console.Upgrade) error {
	r := result{value: u, cols: columns("BROKER#", "STATUS", "VERSION", "FEATURE-LEVELS", "RESTART")}
	for _, b := range u.Brokers {
		status, restart := b.Status, ""
		if b.Controller {
			status += " *"
		}
		switch {
		case b.ID == u.Next && u.Safe:
			restart = "next, safe now"
		case b.ID == u.Next:
			restart = "next, not now"
		case !b.Newest:
			restart = "later"
		}
		r.rows = append(r.rows, []any{b.ID, status, b.Version, fmt.Sprintf("%d-%d", b.MinLevel, b.MaxLevel), restart})
	}
	if err := e.emit(r); err != nil {
		return err
	}
	for _, why := range u.Why {
		e.hint("broker %d should not be stopped now: %s", u.Next, why)
	}
	switch {
	case u.Next >= 0:
		e.hint("feature level %d; restart broker %d with version %s: millrace cluster maintenance enable %d --wait, restart it, millrace cluster maintenance disable %d", u.FeatureLevel, u.Next, u.Newest, u.Next, u.Next)
	case u.Final:
		e.hint("feature level %d; nothing is to be done", u.FeatureLevel)
	default:
		e.hint("feature level %d; all brokers know %d: millrace cluster upgrade finalize   turns on what it brings, and ends the way back", u.FeatureLevel, u.Possible)
	}
	return nil
}

func runUpgradeFinalize(c *cli.Context) error {
	e := envOf(c)
	a, u, err := adminAnswer[console.Upgrade](c, "/v1/upgrade")
	if err != nil || u == nil {
		return err
	}
	if u.Final {
		if u.Next >= 0 {
			return notUpgraded(u)
		}
		e.hint("feature level %d is the highest that the brokers know: nothing is to be done", u.FeatureLevel)
		return e.emitFinalized(u)
	}
	fmt.Fprintf(e.stderr, "the feature level goes from %d to %d; brokers of an older version can't join any more, and there is no way back\n", u.FeatureLevel, u.Possible)
	if c.Bool("dry-run") {
		e.hint("dry run: nothing was changed")
		return e.emitFinalized(u)
	}
	if err := e.confirm(fmt.Sprintf("finalize feature level %d?", u.Possible)); err != nil {
		return err
	}
	if err := a.do(c.Context, "POST", "/v1/upgrade", console.UpgradeOrder{Level: u.Possible}, u); err != nil {
		return err
	}
	return e.emitFinalized(u)
}

// notUpgraded says which brokers hold the level back.
func notUpgraded(u *console.Upgrade) *failure {
	var older []string
	for _, b := range u.Brokers {
		if !b.Newest {
			older = append(older, strconv.Itoa(int(b.ID)))
		}
	}
	verb := "runs"
	if len(older) > 1 {
		verb = "run"
	}
	return &failure{
		code: exitFailed, what: fmt.Sprintf("the feature level stays %d", u.FeatureLevel), why: fmt.Sprintf("%s %s %s an older version that knows no more", plural(len(older), "broker"), strings.Join(older, ", "), verb),
		fix: "millrace cluster upgrade status   says which to restart next",
	}
}

func plural(n int, what string) string {
	if n == 1 {
		return what
	}
	return what + "s"
}

func (e *env) emitFinalized(u *console.Upgrade) error {
	return e.emit(result{value: u, cols: columns("FEATURE-LEVEL#", "POSSIBLE-LEVEL#"), rows: [][]any{{u.FeatureLevel, u.Possible}}})
}
