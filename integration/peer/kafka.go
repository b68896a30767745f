// Package peer runs Apache Kafka itself beside us: its broker as the opponent
// of the benchmarks and as the reference when the protocol leaves a doubt, and
// its own file reader as an oracle for our files. Maven fetches it into the
// user's cache; nothing of it is part of millrace.
//
// Everything listens on loopback, on ports that were free a moment before, and
// ends with its Close.
package peer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Version is the release of Apache Kafka that pom.xml names.
const Version = "4.4.0"

// ErrNoToolchain says that this machine lacks Java or Maven.
var ErrNoToolchain = errors.New("java and mvn are needed to run Apache Kafka")

var classpath = sync.OnceValues(fetchLibraries)

// Classpath fetches Apache Kafka's libraries once and returns a Java class
// path of them. Errors: ErrNoToolchain, or what Maven said.
func Classpath() (string, error) { return classpath() }

func fetchLibraries() (string, error) {
	for _, tool := range []string{"java", "mvn"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", fmt.Errorf("%w: %s is missing", ErrNoToolchain, tool)
		}
	}
	pom, err := findPom()
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	libs := filepath.Join(cache, "millrace-peer", Version)
	done := filepath.Join(libs, ".complete")
	if _, err := os.Stat(done); err != nil {
		if err := os.MkdirAll(libs, 0o755); err != nil {
			return "", err
		}
		ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", "-DoutputDirectory="+libs)
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("fetch Apache Kafka %s with Maven: %w\n%s", Version, err, out)
		}
		if err := os.WriteFile(done, nil, 0o644); err != nil {
			return "", err
		}
	}
	return filepath.Join(libs, "*"), nil
}

// findPom looks for pom.xml from the working folder upwards: tests run in
// their package's folder, recipes at the top.
func findPom() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		for _, name := range []string{"pom.xml", "peer/pom.xml", "integration/peer/pom.xml"} {
			if p := filepath.Join(dir, name); exists(p) && strings.HasSuffix(filepath.Dir(p), "peer") {
				return p, nil
			}
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("integration/peer/pom.xml not found: run inside the repository")
		}
		dir = up
	}
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// Java runs one of Apache Kafka's tools to its end and returns what it printed
// to both outputs.
func Java(ctx context.Context, class string, args ...string) (string, error) {
	cp, err := Classpath()
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, "java", append([]string{"-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", cp, class}, args...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", class, err, out)
	}
	return string(out), err
}

// DumpLog has Apache Kafka's DumpLogSegments read files and returns what it
// printed.
func DumpLog(ctx context.Context, args ...string) (string, error) {
	return Java(ctx, "org.apache.kafka.tools.DumpLogSegments", args...)
}

// Kafka is a running Apache Kafka: one node, broker and controller in one
// process, with the JVM flags and heap that its start script sets.
type Kafka struct {
	// Addr is the client listener, host:port.
	Addr string
	// Data is its log directory.
	Data string
	// Pid is the process, Started when it was made.
	Pid     int
	Started time.Time

	cmd    *exec.Cmd
	output *bytes.Buffer
	done   chan struct{}
}

// jvmFlags are those of Kafka's kafka-run-class and kafka-server-start.
var jvmFlags = []string{
	"-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
	"-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true",
}

// StartKafka formats a directory below dir and starts a broker on it with extra
// settings, key=value. It returns when the process runs, before it serves.
func StartKafka(ctx context.Context, dir string, settings ...string) (*Kafka, error) {
	cp, err := Classpath()
	if err != nil {
		return nil, err
	}
	client, err := freePort()
	if err != nil {
		return nil, err
	}
	controller, err := freePort()
	if err != nil {
		return nil, err
	}
	k := &Kafka{Addr: fmt.Sprintf("127.0.0.1:%d", client), Data: filepath.Join(dir, "kafka-data"), output: &bytes.Buffer{}, done: make(chan struct{})}
	lines := append([]string{
		"process.roles=broker,controller",
		"node.id=1",
		fmt.Sprintf("controller.quorum.voters=1@127.0.0.1:%d", controller),
		fmt.Sprintf("listeners=PLAINTEXT://%s,CONTROLLER://127.0.0.1:%d", k.Addr, controller),
		"advertised.listeners=PLAINTEXT://" + k.Addr,
		"controller.listener.names=CONTROLLER",
		"inter.broker.listener.name=PLAINTEXT",
		"log.dirs=" + k.Data,
		"offsets.topic.replication.factor=1",
		"transaction.state.log.replication.factor=1",
		"transaction.state.log.min.isr=1",
		"group.initial.rebalance.delay.ms=0",
	}, settings...)
	properties := filepath.Join(dir, "server.properties")
	if err := os.WriteFile(properties, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		return nil, err
	}
	if _, err := Java(ctx, "kafka.tools.StorageTool", "format", "-t", "AAAAAAAAQACAAAAAAAAAAQ", "-c", properties); err != nil {
		return nil, fmt.Errorf("format the directory of Apache Kafka: %w", err)
	}
	k.cmd = exec.Command("java", append(append([]string{}, jvmFlags...), "-cp", cp, "kafka.Kafka", properties)...)
	k.cmd.Stdout, k.cmd.Stderr = k.output, k.output
	k.Started = time.Now()
	if err := k.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start Apache Kafka: %w", err)
	}
	k.Pid = k.cmd.Process.Pid
	go func() {
		_ = k.cmd.Wait()
		close(k.done)
	}()
	return k, nil
}

// Done is closed when the process has ended.
func (k *Kafka) Done() <-chan struct{} { return k.done }

// Close stops the process: SIGTERM first, SIGKILL after half a minute.
func (k *Kafka) Close() {
	_ = k.cmd.Process.Signal(os.Interrupt)
	select {
	case <-k.done:
	case <-time.After(30 * time.Second):
		_ = k.cmd.Process.Kill()
		<-k.done
	}
}

// Output is what the process printed; valid after Done.
func (k *Kafka) Output() string { return k.output.String() }

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// AskMetadata sends one Metadata request over a connection of its own. It is an
// error when the answer names no broker.
func AskMetadata(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	req := kmsg.NewPtrMetadataRequest()
	req.Version, req.Topics = 9, []kmsg.MetadataRequestTopic{}
	if _, err := conn.Write(kmsg.NewRequestFormatter(kmsg.FormatterClientID("peer")).AppendRequest(nil, req, 1)); err != nil {
		return err
	}
	var size [4]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(size[:])
	const header = 5 // correlation id, no tags
	if n < header || n > 1<<20 {
		return fmt.Errorf("a Metadata answer of %d bytes", n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(conn, body); err != nil {
		return err
	}
	resp := kmsg.NewPtrMetadataResponse()
	resp.Version = req.Version
	if err := resp.ReadFrom(body[header:]); err != nil {
		return err
	}
	if len(resp.Brokers) == 0 {
		return errors.New("no broker in the metadata yet")
	}
	return nil
}
