package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// The three delivery guarantees of consumers, with the consumer killed between its two
// steps again and again:
//
//	commit, then process    at most once: nothing is processed twice, what was under way is lost
//	process, then commit    at least once: nothing is lost, what was under way comes again
//	both at once            exactly once: the application keeps the offset beside its output
//	                        (assign and seek), and no group is needed
//
// On three brokers, in both protocols of groups. Once, the coordinator's broker is killed
// while a consumer stands between its steps, which then does the second one with the next
// coordinator, or dies as well; where there is no group it is the leader's broker.
//
// The consumer is this test's own binary as another process, which kills itself with
// SIGKILL between its steps. It is a static member: the one that comes after it goes on at
// once, instead of after a session.

const (
	deliveryRole     = "MILLRACE_DELIVERY_ROLE" // which consumer this process is
	deliveryBatch    = 7                        // records of a batch, at most
	deliveryRecords  = 150
	deliveryInstance = "only"
	// What a consumer's process says: that it stands between its steps, until it is told to go on, and that a commit was refused.
	deliveryBetween, deliveryRefused = "between", "refused"
	// What it is told: to go on, and to have joined anew before it reads on.
	deliveryGoOn, deliveryRejoin = "on", "rejoin"
)

// delivery is one consumer and what is tried with it.
type delivery struct {
	role, protocol string
	dies           bool // with the broker, instead of going on without it
}

func (d delivery) String() string {
	out := d.role
	if d.protocol != "" {
		out += " " + d.protocol
	}
	if d.dies {
		out += " dying"
	}
	return out
}

func TestDeliveryGuarantees(t *testing.T) {
	if role := os.Getenv(deliveryRole); role != "" {
		deliver(role)
		return
	}
	if testing.Short() {
		t.Skip("starts three brokers, twice")
	}
	var all []delivery
	for _, dies := range []bool{false, true} {
		for _, protocol := range []string{"classic", "consumer"} {
			all = append(all, delivery{"commit-process", protocol, dies}, delivery{"process-commit", protocol, dies})
		}
		all = append(all, delivery{"together", "", dies})
	}
	for _, mode := range []string{"rebalance", "resume"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel() // they mostly wait
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
			defer cancel()
			c := startCoordinatedCluster(ctx, t, 3, "group.initial.rebalance.delay.ms=0", "group.consumer.heartbeat.interval.ms=200", "group.consumer.heartbeat.interval.ms=200", "min.insync.replicas=2", "millrace.group.failover="+mode)
			death := newMeeting(len(all), func() error { return c.kill(ctx) })
			runTogether(t, all, delivery.String, func(t *testing.T, d delivery) {
				r := &deliveryRun{delivery: d, t: t, c: c, mode: mode, death: death, come: death.seat()}
				r.topic, r.output = strings.ReplaceAll(d.String(), " ", "-"), filepath.Join(t.TempDir(), "output")
				for i, other := range all {
					if other == d {
						r.group = c.groups[i]
					}
				}
				defer r.come()
				r.run(ctx)
			})
		})
	}
}

// deliveryRun is one consumer in all its lives.
type deliveryRun struct {
	delivery
	t                    *testing.T
	c                    *coordinatedCluster
	mode                 string
	topic, group, output string
	death                *meeting
	come                 func()
	refused              []string // commits
	last                 standing // as was told last
}

func (r *deliveryRun) run(ctx context.Context) {
	t := r.t
	leader := r.c.others[0]
	if r.role == "together" {
		leader = r.c.id
	}
	r.c.topic(ctx, t, r.topic, 1, leader)
	r.c.produce(ctx, t, r.topic, 0, deliveryRecords)
	kills := 0
	for done := false; !done; {
		if done = r.live(ctx, kills == 1); !done {
			kills++
		}
		require.Less(t, kills, 3*deliveryRecords, "it does not get on")
	}
	require.Greater(t, kills, deliveryRecords/deliveryBatch/4, "too few kills to show anything")
	times := processed(t, r.output)
	lost, twice := 0, 0
	for i := range deliveryRecords {
		switch n := times[strconv.Itoa(i)]; {
		case n == 0:
			lost++
		case n > 1:
			twice++
		}
	}
	t.Logf("%d kills: %d records lost, %d processed again, commits refused: %q", kills, lost, twice, r.refused)
	switch r.role {
	case "commit-process":
		require.Zero(t, twice, "processed more than once")
		require.Positive(t, lost, "a kill between commit and process loses what was under way")
	case "process-commit":
		require.Zero(t, lost)
		require.Positive(t, twice, "a kill between process and commit brings it again")
	case "together":
		require.Zero(t, lost)
		require.Zero(t, twice)
	}
	if r.mode == "resume" {
		require.Empty(t, r.refused, "nothing has changed for the members")
	}
}

// live runs one life of the consumer to its end, which is its death or that of the topic. One that meets stands between its
// steps when the broker dies.
func (r *deliveryRun) live(ctx context.Context, meets bool) (done bool) {
	t := r.t
	args := []string{strings.Join(r.c.Seeds(), ","), r.topic, r.group, r.protocol, r.output, strconv.FormatBool(meets)}
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestDeliveryGuarantees$", "-test.v=false")
	cmd.Env = append(os.Environ(), deliveryRole+"="+r.role, "MILLRACE_DELIVERY_ARGS="+strings.Join(args, ";"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said bytes.Buffer
	cmd.Stderr = &said
	tell, err := cmd.StdinPipe()
	require.NoError(t, err)
	hear, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	met := false
	for lines := bufio.NewScanner(hear); lines.Scan(); {
		what, why, _ := strings.Cut(lines.Text(), " ")
		switch what {
		case deliveryBetween:
			met = true
			err := r.meet(ctx)
			if err != nil || r.dies {
				_ = cmd.Process.Kill()
			} else {
				order := deliveryGoOn
				if r.mode == "rebalance" && r.protocol != "" {
					order = deliveryRejoin
				}
				_, _ = io.WriteString(tell, order+"\n")
			}
			if err != nil {
				_ = cmd.Wait()
				require.NoError(t, err)
			}
		case deliveryRefused:
			r.refused = append(r.refused, why)
		}
	}
	err = cmd.Wait()
	require.Equal(t, meets, met, "it was to stand between its steps: %s", &said)
	if err == nil {
		return true
	}
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, said.String())
	status, ok := exit.Sys().(syscall.WaitStatus)
	require.True(t, ok && status.Signal() == syscall.SIGKILL, "the consumer ended by itself: %s\n%s", err, said.String())
	require.NoError(t, ctx.Err())
	if r.protocol == "consumer" {
		r.kick(ctx)
	}
	return false
}

// meet waits for the death of the broker, and looks at what has become of the group, whose member stands still.
func (r *deliveryRun) meet(ctx context.Context) error {
	want, err := r.standing(ctx)
	if err != nil {
		return err
	}
	r.come()
	if err := r.death.wait(ctx); err != nil || r.role == "together" {
		return err
	}
	switch {
	case r.mode == "rebalance" && r.protocol == "classic":
		want.state = "PreparingRebalance" // until it has gone through its second step, and joins
	case r.mode == "rebalance":
		want.epoch++
	}
	for {
		now, err := r.standing(ctx)
		if err == nil && now == want {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the group is %v after the death, not %v: %w", r.last, want, err)
		}
		breathe(ctx, 20*time.Millisecond)
	}
}

// standing is what tells whether a group has been in a rebalance: its state, or its epoch where it has one.
type standing struct {
	state string
	epoch int32
}

func (r *deliveryRun) standing(ctx context.Context) (s standing, err error) {
	if r.protocol == "consumer" {
		described, err := r.c.adm.DescribeConsumerGroups(ctx, r.group)
		if err == nil {
			err = described.Error()
		}
		if err != nil {
			return s, err
		}
		s.epoch = described[r.group].Epoch
	} else {
		listed, err := r.c.adm.ListGroups(ctx)
		if err != nil {
			return s, err
		}
		s.state = listed[r.group].State
	}
	r.last = s
	return s, nil
}

// kick puts a dead member out, as an operator may: by KIP-848 the instance of one that has not said goodbye is its own until its
// session ends.
func (r *deliveryRun) kick(ctx context.Context) {
	for {
		gone, err := r.c.adm.LeaveGroup(ctx, kadm.LeaveGroup(r.group).InstanceIDs(deliveryInstance))
		if err == nil {
			err = gone.Error()
		}
		if err == nil || errors.Is(err, kerr.UnknownMemberID) {
			return
		}
		require.NoError(r.t, ctx.Err(), "the dead member is not put out: %v", err)
		breathe(ctx, 20*time.Millisecond)
	}
}

// processed counts the lines of the output.
func processed(t *testing.T, output string) map[string]int {
	t.Helper()
	times := map[string]int{}
	f, err := os.Open(output)
	require.NoError(t, err)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var line outputLine
		require.NoError(t, json.Unmarshal(lines.Bytes(), &line))
		for _, v := range line.Values {
			times[v]++
		}
	}
	return times
}
