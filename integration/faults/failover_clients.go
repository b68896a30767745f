package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/integration/check"
	"github.com/millrace/millrace/integration/cluster"
)

// loadPrograms are the clients that -client can name beside kgo: foreign libraries at their defaults, with programs of
// integration/clients and the packages that its tests install.
var loadPrograms = map[string]func(sources, packages string) ([]string, error){
	"librdkafka": func(sources, packages string) ([]string, error) {
		python, err := newestMatch(filepath.Join(packages, "python-*", "bin", "python"))
		return []string{python, filepath.Join(sources, "python", "failover_load.py")}, err
	},
	"java": func(sources, packages string) ([]string, error) {
		jars, err := newestMatch(filepath.Join(packages, "java-*", "kafka-clients-*.jar"))
		return []string{"java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", filepath.Join(filepath.Dir(jars), "*"), filepath.Join(sources, "java", "FailoverLoad.java")}, err
	},
}

func newestMatch(pattern string) (string, error) {
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("there is no %s: go test -run Clients ./integration installs it", pattern)
	}
	slices.SortFunc(found, func(a, b string) int { return int(modified(b) - modified(a)) })
	return found[0], nil
}

func modified(name string) int64 {
	info, err := os.Stat(name)
	if err != nil {
		return 0
	}
	return info.ModTime().Unix()
}

// loadBy sends to every partition with another client library.
func (g *gapMeter) loadBy(ctx context.Context, r *run, pause time.Duration) (wait func(), err error) {
	g.last, g.longest = map[string]time.Time{}, map[string]time.Duration{}
	program := loadPrograms[r.client]
	if program == nil {
		return nil, fmt.Errorf("no client %q: kgo, librdkafka or java", r.client)
	}
	packages, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	argv, err := program(filepath.Join("integration", "clients"), filepath.Join(packages, "millrace-clients"))
	if err != nil {
		return nil, err
	}
	argv = append(argv, strings.Join(r.cluster.Seeds(), ","), fmt.Sprint(pause.Seconds()))
	for _, topic := range topics {
		argv = append(argv, fmt.Sprintf("%s:%d", topic, partitionsPerTopic))
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // open as long as the process is wanted
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if key, ok := strings.CutPrefix(lines.Text(), "ack "); ok {
				g.note(key, nil)
			} else {
				g.note("", errors.New(lines.Text()))
			}
		}
		_ = cmd.Wait()
	}()
	// A JVM takes a while; a gap before the first acknowledgement is none.
	for g.count() < 50 {
		select {
		case <-done:
			return nil, fmt.Errorf("the client %s has ended", r.client)
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return func() { <-done }, nil
}

func (g *gapMeter) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.acked
}

// bystander is what others than the waiting client see of a fault: when another broker is known to lead all that the victim
// led, and when a producer that is started after the fault has an acknowledgement for each of them. Zero: never in time.
type bystander struct{ elected, acked time.Duration }

// watch looks on for as long as ctx lasts.
func (r *run) watch(ctx context.Context, victim *cluster.Node, keys []string) bystander {
	began := time.Now()
	var b bystander
	other := r.cluster.Nodes[0]
	if other == victim {
		other = r.cluster.Nodes[1]
	}
	cl, err := direct(other)
	if err != nil {
		return b
	}
	defer cl.Close()
	for b.elected == 0 && ctx.Err() == nil {
		if _, err := r.refresh(ctx, cl); err == nil && !slices.ContainsFunc(keys, func(k string) bool {
			n := r.epochs.of(k).node
			return n == nil || n == victim
		}) {
			b.elected = time.Since(began)
			break
		}
		r.settled(ctx, 20*time.Millisecond)
	}
	var seeds []string
	for _, n := range r.cluster.Nodes {
		if n != victim {
			seeds = append(seeds, n.Addr)
		}
	}
	// Without idempotence: it would ask any broker for a producer id, the paused one too.
	fresh, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0), kgo.DisableIdempotentWrite())
	if err != nil || ctx.Err() != nil {
		return b
	}
	defer fresh.Close()
	var records []*kgo.Record
	for _, topic := range topics {
		for p := range int32(partitionsPerTopic) {
			if slices.Contains(keys, check.Key(topic, p)) {
				records = append(records, &kgo.Record{Topic: topic, Partition: p, Value: make([]byte, 100)})
			}
		}
	}
	if fresh.ProduceSync(ctx, records...).FirstErr() == nil {
		b.acked = time.Since(began)
	}
	return b
}
