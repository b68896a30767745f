package metadata

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// G11: a coordinator drops what is too old by itself, at its interval and not at the start, however old it is then.
func TestOffsetsExpireByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig(t, t.TempDir())
		cfg.StaticConfig = map[string]string{"offsets.retention.minutes": "2", "offsets.retention.check.interval.ms": "30000"}
		s := openStore(t, cfg)
		register(t, s, 1, 1)
		id := createTopics(t, s, newTopic("orders", 2))[0].ID
		_, err := commit(t, s, OffsetCommit{Group: "simple", Generation: -1, Time: time.Now().UnixMilli(), Offsets: entriesFor(id, 1, 1)})
		require.NoError(t, err)
		_, err = changeGroup1(t, s, GroupChange{Group: "live", Type: ClassicGroup, Generation: 1, Upsert: []*GroupMember{{ID: "m"}}})
		require.NoError(t, err)
		_, err = commit(t, s, OffsetCommit{Group: "live", Member: "m", Generation: 1, Time: 1, Offsets: entriesFor(id, 2, 1)})
		require.NoError(t, err)
		require.NoError(t, s.Close())

		time.Sleep(8 * 24 * time.Hour) // fake time: everything was off
		s = openStore(t, cfg)
		register(t, s, 1, 2)
		require.Equal(t, 3, s.Image().OffsetCount(), "never at load")
		time.Sleep(20 * time.Second)
		require.Equal(t, 3, s.Image().OffsetCount())
		time.Sleep(20 * time.Second)
		synctest.Wait()
		require.Nil(t, s.Image().Group("simple"))
		require.Len(t, entriesOfSeq(s.Offsets("live")), 2, "it has a member")
	})
}

// offsets.retention.* count while the brokers run: the next look at the offsets goes by what is set then.
func TestOffsetRetentionIsDynamic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, testConfig(t, t.TempDir()))
		register(t, s, 1, 1)
		id := createTopics(t, s, newTopic("orders", 1))[0].ID
		_, err := commit(t, s, OffsetCommit{Group: "simple", Generation: -1, Time: time.Now().UnixMilli(), Offsets: entriesFor(id, 1, 1)})
		require.NoError(t, err)
		time.Sleep(30 * time.Minute)
		require.NotNil(t, s.Image().Group("simple"), "a week by default")
		set := func(resource Resource, key, value string) {
			require.NoError(t, s.AlterConfigs(testContext(t), []ConfigChange{{resource, []ConfigOp{{key, ConfigSet, &value}}}}, false, false)[0])
		}
		set(Resource{BrokerResource, ""}, "offsets.retention.minutes", "20")
		set(Resource{BrokerResource, "1"}, "offsets.retention.check.interval.ms", "1000")
		time.Sleep(30 * time.Second)
		synctest.Wait()
		require.Nil(t, s.Image().Group("simple"))
	})
}

// L15, G11: a wall clock that jumps has nothing expire until it had time to be set right.
func TestExpiryClock(t *testing.T) {
	wall, elapsed := time.Unix(1_800_000_000, 0), time.Duration(0)
	c := *NewExpiryClock(wall, 0)
	pass := func(of, monotonic time.Duration) bool {
		wall, elapsed = wall.Add(of), elapsed+monotonic
		return c.Trusted(wall, elapsed)
	}
	require.True(t, pass(10*time.Second, 10*time.Second))
	require.True(t, pass(time.Minute, 10*time.Second), "NTP may pull at it")
	require.False(t, pass(8*24*time.Hour, 10*time.Second))
	require.False(t, pass(30*time.Minute, 30*time.Minute))
	require.True(t, pass(31*time.Minute, 31*time.Minute))
	require.False(t, pass(-time.Hour, time.Second), "back is a jump too")
	require.False(t, pass(expiryPause-time.Second, expiryPause-time.Second))
	require.True(t, pass(time.Second, time.Second))
}

// A process that another one has taken the place of does not propose the same expiry again and again: it has no effect.
func TestReplacedProcessExpiresNothing(t *testing.T) {
	s := openStore(t, testConfig(t, t.TempDir()))
	epoch := register(t, s, 1, 1)
	_, err := changeGroup1(t, s, GroupChange{Group: "billing", Type: ClassicGroup, Generation: 1})
	require.NoError(t, err)
	require.NoError(t, deleteGroup(t, s, "billing"))
	later := time.Now().Add(365 * 24 * time.Hour)
	require.Equal(t, int32(1), s.Image().LastGeneration("billing"))
	s.registered.Store(epoch + 1)
	done := make(chan struct{})
	go func() { s.expireOnce(later); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		require.FailNow(t, "it goes on")
	}
	require.Equal(t, int32(1), s.Image().LastGeneration("billing"))
	s.registered.Store(epoch)
	s.expireOnce(later)
	require.Zero(t, s.Image().LastGeneration("billing"))
}
