package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/integration/cluster"
	"github.com/millrace/millrace/integration/peer"
)

// A broker is one process of a system.
type broker interface {
	// address is where clients find it, host:port.
	address() string
	// tail is the end of what it printed; valid after Done.
	tail() string
	Pid() int
	Start() error
	Kill() error
	Done() <-chan struct{}
}

// ours and theirs are the two kinds of broker.
type (
	ours   struct{ *cluster.Node }
	theirs struct{ *peer.Kafka }
)

func (o ours) address() string   { return o.Addr }
func (o ours) tail() string      { return o.LogTail(4 << 10) }
func (t theirs) address() string { return t.Addr }
func (t theirs) tail() string    { return t.Output() }

// A system is the brokers of one cluster: one or three.
type system struct {
	name    string
	brokers []broker
	release func() error // what else ends with it; nil for nothing
	started time.Time
	made    map[string]bool // topics that several rows use
	client  *kgo.Client
	adm     *kadm.Client
}

// openMillrace prepares our brokers on empty directories, as shipped. Nothing runs yet.
func openMillrace(binary, dir string, brokers int) (*system, error) {
	// An empty GOMAXPROCS is none: the fault runs set it.
	c, err := cluster.Open(cluster.Config{Binary: binary, Dir: filepath.Join(dir, "millrace"), Brokers: brokers, Env: []string{"GOMAXPROCS="}})
	if err != nil {
		return nil, err
	}
	s := &system{name: "millrace", release: c.Close, made: map[string]bool{}}
	for _, n := range c.Nodes {
		s.brokers = append(s.brokers, ours{n})
	}
	return s, nil
}

// openKafka prepares nodes of Apache Kafka on formatted directories. Nothing runs yet.
func openKafka(ctx context.Context, dir string, brokers int) (*system, error) {
	nodes, err := peer.FormatKafka(ctx, dir, brokers)
	if err != nil {
		return nil, err
	}
	s := &system{name: "kafka", made: map[string]bool{}}
	for _, k := range nodes {
		s.brokers = append(s.brokers, theirs{k})
	}
	return s, nil
}

// openSystem prepares one of the two, by its place in bench.systems.
func openSystem(ctx context.Context, which int, binary, dir string, brokers int) (*system, error) {
	if which == 0 {
		return openMillrace(binary, dir, brokers)
	}
	return openKafka(ctx, dir, brokers)
}

// start makes the processes and waits for the first answer to a Metadata request that names all of them. It returns the
// time since the first process was made.
func (s *system) start(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	s.started = time.Now()
	for _, b := range s.brokers {
		if err := b.Start(); err != nil {
			return 0, err
		}
	}
	first := s.brokers[0]
	for {
		n, err := peer.CountBrokers(ctx, first.address())
		if err == nil && n >= len(s.brokers) {
			return time.Since(s.started), s.connect()
		}
		select {
		case <-first.Done():
			return 0, fmt.Errorf("%s ended at its start:\n%s", s.name, first.tail())
		case <-ctx.Done():
			return 0, fmt.Errorf("%s does not answer: %d brokers, %w", s.name, n, err)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (s *system) connect() error {
	client, err := kgo.NewClient(kgo.SeedBrokers(s.seeds()...), kgo.MetadataMinAge(50*time.Millisecond), kgo.ProducerLinger(0),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }))
	if err != nil {
		return err
	}
	s.client, s.adm = client, kadm.NewClient(client)
	return nil
}

// seeds are the addresses of the brokers.
func (s *system) seeds() (out []string) {
	for _, b := range s.brokers {
		out = append(out, b.address())
	}
	return out
}

// close ends the processes; their data is of no more use.
func (s *system) close() error {
	if s.client != nil {
		s.client.Close()
	}
	var errs []error
	for _, b := range s.brokers {
		errs = append(errs, b.Kill())
	}
	if s.release != nil {
		errs = append(errs, s.release())
	}
	return errors.Join(errs...)
}

// create makes a topic with a replica on each broker, all but one of which must have a record, and waits until its
// partitions have leaders and all replicas in step. The cluster may still be starting.
func (s *system) create(ctx context.Context, topic string, partitions int, configs map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	values := map[string]*string{"file.delete.delay.ms": kadm.StringPtr("1000")}
	if len(s.brokers) > 1 {
		values["min.insync.replicas"] = kadm.StringPtr(strconv.Itoa(len(s.brokers) - 1))
	}
	for k, v := range configs {
		values[k] = &v
	}
	for {
		_, err := s.adm.CreateTopic(ctx, int32(partitions), int16(len(s.brokers)), values, topic)
		if err == nil || errors.Is(err, kerr.TopicAlreadyExists) { // after an answer that said otherwise
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("create topic %s at %s: %w", topic, s.name, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	for {
		m, err := s.adm.Metadata(ctx, topic)
		if err == nil {
			t := m.Topics[topic]
			ready := 0
			for _, p := range t.Partitions {
				if p.Err == nil && p.Leader >= 0 && len(p.ISR) == len(s.brokers) {
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

// cpu is the CPU time of the processes so far, in all their threads.
func (s *system) cpu() (sum time.Duration, err error) {
	for _, b := range s.brokers {
		var ts unix.Timespec
		clock := int32(^b.Pid()<<3 | 2) // the kernel's CPU clock of that process, as scheduled: utime and stime to the ns
		if err := unix.ClockGettime(clock, &ts); err != nil {
			return 0, fmt.Errorf("read the CPU clock of %s: %w", s.name, err)
		}
		sum += time.Duration(ts.Nano())
	}
	return sum, nil
}

// memory is the sum over the processes of a field of /proc/PID/status in MiB: VmRSS, VmHWM.
func (s *system) memory(field string) (sum float64, err error) {
	for _, b := range s.brokers {
		mib, err := memoryOf(b.Pid(), field)
		if err != nil {
			return 0, fmt.Errorf("read the memory of %s: %w", s.name, err)
		}
		sum += mib
	}
	return sum, nil
}

func memoryOf(pid int, field string) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(value, "kB")), 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("no %s in the status of process %d", field, pid)
}

// outcome is what a bench command prints, as far as it is used here, and what was seen meanwhile.
type outcome struct {
	Records   float64 `json:"records"`
	PerSecond float64 `json:"records_per_second"`
	Latency   struct {
		P50  float64 `json:"p50_ms"`
		P99  float64 `json:"p99_ms"`
		P999 float64 `json:"p99_9_ms"`
	} `json:"latency"`

	// Of transactions.
	Transactions          float64 `json:"transactions"`
	TransactionsPerSecond float64 `json:"transactions_per_second"`
	Commit                struct {
		P50 float64 `json:"p50_ms"`
		P99 float64 `json:"p99_ms"`
	} `json:"commit"`

	OffsetsPerSecond float64 `json:"offsets_per_second"` // of consume

	cpu    time.Duration // of all brokers
	others float64       // share of the cores, in percent, that neither brokers nor client used: other work on the machine, kernel threads
}

// drive runs `millrace bench ARGS` against the brokers and returns what it measured.
func (s *system) drive(ctx context.Context, binary string, args ...string) (o outcome, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, append([]string{"bench"}, append(args, "-b", strings.Join(s.seeds(), ","), "--format", "json", "--quiet")...)...)
	var out, talk bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &talk
	before, err := s.cpu()
	if err != nil {
		return o, err
	}
	began, busy := time.Now(), machineCPU()
	if err := cmd.Run(); err != nil {
		return o, fmt.Errorf("millrace bench %s at %s: %w\n%s", strings.Join(args, " "), s.name, err, talk.String())
	}
	took := time.Since(began)
	after, err := s.cpu()
	if err != nil {
		return o, err
	}
	if err := json.Unmarshal(out.Bytes(), &o); err != nil {
		return o, fmt.Errorf("read what millrace bench printed: %w", err)
	}
	if o.Records == 0 {
		return o, errors.New("nothing was measured")
	}
	o.cpu = after - before
	rest := machineCPU() - busy - o.cpu - cmd.ProcessState.UserTime() - cmd.ProcessState.SystemTime()
	o.others = max(0, 100*rest.Seconds()/took.Seconds()/float64(runtime.NumCPU()))
	return o, nil
}

// machineCPU is the time that all cores together were busy so far, to 10 ms, what the host took from them included; 0
// when the kernel does not say.
func machineCPU() (busy time.Duration) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	const tick = 10 * time.Millisecond
	for i, f := range strings.Fields(line) {
		switch i { // cpu user nice system idle iowait irq softirq steal
		case 1, 2, 3, 6, 7, 8:
			n, _ := strconv.ParseInt(f, 10, 64)
			busy += time.Duration(n) * tick
		}
	}
	return busy
}
