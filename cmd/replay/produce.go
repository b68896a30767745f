package replay

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The versions spoken: old enough for any broker in use, new enough to need no
// conversion there.
const (
	produceVersion = 9
	fetchVersion   = 12
)

// clientID is how the broker's logs and metrics name these connections.
const clientID = "replay"

// ProducerConfig says what a Producer sends.
type ProducerConfig struct {
	Addr       string  // host:port of the broker that leads all of Partitions
	Topic      string  // must exist
	Partitions []int32 // one per request, in turn
	Batch      []byte  // one encoded batch: the record set of every request
	Acks       int16   // -1 or 1; 0 has no answers to count
	Timeout    time.Duration
	// InFlight bounds the requests that wait for an answer; 0 is 64. Their bytes
	// are bounded by the sockets anyway.
	InFlight int
	// Interval is the open-loop schedule: request i is due at i*Interval after
	// the start, whatever became of those before; 0 sends as fast as answers come.
	Interval time.Duration
	// Acknowledged, when set, is called for each answer with the time since the
	// request was due (or, without a schedule, since it was sent).
	Acknowledged func(latency time.Duration)
}

// Producer replays one Produce request over one connection.
type Producer struct {
	cfg       ProducerConfig
	conn      net.Conn
	in        *bufio.Reader
	request   []byte
	partition int // where in request the partition's index stands, 4 bytes
	next      int // of cfg.Partitions
	body      []byte
}

// NewProducer connects and encodes the request.
func NewProducer(ctx context.Context, cfg ProducerConfig) (*Producer, error) {
	if cfg.Acks != -1 && cfg.Acks != 1 {
		return nil, fmt.Errorf("replay with acks=%d: only -1 and 1 are answered", cfg.Acks)
	}
	if len(cfg.Partitions) == 0 || len(cfg.Batch) == 0 {
		return nil, errors.New("replay needs a partition and a batch")
	}
	if cfg.InFlight <= 0 {
		cfg.InFlight = 64
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 30 * time.Second
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", cfg.Addr)
	if err != nil {
		return nil, err
	}
	p := &Producer{cfg: cfg, conn: conn, in: bufio.NewReaderSize(conn, 16<<10)}
	p.encode()
	return p, nil
}

// encode makes the request and finds the place of its partition index: requests
// differ in these four bytes only.
func (p *Producer) encode() {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = produceVersion, p.cfg.Acks, int32(p.cfg.Timeout.Milliseconds())
	t, part := kmsg.NewProduceRequestTopic(), kmsg.NewProduceRequestTopicPartition()
	t.Topic = p.cfg.Topic
	part.Records = p.cfg.Batch
	t.Partitions = append(t.Partitions, part)
	req.Topics = append(req.Topics, t)
	p.request = kmsg.NewRequestFormatter(kmsg.FormatterClientID(clientID)).AppendRequest(nil, req, 1)
	// Behind the index stands the length of the records as a varint, then they.
	prefix := binary.AppendUvarint(nil, uint64(len(p.cfg.Batch))+1)
	records := bytes.LastIndex(p.request[:min(len(p.request), 1<<10+len(p.cfg.Topic))], append(prefix, p.cfg.Batch[:min(len(p.cfg.Batch), 21)]...))
	p.partition = records - 4
}

// Close ends the connection.
func (p *Producer) Close() error { return p.conn.Close() }

// Run sends requests and reads their answers until n are acknowledged, or ctx
// ends, which is no error: what was sent is still waited for. It returns the
// number of acknowledged requests. The first error code of an answer ends the
// run as a *kerr.Error.
func (p *Producer) Run(ctx context.Context, n int) (int, error) {
	slots := make(chan time.Time, p.cfg.InFlight)
	ctx, cancel := context.WithCancel(ctx)
	sent := make(chan error, 1)
	go func() { sent <- p.send(ctx, n, slots) }()
	acked := 0
	var failed error
	for since := range slots {
		if failed != nil {
			continue // the sender is on its way out
		}
		if failed = p.answer(); failed != nil {
			cancel()
			_ = p.conn.SetDeadline(time.Unix(1, 0)) // a blocked write ends too
			continue
		}
		acked++
		if p.cfg.Acknowledged != nil {
			p.cfg.Acknowledged(time.Since(since))
		}
	}
	cancel()
	if err := <-sent; failed == nil {
		failed = err
	}
	return acked, failed
}

// send writes n requests; each takes a slot, which its answer frees.
func (p *Producer) send(ctx context.Context, n int, slots chan<- time.Time) error {
	defer close(slots)
	start := time.Now()
	for i := range n {
		since := time.Now()
		if p.cfg.Interval > 0 {
			since = start.Add(time.Duration(i) * p.cfg.Interval)
			if wait := time.Until(since); wait > 0 {
				select {
				case <-time.After(wait):
				case <-ctx.Done():
				}
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		binary.BigEndian.PutUint32(p.request[p.partition:], uint32(p.cfg.Partitions[p.next]))
		p.next = (p.next + 1) % len(p.cfg.Partitions)
		select {
		case slots <- since:
		case <-ctx.Done():
			return nil
		}
		if _, err := p.conn.Write(p.request); err != nil {
			return err
		}
	}
	return nil
}

// answer reads one response.
func (p *Producer) answer() error {
	body, err := readResponse(p.in, &p.body)
	if err != nil {
		return fmt.Errorf("read the answer of %s to a Produce request: %w", p.cfg.Addr, err)
	}
	resp := kmsg.NewPtrProduceResponse()
	resp.Version = produceVersion
	if err := resp.ReadFrom(body); err != nil {
		return fmt.Errorf("decode a Produce answer: %w", err)
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return errors.New("a Produce answer without its partition")
	}
	return kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
}
