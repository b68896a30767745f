package log

import (
	"fmt"
	"io/fs"
	"sync"

	"github.com/millrace/millrace/log/vfs"
)

// descriptors keeps files open while they are used, and a bounded number of them while they are not: 10,000 partitions
// with three files per segment exceed every limit of descriptors.
//
// A handle that somebody uses is never closed, so a reader's slice stays readable after its file was unlinked (L17).
type descriptors struct {
	fs vfs.FS
	// limit bounds the idle handles.
	limit int

	mu struct {
		sync.Mutex
		// idle is the ring of unused handles; idle.next was used last.
		idle   handle
		length int
	}
}

// fileRef names a file of a segment that may be open.
type fileRef struct {
	path string
	// handle is the open file, nil if closed; guarded by descriptors.mu.
	handle *handle
	// gone says that the file was unlinked or moved: what is open is closed with its last use.
	gone bool
}

// handle is an open file.
type handle struct {
	file vfs.File
	ref  *fileRef
	uses int // guarded by descriptors.mu
	// next and prev link the idle handles.
	next, prev *handle
}

func newDescriptors(fsys vfs.FS, limit int) *descriptors {
	d := &descriptors{fs: fsys, limit: limit}
	d.mu.idle.next, d.mu.idle.prev = &d.mu.idle, &d.mu.idle
	return d
}

// unlinkIdle takes a handle out of the idle ring. Caller holds mu.
func (d *descriptors) unlinkIdle(h *handle) {
	h.prev.next, h.next.prev = h.next, h.prev
	h.next, h.prev = nil, nil
	d.mu.length--
}

// acquire returns the open file, opening it if needed. Every acquire needs one release. A file that was forgotten is
// not opened any more, by now its name may be another's (L21): the error is fs.ErrNotExist.
func (d *descriptors) acquire(r *fileRef) (*handle, error) {
	d.mu.Lock()
	if h := r.handle; h != nil {
		d.useLocked(h)
		d.mu.Unlock()
		return h, nil
	}
	gone := r.gone
	d.mu.Unlock()
	if gone {
		return nil, fmt.Errorf("open %s: %w", r.path, fs.ErrNotExist)
	}
	f, err := d.fs.Open(r.path)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", r.path, err)
	}
	d.mu.Lock()
	if gone = r.gone; gone || r.handle != nil {
		// Somebody was faster, or the name passed to another while the file was being opened.
		h := r.handle
		if h != nil {
			d.useLocked(h)
		}
		d.mu.Unlock()
		f.Close()
		if gone {
			return nil, fmt.Errorf("open %s: %w", r.path, fs.ErrNotExist)
		}
		return h, nil
	}
	h := &handle{file: f, ref: r, uses: 1}
	r.handle = h
	d.mu.Unlock()
	return h, nil
}

// adopt takes over a file that the caller created, with one use. A reader may have opened it already; its handle is
// used then.
func (d *descriptors) adopt(r *fileRef, f vfs.File) *handle {
	d.mu.Lock()
	if h := r.handle; h != nil {
		d.useLocked(h)
		d.mu.Unlock()
		f.Close()
		return h
	}
	h := &handle{file: f, ref: r, uses: 1}
	if !r.gone {
		r.handle = h
	}
	d.mu.Unlock()
	return h
}

func (d *descriptors) useLocked(h *handle) {
	if h.uses == 0 {
		d.unlinkIdle(h)
	}
	h.uses++
}

// reuse adds a use of a handle that the caller knows to be in use.
func (d *descriptors) reuse(h *handle) {
	d.mu.Lock()
	d.useLocked(h)
	d.mu.Unlock()
}

// release ends a use.
func (d *descriptors) release(h *handle) {
	var victim *handle
	d.mu.Lock()
	h.uses--
	switch {
	case h.uses < 0:
		panic(fmt.Sprintf("log: handle of %s released too often", h.ref.path))
	case h.uses > 0:
	case h.ref.handle != h: // forgotten
		victim = h
	default:
		root := &d.mu.idle
		h.next, h.prev = root.next, root
		h.next.prev, h.prev.next = h, h
		d.mu.length++
		if d.mu.length > d.limit {
			victim = root.prev
			d.unlinkIdle(victim)
			victim.ref.handle = nil
		}
	}
	d.mu.Unlock()
	if victim != nil {
		victim.file.Close()
	}
}

// forget drops a file that was unlinked, moved or will not be used again: it is closed now, or with its last use.
func (d *descriptors) forget(r *fileRef) {
	d.mu.Lock()
	h := r.handle
	r.handle, r.gone = nil, true
	if h != nil && h.uses == 0 {
		d.unlinkIdle(h)
	} else {
		h = nil
	}
	d.mu.Unlock()
	if h != nil {
		h.file.Close()
	}
}
