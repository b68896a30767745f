package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/cmd/replay"
	"github.com/millrace/millrace/log/record"
)

func benchProduceCommand() *cli.Command {
	return &cli.Command{
		Name:  "produce",
		Usage: "measure producing: records and bytes a second, and how long an acknowledgement takes",
		Description: "With --throughput each record is due at a time of its own, and its latency counts from then on, whatever\n" +
			"held it up. --raw sends the same encoded request again and again over some connections: a normal client burns\n" +
			"most of two cores and hides the broker.",
		Flags: benchFlags(append(benchSendFlags(),
			&cli.Float64Flag{Name: "throughput", Value: -1, Usage: "records a second, at a fixed schedule (default -1: as many as go)"},
			&cli.BoolFlag{Name: "raw", Usage: "replay encoded requests instead of a client; a batch has --batch-size bytes"},
			&cli.IntFlag{Name: "connections", Value: 2, Usage: "with --raw: `N` connections"},
			&cli.IntFlag{Name: "in-flight", Value: 8, Usage: "with --raw: most requests of a connection that wait for their answer"},
		)...),
		Action: runBenchProduce,
	}
}

// producedBench is what bench produce measures.
type producedBench struct {
	Topic      string      `json:"topic" doc:"name"`
	Client     string      `json:"client" doc:"client, or raw"`
	Records    int64       `json:"records" doc:"records that were acknowledged"`
	Bytes      int64       `json:"bytes" doc:"bytes of their values; with raw: of their batches"`
	Seconds    float64     `json:"seconds" doc:"from the first record to the last acknowledgement"`
	PerSecond  float64     `json:"records_per_second" doc:"records a second"`
	MBSecond   float64     `json:"mb_per_second" doc:"MiB a second"`
	Latency    latencyJSON `json:"latency" doc:"of each record (raw: of each request), from the time it was due to its acknowledgement"`
	BatchBytes int         `json:"batch_bytes,omitempty" doc:"with raw: size of the batch that is replayed"`
}

func runBenchProduce(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields(producedBench{}) {
		return nil
	}
	settings, err := e.sendSettings(c, 5*time.Millisecond)
	if err != nil {
		return err
	}
	rate := c.Float64("throughput")
	t, err := e.benchTarget(c)
	if err != nil {
		return err
	}
	if t.records == 0 && t.limit == 0 {
		t.records = 1_000_000
	}
	if c.Bool("raw") {
		return t.produceRaw(c, settings, rate)
	}
	conn, err := e.connect(c.Context, settings.options(t.topic.Topic)...)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := t.bounded(c.Context)
	defer cancel()
	s := &sender{topic: t.topic.Topic, client: conn.Client, payload: settings.payload, bar: t.newProgress("produce", t.records)}
	began := time.Now()
	s.run(ctx, c.Context, t.records, rate, nil)
	flush, stop := context.WithTimeout(c.Context, max(t.timeout, 30*time.Second))
	defer stop()
	flushErr := conn.Flush(flush)
	took := time.Since(began)
	s.bar.finish()
	if s.err != nil {
		return conn.fail("produce to topic "+s.topic, s.err)
	}
	if flushErr != nil {
		return conn.fail("produce to topic "+s.topic, flushErr)
	}
	return t.emitProduced(producedBench{Client: "client", Records: s.acked, Bytes: s.bytes, Seconds: took.Seconds(), Latency: s.latency.summary()})
}

// emitProduced fills in the rates and prints.
func (t *benchTarget) emitProduced(r producedBench) error {
	r.Topic = t.topic.Topic
	r.PerSecond, r.MBSecond = float64(r.Records)/r.Seconds, float64(r.Bytes)/r.Seconds/(1<<20)
	return t.emit(result{value: r, text: func(w io.Writer, _ bool) { fmt.Fprintln(w, r.perfLine()) }})
}

// perfLine is the summary of kafka-producer-perf-test, for the scripts that read it.
func (r producedBench) perfLine() string {
	return fmt.Sprintf("%d records sent, %f records/sec (%.2f MB/sec), %.2f ms avg latency, %.2f ms max latency, %.0f ms 50th, %.0f ms 95th, %.0f ms 99th, %.0f ms 99.9th.",
		r.Records, r.PerSecond, r.MBSecond, r.Latency.Mean, r.Latency.Max, r.Latency.P50, r.Latency.P95, r.Latency.P99, r.Latency.P999)
}

// sender produces records on a schedule or as fast as they go.
type sender struct {
	topic   string
	client  *kgo.Client
	payload *payload
	bar     *progress
	pool    sync.Pool
	// countFrom: records that were due before are not in latency.
	countFrom time.Time

	// Written by the client's one goroutine that ends records; read after the flush.
	acked, bytes int64
	latency      histogram
	err          error
	failed       atomic.Bool // err is set
}

// sample is a record on its way, used again once it is acknowledged.
type sample struct {
	record kgo.Record
	due    time.Time
	done   func(*kgo.Record, error)
}

// run produces until n records (0: no limit) are sent, an error came, or ctx ends. produceCtx is that of the records,
// which outlives ctx. stamp, when set, makes the value of a record that is due then.
func (s *sender) run(ctx, produceCtx context.Context, n int64, rate float64, stamp func(i int64, due time.Time) []byte) {
	began := time.Now()
	for i := int64(0); n == 0 || i < n; i++ {
		due := time.Now()
		if rate > 0 {
			due = began.Add(time.Duration(float64(i) / rate * float64(time.Second)))
			if wait := time.Until(due); wait > 0 {
				select {
				case <-time.After(wait):
				case <-ctx.Done():
				}
			}
		}
		if i%16 == 0 || rate > 0 {
			if ctx.Err() != nil || s.failed.Load() {
				return
			}
		}
		m, _ := s.pool.Get().(*sample)
		if m == nil {
			m = &sample{}
			m.done = func(r *kgo.Record, err error) { s.ended(m, err) }
		}
		m.due = due
		m.record = kgo.Record{Value: s.payload.value(i)}
		if stamp != nil {
			m.record.Value = stamp(i, due)
		}
		s.client.Produce(produceCtx, &m.record, m.done)
	}
}

// ended is called once for each record, by one goroutine at a time.
func (s *sender) ended(m *sample, err error) {
	if err != nil {
		if s.err == nil {
			s.err = err
			s.failed.Store(true)
		}
		return
	}
	s.acked++
	s.bytes += int64(len(m.record.Value))
	if !m.due.Before(s.countFrom) {
		s.latency.add(time.Since(m.due))
	}
	if s.bar != nil {
		s.bar.add(1)
	}
	s.pool.Put(m)
}

// produceRaw replays one batch over several connections.
func (t *benchTarget) produceRaw(c *cli.Context, settings *sendSettings, rate float64) error {
	if settings.acks == 0 {
		f := usageError("--raw counts answers, and acks=0 has none", "--acks 1")
		f.why = "what was sent into a socket says nothing about a broker"
		return f
	}
	n, inFlight := c.Int("connections"), c.Int("in-flight")
	if n < 1 || n > 10_000 || inFlight < 1 {
		f := usageError("--raw needs a connection and a request in flight", "--connections 2 --in-flight 8")
		f.why = fmt.Sprintf("--connections %d --in-flight %d", n, inFlight)
		return f
	}
	batch, records := settings.batch()
	requests := 1 << 40
	if t.records > 0 {
		requests = int((t.records + int64(records*n) - 1) / int64(records*n))
	}
	ctx, cancel := t.bounded(c.Context)
	defer cancel()
	addresses, partitions := t.leadersOf()
	bar := t.newProgress("produce", t.records)
	var mu sync.Mutex // of bar
	runs := make([]struct {
		client  *replay.Producer
		latency histogram
		acked   int
		err     error
	}, n)
	for i := range runs {
		r := &runs[i]
		cfg := replay.ProducerConfig{
			Addr: addresses[i%len(addresses)], Topic: t.topic.Topic, Batch: batch, Acks: settings.acks, InFlight: inFlight,
			Acknowledged: func(d time.Duration) {
				r.latency.add(d)
				if bar != nil {
					mu.Lock()
					bar.add(int64(records))
					mu.Unlock()
				}
			},
		}
		// Connections to one broker begin at different partitions.
		of := partitions[cfg.Addr]
		shift := i / len(addresses) * max(len(of)/n, 1) % len(of)
		cfg.Partitions = append(append([]int32{}, of[shift:]...), of[:shift]...)
		if rate > 0 {
			cfg.Interval = time.Duration(float64(records*n) / rate * float64(time.Second))
		}
		client, err := replay.NewProducer(ctx, cfg)
		if err != nil {
			return explain("connect to "+cfg.Addr, err)
		}
		defer client.Close()
		r.client = client
	}
	var wg sync.WaitGroup
	began := time.Now()
	for i := range runs {
		r := &runs[i]
		wg.Go(func() {
			if r.acked, r.err = r.client.Run(ctx, requests); r.err != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	bar.finish()
	total := producedBench{Client: "raw", Seconds: took.Seconds(), BatchBytes: len(batch)}
	var all histogram
	for i := range runs {
		r := &runs[i]
		var code *kerr.Error
		if errors.As(r.err, &code) {
			return explainCode("produce to topic "+t.topic.Topic, code, "")
		}
		if r.err != nil {
			return explain("produce to topic "+t.topic.Topic, r.err)
		}
		all.merge(&r.latency)
		total.Records += int64(r.acked * records)
		total.Bytes += int64(r.acked * len(batch))
	}
	total.Latency = all.summary()
	return t.emitProduced(total)
}

// batch encodes one batch of at most the batch size, and at least one record, and says how many records it has.
func (s *sendSettings) batch() ([]byte, int) {
	b := record.NewBuilder(benchCodecs[s.codec].batch)
	now := time.Now().UnixMilli()
	for i := int64(0); ; i++ {
		v := s.payload.value(i)
		if i > 0 && b.Size()+len(v)+16 > s.batchBytes { // 16: the fields of a record
			break
		}
		b.Add(now, nil, v, nil)
	}
	return b.Build(), b.Count()
}
