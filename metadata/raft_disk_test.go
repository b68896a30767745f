package metadata

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hangingDisk is a disk that can be told not to come back with writes.
type hangingDisk struct {
	mu   sync.Mutex
	back chan struct{} // nil = it does
}

func (d *hangingDisk) hold() {
	d.mu.Lock()
	back := d.back
	d.mu.Unlock()
	if back != nil {
		<-back
	}
}

func (d *hangingDisk) hang() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.back = make(chan struct{})
}

func (d *hangingDisk) thaw() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.back != nil {
		close(d.back)
		d.back = nil
	}
}

// inWorldOfHangingDisks runs a test with a quorum of so many voters, whose disks may hang.
func inWorldOfHangingDisks(t *testing.T, size int, test func(*testing.T, *quorumWorld, map[BrokerID]*hangingDisk)) {
	inQuorumWorld(t, size, func(t *testing.T, w *quorumWorld) {
		disks := map[BrokerID]*hangingDisk{}
		w.edit = func(c *Config) {
			d := &hangingDisk{}
			c.holdWrites = d.hold
			disks[c.NodeID] = d
		}
		t.Cleanup(func() {
			for _, d := range disks {
				d.thaw()
			}
		})
		var all []BrokerID
		for id := BrokerID(1); id <= BrokerID(size); id++ {
			w.join(id)
			all = append(all, id)
		}
		w.voting(all...)
		test(t, w, disks)
	})
}

// I20: a leader whose disk hangs is led by another one within seconds, which commits what is asked of any broker but the one that
// hangs; that one is fenced, says why, and comes back when its disk does.
func TestLeaderWhoseDiskHangs(t *testing.T) {
	inWorldOfHangingDisks(t, 3, func(t *testing.T, w *quorumWorld, disks map[BrokerID]*hangingDisk) {
		old := w.controller()
		id := old.cfg.NodeID
		disks[id].hang()
		began := time.Now()
		w.other(old).create("lost", time.Second) // a write that does not come back
		next := w.controller(old)
		require.Less(t, time.Since(began), diskHangsAfter+3*time.Second)
		require.False(t, old.IsController())
		for _, n := range w.nodes() {
			if n != old {
				_, err := n.create("during-"+n.cfg.NodeID.String(), 10*time.Second)
				require.NoError(t, err)
			}
		}
		require.Greater(t, old.DiskHang(), diskHangsAfter)
		took, err := old.create("there", 20*time.Second)
		require.ErrorContains(t, err, "has not come back with a write")
		require.Less(t, took, 10*time.Second, "it says so at once")
		w.await("the broker is fenced", func() bool { return next.Image().Broker(id).Fenced })
		w.await("the controller knows why", func() bool {
			for _, m := range next.Quorum().Voters {
				if m.ID == id {
					return m.DiskHang > 0 && !m.Healthy
				}
			}
			return false
		})

		disks[id].thaw()
		w.await("it is back", func() bool {
			return !next.Image().Broker(id).Fenced && old.Image().Topic("during-"+next.cfg.NodeID.String()) != nil
		})
		require.Zero(t, old.DiskHang())
		_, err = old.create("after", 10*time.Second)
		require.NoError(t, err)
	})
}

// A follower whose disk hangs holds up nobody else, and its broker is fenced: it sees nothing of what is committed.
func TestFollowerWhoseDiskHangs(t *testing.T) {
	inWorldOfHangingDisks(t, 3, func(t *testing.T, w *quorumWorld, disks map[BrokerID]*hangingDisk) {
		lead := w.controller()
		follower := w.other(lead)
		id := follower.cfg.NodeID
		disks[id].hang()
		for _, name := range []string{"a", "b", "c"} {
			took, err := lead.create(name, 10*time.Second)
			require.NoError(t, err)
			require.Less(t, took, time.Second)
		}
		w.await("the broker is fenced", func() bool { return lead.Image().Broker(id).Fenced })
		require.True(t, lead.IsController())
		disks[id].thaw()
		w.await("it is back", func() bool { return !lead.Image().Broker(id).Fenced && follower.Image().Topic("c") != nil })
	})
}

// While the disks of a majority hang nobody leads, and everybody is told so within seconds; when they come back all goes on.
func TestMajorityWhoseDisksHang(t *testing.T) {
	inWorldOfHangingDisks(t, 3, func(t *testing.T, w *quorumWorld, disks map[BrokerID]*hangingDisk) {
		lead := w.controller()
		follower := w.other(lead)
		disks[lead.cfg.NodeID].hang()
		disks[follower.cfg.NodeID].hang()
		_, err := follower.create("a", diskHangsAfter+2*time.Second)
		require.Error(t, err)
		w.pass(20 * time.Second)
		for _, n := range w.nodes() {
			require.False(t, n.IsController())
			took, err := n.create("b", 30*time.Second)
			require.Error(t, err)
			require.Less(t, took, 10*time.Second)
		}
		disks[lead.cfg.NodeID].thaw()
		disks[follower.cfg.NodeID].thaw()
		w.controller()
		for _, n := range w.nodes() {
			_, err := n.create("c-"+n.cfg.NodeID.String(), 30*time.Second)
			require.NoError(t, err)
		}
	})
}

// Where nobody can take the lead over, the leader has it again when its disk is back: Raft does not notice that it was away.
func TestLoneBrokerWhoseDiskHangs(t *testing.T) {
	inWorldOfHangingDisks(t, 1, func(t *testing.T, w *quorumWorld, disks map[BrokerID]*hangingDisk) {
		lead := w.controller()
		disks[1].hang()
		_, err := lead.create("a", 5*time.Second)
		require.Error(t, err)
		w.pass(time.Minute)
		require.False(t, lead.IsController())
		disks[1].thaw()
		w.controller()
		_, err = lead.create("b", 10*time.Second)
		require.NoError(t, err)
		require.NotNil(t, lead.Image().Topic("a"), "what was proposed is made")
	})
}

// A disk that comes back before anybody has missed it costs nothing, and one that is slow but comes back is no reason to let go.
func TestSlowDiskKeepsTheLead(t *testing.T) {
	inWorldOfHangingDisks(t, 3, func(t *testing.T, w *quorumWorld, disks map[BrokerID]*hangingDisk) {
		lead := w.controller()
		for _, name := range []string{"a", "b", "c"} {
			disks[lead.cfg.NodeID].hang()
			time.AfterFunc(diskHangsAfter-time.Millisecond, disks[lead.cfg.NodeID].thaw)
			_, err := w.other(lead).create(name, 10*time.Second)
			require.NoError(t, err)
			require.True(t, lead.IsController())
		}
	})
}
