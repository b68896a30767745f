package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// devTail is how many lines of a failed broker's log are shown.
const devTail = 20

// devChild is the process of one broker.
type devChild struct {
	id  int
	cmd *exec.Cmd
	// stdin is open as long as the supervisor lives: a broker whose stdin ends stops by itself.
	stdin io.Closer
	began time.Time
	logAt int64 // where this run's lines begin in the log file
	log   string
	http  string
	// intent is what the supervisor has asked for: "", devStopped or devKilled.
	intent atomic.Pointer[string]
	done   chan struct{} // closed once the process has ended and exit is set
	exit   string
}

// spawn starts the process of a broker.
func (s *supervisor) spawn(p devPorts, arguments []string) (*devChild, error) {
	executable, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the program to start broker %d with: %w", p.ID, err)
	}
	name := brokerLog(s.dir, p.ID)
	out, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of broker %d: %w", p.ID, err)
	}
	defer out.Close() // the child has its own
	info, err := out.Stat()
	if err != nil {
		return nil, fmt.Errorf("open the log of broker %d: %w", p.ID, err)
	}
	c := &devChild{id: p.ID, began: time.Now(), logAt: info.Size(), log: name, http: loopback(p.HTTP), done: make(chan struct{})}
	c.cmd = &exec.Cmd{Path: executable, Args: append([]string{"millrace"}, arguments...), Stdout: out, Stderr: out, Env: os.Environ(), SysProcAttr: ownGroup()}
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("make the stdin of broker %d: %w", p.ID, err)
	}
	closeInherited()
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the process of broker %d: %w", p.ID, err)
	}
	go func() {
		err := c.cmd.Wait()
		c.exit = c.cmd.ProcessState.String()
		if err == nil {
			c.exit = "exit status 0"
		}
		s.ended(c) // first: who waits for done reads the state next
		close(c.done)
	}()
	return c, nil
}

// asked says what the supervisor has asked of the process.
func (c *devChild) asked() string {
	if p := c.intent.Load(); p != nil {
		return *p
	}
	return ""
}

// stop asks the process to stop, and ends it when it has not after the grace time, or devLastGrace after hurry is closed;
// nil never is. It says whether it had to.
func (c *devChild) stop(grace time.Duration, hurry <-chan struct{}) (forced bool) {
	intent := devStopped
	c.intent.CompareAndSwap(nil, &intent)
	_ = terminate(c.cmd.Process) // it may have ended already
	select {
	case <-c.done:
		return false
	case <-time.After(grace):
	case <-hurry:
		select {
		case <-c.done:
			return false
		case <-time.After(min(grace, devLastGrace)):
		}
	}
	_ = c.cmd.Process.Kill()
	<-c.done
	return true
}

// kill ends the process as kill -9 does.
func (c *devChild) kill() {
	intent := devKilled
	c.intent.Store(&intent)
	_ = c.cmd.Process.Kill()
	<-c.done
}

// waitReady waits until the broker says that clients may come. When it ends before, the failure has its last lines.
func (c *devChild) waitReady(ctx context.Context) error {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	const every = 10 * time.Millisecond
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	last := "it does not answer on its HTTP port"
	for {
		select {
		case <-c.done:
			return c.failed()
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return ctx.Err()
			}
			return &failure{code: exitTimeout, what: fmt.Sprintf("broker %d does not become ready", c.id), why: last, fix: "see its log: " + c.log}
		case <-ticker.C:
		}
		resp, err := client.Get("http://" + c.http + "/readyz")
		if err != nil {
			continue
		}
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return nil
		}
		last = "it says: " + oneLine(strings.TrimPrefix(string(body), "failed\n"))
	}
}

// failed is the failure of a broker that ended by itself. Brokers end with three lines of their own, which are the best
// there is to say.
func (c *devChild) failed() *failure {
	lines := tailLines(c.log, c.logAt, devTail)
	f := &failure{code: exitFailed, what: fmt.Sprintf("broker %d ended (%s)", c.id, c.exit), why: "its last lines are above", fix: "mend the cause; its whole log is " + c.log}
	for i, line := range lines {
		if what, ok := strings.CutPrefix(line, "error: "); ok && i+2 < len(lines) {
			if _, why, fix := splitMessage(strings.Join(lines[i:i+3], "\n")); why != "" && fix != "" {
				f.what, f.why, f.fix = fmt.Sprintf("broker %d ended: %s", c.id, what), why, fix
			}
		}
	}
	return f
}

// tailLines returns the last n lines of a file from an offset on.
func tailLines(path string, from int64, n int) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	const most = 64 << 10
	info, err := f.Stat()
	if err != nil {
		return nil
	}
	from = max(from, info.Size()-most)
	b := make([]byte, max(info.Size()-from, 0))
	read, err := f.ReadAt(b, from)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	text := bytes.TrimRight(b[:read], "\n")
	if len(text) == 0 {
		return nil
	}
	lines := strings.Split(string(text), "\n")
	return lines[max(len(lines)-n, 0):]
}

// printTail shows the last lines of a broker's log, indented, with a line that says whose they are.
func (e *env) printTail(c *devChild) {
	lines := tailLines(c.log, c.logAt, devTail)
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(e.stderr, "  last lines of broker %d (%s):\n", c.id, filepath.Base(c.log))
	for _, line := range lines {
		fmt.Fprintln(e.stderr, "    "+line)
	}
}
