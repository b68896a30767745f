// Package peer runs Apache Kafka itself beside us: its broker as the opponent
// of the benchmarks and as the reference when the protocol leaves a doubt, and
// its own file reader as an oracle for our files. Maven fetches it into the
// user's cache, as it does for others that need Java (libraries.go); nothing of
// it is part of millrace.
//
// Everything listens on loopback, on ports that were free a moment before, and
// ends with its Close.
package peer

import (
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
	content, err := os.ReadFile(pom)
	if err != nil {
		return "", err
	}
	libs, err := Libraries(context.Background(), content)
	if err != nil {
		return "", fmt.Errorf("fetch the libraries of Apache Kafka %s: %w", Version, err)
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

// AskMetadata sends one Metadata request over a connection of its own. It is an
// error when the answer names no broker.
func AskMetadata(ctx context.Context, addr string) error {
	_, err := CountBrokers(ctx, addr)
	return err
}

// CountBrokers asks as [AskMetadata] does, and returns how many brokers the
// answer names, at least one.
func CountBrokers(ctx context.Context, addr string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	req := kmsg.NewPtrMetadataRequest()
	req.Version, req.Topics = 9, []kmsg.MetadataRequestTopic{}
	if _, err := conn.Write(kmsg.NewRequestFormatter(kmsg.FormatterClientID("peer")).AppendRequest(nil, req, 1)); err != nil {
		return 0, err
	}
	var size [4]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return 0, err
	}
	n := binary.BigEndian.Uint32(size[:])
	const header = 5 // correlation id, no tags
	if n < header || n > 1<<20 {
		return 0, fmt.Errorf("a Metadata answer of %d bytes", n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(conn, body); err != nil {
		return 0, err
	}
	resp := kmsg.NewPtrMetadataResponse()
	resp.Version = req.Version
	if err := resp.ReadFrom(body[header:]); err != nil {
		return 0, err
	}
	if len(resp.Brokers) == 0 {
		return 0, errors.New("no broker in the metadata yet")
	}
	return len(resp.Brokers), nil
}
