package drive

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

// lived is a coordinator that counts.
type lived struct {
	*Life
	followed  int
	keeping   bool
	stubborn  chan struct{} // keepTime returns when it is closed, and its context has ended
	news      func()
	returned  chan struct{}
	watchings int
}

func live(ctx context.Context, l *Life) *lived {
	x := &lived{Life: l, stubborn: make(chan struct{}), returned: make(chan struct{})}
	go func() {
		defer close(x.returned)
		l.Run(ctx, func() *metadata.Watcher {
			w, signal := metadata.NewWatcher()
			x.news = signal
			x.watchings++
			return w
		}, func() { x.followed++ }, func(ctx context.Context) {
			x.keeping = true
			<-ctx.Done()
			<-x.stubborn
			x.keeping = false
		})
	}()
	synctest.Wait()
	return x
}

func (x *lived) over() bool {
	synctest.Wait()
	select {
	case <-x.returned:
		return true
	default:
		return false
	}
}

// Run follows what is new, and is over when Close is called, or its context ends: not before what keeps the time has returned.
func TestLife(t *testing.T) {
	for _, how := range []string{"close", "context"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				x := live(ctx, NewLife())
				require.True(t, x.keeping)
				before := x.followed
				x.news()
				synctest.Wait()
				require.Equal(t, before+1, x.followed)
				require.False(t, x.Closed())
				closed := make(chan bool, 1)
				if how == "close" {
					go func() { closed <- x.Close() }()
					synctest.Wait()
					require.True(t, x.Closed())
					<-x.Done()
					require.False(t, x.Close(), "the second call")
					require.Empty(t, closed, "the first waits")
				} else {
					cancel()
				}
				require.False(t, x.over())
				close(x.stubborn)
				require.True(t, x.over())
				require.False(t, x.keeping)
				if how == "context" {
					require.False(t, x.Closed())
					closed <- x.Close()
				}
				require.True(t, <-closed)
			})
		})
	}
}

// Who runs after Close does nothing.
func TestLifeClosedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLife()
		require.True(t, l.Close())
		x := live(t.Context(), l)
		require.True(t, x.over())
		require.Zero(t, x.watchings)
	})
}
