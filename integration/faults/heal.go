package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/integration/check"
	"github.com/millrace/millrace/integration/cluster"
	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
)

// fault does something to the cluster for a while and notes it in the history. begin makes the fault, end undoes it; end
// may be nil.
func (r *run) fault(ctx context.Context, node int, text string, begin func() error, length time.Duration, end func() error) error {
	o := check.Op{F: check.Fault, Type: check.Invoke, Node: node, Text: text}
	r.logf("fault: %s", text)
	r.history.Log(o)
	r.faults++
	if err := begin(); err != nil {
		return fmt.Errorf("%s: %w", text, err)
	}
	if !r.settled(ctx, length) {
		return ctx.Err()
	}
	if end != nil {
		if err := end(); err != nil {
			return fmt.Errorf("end of %s: %w", text, err)
		}
	}
	o.Type = check.OK
	r.history.Log(o)
	return nil
}

// restart starts what does not run.
func (r *run) restart() error {
	var errs []error
	for _, n := range r.cluster.Nodes {
		if !n.Running() {
			errs = append(errs, n.Start())
		}
	}
	return errors.Join(errs...)
}

// breathe gives the cluster a moment between two faults: now and then as long as it takes to be whole again (I20), else
// a few seconds, so that faults fall into the recovery of others.
func (r *run) breathe(ctx context.Context) {
	if r.random.IntN(3) > 0 {
		r.settled(ctx, time.Duration(500+r.random.IntN(3500))*time.Millisecond)
		return
	}
	r.awaitHealth(ctx, "between the faults")
}

func (r *run) awaitHealth(ctx context.Context, when string) {
	began := time.Now()
	wait, cancel := context.WithTimeout(ctx, healPatience)
	defer cancel()
	err := r.healthy(wait)
	if err == nil {
		err = r.quorumWhole(wait)
	}
	if err != nil && ctx.Err() == nil {
		r.fail("%s: not whole after %s: %v", when, healPatience, err)
		return
	}
	r.remark("whole after %s", time.Since(began).Round(10*time.Millisecond))
}

// heal ends all faults and waits until everything is as it should be.
func (r *run) heal(ctx context.Context) {
	if err := r.cluster.Heal(); err != nil {
		r.fail("heal: %v", err)
	}
	if err := r.restart(); err != nil {
		r.fail("heal: %v", err)
	}
	r.awaitHealth(ctx, "at the end")
}

// dumpFiles stops every broker as an operator does, and puts what its files hold into the history.
func (r *run) dumpFiles() {
	var stops sync.WaitGroup
	for _, n := range r.cluster.Nodes {
		stops.Go(func() {
			if err := n.Stop(); err != nil {
				r.fail("%v", err)
			}
		})
	}
	stops.Wait()
	for _, n := range r.cluster.Nodes {
		r.scanFile(n.Index, n.LogFile)
		for _, topic := range r.topics {
			for p := range int32(r.perTopic) {
				if err := r.dumpPartition(n, topic, p); err != nil {
					r.fail("node %d: %v", n.Index, err)
				}
			}
		}
	}
}

// dumpEvery is how many batches stand on one line of the history.
const dumpEvery = 100

// errRot says that a batch has a bad checksum.
var errRot = errors.New("bad checksum")

func (r *run) dumpPartition(n *cluster.Node, topic string, partition int32) error {
	folder := fmt.Sprintf("%s-%d", topic, partition)
	names, err := filepath.Glob(filepath.Join(n.Data, folder, "*.log"))
	if err != nil {
		return err
	}
	slices.Sort(names)
	part := check.Op{F: check.Dump, Type: check.OK, Node: n.Index, Key: check.Key(topic, partition)}
	lines := []check.Op{part} // a replica without a file is one too
	for _, name := range names {
		_, err := log.InspectSegment(vfs.OS(), name, func(b log.BatchInfo) error {
			if !b.CRCValid {
				return fmt.Errorf("%s: the batch at %d: %w", name, b.BaseOffset, errRot)
			}
			o := &lines[len(lines)-1]
			if len(o.Batches) >= dumpEvery {
				lines = append(lines, part)
				o = &lines[len(lines)-1]
			}
			o.Batches = append(o.Batches, check.Batch{Base: b.BaseOffset, Last: b.LastOffset, Epoch: b.LeaderEpoch, CRC: b.CRC})
			if b.Control {
				return nil
			}
			return b.Batch.Each(0, func(rec record.Record) error {
				o.Offsets = append(o.Offsets, b.BaseOffset+int64(rec.OffsetDelta))
				o.Values = append(o.Values, valueOf(rec.Value))
				return nil
			})
		})
		if (errors.Is(err, errRot) || errors.Is(err, log.ErrCorrupt)) && r.rotten[rotKey(n, folder)] {
			// Nobody has read these bytes since they rotted, so nobody has noticed: the scrubber would. What matters is
			// that no other replica has them (I19).
			r.remark("node %d: not found yet: %v", n.Index, err)
			return nil
		}
		if err != nil {
			return err
		}
	}
	for _, o := range lines {
		r.history.Log(o)
	}
	return nil
}

func rotKey(n *cluster.Node, folder string) string { return fmt.Sprintf("%d/%s", n.Index, folder) }

// rotted notes which replica a damage hit; where names the file.
func (r *run) rotted(n *cluster.Node, where string) {
	for _, topic := range r.topics {
		for p := range r.perTopic {
			if folder := fmt.Sprintf("%s-%d", topic, p); strings.Contains(where, folder+"/") {
				if r.rotten == nil {
					r.rotten = map[string]bool{}
				}
				r.rotten[rotKey(n, folder)] = true
			}
		}
	}
}

// Lines that a broker never prints, whatever is done to it.
var badLines = []string{"panic:", "DATA RACE", "fatal error:", "goroutine stack exceeds", "concurrent map"}

// scanFile looks for them in what a node printed.
func (r *run) scanFile(node int, name string) {
	f, err := os.Open(name)
	if err != nil {
		r.fail("node %d: %v", node, err)
		return
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		for _, bad := range badLines {
			if strings.Contains(lines.Text(), bad) {
				r.fail("node %d printed: %.300s", node, lines.Text())
				return
			}
		}
	}
}
