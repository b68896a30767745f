package vfs

import (
	"io"
	"io/fs"
)

// memFile is a handle of a file in a Mem.
type memFile struct {
	fsys   *Mem
	name   string
	data   *memData
	write  bool
	closed bool
}

// begin takes the lock of the file system and checks that the handle may be used.
func (f *memFile) begin(op string, write bool) error {
	m := f.fsys
	if m.yield != nil {
		m.yield(op + " " + f.name)
	}
	m.mu.Lock()
	var err error
	switch {
	case m.dead || f.closed:
		err = pathError(op, f.name, fs.ErrClosed)
	case write && !f.write:
		err = pathError(op, f.name, fs.ErrPermission)
	}
	if err != nil {
		m.mu.Unlock()
	}
	return err
}

// ReadAt implements File.
func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.begin("read", false); err != nil {
		return 0, err
	}
	defer f.fsys.mu.Unlock()
	if off < 0 {
		return 0, pathError("read", f.name, fs.ErrInvalid)
	}
	if off >= int64(len(f.data.data)) {
		if len(p) == 0 {
			return 0, nil
		}
		return 0, io.EOF
	}
	n := copy(p, f.data.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt implements File.
func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.begin("write", true); err != nil {
		return 0, err
	}
	defer f.fsys.mu.Unlock()
	return f.fsys.writeAt(f, p, off)
}

// WritevAt implements File. A crash cannot fall between the buffers, but of course the blocks may be kept singly.
func (f *memFile) WritevAt(bufs [][]byte, off int64) (int, error) {
	if err := f.begin("write", true); err != nil {
		return 0, err
	}
	defer f.fsys.mu.Unlock()
	total := 0
	for _, b := range bufs {
		n, err := f.fsys.writeAt(f, b, off+int64(total))
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// Truncate implements File.
func (f *memFile) Truncate(size int64) error {
	if err := f.begin("truncate", true); err != nil {
		return err
	}
	m := f.fsys
	defer m.mu.Unlock()
	if size < 0 {
		return pathError("truncate", f.name, fs.ErrInvalid)
	}
	// A hole takes no space on a real disk and may fail only when it is filled. Here it is counted at once, which the
	// log cannot tell from the disk filling up a moment earlier.
	if m.room(f.data, size) < size {
		return pathError("truncate", f.name, ErrNoSpace)
	}
	m.truncate(f.data, size)
	return nil
}

// Size implements File.
func (f *memFile) Size() (int64, error) {
	if err := f.begin("size", false); err != nil {
		return 0, err
	}
	defer f.fsys.mu.Unlock()
	return int64(len(f.data.data)), nil
}

// Sync implements File. What is dirty now is written in one to three steps; blocks written meanwhile may be caught or
// not, as on a real kernel.
func (f *memFile) Sync() error {
	if err := f.begin("sync", false); err != nil {
		return err
	}
	m, d := f.fsys, f.data
	if m.failSyncs > 0 {
		m.failSyncs--
		if m.failSyncs == 0 {
			m.failSync(d)
			m.mu.Unlock()
			return pathError("sync", f.name, ErrIO)
		}
	}
	blocks := make([]int, 0, 16)
	for b, dirty := range d.dirty {
		if dirty {
			blocks = append(blocks, b)
		}
	}
	size := int64(len(d.data))
	watch := &memSync{low: size, high: size}
	d.syncs = append(d.syncs, watch)
	if m.syncSteps {
		m.rng.Shuffle(len(blocks), func(i, j int) { blocks[i], blocks[j] = blocks[j], blocks[i] })
		for range m.rng.IntN(3) {
			part := 0
			if len(blocks) > 0 {
				part = m.rng.IntN(len(blocks) + 1)
			}
			m.flush(d, blocks[:part])
			blocks = blocks[part:]
			m.mu.Unlock()
			m.yield("syncing " + f.name)
			m.mu.Lock()
			if m.dead {
				m.mu.Unlock()
				return pathError("sync", f.name, fs.ErrClosed)
			}
		}
	}
	m.flush(d, blocks)
	for i, s := range d.syncs {
		if s == watch {
			d.syncs = append(d.syncs[:i], d.syncs[i+1:]...)
			break
		}
	}
	// Of two overlapping syncs the one that began later knows more.
	d.low, d.high = max(d.low, watch.low), min(d.high, watch.high)
	d.durable = min(max(size, d.low), d.high)
	if int64(len(d.disk)) > d.high {
		d.disk = d.disk[:d.high]
	}
	m.mu.Unlock()
	return nil
}

// DropCache implements File: clean blocks are read from the disk from now on. After a failed Sync they may differ.
func (f *memFile) DropCache() error {
	if err := f.begin("drop", false); err != nil {
		return err
	}
	defer f.fsys.mu.Unlock()
	m, d := f.fsys, f.data
	for b, dirty := range d.dirty {
		if !dirty {
			from, to := m.extent(b, len(d.data))
			copyDisk(d.data[from:to], d.disk, from)
		}
	}
	return nil
}

// Fd implements File: there is none.
func (f *memFile) Fd() (uintptr, bool) { return 0, false }

// Close implements File.
func (f *memFile) Close() error {
	if err := f.begin("close", false); err != nil {
		return err
	}
	f.closed = true
	f.fsys.mu.Unlock()
	return nil
}

// extent returns the byte range of a block in a file of the given size.
func (m *Mem) extent(block, size int) (from, to int) {
	from = block * m.block
	return min(from, size), min(from+m.block, size)
}

// copyDisk fills p with what the disk holds from off; beyond what was written there are zeros.
func copyDisk(p, disk []byte, off int) {
	n := 0
	if off < len(disk) {
		n = copy(p, disk[off:])
	}
	clear(p[n:])
}

// flush writes blocks to the disk.
func (m *Mem) flush(d *memData, blocks []int) {
	for _, b := range blocks {
		if b >= len(d.dirty) {
			continue // cut off meanwhile
		}
		m.toDisk(d, b, d.data)
		d.dirty[b] = false
	}
}

func (m *Mem) toDisk(d *memData, block int, data []byte) {
	from, to := m.extent(block, len(data))
	if to > len(d.disk) {
		d.disk = append(d.disk, make([]byte, to-len(d.disk))...)
	}
	copy(d.disk[from:to], data[from:to])
	// The rest of the block beyond the size is zero on disk.
	if end := min(from+m.block, len(d.disk)); end > to {
		clear(d.disk[to:end])
	}
}

// failSync is what the kernel leaves after a write error: some dirty pages are clean, and were never written.
func (m *Mem) failSync(d *memData) {
	for b, dirty := range d.dirty {
		if !dirty {
			continue
		}
		switch m.rng.IntN(3) {
		case 0:
			d.dirty[b] = false
		case 1:
			m.flush(d, []int{b})
		}
	}
}

// room returns how large the file can become, at most size.
func (m *Mem) room(d *memData, size int64) int64 {
	if m.capacity < 0 || size <= int64(len(d.data)) {
		return size
	}
	have := m.blocks(int64(len(d.data)))
	return min(size, have+max(0, m.capacity-m.used)/int64(m.block)*int64(m.block))
}

func (m *Mem) writeAt(f *memFile, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, pathError("write", f.name, fs.ErrInvalid)
	}
	if len(p) == 0 {
		return 0, nil
	}
	d := f.data
	end := off + int64(len(p))
	var err error
	if room := m.room(d, end); room < end {
		err = pathError("write", f.name, ErrNoSpace)
		if end = max(room, min(end, int64(len(d.data)))); end <= off {
			return 0, err
		}
		p = p[:end-off]
	}
	m.grow(d, end)
	copy(d.data[off:end], p)
	for b := int(off) / m.block; b <= int(end-1)/m.block; b++ {
		d.dirty[b] = true
	}
	if m.writeBack > 0 && m.rng.IntN(256) < m.writeBack {
		// The kernel writes some dirty block on its own. It stays dirty here, since nobody waited for the device.
		if b := m.rng.IntN(len(d.dirty)); d.dirty[b] {
			m.toDisk(d, b, d.data)
		}
	}
	return len(p), err
}

// grow makes the file at least size bytes long; the new bytes are zero and dirty.
func (m *Mem) grow(d *memData, size int64) {
	old := int64(len(d.data))
	if size <= old {
		return
	}
	if d.nlink > 0 {
		m.used += m.blocks(size) - m.blocks(old)
	}
	if int64(cap(d.data)) >= size {
		d.data = d.data[:size]
		clear(d.data[old:])
	} else {
		d.data = append(d.data, make([]byte, size-old)...)
	}
	for len(d.dirty) < int(m.blocks(size))/m.block {
		d.dirty = append(d.dirty, true)
	}
	if old%int64(m.block) != 0 {
		d.dirty[old/int64(m.block)] = true
	}
	d.sized(size)
}

func (m *Mem) truncate(d *memData, size int64) {
	old := int64(len(d.data))
	if size >= old {
		m.grow(d, size)
		return
	}
	if d.nlink > 0 {
		m.used -= m.blocks(old) - m.blocks(size)
	}
	clear(d.data[size:])
	d.data = d.data[:size]
	d.dirty = d.dirty[:m.blocks(size)/int64(m.block)]
	d.sized(size)
}

// sized notes a new size for crashes and for the syncs that run.
func (d *memData) sized(size int64) {
	d.low, d.high = min(d.low, size), max(d.high, size)
	for _, s := range d.syncs {
		s.low, s.high = min(s.low, size), max(s.high, size)
	}
}
