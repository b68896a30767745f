package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// kcat is the command line client on librdkafka. It cannot create or delete
// topics, stamps records itself and gives all records of a run the same
// headers.
type kcat struct{ addr string }

func openKcat(t *testing.T, b *broker) clientLibrary {
	requireTools(t, "kcat")
	return &kcat{addr: b.Addr}
}

var errNoAdmin = errors.New("kcat cannot create or delete topics")

func (k *kcat) CreateTopic(context.Context, string, int) error { return errNoAdmin }
func (k *kcat) DeleteTopic(context.Context, string) error      { return errNoAdmin }

// run returns what kcat printed. It complains on stderr, sometimes without an
// exit code.
func (k *kcat) run(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "kcat", append([]string{"-b", k.addr}, args...)...)
	cmd.Stdin = bytes.NewReader(stdin)
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil || complaints.Len() > 0 {
		return nil, fmt.Errorf("kcat %.200s: %w: %.1000s", args, errors.Join(err, ctx.Err()), complaints.String())
	}
	return out.Bytes(), nil
}

func (k *kcat) Metadata(ctx context.Context, topic string) (int, error) {
	out, err := k.run(ctx, nil, "-L", "-J", "-t", topic)
	if err != nil {
		return 0, err
	}
	var md struct {
		Topics []struct{ Partitions []struct{ Partition int } }
	}
	if err := json.Unmarshal(out, &md); err != nil {
		return 0, err
	}
	if len(md.Topics) != 1 {
		return 0, fmt.Errorf("%d topics in %s", len(md.Topics), out)
	}
	return len(md.Topics[0].Partitions), nil
}

const kcatKeyEnd, kcatRecordEnd = "=KEY=", "=END="

func (k *kcat) Produce(ctx context.Context, topic string, partition int, codec string, idempotent bool, records []wireRecord) error {
	var in bytes.Buffer
	for _, r := range records {
		if r.Key != nil {
			in.Write(r.Key)
			in.WriteString(kcatKeyEnd)
		}
		in.Write(r.Value)
		in.WriteString(kcatRecordEnd)
	}
	args := []string{
		"-P", "-t", topic, "-p", strconv.Itoa(partition), "-Z", "-K", kcatKeyEnd, "-D", kcatRecordEnd, "-X", "compression.codec=" + codec, "-X", "acks=-1",
		"-X", "enable.idempotence=" + strconv.FormatBool(idempotent), "-X", "max.in.flight=1", "-X", "message.max.bytes=10485760", "-X", "batch.size=500000", "-X", "linger.ms=5",
	}
	for _, h := range records[0].Headers {
		args = append(args, "-H", h.Key+"="+string(h.Value))
	}
	_, err := k.run(ctx, in.Bytes(), args...)
	return err
}

// kcatSends maps records to what kcat can send: empty values are null, the
// headers are the same for all, and a null key never has a null value, since
// kcat ends at an empty line.
func kcatSends(records []wireRecord) []wireRecord {
	for i := range emptyIsNull(records) {
		records[i].Headers = []wireHeader{{"a", []byte("1")}, {"trace", []byte("012")}, {"a", []byte("3")}}
	}
	return neverBothNull(records)
}

// kcatShows is how kcat prints records: values of headers end at a zero byte.
func kcatShows(records []wireRecord) []wireRecord {
	for i := range records {
		headers := slices.Clone(records[i].Headers)
		for j := range headers {
			headers[j].Value, _, _ = bytes.Cut(headers[j].Value, []byte{0})
		}
		records[i].Headers = headers
	}
	return records
}

func (k *kcat) Consume(ctx context.Context, topic string, partition int, from int64, n int) ([]wireRecord, error) {
	out, err := k.run(ctx, nil, "-C", "-q", "-t", topic, "-p", strconv.Itoa(partition), "-o", strconv.FormatInt(from, 10), "-c", strconv.Itoa(n),
		"-X", "auto.offset.reset=earliest", "-f", `%o %T %K %S\n%k%s%h\n`)
	if err != nil {
		return nil, err
	}
	var records []wireRecord
	for len(out) > 0 {
		var r wireRecord
		var key, value int
		head, rest, _ := bytes.Cut(out, []byte("\n"))
		if _, err := fmt.Sscan(string(head), &r.Offset, &r.Timestamp, &key, &value); err != nil {
			return records, fmt.Errorf("line %.100q: %w", head, err)
		}
		if r.Key, rest, err = cutField(rest, key); err != nil {
			return records, err
		}
		if r.Value, rest, err = cutField(rest, value); err != nil {
			return records, err
		}
		headers, rest, _ := bytes.Cut(rest, []byte("\n"))
		if len(headers) > 0 {
			for _, h := range strings.Split(string(headers), ",") {
				name, v, _ := strings.Cut(h, "=")
				r.Headers = append(r.Headers, wireHeader{name, []byte(v)})
			}
		}
		records = append(records, r)
		out = rest
	}
	return records, nil
}

// cutField takes n bytes off; -1 is null.
func cutField(b []byte, n int) (field, rest []byte, err error) {
	switch {
	case n < 0:
		return nil, b, nil
	case n > len(b):
		return nil, nil, fmt.Errorf("a field of %d bytes, %d are left", n, len(b))
	}
	return b[:n:n], b[n:], nil
}

func (k *kcat) OffsetAt(ctx context.Context, topic string, partition int, ts int64) (int64, error) {
	out, err := k.run(ctx, nil, "-Q", "-t", fmt.Sprintf("%s:%d:%d", topic, partition, ts))
	if err != nil {
		return 0, err
	}
	_, offset, ok := strings.Cut(strings.TrimSpace(string(out)), " offset ")
	if !ok {
		return 0, fmt.Errorf("kcat -Q printed %q", out)
	}
	return strconv.ParseInt(offset, 10, 64)
}
