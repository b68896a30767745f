package transport

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const canMap = true

// writeMapped sends size bytes of a file from position on, behind what the chunk holds. copied are those it did not get to because the file
// could not be mapped: the caller copies them.
//
// Only the kernel reads the mapping, inside write: where the file has become shorter, or the disk fails, the write returns EFAULT, and
// no signal is raised.
func (c *Conn) writeMapped(chunk *buffer, fd uintptr, position int64, size int) (sent int, err error) {
	page := int64(os.Getpagesize())
	for sent < size {
		at := position + int64(sent)
		skip := int(at % page)
		n := min(size-sent, windowBytes)
		start, err := unix.MmapPtr(int(fd), at-int64(skip), nil, uintptr(skip+n), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return sent, nil
		}
		err = c.writeBehind(chunk, unsafe.Slice((*byte)(start), skip+n)[skip:])
		if uerr := unix.MunmapPtr(start, uintptr(skip+n)); err == nil && uerr != nil {
			err = fmt.Errorf("unmap a file that was sent: %w", uerr)
		}
		if errors.Is(err, unix.EFAULT) {
			err = fmt.Errorf("%w: the file at %d cannot be read: %w", errSource, at, err)
		}
		if err != nil {
			return sent, err
		}
		sent += n
	}
	return sent, nil
}
