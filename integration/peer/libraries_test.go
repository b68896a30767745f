package peer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// What a registry drops is asked for again, a few times and with pauses; a folder is complete or made anew.
func TestDownloadsAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, began := 0, time.Now()
		require.NoError(t, again(t.Context(), 3, 5*time.Second, func() error {
			if calls++; calls < 3 {
				return errors.New("502")
			}
			return nil
		}))
		require.Equal(t, 3, calls)
		require.Equal(t, 15*time.Second, time.Since(began))
		require.ErrorContains(t, again(t.Context(), 2, time.Second, func() error { calls++; return errors.New("503") }), "503")
		require.Equal(t, 5, calls)
	})
}

func TestFilledIsCompleteOrMadeAnew(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	fill := func(err error) func(context.Context, string) error {
		return func(_ context.Context, dir string) error {
			left, _ := filepath.Glob(filepath.Join(dir, "*"))
			require.Empty(t, left, "nothing of a try that failed is left")
			return errors.Join(os.WriteFile(filepath.Join(dir, "jar"), nil, 0o644), err)
		}
	}
	_, err := Filled(t.Context(), "test", []byte("inputs"), fill(errors.New("cut off")))
	require.ErrorContains(t, err, "cut off")
	dir, err := Filled(t.Context(), "test", []byte("inputs"), fill(nil))
	require.NoError(t, err)
	again, err := Filled(t.Context(), "test", []byte("inputs"), fill(errors.New("is not called")))
	require.NoError(t, err)
	require.Equal(t, dir, again)
	other, err := Filled(t.Context(), "test", []byte("others"), fill(nil))
	require.NoError(t, err)
	require.NotEqual(t, dir, other)
}
