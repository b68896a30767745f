//go:build linux

package integration

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/cmd/replay"
	"github.com/millrace/millrace/log/record"
)

// These benchmarks measure CPU time of the serving side alone, in µs per KiB of
// records, because on a shared machine throughput says little and the client
// burns most of it. The floors are what the machine charges for the bytes if a
// broker did nothing else:
//
//	produce  read a frame from a loopback socket, CRC-32C, pwrite in pieces of 256 KiB
//	fetch    pread 256 KiB, write to a loopback socket
//
// BenchmarkBroker* measures a real broker process with raw clients beside the
// floor, round by round in turn, and reports the ratio of the medians. The goals
// are 1.8 for produce and 1.15 for fetch at 1 MiB; they are printed, not
// asserted. Third in the round is the lean server, a process of its own in plain
// Go that answers requests with the floor's work and nothing else: what it costs
// above the floor is the price of the runtime, its poller and answers, and
// what the broker costs above it is ours.
//
//	go test -run '^$' -bench 'Floor|Broker' ./integration
const (
	pieceBytes = 256 << 10
	roundMiB   = 64 // one round, and one benchmark operation, of either side
	roundBytes = roundMiB << 20
	minRounds  = 7 // a round is long: the default -benchtime would stop after one or two
)

// frameSizes are the sizes of a Produce request, and of its only batch.
var frameSizes = []int{1 << 20, 64 << 10, 16 << 10}

func sizeName(n int) string {
	if n >= 1<<20 {
		return fmt.Sprintf("%dMiB", n>>20)
	}
	return fmt.Sprintf("%dKiB", n>>10)
}

func BenchmarkFloorProduce(b *testing.B) {
	for _, size := range frameSizes {
		b.Run(sizeName(size), func(b *testing.B) {
			floor := newProduceFloor(b, size)
			var rounds []float64
			for b.Loop() {
				touchPages(b, floor.dir)
				rounds = append(rounds, floor.round(b))
			}
			b.ReportMetric(median(rounds), "cpu-us/KiB")
			b.ReportMetric(0, "ns/op") // the sender's time, and that of touchPages
		})
	}
}

func BenchmarkFloorFetch(b *testing.B) {
	floor := newFetchFloor(b)
	var rounds []float64
	for b.Loop() {
		rounds = append(rounds, floor.round(b))
	}
	b.ReportMetric(median(rounds), "cpu-us/KiB")
	b.ReportMetric(0, "ns/op") // the receiver's time
}

// BenchmarkBrokerProduce replays one pre-encoded Produce request of 1 KiB
// records over one connection, pipelined, to a topic that does not sync before
// it acknowledges.
func BenchmarkBrokerProduce(b *testing.B) {
	for _, size := range frameSizes {
		b.Run(sizeName(size), func(b *testing.B) {
			broker := startBroker(b)
			createTopic(b, broker, "floor", 1, "millrace.flush.ack", "false")
			floor := newProduceFloor(b, size)
			client := newReplayer(b, broker, "floor", size)
			client.round(b) // the first segment, the first frames
			lean := startLean(b)
			interleave(b, floor.round,
				func(b *testing.B) float64 {
					return lean.cpu(b, func(b *testing.B) int { return lean.produce(b, size) })
				},
				func(b *testing.B) float64 { return processCPU(b, broker.cmd.Process.Pid, client.round) })
		})
	}
}

// BenchmarkBrokerFetch reads a topic from its start in pieces of 1 MiB, the
// default of most clients.
func BenchmarkBrokerFetch(b *testing.B) {
	for _, size := range []int{1 << 20, 64 << 10} {
		b.Run(sizeName(size)+"-batches", func(b *testing.B) {
			broker := startBroker(b)
			createTopic(b, broker, "floor", 1, "millrace.flush.ack", "false")
			newReplayer(b, broker, "floor", size).round(b)
			floor := newFetchFloor(b)
			client := newFetcher(b, broker, "floor")
			client.round(b)
			lean := startLean(b)
			lean.produce(b, 1<<20) // what it serves
			interleave(b, floor.round,
				func(b *testing.B) float64 { return lean.cpu(b, lean.fetch) },
				func(b *testing.B) float64 { return processCPU(b, broker.cmd.Process.Pid, client.round) })
		})
	}
}

// interleave runs the three in turn, so that whatever else the machine does
// meanwhile falls on all.
func interleave(b *testing.B, floor, lean, broker func(*testing.B) float64) {
	var floors, leans, brokers []float64
	dir := b.TempDir()
	round := func() {
		touchPages(b, dir)
		floors = append(floors, floor(b))
		leans = append(leans, lean(b))
		brokers = append(brokers, broker(b))
	}
	for b.Loop() {
		round()
	}
	for len(floors) < minRounds {
		round()
	}
	b.ReportMetric(median(floors), "floor-us/KiB")
	b.ReportMetric(median(leans), "lean-us/KiB")
	b.ReportMetric(median(brokers), "broker-us/KiB")
	b.ReportMetric(median(brokers)/median(floors), "broker/floor")
	b.ReportMetric(median(brokers)/median(leans), "broker/lean")
	b.ReportMetric(0, "ns/op") // all three and their clients: says nothing
}

// touchPages fills and frees page cache for a round. On a virtual machine the
// first write to a page that the guest never used makes the host find memory,
// inside the copy of whoever writes: up to 2 µs per KiB that fall on one of the
// three at random. What was freed last is used first.
func touchPages(b *testing.B, dir string) {
	path := filepath.Join(dir, "touched")
	file, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { file.Close(); os.Remove(path) }()
	piece := make([]byte, pieceBytes)
	for range 4 * roundBytes / pieceBytes {
		if _, err := file.Write(piece); err != nil {
			b.Fatal(err)
		}
	}
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// perKiB is CPU time per KiB, in µs.
func perKiB(cpu time.Duration, bytes int) float64 {
	return float64(cpu.Nanoseconds()) / 1e3 / (float64(bytes) / (1 << 10))
}

// threadCPU is the CPU time of the calling thread.
func threadCPU(b *testing.B) time.Duration { return cpuClock(b, unix.CLOCK_THREAD_CPUTIME_ID) }

// processCPU is what a process used during round, per KiB that round moved.
func processCPU(b *testing.B, pid int, round func(*testing.B) int) float64 {
	clock := int32(^pid<<3 | 2) // the kernel's CPU clock of that process, as scheduled
	before := cpuClock(b, clock)
	bytes := round(b)
	return perKiB(cpuClock(b, clock)-before, bytes)
}

func cpuClock(b *testing.B, clock int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		b.Fatalf("read CPU clock %d: %v", clock, err)
	}
	return time.Duration(ts.Nano())
}

// served runs one round of the serving side on a thread of its own and returns
// that thread's CPU time per KiB.
func served(b *testing.B, serve func() error) float64 {
	type result struct {
		cpu time.Duration
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		before := threadCPU(b)
		err := serve()
		done <- result{threadCPU(b) - before, err}
	}()
	r := <-done
	if r.err != nil {
		b.Fatal(r.err)
	}
	return perKiB(r.cpu, roundBytes)
}

// blockingConn is one end of a loopback TCP connection whose reads and writes
// block in the kernel, so that no runtime stands between thread and socket.
type blockingConn struct{ file *os.File }

func (c blockingConn) Read(p []byte) (int, error) {
	for {
		n, err := unix.Read(int(c.file.Fd()), p)
		if err == unix.EINTR {
			continue
		}
		if n == 0 && err == nil {
			return 0, io.EOF
		}
		return n, err
	}
}

func (c blockingConn) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Write(int(c.file.Fd()), p[done:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// loopback returns a connected pair: the serving side as the kernel has it, and
// the client's as Go has it.
func loopback(b *testing.B) (blockingConn, net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	file, err := server.(*net.TCPConn).File() // a duplicate
	if err != nil {
		b.Fatal(err)
	}
	server.Close()
	if err := unix.SetNonblock(int(file.Fd()), false); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { file.Close(); client.Close() })
	return blockingConn{file}, client
}

// produceFloor receives frames, checks them and appends them to a file.
type produceFloor struct {
	size   int
	blob   []byte // length prefix and frame
	server blockingConn
	client net.Conn
	in     *bufio.Reader
	frame  []byte
	dir    string
}

func newProduceFloor(b *testing.B, size int) *produceFloor {
	f := &produceFloor{size: size, frame: make([]byte, size), dir: b.TempDir()}
	f.blob = binary.BigEndian.AppendUint32(nil, uint32(size))
	f.blob = append(f.blob, make([]byte, size)...)
	f.server, f.client = loopback(b)
	f.in = bufio.NewReaderSize(f.server, 4<<10)
	return f
}

func (f *produceFloor) round(b *testing.B) float64 {
	path := filepath.Join(f.dir, "segment")
	file, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { file.Close(); os.Remove(path) }()
	frames := roundBytes / f.size
	sent := make(chan error, 1)
	go func() {
		for range frames {
			if _, err := f.client.Write(f.blob); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	table := crc32.MakeTable(crc32.Castagnoli)
	var sum uint32
	cpu := served(b, func() error {
		fd, at := int(file.Fd()), int64(0)
		for range frames {
			var prefix [4]byte
			if _, err := io.ReadFull(f.in, prefix[:]); err != nil {
				return err
			}
			frame := f.frame[:binary.BigEndian.Uint32(prefix[:])]
			if _, err := io.ReadFull(f.in, frame); err != nil {
				return err
			}
			sum ^= crc32.Checksum(frame, table)
			for len(frame) > 0 {
				n, err := unix.Pwrite(fd, frame[:min(len(frame), pieceBytes)], at)
				if err != nil {
					return err
				}
				frame, at = frame[n:], at+int64(n)
			}
		}
		return nil
	})
	if err := <-sent; err != nil {
		b.Fatal(err)
	}
	return cpu
}

// fetchFloor reads a file and writes it to a socket.
type fetchFloor struct {
	file   *os.File
	server blockingConn
	client net.Conn
	chunk  []byte
}

func newFetchFloor(b *testing.B) *fetchFloor {
	file, err := os.Create(filepath.Join(b.TempDir(), "segment"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { file.Close() })
	f := &fetchFloor{file: file, chunk: make([]byte, pieceBytes)}
	for range roundBytes / pieceBytes {
		if _, err := file.Write(f.chunk); err != nil {
			b.Fatal(err)
		}
	}
	f.server, f.client = loopback(b)
	return f
}

func (f *fetchFloor) round(b *testing.B) float64 {
	received := make(chan error, 1)
	go func() {
		buf := make([]byte, 1<<20)
		for left := roundBytes; left > 0; {
			n, err := f.client.Read(buf[:min(len(buf), left)])
			if err != nil {
				received <- err
				return
			}
			left -= n
		}
		received <- nil
	}()
	cpu := served(b, func() error {
		for at := int64(0); at < roundBytes; at += pieceBytes {
			n, err := unix.Pread(int(f.file.Fd()), f.chunk, at)
			if err != nil {
				return err
			}
			if _, err := f.server.Write(f.chunk[:n]); err != nil {
				return err
			}
		}
		return nil
	})
	if err := <-received; err != nil {
		b.Fatal(err)
	}
	return cpu
}

// batchOf builds a batch of 1 KiB records that is just below size.
func batchOf(size int) []byte {
	b := record.NewBuilder(record.CodecNone)
	now := time.Now().UnixMilli()
	value := make([]byte, 1<<10-16) // a record of 1 KiB with its own fields
	for i := 0; b.Size()+1<<10+8 <= size; i++ {
		for j := range value {
			value[j] = byte(i*31 + j*7)
		}
		b.Add(now, nil, value, nil)
	}
	return b.Build()
}

// replayer produces the same batch again and again, ahead of the answers.
type replayer struct {
	client *replay.Producer
	frames int
	batch  int // bytes
}

func newReplayer(b *testing.B, p *broker, topic string, size int) *replayer {
	batch := batchOf(size)
	client, err := replay.NewProducer(b.Context(), replay.ProducerConfig{Addr: p.Addr, Topic: topic, Partitions: []int32{0}, Batch: batch, Acks: -1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { client.Close() })
	return &replayer{client: client, frames: roundBytes / len(batch), batch: len(batch)}
}

// round produces and returns the bytes of records.
func (r *replayer) round(b *testing.B) int {
	n, err := r.client.Run(b.Context(), r.frames)
	if err != nil || n != r.frames {
		b.Fatalf("produce: %d of %d requests: %v", n, r.frames, err)
	}
	return n * r.batch
}

// fetcher reads a partition from its start, with fetchesAhead requests on their
// way: as all batches are equal, so are the answers, and their offsets known.
type fetcher struct{ client *replay.Fetcher }

const fetchesAhead = 2

func newFetcher(b *testing.B, p *broker, topic string) *fetcher {
	client, err := replay.NewFetcher(b.Context(), replay.FetcherConfig{Addr: p.Addr, Topic: topic})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { client.Close() })
	return &fetcher{client}
}

// ask requests the records from offset on.
func (f *fetcher) ask(b *testing.B, offset int64) {
	if err := f.client.Ask(0, offset); err != nil {
		b.Fatal(err)
	}
}

// answer reads one response and returns the size of its records and the offset
// after the last.
func (f *fetcher) answer(b *testing.B, offset int64) (int, int64) {
	records, err := f.client.Answer()
	if err != nil || len(records) == 0 {
		b.Fatalf("fetch: %d bytes, %v", len(records), err)
	}
	batch, _, err := record.Next(records)
	if err != nil || batch.BaseOffset() != offset {
		b.Fatalf("fetched %v (%v), want offset %d", batch[:min(len(batch), record.HeaderBytes)], err, offset)
	}
	_, next, err := replay.Count(records, offset)
	if err != nil {
		b.Fatal(err)
	}
	return len(records), next
}

// round reads nearly all that one round of the replayer wrote, and returns the
// bytes of records.
func (f *fetcher) round(b *testing.B) int {
	f.ask(b, 0)
	size, stride := f.answer(b, 0)
	answers := roundBytes * 95 / 100 / size
	for i := range answers + fetchesAhead {
		if i < answers {
			f.ask(b, stride*int64(i))
		}
		if at := i - fetchesAhead; at >= 0 {
			f.answer(b, stride*int64(at))
		}
	}
	return (answers + 1) * size
}
