package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// A producer whose latency is to be measured beside other clients runs in a process of its own, as producers do: in that of a
// thousand members its answers would wait for their turn behind those of the members.

// producerVariable says in the environment that this process is such a producer, of the load in its value.
const producerVariable = "MILLRACE_SCALE_PRODUCER"

// producerOrder is what a producer is told, producerReport what it tells, several times a second.
type (
	producerOrder struct {
		Seeds             []string
		Topic             string
		Partitions, Bytes int
		Interval          time.Duration
	}
	producerReport struct {
		At, Took []int64 // of acknowledgements, in ns: when, since 1970, and how long
		Errors   []string
	}
)

// reportEvery is how often a producer reports.
const reportEvery = 200 * time.Millisecond

// startApart is start in another process, whose pid it returns.
func (l *load) startApart(seeds []string, topic string, partitions int, interval time.Duration, bytes int) (end func(), pid int, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, 0, err
	}
	order, err := json.Marshal(producerOrder{seeds, topic, partitions, bytes, interval})
	if err != nil {
		return nil, 0, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), producerVariable+"="+string(order))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe() // its end is the producer's
	if err != nil {
		return nil, 0, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, 0, err
	}
	if err := cmd.Start(); err != nil {
		return nil, 0, err
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		reports := json.NewDecoder(out)
		for {
			var r producerReport
			if reports.Decode(&r) != nil {
				return
			}
			l.mu.Lock()
			for i, at := range r.At {
				l.acks = append(l.acks, ack{time.Unix(0, at), time.Duration(r.Took[i])})
			}
			for _, text := range r.Errors {
				l.errs = append(l.errs, errors.New(text))
			}
			l.mu.Unlock()
		}
	}()
	return func() {
		_ = in.Close()
		<-read
		_ = cmd.Wait()
	}, cmd.Process.Pid, nil
}

// produceApart is the other process: it produces until its input ends.
func produceApart(order string) error {
	var o producerOrder
	if err := json.NewDecoder(strings.NewReader(order)).Decode(&o); err != nil {
		return fmt.Errorf("read %s: %w", producerVariable, err)
	}
	var l load
	end, err := l.start(o.Seeds, o.Topic, o.Partitions, o.Interval, o.Bytes)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer stop()
		_, _ = os.Stdin.Read(make([]byte, 1))
	}()
	out := json.NewEncoder(os.Stdout)
	for err == nil {
		last := pause(ctx, reportEvery) != nil
		if last {
			end()
		}
		l.mu.Lock()
		acks, errs := l.acks, l.errs
		l.acks, l.errs = nil, nil
		l.mu.Unlock()
		var r producerReport
		for _, a := range acks {
			r.At, r.Took = append(r.At, a.at.UnixNano()), append(r.Took, int64(a.took))
		}
		for _, e := range errs {
			r.Errors = append(r.Errors, e.Error())
		}
		if err = out.Encode(r); last {
			return err
		}
	}
	end()
	return err
}
