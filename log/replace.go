package log

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/log/vfs"
)

// writeFile writes a new file and syncs it, but not its name. A file that did not fit is removed.
func (d *Dir) writeFile(name string, data []byte) error { return d.writeNew(name, data, true) }

// writeNew is writeFile with the sync left to the caller, unless synced is asked for.
func (d *Dir) writeNew(name string, data []byte, synced bool) error {
	return d.withBallast(func() error {
		f, err := d.cfg.FS.Create(name)
		if err != nil {
			return err
		}
		if len(data) > 0 {
			_, err = f.WriteAt(data, 0)
		}
		if err == nil && synced {
			err = d.sync(f)
		}
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if errors.Is(err, vfs.ErrNoSpace) {
			_ = d.cfg.FS.Remove(name)
		}
		return err
	})
}

// replaceFile gives name the content data, durably and atomically: file fsync, rename, directory fsync (L3). After an
// error that matches vfs.ErrNoSpace the old content is there; after any other it is not known which.
func (d *Dir) replaceFile(dir, name string, data []byte) error {
	path := vfs.Join(dir, name)
	if err := d.writeFile(path+tmpSuffix, data); err != nil {
		return err
	}
	if err := d.cfg.FS.Rename(path+tmpSuffix, path); err != nil {
		_ = d.cfg.FS.Remove(path + tmpSuffix)
		return err
	}
	if err := d.cfg.FS.SyncDir(dir); err != nil {
		// The class of this error is hidden: the new content is there, and whether it stays is not known.
		return fmt.Errorf("sync directory %s: %v", dir, err)
	}
	return nil
}

// withBallast gives up the ballast and tries once more if the disk is full and the caller is about to free space: what
// frees space must be able to write its state first (L13, W20).
func (d *Dir) withBallast(fn func() error) error {
	err := fn()
	if !errors.Is(err, vfs.ErrNoSpace) {
		return err
	}
	d.sawFull()
	if d.freeing.Load() == 0 || d.ballastGone.Swap(true) || d.cfg.FS.Remove(vfs.Join(d.path, ballastName)) != nil {
		return err
	}
	d.cfg.Logger.Warn("disk is full; gave up the ballast to write what frees space", "dir", d.path)
	return fn()
}

// failUnlessFull poisons the directory, unless the disk is full: then the old file is as good as before, and what was
// to be done is done later.
func (d *Dir) failUnlessFull(what string, err error) error {
	if errors.Is(err, vfs.ErrNoSpace) {
		return fmt.Errorf("%s: %w: %w", what, ErrNoSpace, err)
	}
	return d.fail(fmt.Errorf("%s: %w", what, err))
}

// ensureBallast makes the ballast again, if there is room for it. It needs no sync: lost, it is made again.
func (d *Dir) ensureBallast() {
	if d.cfg.BallastBytes == 0 {
		return
	}
	name := vfs.Join(d.path, ballastName)
	if e, err := d.cfg.FS.Stat(name); err == nil && e.Size >= d.cfg.BallastBytes {
		d.ballastGone.Store(false)
		return
	}
	if free, _, err := d.cfg.FS.Usage(d.path); err != nil || free < 4*d.cfg.BallastBytes {
		d.ballastGone.Store(true)
		return
	}
	f, err := d.cfg.FS.Create(name)
	if err != nil {
		d.ballastGone.Store(true)
		return
	}
	zeros := make([]byte, min(d.cfg.BallastBytes, 64<<10))
	for at := int64(0); at < d.cfg.BallastBytes && err == nil; at += int64(len(zeros)) {
		_, err = f.WriteAt(zeros[:min(int64(len(zeros)), d.cfg.BallastBytes-at)], at)
	}
	f.Close()
	if err != nil {
		_ = d.cfg.FS.Remove(name)
	}
	d.ballastGone.Store(err != nil)
}
