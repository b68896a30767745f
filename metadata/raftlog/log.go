package raftlog

import (
	"errors"
	"log/slog"
	"slices"
	"sync"

	"github.com/hashicorp/raft"
)

// DefaultSegmentBytes is how large segments become. A new log begins with smaller ones.
const DefaultSegmentBytes = 4 << 20

const (
	// smallestBytes is the size of the first segment, and of one for which a full disk has no more room.
	smallestBytes = 256 << 10
	// segmentGrowth is by how much a segment is larger than the one before, until it has its full size.
	segmentGrowth = 4
	// keptBuffer bounds the memory that is kept from one append to the next.
	keptBuffer = 1 << 20
)

// Errors that a person must deal with; others are those of the file system.
var (
	// ErrDamaged is matched when something that was written is gone or is not what was written.
	ErrDamaged = errors.New("damaged")
	errClosed  = errors.New("the raft log is closed")
	errRefused = errors.New("an append that was refused for lack of space was not repeated")
)

// Options say where a log is and how it is kept.
type Options struct {
	// Dir is the folder of the segments; it must exist.
	Dir string
	// Record keeps the log's record. It is called by one goroutine at a time.
	Record Record
	// SegmentBytes bounds a segment that holds more than one append; 0 = DefaultSegmentBytes.
	SegmentBytes int
	// ID is given to a log that is created: a random number.
	ID uint64
	// ReadOnly opens a log that nothing writes to, and changes nothing.
	ReadOnly bool
	// Logger gets what recovery did. Nil = none.
	Logger *slog.Logger

	files   files  // nil = Dir
	alone   bool   // no goroutine: segments are made when they are needed
	mutants mutant // rules to break, in tests
}

// Log is a raft.LogStore. Reads may be made at any time from any goroutine, also while something is written. Once a write
// has failed every further one fails, but for an append, or a removal, that was refused for lack of space: that one may be
// repeated, with the same entries.
type Log struct {
	files   files
	keep    Record
	limit   int // sectors of a segment of full size
	logger  *slog.Logger
	mutants mutant
	frozen  bool // ReadOnly

	// writing is held by what writes batches, around shaping.
	writing struct {
		sync.Mutex
		encoder
		// refused is the sum of the batch that found no space; only it may be written where it left off. stored is the last
		// entry that the same call had stored before.
		refused *uint32
		stored  uint64
	}
	// shaping is held by what makes or removes segments and writes the record.
	shaping struct {
		sync.Mutex
		record
		// made is a segment that is not in the record, because storing that failed; it is not made again.
		made *segment
	}
	buffers sync.Pool // of *[]byte, to read with

	// mu guards what follows, and is held for moments only.
	mu struct {
		sync.RWMutex
		segments []*segment // in the order of their numbers; those with entries in that of their indexes too
		active   uint64     // number of the one that was written to last; those before it get no more batches
		next     uint64     // number of the next batch; all before are durable
		head     uint64     // as in the record: the index below which entries don't count
		err      error      // the first failure
	}
	wake    chan struct{} // the next segment should be made
	stop    chan struct{}
	running sync.WaitGroup
}

// Create begins an empty log in a folder without one, and stores its record. Segments without a batch, of an attempt that
// was cut off, are replaced.
func Create(o Options) (*Log, error) {
	l := newLog(o)
	l.shaping.record = record{id: o.ID, first: 1, last: 0, batch: 1, head: 0, durable: 1}
	l.mu.next = 1
	if err := l.clearStray(); err != nil {
		return nil, err
	}
	l.shaping.Lock()
	_, err := l.makeSegment(0)
	l.shaping.Unlock()
	if err != nil {
		return nil, errors.Join(err, l.closeFiles())
	}
	l.start(o)
	return l, nil
}

func newLog(o Options) *Log {
	if o.files == nil {
		o.files = folder(o.Dir)
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = DefaultSegmentBytes
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	l := &Log{files: o.files, keep: o.Record, limit: max(o.SegmentBytes/sectorBytes, 2*firstSector), logger: o.Logger, mutants: o.mutants, frozen: o.ReadOnly}
	l.wake, l.stop = make(chan struct{}, 1), make(chan struct{})
	l.buffers.New = func() any { return new([]byte) }
	return l
}

func (l *Log) start(o Options) {
	if !o.alone && !o.ReadOnly {
		l.running.Go(l.makeAhead)
	}
}

// Close notes where the log ends, so that the next Open misses what is gone then, and closes the files.
func (l *Log) Close() error {
	select {
	case <-l.stop:
		return nil
	default:
	}
	close(l.stop)
	l.running.Wait()
	l.writing.Lock()
	defer l.writing.Unlock()
	l.shaping.Lock()
	defer l.shaping.Unlock()
	var err error
	if l.failed() == nil && !l.frozen {
		r := l.noted()
		if r.closed = r.durable; r != l.shaping.record {
			err = l.keep.Store(r.encode())
		}
		l.fail(errClosed)
	}
	return errors.Join(err, l.closeFiles())
}

func (l *Log) closeFiles() (err error) {
	for _, s := range l.mu.segments {
		err = errors.Join(err, s.file.Close())
	}
	if s := l.shaping.made; s != nil {
		err = errors.Join(err, s.file.Close())
	}
	return err
}

// noted returns the record with what is durable now.
func (l *Log) noted() record {
	r := l.shaping.record
	l.mu.RLock()
	r.durable, r.closed = l.mu.next, 0
	l.mu.RUnlock()
	return r
}

// failed returns the first failure.
func (l *Log) failed() error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.err
}

// fail keeps the first failure and returns err.
func (l *Log) fail(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.err == nil {
		l.mu.err = err
	}
	return err
}

// boundsLocked returns the first and last index, 0 and 0 for an empty log.
func (l *Log) boundsLocked() (first, last uint64) {
	for _, s := range l.mu.segments {
		if len(s.at) == 0 {
			continue
		}
		if first == 0 {
			first = s.first
		}
		last = s.end() - 1
	}
	return first, last
}

// FirstIndex returns the first index, 0 for an empty log.
func (l *Log) FirstIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	first, _ := l.boundsLocked()
	return first, nil
}

// LastIndex returns the last index, 0 for an empty log.
func (l *Log) LastIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	_, last := l.boundsLocked()
	return last, nil
}

// find returns where an entry is.
func (l *Log) find(index uint64) (*segment, position, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, s := range slices.Backward(l.mu.segments) {
		if len(s.at) > 0 && index >= s.first {
			if index >= s.end() {
				break
			}
			return s, s.at[index-s.first], true
		}
	}
	return nil, position{}, false
}

// GetLog reads an entry, into memory of its own. The error is raft.ErrLogNotFound when it is not there, and matches
// ErrDamaged when it is no longer what was written.
func (l *Log) GetLog(index uint64, entry *raft.Log) error {
	s, p, ok := l.find(index)
	if !ok {
		return raft.ErrLogNotFound
	}
	b := l.buffers.Get().(*[]byte)
	var err error
	*b, err = s.read(index, p, *b, entry)
	if cap(*b) <= keptBuffer {
		l.buffers.Put(b)
	}
	if err != nil {
		if now, _, there := l.find(index); !there || now != s { // it was removed meanwhile, and with it the file
			return raft.ErrLogNotFound
		}
	}
	return err
}

// StoreLog appends one entry; see StoreLogs.
func (l *Log) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }
