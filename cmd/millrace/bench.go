package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/log/record"
)

func benchCommand() *cli.Command {
	return &cli.Command{
		Name:        "bench",
		Usage:       "measure how fast a cluster takes, gives and passes on records; any broker that speaks Kafka",
		Subcommands: []*cli.Command{benchProduceCommand(), benchConsumeCommand(), benchE2ECommand(), benchTxnCommand()},
	}
}

// benchFlags are those that every bench command has.
func benchFlags(more ...cli.Flag) []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{Name: "topic", Aliases: []string{"t"}, Usage: "the `NAME` of a topic that exists"},
		&cli.Int64Flag{Name: "num-records", Aliases: []string{"n"}, Usage: "stop after `N` records"},
		&cli.DurationFlag{Name: "duration", Usage: "stop after this time"},
	}, more...)
}

// benchSendFlags are those of commands which produce.
func benchSendFlags() []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{Name: "record-size", Value: 100, Usage: "`BYTES` of each record's value"},
		&cli.StringFlag{Name: "payload-file", Usage: "take values from the lines of `FILE`, in random order, instead"},
		&cli.StringSliceFlag{Name: "producer-props", Usage: "`KEY=VALUE` of Kafka's producer: acks, compression.type, batch.size, linger.ms (repeatable; more may follow as arguments)"},
		&cli.StringFlag{Name: "acks", Usage: "all (-1), 1 or 0: who must have a record (default all)"},
		&cli.StringFlag{Name: "compression", Aliases: []string{"z"}, Usage: "none, gzip, snappy, lz4 or zstd (default none)"},
		&cli.IntFlag{Name: "batch-size", Usage: "most `BYTES` of a batch (default 1000000)"},
		&cli.DurationFlag{Name: "linger", Value: -1, Usage: "how long a batch waits for more records (default 5ms; e2e 0)"},
	}
}

// benchTarget is what a bench command works on.
type benchTarget struct {
	*env
	topic   kadm.TopicDetail
	leaders map[int32]string // address of each partition's leader
	records int64            // limit; 0 none
	limit   time.Duration    // limit; 0 none
}

// benchTarget checks the flags that all have, and finds the topic and the leaders of its partitions.
func (e *env) benchTarget(c *cli.Context) (*benchTarget, error) {
	t := &benchTarget{env: e, records: c.Int64("num-records"), limit: c.Duration("duration"), leaders: map[int32]string{}}
	name := c.String("topic")
	if name == "" {
		f := usageError("bench needs a topic", c.Command.HelpName+" -t NAME")
		f.why = "no -t was given, and no topic is made behind your back"
		return nil, f
	}
	if t.records < 0 || t.limit < 0 {
		f := usageError("a limit below 0 is none", "--num-records 1000000, or --duration 30s")
		f.why = fmt.Sprintf("--num-records %d --duration %s", t.records, t.limit)
		return nil, f
	}
	ctx, cancel := e.ctx(c)
	defer cancel()
	conn, err := e.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	m, err := conn.adm.Metadata(ctx, name)
	if err != nil {
		return nil, conn.fail("ask for topic "+name, err)
	}
	t.topic = m.Topics[name]
	if t.topic.Err != nil {
		f := itemFailure("find topic "+name, t.topic.Err, nil)
		f.fix = "millrace topic create " + name + " -p 6"
		return nil, f
	}
	for _, p := range t.topic.Partitions.Sorted() {
		i := slices.IndexFunc(m.Brokers, func(b kadm.BrokerDetail) bool { return b.NodeID == p.Leader })
		if i < 0 {
			return nil, &failure{code: exitFailed, what: fmt.Sprintf("cannot use topic %s", name), why: fmt.Sprintf("partition %d has no leader", p.Partition), fix: "millrace cluster health   shows why"}
		}
		t.leaders[p.Partition] = fmt.Sprintf("%s:%d", m.Brokers[i].Host, m.Brokers[i].Port)
	}
	return t, nil
}

// bounded returns ctx with the time limit of --duration.
func (t *benchTarget) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if t.limit == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, t.limit)
}

// sendSettings is how a bench command produces.
type sendSettings struct {
	acks       int16 // -1, 0, 1
	codec      string
	batchBytes int
	linger     time.Duration
	payload    *payload
}

// sendSettings reads the flags; they win over --producer-props, those over the defaults.
func (e *env) sendSettings(c *cli.Context, linger time.Duration) (*sendSettings, error) {
	s := &sendSettings{acks: -1, codec: "none", batchBytes: 1_000_000, linger: linger}
	props := map[string]string{}
	for _, kv := range append(c.StringSlice("producer-props"), c.Args().Slice()...) {
		k, v, ok := strings.Cut(kv, "=")
		if !ok {
			f := usageError(fmt.Sprintf("%q is no producer property", kv), "--producer-props acks=1 linger.ms=5")
			f.why = "a property needs a value"
			return nil, f
		}
		props[k] = v
	}
	for flag, key := range map[string]string{"acks": "acks", "compression": "compression.type"} {
		if v := c.String(flag); v != "" {
			props[key] = v
		}
	}
	for key, value := range props {
		n, err := strconv.Atoi(value)
		switch key {
		case "acks":
			acks, known := map[string]int16{"all": -1, "-1": -1, "1": 1, "leader": 1, "0": 0, "none": 0}[value]
			s.acks, err = acks, nil
			if !known {
				err = strconv.ErrSyntax
			}
		case "compression.type":
			s.codec, err = value, nil
			if _, known := benchCodecs[value]; !known {
				err = strconv.ErrSyntax
			}
		case "batch.size":
			s.batchBytes = n
		case "linger.ms":
			s.linger = time.Duration(n) * time.Millisecond
		case "bootstrap.servers", "client.id":
			f := usageError("producer property "+key+" has a flag", "-b HOST:PORT, or -X "+key+"="+value)
			f.why = "connections are the same for all commands"
			return nil, f
		default:
			f := usageError("unknown producer property "+key, "leave it out")
			f.why = "known are acks, batch.size, compression.type, linger.ms"
			return nil, f
		}
		if err != nil {
			f := usageError(fmt.Sprintf("producer property %s=%s makes no sense", key, value), "acks=all compression.type=lz4 batch.size=65536 linger.ms=5")
			f.why = "acks is all, 1 or 0; compression.type none, gzip, snappy, lz4 or zstd; the others are numbers"
			return nil, f
		}
	}
	if c.IsSet("batch-size") {
		s.batchBytes = c.Int("batch-size")
	}
	if d := c.Duration("linger"); d >= 0 {
		s.linger = d
	}
	if s.batchBytes < 512 || s.batchBytes > 64<<20 {
		f := usageError(fmt.Sprintf("a batch of %d bytes cannot be", s.batchBytes), "--batch-size 1000000")
		f.why = "it is between 512 and 64 MiB, and the topic's max.message.bytes bounds it"
		return nil, f
	}
	var err error
	s.payload, err = newPayload(c.String("payload-file"), c.Int("record-size"))
	return s, err
}

// benchCodecs are the codecs by their names in the client and in our own batches.
var benchCodecs = map[string]struct {
	client kgo.CompressionCodec
	batch  record.Codec
}{
	"none":   {kgo.NoCompression(), record.CodecNone},
	"gzip":   {kgo.GzipCompression(), record.CodecGzip},
	"snappy": {kgo.SnappyCompression(), record.CodecSnappy},
	"lz4":    {kgo.Lz4Compression(), record.CodecLZ4},
	"zstd":   {kgo.ZstdCompression(), record.CodecZstd},
}

// options are those of a client that produces so.
func (s *sendSettings) options(topic string) []kgo.Opt {
	options := []kgo.Opt{
		kgo.DefaultProduceTopic(topic),
		kgo.ProducerBatchMaxBytes(int32(s.batchBytes)),
		kgo.ProducerLinger(s.linger),
		kgo.ProducerBatchCompression(benchCodecs[s.codec].client),
		kgo.RecordPartitioner(kgo.UniformBytesPartitioner(s.batchBytes, true, true, nil)), // fills a batch, then takes another partition
		kgo.MaxBufferedRecords(1 << 20),
		kgo.MaxBufferedBytes(64 << 20), // Kafka's producer: buffer.memory is 32 MiB
		kgo.UnknownTopicRetries(2),
		kgo.AllowIdempotentProduceCancellation(),
	}
	switch s.acks {
	case 1:
		options = append(options, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(5))
	case 0:
		options = append(options, kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(5))
	default:
		options = append(options, kgo.RequiredAcks(kgo.AllISRAcks()))
	}
	return options
}

// payload has the values that are sent.
type payload struct{ values [][]byte }

// payloadValues is how many different values there are: enough that no codec sees one twice in a batch of moderate
// size, few enough to be made at once.
const payloadValues = 1024

// newPayload takes the lines of a file, or makes values of size bytes. Those are words of a small vocabulary, always
// the same: they shrink about as much as text does, where random bytes would make every codec look bad.
func newPayload(file string, size int) (*payload, error) {
	if file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			f := usageError("cannot read the payload file "+file, "--payload-file FILE")
			f.why, f.cause = err.Error(), err
			return nil, f
		}
		p := &payload{}
		for line := range bytes.SplitSeq(b, []byte("\n")) {
			if len(line) > 0 {
				p.values = append(p.values, line)
			}
		}
		if len(p.values) == 0 {
			f := usageError("the payload file "+file+" is empty", "one value a line")
			f.why = "it has no line with something on it"
			return nil, f
		}
		random := rand.New(rand.NewPCG(1, 2))
		random.Shuffle(len(p.values), func(i, j int) { p.values[i], p.values[j] = p.values[j], p.values[i] })
		return p, nil
	}
	if size < 0 || size > 32<<20 {
		f := usageError(fmt.Sprintf("a record of %d bytes cannot be", size), "--record-size 100")
		f.why = "it is between 0 and 32 MiB"
		return nil, f
	}
	random := rand.New(rand.NewPCG(1, 2))
	words := make([][]byte, 512)
	for i := range words {
		words[i] = make([]byte, 3+random.IntN(8))
		for j := range words[i] {
			words[i][j] = 'a' + byte(random.IntN(26))
		}
	}
	count := min(payloadValues, max(1, 16<<20/max(size, 1)))
	p := &payload{values: make([][]byte, count)}
	for i := range p.values {
		v := make([]byte, 0, size+16)
		for len(v) < size {
			v = append(append(v, words[random.IntN(len(words))]...), ' ')
		}
		p.values[i] = v[:size]
	}
	return p, nil
}

// value returns the i-th value.
func (p *payload) value(i int64) []byte { return p.values[i%int64(len(p.values))] }

// leadersOf groups partitions by the address of their leader, both in order.
func (t *benchTarget) leadersOf() (addresses []string, partitions map[string][]int32) {
	partitions = map[string][]int32{}
	for p, a := range t.leaders {
		if partitions[a] == nil {
			addresses = append(addresses, a)
		}
		partitions[a] = append(partitions[a], p)
	}
	slices.Sort(addresses)
	for _, ps := range partitions {
		slices.SortFunc(ps, cmp.Compare[int32])
	}
	return addresses, partitions
}
