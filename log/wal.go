package log

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/millrace/millrace/log/vfs"
)

// walConfig configures a wal.
type walConfig struct {
	fsys vfs.FS
	// dir holds the files, parent is the log directory.
	dir, parent string
	// blockBytes is the size of block 0 and the alignment of frames.
	blockBytes int
	// initialBytes is the size of a new file, fileBytes the size that files grow to when they are recycled.
	initialBytes, fileBytes int64
	// files is the number of files in the ring.
	files  int
	random func() uint64
	// sync is File.Sync, observed.
	sync func(vfs.File) error
	// mayGrow says whether the disk has room for n more bytes of write-ahead log above the reserve (W20).
	mayGrow func(n int64) bool
	logger  *slog.Logger
	mutants mutant
}

// walFile is one file of the ring.
type walFile struct {
	number int
	file   vfs.File
	// size is the part that is filled and synced, so that a write into it allocates nothing.
	size int64
	// generation is that of the header last written, 0 if the file is free.
	generation uint64
	// logs are the log ids with records in it.
	logs map[uint64]struct{}
}

// wal is the ring of files of one log directory while it is in use. The committer alone calls reserve and write, one
// frame at a time (W4); the keeper alone calls prepare, retiring and retired. Errors of its methods poison the
// directory (W12, W17), except ErrNoSpace from prepare and retired.
//
// A file is either active (the frames go there), full (waits for its records to be in synced segments), free (may
// become active) or raw (found at the start, or to be made: the keeper makes it free).
type wal struct {
	cfg   walConfig
	zeros []byte

	// header, offset and sequence belong to the committer: that of the active file, the position of the next frame in
	// it, and its sequence number.
	header   walHeader
	offset   int64
	sequence uint64

	// mu guards what follows; it is never held over a file operation.
	mu     sync.Mutex
	active *walFile
	full   []*walFile // ascending generations
	free   []*walFile
	raw    []*walFile // file is nil
	// oldest is the oldest live generation: all below are retired.
	oldest uint64
	// number is the smallest unused file number.
	number int
}

// startWAL begins a new generation (wal.md 4 step 8) in a file that is not live, or in an additional one: when it
// returns, the header that voids all old records is on disk. Everything they said must be durable elsewhere by then.
func startWAL(cfg walConfig, scan walScan) (*wal, error) {
	w := &wal{cfg: cfg, zeros: make([]byte, cfg.blockBytes), sequence: max(scan.nextSequence, 1)}
	if err := cfg.fsys.Mkdir(cfg.dir); err != nil {
		return nil, fmt.Errorf("create write-ahead log %s: %w", cfg.dir, err)
	}
	if err := cfg.fsys.SyncDir(cfg.parent); err != nil {
		return nil, fmt.Errorf("create write-ahead log %s: %w", cfg.dir, err)
	}
	var first *walFile
	for _, info := range scan.files {
		w.number = max(w.number, info.number+1)
		f := &walFile{number: info.number}
		if first == nil && (!info.live || cfg.mutants.has(mutantOverwriteLive)) {
			first = f
			continue
		}
		w.raw = append(w.raw, f)
	}
	if first == nil {
		first = &walFile{number: w.number}
		w.number++
	}
	if err := w.fill(first, cfg.initialBytes); err != nil {
		return nil, err
	}
	generation := max(scan.newest, scan.oldest) + 1
	w.oldest = generation
	if cfg.mutants.has(mutantNoGeneration) {
		w.oldest = max(scan.oldest, 1)
	}
	if err := w.begin(first, generation); err != nil {
		return nil, err
	}
	return w, nil
}

// fill opens or creates a file and makes it at least size bytes long, with zeros behind what it has, durably (W12).
func (w *wal) fill(f *walFile, size int64) (err error) {
	name := walFileName(w.cfg.dir, f.number)
	defer func() {
		if err != nil {
			err = fmt.Errorf("fill write-ahead log file %s: %w", name, err)
		}
	}()
	if f.file == nil {
		there, err := vfs.Exists(w.cfg.fsys, name)
		if err != nil {
			return err
		}
		open := w.cfg.fsys.Create
		if there {
			open = w.cfg.fsys.Open
		}
		if f.file, err = open(name); err != nil {
			return err
		}
	}
	have, err := f.file.Size()
	if err != nil {
		return err
	}
	// What is there may be a hole left by a crash, or not synced: a block counts as filled only after the sync below.
	if have < size && have > 0 && w.cfg.mutants.has(mutantShortFile) {
		have = size
	}
	if have < size {
		zeros := w.zeros
		if n := min(1<<20, size-have); n > int64(len(zeros)) {
			zeros = make([]byte, n)
		}
		for have < size {
			n, err := f.file.WriteAt(zeros[:min(int64(len(zeros)), size-have)], have)
			if err != nil {
				return err
			}
			have += int64(n)
		}
	}
	if err := f.file.Sync(); err != nil {
		return err
	}
	if err := w.cfg.fsys.SyncDir(w.cfg.dir); err != nil {
		return err
	}
	f.size = have / int64(w.cfg.blockBytes) * int64(w.cfg.blockBytes)
	return nil
}

// begin writes and syncs the header of a new generation alone, before its first frame (W8), and makes the file active.
func (w *wal) begin(f *walFile, generation uint64) error {
	w.mu.Lock()
	oldest := w.oldest
	w.mu.Unlock()
	h := walHeader{blockBytes: w.cfg.blockBytes, generation: generation, firstSequence: w.sequence, oldest: oldest}
	binary.BigEndian.PutUint64(h.nonce[:8], w.cfg.random())
	binary.BigEndian.PutUint64(h.nonce[8:], w.cfg.random())
	_, err := f.file.WriteAt(h.encode(), 0)
	if err == nil && !w.cfg.mutants.has(mutantHeaderUnsynced) {
		err = w.cfg.sync(f.file)
	}
	if err != nil {
		return fmt.Errorf("begin generation %d in write-ahead log file %s: %w", generation, walFileName(w.cfg.dir, f.number), err)
	}
	w.header, w.offset = h, int64(w.cfg.blockBytes)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.active != nil {
		w.full = append(w.full, w.active)
	}
	f.generation, f.logs = generation, make(map[uint64]struct{})
	w.active = f
	return nil
}

// reserve makes room for a frame of n bytes (walFrame.size), beginning a new generation if the active file is full. It
// returns false if no file is free or the frame is too large for one: the round goes direct.
func (w *wal) reserve(n int64) (bool, error) {
	w.mu.Lock()
	if w.offset+n <= w.active.size {
		w.mu.Unlock()
		return true, nil
	}
	var next *walFile
	if len(w.free) > 0 && int64(w.cfg.blockBytes)+n <= w.free[0].size {
		next = w.free[0]
		w.free = append(w.free[:0], w.free[1:]...)
	}
	generation := w.active.generation + 1
	w.mu.Unlock()
	if next == nil {
		return false, nil
	}
	return true, w.begin(next, generation)
}

// write appends a frame, for which reserve made room, and syncs it. Without an error all of its records are durable.
func (w *wal) write(f *walFrame) error {
	file := w.active // only begin changes it, and this task calls it
	pieces := f.build(&w.header, w.sequence, w.zeros)
	w.mu.Lock()
	last := uint64(0)
	for i := range f.records {
		if id := f.records[i].logID; i == 0 || id != last {
			file.logs[id] = struct{}{}
			last = id
		}
	}
	w.mu.Unlock()
	_, err := file.file.WritevAt(pieces, w.offset)
	if err == nil {
		err = w.cfg.sync(file.file)
	}
	if err != nil {
		return fmt.Errorf("write frame %d to write-ahead log file %s: %w", w.sequence, walFileName(w.cfg.dir, file.number), err)
	}
	w.sequence++
	w.offset += f.size(w.cfg.blockBytes)
	return nil
}

// largestSet is the size from which a partition's waiting bytes must go direct: a quarter of a file (W6), and always
// less than a frame.
func (w *wal) largestSet() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return min(w.active.size/4, walMaxFrameBytes/2)
}

// largestFrame bounds a frame in bytes.
func (w *wal) largestFrame() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return min(w.active.size/2, walMaxFrameBytes)
}

// retiring returns the oldest full file if it should be retired now: while at least two files are free there is no
// hurry, and its partitions may get synced by other reasons. With all it is returned regardless.
func (w *wal) retiring(all bool) *walFile {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.full) == 0 || !all && len(w.free) >= 2 {
		return nil
	}
	return w.full[0]
}

// retired takes note that the checkpoint on disk names a generation above f's as the oldest (W11), and makes f free.
// If another file is free too, f is grown first, so that a directory in use reaches the configured size while no frame
// waits.
func (w *wal) retired(f *walFile) error {
	w.mu.Lock()
	if len(w.full) == 0 || w.full[0] != f {
		w.mu.Unlock()
		panic(fmt.Sprintf("log: generation %d retired out of order", f.generation))
	}
	w.full = append(w.full[:0], w.full[1:]...)
	w.oldest = f.generation + 1
	f.generation, f.logs = 0, nil
	size := min(2*f.size, w.cfg.fileBytes)
	grow := f.size < size && len(w.free) > 0
	w.mu.Unlock()
	var err error
	if grow && w.cfg.mayGrow(size-f.size) {
		if err = w.fill(f, size); errors.Is(err, vfs.ErrNoSpace) {
			w.cfg.logger.Warn("no space to grow a write-ahead log file", "file", f.number, "err", err)
			err = nil
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.free = append(w.free, f)
	if w.cfg.mutants.has(mutantReuseEarly) {
		slices.Reverse(w.free) // and so early that it matters
	}
	return err
}

// oldestLive returns what a checkpoint written now must name.
func (w *wal) oldestLive() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.oldest
}

// prepare makes one more file free, until the ring is complete; it returns false when there is nothing to do. A file
// too many, left by a start that found no free one, is removed. ErrNoSpace: try again later, rounds go direct without
// a free file.
func (w *wal) prepare() (more bool, err error) {
	w.mu.Lock()
	count := 1 + len(w.full) + len(w.free)
	var f *walFile
	if len(w.raw) > 0 {
		f = w.raw[0]
	} else if count < w.cfg.files {
		f = &walFile{number: w.number}
		w.number++
		w.raw = append(w.raw, f)
	}
	w.mu.Unlock()
	if f == nil {
		return false, nil
	}
	if count >= w.cfg.files {
		if f.file != nil {
			f.file.Close()
		}
		if err := w.cfg.fsys.Remove(walFileName(w.cfg.dir, f.number)); err != nil {
			return false, fmt.Errorf("remove spare write-ahead log file %d: %w", f.number, err)
		}
	} else if err := w.fill(f, w.cfg.initialBytes); err != nil {
		return false, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.raw = append(w.raw[:0], w.raw[1:]...)
	if f.size > 0 {
		w.free = append(w.free, f)
	}
	return true, nil
}

// wants says whether the keeper has something to do.
func (w *wal) wants() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.raw) > 0 || 1+len(w.full)+len(w.free) < w.cfg.files || len(w.full) > 0 && len(w.free) < 2
}

// bytes is the size of all files on disk, which redo may have to allocate again in segments (W20).
func (w *wal) bytes() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.active.size
	for _, f := range w.full {
		n += f.size
	}
	for _, f := range w.free {
		n += f.size
	}
	return n
}

// close closes the files. Nothing is written.
func (w *wal) close() error {
	w.mu.Lock()
	files := append(append(append([]*walFile{w.active}, w.full...), w.free...), w.raw...)
	w.mu.Unlock()
	var errs []error
	for _, f := range files {
		if f.file != nil {
			errs = append(errs, f.file.Close())
		}
	}
	return errors.Join(errs...)
}
