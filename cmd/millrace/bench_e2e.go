package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/urfave/cli/v2"
)

func benchE2ECommand() *cli.Command {
	return &cli.Command{
		Name:  "e2e",
		Usage: "measure the way of a record from its producer to its consumer, at a fixed rate",
		Description: "Each record is due at a time of its own, and carries it; its latency counts from then until a consumer in this\n" +
			"process has it. A broker that stalls is charged for all that waited meanwhile.",
		Flags: benchFlags(append(benchSendFlags(),
			&cli.Float64Flag{Name: "throughput", Value: 1000, Usage: "records a second"},
			&cli.DurationFlag{Name: "warm-up", Value: time.Second, Usage: "records of this first time are sent but not counted"},
		)...),
		Action: runBenchE2E,
	}
}

// e2eBench is what bench e2e measures.
type e2eBench struct {
	Topic      string      `json:"topic" doc:"name"`
	Records    int64       `json:"records" doc:"records that were counted"`
	Throughput float64     `json:"throughput" doc:"records a second that were asked for"`
	Latency    latencyJSON `json:"latency" doc:"from the time a record was due to its arrival at the consumer"`
	Acked      latencyJSON `json:"acknowledged" doc:"from the time a record was due to its acknowledgement"`
}

// e2eHeader is the time a record is due, in ns since the run began, at the start of its value.
const e2eHeader = 8

func runBenchE2E(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields(e2eBench{}) {
		return nil
	}
	settings, err := e.sendSettings(c, 0)
	if err != nil {
		return err
	}
	rate, warm := c.Float64("throughput"), c.Duration("warm-up")
	if rate <= 0 || warm < 0 {
		f := usageError("e2e needs a rate", "--throughput 1000")
		f.why = "at no fixed rate a latency says only how full the buffers were"
		return f
	}
	t, err := e.benchTarget(c)
	if err != nil {
		return err
	}
	if t.records == 0 && t.limit == 0 {
		t.records = int64(rate * 10)
	}
	if t.records == 0 {
		t.records = max(int64(rate*t.limit.Seconds()), 1)
	}
	_, ends, err := t.offsets(c.Context)
	if err != nil {
		return err
	}
	from := map[int32]kgo.Offset{}
	for p, end := range ends {
		from[p] = kgo.NewOffset().At(end)
	}
	consumer, err := e.connect(c.Context, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{t.topic.Topic: from}), kgo.FetchMaxWait(500*time.Millisecond))
	if err != nil {
		return err
	}
	defer consumer.Close()
	producer, err := e.connect(c.Context, settings.options(t.topic.Topic)...)
	if err != nil {
		return err
	}
	defer producer.Close()

	uncounted := int64(warm.Seconds() * rate)
	total := uncounted + t.records
	began := time.Now()
	warm = time.Duration(float64(uncounted) / rate * float64(time.Second))
	s := &sender{topic: t.topic.Topic, client: producer.Client, payload: settings.payload, countFrom: began.Add(warm)}
	r := &receiver{client: consumer.Client, began: began, warm: warm, total: total, bar: t.newProgress("e2e", total)}
	ctx, cancel := context.WithTimeout(c.Context, time.Duration(float64(total)/rate*float64(time.Second))+max(t.timeout, 30*time.Second))
	defer cancel()
	received := make(chan error, 1)
	go func() { received <- r.run(ctx) }()
	s.run(ctx, ctx, total, rate, func(i int64, due time.Time) []byte {
		value := append(make([]byte, e2eHeader), settings.payload.value(i)...)
		value = value[:max(e2eHeader, len(value)-e2eHeader)] // as long as was asked for
		binary.BigEndian.PutUint64(value, uint64(due.Sub(began)))
		return value
	})
	flushErr := producer.Flush(ctx)
	if s.failed.Load() || flushErr != nil {
		cancel()
		<-received
		if s.err != nil {
			flushErr = s.err
		}
		return producer.fail("produce to topic "+t.topic.Topic, flushErr)
	}
	err = <-received
	r.bar.finish()
	if err != nil {
		return consumer.fail(fmt.Sprintf("get back the records sent to %s (%d of %d came)", t.topic.Topic, r.got, total), err)
	}
	out := e2eBench{Topic: t.topic.Topic, Records: int64(r.latency.count), Throughput: rate, Latency: r.latency.summary(), Acked: s.latency.summary()}
	return t.emit(result{value: out, text: func(w io.Writer, _ bool) {
		fmt.Fprintf(w, "Avg latency: %.4f ms\n", out.Latency.Mean)
		fmt.Fprintf(w, "Percentiles: 50th = %.3f, 95th = %.3f, 99th = %.3f, 99.9th = %.3f\n", out.Latency.P50, out.Latency.P95, out.Latency.P99, out.Latency.P999)
	}})
}

// receiver consumes the records of a run.
type receiver struct {
	client  *kgo.Client
	began   time.Time
	warm    time.Duration // records due before are not counted
	total   int64
	bar     *progress
	got     int64
	latency histogram
}

// run polls until all records are there or ctx ends.
func (r *receiver) run(ctx context.Context) error {
	for r.got < r.total {
		fetches := r.client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, f := range fetches.Errors() {
			return f.Err
		}
		now := time.Since(r.began)
		fetches.EachRecord(func(rec *kgo.Record) {
			r.got++
			if len(rec.Value) < e2eHeader {
				return // not ours
			}
			if due := time.Duration(binary.BigEndian.Uint64(rec.Value)); due >= r.warm {
				r.latency.add(now - due)
			}
		})
		r.bar.add(int64(fetches.NumRecords()))
	}
	return nil
}
