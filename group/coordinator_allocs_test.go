//go:build !race

package group

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A heartbeat allocates nothing: three thousand members that beat their hearts are all that a coordinator at rest has to do, and
// the heap grows by what that takes.
func TestHeartbeatAllocations(t *testing.T) {
	x := newIdeal(t, 1)
	c := x.coordinators(t, 1, nil)[0]
	beat := settledMember(t, c, "g")
	n := testing.AllocsPerRun(1000, func() {
		if err := c.Heartbeat(beat); err != nil {
			t.Fatal(err)
		}
	})
	require.Zero(t, n)
}

// The same of a member of the consumer protocol that has nothing to say.
func TestConsumerPulseAllocations(t *testing.T) {
	x := newIdeal(t, 1)
	c := x.coordinators(t, 1, nil)[0]
	joined := make(chan ConsumerHeartbeatResult, 1)
	c.ConsumerHeartbeat(ConsumerHeartbeatRequest{
		Group: "g", Member: "m", ClientID: "c", ClientHost: "/127.0.0.1", RebalanceTimeout: time.Minute, HasTopics: true, Topics: []string{"t"}, HasOwned: true,
	}, func(r ConsumerHeartbeatResult) { joined <- r })
	first := <-joined
	require.NoError(t, first.Err)
	beat := ConsumerHeartbeatRequest{Group: "g", Member: "m", ClientID: "c", ClientHost: "/127.0.0.1", RebalanceTimeout: -1, Epoch: first.Epoch}
	n := testing.AllocsPerRun(1000, func() {
		if r, answered := c.ConsumerPulse(beat); !answered || r.Epoch != first.Epoch || r.Member != "m" {
			t.Fatal(r, answered)
		}
	})
	require.Zero(t, n)
}
