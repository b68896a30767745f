package group

import (
	"context"
	"time"
)

const (
	// beatInterval is how often the time keeper looks at the clock, whatever the deadlines are.
	beatInterval = Instant(time.Second)
	// stallMin is from when on a process that could not run counts as held up. What its members sent meanwhile lies in
	// sockets that nobody has read: they get the time back (G6).
	stallMin = Instant(2 * time.Second)
)

// keepTime ends sessions and phases when their deadlines come.
func (c *Coordinator) keepTime(ctx context.Context) {
	timer := time.NewTimer(time.Duration(beatInterval))
	defer timer.Stop()
	last, leased := c.now(), true
	for {
		now := c.now()
		if gap := now - last - beatInterval; gap > stallMin {
			c.logger.Warn("groups get back the time in which this process could not run", "duration", time.Duration(gap))
			c.each(func(e *entry) { c.with(e, &Extend{By: now - last}) })
		}
		last = now
		if !c.cfg.Leased() {
			leased = false // members are not heard, so none is given up
		} else {
			if !leased {
				leased = true
				c.each(c.reload)
			}
			c.fire(now)
		}
		timer.Reset(time.Duration(max(0, min(c.timers.Next()-c.now(), beatInterval))))
		if !leased {
			timer.Reset(time.Duration(beatInterval))
		}
		select {
		case <-timer.C:
		case <-c.timers.Nearer():
		case <-c.life.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// fire lets the time pass for the groups whose deadlines have come.
func (c *Coordinator) fire(now Instant) {
	for {
		e := c.timers.Pop(now)
		if e == nil {
			return
		}
		e.mu.Lock()
		e.mu.due = Never
		e.mu.Unlock()
		c.with(e, &Tick{})
	}
}
