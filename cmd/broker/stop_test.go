package broker

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A part that never stops is named, with what its goroutines wait for, and the process ends all the same.
func TestStopIsBounded(t *testing.T) {
	for _, failed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var log strings.Builder
			b := &Broker{cfg: Config{StopTimeout: 30 * time.Second}, logger: slog.New(slog.NewTextHandler(&log, nil))}
			release := make(chan struct{})
			defer close(release)
			stopped := map[string]bool{}
			steps := []step{
				{"opening what stops last", nil, func(context.Context) error { stopped["last"] = true; return nil }},
				{"opening what hangs", nil, func(context.Context) error { <-release; return nil }},
				{"opening what is well", nil, func(context.Context) error { stopped["well"] = true; return nil }},
			}
			began := time.Now()
			err := b.stop(steps, failed)
			require.ErrorContains(t, err, "opening what hangs")
			require.LessOrEqual(t, time.Since(began), b.cfg.StopTimeout+closeGrace) // of the bubble's time
			require.Equal(t, map[string]bool{"well": true}, stopped)
			require.Equal(t, !failed, strings.Contains(log.String(), "TestStopIsBounded"), "the stacks: %s", log.String())
		})
	}
}

// A part that never starts, as on a disk that hangs, does not keep the process from ending when it is told to.
func TestStopOfAStartThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &Broker{cfg: Config{StopTimeout: 30 * time.Second}, logger: slog.New(slog.DiscardHandler)}
		release := make(chan struct{})
		defer close(release)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Hour, cancel)
		began := time.Now()
		started, err := b.start(ctx, []step{
			{"opening the first", func(context.Context) error { return nil }, nil},
			{"opening what hangs", func(context.Context) error { <-release; return nil }, nil},
			{"serving", func(context.Context) error { panic("behind what did not start") }, nil},
		})
		require.Len(t, started, 1, "what is to be stopped")
		require.ErrorContains(t, err, "while opening what hangs")
		require.Equal(t, time.Hour+b.cfg.StopTimeout+closeGrace, time.Since(began), "it waits for as long as nobody minds")
	})
}

// Who is told to stop while it starts has not failed, whatever the call says that this cuts off; who fails has.
func TestStopWhileStarting(t *testing.T) {
	for name, asked := range map[string]bool{"told to stop": true, "failed": false} {
		t.Run(name, func(t *testing.T) {
			b := &Broker{logger: slog.New(slog.DiscardHandler)}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			started, err := b.start(ctx, []step{
				{"opening the first", func(context.Context) error { return nil }, nil},
				{"registering", func(context.Context) error {
					if asked {
						cancel()
					}
					return errors.New("the controller can't be reached")
				}, nil},
				{"serving", func(context.Context) error { panic("behind what did not start") }, nil},
			})
			require.Len(t, started, 1, "what is to be stopped")
			require.Equal(t, asked, err == nil, "%v", err)
		})
	}
}
