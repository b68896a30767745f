package log

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
)

// TestScrubberFindsRot: a flipped bit in a sealed segment that nobody reads is found within one round, and takes the
// partition offline instead of being served or cut off (L9, I19); the others stay.
func TestScrubberFindsRot(t *testing.T) {
	fsys := vfs.NewMem(1)
	cfg := testConfig(mode{}, fsys)
	cfg.ScrubBytes = 2000
	d := openDir(t, cfg)
	defer d.Close()
	l := createLog(t, d, Settings{FlushAck: true, SegmentBytes: 1000})
	other, err := d.Create("zeta", testID(2), 1, 0, Settings{FlushAck: true, SegmentBytes: 1000})
	require.NoError(t, err)
	for range 60 {
		appendOne(t, l, 0, plainBatch(1, 100))
		appendOne(t, other, 0, plainBatch(1, 100))
	}
	d.syncer.waitAdvanced()
	now := time.Now()
	round := func() int {
		ticks, rounds := 0, d.tick.scrub.rounds
		for d.tick.scrub.rounds == rounds {
			now = now.Add(time.Second)
			d.Tick(now)
			ticks++
			require.Less(t, ticks, 100)
		}
		return ticks
	}
	require.GreaterOrEqual(t, round(), int(l.SizeBytes()+other.SizeBytes())/3000, "it is slow")
	require.Empty(t, d.Offline())
	seg := l.mu.segments[len(l.mu.segments)/2]
	fsys.Flip(seg.log.path, seg.size-3, 5)
	round()
	require.ErrorIs(t, l.Corrupt(), ErrCorrupt)
	require.NoError(t, other.Corrupt())
	_, err = l.Read(0, 10, 1000, true)
	require.ErrorIs(t, err, ErrCorrupt)
	appendOne(t, other, 0, plainBatch(1, 100))
	round() // goes on behind the corrupt one
}

// TestRotInLeaderEpoch: no checksum covers the leader epoch in a batch header, so it is compared with the log's own
// knowledge: a read that begins at such a batch, one that looks at every batch and the scrubber find it, and a follower
// takes none that is above its leader's (L9, I19; S7 seed 5107).
func TestRotInLeaderEpoch(t *testing.T) {
	for name, find := range map[string]func(d *Dir, l *Log) error{
		"read":    func(_ *Dir, l *Log) error { _, err := l.Read(22, 60, 1000, true); return err },
		"checked": func(_ *Dir, l *Log) error { _, err := l.ReadChecked(20, 60, 1000, true); return err },
		"scrubber": func(d *Dir, l *Log) error {
			for now := time.Now(); d.tick.scrub.rounds < 2; now = now.Add(time.Second) {
				d.Tick(now)
			}
			return l.Corrupt()
		},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := vfs.NewMem(1)
			cfg := testConfig(mode{}, fsys)
			cfg.ScrubBytes = 2000
			d := openDir(t, cfg)
			defer d.Close()
			l := createLog(t, d, Settings{FlushAck: true, SegmentBytes: 1000})
			for i := range 60 {
				appendOne(t, l, int32(i/15), plainBatch(1, 100))
			}
			d.syncer.waitAdvanced()
			s, err := l.Read(22, 23, 1, true)
			require.NoError(t, err)
			good := sliceBytes(t, s)
			_, at := s.File()
			path := s.handle.ref.path
			s.Release()
			fsys.Flip(path, at+15, 6) // epoch 1 becomes 65
			require.ErrorIs(t, find(d, l), ErrCorrupt)
			require.ErrorIs(t, l.Corrupt(), ErrCorrupt)

			follower, err := d.Create("zeta", testID(2), 1, 22, Settings{})
			require.NoError(t, err)
			bad := record.Batch(bytes.Clone(good))
			bad.SetLeaderEpoch(65)
			require.ErrorIs(t, follower.Replicate(3, []Set{{Records: bad}}), ErrInvalidBatch)
			require.NoError(t, follower.Replicate(3, []Set{{Records: good}}))
		})
	}
}

// TestEpochFileRot: a flipped bit in the epoch file, wherever it is, makes no other epochs: the file is refused, and
// rebuilt from the batches (L7).
func TestEpochFileRot(t *testing.T) {
	list := []epochStart{{2, 40}, {3, 46}, {17, 1234}}
	file := encodeEpochs(list)
	for i := range 8 * len(file) {
		rotten := bytes.Clone(file)
		rotten[i/8] ^= 1 << (i % 8)
		got, err := decodeEpochs(rotten)
		if err == nil {
			require.Equal(t, list, got, "bit %d", i)
		}
	}
	got, err := decodeEpochs([]byte("0\n1\n2 40\n"))
	require.NoError(t, err, "as Kafka writes it")
	require.Equal(t, list[:1], got)
}

// TestFlushAckSwitchedOn: the records from before become durable without another append (wal.md 5).
func TestFlushAckSwitchedOn(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		d := openDir(t, testConfig(m, vfs.NewMem(1)))
		defer d.Close()
		l := createLog(t, d, Settings{})
		a := appendOne(t, l, 0, plainBatch(3, 10))
		require.Equal(t, int64(0), l.DurableEnd())
		l.Configure(acked)
		waitDurable(t, l, a.NextOffset)
	})
}

// TestBackgroundSync: without flush.ack dirty segments are synced after flush.ms, after flush.messages, or after the
// interval of the directory, one partition at a time.
func TestBackgroundSync(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		d := openDir(t, testConfig(m, vfs.NewMem(1)))
		defer d.Close()
		now := time.Now()
		d.Tick(now)
		l := createLog(t, d, Settings{FlushInterval: time.Second})
		appendOne(t, l, 0, plainBatch(1, 10))
		d.Tick(now.Add(500 * time.Millisecond))
		require.Equal(t, int64(0), l.DurableEnd())
		d.Tick(now.Add(1500 * time.Millisecond))
		require.Equal(t, int64(1), l.DurableEnd())
		l.Configure(Settings{FlushMessages: 5})
		appendOne(t, l, 0, plainBatch(4, 10))
		require.Equal(t, int64(1), l.DurableEnd())
		appendOne(t, l, 0, plainBatch(1, 10))
		waitDurable(t, l, 6)
		l.Configure(Settings{})
		appendOne(t, l, 0, plainBatch(1, 10))
		d.Tick(now.Add(time.Minute))
		require.Equal(t, int64(7), l.DurableEnd())
	})
}
