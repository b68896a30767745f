package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/transport/console"
)

func clusterMaintenanceCommand() *cli.Command {
	return &cli.Command{
		Name:  "maintenance",
		Usage: "take the leaderships off a broker before it is restarted, and give them back",
		Subcommands: []*cli.Command{
			{
				Name: "enable", Usage: "hand over what a broker leads; its replicas stay", ArgsUsage: "ID",
				Flags:  []cli.Flag{adminFlag(), dryRunFlag(), waitFlag("wait until it leads nothing that another could; --timeout bounds it")},
				Action: func(c *cli.Context) error { return runMaintenance(c, "PUT") },
			},
			{Name: "disable", Usage: "end maintenance", ArgsUsage: "ID", Flags: []cli.Flag{adminFlag()}, Action: func(c *cli.Context) error { return runMaintenance(c, "DELETE") }},
			{
				Name: "status", Usage: "show how far maintenance is; without an id, of every broker", ArgsUsage: "[ID]",
				Flags:  []cli.Flag{adminFlag(), waitFlag("wait until it leads nothing that another could; --timeout bounds it")},
				Action: runMaintenanceStatus,
			},
		},
	}
}

func maintenancePath(id int32) string { return fmt.Sprintf("/v1/brokers/%d/maintenance", id) }

func runMaintenance(c *cli.Context, method string) error {
	e := envOf(c)
	if e.wantsFields([]console.Maintenance{}) {
		return nil
	}
	id, err := brokerArgument(c)
	if err != nil {
		return err
	}
	a, err := e.openAdmin(c)
	if err != nil {
		return err
	}
	var m console.Maintenance
	if c.Bool("dry-run") {
		if err := a.get(c.Context, maintenancePath(id), &m); err != nil {
			return err
		}
		fmt.Fprintf(e.stderr, "broker %d leads %s; %d go to other replicas in sync, %d have none; its replicas stay\n", id, counted(m.Leaders, "partition"), m.Leaders-m.Stuck, m.Stuck)
		e.hint("dry run: nothing was changed")
		return e.emitMaintenance([]console.Maintenance{m})
	}
	if err := a.do(c.Context, method, maintenancePath(id), nil, &m); err != nil {
		return err
	}
	if method == "PUT" {
		if !c.Bool("wait") {
			e.hint("to watch it: millrace cluster maintenance status %d --wait", id)
			return e.emitMaintenance([]console.Maintenance{m})
		}
		return e.waitMaintenance(c, a, &m)
	}
	return e.emitMaintenance([]console.Maintenance{m})
}

// waitMaintenance waits until the broker leads nothing that another could.
func (e *env) waitMaintenance(c *cli.Context, a *admin, m *console.Maintenance) error {
	ctx, cancel := e.waitContext(c)
	defer cancel()
	bar := e.newProgress(fmt.Sprintf("broker %d", m.Broker), int64(m.Leaders-m.Stuck))
	left := m.Leaders
	err := poll(ctx, waitInterval, func(ctx context.Context) (bool, error) {
		if err := a.get(ctx, maintenancePath(m.Broker), m); err != nil {
			return false, err
		}
		bar.add(int64(left - m.Leaders))
		left = m.Leaders
		if !m.Enabled {
			return false, &failure{code: exitFailed, what: fmt.Sprintf("maintenance of broker %d is off", m.Broker), why: "somebody ended it, or it was never begun", fix: fmt.Sprintf("millrace cluster maintenance enable %d --wait", m.Broker)}
		}
		return m.Done, nil
	})
	bar.finish()
	if err != nil {
		return e.waitFailure(err, fmt.Sprintf("broker %d has not handed over what it leads", m.Broker), fmt.Sprintf("it still leads %s", counted(m.Leaders, "partition")),
			"millrace cluster health   shows what keeps the others from leading")
	}
	if m.Stuck > 0 {
		e.hint("broker %d still leads %s that no other replica can lead now: they stop with it", m.Broker, counted(m.Stuck, "partition"))
	}
	return e.emitMaintenance([]console.Maintenance{*m})
}

func runMaintenanceStatus(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]console.Maintenance{}) {
		return nil
	}
	a, err := e.openAdmin(c)
	if err != nil {
		return err
	}
	if c.Args().Present() {
		id, err := brokerArgument(c)
		if err != nil {
			return err
		}
		var m console.Maintenance
		if err := a.get(c.Context, maintenancePath(id), &m); err != nil {
			return err
		}
		if c.Bool("wait") {
			return e.waitMaintenance(c, a, &m)
		}
		return e.emitMaintenance([]console.Maintenance{m})
	}
	if c.Bool("wait") {
		f := usageError("--wait needs the id of a broker", c.Command.HelpName+" 2 --wait")
		f.why = "without one the status of every broker is shown once"
		return f
	}
	var brokers []console.BrokerInfo
	if err := a.get(c.Context, "/v1/brokers", &brokers); err != nil {
		return err
	}
	out := []console.Maintenance{}
	for _, b := range brokers {
		var m console.Maintenance
		if err := a.get(c.Context, maintenancePath(b.ID), &m); err != nil {
			return err
		}
		out = append(out, m)
	}
	return e.emitMaintenance(out)
}

func (e *env) emitMaintenance(all []console.Maintenance) error {
	r := result{value: all, cols: columns("BROKER#", "MAINTENANCE", "LEADERS#", "STUCK#")}
	for _, m := range all {
		state := "off"
		switch {
		case m.Done:
			state = "done"
		case m.Enabled:
			state = "handing over"
		}
		r.rows = append(r.rows, []any{m.Broker, state, m.Leaders, m.Stuck})
	}
	return e.emit(r)
}
