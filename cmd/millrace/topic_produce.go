package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/urfave/cli/v2"
)

func topicProduceCommand() *cli.Command {
	return &cli.Command{
		Name:      "produce",
		Usage:     "write records to a topic, from stdin or a file",
		ArgsUsage: "NAME",
		Description: "-f says how a record is read: '%v\\n' (one value a line), '%k %v\\n', '%k\\t%v\\t%h{1}{%k=%v}\\n' as in rpk, or json.\n" +
			"-f json reads what `millrace topic consume -f json` prints, and loses nothing.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "f", Value: "%v\n", Usage: "record `FORMAT`: json, or with % letters"},
			&cli.StringFlag{Name: "key", Aliases: []string{"k"}, Usage: "one `KEY` for all records"},
			&cli.StringSliceFlag{Name: "header", Aliases: []string{"H"}, Usage: "`KEY=VALUE` added to all records (repeatable)"},
			&cli.IntFlag{Name: "partition", Aliases: []string{"p"}, Value: -1, Usage: "write to partition `N` (default: by key, else spread)"},
			&cli.StringFlag{Name: "compression", Aliases: []string{"z"}, Value: "snappy", Usage: "none, gzip, snappy, lz4 or zstd"},
			&cli.StringFlag{Name: "acks", Value: "all", Usage: "all (-1), 1 or 0: who must have a record"},
			&cli.BoolFlag{Name: "tombstone", Aliases: []string{"Z"}, Usage: "an empty value is null: it deletes the key in a compacted topic"},
			&cli.StringFlag{Name: "output-format", Aliases: []string{"o"}, Usage: "print each acknowledged record on stdout in this `FORMAT`, as '%p %o\\n'"},
			&cli.StringFlag{Name: "from-file", Usage: "read `FILE` instead of stdin"},
			&cli.BoolFlag{Name: "keep-partition", Usage: "with -f json: write to the partition that each record names"},
			&cli.StringFlag{Name: "transactional-id", Usage: "write all records in one transaction, under this `ID`: all or none of them count"},
			&cli.DurationFlag{Name: "transaction-timeout", Value: time.Minute, Usage: "with --transactional-id: the cluster aborts what is not done after `TIME`"},
		},
		Action: runTopicProduce,
	}
}

func runTopicProduce(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields(producedJSON{}) {
		return nil
	}
	names, err := topicArguments(c, 1)
	if err != nil {
		return err
	}
	if len(names) > 1 {
		f := usageError("produce takes one topic", "millrace topic produce "+names[0])
		f.why = "records are written to one topic at a time"
		return f
	}
	p := &production{env: e, topic: names[0]}
	options, err := p.options(c)
	if err != nil {
		return err
	}
	ctx, cancel := e.ctx(c)
	defer cancel()
	setup, err := e.connect(ctx)
	if err != nil {
		return err
	}
	var b batch
	topics, err := setup.topicMetadata(ctx, names, false, true, &b)
	setup.Close()
	switch {
	case err != nil:
		return err
	case len(b.failures) > 0:
		f := b.failures[0]
		f.what, f.fix = "cannot write to topic "+p.topic, "millrace topic create "+p.topic
		return f
	}
	if n := c.Int("partition"); c.IsSet("partition") {
		if _, err := pickPartitions(topics[0], []int32{int32(n)}); err != nil {
			return err
		}
	}
	var in io.Reader = e.stdin
	if name := c.String("from-file"); name != "" {
		file, err := os.Open(name)
		if err != nil {
			f := usageError("cannot read "+name, "--from-file FILE")
			f.why, f.cause = err.Error(), err
			return f
		}
		defer file.Close()
		in = file
	} else if terminal(e.stdin) {
		e.hint("reading records from the terminal; Ctrl-D ends them")
	}
	in = bufio.NewReaderSize(in, 256<<10)
	if c.String("f") == "json" {
		p.reader = newJSONReader(in, c.Bool("keep-partition"))
	} else if p.reader, err = kgo.NewRecordReader(in, c.String("f")); err != nil {
		f := usageError(fmt.Sprintf("-f %q is no record format", c.String("f")), `-f '%v\n', -f '%k %v\n' or -f json`)
		f.why = err.Error()
		return f
	}
	return p.run(c.Context, options)
}

// production writes records of a reader to a topic.
type production struct {
	*env
	topic     string
	reader    recordReader
	key       []byte // nil: the record's own
	headers   []kgo.RecordHeader
	partition int32 // -1: the record's own
	tombstone bool
	output    *kgo.RecordFormatter
	// transactionalID is "" without a transaction.
	transactionalID string
	// patience is how long no record may be acknowledged while some wait. The client's own limit counts from a record's
	// timestamp, which may be years old.
	patience time.Duration

	mu struct {
		sync.Mutex
		sent  int64
		acked int64
		err   error
		out   *bufio.Writer
		line  []byte
	}
}

// producedJSON is what --format json prints at the end.
type producedJSON struct {
	Topic   string `json:"topic" doc:"name"`
	Records int64  `json:"records" doc:"records that were acknowledged"`
}

func (p *production) options(c *cli.Context) ([]kgo.Opt, error) {
	p.patience = p.timeout
	if !c.IsSet("timeout") {
		p.patience = 30 * time.Second // longer than a broker's restart
	}
	options := []kgo.Opt{
		kgo.DefaultProduceTopic(p.topic),
		kgo.ProduceRequestTimeout(min(p.patience, 10*time.Second)),
		kgo.ProducerBatchMaxBytes(1_000_000),
		kgo.UnknownTopicRetries(1),
	}
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	codec, ok := codecs[c.String("compression")]
	if !ok {
		f := usageError("-z "+c.String("compression")+" is no codec", "-z zstd")
		f.why = "it is one of none, gzip, snappy, lz4, zstd"
		return nil, f
	}
	options = append(options, kgo.ProducerBatchCompression(codec))
	switch c.String("acks") {
	case "all", "-1":
		options = append(options, kgo.RequiredAcks(kgo.AllISRAcks()))
	case "1", "leader":
		options = append(options, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite())
	case "0", "none":
		options = append(options, kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite())
	default:
		f := usageError("--acks "+c.String("acks")+" makes no sense", "--acks all")
		f.why = "it is one of all (-1), 1, 0"
		return nil, f
	}
	if c.IsSet("transactional-id") {
		if p.transactionalID = c.String("transactional-id"); p.transactionalID == "" {
			f := usageError("--transactional-id is empty", "--transactional-id ledger-7")
			f.why = "perhaps a variable in the command line is not set"
			return nil, f
		}
		if a := c.String("acks"); a != "all" && a != "-1" {
			f := usageError("--transactional-id needs --acks all", "leave --acks out")
			f.why = "a transaction that counts must not lose a record"
			return nil, f
		}
		// The client does not forget what it has sent in a transaction: it is the transaction that ends without it.
		options = append(options, kgo.TransactionalID(p.transactionalID), kgo.TransactionTimeout(c.Duration("transaction-timeout")))
	} else {
		options = append(options, kgo.AllowIdempotentProduceCancellation()) // else a dead cluster would be waited for without end
	}
	p.partition = -1
	format := c.String("f")
	if c.IsSet("partition") {
		p.partition = int32(c.Int("partition"))
	}
	if c.Bool("keep-partition") && format != "json" {
		f := usageError("--keep-partition needs -f json", "-f json --keep-partition, or %p in the format")
		f.why = "only JSON records name their partition"
		return nil, f
	}
	if p.partition >= 0 || c.Bool("keep-partition") || strings.Contains(format, "%p") {
		options = append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	}
	if c.IsSet("key") {
		p.key = []byte(c.String("key"))
	}
	headers, err := keyValues("header", c.StringSlice("header"))
	if err != nil {
		return nil, err
	}
	for _, kv := range headers {
		p.headers = append(p.headers, kgo.RecordHeader{Key: kv[0], Value: []byte(kv[1])})
	}
	p.tombstone = c.Bool("tombstone")
	if o := c.String("output-format"); o != "" {
		if p.output, err = kgo.NewRecordFormatter(o); err != nil {
			f := usageError(fmt.Sprintf("-o %q is no record format", o), `-o '%p %o\n'`)
			f.why = err.Error()
			return nil, f
		}
	}
	return options, nil
}

func (p *production) run(ctx context.Context, options []kgo.Opt) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn, err := p.connect(ctx, options...)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.fails.arm(func(f *failure) { cancel(f) })
	p.mu.out = bufio.NewWriterSize(p.stdout, 64<<10)
	if p.transactionalID != "" {
		if err := conn.BeginTransaction(); err != nil {
			return conn.fail("begin a transaction of "+p.transactionalID, err)
		}
	}
	go p.watch(ctx, cancel)
	began := time.Now()
	read := int64(0)
	var readErr error
	for {
		r, err := p.reader.ReadRecord()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				readErr = err
			}
			break
		}
		if p.stopped() != nil || ctx.Err() != nil {
			break
		}
		read++
		p.dress(r)
		p.mu.Lock()
		p.mu.sent++
		p.mu.Unlock()
		conn.Produce(ctx, r, p.produced)
	}
	flushErr := conn.Flush(ctx)
	if p.transactionalID != "" {
		if err := p.endTransaction(ctx, conn, readErr, flushErr); err != nil && flushErr == nil {
			flushErr = err
		}
	}
	if err := p.mu.out.Flush(); err != nil {
		return writeError(err)
	}
	return p.finish(ctx, conn, read, time.Since(began), readErr, flushErr)
}

// endTransaction commits when all went well, and else aborts: none of the records counts then.
func (p *production) endTransaction(ctx context.Context, conn *connection, errs ...error) error {
	errs = append(errs, p.stopped(), context.Cause(ctx))
	for _, err := range errs {
		if err == nil {
			continue
		}
		// Whatever went wrong, the partitions are freed at once if the cluster can be reached; else it aborts by itself.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(p.patience, 5*time.Second))
		defer cancel()
		if conn.AbortBufferedRecords(ctx) == nil {
			_ = conn.EndTransaction(ctx, kgo.TryAbort)
		}
		p.hint("the transaction of %s was not committed: none of its records counts", p.transactionalID)
		return nil
	}
	if err := conn.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return fmt.Errorf("commit the transaction of %s: %w", p.transactionalID, err)
	}
	return nil
}

// watch ends a production that makes no progress: records wait, and none was acknowledged for a while.
func (p *production) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	const looks = 20
	ticker := time.NewTicker(max(p.patience/looks, time.Millisecond))
	defer ticker.Stop()
	var last int64
	for stalled := 0; stalled <= looks; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		p.mu.Lock()
		acked, waiting := p.mu.acked, p.mu.sent > p.mu.acked
		p.mu.Unlock()
		if acked != last || !waiting {
			last, stalled = acked, 0
			continue
		}
		stalled++
	}
	cancel(context.DeadlineExceeded)
}

// dress applies the flags to a record that was read.
func (p *production) dress(r *kgo.Record) {
	r.Topic = ""
	if p.key != nil {
		r.Key = p.key
	}
	r.Headers = append(r.Headers, p.headers...)
	if p.partition >= 0 {
		r.Partition = p.partition
	}
	if p.tombstone && len(r.Value) == 0 {
		r.Value = nil
	}
}

// produced is called for each record once its fate is known.
func (p *production) produced(r *kgo.Record, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		if p.mu.err == nil {
			p.mu.err = err
		}
		return
	}
	p.mu.acked++
	if p.output != nil {
		p.mu.line = p.output.AppendRecord(p.mu.line[:0], r)
		if _, err := p.mu.out.Write(p.mu.line); err != nil && p.mu.err == nil {
			p.mu.err = writeError(err)
		}
	}
}

func (p *production) stopped() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.err
}

func (p *production) finish(ctx context.Context, conn *connection, read int64, took time.Duration, readErr, flushErr error) error {
	p.mu.Lock()
	acked, recordErr := p.mu.acked, p.mu.err
	p.mu.Unlock()
	// The first cause counts: an interruption, then the input, then what became of the records.
	err := context.Cause(ctx)
	if errors.Is(err, context.DeadlineExceeded) && recordErr != nil && !errors.Is(recordErr, context.Canceled) {
		err = recordErr // it says more than that time is up
	}
	for _, later := range []error{readErr, recordErr, flushErr} {
		if err == nil {
			err = later
		}
	}
	if err == nil {
		if p.format == "json" || p.format == "yaml" {
			return p.emit(result{value: producedJSON{p.topic, acked}})
		}
		p.hint("%d records written to %s in %s", acked, p.topic, took.Round(time.Millisecond))
		return nil
	}
	if errors.Is(err, errBrokenPipe) || errors.Is(err, context.Canceled) {
		p.hint("%d records written to %s before the interruption", acked, p.topic)
		return err
	}
	f := conn.fail("write to topic "+p.topic, err)
	if acked > 0 && f.code == exitFailed {
		f.code = exitSome
	}
	if acked > 0 || read > 1 {
		f.what += fmt.Sprintf(" (%d of the %d records read were acknowledged)", acked, read)
	}
	return f
}
