package kafka

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/group"
)

// A history counts a generation once however many members were told of it, forgets
// what is older than ten minutes, and is bounded in every direction.
func TestGroupHistory(t *testing.T) {
	h := &Handlers{}
	now := time.Now()
	for generation := range int32(3) {
		for range 5 {
			h.history.joined("billing", generation, now)
		}
	}
	h.history.joined("billing", 3, now.Add(-historySpan-time.Minute))
	leave := group.LeaveRequest{Group: "billing", Members: []group.LeavingMember{{Member: "m1", Reason: "tired"}, {Instance: "i2"}, {Member: "m3"}}}
	h.history.leaving(leave, "admin", []error{nil, nil, group.ErrUnknownMember}, now)
	generations, left := h.GroupHistory("billing")
	require.Equal(t, 3, generations)
	require.Len(t, left, 2, "one was no member")
	require.Equal(t, [3]string{"i2", "admin", ""}, [3]string{left[0].Member, left[0].ClientID, left[0].Reason})
	require.Equal(t, "tired", left[1].Reason)
	generations, left = h.GroupHistory("nowhere")
	require.Zero(t, generations)
	require.Empty(t, left)

	for i := range 3 * historyGenerations {
		h.history.joined("busy", int32(i), now)
		h.history.leaving(group.LeaveRequest{Group: "busy", Members: []group.LeavingMember{{Member: "m"}}}, "c", []error{nil}, now)
	}
	require.Len(t, h.history.groups["busy"].began, historyGenerations)
	require.Len(t, h.history.groups["busy"].left, historyDepartures)
	for i := range historyGroups + 10 {
		h.history.joined(fmt.Sprint("g", i), 1, now.Add(time.Duration(i)*time.Second))
	}
	require.Len(t, h.history.groups, historyGroups)
	require.Contains(t, h.history.groups, fmt.Sprint("g", historyGroups+9))
	require.NotContains(t, h.history.groups, "billing", "the quiet ones go first")
}
