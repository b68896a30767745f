package log

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/log/vfs"
)

// walCommitter makes small sets durable through the write-ahead log and large ones by syncing their segments (wal.md
// 8). It runs two tasks: the committer writes what waits, of all partitions, as one frame with one fdatasync, and then
// tells the partitions; the keeper retires full files and completes the ring.
//
// Per round and partition: DirectBytes or more waiting, or a direct sync that was asked for this reason and has not
// covered everything yet (sticky, W6), or bytes before it that are on neither path ⇒ direct. Else the write-ahead log.
// A round that finds no free file goes direct as a whole.
type walCommitter struct {
	d   *Dir
	wal *wal

	lock sync.Locker
	// work wakes the committer, chores the keeper, ended who waits for both to end.
	work, chores, ended vfs.Cond
	// ready are the logs with kept records, in the order in which their first came.
	ready []*Log
	// chore says that the keeper should look, tidying that it does; stopping that both tasks end when they are done.
	chore, tidying, stopping bool
	running                  int
	// copyBytes is the size up to which a run is copied although its owner could keep it: the copy joins its
	// neighbours, and a large frame of requests is not held for the sake of a small set. One block.
	copyBytes int64
	// bufferBytes is the size of the buffers for copies; a larger copy gets one of its own. buffers are free ones.
	bufferBytes int64
	buffers     [][]byte
	// spares are records without content, for the capacity of their slices.
	spares []keptRecord

	// The following belong to the committer task.

	frame walFrame
	// flying are the records of the frame, in order, round the logs they come from.
	flying []flight
	round  []*Log
	// diverted counts the frames that found no room.
	diverted int
}

// flight is a record in the frame being written.
type flight struct {
	l *Log
	r keptRecord
}

// kept is what a walCommitter knows about one log; guarded by walCommitter.lock.
type kept struct {
	// logID and end: all offsets of this history below end are durable, or in the frame being written, or in records.
	logID uint64
	end   int64
	// records wait for the next frame, bytes is their size. ready says that the log is in walCommitter.ready.
	records []keptRecord
	bytes   int64
	ready   bool
	// direct says that the log's sets go direct, until all below directEnd is durable. Also read without the lock.
	direct    atomic.Bool
	directEnd int64
}

// keptRecord is a run of batches that waits to be written to the write-ahead log.
type keptRecord struct {
	base, next, segment, position int64
	// data is a copy of the batches, in a buffer of walCommitter.buffers; or nil, and pieces are the batches, owned by
	// owners.
	data   []byte
	pieces [][]byte
	owners []Buffer
	bytes  int64
}

// keptBuffers bounds the buffers kept for reuse: 4 MiB with the usual block size.
const keptBuffers = 256

func newWALCommitter(d *Dir, w *wal) *walCommitter {
	c := &walCommitter{
		d: d, wal: w, lock: d.cfg.Tasks.Locker(), chore: true, running: 2,
		copyBytes: int64(w.cfg.blockBytes), bufferBytes: 4 * int64(w.cfg.blockBytes),
	}
	c.work, c.chores, c.ended = d.cfg.Tasks.Cond(c.lock), d.cfg.Tasks.Cond(c.lock), d.cfg.Tasks.Cond(c.lock)
	d.cfg.Tasks.Go("committer", c.commit)
	d.cfg.Tasks.Go("wal-keeper", c.keep)
	return c
}

// wrote implements committer: it keeps the run for the next frame, or has the log go direct.
func (c *walCommitter) wrote(l *Log, logID uint64, segment, position int64, run *appendRun, s *Settings) {
	if !s.FlushAck {
		return // the durable end follows the background sync
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	k := &l.kept
	if k.logID != logID {
		c.forget(k) // records of an older history are void (W13)
		k.logID, k.end, k.directEnd = logID, 0, 0
		k.direct.Store(false)
	}
	if k.direct.Load() && !c.d.cfg.mutants.has(mutantHoles) {
		k.directEnd = run.next
		return
	}
	if k.end != run.base && !c.d.cfg.mutants.has(mutantHoles) && l.DurableEnd() < run.base {
		// Bytes before these were not kept, because flush.ack was off: only a sync of the segment covers them.
		c.goDirect(k, run.next)
		return
	}
	if k.bytes+run.bytes >= c.d.cfg.DirectBytes || run.bytes > c.wal.largestSet() {
		c.goDirect(k, run.next)
		return
	}
	c.take(k, segment, position, run)
	if !k.ready {
		k.ready = true
		c.ready = append(c.ready, l)
		if len(c.ready) == 1 {
			c.work.Signal()
		}
	}
}

// goDirect sends a log to the direct path until everything below end is durable. What it kept is superfluous.
func (c *walCommitter) goDirect(k *kept, end int64) {
	c.forget(k)
	k.direct.Store(true)
	k.directEnd = max(k.directEnd, end)
}

// forget drops the kept records of a log.
func (c *walCommitter) forget(k *kept) {
	for i := range k.records {
		c.drop(&k.records[i])
	}
	k.records, k.bytes = k.records[:0], 0
}

// drop gives back what a record holds.
func (c *walCommitter) drop(r *keptRecord) {
	for _, o := range r.owners {
		o.Release()
	}
	if int64(cap(r.data)) == c.bufferBytes && len(c.buffers) < keptBuffers {
		c.buffers = append(c.buffers, r.data[:0])
	}
	if len(r.pieces) > 0 && len(c.spares) < keptBuffers {
		clear(r.pieces)
		clear(r.owners)
		c.spares = append(c.spares, keptRecord{pieces: r.pieces[:0], owners: r.owners[:0]})
	}
	*r = keptRecord{}
}

// take keeps a run: joined to the last record if both are small copies that stand side by side, else as a new one.
func (c *walCommitter) take(k *kept, segment, position int64, run *appendRun) {
	k.end = run.next
	k.bytes += run.bytes
	hold := run.bytes > c.copyBytes
	for _, o := range run.owners {
		hold = hold && o != nil
	}
	if hold {
		var r keptRecord
		if n := len(c.spares); n > 0 {
			r, c.spares = c.spares[n-1], c.spares[:n-1]
		}
		r.base, r.next, r.segment, r.position, r.bytes = run.base, run.next, segment, position, run.bytes
		r.pieces, r.owners = append(r.pieces, run.bufs...), append(r.owners, run.owners...)
		for _, o := range r.owners {
			o.Retain()
		}
		k.records = append(k.records, r)
		return
	}
	if n := len(k.records); n > 0 {
		last := &k.records[n-1]
		if last.data != nil && last.segment == segment && last.next == run.base && last.position+last.bytes == position &&
			run.bytes <= int64(cap(last.data)-len(last.data)) {
			for _, b := range run.bufs {
				last.data = append(last.data, b...)
			}
			last.next = run.next
			last.bytes += run.bytes
			return
		}
	}
	var data []byte
	switch n := len(c.buffers); {
	case run.bytes > c.bufferBytes:
		data = make([]byte, 0, run.bytes)
	case n > 0:
		data, c.buffers = c.buffers[n-1], c.buffers[:n-1]
	default:
		data = make([]byte, 0, c.bufferBytes)
	}
	for _, b := range run.bufs {
		data = append(data, b...)
	}
	k.records = append(k.records, keptRecord{base: run.base, next: run.next, segment: segment, position: position, data: data, bytes: run.bytes})
}

// appended implements committer.
func (c *walCommitter) appended(l *Log) {
	if l.kept.direct.Load() {
		c.d.syncer.request(l, jobSync)
	}
}

// flushed implements committer: what a sync of the segments covered needs no frame, and a log that went direct comes
// back once nothing is left behind it.
func (c *walCommitter) flushed(l *Log, logID uint64, durableEnd int64) {
	c.lock.Lock()
	defer c.lock.Unlock()
	k := &l.kept
	if k.logID != logID {
		return
	}
	k.end = max(k.end, durableEnd)
	if k.direct.Load() && k.directEnd <= durableEnd {
		k.direct.Store(false)
	}
	n := 0
	for n < len(k.records) && k.records[n].next <= durableEnd {
		k.bytes -= k.records[n].bytes
		c.drop(&k.records[n])
		n++
	}
	if n > 0 {
		k.records = append(k.records[:0], k.records[n:]...)
	}
}

// reserveBytes implements committer.
func (c *walCommitter) reserveBytes() int64 { return c.wal.bytes() }

// close implements committer.
func (c *walCommitter) close() error {
	c.lock.Lock()
	c.stopping = true
	c.work.Broadcast()
	c.chores.Broadcast()
	for c.running > 0 {
		c.ended.Wait()
	}
	c.lock.Unlock()
	c.d.mu.Lock()
	c.d.mu.closingGeneration = c.wal.header.generation + 1
	c.d.mu.Unlock()
	return c.wal.close()
}

// end ends one of the two tasks. Caller holds lock.
func (c *walCommitter) end() {
	c.running--
	c.ended.Broadcast()
	c.lock.Unlock()
}

// commit is the committer task: one frame in flight (W4), one fdatasync for all partitions that wait.
func (c *walCommitter) commit() {
	c.lock.Lock()
	defer c.end()
	for {
		for len(c.ready) == 0 && !c.stopping {
			c.work.Wait()
		}
		if len(c.ready) == 0 {
			return
		}
		c.collect()
		c.lock.Unlock()
		c.write()
		c.lock.Lock()
		for i := range c.flying {
			c.drop(&c.flying[i].r)
		}
		clear(c.flying)
		c.flying = c.flying[:0]
	}
}

// collect moves kept records into the frame, as many as it takes. Caller holds lock.
func (c *walCommitter) collect() {
	c.frame.reset()
	limit := int(c.wal.largestFrame())
	full, left := false, 0
	for _, l := range c.ready {
		k := &l.kept
		n := 0
		if !full {
			l.mu.Lock()
			logID, durableEnd := l.mu.logID, l.mu.durable.end
			l.mu.Unlock()
			if logID != k.logID && !c.d.cfg.mutants.has(mutantOldCompletion) {
				c.forget(k) // truncated meanwhile (W7)
			}
			for ; n < len(k.records); n++ {
				r := &k.records[n]
				if c.frame.bytes+walRecordHeadBytes+int(r.bytes) > limit && len(c.frame.records) > 0 {
					full = true
					break
				}
				w := walRecord{logID: k.logID, base: r.base, next: r.next, segmentBase: r.segment, position: r.position, durableEnd: durableEnd, data: r.data}
				if r.data == nil {
					w.data, w.more = r.pieces[0], r.pieces[1:]
				}
				c.frame.add(w)
				c.flying = append(c.flying, flight{l, *r})
				k.bytes -= r.bytes
			}
			rest := copy(k.records, k.records[n:])
			clear(k.records[rest:])
			k.records = k.records[:rest]
		}
		if len(k.records) == 0 {
			k.ready = false
			continue
		}
		c.ready[left] = l
		left++
	}
	clear(c.ready[left:])
	c.ready = c.ready[:left]
}

// write makes the frame durable and tells the logs, or has them go direct if the ring has no room.
func (c *walCommitter) write() {
	if len(c.flying) == 0 || c.d.failed() != nil {
		return
	}
	before := c.wal.header.generation
	ok, err := c.wal.reserve(c.frame.size(c.wal.cfg.blockBytes))
	if err == nil && ok {
		err = c.wal.write(&c.frame)
	}
	if err != nil {
		_ = c.d.fail(err)
		return
	}
	if !ok || c.wal.header.generation != before {
		c.wake()
	}
	if !ok {
		c.divert()
		return
	}
	c.d.metrics.walFrames.Inc()
	c.d.metrics.walBytes.Add(float64(c.frame.size(c.wal.cfg.blockBytes)))
	for i := range c.flying {
		f := &c.flying[i]
		f.l.completed(c.frame.records[i].logID, f.r.base, f.r.next)
	}
}

// divert sends the logs of a frame that found no room to the direct path (W6).
func (c *walCommitter) divert() {
	c.diverted++
	c.round = c.round[:0]
	c.lock.Lock()
	for i := range c.flying {
		f := &c.flying[i]
		k := &f.l.kept
		if k.logID != c.frame.records[i].logID {
			continue
		}
		// Everything that came meanwhile goes along.
		c.goDirect(k, max(f.r.next, k.end))
		if n := len(c.round); n == 0 || c.round[n-1] != f.l {
			c.round = append(c.round, f.l)
		}
	}
	c.lock.Unlock()
	for _, l := range c.round {
		c.d.syncer.request(l, jobSync)
	}
	clear(c.round)
}

// wake tells the keeper to look.
func (c *walCommitter) wake() {
	c.lock.Lock()
	c.chore = true
	c.chores.Signal()
	c.lock.Unlock()
}

// keep is the keeper task.
func (c *walCommitter) keep() {
	c.lock.Lock()
	defer c.end()
	for {
		for !c.chore && !c.stopping {
			c.chores.Wait()
		}
		if c.stopping {
			return
		}
		c.chore, c.tidying = false, true
		c.lock.Unlock()
		err := c.tidy()
		switch {
		case errors.Is(err, vfs.ErrNoSpace):
			// Tried again at the next round without a free file. Until then rounds go direct.
			c.d.cfg.Logger.Warn("no space for the write-ahead log", "dir", c.d.path, "error", err)
		case err != nil:
			_ = c.d.fail(err)
		}
		c.lock.Lock()
		c.tidying = false
		c.ended.Broadcast()
	}
}

// tidy retires files and completes the ring until there is nothing to do.
func (c *walCommitter) tidy() error {
	for c.d.failed() == nil && !c.ending() {
		if f := c.wal.retiring(false); f != nil {
			if err := c.retire(f); err != nil {
				return err
			}
			continue
		}
		if more, err := c.wal.prepare(); err != nil || !more {
			return err
		}
	}
	return nil
}

func (c *walCommitter) ending() bool {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.stopping
}

// retire makes a full file free (W11): every partition with records in it is synced up to its end, then the rename of
// the checkpoint that names the next generation as the oldest is the retirement.
func (c *walCommitter) retire(f *walFile) error {
	var logs []*Log
	for _, l := range c.d.Logs() {
		l.mu.Lock()
		logID := l.mu.logID
		l.mu.Unlock()
		// A log that was truncated, recreated or deleted meanwhile has another id: its records are void.
		if _, ok := f.logs[logID]; ok {
			logs = append(logs, l)
		}
	}
	if !c.d.cfg.mutants.has(mutantRetireUnsynced) {
		c.d.syncer.syncAll(logs)
	}
	if err := c.d.failed(); err != nil {
		return err
	}
	if c.d.cfg.mutants.has(mutantReuseEarly) {
		generation := f.generation
		if err := c.wal.retired(f); err != nil {
			return err
		}
		return c.d.retireGeneration(generation)
	}
	if err := c.d.retireGeneration(f.generation); err != nil {
		return fmt.Errorf("retire generation %d of the write-ahead log: %w", f.generation, err)
	}
	return c.wal.retired(f)
}
