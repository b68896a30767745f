package integration

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// program is a client library in a process of its own, which speaks the line
// protocol of clients/README.md.
type program struct {
	dir   string // of the files of records
	files int
	in    io.WriteCloser
	out   *bufio.Scanner
	err   *lockedBuffer
	kill  func()
}

// startProgram runs a command until the end of the test.
func startProgram(t *testing.T, env []string, name string, args ...string) *program {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	p := &program{dir: t.TempDir(), err: &lockedBuffer{}}
	cmd.Stderr = p.err
	var err error
	if p.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	p.out.Buffer(nil, 1<<20)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.kill = func() { _ = cmd.Process.Kill() }
	t.Cleanup(func() {
		_ = p.in.Close()
		p.kill()
		_ = cmd.Wait()
		if said := p.err.Tail(4 << 10); t.Failed() && said != "" {
			t.Logf("%s said:\n%s", filepath.Base(name), said)
		}
	})
	return p
}

// do sends one command and returns the result of its answer. It kills the
// program when ctx ends first.
func (p *program) do(ctx context.Context, fields ...any) (string, error) {
	defer context.AfterFunc(ctx, p.kill)()
	line := strings.TrimSuffix(strings.Join(strings.Split(fmt.Sprintln(fields...), " "), "\t"), "\n")
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		return "", fmt.Errorf("%s: %w", line, err)
	}
	if !p.out.Scan() {
		return "", fmt.Errorf("%s: the program ended: %w", line, errors.Join(ctx.Err(), p.out.Err(), io.ErrUnexpectedEOF))
	}
	verdict, rest, _ := strings.Cut(p.out.Text(), "\t")
	if verdict != "ok" {
		return "", fmt.Errorf("%s: %s", line, rest)
	}
	return rest, nil
}

func (p *program) number(ctx context.Context, fields ...any) (int64, error) {
	s, err := p.do(ctx, fields...)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(s, 10, 64)
}

func (p *program) file() string {
	p.files++
	return filepath.Join(p.dir, strconv.Itoa(p.files))
}

func (p *program) Metadata(ctx context.Context, topic string) (int, error) {
	n, err := p.number(ctx, "metadata", topic)
	return int(n), err
}

func (p *program) CreateTopic(ctx context.Context, topic string, partitions int) error {
	_, err := p.do(ctx, "create", topic, partitions)
	return err
}

func (p *program) DeleteTopic(ctx context.Context, topic string) error {
	_, err := p.do(ctx, "delete", topic)
	return err
}

func (p *program) OffsetAt(ctx context.Context, topic string, partition int, ts int64) (int64, error) {
	return p.number(ctx, "offset", topic, partition, ts)
}

func (p *program) Produce(ctx context.Context, topic string, partition int, codec string, idempotent bool, records []wireRecord) error {
	name := p.file()
	if err := os.WriteFile(name, formatRecords(records), 0o600); err != nil {
		return err
	}
	_, err := p.do(ctx, "produce", topic, partition, codec, idempotent, name)
	return err
}

func (p *program) Consume(ctx context.Context, topic string, partition int, from int64, n int) ([]wireRecord, error) {
	name := p.file()
	if _, err := p.do(ctx, "consume", topic, partition, from, n, name); err != nil {
		return nil, err
	}
	content, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return parseRecords(content)
}

func formatRecords(records []wireRecord) []byte {
	var out bytes.Buffer
	for _, r := range records {
		fmt.Fprintf(&out, "%d\t%d\t%s\t%s", r.Offset, r.Timestamp, encodeField(r.Key), encodeField(r.Value))
		for _, h := range r.Headers {
			fmt.Fprintf(&out, "\t%s\t%s", h.Key, encodeField(h.Value))
		}
		out.WriteByte('\n')
	}
	return out.Bytes()
}

func parseRecords(content []byte) ([]wireRecord, error) {
	var records []wireRecord
	for line := range strings.Lines(string(content)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) < 4 || len(f)%2 != 0 {
			return nil, fmt.Errorf("a record line of %d fields: %.100s", len(f), line)
		}
		var r wireRecord
		var errs [4]error
		r.Offset, errs[0] = strconv.ParseInt(f[0], 10, 64)
		r.Timestamp, errs[1] = strconv.ParseInt(f[1], 10, 64)
		r.Key, errs[2] = decodeField(f[2])
		r.Value, errs[3] = decodeField(f[3])
		if err := errors.Join(errs[:]...); err != nil {
			return nil, fmt.Errorf("record line %.100s: %w", line, err)
		}
		for i := 4; i < len(f); i += 2 {
			v, err := decodeField(f[i+1])
			if err != nil {
				return nil, err
			}
			r.Headers = append(r.Headers, wireHeader{f[i], v})
		}
		records = append(records, r)
	}
	return records, nil
}

func encodeField(b []byte) string {
	if b == nil {
		return "-"
	}
	return base64.StdEncoding.EncodeToString(b)
}

func decodeField(s string) ([]byte, error) {
	if s == "-" {
		return nil, nil
	}
	b, err := base64.StdEncoding.DecodeString(s)
	if b == nil {
		b = []byte{}
	}
	return b, err
}

// requireTools skips the test where this machine lacks a toolchain; in CI it
// must be there.
func requireTools(t *testing.T, tools ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("short: only the Go clients run")
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			skipClient(t, fmt.Errorf("%s is not installed", tool))
		}
	}
}

func skipClient(t *testing.T, err error) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(err)
	}
	t.Skipf("skipped, in CI it would fail: %v", err)
}

// installed returns a folder of the user's cache which fill made complete, now
// or in an earlier run: one folder for each content of the inputs (files of
// clients/, whose change makes a new folder) and environment.
func installed(t *testing.T, kind, environment string, inputs []string, fill func(ctx context.Context, dir string) error) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		skipClient(t, err)
	}
	sum := sha256.New()
	_, _ = io.WriteString(sum, environment)
	for _, name := range inputs {
		content, err := os.ReadFile(filepath.Join("clients", name))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(sum, "\n%s %d\n%s", name, len(content), content)
	}
	dir := filepath.Join(cache, "millrace-clients", kind+"-"+hex.EncodeToString(sum.Sum(nil))[:16])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// Several tests, or test runs, want the same folder: the first fills it.
	lock, err := os.Create(dir + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	done := filepath.Join(dir, ".complete")
	if _, err := os.Stat(done); err == nil {
		return dir
	}
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	tries := 1
	if os.Getenv("CI") == "true" { // where it must be there: what a registry dropped is asked for again
		tries = 3
	}
	for {
		if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
			t.Fatal(err)
		}
		err := fill(ctx, dir)
		if err == nil {
			break
		}
		if tries--; tries == 0 || ctx.Err() != nil {
			skipClient(t, fmt.Errorf("install %s: %w", kind, err))
		}
	}
	if err := os.WriteFile(done, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// runIn runs a command of an installation.
func runIn(ctx context.Context, dir string, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

func sourceOf(t *testing.T, name string) string {
	t.Helper()
	p, err := filepath.Abs(filepath.Join("clients", name))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// openJava is Apache Kafka's own client.
func openJava(t *testing.T, b *broker) clientLibrary {
	requireTools(t, "java", "javac", "mvn")
	pom, program := sourceOf(t, "java/pom.xml"), sourceOf(t, "java/ClientCheck.java")
	libs := installed(t, "java", "", []string{"java/pom.xml"}, func(ctx context.Context, dir string) error {
		return runIn(ctx, dir, nil, "mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", "-DoutputDirectory="+dir)
	})
	jars := filepath.Join(libs, "*")
	classes := installed(t, "java-check", "", []string{"java/pom.xml", "java/ClientCheck.java"}, func(ctx context.Context, dir string) error {
		return runIn(ctx, dir, nil, "javac", "-Xlint:all,-processing,-classfile", "-Werror", "-cp", jars, "-d", dir, program)
	})
	return startProgram(t, nil, "java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", jars+":"+classes, "ClientCheck", b.Addr)
}

// openConfluentGo is confluent-kafka-go, with librdkafka in it. It needs cgo:
// its program is a module of its own, built in the cache folder, so that
// nothing that looks at our packages meets it.
func openConfluentGo(t *testing.T, b *broker) clientLibrary {
	requireTools(t, "go", "gcc")
	files := []string{"confluent-go/go.mod", "confluent-go/go.sum", "confluent-go/main.go.txt"}
	dir := installed(t, "confluent-go", "", files, func(ctx context.Context, dir string) error {
		if err := copyFiles(dir, files); err != nil {
			return err
		}
		env := []string{"CGO_ENABLED=1", "GOFLAGS=-mod=readonly", "GOWORK=off"}
		if err := runIn(ctx, dir, env, "go", "vet", "."); err != nil {
			return err
		}
		return runIn(ctx, dir, env, "go", "build", "-o", "client", ".")
	})
	return startProgram(t, nil, filepath.Join(dir, "client"), b.Addr)
}

// copyFiles copies files of clients/ to a folder. One whose name ends with .txt,
// since it is no part of our module, loses that.
func copyFiles(dir string, names []string) error {
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join("clients", name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, strings.Replace(filepath.Base(name), ".go.txt", ".go", 1)), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// openPython is one of the libraries from PyPI.
func openPython(library string) func(*testing.T, *broker) clientLibrary {
	return func(t *testing.T, b *broker) clientLibrary {
		requireTools(t, "python3")
		version, err := exec.Command("python3", "-VV").Output()
		if err != nil {
			skipClient(t, err)
		}
		requirements := sourceOf(t, "python/requirements.txt")
		dir := installed(t, "python", string(version), []string{"python/requirements.txt"}, func(ctx context.Context, dir string) error {
			if err := runIn(ctx, dir, nil, "python3", "-m", "venv", dir); err != nil {
				return err
			}
			return runIn(ctx, dir, nil, filepath.Join(dir, "bin", "pip"), "install", "-q", "--no-deps", "--only-binary=:all:", "-r", requirements)
		})
		return startProgram(t, []string{"PYTHONDONTWRITEBYTECODE=1"}, filepath.Join(dir, "bin", "python"), sourceOf(t, "python/client_check.py"), library, b.Addr)
	}
}

// openNode is one of the libraries from npm.
func openNode(library string) func(*testing.T, *broker) clientLibrary {
	return func(t *testing.T, b *broker) clientLibrary {
		requireTools(t, "node", "npm", "kcat")
		files := []string{"node/package.json", "node/package-lock.json", "node/client_check.mjs"}
		// The program lies beside node_modules, where Node looks for them.
		dir := installed(t, "node", "", files, func(ctx context.Context, dir string) error {
			if err := copyFiles(dir, files); err != nil {
				return err
			}
			return runIn(ctx, dir, nil, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
		})
		return startProgram(t, nil, "node", filepath.Join(dir, "client_check.mjs"), library, b.Addr)
	}
}
