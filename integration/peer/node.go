package peer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Kafka is one node of Apache Kafka: broker and controller in one process, with
// the JVM flags and heap that its start script sets. Start, Kill and Close are
// for one goroutine, the rest may be called from any.
type Kafka struct {
	// Addr is the client listener, host:port.
	Addr string
	// ID is its node id, from 1.
	ID int
	// Data is its log directory.
	Data string
	// Heap is the size of the JVM's heap for the next Start; "" is 1G, as the start script has it.
	Heap string

	properties string // file
	mu         sync.Mutex
	cmd        *exec.Cmd // the present process; nil before the first
	output     *bytes.Buffer
	done       chan struct{}
}

// jvmFlags are those of Kafka's kafka-run-class and kafka-server-start, but for
// the heap.
var jvmFlags = []string{
	"-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
	"-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true",
}

// StartKafka formats a directory below dir and starts a broker on it with extra
// settings, key=value. It returns when the process runs, before it serves.
func StartKafka(ctx context.Context, dir string, settings ...string) (*Kafka, error) {
	nodes, err := FormatKafka(ctx, dir, 1, settings...)
	if err != nil {
		return nil, err
	}
	return nodes[0], nodes[0].Start()
}

// FormatKafka formats directories below dir for so many nodes that form one
// cluster, each broker and controller, with extra settings, key=value. Nothing
// runs yet.
func FormatKafka(ctx context.Context, dir string, nodes int, settings ...string) ([]*Kafka, error) {
	if _, err := Classpath(); err != nil {
		return nil, err
	}
	ports, err := freePorts(2 * nodes)
	if err != nil {
		return nil, err
	}
	var all []*Kafka
	var voters []string
	for i := range nodes {
		at := filepath.Join(dir, fmt.Sprintf("kafka-%d", i+1))
		if err := os.MkdirAll(at, 0o755); err != nil {
			return nil, err
		}
		all = append(all, &Kafka{
			Addr: fmt.Sprintf("127.0.0.1:%d", ports[2*i]), ID: i + 1, Data: filepath.Join(at, "data"),
			properties: filepath.Join(at, "server.properties"),
		})
		voters = append(voters, fmt.Sprintf("%d@127.0.0.1:%d", i+1, ports[2*i+1]))
	}
	errs := make([]error, nodes)
	var wg sync.WaitGroup
	for i, k := range all {
		lines := append([]string{
			"process.roles=broker,controller",
			fmt.Sprintf("node.id=%d", k.ID),
			"controller.quorum.voters=" + strings.Join(voters, ","),
			fmt.Sprintf("listeners=PLAINTEXT://%s,CONTROLLER://127.0.0.1:%d", k.Addr, ports[2*i+1]),
			"advertised.listeners=PLAINTEXT://" + k.Addr,
			"controller.listener.names=CONTROLLER",
			"inter.broker.listener.name=PLAINTEXT",
			"log.dirs=" + k.Data,
			fmt.Sprintf("offsets.topic.replication.factor=%d", min(nodes, 3)),
			fmt.Sprintf("transaction.state.log.replication.factor=%d", min(nodes, 3)),
			fmt.Sprintf("transaction.state.log.min.isr=%d", min(nodes, 2)),
			"group.initial.rebalance.delay.ms=0",
		}, settings...)
		if err := os.WriteFile(k.properties, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			return nil, err
		}
		wg.Go(func() {
			_, errs[i] = Java(ctx, "kafka.tools.StorageTool", "format", "-t", "AAAAAAAAQACAAAAAAAAAAQ", "-c", k.properties)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("format the directory of Apache Kafka: %w", err)
	}
	return all, nil
}

// Start runs the node's process; it does not wait until it serves. After its end
// it may be started again.
func (k *Kafka) Start() error {
	cp, err := Classpath()
	if err != nil {
		return err
	}
	heap := cmp.Or(k.Heap, "1G")
	argv := append([]string{"-Xmx" + heap, "-Xms" + heap}, jvmFlags...)
	cmd, output, done := exec.Command("java", append(argv, "-cp", cp, "kafka.Kafka", k.properties)...), &bytes.Buffer{}, make(chan struct{})
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // it holds a GiB: it does not outlive whoever measures
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start Apache Kafka: %w", err)
	}
	k.mu.Lock()
	k.cmd, k.output, k.done = cmd, output, done
	k.mu.Unlock()
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	return nil
}

// Pid is the process's id; 0 before the first Start.
func (k *Kafka) Pid() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cmd == nil {
		return 0
	}
	return k.cmd.Process.Pid
}

// Done is closed when the present process has ended; nil before the first Start.
func (k *Kafka) Done() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.done
}

// Close stops the process: SIGINT first, SIGKILL after half a minute.
func (k *Kafka) Close() {
	if k.cmd == nil {
		return
	}
	_ = k.cmd.Process.Signal(os.Interrupt)
	select {
	case <-k.done:
	case <-time.After(30 * time.Second):
		_ = k.Kill()
	}
}

// Kill ends the process with SIGKILL and waits for its end. Without a process it
// does nothing.
func (k *Kafka) Kill() error {
	if k.cmd == nil {
		return nil
	}
	if err := k.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill Apache Kafka: %w", err)
	}
	<-k.done
	return nil
}

// Output is what the process printed; valid after Done.
func (k *Kafka) Output() string { return k.output.String() }

// freePorts returns different ports of 127.0.0.1 that were free a moment before,
// below those that the kernel gives to outgoing connections: a node that is
// started again finds its port free.
func freePorts(n int) ([]int, error) {
	var out []int
	for range 1000 {
		port := 12000 + rand.IntN(20000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		_ = l.Close()
		if slices.Contains(out, port) {
			continue
		}
		if out = append(out, port); len(out) == n {
			return out, nil
		}
	}
	return nil, errors.New("no free ports on 127.0.0.1")
}
