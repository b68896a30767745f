package replication

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log/vfs"
)

// BenchmarkOpenManager measures a start with many partitions, and the heap each one keeps with its log.
func BenchmarkOpenManager(b *testing.B) {
	const partitions = 2000
	br := newBrokerOn(b, vfs.NewMem(1), "data", false, func(c *Config) { c.TickInterval = time.Hour })
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	br.create("orders", partitions, nil)
	runtime.GC()
	runtime.ReadMemStats(&after)
	created := float64(after.HeapAlloc-before.HeapAlloc) / partitions
	b.ResetTimer()
	for range b.N {
		require.NoError(b, br.m.Close())
		br.openManager()
		require.NoError(b, br.m.Ready(br.ctx()))
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/partitions, "µs/partition")
	b.ReportMetric(created, "heap-B/partition")
}
