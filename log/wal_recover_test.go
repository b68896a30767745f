package log

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log/vfs"
)

// TestSmallDisk: on a disk of 64 MiB the write-ahead log stays small enough for records to fit beside it and its
// reserve (L13, W20).
func TestSmallDisk(t *testing.T) {
	m := vfs.NewMem(1)
	m.SetCapacity(64 << 20)
	cfg := Default()
	cfg.FS = m
	d := openDir(t, cfg)
	waitKeeper(d)
	require.LessOrEqual(t, d.commit.reserveBytes(), int64(4<<20))
	l := createLog(t, d, DefaultSettings())
	for range 30 {
		appendOne(t, l, 1, plainBatch(1, 1<<20))
	}
	waitDurable(t, l, 30)
	require.NoError(t, d.Close())
}

// TestWALConfig: impossible rings are refused.
func TestWALConfig(t *testing.T) {
	for _, change := range []func(*Config){
		func(c *Config) { c.WALFiles = 1 },
		func(c *Config) { c.WALInitialBytes = 8*walBlockBytes - 1 },
		func(c *Config) { c.WALFileBytes = 0 },
		func(c *Config) { c.DirectBytes = 0 },
	} {
		cfg := Default()
		change(&cfg)
		require.Error(t, cfg.Validate())
		cfg.WAL = false
		require.NoError(t, cfg.Validate())
	}
}
