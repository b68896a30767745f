package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/integration/proxy"
)

// stopPatience bounds the wait for the end of a process that was told to stop; it gives itself up after 45 s, and says why.
const stopPatience = 60 * time.Second

// pausePatience bounds the wait until a process that was paused stands still.
const pausePatience = 10 * time.Second

// quitPatience bounds the wait for the stacks of one that does not.
const quitPatience = 5 * time.Second

// Node is one broker. Start, Kill, Stop, Pause and Resume may be called from any goroutine, the rest from one.
type Node struct {
	cluster *Cluster
	// Index counts from 1. It need not be the broker's node id.
	Index int
	// Addr is where clients find the broker: its listener, or the proxy before it. Peer, Gossip and HTTP are its other
	// listeners.
	Addr, Listener, Peer, Gossip, HTTP string
	Data, LogFile                      string
	Proxy                              *proxy.Proxy

	disk *disk
	mu   struct {
		sync.Mutex
		cmd    *exec.Cmd
		done   chan struct{}
		paused bool
	}
	undo []func() error // ends the faults in force
}

// Start runs the process; it does not wait until it serves.
func (n *Node) Start() error { return n.StartWith() }

// StartWith is Start with more arguments than usual.
func (n *Node) StartWith(more ...string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.cmd != nil {
		return fmt.Errorf("start node %d: it runs", n.Index)
	}
	out, err := os.OpenFile(n.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start node %d: %w", n.Index, err)
	}
	defer out.Close()
	argv := append([]string{n.cluster.cfg.Binary}, n.cluster.arguments(n)...)
	argv = append(argv, more...)
	if n.cluster.network != nil {
		argv = append(n.cluster.network.enter(n.Index), argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(append(os.Environ(), "GOMAXPROCS=1"), n.cluster.cfg.Env...)
	cmd.Stdout, cmd.Stderr = out, out
	// It dies with the driver, and a ^C on the terminal is for the driver alone.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start node %d: %w", n.Index, err)
	}
	n.capMemory(cmd.Process.Pid)
	n.mu.cmd, n.mu.done, n.mu.paused = cmd, make(chan struct{}), false
	go func(done chan struct{}) {
		_ = cmd.Wait()
		n.mu.Lock()
		n.mu.cmd = nil
		n.mu.Unlock()
		close(done)
	}(n.mu.done)
	return nil
}

// Running says whether the process is there, paused or not.
func (n *Node) Running() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.cmd != nil
}

// Paused says whether the process was stopped by [Node.Pause].
func (n *Node) Paused() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.paused
}

// Done is closed when the present process ends; nil before the first start.
func (n *Node) Done() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.done
}

// Pid is the process's id, 0 when there is none.
func (n *Node) Pid() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.cmd == nil {
		return 0
	}
	return n.mu.cmd.Process.Pid
}

// signal sends a signal to the process, if there is one, and returns the channel of its end.
func (n *Node) signal(s syscall.Signal) (<-chan struct{}, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.cmd == nil {
		return nil, nil
	}
	if err := n.mu.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return nil, fmt.Errorf("signal %s to node %d: %w", s, n.Index, err)
	}
	n.mu.paused = s == syscall.SIGSTOP
	return n.mu.done, nil
}

// Kill ends the process with SIGKILL and waits for its end. Without a process it does nothing.
func (n *Node) Kill() error {
	done, err := n.signal(syscall.SIGKILL)
	if err != nil || done == nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-time.After(stopPatience):
		return fmt.Errorf("node %d does not end on SIGKILL: its disk hangs", n.Index)
	}
}

// Stop ends the process as an operator does, with SIGTERM.
func (n *Node) Stop() error {
	n.mu.Lock()
	cmd := n.mu.cmd
	n.mu.Unlock()
	done, err := n.signal(syscall.SIGTERM)
	if err != nil || done == nil {
		return err
	}
	select {
	case <-done:
	case <-time.After(stopPatience):
		// What its goroutines wait for is the only trace of why.
		_, _ = n.signal(syscall.SIGQUIT)
		select {
		case <-done:
		case <-time.After(quitPatience):
		}
		return fmt.Errorf("node %d does not stop on SIGTERM; its goroutines are in %s", n.Index, n.LogFile)
	}
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("node %d ended with %s", n.Index, cmd.ProcessState)
	}
	return nil
}

// Pause stops the process where it is, with SIGSTOP, and returns once none of its threads runs; Resume lets it go on. On a busy machine
// the signal takes a while to arrive: what is sent to the broker after it could still be served.
func (n *Node) Pause() error {
	done, err := n.signal(syscall.SIGSTOP)
	if err != nil || done == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), pausePatience)
	defer cancel()
	pid := n.Pid()
	err = poll(ctx, done, func() error {
		if !n.Paused() || stopped(pid) {
			return nil
		}
		return errors.New("threads of it still run")
	})
	if err != nil && n.Pid() == pid {
		return fmt.Errorf("pause node %d: %w", n.Index, err)
	}
	return nil
}

// stopped says whether a process stands still: all of its threads are stopped.
func stopped(pid int) bool {
	states, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(states) == 0 {
		return true // it has ended, or the system can't tell
	}
	for _, name := range states {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // the thread has ended
		}
		_, rest, ok := strings.Cut(string(stat), ") ") // behind the command, which may have spaces
		if ok && !strings.HasPrefix(rest, "T") {
			return false
		}
	}
	return true
}

// Resume lets a paused process go on.
func (n *Node) Resume() error {
	_, err := n.signal(syscall.SIGCONT)
	return err
}

// Serves waits until the broker answers a Metadata request with so many brokers.
func (n *Node) Serves(ctx context.Context, brokers int) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(n.Addr), kgo.RetryTimeout(time.Second), kgo.RequestTimeoutOverhead(2*time.Second), kgo.DialTimeout(2*time.Second))
	if err != nil {
		return fmt.Errorf("wait for node %d: %w", n.Index, err)
	}
	defer cl.Close()
	err = poll(ctx, n.Done(), func() error {
		ask, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		req := kmsg.NewPtrMetadataRequest()
		req.Topics = []kmsg.MetadataRequestTopic{}
		resp, err := cl.SeedBrokers()[0].Request(ask, req)
		if err != nil {
			return err
		}
		if got := len(resp.(*kmsg.MetadataResponse).Brokers); got < brokers {
			return fmt.Errorf("it knows %d of %d brokers", got, brokers)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("wait for node %d: %w; its last lines:\n%s", n.Index, err, n.LogTail(4<<10))
	}
	return nil
}

// LogSize is how much the node has printed so far.
func (n *Node) LogSize() int64 {
	info, err := os.Stat(n.LogFile)
	if err != nil {
		return 0
	}
	return info.Size()
}

// LogFrom returns what the node printed from there on, at most 64 KiB of it.
func (n *Node) LogFrom(at int64) string {
	f, err := os.Open(n.LogFile)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	buf := make([]byte, 64<<10)
	got, _ := f.ReadAt(buf, at)
	return string(buf[:got])
}

// LogTail returns the end of what the node printed, at most so many bytes.
func (n *Node) LogTail(bytes int64) string {
	f, err := os.Open(n.LogFile)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if end, err := f.Seek(0, 2); err == nil {
		_, _ = f.Seek(max(end-bytes, 0), 0)
	}
	buf := make([]byte, bytes)
	got, _ := f.Read(buf)
	return string(buf[:got])
}

// heal ends what is in force against the node, but a stopped process.
func (n *Node) heal() error {
	var errs []error
	for len(n.undo) > 0 {
		last := n.undo[len(n.undo)-1]
		n.undo = n.undo[:len(n.undo)-1]
		errs = append(errs, last())
	}
	if n.Paused() {
		errs = append(errs, n.Resume())
	}
	if n.Proxy != nil {
		n.Proxy.Resume(proxy.Request)
		n.Proxy.Resume(proxy.Answer)
		n.Proxy.Refuse(false)
	}
	return errors.Join(errs...)
}

// until keeps undo for heal, and returns a function that calls it once.
func (n *Node) until(undo func() error) (end func() error) {
	once := sync.OnceValue(undo)
	n.undo = append(n.undo, once)
	return once
}

// memoryGroups is where the kernel has cgroups (v1) of memory.
const memoryGroups = "/sys/fs/cgroup/memory"

// memoryGroup makes a cgroup for our processes, "" where that cannot be. What a killed driver left is removed: the
// kernel keeps only those in which something runs.
func memoryGroup() string {
	for _, pattern := range []string{"millrace-faults-*/node-*", "millrace-faults-*"} {
		left, _ := filepath.Glob(filepath.Join(memoryGroups, pattern))
		for _, dir := range left {
			_ = os.Remove(dir)
		}
	}
	dir, err := os.MkdirTemp(memoryGroups, "millrace-faults-")
	if err != nil {
		return ""
	}
	return dir
}

func (n *Node) memoryGroup() string {
	return filepath.Join(n.cluster.memory, fmt.Sprintf("node-%d", n.Index))
}

// capMemory puts a process under the cap, if there is one here. A moment without it does no harm.
func (n *Node) capMemory(pid int) {
	if n.cluster.memory == "" {
		return
	}
	dir := n.memoryGroup()
	_ = os.Mkdir(dir, 0o755)
	for _, set := range [][2]string{{"memory.limit_in_bytes", strconv.Itoa(n.cluster.cfg.MemoryMiB << 20)}, {"cgroup.procs", strconv.Itoa(pid)}} {
		_ = os.WriteFile(filepath.Join(dir, set[0]), []byte(set[1]), 0o644)
	}
}

func (n *Node) removeMemoryGroup() {
	if n.cluster.memory != "" {
		_ = os.Remove(n.memoryGroup())
	}
}
