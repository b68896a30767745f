package kafka

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// testTargets are n partitions of one topic.
func testTargets(n int) []fetchTarget {
	targets := make([]fetchTarget, n)
	for i := range targets {
		targets[i] = fetchTarget{topic: fetchTopic{name: "t"}, partition: int32(i)}
	}
	return targets
}

// testClock is a clock that tests move.
type testClock struct{ at time.Time }

func (c *testClock) now() time.Time          { return c.at }
func (c *testClock) advance(d time.Duration) { c.at = c.at.Add(d) }

func newTestClock() *testClock { return &testClock{at: time.Unix(1_000_000, 0)} }

// KIP-227: the epoch after the largest is 1, as 0 and -1 mean something else.
func TestNextSessionEpoch(t *testing.T) {
	require.EqualValues(t, 1, nextSessionEpoch(0))
	require.EqualValues(t, 2, nextSessionEpoch(1))
	require.EqualValues(t, 1, nextSessionEpoch(1<<31-1))
	require.EqualValues(t, -1, nextSessionEpoch(-1))
}

// A full cache refuses a new session, unless an old one was not used for long, or
// one that is old enough is no larger.
func TestSessionEviction(t *testing.T) {
	clock := newTestClock()
	c := newSessionCache(2, 1000, clock.now)
	a, b := c.create(testTargets(5), false), c.create(testTargets(3), false)
	require.NotNil(t, a)
	require.NotNil(t, b)
	require.NotEqual(t, a.id, b.id)
	require.Nil(t, c.create(testTargets(100), false), "both are young")

	clock.advance(sessionEvictionAge + 1)
	require.NotNil(t, c.get(a.id))
	require.NotNil(t, c.get(b.id))
	require.Nil(t, c.create(testTargets(2), false), "both are larger and in use")
	d := c.create(testTargets(4), false)
	require.NotNil(t, d, "b is smaller and old")
	require.Nil(t, c.get(b.id))
	require.NotNil(t, c.get(a.id))

	clock.advance(sessionEvictionAge + 1)
	require.NotNil(t, c.get(d.id))
	require.NotNil(t, c.create(testTargets(1), false), "a was not used for long, whatever its size")
	require.Nil(t, c.get(a.id))
	sessions, partitions := c.count()
	require.Equal(t, [2]int{2, 5}, [2]int{sessions, partitions})
}

// I23: what all sessions remember together is bounded, and so is each name.
func TestSessionMemoryIsBounded(t *testing.T) {
	clock := newTestClock()
	c := newSessionCache(1000, 10, clock.now)
	a := c.create(testTargets(6), false)
	require.NotNil(t, a)
	require.Nil(t, c.create(testTargets(5), false))
	require.True(t, c.grow(a, 10))
	require.False(t, c.grow(a, 11), "a session that outgrew the bound is closed")
	require.Nil(t, c.get(a.id))
	sessions, partitions := c.count()
	require.Equal(t, [2]int{0, 0}, [2]int{sessions, partitions})

	long := testTargets(1)
	long[0].topic.name = fmt.Sprintf("%0250d", 0)
	require.Nil(t, c.create(long, false))
	require.Nil(t, c.create(nil, false))
}

// A session names each partition once, keeps its place when it is named again and
// moves it to the end when it was served.
func TestSessionOrder(t *testing.T) {
	c := newSessionCache(10, 100, newTestClock().now)
	targets := append(testTargets(3), testTargets(2)...)
	targets[4].fetchOffset = 42
	s := c.create(targets, false)
	s.mu.Lock()
	defer s.mu.Unlock()
	order := func() (ids []int32) {
		for _, t := range s.orderLocked(nil) {
			ids = append(ids, t.partition)
		}
		return ids
	}
	require.Equal(t, []int32{0, 1, 2}, order())
	require.EqualValues(t, 42, s.orderLocked(nil)[1].fetchOffset)
	s.servedLocked(s.mu.root.next)
	require.Equal(t, []int32{1, 2, 0}, order())
	s.forgetLocked(targetKey{fetchTopic{name: "t"}, 2})
	s.forgetLocked(targetKey{fetchTopic{name: "gone"}, 0})
	require.Equal(t, []int32{1, 0}, order())
	more := fetchTarget{topic: fetchTopic{name: "u"}, partition: 7}
	s.addLocked(&more)
	require.Equal(t, []int32{1, 0, 7}, order())
	require.Len(t, s.mu.targets, 3)
}
