package log

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log/vfs"
)

// TestModelRot: one bit of the write-ahead log flips while the power is off (wal.md 6). Then nothing wrong is ever
// served: what comes back is a prefix of what was appended, byte for byte. If acknowledged records are gone, either the
// start says so (damage, or an offline partition), or all of them stood in the last frame of the newest file, which can
// not be told from a torn tail.
func TestModelRot(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	const seeds = 800
	reported, silent, harmless := 0, 0, 0
	for seed := range uint64(seeds) {
		w := newWorld(seed, 0)
		w.wal, w.rotten = true, true
		w.chaos.interruptions, w.chaos.failingSync, w.chaos.fullDisk = 0, false, false
		w.chaos.loseCheckpoint = false
		w.chaos.flush, w.chaos.tick = -1, -1 // else the segments hold nearly everything
		w.recover()
		w.check()
		w.live()
		require.NoError(t, w.err, "seed %d", seed)
		if w.dir != nil {
			w.crash()
		}
		last := lastFrame(t, w.fs)
		w.flip()
		w.recover()
		require.NoError(t, w.err, "seed %d", seed)
		damaged := len(w.dir.RecoveryStats().WALDamage) > 0 || len(w.dir.Offline()) > 0
		w.check()
		require.NoError(t, w.err, "seed %d", seed)
		switch {
		case damaged:
			reported++
		case len(w.lost) == 0:
			harmless++
		default:
			silent++
			for _, l := range w.lost {
				require.Contains(t, last, l, "seed %d: lost without a word", seed)
			}
		}
		w.sim.Abandon()
	}
	t.Logf("reported %d, harmless %d, last frame lost %d", reported, harmless, silent)
	require.Greater(t, reported, seeds/20)
	require.Greater(t, harmless, seeds/20)
	require.Less(t, silent, seeds/20)
}

// flip inverts one bit of the files of the write-ahead log.
func (w *world) flip() {
	entries, err := w.fs.List("data/wal")
	if err != nil || len(entries) == 0 {
		return
	}
	e := entries[w.rng.IntN(len(entries))]
	if e.Size > 0 {
		w.fs.Flip("data/wal/"+e.Name, w.rng.Int64N(e.Size), uint(w.rng.IntN(8)))
	}
}

// lastFrame names the ends that the logs have without the last frame.
func lastFrame(t *testing.T, fsys *vfs.Mem) []string {
	cp, err := readCheckpoint(fsys, "data")
	if !errors.Is(err, ErrCorrupt) { // the model garbles it now and then; recovery goes on without
		require.NoError(t, err)
	}
	var refs []walRef
	scan, err := scanWAL(fsys, "data/wal", 64, cp, func(r walRef) error {
		refs = append(refs, r)
		return nil
	})
	require.NoError(t, err)
	require.Empty(t, scan.damage)
	var names []string
	for _, r := range refs {
		if r.frame == refs[len(refs)-1].frame {
			names = append(names, fmt.Sprintf("%016x ends at %d", r.logID, r.base))
		}
	}
	return names
}

// noteLoss remembers that a recovered log ends below what was acknowledged.
func (w *world) noteLoss(l *Log) {
	w.lost = append(w.lost, strings.TrimSpace(fmt.Sprintf("%016x ends at %d", l.mu.logID, l.EndOffset())))
}
