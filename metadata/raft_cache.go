package metadata

import (
	"sync"

	"github.com/hashicorp/raft"
)

const (
	// logCacheEntries and logCacheBytes bound what logCache keeps. The number is the one that dataplane.md 10 measured;
	// without the other, 4096 entries of 256 KiB would be a gigabyte.
	logCacheEntries = 4096
	logCacheBytes   = 16 << 20
	// logOverhead is what an entry takes beside its data.
	logOverhead = 160
)

// logCache keeps the newest entries in memory, so that replication and a follower's apply don't read them back from the
// file. It is raft.LogCache with a bound on bytes: entries differ in size by a factor of ten thousand here.
type logCache struct {
	raft.LogStore

	mu struct {
		sync.Mutex
		ring   []*raft.Log // entry i is at i % len(ring)
		lo, hi uint64      // entries lo … hi-1 are cached, without a gap
		bytes  int         // of them; at most limit, or there is only one
		limit  int
	}
}

func newLogCache(next raft.LogStore) *logCache {
	c := &logCache{LogStore: next}
	c.mu.ring, c.mu.limit = make([]*raft.Log, logCacheEntries), logCacheBytes
	return c
}

func (c *logCache) GetLog(index uint64, entry *raft.Log) error {
	c.mu.Lock()
	if c.mu.lo <= index && index < c.mu.hi {
		*entry = *c.mu.ring[index%uint64(len(c.mu.ring))]
		c.mu.Unlock()
		return nil
	}
	c.mu.Unlock()
	return c.LogStore.GetLog(index, entry)
}

func (c *logCache) StoreLog(entry *raft.Log) error { return c.StoreLogs([]*raft.Log{entry}) }

// StoreLogs writes entries and then, only if that succeeded, caches them.
func (c *logCache) StoreLogs(entries []*raft.Log) error {
	if err := c.LogStore.StoreLogs(entries); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		if e.Index != c.mu.hi {
			c.dropLocked()
			c.mu.lo, c.mu.hi = e.Index, e.Index
		}
		if c.mu.hi-c.mu.lo == uint64(len(c.mu.ring)) {
			c.evictLocked()
		}
		c.mu.ring[e.Index%uint64(len(c.mu.ring))] = e
		c.mu.hi++
		c.mu.bytes += size(e)
		for c.mu.bytes > c.mu.limit && c.mu.hi-c.mu.lo > 1 {
			c.evictLocked()
		}
	}
	return nil
}

func size(e *raft.Log) int { return len(e.Data) + len(e.Extensions) + logOverhead }

// evictLocked forgets the oldest entry.
func (c *logCache) evictLocked() {
	slot := &c.mu.ring[c.mu.lo%uint64(len(c.mu.ring))]
	c.mu.bytes -= size(*slot)
	*slot = nil
	c.mu.lo++
}

func (c *logCache) dropLocked() {
	for c.mu.lo < c.mu.hi {
		c.evictLocked()
	}
}

// DeleteRange forgets everything if it touches what is cached: the front of the log is rarely cut that far, and a tail
// that is replaced is rare.
func (c *logCache) DeleteRange(first, last uint64) error {
	c.mu.Lock()
	if first < c.mu.hi && last >= c.mu.lo {
		c.dropLocked()
		c.mu.lo, c.mu.hi = 0, 0
	}
	c.mu.Unlock()
	return c.LogStore.DeleteRange(first, last)
}
