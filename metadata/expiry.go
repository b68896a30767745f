package metadata

import (
	"errors"
	"slices"
	"strconv"
	"time"
)

const (
	// expiryGroupsPerCommand and expiryOffsetsPerCommand bound one command of expiry, so that Apply is not held up. What is
	// left is taken in the next.
	expiryGroupsPerCommand  = 1000
	expiryOffsetsPerCommand = maxExpiredOffsets
	// clockJump is how far the wall clock may move against the time that passed before nothing is expired for expiryPause:
	// somebody may be about to set it right again (L15, G11).
	clockJump   = 10 * time.Minute
	expiryPause = time.Hour
	// expiryPoll is how often the clock is looked at, and whether the interval is over.
	expiryPoll = 10 * time.Second
	// expiryParts is that of the Pacer of the search for what is too old.
	expiryParts = 4
)

// expirySettings are the settings of Kafka's names.
type expirySettings struct {
	retention time.Duration // offsets.retention.minutes
	interval  time.Duration // offsets.retention.check.interval.ms
}

func newExpirySettings(effective map[string]string) expirySettings {
	c := expirySettings{retention: 7 * 24 * time.Hour, interval: 10 * time.Minute}
	if n, err := strconv.ParseInt(effective["offsets.retention.minutes"], 10, 32); err == nil && n > 0 {
		c.retention = time.Duration(n) * time.Minute
	}
	if n, err := strconv.ParseInt(effective["offsets.retention.check.interval.ms"], 10, 64); err == nil && n > 0 && n <= int64(24*time.Hour/time.Millisecond) {
		c.interval = time.Duration(n) * time.Millisecond
	}
	return c
}

// expire drops, at every interval, what is too old of the groups that this broker coordinates, until the Store is closed.
// Nothing is expired at the start: what is loaded may be old for no other reason than that nobody was there (G11).
func (s *Store) expire() {
	start := time.Now()
	clock := NewExpiryClock(start, 0)
	last := start
	for {
		// The interval may be changed meanwhile.
		interval := newExpirySettings(s.effectiveConfig(s.Image())).interval
		wait := time.NewTimer(min(interval, expiryPoll))
		select {
		case <-wait.C:
		case <-s.stop:
			wait.Stop()
			return
		}
		now := time.Now()
		trusted := clock.Trusted(now, now.Sub(start))
		if now.Sub(last) < interval {
			continue
		}
		last = now
		if trusted {
			s.expireOnce(now)
		} else {
			s.logger.Warn("wall clock jumped; no committed offsets expire for a while", "now", now.UTC(), "for", expiryPause)
		}
	}
}

// SettledGroups has settled asked whether a classic group is in no rebalance, as its coordinator knows and the metadata does
// not: offsets that none of its members reads stay while it is in one. It may be called from any goroutine, and must not wait.
func (s *Store) SettledGroups(settled func(group string) bool) { s.settledGroups.Store(&settled) }

func (s *Store) settled() func(group string) bool {
	if settled := s.settledGroups.Load(); settled != nil {
		return *settled
	}
	return nil
}

// expireOnce drops what is too old at now, in as many commands as it takes.
func (s *Store) expireOnce(now time.Time) {
	for !s.over() {
		im := s.Image()
		if im.FeatureLevel() < GroupsFeatureLevel {
			return
		}
		id, epoch := s.self()
		if b := im.Broker(id); b == nil || b.Epoch != epoch {
			return // another process is this broker now: whatever this one proposes is without effect, for ever
		}
		// It looks at every offset there is of its groups, and nobody waits for it.
		commands := im.pacedExpirations(NewPacer(expiryParts, s.stop), id, now.UnixMilli(), newExpirySettings(s.effectiveConfig(im)).retention.Milliseconds(), s.settled())
		if len(commands) == 0 {
			return
		}
		// One at a time: they are not urgent, and commits wait in the same queue.
		c := commands[0]
		c.epoch = epoch
		out, err := s.proposeExpiry(c)
		if err != nil {
			s.logger.Warn("old committed offsets not dropped yet", "error", err)
			return
		}
		if out.Offsets == 0 && out.Groups == 0 && len(c.deleted) == 0 {
			return // all of it has changed meanwhile, or moved away
		}
		s.logger.Info("old committed offsets dropped", "groups looked at", len(c.groups), "offsets", out.Offsets, "groups deleted", out.Groups)
	}
}

func (s *Store) proposeExpiry(c *expireOffsets) (expired, error) {
	body, err := encodeBody(nil, c)
	if err != nil {
		return expired{}, err
	}
	answers, err := s.outbox.call(time.Now().Add(outboxTimeout), []groupProposal{{c.kind(), body}})
	if err != nil {
		return expired{}, err
	}
	a := answers.Answers[0]
	if err := a.Err.err(); err != nil {
		return expired{}, err
	}
	if a.Expired == nil {
		return expired{}, errors.New("no outcome")
	}
	s.waitVersion(s.lifetime, answers.Version)
	return *a.Expired, nil
}

// expirations returns the commands that drop what is too old at now of the groups that a broker coordinates. The broker's
// epoch is left to the caller. settled, which may be nil, says no of groups whose members may be about to read something else.
func (im *Image) expirations(broker BrokerID, now, retention int64, settled func(group string) bool) []*expireOffsets {
	return im.pacedExpirations(nil, broker, now, retention, settled)
}

// pacedExpirations is expirations with a rest after every few groups.
func (im *Image) pacedExpirations(pacer *Pacer, broker BrokerID, now, retention int64, settled func(group string) bool) (out []*expireOffsets) {
	var c *expireOffsets
	offsets := 0
	command := func() *expireOffsets {
		if c == nil || len(c.groups)+len(c.deleted) >= expiryGroupsPerCommand || offsets >= expiryOffsetsPerCommand {
			c, offsets = &expireOffsets{broker: broker, now: now, retention: retention}, 0
			out = append(out, c)
		}
		return c
	}
	for g := range im.Groups() {
		pacer.Breathe()
		if id, _ := im.Coordinator(GroupCoordinator, g.Name); id != broker {
			continue
		}
		read := im.readBy(g, settled)
		gone := len(im.st.expiredOffsets(g, now, retention, read.unread))
		if gone == 0 && (im.st.hasOffsets(g.Name) || len(g.Members) > 0 || !g.expires(now, retention)) {
			continue
		}
		c := command()
		c.groups = append(c.groups, g.Name)
		c.revisions = append(c.revisions, g.Revision)
		if len(read.topics) > 0 {
			slices.SortFunc(read.topics, compareTopicIDs)
			c.unread = append(c.unread, unreadTopics{len(c.groups) - 1, read.topics})
		}
		offsets += gone
	}
	for name, last := range im.st.lastGenerations.all() {
		if id, _ := im.Coordinator(GroupCoordinator, name); id == broker && now-last.DeletedAt >= retention {
			c := command()
			c.deleted = append(c.deleted, name)
		}
	}
	return out
}

// groupReading finds out which topics the members of a group don't read.
type groupReading struct {
	im      *Image
	g       *Group
	settled func(group string) bool
	looked  bool
	reads   *Subscription // nil: nothing may go, because nobody can tell
	topics  []TopicID     // that unread said yes to
}

func (im *Image) readBy(g *Group, settled func(group string) bool) groupReading {
	return groupReading{im: im, g: g, settled: settled}
}

// unread says whether no member of the group reads a topic, as Apache Kafka does (KIP-211): in a classic group of consumers
// while it is stable, in a consumer group (KIP-848) at any time. It is asked once for each topic with an old offset.
func (r *groupReading) unread(t *Topic) bool {
	if !r.looked {
		r.looked = true
		g := r.g
		switch {
		case r.im.FeatureLevel() < TransactionsFeatureLevel:
		case g.Type == ClassicGroup && (g.State != GroupStable || g.Interrupted || r.settled != nil && !r.settled(g.Name)):
		default:
			if s, ok := g.Subscription(); ok {
				r.reads = s
			}
		}
	}
	if r.reads == nil || r.reads.Has(t.Name) {
		return false
	}
	r.topics = append(r.topics, t.ID)
	return true
}

// ExpiryClock compares the wall clock with the time that passed, for whoever forgets what is old: a clock that jumped makes all
// there is look old, and somebody may be about to set it right again (L15, G11). It is not safe for use by several goroutines.
type ExpiryClock struct {
	wall    time.Time     // when it was last asked
	elapsed time.Duration // of the monotonic clock, at the same moment
	until   time.Duration // monotonic: not trusted before
}

// NewExpiryClock returns one that takes a wall clock for right at a moment of the monotonic clock, whatever that counts from.
func NewExpiryClock(wall time.Time, elapsed time.Duration) *ExpiryClock {
	return &ExpiryClock{wall: wall, elapsed: elapsed}
}

// Trusted reports whether the wall clock has gone as it should since it was last asked, and for an hour before that.
func (c *ExpiryClock) Trusted(wall time.Time, elapsed time.Duration) bool {
	moved := wall.Round(0).Sub(c.wall.Round(0)) - (elapsed - c.elapsed) // Round(0) drops the monotonic part
	c.wall, c.elapsed = wall, elapsed
	if moved > clockJump || moved < -clockJump {
		c.until = elapsed + expiryPause
	}
	return elapsed >= c.until
}
