package group

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// settledMember is a member in the first generation of a group on its own.
func settledMember(t testing.TB, c *Coordinator, group string) HeartbeatRequest {
	r := join(c, group, "")
	if r.Err != nil {
		r = join(c, group, r.Member)
	}
	require.NoError(t, r.Err)
	done := make(chan SyncResult, 1)
	c.Sync(SyncRequest{Group: group, Member: r.Member, Generation: r.Generation, Assignments: []Assignment{{Member: r.Member}}}, func(s SyncResult) { done <- s })
	require.NoError(t, (<-done).Err)
	return HeartbeatRequest{Group: group, Member: r.Member, Generation: r.Generation}
}

// The strings of a heartbeat are its caller's, also of one that speaks of nothing that is there.
func TestHeartbeatKeepsNothing(t *testing.T) {
	x := newIdeal(t, 1)
	c := x.coordinators(t, 1, nil)[0]
	beat := settledMember(t, c, "g")
	for _, r := range []HeartbeatRequest{beat, {Group: "none", Member: beat.Member, Generation: 1}, {Group: "g", Member: "none", Generation: 1}} {
		memory := []byte(r.Group + r.Member)
		borrowed := r
		borrowed.Group = unsafe.String(&memory[0], len(r.Group))
		borrowed.Member = unsafe.String(&memory[len(r.Group)], len(r.Member))
		want := c.Heartbeat(r)
		require.Equal(t, want, c.Heartbeat(borrowed))
		for i := range memory {
			memory[i] = 'x'
		}
		require.Equal(t, want, c.Heartbeat(r))
		c.each(func(e *entry) { require.Equal(t, "g", e.name) })
	}
}
