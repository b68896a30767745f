package log

import (
	"errors"
	"fmt"
	"io"

	"github.com/millrace/millrace/log/vfs"
)

// walRedo is the write-ahead log as recovery sees it: where the records of each log id are.
type walRedo struct {
	d    *Dir
	dir  string
	scan walScan
	refs map[uint64][]walRef
}

// openWAL reads the write-ahead log for recovery (wal.md 4, steps 2 and 3), also if it is switched off now: the last
// process may have used it.
func (d *Dir) openWAL(cp checkpoint) (redoSource, error) {
	r := &walRedo{d: d, dir: vfs.Join(d.path, walName), refs: make(map[uint64][]walRef)}
	scan := walScan{mutants: d.cfg.mutants}
	err := scan.read(d.cfg.FS, r.dir, d.cfg.walBlockBytes, cp, func(ref walRef) error {
		if ref.next > cp.recoveryPoints[ref.logID] {
			r.refs[ref.logID] = append(r.refs[ref.logID], ref)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	r.scan = scan
	d.redo = r
	d.stats.BytesRead += scan.bytesRead
	d.stats.WALRecords, d.stats.WALDamage = scan.records, scan.damage
	d.mu.oldestGeneration, d.mu.live = scan.oldest, cp.live
	for _, damage := range scan.damage {
		d.cfg.Logger.Error("write-ahead log is damaged: nothing proves that its tail is complete, replicas of this directory must catch up before they count",
			"dir", d.path, "damage", damage)
	}
	if len(scan.damage) > 0 {
		d.metrics.walDamaged.Set(1)
	}
	return r, nil
}

// redo implements redoSource.
func (r *walRedo) redo(logID uint64, fn func(redoRecord) error) error {
	var file vfs.File
	number := -1
	defer func() {
		if file != nil {
			file.Close()
		}
	}()
	var buf []byte
	for _, ref := range r.refs[logID] {
		if ref.file != number {
			if file != nil {
				file.Close()
			}
			var err error
			if file, err = r.d.cfg.FS.OpenRead(walFileName(r.dir, ref.file)); err != nil {
				return fmt.Errorf("redo from write-ahead log file %d: %w", ref.file, err)
			}
			number = ref.file
		}
		if cap(buf) < ref.length {
			buf = make([]byte, ref.length)
		}
		buf = buf[:ref.length]
		if n, err := file.ReadAt(buf, ref.offset); n < len(buf) {
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("redo from write-ahead log file %d at %d: %w", ref.file, ref.offset, err)
		}
		r.d.readBytes.Add(int64(ref.length))
		rec := redoRecord{base: ref.base, next: ref.next, segment: ref.segmentBase, position: ref.position, durableEnd: ref.durableEnd, data: buf}
		if err := fn(rec); err != nil {
			return err
		}
	}
	return nil
}

// startCommitter ends recovery: the checkpoint names the recovered ends, then the old records die, by the header of a
// new generation or, without a write-ahead log, by the checkpoint itself (wal.md 4, steps 7 and 8).
func (d *Dir) startCommitter() error {
	scan := d.redo.scan
	d.redo = nil
	if !d.cfg.WAL {
		d.mu.oldestGeneration, d.mu.live = max(scan.oldest, scan.newest+1), false
		return d.checkpoint(false)
	}
	if err := d.checkpoint(false); err != nil {
		return err
	}
	largest := d.largestWALFile()
	initial := min(d.cfg.WALInitialBytes, largest)
	w, err := startWAL(walConfig{
		fsys: d.cfg.FS, dir: vfs.Join(d.path, walName), parent: d.path, blockBytes: d.cfg.walBlockBytes,
		initialBytes: initial, fileBytes: max(initial, min(d.cfg.WALFileBytes, largest)), files: d.cfg.WALFiles,
		random: d.newLogID, sync: d.sync, mayGrow: d.roomFor, logger: d.cfg.Logger, mutants: d.cfg.mutants,
	}, scan)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.mu.oldestGeneration, d.mu.live = w.oldestLive(), true
	d.mu.Unlock()
	d.commit = newWALCommitter(d, w)
	return nil
}

// largestWALFile bounds a file of the write-ahead log on a small disk: the ring, and the reserve for its redo (W20),
// shall not take more than an eighth of it together.
func (d *Dir) largestWALFile() int64 {
	_, total, err := d.cfg.FS.Usage(d.path)
	if err != nil {
		return d.cfg.WALInitialBytes
	}
	block := int64(d.cfg.walBlockBytes)
	return max(total/int64(16*d.cfg.WALFiles)/block*block, 64*block)
}

// roomFor says whether n more bytes fit above the reserve.
func (d *Dir) roomFor(n int64) bool {
	free, total, err := d.cfg.FS.Usage(d.path)
	return err == nil && free-n >= d.reserve(total)+n
}

// retireGeneration writes the checkpoint that names the next generation as the oldest: its rename is the retirement
// (W11).
func (d *Dir) retireGeneration(generation uint64) error {
	d.checkpointing.Lock()
	defer d.checkpointing.Unlock()
	d.mu.Lock()
	was := d.mu.oldestGeneration
	d.mu.oldestGeneration = generation + 1
	d.mu.Unlock()
	err := d.writeCheckpoint()
	if err != nil {
		d.mu.Lock()
		d.mu.oldestGeneration = was
		d.mu.Unlock()
	}
	return err
}
