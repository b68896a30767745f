package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/cmd/replay"
)

func benchConsumeCommand() *cli.Command {
	return &cli.Command{
		Name:        "consume",
		Usage:       "measure consuming a topic from its start, until its end of now or --num-records",
		Description: "--raw reads answers and looks at the headers of batches only: it shows the broker where a normal client hides it.",
		Flags: benchFlags(
			&cli.BoolFlag{Name: "raw", Usage: "fetch without decoding records"},
			&cli.IntFlag{Name: "connections", Value: 2, Usage: "with --raw: `N` connections, each of which reads its share of the partitions"},
			&cli.BoolFlag{Name: "read-committed", Usage: "read no records of transactions that are open or were aborted"},
		),
		Action: runBenchConsume,
	}
}

// consumedBench is what bench consume measures.
type consumedBench struct {
	Topic     string    `json:"topic" doc:"name"`
	Client    string    `json:"client" doc:"client, or raw"`
	Records   int64     `json:"records" doc:"records that were read"`
	Bytes     int64     `json:"bytes" doc:"bytes of their keys and values; with raw: of their batches"`
	Seconds   float64   `json:"seconds" doc:"from the first request to the last record"`
	PerSecond float64   `json:"records_per_second" doc:"records a second"`
	MBSecond  float64   `json:"mb_per_second" doc:"MiB a second"`
	Offsets   float64   `json:"offsets_per_second" doc:"offsets passed a second; when all was read: with markers and records that are not shown"`
	Began     time.Time `json:"began" doc:"when the first request was sent"`

	passed int64 // offsets
}

func runBenchConsume(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields(consumedBench{}) {
		return nil
	}
	if err := noArguments(c); err != nil {
		return err
	}
	t, err := e.benchTarget(c)
	if err != nil {
		return err
	}
	starts, ends, err := t.offsets(c.Context)
	if err != nil {
		return err
	}
	var there int64
	for p, end := range ends {
		there += end - starts[p]
	}
	if there == 0 {
		return &failure{code: exitFailed, what: "cannot consume topic " + t.topic.Topic, why: "it has no records", fix: "millrace bench produce -t " + t.topic.Topic + "   writes some"}
	}
	if t.records == 0 || t.records > there {
		t.records = there
	}
	ctx, cancel := t.bounded(c.Context)
	defer cancel()
	r := consumedBench{Topic: t.topic.Topic, Client: "client", Began: time.Now()}
	bar := t.newProgress("consume", t.records)
	if c.Bool("raw") {
		r.Client = "raw"
		err = t.consumeRaw(ctx, &r, c.Int("connections"), c.Bool("read-committed"), starts, ends, bar)
	} else {
		err = t.consumeClient(ctx, &r, c.Bool("read-committed"), starts, ends, bar)
	}
	r.Seconds = time.Since(r.Began).Seconds()
	bar.finish()
	if err != nil {
		return err
	}
	if c.Context.Err() != nil {
		return c.Context.Err()
	}
	r.PerSecond, r.MBSecond = float64(r.Records)/r.Seconds, float64(r.Bytes)/r.Seconds/(1<<20)
	r.Offsets = float64(r.passed) / r.Seconds
	return t.emit(result{value: r, text: func(w io.Writer, _ bool) {
		fmt.Fprintln(w, "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec")
		fmt.Fprintln(w, r.perfLine())
	}})
}

// perfLine is the summary of kafka-consumer-perf-test, for the scripts that read it.
func (r consumedBench) perfLine() string {
	stamp := func(t time.Time) string {
		return t.Format("2006-01-02 15:04:05") + fmt.Sprintf(":%03d", t.Nanosecond()/1e6)
	}
	end := r.Began.Add(time.Duration(r.Seconds * float64(time.Second)))
	return fmt.Sprintf("%s, %s, %.4f, %.4f, %d, %.4f, %d, %d, %.4f, %.4f", stamp(r.Began), stamp(end),
		float64(r.Bytes)/(1<<20), r.MBSecond, r.Records, r.PerSecond, 0, int64(r.Seconds*1e3), r.MBSecond, r.PerSecond)
}

// offsets returns the first and the next offset of each partition.
func (t *benchTarget) offsets(ctx context.Context) (starts, ends map[int32]int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	conn, err := t.connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	starts, ends = map[int32]int64{}, map[int32]int64{}
	first, err := conn.adm.ListStartOffsets(ctx, t.topic.Topic)
	if err == nil {
		err = first.Error()
	}
	if err != nil {
		return nil, nil, conn.fail("list the offsets of "+t.topic.Topic, err)
	}
	last, err := conn.adm.ListEndOffsets(ctx, t.topic.Topic)
	if err == nil {
		err = last.Error()
	}
	if err != nil {
		return nil, nil, conn.fail("list the offsets of "+t.topic.Topic, err)
	}
	for _, o := range first.Offsets()[t.topic.Topic] {
		starts[o.Partition] = o.At
	}
	for _, o := range last.Offsets()[t.topic.Topic] {
		ends[o.Partition] = o.At
	}
	return starts, ends, nil
}

// consumeClient reads with a normal client.
func (t *benchTarget) consumeClient(ctx context.Context, r *consumedBench, committed bool, starts, ends map[int32]int64, bar *progress) error {
	from, left := map[int32]kgo.Offset{}, 0
	for p, end := range ends {
		if end > starts[p] {
			from[p] = kgo.NewOffset().At(starts[p])
			left++
		}
	}
	// A partition's last offset may be that of a marker, which ends a transaction.
	options := []kgo.Opt{kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{t.topic.Topic: from}), kgo.KeepControlRecords()}
	if committed {
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	conn, err := t.connect(ctx, options...)
	if err != nil {
		return err
	}
	defer conn.Close()
	for r.Records < t.records && left > 0 {
		fetches := conn.PollFetches(ctx)
		for _, f := range fetches.Errors() {
			if ctx.Err() != nil {
				return nil
			}
			return conn.fail("consume topic "+t.topic.Topic, f.Err)
		}
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			got := int64(0)
			for _, rec := range p.Records {
				if !rec.Attrs.IsControl() {
					r.Bytes += int64(len(rec.Key) + len(rec.Value))
					got++
				}
			}
			if n := len(p.Records); n > 0 {
				r.Records += got
				bar.add(got)
				next := p.Records[n-1].Offset + 1
				r.passed += next - starts[p.Partition]
				starts[p.Partition] = next
				if next >= ends[p.Partition] && p.Records[0].Offset < ends[p.Partition] {
					left--
				}
			}
		})
	}
	return nil
}

// consumeRaw reads with clients that look at the headers of batches only. Each connection asks for its partitions in
// turn, two requests ahead where it has two partitions.
func (t *benchTarget) consumeRaw(ctx context.Context, r *consumedBench, connections int, committed bool, starts, ends map[int32]int64, bar *progress) error {
	if connections < 1 {
		f := usageError("--raw needs a connection", "--connections 2")
		f.why = fmt.Sprintf("--connections %d", connections)
		return f
	}
	shares := map[string][][]int32{} // by leader
	addresses, partitions := t.leadersOf()
	for _, a := range addresses {
		shares[a] = make([][]int32, min(connections, len(partitions[a])))
		for i, p := range partitions[a] {
			k := i % len(shares[a])
			shares[a][k] = append(shares[a][k], p)
		}
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, a := range addresses {
		for _, share := range shares[a] {
			wg.Go(func() {
				err := fetchShare(ctx, replay.FetcherConfig{Addr: a, Topic: t.topic.Topic, Committed: committed}, share, starts, ends, func(records, bytes, passed int64) {
					mu.Lock()
					defer mu.Unlock()
					r.Records += records
					r.passed += passed
					r.Bytes += bytes
					bar.add(records)
					if r.Records >= t.records {
						cancel()
					}
				})
				mu.Lock()
				defer mu.Unlock()
				if err != nil && failed == nil {
					failed = err
					cancel()
				}
			})
		}
	}
	wg.Wait()
	var code *kerr.Error
	switch {
	case errors.As(failed, &code):
		return explainCode("consume topic "+t.topic.Topic, code, "")
	case failed != nil:
		return explain("consume topic "+t.topic.Topic, failed)
	}
	return nil
}

// fetchShare reads partitions to their ends over one connection, and counts through got.
func fetchShare(ctx context.Context, cfg replay.FetcherConfig, partitions []int32, starts, ends map[int32]int64, got func(records, bytes, passed int64)) error {
	const ahead = 2
	client, err := replay.NewFetcher(ctx, cfg)
	if err != nil {
		return err
	}
	defer client.Close()
	type position struct {
		partition int32
		offset    int64
	}
	var waiting, asked []position
	for _, p := range partitions {
		if starts[p] < ends[p] {
			waiting = append(waiting, position{p, starts[p]})
		}
	}
	for ctx.Err() == nil && len(waiting)+len(asked) > 0 {
		for len(asked) < ahead && len(waiting) > 0 {
			p := waiting[0]
			if err := client.Ask(p.partition, p.offset); err != nil {
				return err
			}
			waiting, asked = slices.Delete(waiting, 0, 1), append(asked, p)
		}
		records, err := client.Answer()
		if err != nil {
			return err
		}
		p := asked[0]
		asked = slices.Delete(asked, 0, 1)
		n, next, err := replay.Count(records, p.offset)
		if err != nil {
			return fmt.Errorf("partition %d from offset %d: %w", p.partition, p.offset, err)
		}
		got(n, int64(len(records)), next-p.offset)
		if p.offset = next; next < ends[p.partition] {
			waiting = append(waiting, p)
		}
	}
	return nil
}
