//go:build !race

package group

import (
	"testing"

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
