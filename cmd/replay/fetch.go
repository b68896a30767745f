package replay

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/log/record"
)

// FetcherConfig says what a Fetcher asks for.
type FetcherConfig struct {
	Addr          string // host:port of the broker that leads the partitions
	Topic         string
	MaxWaitMillis int32 // of the broker, when there is nothing; 0 is 500
	MaxBytes      int32 // of one partition; 0 is 1 MiB, the default of most clients
	Committed     bool  // read_committed: nothing of open transactions; what was aborted comes all the same, named beside
}

// Fetcher asks for records over one connection. Requests may be sent ahead:
// answers come in the order of the questions.
type Fetcher struct {
	conn net.Conn
	in   *bufio.Reader
	req  *kmsg.FetchRequest
	out  []byte
	body []byte
	resp *kmsg.FetchResponse
}

// NewFetcher connects.
func NewFetcher(ctx context.Context, cfg FetcherConfig) (*Fetcher, error) {
	if cfg.MaxWaitMillis <= 0 {
		cfg.MaxWaitMillis = 500
	}
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = 1 << 20
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", cfg.Addr)
	if err != nil {
		return nil, err
	}
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.ReplicaID, req.MaxWaitMillis, req.MinBytes, req.MaxBytes = fetchVersion, -1, cfg.MaxWaitMillis, 1, 50<<20
	req.SessionEpoch = -1 // no session
	if cfg.Committed {
		req.IsolationLevel = 1
	}
	t, part := kmsg.NewFetchRequestTopic(), kmsg.NewFetchRequestTopicPartition()
	t.Topic = cfg.Topic
	part.PartitionMaxBytes, part.CurrentLeaderEpoch = cfg.MaxBytes, -1
	t.Partitions = append(t.Partitions, part)
	req.Topics = append(req.Topics, t)
	return &Fetcher{conn: conn, in: bufio.NewReaderSize(conn, 64<<10), req: req, resp: kmsg.NewPtrFetchResponse()}, nil
}

// Close ends the connection.
func (f *Fetcher) Close() error { return f.conn.Close() }

// Ask sends a request for the records of a partition from offset on.
func (f *Fetcher) Ask(partition int32, offset int64) error {
	p := &f.req.Topics[0].Partitions[0]
	p.Partition, p.FetchOffset = partition, offset
	f.out = kmsg.NewRequestFormatter(kmsg.FormatterClientID(clientID)).AppendRequest(f.out[:0], f.req, 1)
	_, err := f.conn.Write(f.out)
	return err
}

// Answer reads the next answer and returns its record set: batches, the last of
// which may be cut short. The bytes are valid until the next Answer. An error
// code of the broker is a *kerr.Error.
func (f *Fetcher) Answer() ([]byte, error) {
	body, err := readResponse(f.in, &f.body)
	if err != nil {
		return nil, fmt.Errorf("read the answer to a Fetch request: %w", err)
	}
	f.resp.Version = fetchVersion
	if err := f.resp.ReadFrom(body); err != nil {
		return nil, fmt.Errorf("decode a Fetch answer: %w", err)
	}
	if err := kerr.ErrorForCode(f.resp.ErrorCode); err != nil {
		return nil, err
	}
	if len(f.resp.Topics) != 1 || len(f.resp.Topics[0].Partitions) != 1 {
		return nil, errors.New("a Fetch answer without its partition")
	}
	p := f.resp.Topics[0].Partitions[0]
	return p.RecordBatches, kerr.ErrorForCode(p.ErrorCode)
}

// Count walks the whole batches of a record set by their headers and returns
// how many records they hold, markers of transactions left out, and the offset
// behind the last; next when there is no whole batch.
func Count(records []byte, next int64) (int64, int64, error) {
	var n int64
	for len(records) > 0 {
		batch, rest, err := record.Next(records)
		if errors.Is(err, record.ErrShort) {
			break
		}
		if err != nil {
			return n, next, err
		}
		if !batch.IsControl() {
			n += int64(batch.Count())
		}
		next, records = batch.NextOffset(), rest
	}
	return n, next, nil
}

// readResponse reads one response into *buf, which grows as needed, and returns
// the body behind the header of a flexible version.
func readResponse(r io.Reader, buf *[]byte) ([]byte, error) {
	var prefix [4]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return nil, err
	}
	const header = 5 // correlation id, no tags
	n := int(binary.BigEndian.Uint32(prefix[:]))
	if n < header || n > 128<<20 {
		return nil, fmt.Errorf("a response of %d bytes", n)
	}
	if cap(*buf) < n {
		*buf = make([]byte, n)
	}
	body := (*buf)[:n]
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	return body[header:], nil
}
