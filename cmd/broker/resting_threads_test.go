package broker

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A broker that takes little of a core for ten seconds rests, one that takes more does not, and one that rests is busy at once
// when it is; in between it stays as it was.
func TestRestingThreads(t *testing.T) {
	const (
		heartbeats = 50 * time.Millisecond // in a second
		some       = 150 * time.Millisecond
		work       = 300 * time.Millisecond
	)
	type part struct {
		used  time.Duration
		looks int
		rests bool // after them
	}
	for _, x := range []struct {
		name  string
		parts []part
	}{
		{"at rest from the beginning", []part{{heartbeats, 9, false}, {heartbeats, 1, true}, {heartbeats, 1000, true}}},
		{"some work does not wake it", []part{{heartbeats, 10, true}, {some, 1000, true}}},
		{"some work does not let it rest", []part{{some, 1000, false}, {heartbeats, 9, false}, {some, 1, false}, {heartbeats, 9, false}, {heartbeats, 1, true}}},
		{"work wakes it at once", []part{{heartbeats, 10, true}, {work, 1, false}, {heartbeats, 9, false}, {heartbeats, 1, true}}},
		{"work now and then", []part{{heartbeats, 8, false}, {work, 1, false}, {heartbeats, 8, false}, {work, 1, false}, {heartbeats, 8, false}}},
	} {
		t.Run(x.name, func(t *testing.T) {
			var r restingThreadsCore
			for i, p := range x.parts {
				var rests bool
				for range p.looks {
					rests = r.look(p.used, threadsLook)
				}
				require.Equal(t, p.rests, rests, "after part %d", i)
			}
		})
	}
}

// What the process used is told, and grows with what it does.
func TestProcessCPU(t *testing.T) {
	first, ok := processCPU()
	if !ok {
		t.Skip("this system does not tell a process's CPU time")
	}
	for {
		if now, _ := processCPU(); now > first {
			return
		}
	}
}
