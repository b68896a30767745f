//go:build linux

package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sys/unix"
)

// partyEnv makes the test binary one party beside a broker: its value is a party.
const partyEnv = "MILLRACE_HOSTILE_PARTY"

// A party is a process that does one thing to a broker until its standard input
// ends: the bad client, the good one, or one that burns CPU and touches nothing. It
// prints "ready", and its report as JSON at the end.
type party struct {
	Role   string // attack, good, burn
	Addr   string
	Attack string  // of an attack: its name
	Rate   int     // of a good client: records a second, 0 for as many as it can
	Cores  float64 // of burn: how many cores
}

// TestHostileParty is not a test: it is the process that startParty starts.
func TestHostileParty(t *testing.T) {
	env := os.Getenv(partyEnv)
	if env == "" {
		t.Skip("the process of a test")
	}
	var p party
	require.NoError(t, json.Unmarshal([]byte(env), &p))
	ctx, cancel := context.WithCancel(context.Background())
	commands := bufio.NewScanner(os.Stdin)
	ready := func() { fmt.Println("ready") }
	var report any
	var err error
	done := make(chan struct{})
	var good *goodClient
	if p.Role == "good" {
		good = &goodClient{}
	}
	go func() {
		defer close(done)
		switch p.Role {
		case "attack":
			var a attack
			if a, err = attackNamed(p.Attack); err == nil {
				report = a.run(ctx, p.Addr, ready)
			}
		case "good":
			err = good.run(ctx, p.Addr, p.Rate, ready)
		case "burn":
			ready()
			burn(ctx, p.Cores)
		}
	}()
	for commands.Scan() {
		switch commands.Text() {
		case "begin":
			good.begin()
			fmt.Println("begun")
		case "report":
			fmt.Println(string(good.report()))
		}
	}
	cancel()
	<-done
	require.NoError(t, err)
	if report != nil {
		out, _ := json.Marshal(report)
		fmt.Println(string(out))
	}
}

// A partner is the parent's side of a party.
type partner struct {
	t    testing.TB
	cmd  *exec.Cmd
	in   *os.File
	out  *bufio.Reader
	said bytes.Buffer
}

// startParty starts a party, in the control groups of wrap, and waits until it is
// ready.
func startParty(t testing.TB, p party, wrap ...string) *partner {
	t.Helper()
	env, err := json.Marshal(p)
	require.NoError(t, err)
	line := append(slices.Clone(wrap), os.Args[0], "-test.run=^TestHostileParty$", "-test.timeout=10m")
	s := &partner{t: t, cmd: exec.Command(line[0], line[1:]...)}
	s.cmd.Env = append(os.Environ(), partyEnv+"="+string(env))
	r, w, err := os.Pipe()
	require.NoError(t, err)
	s.cmd.Stdin, s.in = r, w
	s.cmd.Stderr = &s.said
	out, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, s.cmd.Start())
	_ = r.Close()
	s.out = bufio.NewReader(out)
	t.Cleanup(s.kill)
	s.expect("ready")
	return s
}

func (s *partner) kill() {
	if s.in != nil {
		_ = s.in.Close()
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.in = nil
	}
}

func (s *partner) line() string {
	s.t.Helper()
	line, err := s.out.ReadString('\n')
	if err != nil {
		rest := s.said.String()
		s.kill()
		s.t.Fatalf("a party ended: %v: %s%s", err, line, rest)
	}
	return strings.TrimSpace(line)
}

func (s *partner) expect(want string) {
	s.t.Helper()
	for line := s.line(); line != want; line = s.line() {
		s.t.Logf("party: %s", line)
	}
}

// say sends a command and returns the first line of the answer.
func (s *partner) say(command string) string {
	s.t.Helper()
	_, err := fmt.Fprintln(s.in, command)
	require.NoError(s.t, err)
	return s.line()
}

// end stops the party, which reports into v if that isn't nil.
func (s *partner) end(v any) {
	s.t.Helper()
	_ = s.in.Close()
	if v != nil {
		line := s.line()
		require.NoError(s.t, json.Unmarshal([]byte(line), v), line)
	}
	for {
		if _, err := s.out.ReadString('\n'); err != nil {
			break
		}
	}
	_ = s.cmd.Wait()
	s.in = nil
}

// cpu is the CPU time that the process has used.
func (s *partner) cpu() time.Duration { return cpuOf(s.t, s.cmd.Process.Pid) }

func cpuOf(t testing.TB, pid int) time.Duration {
	var ts unix.Timespec
	require.NoError(t, unix.ClockGettime(int32(^pid<<3|2), &ts)) // the kernel's CPU clock of that process, as scheduled
	return time.Duration(ts.Nano())
}

// burn keeps so many cores busy, in slices of a few milliseconds.
func burn(ctx context.Context, cores float64) {
	const slice = 4 * time.Millisecond
	clock := func() time.Duration {
		var ts unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts)
		return time.Duration(ts.Nano())
	}
	began, before := time.Now(), clock()
	threads := max(1, int(cores+0.999))
	done := make(chan struct{})
	for range threads {
		go func() {
			for ctx.Err() == nil {
				// As much as is owed since the beginning, and sleep when nothing is: a slice
				// that another process took is made up for.
				if owed := time.Duration(float64(time.Since(began)) * cores); clock()-before >= owed {
					pause(ctx, slice)
					continue
				}
				for t := time.Now(); time.Since(t) < slice/4; { //nolint:revive // that is the point
				}
			}
			done <- struct{}{}
		}()
	}
	for range threads {
		<-done
	}
}

// goodTopic is the good client's, of goodPartitions.
const (
	goodTopic      = "good"
	goodPartitions = 4
	goodValueBytes = 1 << 10
)

// goodClient produces and reads what it produced, by a real client library.
type goodClient struct {
	produced, fetched atomic.Int64
	failed            atomic.Pointer[string]
	latencies         chan time.Duration

	since     time.Time
	produced0 int64
	fetched0  int64
}

// goodReport is what a good client managed since it was told to begin.
type goodReport struct {
	Produced, Fetched float64 // records a second
	P50, P99, Max     float64 // ms from when a record was due to its acknowledgement
	Failed            string
}

func (g *goodClient) run(ctx context.Context, addr string, rate int, ready func()) error {
	g.latencies = make(chan time.Duration, 1<<20)
	producer, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(5*time.Millisecond), kgo.MaxBufferedRecords(20_000))
	if err != nil {
		return err
	}
	defer producer.Close()
	consumer, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumeTopics(goodTopic), kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()))
	if err != nil {
		return err
	}
	defer consumer.Close()
	go func() {
		for ctx.Err() == nil {
			fetches := consumer.PollFetches(ctx)
			if err := fetches.Err(); err != nil && ctx.Err() == nil {
				text := err.Error()
				g.failed.Store(&text)
				return
			}
			g.fetched.Add(int64(fetches.NumRecords()))
		}
	}()
	value := bytes.Repeat([]byte("good"), goodValueBytes/4)
	began := time.Now()
	for n := 0; ctx.Err() == nil; n++ {
		due := time.Now()
		if rate > 0 { // open loop: a record that is late counts from when it was due
			due = began.Add(time.Duration(n) * time.Second / time.Duration(rate))
			if d := time.Until(due); d > 0 {
				pause(ctx, max(d, time.Millisecond))
			}
		}
		producer.Produce(ctx, &kgo.Record{Topic: goodTopic, Value: value}, func(_ *kgo.Record, err error) {
			switch {
			case err == nil:
				if g.produced.Add(1) == 1 {
					ready()
				}
				select {
				case g.latencies <- time.Since(due):
				default:
				}
			case ctx.Err() == nil:
				text := err.Error()
				g.failed.Store(&text)
			}
		})
	}
	return nil
}

func (g *goodClient) begin() {
	for len(g.latencies) > 0 {
		<-g.latencies
	}
	g.since, g.produced0, g.fetched0 = time.Now(), g.produced.Load(), g.fetched.Load()
}

func (g *goodClient) report() []byte {
	var all []time.Duration
	for len(g.latencies) > 0 {
		all = append(all, <-g.latencies)
	}
	seconds := time.Since(g.since).Seconds()
	r := goodReport{Produced: float64(g.produced.Load()-g.produced0) / seconds, Fetched: float64(g.fetched.Load()-g.fetched0) / seconds}
	if text := g.failed.Load(); text != nil {
		r.Failed = *text
	}
	if slices.Sort(all); len(all) > 0 {
		at := func(q float64) float64 { return float64(all[int(q*float64(len(all)-1))].Microseconds()) / 1e3 }
		r.P50, r.P99, r.Max = at(0.5), at(0.99), at(1)
	}
	out, _ := json.Marshal(r)
	return out
}
