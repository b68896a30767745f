package peer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

func TestCall(t *testing.T) {
	a, b := start(t, identity("c", 1)), start(t, identity("c", 2))
	b.Handle("echo", func(_ context.Context, from From, body []byte) ([]byte, error) {
		assert.Equal(t, identity("c", 1), from.Identity)
		assert.Equal(t, a.Advertised(), from.Address)
		assert.Equal(t, "1.2.3", from.Version)
		return append([]byte("you said "), body...), nil
	})
	out, err := a.Call(deadline(t), b.Advertised(), "echo", []byte("hello"))
	require.NoError(t, err)
	require.Equal(t, "you said hello", string(out))
	out, err = a.Call(deadline(t), b.Advertised(), "echo", nil)
	require.NoError(t, err)
	require.Equal(t, "you said ", string(out))
	_, err = a.Call(deadline(t), b.Advertised(), "shout", nil)
	require.ErrorIs(t, err, metadata.ErrInvalidRequest)
	require.ErrorContains(t, err, `"shout" on broker 2`)
	require.EqualValues(t, 1, a.metrics.dials.Load(), "one connection for all")
}

// Errors keep what a person needs, and the sentinel that the code needs.
func TestCallErrors(t *testing.T) {
	a, b := start(t, identity("c", 1)), start(t, identity("c", 2))
	a.knows(b)
	_, err := a.Forward(deadline(t), 2, b.Advertised(), "CreateTopics", nil)
	require.ErrorIs(t, err, metadata.ErrNotController, "nobody serves yet")
	b.HandleForward(func(_ context.Context, method string, _ []byte) ([]byte, error) {
		switch method {
		case "lines":
			return nil, fmt.Errorf("wrapped: %w", &metadata.Error{Kind: metadata.ErrInvalidTopic, What: "w", Why: "y", Fix: "f"})
		case "sentinel":
			return nil, fmt.Errorf("topic t: %w", metadata.ErrUnknownTopic)
		}
		return nil, errors.New("plain")
	})
	_, err = a.Forward(deadline(t), 2, "", "lines", nil)
	require.ErrorIs(t, err, metadata.ErrInvalidTopic)
	e, ok := errors.AsType[*metadata.Error](err)
	require.True(t, ok)
	require.Equal(t, &metadata.Error{Kind: metadata.ErrInvalidTopic, What: "w", Why: "y", Fix: "f"}, e)
	_, err = a.Forward(deadline(t), 2, "", "sentinel", nil)
	require.ErrorIs(t, err, metadata.ErrUnknownTopic)
	require.NotErrorIs(t, err, metadata.ErrTimeout)
	_, err = a.Forward(deadline(t), 2, "", "other", nil)
	require.ErrorContains(t, err, "plain")
	_, err = a.Forward(deadline(t), 3, "", "x", nil)
	require.ErrorIs(t, err, metadata.ErrNotSent, "nothing was sent: no address")
	_, err = a.Forward(deadline(t), 3, b.Advertised(), "x", nil)
	require.ErrorIs(t, err, metadata.ErrNotSent, "nothing was sent: somebody else is there")
}

// A call that waits does not hold up those behind it, and its caller's end ends it.
func TestCallsOvertake(t *testing.T) {
	a, b := start(t, identity("c", 1)), start(t, identity("c", 2))
	release, ended := make(chan struct{}), make(chan struct{}, 100)
	b.Handle("wait", func(ctx context.Context, _ From, body []byte) ([]byte, error) {
		defer func() { ended <- struct{}{} }()
		select {
		case <-release:
			return body, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	b.Handle("now", func(_ context.Context, _ From, body []byte) ([]byte, error) { return body, nil })
	var group sync.WaitGroup
	for i := range 20 {
		group.Go(func() {
			want := fmt.Append(nil, i)
			out, err := a.Call(deadline(t), b.Advertised(), "wait", want)
			assert.NoError(t, err)
			assert.Equal(t, want, out)
		})
	}
	for i := range 50 {
		want := fmt.Append(nil, i)
		out, err := a.Call(deadline(t), b.Advertised(), "now", want)
		require.NoError(t, err)
		require.Equal(t, want, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := a.Call(ctx, b.Advertised(), "wait", nil)
	require.ErrorIs(t, err, metadata.ErrTimeout, "the outcome is open")
	<-ended // the receiver was told of the caller's time
	close(release)
	group.Wait()
}
