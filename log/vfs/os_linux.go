package vfs

import (
	"io"
	"math/bits"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxIovecs is IOV_MAX of Linux, the most buffers one pwritev takes.
const maxIovecs = 1024

func (f *osFile) Sync() error {
	_, err := f.control("fdatasync", nil, 0, callFdatasync)
	return err
}

func (f *osFile) DropCache() error {
	_, err := f.control("fadvise", nil, 0, callDontNeed)
	return err
}

func callFdatasync(fd int, _ *osCall) error { return unix.Fdatasync(fd) }

func callDontNeed(fd int, _ *osCall) error { return unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED) }

// iovecs is the table of buffers of one pwritev. unix.Pwritev makes a new one for each call, garbage on the path of
// every append that gathers more than a few sets.
type iovecs struct{ list []unix.Iovec }

var iovecPool = sync.Pool{New: func() any { return &iovecs{make([]unix.Iovec, 0, 64)} }}

func callPwritev(fd int, c *osCall) error {
	v := iovecPool.Get().(*iovecs)
	list := v.list[:0]
	for _, b := range c.bufs {
		if len(b) > 0 {
			iov := unix.Iovec{Base: &b[0]}
			iov.SetLen(len(b))
			list = append(list, iov)
		}
	}
	// The kernel takes the offset in two words of its long.
	low, high := uintptr(c.off), uintptr(uint64(c.off)>>(bits.UintSize-1)>>1)
	n, _, errno := unix.Syscall6(unix.SYS_PWRITEV, uintptr(fd), uintptr(unsafe.Pointer(&list[0])), uintptr(len(list)), low, high, 0)
	clear(list)
	v.list = list
	iovecPool.Put(v)
	if errno != 0 {
		return errno
	}
	c.n = int(n)
	return nil
}

func (f *osFile) WritevAt(bufs [][]byte, off int64) (int, error) {
	if len(bufs) == 1 {
		return f.WriteAt(bufs[0], off)
	}
	total := 0
	for len(bufs) > 0 {
		part := bufs[:min(len(bufs), maxIovecs)]
		n, err := f.pwritev(part, off+int64(total))
		total += n
		if err != nil {
			return total, err
		}
		bufs = bufs[len(part):]
	}
	return total, nil
}

// pwritev writes at most maxIovecs buffers and finishes partial writes (L14).
func (f *osFile) pwritev(bufs [][]byte, off int64) (int, error) {
	want := 0
	for _, b := range bufs {
		want += len(b)
	}
	if want == 0 {
		return 0, nil
	}
	n, err := f.control("pwritev", bufs, off, callPwritev)
	if err != nil {
		return 0, err
	}
	// A partial write is rare; finish it buffer by buffer.
	done := n
	for _, b := range bufs {
		if n >= len(b) {
			n -= len(b)
			continue
		}
		m, err := f.WriteAt(b[n:], off+int64(done))
		done += m
		if err != nil {
			return done, err
		}
		n = 0
	}
	if done < want {
		return done, io.ErrShortWrite
	}
	return done, nil
}

func (osFS) SyncAll(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return classify(err)
	}
	for {
		err = unix.Syncfs(int(d.Fd()))
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		err = &os.PathError{Op: "syncfs", Path: dir, Err: err}
	}
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return classify(err)
}
