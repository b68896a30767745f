package log

// spaceCheckBytes is how much is appended at most before the free space is looked at again.
const spaceCheckBytes = 32 << 20

// full says whether appends must be refused: the disk is full, or less than the reserve is free (L13, I21). It looks
// again each time while it is, so that freed space is noticed without a restart.
func (d *Dir) full() bool {
	if d.noSpace.Load() || d.uncheckedBytes.Load() >= spaceCheckBytes {
		d.checkSpace()
	}
	return d.noSpace.Load()
}

// sawFull notes that a write failed for lack of space.
func (d *Dir) sawFull() { d.noSpace.Store(true) }

// wrote counts appended bytes.
func (d *Dir) wrote(n int64) {
	d.uncheckedBytes.Add(n)
	d.sinceCheckpoint.Add(n)
	d.metrics.appendedBytes.Add(float64(n))
}

// checkSpace compares the free space with the reserve.
func (d *Dir) checkSpace() {
	d.uncheckedBytes.Store(0)
	free, total, err := d.cfg.FS.Usage(d.path)
	if err != nil {
		d.cfg.Logger.Warn("free space is unknown", "dir", d.path, "error", err)
		return
	}
	full := free < d.reserve(total) || free == 0
	if was := d.noSpace.Swap(full); was && !full {
		d.cfg.Logger.Info("space is free again, produce requests are accepted", "dir", d.path, "free_bytes", free)
	} else if full && !was {
		d.cfg.Logger.Warn("less than the reserve is free, produce requests are refused", "dir", d.path, "free_bytes", free, "reserve_bytes", d.reserve(total))
	}
}

// reserve is the free space at which appends stop: the smaller of ReserveBytes and ReservePercent (L13), and never
// less than redo may have to allocate again (W20).
func (d *Dir) reserve(total int64) int64 {
	return max(min(d.cfg.ReserveBytes, int64(float64(total)*d.cfg.ReservePercent/100)), d.commit.reserveBytes())
}
