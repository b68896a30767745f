package replication

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
	"github.com/millrace/millrace/metadata"
)

// modelRecord is one record as a consumer should see it.
type modelRecord struct {
	value     string
	timestamp int64
	epoch     int32
	batchEnd  int64 // exclusive end of its batch
}

// TestPartitionModel plays random operations on a partition with a real log and on a slice: the answers must be the
// same, whatever the settings (segment size, flush.ack, write-ahead log) and however often it is restarted, cleanly or
// by kill -9.
func TestPartitionModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		settings := defaultSettings(t)
		settings.FlushAck = rapid.Bool().Draw(t, "flush.ack")
		settings.SegmentBytes = rapid.SampledFrom([]int64{200, 1000, 1 << 20}).Draw(t, "segment.bytes")
		settings.IndexIntervalBytes = rapid.SampledFrom([]int64{1, 300, 4096}).Draw(t, "index.interval.bytes")
		wal := rapid.Bool().Draw(t, "wal")
		mem := vfs.NewMem(1)
		open := func() *bench {
			return makeBench(t, withFS(mem, "data"), func(c *benchConfig) { c.wal, c.settings = wal, settings })
		}
		b := open()
		defer func() { b.close() }()
		var model []modelRecord
		start, clock := int64(0), int64(1000)
		epoch := b.rec.LeaderEpoch
		sequences := map[int64]int32{}
		type sent struct {
			batch record.Batch
			base  int64
		}
		last := map[int64]sent{} // the last batch of each producer
		send := func(rec record.Batch, acks int16) AppendResult {
			r := newResult()
			b.p.Append(AppendRequest{Records: append(record.Batch(nil), rec...), Acks: acks, Timeout: time.Minute, CurrentLeaderEpoch: epoch, Waiter: r})
			return r.wait(t)
		}
		t.Repeat(map[string]func(*rapid.T){
			"produce": func(t *rapid.T) {
				bd := record.NewBuilder(rapid.SampledFrom([]record.Codec{record.CodecNone, record.CodecLZ4}).Draw(t, "codec"))
				n := rapid.IntRange(1, 4).Draw(t, "records")
				id := rapid.SampledFrom([]int64{-1, 7, 8}).Draw(t, "producer")
				if id >= 0 {
					bd.ProducerID, bd.ProducerEpoch, bd.BaseSequence = id, 0, sequences[id]
					sequences[id] += int32(n)
				}
				base := int64(len(model))
				for i := range n {
					clock += rapid.Int64Range(0, 3).Draw(t, "time")
					v := fmt.Sprint("v", base+int64(i))
					bd.Add(clock, nil, []byte(v), nil)
					model = append(model, modelRecord{v, clock, epoch, base + int64(n)})
				}
				rec := bd.Build()
				res := send(rec, rapid.SampledFrom([]int16{-1, 1}).Draw(t, "acks"))
				require.NoError(t, res.Err)
				require.Equal(t, base, res.BaseOffset)
				require.Equal(t, start, res.LogStartOffset)
				if id >= 0 {
					last[id] = sent{rec, base}
				}
			},
			"retry": func(t *rapid.T) {
				id := rapid.SampledFrom([]int64{7, 8}).Draw(t, "producer")
				s, ok := last[id]
				if !ok {
					t.Skip("nothing to retry")
				}
				res := send(s.batch, -1)
				require.NoError(t, res.Err, "P1: a duplicate is a success")
				require.Equal(t, s.base, res.BaseOffset)
			},
			"read": func(t *rapid.T) {
				from := rapid.Int64Range(start-1, int64(len(model))+1).Draw(t, "offset")
				req := NewReadRequest(from, rapid.IntRange(0, 600).Draw(t, "max bytes"))
				req.MinOne = rapid.Bool().Draw(t, "min one")
				res := b.p.Read(req)
				if from < start || from > int64(len(model)) {
					require.ErrorIs(t, res.Err, log.ErrOffsetOutOfRange)
					return
				}
				require.NoError(t, res.Err)
				require.Equal(t, []int64{start, int64(len(model)), int64(len(model))}, []int64{res.LogStartOffset, res.HighWatermark, res.LogEndOffset})
				checkSlice(t, res.Slice, model, from, req)
			},
			"list": func(t *rapid.T) {
				ts := rapid.Int64Range(990, clock+2).Draw(t, "timestamp")
				offset, at, e, err := b.p.ListOffset(ts, false, epoch)
				require.NoError(t, err)
				want, wantAt, wantEpoch := int64(-1), int64(-1), int32(-1)
				for i := start; i < int64(len(model)); i++ {
					if model[i].timestamp >= ts {
						want, wantAt, wantEpoch = i, model[i].timestamp, model[i].epoch
						break
					}
				}
				require.Equal(t, []int64{want, wantAt, int64(wantEpoch)}, []int64{offset, at, int64(e)}, "first record at or after %d", ts)
				latest, _, _, err := b.p.ListOffset(OffsetLatest, false, epoch)
				require.NoError(t, err)
				require.Equal(t, int64(len(model)), latest)
			},
			"delete": func(t *rapid.T) {
				to := rapid.Int64Range(start, int64(len(model))).Draw(t, "to")
				low, err := b.p.DeleteRecords(context.Background(), to, epoch)
				require.NoError(t, err)
				require.Equal(t, to, low)
				start = to
			},
			"elect": func(t *rapid.T) {
				epoch++
				b.change(func(p *metadata.Partition) { p.LeaderEpoch = epoch })
			},
			"restart": func(t *rapid.T) {
				b.close()
				if settings.FlushAck && rapid.Bool().Draw(t, "kill -9 and power cut") {
					mem = mem.CrashClone(vfs.CrashLose)
				}
				b = open()
				epoch++
				b.rec.LeaderEpoch = epoch
				b.change(func(*metadata.Partition) {})
			},
			"": func(t *rapid.T) {
				require.Equal(t, []int64{start, int64(len(model))}, []int64{b.p.StartOffset(), b.p.EndOffset()})
				require.Equal(t, int64(len(model)), b.p.HighWatermark(), "one replica: all that is acknowledged is committed")
			},
		})
	})
}

// checkSlice checks a read against the model: whole batches from the one that holds the offset, within the limits.
func checkSlice(t *rapid.T, s log.Slice, model []modelRecord, from int64, req ReadRequest) {
	defer s.Release()
	if s.Len() == 0 {
		if req.MinOne && from < int64(len(model)) {
			t.Fatalf("nothing at offset %d", from)
		}
		return
	}
	buf := make([]byte, s.Len())
	_, err := s.ReadAt(buf, 0)
	require.NoError(t, err)
	next, batches := int64(-1), 0
	for rest := buf; len(rest) > 0; batches++ {
		var b record.Batch
		b, rest, err = record.Next(rest)
		require.NoError(t, err)
		require.True(t, b.CheckCRC())
		if next < 0 {
			require.LessOrEqual(t, b.BaseOffset(), from)
			require.Greater(t, b.NextOffset(), from)
		} else {
			require.Equal(t, next, b.BaseOffset(), "no gap between batches (I6)")
		}
		next = b.NextOffset()
		base := b.BaseOffset()
		require.Equal(t, model[base].batchEnd, next, "batches as they were sent")
		require.Equal(t, model[base].epoch, b.LeaderEpoch())
		require.NoError(t, b.Each(1<<20, func(r record.Record) error {
			m := model[base+int64(r.OffsetDelta)]
			require.Equal(t, m.value, string(r.Value))
			require.Equal(t, m.timestamp, b.BaseTimestamp()+r.TimestampDelta)
			return nil
		}))
	}
	if len(buf) > req.MaxBytes {
		require.True(t, req.MinOne)
		require.Equal(t, 1, batches, "more than was asked for only to give one batch")
	}
}
