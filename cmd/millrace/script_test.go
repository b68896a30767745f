package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/millrace/millrace/cmd/broker"
)

var update = flag.Bool("update", false, "rewrite the golden outputs in testdata/script; review the diff")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"millrace": main})
}

// TestScript runs each command against a broker and compares what it prints, as a table and as JSON, and for each error
// path the three lines and the exit code.
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       *update,
		Deadline:            time.Now().Add(4 * time.Minute), // a script that waits for ever fails by itself
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", e.WorkDir)
			e.Defer(func() { endDevClusters(e.WorkDir) })
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"broker":    scriptBroker,
			"exits":     scriptExits,
			"scrub":     scriptScrub,
			"child":     scriptChild,
			"signal":    scriptSignal,
			"hang":      scriptHang,
			"uncomment": scriptUncomment,
			"until":     scriptUntil,
		},
	})
}

// endDevClusters ends the dev clusters that a script has left running, as one that failed does.
func endDevClusters(work string) {
	for _, dir := range []string{"config", ".config/millrace"} {
		states, err := (&devStates{filepath.Join(work, dir, "dev")}).all()
		if err != nil {
			continue
		}
		for _, s := range states {
			for _, b := range s.Brokers {
				b.kill()
			}
			s.Supervisor.kill()
		}
	}
}

// scriptBroker: broker [KEY=VALUE…] starts a broker in this process for the rest of the script, on free ports, data in
// $DATA, and points MILLRACE_BROKERS at it. "broker stop" stops it.
func scriptBroker(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) == 1 && args[0] == "stop" {
		b, ok := scriptBrokers.LoadAndDelete(ts.Getenv("WORK"))
		if !ok {
			ts.Fatalf("no broker runs")
		}
		ts.Check(b.(*broker.Broker).Close())
		return
	}
	s, err := broker.ReadSettings(broker.Layers{Set: args})
	ts.Check(err)
	for _, kv := range [][2]string{{"listeners", "PLAINTEXT://127.0.0.1:0"}, {"millrace.http.listener", "127.0.0.1:0"}, {"group.initial.rebalance.delay.ms", "0"}} {
		if _, ok := s.IsSet(kv[0]); !ok {
			ts.Check(s.Put(kv[0], kv[1], "script"))
		}
	}
	data := ts.MkAbs("data")
	cfg, err := broker.FromSettings(s, broker.Options{DataDir: data})
	ts.Check(err)
	cfg.Log.WALInitialBytes, cfg.Log.WALFileBytes = 1<<20, 1<<20
	cfg.Logger = slog.New(slog.DiscardHandler)
	b, err := broker.New(cfg)
	ts.Check(err)
	go b.Run(context.Background())
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ts.Check(b.Ready(ctx))
	scriptBrokers.Store(ts.Getenv("WORK"), b)
	ts.Defer(func() { _ = b.Close() })
	ts.Setenv("MILLRACE_BROKERS", b.Addrs()["PLAINTEXT"].String())
	ts.Setenv("MILLRACE_ADMIN", b.Addrs()["HTTP"].String())
	ts.Setenv("DATA", data)
}

// scriptBrokers has the broker of each running script, by its work directory.
var scriptBrokers sync.Map

// scriptExits: exits CODE COMMAND… runs a command that must end with that code. When the code is not 0, or 3 or 5 which
// come with results, stderr must have the three lines of an error and nothing else.
func scriptExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Check(err)
	}
	stderr := ts.ReadFile("stderr")
	if got != want {
		ts.Fatalf("exit code %d, want %d\nstdout: %s\nstderr: %s", got, want, ts.ReadFile("stdout"), stderr)
	}
	if got == 0 || got == exitCondition {
		return
	}
	lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
	if n := len(lines); n < 3 || !strings.HasPrefix(lines[n-3], "error: ") || !strings.HasPrefix(lines[n-2], "why:   ") || !strings.HasPrefix(lines[n-1], "fix:   ") {
		ts.Fatalf("stderr does not end with the three lines of an error:\n%s", stderr)
	}
}

// What changes from run to run, and what stands for it. Replacements are as long as what they replace where a table
// would move otherwise.
var scrubs = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`millrace-[A-Za-z0-9_-]{22}`), "millrace-AAAAAAAAAAAAAAAAAAAAAA"},
	{regexp.MustCompile(`(?m)("(?:id|topic_id|log_id)": ?"|  |id: |topicId: |logId: )[A-Za-z0-9_-]{22}("|  |$)`), "${1}BBBBBBBBBBBBBBBBBBBBBB${2}"},
	{regexp.MustCompile(`\b1[789]\d{11}\b`), "1700000000000"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "127.0.0.1:PORT"},
	{regexp.MustCompile(`"port": \d+`), `"port": PORT`},
	{regexp.MustCompile(`127\.0\.0\.1  \d{5}`), "127.0.0.1  PORT_"},
	{regexp.MustCompile(`in \d+(\.\d+)?m?s\b`), "in TIME"},
	// Groups: ids of members, ages, names of files with a time.
	{regexp.MustCompile(`millrace-cli-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "millrace-cli-MEMBER"},
	{regexp.MustCompile(`"(lag_ms|max_lag_ms|retention_left_ms|since_ms|seen_ms|committed_ms|ago_ms)": \d+`), `"$1": N`},
	{regexp.MustCompile(`-\d{8}T\d{6}\.\d{3}Z\.json`), "-TIME.json"},
	{regexp.MustCompile(`≈ (\d+[dhms])+\)`), "≈ AGE)"},
	{regexp.MustCompile(` +([1-9]\d*[dhms]\d*[hms]?) +(millrace-cli-|-  )`), "  AGE  ${2}"},
	{regexp.MustCompile(`(?m)^(TOPIC .*LAG) +(LAG-TIME) +`), "${1}  ${2}  "},
	{regexp.MustCompile(`no rebalance for \d+s`), "no rebalance for AGE"},
	{regexp.MustCompile(`went \d+s ago`), "went AGE ago"},
	// What dev says of its processes.
	{regexp.MustCompile(`(?m)^( +\d+  (?:running|killed|stopped|exited) +)\S+( +127\.0\.0\.1:)\S+( +127\.0\.0\.1:)\S+ +\d+s$`), "${1}PID${2}PORT${3}PORT  FOR"},
	{regexp.MustCompile(`(?m)^BROKER +STATE +PID +CLIENTS +HTTP +FOR$`), "BROKER  STATE  PID  CLIENTS  HTTP  FOR"},
	{regexp.MustCompile(`"(pid|started|since|began|took|port)": ("[^"]*"|\d+)`), `"$1": "X"`},
	{regexp.MustCompile(`millrace-dev-\d+`), "millrace-dev-N"},
	// What doctor finds of the machine, well or not.
	{regexp.MustCompile(`(?m)^(?:ok|warning) +(open files|disk space) .*\n(?: +fix: .*\n)?`), "STATUS  $1\n"},
	{regexp.MustCompile(`(?m)("check": "(?:open files|disk space)",\n) +"status": "(?:ok|warning)",\n +"message": .*\n +"fix": .*\n`), "$1"},
	{regexp.MustCompile(`[0-9a-f]{32}`), "INCARNATION"},
	{regexp.MustCompile(`("server": "\d+-)[^"]*"`), `${1}DIRECTORY"`},
	{regexp.MustCompile(`"((?:usable|volume|size)_bytes|(?:last|commit)_index|term|metadata_version|high_watermark|log_end_offset|last_fetch_ms|last_caught_up_ms)": -?\d+`), `"$1": N`},
	{regexp.MustCompile(`crc: \d+`), "crc: CRC"},
	{regexp.MustCompile(`"crc":\d+`), `"crc":CRC`},
}

// scriptScrub: scrub FROM TO copies a file (or stdout, stderr) with everything that changes from run to run replaced.
func scriptScrub(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: scrub FROM TO")
	}
	text := ts.ReadFile(args[0])
	for _, s := range scrubs {
		text = s.pattern.ReplaceAllString(text, s.with)
	}
	text = strings.ReplaceAll(text, ts.Getenv("WORK"), "WORK")
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(text), 0o600))
}

// scriptUntil: until PATTERN COMMAND… runs a command until it succeeds and its stdout matches.
func scriptUntil(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until PATTERN COMMAND…")
	}
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for range 400 {
		if err := ts.Exec(args[1], args[2:]...); err == nil && pattern.MatchString(ts.ReadFile("stdout")) {
			return
		}
		<-poll.C
	}
	ts.Fatalf("%s does not come: %s%s", args[0], ts.ReadFile("stdout"), ts.ReadFile("stderr"))
}

// child is a millrace process of a script.
type child struct {
	cmd    *exec.Cmd
	stderr *bytes.Buffer
	stdout *bytes.Buffer
	first  chan string // the first line of stdout
	done   chan error
}

var scriptChildren sync.Map // by work directory

// scriptChild: child ARGS… starts millrace and waits for the first line on its stdout, which must be the bootstrap
// address: MILLRACE_BROKERS.
func scriptChild(ts *testscript.TestScript, neg bool, args []string) {
	path, err := exec.LookPath(filepath.Join(strings.Split(ts.Getenv("PATH"), string(os.PathListSeparator))[0], "millrace"))
	ts.Check(err)
	c := &child{cmd: exec.Command(path, args...), stderr: &bytes.Buffer{}, stdout: &bytes.Buffer{}, first: make(chan string, 1), done: make(chan error, 1)}
	c.cmd.Dir = ts.MkAbs(".")
	c.cmd.Env = append(os.Environ(), "TMPDIR="+ts.MkAbs("tmp"), "HOME="+ts.Getenv("HOME"), "XDG_CONFIG_HOME=", "MILLRACE_CONFIG_DIR="+ts.Getenv("MILLRACE_CONFIG_DIR"), "MILLRACE_BROKERS=")
	c.cmd.Stderr = c.stderr
	ts.Check(os.MkdirAll(ts.MkAbs("tmp"), 0o700))
	out, err := c.cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(c.cmd.Start())
	go func() {
		r := bufio.NewReader(out)
		line, _ := r.ReadString('\n')
		c.stdout.WriteString(line)
		c.first <- strings.TrimSpace(line)
		_, _ = io.Copy(c.stdout, r)
		c.done <- c.cmd.Wait()
	}()
	ts.Defer(func() { _ = c.cmd.Process.Kill() })
	scriptChildren.Store(ts.Getenv("WORK"), c)
	select {
	case line := <-c.first:
		if line == "" {
			<-c.done
			ts.Fatalf("millrace %v ended: %v\n%s", args, c.cmd.ProcessState, c.stderr)
		}
		ts.Setenv("MILLRACE_BROKERS", line)
	case <-time.After(time.Minute):
		ts.Fatalf("millrace %v says nothing\n", args)
	}
}

// scriptSignal: signal NAME CODE sends a signal to the child, which must end with that exit code; its streams are then
// in the files child.stdout and child.stderr.
func scriptSignal(ts *testscript.TestScript, neg bool, args []string) {
	v, ok := scriptChildren.LoadAndDelete(ts.Getenv("WORK"))
	if !ok || len(args) != 2 {
		ts.Fatalf("usage: signal NAME CODE, after child")
	}
	c := v.(*child)
	signals := map[string]os.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL}
	ts.Check(c.cmd.Process.Signal(signals[args[0]]))
	select {
	case <-c.done:
	case <-time.After(time.Minute):
		ts.Fatalf("the process does not end on SIG%s", args[0])
	}
	if got := strconv.Itoa(c.cmd.ProcessState.ExitCode()); got != args[1] {
		ts.Fatalf("exit code %s after SIG%s, want %s\n%s", got, args[0], args[1], c.stderr)
	}
	ts.Check(os.WriteFile(ts.MkAbs("child.stdout"), c.stdout.Bytes(), 0o600))
	ts.Check(os.WriteFile(ts.MkAbs("child.stderr"), c.stderr.Bytes(), 0o600))
}

// scriptHang: hang points MILLRACE_BROKERS at something that accepts connections and never answers.
func scriptHang(ts *testscript.TestScript, neg bool, args []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { _ = l.Close() })
	ts.Setenv("MILLRACE_BROKERS", l.Addr().String())
}

// scriptUncomment: uncomment FROM TO takes the # off every "#key=value" that has a value.
func scriptUncomment(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: uncomment FROM TO")
	}
	text := regexp.MustCompile(`(?m)^#([a-z.0-9]+=.+)$`).ReplaceAllString(ts.ReadFile(args[0]), "$1")
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(text), 0o600))
}
