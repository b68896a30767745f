package group

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

// holding is a store whose changes of groups wait until it is let go.
type holding struct {
	idealStore
	held chan struct{} // nil: they don't wait
}

func (h *holding) ChangeGroup(change metadata.GroupChange, done func(uint64, error)) {
	if h.held == nil {
		h.idealStore.ChangeGroup(change, done)
		return
	}
	held := h.held
	go func() {
		<-held
		h.idealStore.ChangeGroup(change, done)
	}()
}

// A member that was answered that it has left is in no description that is asked for afterwards, though its leave is still
// on its way to the quorum: LeaveGroup waits for nobody (trap 37), descriptions wait for it.
func TestDescriptionsWaitForLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newIdeal(t, 1)
		store := &holding{idealStore: idealStore{x, 0}}
		c, err := New(Config{
			Broker: 0, Incarnation: [16]byte{1, 1}, Store: store,
			Settings: func() Settings { s := DefaultSettings(); s.InitialRebalanceDelay = 0; return s },
		})
		require.NoError(t, err)
		go func() { _ = c.Run(context.Background()) }()
		defer func() { _ = c.Close() }()
		synctest.Wait()
		_, j := stable(t, x, []*Coordinator{c}, "g")
		c.Landed(t.Context(), "g") // nothing to wait for
		c.Landed(t.Context(), "no such group")

		store.held = make(chan struct{})
		left := make(chan error, 1)
		c.Leave(LeaveRequest{Group: "g", Members: []LeavingMember{{Member: j.Member}}}, func(_ []error, err error) { left <- err })
		require.NoError(t, <-left)
		ctx, cancel := context.WithCancel(t.Context())
		landed := make(chan string, 2)
		go func() { c.Landed(t.Context(), "g"); landed <- "both" }()
		go func() { c.Landed(ctx, "g"); landed <- "impatient" }()
		synctest.Wait()
		require.Empty(t, landed)
		cancel()
		require.Equal(t, "impatient", <-landed)
		close(store.held)
		require.Equal(t, "both", <-landed)
		d, err := c.Describe("g")
		require.NoError(t, err)
		require.Equal(t, StateEmpty, d.State)
		require.Empty(t, d.Members)
	})
}
