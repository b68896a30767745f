package metadata

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// I23: changes that are held behind commits count in the bound of what waits. While the controller is away commits
// wait for seconds, and clients must not fill the memory with changes meanwhile.
func TestHeldChangesAreBounded(t *testing.T) {
	o := newOutbox(&Store{})
	commits, changes := &o.offsets[0], &o.changes[0]
	committed := 0
	o.order.commit(commits, "billing", &outboxItem{body: make([]byte, 10), done: func(_ uint64, _ []error, err error) {
		require.NoError(t, err)
		committed++
	}}, changes)

	const bytes = 1 << 20
	var refused []error
	change := func() {
		o.order.change(changes, "billing", &outboxItem{body: make([]byte, bytes), done: func(_ uint64, _ []error, err error) { refused = append(refused, err) }})
	}
	for range 3 * outboxBytes / bytes {
		change()
	}
	require.Empty(t, changes.waiting, "they are held")
	held := len(o.order.groups["billing"].held)
	require.Equal(t, outboxBytes/bytes+1, held)
	require.Len(t, refused, 3*outboxBytes/bytes-held)
	for _, err := range refused {
		require.ErrorIs(t, err, ErrBusy)
	}

	// Once the commit is answered they are queued, all of them, and count once.
	commits.take(1, batchBytes)[0].done(1, nil, nil)
	require.Equal(t, 1, committed)
	require.Len(t, changes.waiting, held)
	require.Len(t, changes.take(held, held*bytes), held)
	require.Zero(t, changes.bytes)
	require.Empty(t, o.order.groups)
	change()
	require.Len(t, changes.waiting, 1)

	// A held change is answered also when the lane ends before it.
	o.order.commit(commits, "billing", &outboxItem{done: func(uint64, []error, error) {}}, changes)
	change()
	changes.closed = true
	refused = nil
	commits.take(1, batchBytes)[0].done(1, nil, nil)
	require.Len(t, refused, 1)
	require.ErrorIs(t, refused[0], ErrClosed)
	require.Empty(t, o.order.groups)
}
