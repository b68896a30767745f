package main

import (
	"fmt"
	"io"
	"net/url"

	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/transport/console"
)

func groupDiagnoseCommand() *cli.Command {
	return &cli.Command{
		Name:        "diagnose",
		Usage:       "say why a group does not get on, and what to type",
		ArgsUsage:   "NAME",
		Description: "The group's coordinator answers, which alone knows what has happened. The exit code is 5 when something is wrong.",
		Flags:       []cli.Flag{adminFlag()},
		Action:      runGroupDiagnose,
	}
}

func runGroupDiagnose(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields(console.GroupDiagnosis{}) {
		return nil
	}
	name, err := oneGroup(c)
	if err != nil {
		return err
	}
	a, err := e.openAdmin(c)
	if err != nil {
		return err
	}
	var d console.GroupDiagnosis
	if err := a.get(c.Context, "/v1/groups/"+url.PathEscape(name)+"/diagnosis", &d); err != nil {
		return err
	}
	err = e.emit(result{value: d, text: func(w io.Writer, _ bool) {
		for _, f := range d.Findings {
			fmt.Fprintf(w, "✘ %s\n", f.What)
			if f.Why != "" {
				fmt.Fprintf(w, "  cause: %s\n", f.Why)
			}
			if f.Fix != "" {
				fmt.Fprintf(w, "  fix:   %s\n", f.Fix)
			}
		}
		for _, well := range d.Passed {
			fmt.Fprintf(w, "✔ %s\n", well)
		}
	}})
	if err != nil {
		return err
	}
	if !d.Well {
		return silent(exitCondition)
	}
	return nil
}
