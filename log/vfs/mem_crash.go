package vfs

import (
	"math/rand/v2"
)

// Crash returns the file system as it is after a power cut at this moment and a reboot. Handles of m, and m itself,
// fail from now on with fs.ErrClosed.
func (m *Mem) Crash(mode CrashMode) *Mem {
	c := m.CrashClone(mode)
	m.Retire()
	return c
}

// CrashClone is Crash, but m lives on: for tests that look at the state after every single operation.
func (m *Mem) CrashClone(mode CrashMode) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.child()

	// Directory operations: the disk's view, then each pending one by chance. The tree is shared with m here, so the
	// outcome is computed on copies of the name tables.
	tables := make(map[*memNode]map[string]*memNode)
	table := func(n *memNode) map[string]*memNode {
		t, ok := tables[n]
		if !ok {
			t = make(map[string]*memNode, len(n.disk))
			for name, child := range n.disk {
				t[name] = child
			}
			tables[n] = t
		}
		return t
	}
	type key struct {
		dir  *memNode
		name string
	}
	lost := make(map[key]bool)
	for _, p := range m.pending {
		k, k2 := key{p.dir, p.name}, key{p.dir2, p.name2}
		keep := mode == CrashKeep || mode == CrashMixed && c.rng.IntN(2) == 0
		if !keep || lost[k] || p.rename && lost[k2] {
			lost[k] = true
			if p.rename {
				lost[k2] = true
			}
			continue
		}
		t := table(p.dir)
		if p.node == nil {
			delete(t, p.name)
			continue
		}
		if p.rename {
			if t2 := table(p.dir2); t2[p.name2] == p.node {
				delete(t2, p.name2)
			}
		}
		t[p.name] = p.node
	}

	files := make(map[*memNode]*memNode)
	var build func(n *memNode) *memNode
	build = func(n *memNode) *memNode {
		if !n.dir {
			f, ok := files[n]
			if !ok {
				f = &memNode{file: n.file.crash(c, mode)}
				files[n] = f
				c.used += c.blocks(int64(len(f.file.data)))
			}
			f.file.nlink++
			return f
		}
		d := newMemDir()
		names := table(n)
		for _, name := range sortedNames(names) {
			child := build(names[name])
			d.live[name], d.disk[name] = child, child
		}
		return d
	}
	c.root = build(m.root)
	return c
}

// crash returns the content of a file after a power cut.
func (d *memData) crash(m *Mem, mode CrashMode) *memData {
	size := d.durable
	switch mode {
	case CrashKeep:
		size = int64(len(d.data))
	case CrashMixed:
		switch m.rng.IntN(6) {
		case 0: // as synced
		case 1, 2:
			size = int64(len(d.data))
		case 3:
			size = d.low
		default:
			size = d.low + m.rng.Int64N(d.high-d.low+1)
		}
	}
	data := make([]byte, size)
	copyDisk(data, d.disk, 0)
	for b, dirty := range d.dirty {
		if !dirty || mode == CrashLose {
			continue
		}
		from, to := m.extent(b, int(size))
		to = min(to, len(d.data))
		if from >= to {
			break
		}
		if mode == CrashMixed {
			switch m.rng.IntN(4) {
			case 0: // not at all
				continue
			case 1: // torn, the beginning is new
				to = from + m.rng.IntN(to-from)
			case 2: // torn, the end is new
				from += m.rng.IntN(to - from)
			}
		}
		copy(data[from:to], d.data[from:to])
	}
	return &memData{
		data: data, disk: append([]byte(nil), data...), dirty: make([]bool, m.blocks(size)/int64(m.block)),
		durable: size, low: size, high: size,
	}
}

// Kill returns the file system as a new process sees it after this one was killed: the cache survives with everything
// in it, dirty or clean, and a later Crash treats it as before. Locks are gone; m fails from now on with fs.ErrClosed.
func (m *Mem) Kill() *Mem {
	m.mu.Lock()
	c := m.child()
	c.used = m.used
	nodes := make(map[*memNode]*memNode)
	var copyNode func(n *memNode) *memNode
	copyNode = func(n *memNode) *memNode {
		if n == nil {
			return nil
		}
		if done, ok := nodes[n]; ok {
			return done
		}
		k := &memNode{dir: n.dir}
		nodes[n] = k
		if !n.dir {
			d := *n.file
			d.data = append([]byte(nil), d.data...)
			d.disk = append([]byte(nil), d.disk...)
			d.dirty = append([]bool(nil), d.dirty...)
			d.syncs = nil
			k.file = &d
			return k
		}
		k.live, k.disk = make(map[string]*memNode, len(n.live)), make(map[string]*memNode, len(n.disk))
		for name, child := range n.live {
			k.live[name] = copyNode(child)
		}
		for name, child := range n.disk {
			k.disk[name] = copyNode(child)
		}
		return k
	}
	c.root = copyNode(m.root)
	for _, p := range m.pending {
		p.dir, p.node, p.dir2 = copyNode(p.dir), copyNode(p.node), copyNode(p.dir2)
		c.pending = append(c.pending, p)
	}
	m.mu.Unlock()
	m.Retire()
	return c
}

// Retire makes every further operation of m and its handles fail.
func (m *Mem) Retire() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = true
}

// child returns an empty file system with the settings of m and a generator that continues its choices.
func (m *Mem) child() *Mem {
	return &Mem{
		rng:       rand.New(rand.NewPCG(m.rng.Uint64(), m.rng.Uint64())),
		root:      newMemDir(),
		block:     m.block,
		capacity:  m.capacity,
		locks:     make(map[string]bool),
		yield:     m.yield,
		syncSteps: m.syncSteps,
		writeBack: m.writeBack,
	}
}

// Disk returns what the device holds of a file: the bytes that a read would return after the cache was dropped and
// nothing more was written. ok is false if the name is not durable.
func (m *Mem) Disk(name string) (data []byte, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.root
	for _, e := range splitPath(name) {
		if !n.dir {
			return nil, false
		}
		if n = n.disk[e]; n == nil {
			return nil, false
		}
	}
	if n.dir {
		return nil, false
	}
	data = make([]byte, n.file.durable)
	copyDisk(data, n.file.disk, 0)
	return data, true
}

// Durable says whether a file and its name are on disk as the process sees them: nothing is dirty, nothing pending.
func (m *Mem) Durable(name string) bool {
	m.mu.Lock()
	n := m.find(name)
	m.mu.Unlock()
	disk, ok := m.Disk(name)
	if !ok || n == nil || n.dir {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return string(disk) == string(n.file.data) && n.file.low == n.file.high
}

// Flip inverts one bit of a file, in the cache and on disk: bit rot found at the next read.
func (m *Mem) Flip(name string, off int64, bit uint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.find(name)
	if n == nil || n.dir || off >= int64(len(n.file.data)) {
		return
	}
	n.file.data[off] ^= 1 << bit
	if off < int64(len(n.file.disk)) {
		n.file.disk[off] ^= 1 << bit
	}
}
