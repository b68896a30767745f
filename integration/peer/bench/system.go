package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/integration/peer"
)

// A system is one running broker.
type system struct {
	name    string
	addr    string
	pid     int
	started time.Time
	stop    func()
	done    <-chan struct{}
	output  func() string // after done
	adm     *kadm.Client
	client  *kgo.Client
}

// startMillrace starts our broker on an empty directory.
func startMillrace(binary, dir string) (*system, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	http, err := freeAddr()
	if err != nil {
		return nil, err
	}
	var output bytes.Buffer
	cmd := exec.Command(binary, "start", "--data", filepath.Join(dir, "millrace-data"), "--log-level", "warn",
		"--set", "listeners=PLAINTEXT://"+addr, "--set", "millrace.http.listener="+http)
	cmd.Stdout, cmd.Stderr = &output, &output
	s := &system{name: "millrace", addr: addr, started: time.Now()}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start millrace: %w", err)
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	s.pid, s.done, s.output = cmd.Process.Pid, done, output.String
	s.stop = func() {
		_ = cmd.Process.Signal(os.Interrupt)
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			_ = cmd.Process.Kill()
			<-done
		}
	}
	return s, nil
}

// startKafka starts Apache Kafka on a formatted directory.
func startKafka(ctx context.Context, dir string) (*system, error) {
	k, err := peer.StartKafka(ctx, dir)
	if err != nil {
		return nil, err
	}
	return &system{name: "kafka", addr: k.Addr, pid: k.Pid, started: k.Started, stop: k.Close, done: k.Done(), output: k.Output}, nil
}

// serve waits for the first answer to a Metadata request that names a broker
// and returns the time since the process was made.
func (s *system) serve(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		err := peer.AskMetadata(ctx, s.addr)
		if err == nil {
			return time.Since(s.started), s.connect()
		}
		select {
		case <-s.done:
			return 0, fmt.Errorf("%s ended at its start:\n%s", s.name, s.output())
		case <-ctx.Done():
			return 0, fmt.Errorf("%s does not answer: %w", s.name, err)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (s *system) connect() error {
	client, err := kgo.NewClient(kgo.SeedBrokers(s.addr), kgo.MetadataMinAge(50*time.Millisecond))
	if err != nil {
		return err
	}
	s.client, s.adm = client, kadm.NewClient(client)
	return nil
}

// close stops the broker.
func (s *system) close() {
	if s.client != nil {
		s.client.Close()
	}
	s.stop()
}

// create makes a topic and waits until its partitions have leaders.
func (s *system) create(ctx context.Context, topic string, partitions int, configs map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	values := map[string]*string{"file.delete.delay.ms": kadm.StringPtr("1000")}
	for k, v := range configs {
		values[k] = &v
	}
	if _, err := s.adm.CreateTopic(ctx, int32(partitions), 1, values, topic); err != nil {
		return fmt.Errorf("create topic %s at %s: %w", topic, s.name, err)
	}
	for {
		m, err := s.adm.Metadata(ctx, topic)
		if err == nil {
			t := m.Topics[topic]
			ready := 0
			for _, p := range t.Partitions {
				if p.Err == nil && p.Leader >= 0 {
					ready++
				}
			}
			if t.Err == nil && ready == partitions {
				// Kafka tells of a leader a moment before it is one.
				if offsets, err := s.adm.ListEndOffsets(ctx, topic); err == nil && offsets.Error() == nil {
					return nil
				}
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("topic %s at %s gets no leaders: %w", topic, s.name, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// remove deletes a topic.
func (s *system) remove(ctx context.Context, topic string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	_, err := s.adm.DeleteTopic(ctx, topic)
	return err
}

// cpu is the CPU time of the process so far, in all its threads.
func (s *system) cpu() (time.Duration, error) {
	var ts unix.Timespec
	clock := int32(^s.pid<<3 | 2) // the kernel's CPU clock of that process, as scheduled: utime and stime to the ns
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0, fmt.Errorf("read the CPU clock of %s: %w", s.name, err)
	}
	return time.Duration(ts.Nano()), nil
}

// memory reads a field of /proc/PID/status in MiB: VmRSS, VmHWM.
func (s *system) memory(field string) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(value, "kB")), 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("no %s in the status of %s", field, s.name)
}

// outcome is what a bench command prints, as far as it is used here.
type outcome struct {
	Records   float64 `json:"records"`
	PerSecond float64 `json:"records_per_second"`
	Latency   struct {
		P50  float64 `json:"p50_ms"`
		P99  float64 `json:"p99_ms"`
		P999 float64 `json:"p99_9_ms"`
	} `json:"latency"`
}

// drive runs `millrace bench ARGS` against the broker and returns what it
// measured and the CPU time that the broker used meanwhile.
func (s *system) drive(ctx context.Context, binary string, args ...string) (outcome, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, append([]string{"bench"}, append(args, "-b", s.addr, "--format", "json", "--quiet")...)...)
	var out, talk bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &talk
	before, err := s.cpu()
	if err != nil {
		return outcome{}, 0, err
	}
	if err := cmd.Run(); err != nil {
		return outcome{}, 0, fmt.Errorf("millrace bench %s at %s: %w\n%s", strings.Join(args, " "), s.name, err, talk.String())
	}
	after, err := s.cpu()
	if err != nil {
		return outcome{}, 0, err
	}
	var o outcome
	if err := json.Unmarshal(out.Bytes(), &o); err != nil {
		return o, 0, fmt.Errorf("read what millrace bench printed: %w", err)
	}
	if o.Records == 0 {
		return o, 0, errors.New("nothing was measured")
	}
	return o, after - before, nil
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
