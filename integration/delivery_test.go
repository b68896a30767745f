package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The three delivery guarantees of consumers, with the consumer killed between its two
// steps again and again:
//
//	commit, then process    at most once: nothing is processed twice, what was under way is lost
//	process, then commit    at least once: nothing is lost, what was under way comes again
//	both at once            exactly once: the application keeps the offset beside its output
//	                        (assign and seek), and no group is needed
//
// The consumer is this test's own binary as another process, which kills itself with
// SIGKILL between the steps of every third batch. It is a static member: the one that
// comes after it goes on at once, instead of after a session.

const (
	deliveryRole    = "MILLRACE_DELIVERY_ROLE" // which consumer this process is
	deliveryBatch   = 7                        // records of a batch
	deliveryRecords = 300
)

func TestDeliveryGuarantees(t *testing.T) {
	if role := os.Getenv(deliveryRole); role != "" {
		deliver(role)
		return
	}
	b := startBroker(t, "group.initial.rebalance.delay.ms=0")
	for _, role := range []string{"commit-process", "process-commit", "together"} {
		t.Run(role, func(t *testing.T) {
			topic := "delivery-" + role
			createTopic(t, b, topic, 1)
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			producer := b.client()
			for i := range deliveryRecords {
				producer.Produce(ctx, &kgo.Record{Topic: topic, Value: []byte(strconv.Itoa(i))}, nil)
			}
			require.NoError(t, producer.Flush(ctx))
			output := filepath.Join(t.TempDir(), "output")
			kills := 0
			for done := false; !done; {
				done = runConsumer(ctx, t, b, role, topic, output)
				if !done {
					kills++
				}
				require.Less(t, kills, 3*deliveryRecords, "it does not get on")
			}
			require.Greater(t, kills, deliveryRecords/deliveryBatch/4, "too few kills to show anything")
			times := processed(t, output)
			lost, twice := 0, 0
			for i := range deliveryRecords {
				switch n := times[strconv.Itoa(i)]; {
				case n == 0:
					lost++
				case n > 1:
					twice++
				}
			}
			t.Logf("%d kills: %d records lost, %d processed again", kills, lost, twice)
			switch role {
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
		})
	}
}

// runConsumer runs one consumer to its end, which is its death or that of the topic.
func runConsumer(ctx context.Context, t *testing.T, b *broker, role, topic, output string) (done bool) {
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestDeliveryGuarantees$", "-test.v=false")
	cmd.Env = append(os.Environ(), deliveryRole+"="+role, "MILLRACE_DELIVERY_ARGS="+strings.Join([]string{b.Addr, topic, output}, ","))
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	err := cmd.Run()
	if err == nil {
		return true
	}
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, said.String())
	status, ok := exit.Sys().(syscall.WaitStatus)
	require.True(t, ok && status.Signal() == syscall.SIGKILL, "the consumer ended by itself: %s\n%s", err, said.String())
	require.NoError(t, ctx.Err())
	return false
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

// outputLine is what the application writes for one batch, in one write: its results, and where it is.
type outputLine struct {
	Values []string `json:"values"`
	Next   int64    `json:"next"`
}

// deliver is the consumer's process.
func deliver(role string) {
	args := strings.Split(os.Getenv("MILLRACE_DELIVERY_ARGS"), ",")
	if err := consumeOnce(role, args[0], args[1], args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "consumer:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func consumeOnce(role, addr, topic, output string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := os.OpenFile(output, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	opts := []kgo.Opt{kgo.SeedBrokers(addr), kgo.FetchMaxWait(100 * time.Millisecond)}
	start := int64(0)
	if role == "together" {
		if start, err = storedOffset(output); err != nil {
			return err
		}
		opts = append(opts, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(start)}}))
	} else {
		opts = append(opts, kgo.ConsumerGroup("group-"+topic), kgo.ConsumeTopics(topic), kgo.InstanceID("only"), kgo.DisableAutoCommit(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return err
	}
	defer cl.Close()
	var batch []*kgo.Record
	for batches := 1; ; {
		if len(batch) == 0 || len(batch) < deliveryBatch && batch[len(batch)-1].Offset < deliveryRecords-1 {
			fetches := cl.PollRecords(ctx, deliveryBatch)
			if ctx.Err() != nil {
				return errors.New("nothing comes any more")
			}
			batch = append(batch, fetches.Records()...)
			if len(batch) == 0 {
				if done, err := allCommitted(ctx, cl, role, topic, output); done || err != nil {
					return err
				}
			}
			continue
		}
		now := batch[:min(len(batch), deliveryBatch)]
		process := func() error { return write(out, now) }
		commit := func() error {
			if role == "together" {
				return nil
			}
			return cl.CommitRecords(ctx, now...)
		}
		steps := []func() error{process, commit}
		if role == "commit-process" {
			steps = []func() error{commit, process}
		}
		for i, step := range steps {
			if err := step(); err != nil {
				return err
			}
			if i == 0 && batches%3 == 0 {
				return syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
		}
		if now[len(now)-1].Offset == deliveryRecords-1 {
			return nil
		}
		batch = batch[len(now):]
		batches++
	}
}

// allCommitted says whether another life of the consumer got to the end: a kill after the last commit leaves nothing to read.
func allCommitted(ctx context.Context, cl *kgo.Client, role, topic, output string) (bool, error) {
	if role == "together" {
		next, err := storedOffset(output)
		return next == deliveryRecords, err
	}
	committed := cl.CommittedOffsets()
	return committed[topic][0].Offset == deliveryRecords, ctx.Err()
}

// write appends one line with one write: a crash leaves it whole or not at all.
func write(out *os.File, records []*kgo.Record) error {
	line := outputLine{Next: records[len(records)-1].Offset + 1}
	for _, r := range records {
		line.Values = append(line.Values, string(r.Value))
	}
	b, err := json.Marshal(line)
	if err != nil {
		return err
	}
	_, err = out.Write(append(b, '\n'))
	return err
}

// storedOffset is where the output says that the consumer is.
func storedOffset(output string) (int64, error) {
	b, err := os.ReadFile(output)
	if err != nil {
		return 0, err
	}
	next := int64(0)
	for line := range bytes.Lines(b) {
		var l outputLine
		if err := json.Unmarshal(line, &l); err != nil {
			return 0, err
		}
		next = l.Next
	}
	return next, nil
}
