package log

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log/vfs"
)

// TestAppendReadReopen: what was appended over several segments is read back the same after a clean stop, a kill and a
// power cut: one decoder serves recovery and readers (L22).
func TestAppendReadReopen(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		fsys := vfs.NewMem(1)
		d := openDir(t, testConfig(m, fsys))
		l := createLog(t, d, Settings{FlushAck: true, SegmentBytes: 1024, IndexIntervalBytes: 128})
		var want []byte
		for i := range 50 {
			b := plainBatch(1+i%4, 20)
			a := appendOne(t, l, 3, b)
			require.Equal(t, a.NextOffset-a.BaseOffset, int64(1+i%4))
			want = append(want, b...)
		}
		end := l.EndOffset()
		waitDurable(t, l, end)
		require.Greater(t, l.SegmentCount(), 3)
		for _, limit := range []int{1, 100, 300, 1 << 20} {
			require.Equal(t, want, concat(readAll(t, l, 0, end, limit)))
		}
		require.NoError(t, d.Close())

		d = openDir(t, testConfig(m, fsys))
		require.True(t, d.CleanStart())
		l = lookup(t, d)
		require.Equal(t, end, l.EndOffset())
		require.Equal(t, end, l.DurableEnd())
		require.Equal(t, int32(3), l.LastEpoch())
		require.Equal(t, want, concat(readAll(t, l, 0, end, 500)))
		appendOne(t, l, 4, plainBatch(1, 10))
		waitDurable(t, l, end+1)

		// kill -9: only the page cache survives, unclean.
		fsys = fsys.Kill()
		d = openDir(t, testConfig(m, fsys))
		require.False(t, d.CleanStart())
		require.Equal(t, end+1, lookup(t, d).EndOffset())
		// power cut: everything acknowledged is there.
		fsys = fsys.Crash(vfs.CrashLose)
		d = openDir(t, testConfig(m, fsys))
		l = lookup(t, d)
		require.Equal(t, end+1, l.EndOffset())
		require.Equal(t, want, concat(readAll(t, l, 0, end, 500)))
		require.NoError(t, d.Close())
	})
}
