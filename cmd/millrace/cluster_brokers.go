package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/transport/console"
)

func clusterBrokersCommand() *cli.Command {
	return &cli.Command{
		Name:  "brokers",
		Usage: "list brokers, look at one, take one out of the cluster",
		Subcommands: []*cli.Command{
			{Name: "list", Aliases: []string{"ls"}, Usage: "list the brokers", Flags: []cli.Flag{adminFlag()}, Action: runClusterBrokersList},
			{Name: "describe", Aliases: []string{"info"}, Usage: "show one broker", ArgsUsage: "ID", Flags: []cli.Flag{adminFlag()}, Action: runClusterBrokersDescribe},
			clusterDecommissionCommand(),
			{
				Name: "recommission", Usage: "take a decommission back", ArgsUsage: "ID", Flags: []cli.Flag{adminFlag()},
				Description: "The broker gets replicas again. What has been moved away is not moved back by this; millrace cluster rebalance run does.",
				Action:      runClusterRecommission,
			},
		},
	}
}

func clusterMembersCommand() *cli.Command {
	return &cli.Command{
		Name: "members", Usage: "list the brokers with their addresses and versions", Flags: []cli.Flag{adminFlag()}, Action: runClusterMembers,
	}
}

// listedBroker is one broker, by what the Kafka protocol says and, where it answers, by the admin API.
type listedBroker struct {
	ID         int32  `json:"id" doc:"broker id"`
	Host       string `json:"host" doc:"where clients connect"`
	Port       int32  `json:"port" doc:"and its port"`
	Rack       string `json:"rack" doc:"empty when it has none"`
	Status     string `json:"status" doc:"running, fenced; with the admin API also stopping, maintenance, decommissioning"`
	Controller bool   `json:"controller" doc:"whether it is the controller"`
	Leaders    int    `json:"leaders" doc:"partitions it leads"`
	Replicas   int    `json:"replicas" doc:"partitions it has"`
	OutOfSync  int    `json:"out_of_sync" doc:"partitions it has and is not in sync with"`
	Version    string `json:"version" doc:"software version; empty without the admin API"`
	Peer       string `json:"peer_address" doc:"where other brokers connect; empty without the admin API"`
}

// listBrokers asks for the brokers. What only the admin API knows is left empty when that does not answer.
func (e *env) listBrokers(c *cli.Context) ([]listedBroker, error) {
	ctx, cancel := e.ctx(c)
	defer cancel()
	conn, err := e.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	out, controller, err := conn.registeredBrokers(ctx)
	if err != nil {
		return nil, err
	}
	m, err := conn.adm.Metadata(ctx)
	if err != nil {
		return nil, conn.fail("ask for the partitions", err)
	}
	index := map[int32]int{}
	for i := range out {
		index[out[i].ID] = i
		out[i].Controller = out[i].ID == controller
	}
	for _, t := range m.Topics {
		for _, p := range t.Partitions {
			if i, ok := index[p.Leader]; ok {
				out[i].Leaders++
			}
			for _, r := range p.Replicas {
				if i, ok := index[r]; ok {
					out[i].Replicas++
					if !slices.Contains(p.ISR, r) {
						out[i].OutOfSync++
					}
				}
			}
		}
	}
	a, err := e.openAdmin(c)
	if err != nil {
		return nil, err
	}
	var known []console.BrokerInfo
	quick, stop := context.WithTimeout(ctx, min(2*time.Second, e.timeout))
	defer stop()
	if err := a.get(quick, "/v1/brokers", &known); err != nil {
		e.hint("status and version are what any client can see: %s", explain("", err).what)
		return out, nil
	}
	for _, k := range known {
		i, ok := index[k.ID]
		if !ok { // fenced, and the cluster does not tell clients of those
			i = len(out)
			out = append(out, listedBroker{ID: k.ID, Leaders: k.Leaders, Replicas: k.Replicas, OutOfSync: k.OutOfSync})
			if len(k.Listeners) > 0 {
				if host, port, err := net.SplitHostPort(k.Listeners[0].Address); err == nil {
					n, _ := strconv.ParseInt(port, 10, 32) // made by JoinHostPort from a number
					out[i].Host, out[i].Port = host, int32(n)
				}
			}
		}
		out[i].Status, out[i].Version, out[i].Peer, out[i].Rack = k.Status, k.Version, k.Peer, k.Rack
	}
	slices.SortFunc(out, func(a, b listedBroker) int { return int(a.ID) - int(b.ID) })
	return out, nil
}

// registeredBrokers asks for all brokers by DescribeCluster, fenced ones included where the cluster tells of them.
func (c *connection) registeredBrokers(ctx context.Context) ([]listedBroker, int32, error) {
	req := kmsg.NewPtrDescribeClusterRequest()
	req.IncludeFencedBrokers = true
	resp, err := req.RequestWith(ctx, c.Client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return nil, 0, c.fail("ask for the brokers", err)
	}
	var out []listedBroker
	for _, b := range resp.Brokers {
		l := listedBroker{ID: b.NodeID, Host: b.Host, Port: b.Port, Status: console.StatusRunning}
		if b.Rack != nil {
			l.Rack = *b.Rack
		}
		if b.IsFenced {
			l.Status = console.StatusFenced
		}
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b listedBroker) int { return int(a.ID) - int(b.ID) })
	return out, resp.ControllerID, nil
}

func runClusterBrokersList(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]listedBroker{}) {
		return nil
	}
	if err := noArguments(c); err != nil {
		return err
	}
	brokers, err := e.listBrokers(c)
	if err != nil {
		return err
	}
	r := result{value: brokers, cols: columns("BROKER#", "STATUS", "HOST", "PORT", "RACK", "LEADERS#", "REPLICAS#", "OUT-OF-SYNC#", "+VERSION", "+PEER")}
	for _, b := range brokers {
		r.rows = append(r.rows, []any{b.ID, starred(b), b.Host, strconv.Itoa(int(b.Port)), b.Rack, b.Leaders, b.Replicas, b.OutOfSync, b.Version, b.Peer})
	}
	return e.emit(r)
}

// starred is a broker's status with a mark for the controller.
func starred(b listedBroker) string {
	if b.Controller {
		return b.Status + " *"
	}
	return b.Status
}

func runClusterMembers(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]listedBroker{}) {
		return nil
	}
	if err := noArguments(c); err != nil {
		return err
	}
	brokers, err := e.listBrokers(c)
	if err != nil {
		return err
	}
	r := result{value: brokers, cols: columns("BROKER#", "STATUS", "CLIENTS", "PEERS", "RACK", "VERSION")}
	for _, b := range brokers {
		r.rows = append(r.rows, []any{b.ID, starred(b), net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port))), b.Peer, b.Rack, b.Version})
	}
	return e.emit(r)
}

func runClusterBrokersDescribe(c *cli.Context) error {
	e := envOf(c)
	_, _, b, err := brokerAnswer[console.BrokerInfo](c, "/v1/brokers/%d")
	if err != nil || b == nil {
		return err
	}
	return e.emit(result{value: b, text: func(w io.Writer, wide bool) {
		yes := func(v bool) string { return map[bool]string{true: "yes", false: "no"}[v] }
		rows := [][]any{{"status", b.Status}, {"controller", yes(b.Controller)}, {"rack", b.Rack}, {"version", b.Version}}
		for _, l := range b.Listeners {
			rows = append(rows, []any{"listener", l.Name + "://" + l.Address + " (" + l.Protocol + ")"})
		}
		writeTable(w, columns("BROKER", strconv.Itoa(int(b.ID))), append(rows, [][]any{
			{"peers", b.Peer},
			{"leaders", fmt.Sprintf("%d of %d preferred", b.Leaders, b.Preferred)}, {"replicas", fmt.Sprintf("%d, %d out of sync", b.Replicas, b.OutOfSync)},
			{"offline log dirs", b.OfflineDirs}, {"feature levels", fmt.Sprintf("%d-%d", b.MinLevel, b.MaxLevel)}, {"epoch", b.Epoch}, {"incarnation", b.Incarnation},
		}...), wide, e.stdoutWidth())
	}})
}

func clusterDecommissionCommand() *cli.Command {
	return &cli.Command{
		Name: "decommission", Usage: "move all replicas away from a broker and take it out of the cluster", ArgsUsage: "ID",
		Description: "The balancer moves the replicas, throttled. Once nothing is left there, the controller takes the broker out of the quorum and the cluster, and its\n" +
			"process can be stopped. With --wait the command stays until then; it may be interrupted and given again.",
		Flags: []cli.Flag{
			adminFlag(), dryRunFlag(), waitFlag("wait until the broker is out of the cluster; --timeout bounds it"),
		},
		Action: runClusterDecommission,
	}
}

func runClusterDecommission(c *cli.Context) error {
	e := envOf(c)
	a, id, d, err := brokerAnswer[console.Decommission](c, "/v1/brokers/%d/decommission")
	if err != nil || d == nil {
		return err
	}
	if d.StrandedOf > 0 {
		return strandedFailure(d)
	}
	path := fmt.Sprintf("/v1/brokers/%d/decommission", id)
	if !d.Removing {
		fmt.Fprintf(e.stderr, "broker %d has %s (%d led by it); they are moved to other brokers, then it leaves the cluster for good\n", id, counted(d.Replicas, "replica"), d.Leaders)
		if d.Voter {
			fmt.Fprintf(e.stderr, "broker %d votes in the quorum; another broker takes its place there if there is one\n", id)
		}
		if c.Bool("dry-run") {
			e.hint("dry run: nothing was changed")
			return e.emitDecommission(d)
		}
		if err := e.confirm(fmt.Sprintf("decommission broker %d?", id)); err != nil {
			return err
		}
		if err := a.do(c.Context, "POST", path, nil, d); err != nil {
			return err
		}
	} else if c.Bool("dry-run") {
		return e.emitDecommission(d)
	}
	if !c.Bool("wait") {
		e.hint("to watch it: millrace cluster brokers decommission %d --wait", id)
		return e.emitDecommission(d)
	}
	return e.finishDecommission(c, a, path, d)
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// strandedFailure says why a broker cannot go, as ux.md 2 has it.
func strandedFailure(d *console.Decommission) *failure {
	have := "partitions have"
	if d.StrandedOf == 1 {
		have = "partition has"
	}
	return &failure{code: exitFailed, what: fmt.Sprintf("broker %d cannot be decommissioned: %d %s nowhere to go", d.Broker, d.StrandedOf, have), why: d.Why, fix: d.Fix}
}

// finishDecommission waits until the broker has nothing left, and takes it out of the cluster.
func (e *env) finishDecommission(c *cli.Context, a *admin, path string, d *console.Decommission) error {
	ctx, cancel := e.waitContext(c)
	defer cancel()
	bar := e.newProgress(fmt.Sprintf("broker %d", d.Broker), int64(d.Replicas))
	left := d.Replicas
	err := poll(ctx, waitInterval, func(ctx context.Context) (bool, error) {
		if err := a.get(ctx, path, d); err != nil {
			return false, err
		}
		bar.add(int64(left - d.Replicas))
		left = d.Replicas
		if !d.Removing {
			return false, &failure{code: exitFailed, what: fmt.Sprintf("the decommission of broker %d was taken back", d.Broker), why: "somebody gave recommission meanwhile", fix: fmt.Sprintf("millrace cluster brokers decommission %d", d.Broker)}
		}
		if d.StrandedOf > 0 {
			return false, strandedFailure(d)
		}
		return d.Done, nil
	})
	bar.finish()
	if err != nil {
		return e.waitFailure(err, fmt.Sprintf("broker %d is not out of the cluster", d.Broker), fmt.Sprintf("%s left, %d on their way", counted(d.Replicas, "replica"), d.Moving),
			"give the command again to wait on; millrace cluster rebalance status   shows the moves")
	}
	// The controller removes it by itself; this waits until it is out of the quorum, or says why it can't go yet.
	if err := a.do(c.Context, "DELETE", fmt.Sprintf("/v1/brokers/%d", d.Broker), nil, &console.Done{}); err != nil {
		return err
	}
	e.hint("broker %d is out of the cluster; its process can be stopped, and its data removed", d.Broker)
	d.Voter, d.Gone = false, true
	return e.emitDecommission(d)
}

func (e *env) emitDecommission(d *console.Decommission) error {
	state := "not ordered"
	switch {
	case d.Done:
		state = "done"
	case d.Removing:
		state = "under way"
	}
	return e.emit(result{value: d, cols: columns("BROKER#", "DECOMMISSION", "REPLICAS#", "LEADERS#", "MOVING#", "VOTER"), rows: [][]any{{d.Broker, state, d.Replicas, d.Leaders, d.Moving, d.Voter}}})
}

func runClusterRecommission(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields(console.Decommission{}) {
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
	var d console.Decommission
	if err := a.do(c.Context, "POST", fmt.Sprintf("/v1/brokers/%d/recommission", id), nil, &d); err != nil {
		return err
	}
	return e.emitDecommission(&d)
}
