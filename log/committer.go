package log

// committer decides how the bytes of an append become durable. The direct committer is complete alone; the one with
// the write-ahead log replaces it when Config.WAL is set.
type committer interface {
	// wrote is told of every run that was written to a segment, by the writer, which holds Log.w but not Log.mu. It
	// must not wait for the device. run is valid only during the call: bufs hold the offsets [run.base, run.next) and
	// stand at position of the segment; what is kept of them is retained through run.owners, or copied where the owner
	// is nil.
	wrote(l *Log, logID uint64, segment, position int64, run *appendRun, s *Settings)
	// appended is told once per call of Append or Replicate that appended something, after the writer let go of Log.w.
	appended(l *Log)
	// flushed is told after a direct sync of the partition, which may have made its kept sets superfluous.
	flushed(l *Log, logID uint64, durableEnd int64)
	// reserveBytes is the space that redo may have to allocate again in segments (W20).
	reserveBytes() int64
	// close stops the committer; what was handed over before is durable, or the directory has failed.
	close() error
}

// directCommitter makes everything durable by syncing segments.
type directCommitter struct{ d *Dir }

func (directCommitter) wrote(*Log, uint64, int64, int64, *appendRun, *Settings) {}

func (c directCommitter) appended(l *Log) {
	if l.Settings().FlushAck {
		c.d.syncer.request(l, jobSync)
	}
}

func (directCommitter) flushed(*Log, uint64, int64) {}

func (directCommitter) reserveBytes() int64 { return 0 }

func (directCommitter) close() error { return nil }
