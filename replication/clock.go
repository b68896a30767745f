package replication

import (
	"sync/atomic"
	"time"
)

// clock is the monotonic clock of a manager. Go's does not count time during which the machine was suspended; this one
// does, so that a lease lapses while a laptop sleeps or a virtual machine is paused (R16).
type clock struct {
	start time.Time
	// boot returns the time since the machine started, suspensions included; nil where the system does not tell, or a
	// test plays with time.
	boot      func() (Instant, bool)
	bootStart Instant
	// looked is when boot was asked last, suspended the time it knew of that Go's clock does not count.
	looked, suspended atomic.Int64
}

const (
	// bootInterval is how stale the knowledge of a suspension may be, in time during which the process could run.
	bootInterval = Instant(time.Millisecond)
	// bootNoise is below what is taken for a suspension: the two clocks are not read at one instant.
	bootNoise = Instant(100 * time.Millisecond)
)

func (c *clock) init(boot func() (Instant, bool)) {
	c.start = time.Now()
	if boot == nil {
		return
	}
	if at, ok := boot(); ok {
		c.boot, c.bootStart = boot, at
	}
}

// now returns the time since init.
func (c *clock) now() Instant {
	run := Instant(time.Since(c.start))
	if c.boot != nil && run-Instant(c.looked.Load()) >= bootInterval {
		c.look(run)
	}
	return run + Instant(c.suspended.Load())
}

// look finds out whether the machine was suspended.
func (c *clock) look(run Instant) {
	boot, ok := c.boot()
	if again := Instant(time.Since(c.start)); !ok || again-run > bootInterval {
		return // held up in between: the next caller looks
	}
	c.looked.Store(int64(run))
	for {
		known := c.suspended.Load()
		if d := int64(boot - c.bootStart - run); d < known+int64(bootNoise) || c.suspended.CompareAndSwap(known, d) {
			return
		}
	}
}
