package log

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
)

// mode is one way to run the log; every test of behaviour runs in all of them.
type mode struct {
	name string
	wal  bool
}

var modes = []mode{{"direct", false}, {"wal", true}}

// eachMode runs a test with the write-ahead log off and on: it is an accelerator, nothing may depend on it.
func eachMode(t *testing.T, fn func(t *testing.T, m mode)) {
	t.Helper()
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) { fn(t, m) })
	}
}

// testConfig is a small directory on fsys.
func testConfig(m mode, fsys vfs.FS) Config {
	cfg := Default()
	cfg.FS = fsys
	cfg.WAL = m.wal
	cfg.WALFileBytes, cfg.WALInitialBytes = 256<<10, 64<<10
	cfg.SyncWorkers = 4
	cfg.ReserveBytes, cfg.BallastBytes = 0, 0
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg.Rand = rand.New(rand.NewPCG(testRand.Uint64(), 2))
	return cfg
}

// testRand makes each directory opened in a test draw other log ids, as in production.
var testRand = rand.New(rand.NewPCG(1, 2))

func openDir(t *testing.T, cfg Config) *Dir {
	t.Helper()
	d, err := OpenDir("data", cfg)
	require.NoError(t, err)
	return d
}

func testID(n byte) [16]byte { return [16]byte{15: n} }

func createLog(t *testing.T, d *Dir, s Settings) *Log {
	t.Helper()
	l, err := d.Create("topic", testID(1), 0, 0, s)
	require.NoError(t, err)
	return l
}

func lookup(t *testing.T, d *Dir) *Log {
	t.Helper()
	l, ok := d.Lookup(testID(1), 0)
	require.True(t, ok, "offline: %v", d.Offline())
	return l
}

// producerFields of a test batch; the zero value is no idempotent producer.
type producerFields struct {
	id       int64
	epoch    int16
	sequence int32
}

var noProducer = producerFields{id: -1, epoch: -1, sequence: -1}

// testBatch builds a batch of n records with a size of about bytes each.
func testBatch(n, size int, ts int64, p producerFields) []byte {
	b := record.NewBuilder(record.CodecNone)
	b.ProducerID, b.ProducerEpoch, b.BaseSequence = p.id, p.epoch, p.sequence
	for i := range n {
		value := bytes.Repeat([]byte{byte('a' + i%26)}, size)
		b.Add(ts, fmt.Appendf(nil, "%d", i), value, nil)
	}
	return b.Build()
}

func plainBatch(n, size int) []byte { return testBatch(n, size, 1000, noProducer) }

// appendOne appends one set and returns its outcome.
func appendOne(t *testing.T, l *Log, epoch int32, b []byte) Appended {
	t.Helper()
	var out [1]Appended
	err := l.Append(epoch, []Set{{Records: b}}, out[:])
	require.NoError(t, err)
	require.NoError(t, out[0].Err)
	return out[0]
}

// waitDurable waits until the log is durable up to offset.
func waitDurable(t *testing.T, l *Log, offset int64) {
	t.Helper()
	var mu sync.Mutex
	done := make(chan struct{})
	closed := false
	l.Notify(func(end int64) {
		mu.Lock()
		defer mu.Unlock()
		if end >= offset && !closed {
			closed = true
			close(done)
		}
	})
	l.tellDurable()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("durable end stays at %d, want %d", l.DurableEnd(), offset)
	}
}

// readAll returns all batches from offset to limit.
func readAll(t testing.TB, l *Log, from, limit int64, maxBytes int) []record.Batch {
	t.Helper()
	var out []record.Batch
	for from < limit {
		s, err := l.Read(from, limit, maxBytes, true)
		require.NoError(t, err)
		if s.Len() == 0 {
			break
		}
		p := sliceBytes(t, s)
		next := s.NextOffset()
		s.Release()
		for len(p) > 0 {
			b, rest, err := record.Next(p)
			require.NoError(t, err)
			require.NoError(t, b.Check())
			out = append(out, b)
			p = rest
		}
		require.Greater(t, next, from)
		require.Equal(t, next, out[len(out)-1].NextOffset())
		from = next
	}
	return out
}

func sliceBytes(t testing.TB, s Slice) []byte {
	t.Helper()
	p := make([]byte, s.Len())
	_, err := s.ReadAt(p, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		require.NoError(t, err)
	}
	return p
}

// values returns the bytes of all batches with base offset and epoch, for comparing logs.
func concat(batches []record.Batch) []byte {
	var out []byte
	for _, b := range batches {
		out = append(out, b...)
	}
	return out
}
