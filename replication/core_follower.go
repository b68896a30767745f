package replication

// following is the state of a follower; it is made anew at each leader epoch.
type following struct {
	// seq is that of the fetch in flight, zero when there is none. One at a time (R27).
	seq    uint64
	sentAt Instant
	// retryAt is when to fetch again after an error; zero when not waiting for that. failures counts the errors since the
	// last good answer.
	retryAt  Instant
	failures int
	// cutting is set from the action that cuts the log until its answer.
	cutting bool
	// doubted: a mutant has cut the tail in this epoch.
	doubted bool
	// leaderHighWatermark and leaderStart are those of the response whose records are being appended.
	leaderHighWatermark, leaderStart int64
}

func (c *Core) follow(now Instant) {
	c.role = RoleFollower
	c.leading.reset()
	c.following = following{}
	c.act(Action{Kind: ActionRole})
	c.fetchWhenReady(now)
}

// fetchWhenReady sends the next fetch if none is in flight and the log's position is its end: a fetch at an offset is
// the promise to hold what is below (I2).
func (c *Core) fetchWhenReady(now Instant) {
	f := &c.following
	if c.role != RoleFollower || f.seq != 0 || f.cutting || now < f.retryAt || c.position() < c.end {
		return
	}
	c.seq++
	f.seq, f.sentAt, f.retryAt = c.seq, now, 0
	c.act(Action{Kind: ActionSendFetch, Broker: c.leader, LeaderEpoch: c.leaderEpoch, Offset: c.end, LastEpoch: c.lastEpoch, Seq: f.seq})
}

// refetch gives up on a fetch that has had no answer.
func (c *Core) refetch(now Instant) {
	f := &c.following
	if f.seq != 0 && c.policy.FetchTimeout > 0 && now-f.sentAt >= c.policy.FetchTimeout {
		f.seq = 0
	}
	c.fetchWhenReady(now)
}

// fetchLater puts off the next fetch after an error.
func (c *Core) fetchLater(now Instant) {
	f := &c.following
	pause := min(c.policy.RetryMin<<min(f.failures, 16), c.policy.RetryMax)
	f.failures++
	f.retryAt = now + max(pause, 1)
}

// RetryAt returns when a follower that met an error wants a [Tick], Never when it waits for something else.
func (c *Core) RetryAt() Instant {
	if c.role != RoleFollower || c.following.retryAt == 0 {
		return Never
	}
	return c.following.retryAt
}

// Fetching returns the number of the fetch in flight, zero when there is none.
func (c *Core) Fetching() uint64 { return c.following.seq }

func (c *Core) fetchResponse(now Instant, ev *FetchResponse) {
	f := &c.following
	if c.role != RoleFollower || ev.LeaderEpoch != c.leaderEpoch || f.seq == 0 || ev.Seq != f.seq {
		return // R17, R27: of another epoch, or late, or twice
	}
	f.seq = 0
	if ev.Offset != c.end || ev.LastEpoch != c.lastEpoch {
		c.fetchWhenReady(now) // R27: the log is no longer the one the answer speaks of
		return
	}
	if mutated(mutantTruncateToWater) && !f.doubted && c.highWatermark < c.end {
		f.doubted = true
		c.cut(Action{Kind: ActionTruncate, Offset: c.highWatermark})
		return
	}
	switch {
	case ev.Failed:
		c.fetchLater(now)
	case ev.OutOfRange:
		c.outOfRange(now, ev)
	case ev.DivergingEpoch >= 0:
		c.diverged(now, ev)
	case ev.NextOffset > ev.BaseOffset && ev.BaseOffset != c.end: // R21
		c.fetchLater(now)
	case ev.NextOffset > ev.BaseOffset:
		f.leaderHighWatermark, f.leaderStart = ev.HighWatermark, ev.LogStartOffset
		c.act(Action{Kind: ActionReplicate, LeaderEpoch: c.leaderEpoch})
	default:
		f.leaderHighWatermark, f.leaderStart, f.failures = ev.HighWatermark, ev.LogStartOffset, 0
		c.followMarks()
		c.fetchWhenReady(now)
	}
}

// replicated is the answer to ActionReplicate.
func (c *Core) replicated(now Instant, ev *Appended) {
	if c.role != RoleFollower {
		return
	}
	if ev.Err != nil {
		// A batch that does not fit or whose CRC is bad never enters the log (I19); the leader may send a good one next
		// time.
		c.fetchLater(now)
		return
	}
	// R6: the epoch comes from the log, so an empty response changes nothing.
	c.end, c.lastEpoch = ev.NextOffset, ev.LastEpoch
	c.following.failures = 0
	c.followMarks()
	c.fetchWhenReady(now)
}

// followMarks takes over the leader's high watermark and log start, never above the own end (R8).
func (c *Core) followMarks() {
	c.setHighWatermark(min(c.following.leaderHighWatermark, c.end))
	if start := min(c.following.leaderStart, c.highWatermark); start > c.start {
		c.act(Action{Kind: ActionTrim, Offset: start})
	}
}

// diverged cuts what the leader does not have (R1-R3): back to where the leader's largest common epoch ends, in the
// leader's log or in this one, whichever is first. The next fetch says whether the logs agree there.
func (c *Core) diverged(now Instant, ev *FetchResponse) {
	to := min(ev.DivergingEnd, c.end)
	if ev.LocalEpoch >= 0 {
		to = min(to, ev.LocalEnd)
	} else {
		to = min(to, c.start) // this log has nothing of that epoch or an earlier one
	}
	if to >= c.end {
		c.fetchLater(now) // nothing to cut: such an answer must not make a loop (R5)
		return
	}
	if to < c.start {
		// Only after an unclean election. Nothing here can be told to match, and a log may begin only where the
		// leader's does: its start is at most its high watermark.
		c.cut(Action{Kind: ActionReset, Offset: ev.LogStartOffset})
		return
	}
	c.cut(Action{Kind: ActionTruncate, Offset: to})
}

func (c *Core) outOfRange(now Instant, ev *FetchResponse) {
	switch {
	case ev.LogStartOffset >= c.start && ev.LogStartOffset < c.end:
		// The leader holds no epoch as old as our last one, so nothing that we hold above its start is in its log.
		c.cut(Action{Kind: ActionTruncate, Offset: ev.LogStartOffset})
	case c.start == c.end && ev.LogStartOffset <= c.end && c.end <= ev.LogEndOffset:
		c.fetchLater(now) // we hold nothing that could be wrong: the bounds have moved since
	default:
		// The leader has deleted by policy what would come next, and what ours could be compared with. Or, after an unclean
		// election only, its log begins below ours or ends before it.
		c.cut(Action{Kind: ActionReset, Offset: ev.LogStartOffset})
	}
}

// cut asks for a truncation, unless committed records would go (R25).
func (c *Core) cut(a Action) {
	if a.Offset < c.highWatermark && c.uncleanEpoch <= c.highWatermarkEpoch {
		c.act(Action{Kind: ActionHalt, Offset: a.Offset, Err: ErrTruncationBelowHighWatermark})
		c.halt(ErrTruncationBelowHighWatermark)
		return
	}
	if a.Offset < c.highWatermark {
		// Before the cut, and in the checkpoint too: else a crash brings the old high watermark back for other records.
		c.highWatermark, c.highWatermarkEpoch = a.Offset, c.leaderEpoch
		c.act(Action{Kind: ActionSetHW, Offset: a.Offset})
	}
	c.following.cutting = true
	c.generation++ // W7: flushes under way speak of another log
	c.act(a)
}

func (c *Core) truncated(now Instant, ev *Truncated) {
	if ev.Err != nil {
		c.act(Action{Kind: ActionHalt, Err: ev.Err})
		c.halt(ev.Err)
		return
	}
	c.following.cutting = false
	c.start, c.end, c.durable, c.lastEpoch = ev.StartOffset, ev.EndOffset, ev.EndOffset, ev.LastEpoch
	c.setHighWatermark(max(c.highWatermark, c.start)) // a log that was started anew begins above it
	c.act(Action{Kind: ActionRole})
	c.fetchWhenReady(now)
}
