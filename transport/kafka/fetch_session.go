package kafka

import (
	"math/rand/v2"
	"sync"
	"time"
)

// A fetch session (KIP-227) remembers the partitions a consumer reads, so that
// the next fetch names only what changed and the answer holds only what is
// new. Sessions are an optimisation the broker may refuse at any time: an
// answer with session id 0 says "send the whole list again".

const (
	// sessionPartitions bounds the partitions that all sessions together
	// remember (I23): Kafka bounds only the number of sessions, which lets
	// 1000 requests of a hundred thousand partitions each stay in memory.
	sessionPartitions = 200_000

	// sessionEvictionAge is how long a session is safe: after that without
	// use it goes first, and that long after its creation a larger one may
	// take its slot (min.incremental.fetch.session.eviction.ms).
	sessionEvictionAge = 2 * time.Minute

	// maxTopicName is the length above which no topic can exist. A session
	// does not remember such names.
	maxTopicName = 249
)

const (
	noSession    int32 = 0
	initialEpoch int32 = 0
	finalEpoch   int32 = -1
)

// nextSessionEpoch follows epoch: 1 comes after the largest, since 0 and -1
// have a meaning of their own.
func nextSessionEpoch(epoch int32) int32 {
	if epoch < 0 {
		return finalEpoch
	}
	if epoch == 1<<31-1 {
		return 1
	}
	return epoch + 1
}

// fetchTarget is one partition a consumer wants to read, and what it was last
// told about it.
type fetchTarget struct {
	topic              fetchTopic
	partition          int32
	fetchOffset        int64
	currentLeaderEpoch int32 // -1: do not check
	lastFetchedEpoch   int32 // -1: do not check
	maxBytes           int32

	// sentHighWatermark and sentLogStartOffset are what the last answer said.
	// An incremental answer leaves the partition out while they hold and
	// there are no records. -1 forces it into the next answer: after an
	// error, and for a partition the session has not answered yet.
	sentHighWatermark  int64
	sentLogStartOffset int64

	prev, next *fetchTarget // the session's order; nil outside a session
}

// targetKey finds a partition in a session: by name in a session of names, by
// id in one of ids.
type targetKey struct {
	topic     fetchTopic
	partition int32
}

func (t *fetchTarget) key() targetKey { return targetKey{t.topic, t.partition} }

// wants takes over a request's position for the partition.
func (t *fetchTarget) wants(from *fetchTarget) {
	t.fetchOffset, t.currentLeaderEpoch = from.fetchOffset, from.currentLeaderEpoch
	t.lastFetchedEpoch, t.maxBytes = from.lastFetchedEpoch, from.maxBytes
}

// fetchSession is the broker's half of one session.
type fetchSession struct {
	id      int32
	byID    bool // of topic ids (v13+) rather than names; fixed for life
	created time.Time

	mu struct {
		sync.Mutex

		// epoch is what the next request must carry. An answer that is ready
		// only after a later request moved it is answered with 71.
		epoch int32

		// root is the ring of partitions in the order of service: those that
		// were served records move to the end, so that one hot partition
		// can't starve the others of its session.
		root    fetchTarget
		targets map[targetKey]*fetchTarget
	}

	// guarded by the cache's lock
	size     int // partitions, as last counted
	lastUsed time.Time
}

func newFetchSession(id int32, byID bool, now time.Time) *fetchSession {
	s := &fetchSession{id: id, byID: byID, created: now, lastUsed: now}
	s.mu.root.prev, s.mu.root.next = &s.mu.root, &s.mu.root
	s.mu.targets = map[targetKey]*fetchTarget{}
	return s
}

func (s *fetchSession) pushLocked(t *fetchTarget) {
	root := &s.mu.root
	t.prev, t.next = root.prev, root
	root.prev.next, root.prev = t, t
}

func (t *fetchTarget) unlink() {
	t.prev.next, t.next.prev = t.next, t.prev
	t.prev, t.next = nil, nil
}

// addLocked puts a partition at the end, or moves the position of one that is
// there and keeps its place.
func (s *fetchSession) addLocked(from *fetchTarget) {
	if old := s.mu.targets[from.key()]; old != nil {
		old.wants(from)
		return
	}
	t := *from
	s.mu.targets[t.key()] = &t
	s.pushLocked(&t)
}

// forgetLocked removes a partition; unknown ones are ignored.
func (s *fetchSession) forgetLocked(key targetKey) {
	if t := s.mu.targets[key]; t != nil {
		delete(s.mu.targets, key)
		t.unlink()
	}
}

// servedLocked moves a partition that was given records behind the others.
func (s *fetchSession) servedLocked(t *fetchTarget) {
	t.unlink()
	s.pushLocked(t)
}

// orderLocked appends the partitions in the order of service.
func (s *fetchSession) orderLocked(dst []*fetchTarget) []*fetchTarget {
	for t := s.mu.root.next; t != &s.mu.root; t = t.next {
		dst = append(dst, t)
	}
	return dst
}

// sessionCache owns the sessions of one broker.
type sessionCache struct {
	slots      int
	partitions int
	now        func() time.Time

	mu struct {
		sync.Mutex
		byID map[int32]*fetchSession
		used int // partitions of all sessions
	}
}

func newSessionCache(slots, partitions int, now func() time.Time) *sessionCache {
	c := &sessionCache{slots: slots, partitions: partitions, now: now}
	c.mu.byID = map[int32]*fetchSession{}
	return c
}

// get finds a session and marks it used.
func (c *sessionCache) get(id int32) *fetchSession {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.mu.byID[id]
	if s != nil {
		s.lastUsed = c.now()
	}
	return s
}

// remove closes a session; unknown ids are ignored.
func (c *sessionCache) remove(id int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.mu.byID[id]; s != nil {
		c.removeLocked(s)
	}
}

func (c *sessionCache) removeLocked(s *fetchSession) {
	if c.mu.byID[s.id] == s {
		delete(c.mu.byID, s.id)
		c.mu.used -= s.size
	}
}

// grow counts the partitions of a session again after a request changed them.
// It reports false, and closes the session, if they no longer fit.
func (c *sessionCache) grow(s *fetchSession, size int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.byID[s.id] != s {
		return false
	}
	c.mu.used += size - s.size
	s.size = size
	if c.mu.used > c.partitions {
		c.removeLocked(s)
		return false
	}
	return true
}

// create makes a session for targets, or returns nil when there is no room:
// the answer then carries session id 0. A full cache gives up the session that
// was not used for longest, if that is longer than sessionEvictionAge; else the
// smallest among those created longer ago than that, if it is no larger than
// the new one, as a large session saves more than a small one.
func (c *sessionCache) create(targets []fetchTarget, byID bool) *fetchSession {
	if len(targets) == 0 {
		return nil
	}
	for i := range targets {
		if len(targets[i].topic.name) > maxTopicName {
			return nil
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if len(c.mu.byID) >= c.slots || c.mu.used+len(targets) > c.partitions {
		victim := c.victimLocked(now, len(targets))
		if victim == nil {
			return nil
		}
		c.removeLocked(victim)
		if c.mu.used+len(targets) > c.partitions {
			return nil
		}
	}
	id := noSession
	for id == noSession || c.mu.byID[id] != nil {
		id = rand.Int32N(1<<31-1) + 1
	}
	s := newFetchSession(id, byID, now)
	s.mu.epoch = nextSessionEpoch(initialEpoch)
	for i := range targets {
		s.addLocked(&targets[i]) // nobody else knows the session yet
	}
	s.size = len(s.mu.targets)
	c.mu.byID[id] = s
	c.mu.used += s.size
	return s
}

func (c *sessionCache) victimLocked(now time.Time, size int) *fetchSession {
	var oldest, smallest *fetchSession
	for _, s := range c.mu.byID {
		if oldest == nil || s.lastUsed.Before(oldest.lastUsed) {
			oldest = s
		}
		if now.Sub(s.created) > sessionEvictionAge && (smallest == nil || s.size < smallest.size) {
			smallest = s
		}
	}
	if oldest != nil && now.Sub(oldest.lastUsed) > sessionEvictionAge {
		return oldest
	}
	if smallest != nil && smallest.size <= size {
		return smallest
	}
	return nil
}

// count returns the number of sessions and of the partitions they remember.
func (c *sessionCache) count() (sessions, partitions int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.mu.byID), c.mu.used
}
