package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A variant is a broker with a promise about what an acknowledgement means.
type variant int

const (
	synced   variant = iota // millrace as shipped: fsync before ack
	unsynced                // millrace with millrace.flush.ack=false: Kafka's own promise
	kafka                   // Apache Kafka as shipped
	flushed                 // Apache Kafka with flush.messages=1: its fsync before ack
)

var variants = []struct {
	name    string
	system  int // index into bench.systems
	configs map[string]string
}{
	synced:   {"millrace", 0, nil},
	unsynced: {"millrace, flush.ack=false", 0, map[string]string{"millrace.flush.ack": "false"}},
	kafka:    {"Kafka", 1, nil},
	flushed:  {"Kafka, flush.messages=1", 1, map[string]string{"flush.messages": "1"}},
}

// variantOf is the variant that stands for a system as shipped.
func variantOf(system int) variant { return []variant{synced, kafka}[system] }

// A cell is one row of the tables: what is sent, and at which variants.
type cell struct {
	name       string // kind/size/…
	kind       string // produce, consume, e2e, txn, isolation
	partitions int
	args       []string // of millrace bench
	topic      string   // one that exists already; "" makes a new one
	reuse      bool     // make one for all such rows of a variant: many partitions take long to come and go
	variants   []variant
}

// bench has the two systems and what is measured at them.
type bench struct {
	options
	brokers int // of each system
	results *results
	systems [2]*system // by variants.system; nil while it does not run
	dirs    [2]string
	serial  int
	list    []cell
}

// close ends what runs, and says what went wrong with that.
func (b *bench) close() {
	for i, s := range b.systems {
		if s == nil {
			continue
		}
		if err := s.close(); err != nil {
			say("end %s: %v", s.name, err)
		}
		b.systems[i] = nil
	}
}

// open starts one of the systems in a new directory, measures its start up to the first Metadata answer that names all
// brokers, and the memory that it takes doing nothing.
func (b *bench) open(ctx context.Context, which int) (took time.Duration, idle float64, err error) {
	b.serial++
	dir := filepath.Join(b.dir, fmt.Sprintf("system-%d", b.serial))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, 0, err
	}
	s, err := openSystem(ctx, which, b.binary, dir, b.brokers)
	if err != nil {
		return 0, 0, err
	}
	b.systems[which], b.dirs[which] = s, dir
	if took, err = s.start(ctx); err != nil {
		return 0, 0, err
	}
	if b.brokers > 1 {
		if took, err = s.firstRecord(ctx); err != nil {
			return 0, 0, err
		}
	}
	if err := pause(ctx, 2*time.Second); err != nil {
		return 0, 0, err
	}
	idle, err = s.memory("VmRSS")
	return took, idle, err
}

// end ends one of the systems and removes its directory.
func (b *bench) end(which int) error {
	s := b.systems[which]
	b.systems[which] = nil
	return errors.Join(s.close(), os.RemoveAll(b.dirs[which]))
}

// startAndIdle measures starts and idle memory. The last pair goes on to serve.
func (b *bench) startAndIdle(ctx context.Context) error {
	starts := b.rounds
	if b.only != nil {
		starts = 1
	}
	for i := range starts {
		for which := range b.systems {
			took, idle, err := b.open(ctx, which)
			if err != nil {
				return err
			}
			b.results.add("start to first Metadata answer", variantOf(which), "ms", float64(took.Microseconds())/1e3)
			b.results.add("memory idle", variantOf(which), "MiB", idle)
			say("%s: first Metadata answer after %s, idle at %.0f MiB", b.systems[which].name, took.Round(time.Millisecond), idle)
			if i < starts-1 {
				if err := b.end(which); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// peaks measures the most memory that each took.
func (b *bench) peaks() error {
	for which, s := range b.systems {
		peak, err := s.memory("VmHWM")
		if err != nil {
			return err
		}
		b.results.add("memory under load", variantOf(which), "MiB", peak)
	}
	return nil
}

// consumeBytes is how much the topics that are read hold.
const consumeBytes = 384 << 20

// consumeSizes are the records of the topics that are read.
var consumeSizes = []int{100, 1024}

func consumeTopic(size int) string { return fmt.Sprintf("consume-%d", size) }

// warm lets the JVM compile its hot paths, and fills the topics that are read.
func (b *bench) warm(ctx context.Context) error {
	for _, s := range b.systems {
		for _, size := range consumeSizes {
			if err := s.create(ctx, consumeTopic(size), 6, nil); err != nil {
				return err
			}
			records := strconv.Itoa(consumeBytes / size)
			if _, err := s.drive(ctx, b.binary, "produce", "-t", consumeTopic(size), "--raw", "--record-size", strconv.Itoa(size), "--batch-size", "65536", "-n", records); err != nil {
				return err
			}
			if _, err := s.drive(ctx, b.binary, "consume", "-t", consumeTopic(size), "--raw"); err != nil {
				return err
			}
		}
		seconds := 4 * time.Second
		if !b.quick {
			seconds *= 2
		}
		for _, args := range [][]string{{"--raw", "--batch-size", "16384"}, {"--acks", "1"}} {
			topic := fmt.Sprintf("warm-%d", len(args))
			if err := s.create(ctx, topic, 12, nil); err != nil {
				return err
			}
			if _, err := s.drive(ctx, b.binary, append([]string{"produce", "-t", topic, "--duration", seconds.String()}, args...)...); err != nil {
				return err
			}
			if err := s.remove(ctx, topic); err != nil {
				return err
			}
		}
		if _, err := s.drive(ctx, b.binary, "consume", "-t", consumeTopic(100)); err != nil {
			return err
		}
	}
	return nil
}

// clients are those that produce, with the size of their batches.
var clients = []struct {
	name string
	raw  bool
	args []string
}{
	{"client-1M", false, []string{"--batch-size", "1000000"}},
	{"raw-1M", true, []string{"--raw", "--batch-size", "1000000"}},
	{"raw-16K", true, []string{"--raw", "--batch-size", "16384"}},
}

// cells are the rows. The quick ones are those that the goals speak of.
func (b *bench) cells() []cell {
	if b.list != nil {
		return b.list
	}
	if b.list = b.oneBroker(); b.brokers > 1 {
		b.list = b.threeBrokers()
	}
	if b.only != nil {
		b.list = slices.DeleteFunc(b.list, func(c cell) bool { return !b.only.MatchString(c.name) })
	}
	return b.list
}

// oneBroker are the rows of one broker.
func (b *bench) oneBroker() (list []cell) {
	duration := time.Duration(b.seconds * float64(time.Second)).String()
	all := []variant{synced, unsynced, kafka, flushed}
	produce := func(size int, acks string, partitions int, codec string) {
		for _, c := range clients {
			vs := all
			if codec != "none" || acks != "all" {
				vs = []variant{synced, unsynced, kafka}
			}
			list = append(list, cell{
				name: fmt.Sprintf("produce/%dB/acks=%s/p%d/%s/%s", size, acks, partitions, codec, c.name), kind: "produce", partitions: partitions, variants: vs,
				args: append([]string{"produce", "--record-size", strconv.Itoa(size), "--acks", acks, "-z", codec, "--duration", duration}, c.args...),
			})
		}
	}
	for _, size := range []int{100, 1024} {
		produce(size, "all", 12, "none")
		if b.quick {
			continue
		}
		produce(size, "1", 12, "none")
		for _, partitions := range []int{1, 100} {
			produce(size, "all", partitions, "none")
		}
		for _, partitions := range []int{1, 12, 100} {
			produce(size, "all", partitions, "lz4")
		}
	}
	for _, size := range consumeSizes {
		for _, raw := range []bool{false, true} {
			c := cell{name: fmt.Sprintf("consume/%dB/client", size), kind: "consume", topic: consumeTopic(size), args: []string{"consume"}, variants: []variant{synced, kafka}}
			if raw {
				c.name, c.args = fmt.Sprintf("consume/%dB/raw", size), append(c.args, "--raw")
			}
			list = append(list, c)
		}
	}
	return append(list, b.endToEnd(all)...)
}

// endToEnd are the rows of records on a schedule, from producer to consumer.
func (b *bench) endToEnd(vs []variant) (list []cell) {
	for _, rate := range []int{1000, 10_000} {
		list = append(list, cell{
			name: fmt.Sprintf("e2e/%d per s", rate), kind: "e2e", partitions: 6, variants: vs,
			args: []string{"e2e", "--record-size", "100", "--throughput", strconv.Itoa(rate), "--warm-up", "500ms", "--duration", time.Duration(2 * b.seconds * float64(time.Second)).String()},
		})
	}
	return list
}

// roundOfOne measures every row at both brokers, which run side by side.
func (b *bench) roundOfOne(ctx context.Context, round int) error {
	for _, c := range b.cells() {
		if err := b.measure(ctx, c, round); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

// measure measures one row at each of its variants in turn; every round begins
// with another one.
func (b *bench) measure(ctx context.Context, c cell, round int) error {
	for i := range c.variants {
		v := c.variants[(i+round)%len(c.variants)]
		if err := b.measureAt(ctx, c, v); err != nil {
			return fmt.Errorf("%s: %w", variants[v].name, err)
		}
	}
	return nil
}

func (b *bench) measureAt(ctx context.Context, c cell, v variant) error {
	s := b.systems[variants[v].system]
	topic := c.topic
	if c.reuse {
		topic = fmt.Sprintf("many-%d", v)
	}
	if topic == "" {
		b.serial++
		topic = fmt.Sprintf("bench-%d", b.serial)
	}
	if c.topic == "" && !s.made[topic] {
		s.made[topic] = c.reuse
		if err := s.create(ctx, topic, c.partitions, variants[v].configs); err != nil {
			return err
		}
	}
	if c.kind == "produce" {
		if err := touchPages(b.dir, int(b.seconds*touchedBytesPerSecond)); err != nil {
			return err
		}
	}
	out, err := s.drive(ctx, b.binary, append(append([]string{}, c.args...), "-t", topic)...)
	if err != nil {
		return err
	}
	b.results.add(c.name, v, othersMetric, out.others)
	switch c.kind {
	case "txn":
		b.addTransactions(c.name, v, out)
	case "isolation":
		b.addIsolation(c.name, v, out)
	case "e2e":
		b.results.add(c.name, v, "p50 ms", out.Latency.P50)
		b.results.add(c.name, v, "p99 ms", out.Latency.P99)
		b.results.add(c.name, v, "p99.9 ms", out.Latency.P999)
		say("%-48s %-28s p50 %.2f p99 %.2f p99.9 %.2f ms, others %.0f%%", c.name, variants[v].name, out.Latency.P50, out.Latency.P99, out.Latency.P999, out.others)
	default:
		perRecord := float64(out.cpu.Nanoseconds()) / 1e3 / out.Records
		b.results.add(c.name, v, "k records/s", out.PerSecond/1e3)
		b.results.add(c.name, v, "CPU µs/record", perRecord)
		say("%-48s %-28s %8.0f k/s  %.3f µs, others %.0f%%", c.name, variants[v].name, out.PerSecond/1e3, perRecord, out.others)
	}
	if c.topic == "" && !c.reuse {
		if err := s.remove(ctx, topic); err != nil {
			return fmt.Errorf("delete topic %s: %w", topic, err)
		}
	}
	return settle(ctx)
}

// touchPages fills and frees page cache. On a virtual machine the first write to a
// page that the guest never used makes the host find memory, inside the copy of
// whoever writes: up to 2 µs per KiB, which fall on one of the brokers at random.
// What was freed last is used first.
func touchPages(dir string, bytes int) error {
	path := filepath.Join(dir, "touched")
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { file.Close(); os.Remove(path) }()
	piece := make([]byte, 256<<10)
	for range bytes / len(piece) {
		if _, err := file.Write(piece); err != nil {
			return err
		}
	}
	return nil
}

// touchedBytesPerSecond is more than all brokers of a system together write in a
// second of measuring: of two systems the faster one would pay for what lies
// beyond.
const touchedBytesPerSecond = 1280 << 20

// settle waits a while for the disk to have written what the last measurement
// left: it would be charged to the next.
func settle(ctx context.Context) error {
	const enough = 96 << 10 // KiB
	for range 20 {
		b, err := os.ReadFile("/proc/meminfo")
		if err != nil {
			return err
		}
		waiting := 0
		for line := range strings.SplitSeq(string(b), "\n") {
			f := strings.Fields(line)
			if len(f) > 1 && (f[0] == "Dirty:" || f[0] == "Writeback:") {
				kib, _ := strconv.Atoi(f[1])
				waiting += kib
			}
		}
		if waiting < enough {
			return nil
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
