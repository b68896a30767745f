package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/transport/console"
)

// clusterHealth says what is wrong with a cluster, as any client can see it.
type clusterHealth struct {
	Healthy         bool     `json:"healthy" doc:"true when the lists below are empty and there is a controller"`
	ClusterID       string   `json:"cluster_id" doc:"the cluster's id"`
	Controller      int32    `json:"controller" doc:"broker id; -1 is none"`
	Brokers         int      `json:"brokers" doc:"brokers that are registered and not fenced"`
	Unreachable     []int32  `json:"unreachable_brokers" doc:"brokers that do not answer from here"`
	Fenced          []int32  `json:"fenced_brokers" doc:"registered brokers that the controller has no contact with, or that are not ready"`
	Leaderless      []string `json:"leaderless_partitions" doc:"topic-partition without a leader"`
	UnderReplicated []string `json:"under_replicated_partitions" doc:"topic-partition with replicas out of sync"`
	UnderMinISR     []string `json:"under_min_isr_partitions" doc:"topic-partition that refuses acks=all"`
	Reason          string   `json:"reason" doc:"why the cluster could not be asked; empty when it could"`
}

func clusterHealthCommand() *cli.Command {
	return &cli.Command{
		Name:        "health",
		Usage:       "say whether the cluster is well; exit code 5 when it is not",
		Description: "With -w it is printed again at each change; with -e the command ends once the cluster is well (--timeout bounds the wait).",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "go on, and print each change"},
			&cli.BoolFlag{Name: "exit-when-healthy", Aliases: []string{"e"}, Usage: "wait until the cluster is well"},
			&cli.DurationFlag{Name: "interval", Value: time.Second, Usage: "how often to look"},
			&cli.IntFlag{Name: "safe-to-stop", Value: -1, Usage: "say whether broker `ID` may be stopped; exit code 5 when not"},
			adminFlag(),
		},
		Action: runClusterHealth,
	}
}

func runClusterHealth(c *cli.Context) error {
	e := envOf(c)
	if c.IsSet("safe-to-stop") && e.wantsFields(console.Health{}) || e.wantsFields(clusterHealth{}) {
		return nil
	}
	if err := noArguments(c); err != nil {
		return err
	}
	if id := c.Int("safe-to-stop"); c.IsSet("safe-to-stop") {
		return e.safeToStop(c, id)
	}
	watch, until := c.Bool("watch"), c.Bool("exit-when-healthy")
	if c.Duration("interval") <= 0 {
		f := usageError("--interval must be longer than nothing", "--interval 1s")
		f.why = "it is " + c.Duration("interval").String()
		return f
	}
	ctx := c.Context
	if until && c.IsSet("timeout") {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, e.timeout)
		defer cancel()
	}
	if !watch && !until {
		h, err := e.askHealth(ctx)
		if err != nil {
			return err
		}
		if err := e.emitHealth(h, false); err != nil {
			return err
		}
		if !h.Healthy {
			return silent(exitCondition)
		}
		return nil
	}
	ticker := time.NewTicker(c.Duration("interval"))
	defer ticker.Stop()
	var last *clusterHealth
	for {
		h, err := e.askHealth(ctx)
		if err != nil && ctx.Err() == nil {
			h = &clusterHealth{Controller: -1, Reason: explain("ask for the cluster's health", err).what + ": " + explain("", err).why}
		}
		if h != nil && !reflect.DeepEqual(h, last) {
			if watch || h.Healthy {
				if err := e.emitHealth(h, true); err != nil {
					return err
				}
			}
			last = h
		}
		if h != nil && h.Healthy && until {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				f := &failure{code: exitTimeout, what: fmt.Sprintf("the cluster did not become well within %s", e.timeout), why: "it could not be asked", fix: "millrace cluster health   says what is wrong"}
				if last != nil {
					f.why = strings.Join(last.complaints(), "; ")
				}
				return f
			}
			return context.Canceled
		}
	}
}

// safeToStop asks whether a broker may be stopped; with -e it waits until it may.
func (e *env) safeToStop(c *cli.Context, id int) error {
	if id < 0 {
		f := usageError(fmt.Sprintf("--safe-to-stop %d is no broker", id), "--safe-to-stop 2")
		f.why = "an id is a number from 0 on; millrace cluster brokers list   shows them"
		return f
	}
	if c.Bool("watch") {
		f := usageError("--safe-to-stop and -w do not go together", "use -e, which waits until it is safe")
		f.why = "it is answered once"
		return f
	}
	a, err := e.openAdmin(c)
	if err != nil {
		return err
	}
	ctx, cancel := e.waitContext(c)
	defer cancel()
	var h console.Health
	err = poll(ctx, max(c.Duration("interval"), 50*time.Millisecond), func(ctx context.Context) (bool, error) {
		h = console.Health{}
		err := a.get(ctx, fmt.Sprintf("/safe-to-stop?format=json&broker=%d", id), &h)
		return h.Total == 0 || !c.Bool("exit-when-healthy"), err
	})
	if err != nil {
		why := "it could not be asked"
		if len(h.Reasons) > 0 {
			why = strings.Join(h.Reasons, "; ")
		}
		return e.waitFailure(err, fmt.Sprintf("it did not become safe to stop broker %d", id), why, fmt.Sprintf("millrace cluster health --safe-to-stop %d   says what is in the way", id))
	}
	if err := e.emitSafeToStop(id, &h); err != nil {
		return err
	}
	if h.Total > 0 {
		return silent(exitCondition)
	}
	return nil
}

func (e *env) emitSafeToStop(id int, h *console.Health) error {
	return e.emit(result{value: h, text: func(w io.Writer, _ bool) {
		if h.Total == 0 {
			fmt.Fprintf(w, "broker %d may be stopped\n", id)
			return
		}
		fmt.Fprintf(w, "broker %d should not be stopped now:\n", id)
		for _, reason := range h.Reasons {
			fmt.Fprintln(w, "  "+reason)
		}
		if more := h.Total - len(h.Reasons); more > 0 {
			fmt.Fprintf(w, "  and %d more\n", more)
		}
	}})
}

// complaints are what is wrong, one line each.
func (h *clusterHealth) complaints() []string {
	var out []string
	list := func(what string, items []string) {
		const shown = 20
		if len(items) == 0 {
			return
		}
		more := ""
		if len(items) > shown {
			more = fmt.Sprintf(" and %d more", len(items)-shown)
			items = items[:shown]
		}
		out = append(out, what+": "+strings.Join(items, " ")+more)
	}
	if h.Reason != "" {
		return []string{h.Reason}
	}
	if h.Controller < 0 {
		out = append(out, "no controller")
	}
	var ids []string
	for _, id := range h.Unreachable {
		ids = append(ids, strconv.Itoa(int(id)))
	}
	list("brokers that do not answer", ids)
	ids = nil
	for _, id := range h.Fenced {
		ids = append(ids, strconv.Itoa(int(id)))
	}
	list("brokers that are fenced: dead, cut off, or not ready", ids)
	list("partitions without a leader", h.Leaderless)
	list("partitions under min.insync.replicas", h.UnderMinISR)
	list("under-replicated partitions", h.UnderReplicated)
	return out
}

// emitHealth prints one state. Streams are one line of JSON each.
func (e *env) emitHealth(h *clusterHealth, stream bool) error {
	if stream && e.format == "json" {
		return writeJSONLine(e.stdout, h)
	}
	return e.emit(result{value: h, text: func(w io.Writer, _ bool) {
		word := "HEALTHY"
		if !h.Healthy {
			word = "UNHEALTHY"
		}
		fmt.Fprintf(w, "%s  cluster %s  controller %v  brokers %d\n", word, cell(h.ClusterID), cell(unknown(int64(h.Controller))), h.Brokers)
		for _, line := range h.complaints() {
			fmt.Fprintln(w, "  "+line)
		}
	}})
}

// askHealth asks the cluster once.
func (e *env) askHealth(ctx context.Context) (*clusterHealth, error) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	conn, err := e.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	m, err := conn.adm.Metadata(ctx)
	if err != nil {
		return nil, conn.fail("ask for the cluster's health", err)
	}
	h := &clusterHealth{ClusterID: m.Cluster, Controller: m.Controller, Brokers: len(m.Brokers), Leaderless: []string{}, UnderReplicated: []string{}, UnderMinISR: []string{}}
	h.Unreachable = conn.unreachableBrokers(ctx, m.Brokers)
	h.Fenced = []int32{}
	registered, _, err := conn.registeredBrokers(ctx)
	if err != nil {
		registered = nil // an old cluster of others, which does not know the request
	}
	for _, b := range registered {
		if b.Status == console.StatusFenced {
			h.Fenced = append(h.Fenced, b.ID)
		}
	}
	var short []kadm.PartitionDetail
	for _, t := range m.Topics.Sorted() {
		for _, p := range t.Partitions.Sorted() {
			name := fmt.Sprintf("%s-%d", p.Topic, p.Partition)
			if p.Leader < 0 {
				h.Leaderless = append(h.Leaderless, name)
			}
			if len(p.ISR) < len(p.Replicas) {
				h.UnderReplicated = append(h.UnderReplicated, name)
				short = append(short, p)
			}
		}
	}
	if h.UnderMinISR, err = conn.underMinISR(ctx, short); err != nil {
		return nil, err
	}
	h.Healthy = h.Controller >= 0 && len(h.Unreachable)+len(h.Fenced)+len(h.Leaderless)+len(h.UnderReplicated)+len(h.UnderMinISR) == 0
	return h, nil
}

// unreachableBrokers asks every broker for its versions.
func (c *connection) unreachableBrokers(ctx context.Context, brokers []kgo.BrokerMetadata) []int32 {
	var mu sync.Mutex
	out := []int32{}
	var wait sync.WaitGroup
	for _, b := range brokers {
		wait.Go(func() {
			req := kmsg.NewPtrApiVersionsRequest()
			req.ClientSoftwareName, req.ClientSoftwareVersion = "millrace-cli", binaryVersion()
			if _, err := c.Broker(int(b.NodeID)).Request(ctx, req); err != nil {
				mu.Lock()
				out = append(out, b.NodeID)
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	slices.Sort(out)
	return out
}

// underMinISR returns those of the partitions that have fewer replicas in sync than their topic's min.insync.replicas.
func (c *connection) underMinISR(ctx context.Context, partitions []kadm.PartitionDetail) ([]string, error) {
	out := []string{}
	if len(partitions) == 0 {
		return out, nil
	}
	var names []string
	for _, p := range partitions {
		names = append(names, p.Topic)
	}
	slices.Sort(names)
	configs, err := c.adm.DescribeTopicConfigs(ctx, slices.Compact(names)...)
	if err != nil {
		return nil, c.fail("ask for min.insync.replicas", err)
	}
	least := map[string]int{}
	for _, r := range configs {
		for _, k := range r.Configs {
			if k.Key == "min.insync.replicas" && k.Value != nil {
				least[r.Name], err = strconv.Atoi(*k.Value)
				if err != nil {
					return nil, fmt.Errorf("read min.insync.replicas of %s: %w", r.Name, err)
				}
			}
		}
	}
	for _, p := range partitions {
		if len(p.ISR) < least[p.Topic] {
			out = append(out, fmt.Sprintf("%s-%d", p.Topic, p.Partition))
		}
	}
	return out, nil
}
