package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// outputLine is what the application writes for one batch, in one write: its results, and where it is.
type outputLine struct {
	Values []string `json:"values"`
	Next   int64    `json:"next"`
}

// deliver is the consumer's process.
func deliver(role string) {
	args := strings.Split(os.Getenv("MILLRACE_DELIVERY_ARGS"), ";")
	c := &deliveryConsumer{role: role, topic: args[1], group: args[2], protocol: args[3], output: args[4], meets: args[5] == "true"}
	if err := c.run(strings.Split(args[0], ",")); err != nil {
		fmt.Fprintln(os.Stderr, "consumer:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// deliveryConsumer is an application that consumes.
type deliveryConsumer struct {
	role, topic, group, protocol, output string
	meets                                bool // says so between the steps of its second batch, and waits
	cl                                   *kgo.Client
	out                                  *os.File
}

func (c *deliveryConsumer) run(seeds []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var err error
	if c.out, err = os.OpenFile(c.output, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
		return err
	}
	defer c.out.Close()
	opts := append(soon(seeds), kgo.FetchMaxWait(100*time.Millisecond))
	if c.role == "together" {
		start, err := storedOffset(c.output)
		if err != nil {
			return err
		}
		opts = append(opts, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{c.topic: {0: kgo.NewOffset().At(start)}}))
	} else {
		// A rebalance between a poll and the two steps would have the batch come again, and processed twice in any order of them.
		opts = append(opts, kgo.ConsumerGroup(c.group), kgo.ConsumeTopics(c.topic), kgo.InstanceID(deliveryInstance), kgo.DisableAutoCommit(),
			kgo.BlockRebalanceOnPoll(), kgo.HeartbeatInterval(200*time.Millisecond), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		if c.protocol == "consumer" {
			opts = append(opts, kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()))
		} else {
			opts = append(opts, kgo.Balancers(kgo.RangeBalancer())) // eager: it asks for its offsets after each rebalance
		}
	}
	if c.cl, err = kgo.NewClient(opts...); err != nil {
		return err
	}
	defer c.cl.CloseAllowingRebalance()
	for batches := 1; ; {
		c.cl.AllowRebalance()
		poll, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		batch := c.cl.PollRecords(poll, deliveryBatch).Records()
		cancel()
		if ctx.Err() != nil {
			return errors.New("nothing comes any more")
		}
		if len(batch) == 0 {
			if done, err := c.allCommitted(); done || err != nil {
				return err
			}
			continue
		}
		if err := c.take(ctx, batch, batches); err != nil {
			return err
		}
		if batch[len(batch)-1].Offset == deliveryRecords-1 {
			return nil
		}
		batches++
	}
}

// take goes through the two steps with a batch, or dies between them.
func (c *deliveryConsumer) take(ctx context.Context, batch []*kgo.Record, batches int) error {
	steps := []func() (bool, error){
		func() (bool, error) { return true, c.write(batch) },
		func() (bool, error) { return c.commit(ctx, batch) },
	}
	if c.role == "commit-process" {
		steps[0], steps[1] = steps[1], steps[0]
	}
	dies := 3
	if c.meets {
		dies = 6 // it goes on for a while without the broker
	}
	_, generation := c.cl.GroupMetadata()
	rejoins := false
	for i, step := range steps {
		if done, err := step(); err != nil || !done {
			return err
		}
		if i > 0 {
			continue
		}
		if c.meets && batches == 2 {
			fmt.Println(deliveryBetween)
			order, err := bufio.NewReader(os.Stdin).ReadString('\n')
			if err != nil {
				return err
			}
			rejoins = strings.TrimSpace(order) == deliveryRejoin
		}
		if batches%dies == 0 {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
	for rejoins && ctx.Err() == nil { // what it reads next is what the next coordinator says that it is to read
		c.cl.AllowRebalance()
		if _, now := c.cl.GroupMetadata(); now > generation {
			break
		}
		breathe(ctx, 10*time.Millisecond)
	}
	return ctx.Err()
}

// commit says whether the group took the commit. If it did not, the batch is given up: who has the partition then begins with it.
func (c *deliveryConsumer) commit(ctx context.Context, batch []*kgo.Record) (bool, error) {
	if c.role == "together" {
		return true, nil
	}
	err := c.cl.CommitRecords(ctx, batch...)
	if err != nil {
		fmt.Println(deliveryRefused, err)
	}
	return err == nil, ctx.Err()
}

// allCommitted says whether another life of the consumer got to the end: a kill after the last commit leaves nothing to read.
func (c *deliveryConsumer) allCommitted() (bool, error) {
	if c.role == "together" {
		next, err := storedOffset(c.output)
		return next == deliveryRecords, err
	}
	return c.cl.CommittedOffsets()[c.topic][0].Offset == deliveryRecords, nil
}

// write appends one line with one write: a crash leaves it whole or not at all.
func (c *deliveryConsumer) write(records []*kgo.Record) error {
	line := outputLine{Next: records[len(records)-1].Offset + 1}
	for _, r := range records {
		line.Values = append(line.Values, string(r.Value))
	}
	b, err := json.Marshal(line)
	if err != nil {
		return err
	}
	_, err = c.out.Write(append(b, '\n'))
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
