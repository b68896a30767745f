package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A wait goes on for as long as something comes, however slowly, and ends when nothing does.
func TestGrownEndsWhenNothingMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var count atomic.Int64
		go func() {
			for range 10 {
				time.Sleep(50 * time.Second) // of the bubble's clock
				count.Add(1)
			}
		}()
		began := time.Now()
		require.NoError(t, grown(t.Context(), &count, 10, time.Minute))
		require.GreaterOrEqual(t, time.Since(began), 500*time.Second)
		require.ErrorContains(t, grown(t.Context(), &count, 11, time.Minute), "none for 1m0s")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, grown(ctx, &count, 11, time.Minute), context.Canceled)
	})
}

// A broker that fell comes before whatever the others complain about.
func TestLastErrorsNameWhatFell(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, lines ...string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(strings.Join(lines, "\n")+"\n"), 0o644))
	}
	write("millrace/node-2.log", `{"level":"INFO","msg":"serving"}`, "panic: index out of range", "", "goroutine 1 [running]:", "ERROR of a line behind it")
	write("copier/copier-1.log", "10:41 WARN nothing", "10:42 ERROR first", "10:43 ERROR "+strings.Repeat("x", 1000))
	write("copier/copier-2.log", "10:42 INFO all is well")
	write("copier/data", "ERROR in no output")
	require.Equal(t, []string{"node-2 said: panic: index out of range", "copier-1 said: " + ("10:43 ERROR " + strings.Repeat("x", 1000))[:widthOfAnError]}, lastErrors(dir, 3))
	require.Len(t, lastErrors(dir, 1), 1)
}
