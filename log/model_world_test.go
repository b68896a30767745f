package log

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/millrace/millrace/log/vfs"
)

// world is one run of the model: a file system, a scheduler, the directory under test, and what is known about the
// partitions in it.
type world struct {
	seed  uint64
	rng   *rand.Rand
	sim   *vfs.Sim
	fs    *vfs.Mem
	mut   mutant
	wal   bool
	chaos modelChaos
	stats modelStats

	dir *Dir
	// life counts the starts; tasks of an older one end themselves.
	slots []*modelSlot
	now   time.Time
	ids   uint64
	// poisoned says that the directory has failed: the process is about to end, nothing more is promised.
	poisoned bool
	// stopping asks the tasks of this life to end; ending counts those that have not.
	stopping bool
	busy     int
	err      error
	// firstFrame and firstGeneration are where the write-ahead log stood after the last start.
	firstFrame, firstGeneration uint64
	// rotten says that a bit was flipped: losses are noted in lost instead of being failures.
	rotten bool
	// checkpointLost says that the checkpoint was lost since the last finished recovery.
	checkpointLost bool
	// strays were set aside, strayings are being so: the first must all be kept (L12).
	strays, strayings int
	lost              []string
}

// modelChaos is drawn per seed, so that seeds differ in kind (swarm).
type modelChaos struct {
	lives, interruptions             int
	truncate, large                  int // chances of 256
	trim, flush, tick, remove, write int // pauses in steps, -1: never
	replicate, transactions          int // chances of 256
	read, watermark                  int // pauses
	scrub                            int64
	loseCheckpoint                   bool
	toggle                           bool
	failingSync, fullDisk            bool
	settings                         Settings
	direct                           int64
	walBytes                         int64
	openFiles                        int
}

// modelSlot is a partition name; incarnations follow each other in it.
type modelSlot struct {
	topic     string
	partition int32
	inc       *incarnation
	lock      *modelLock
}

// modelLock keeps two tasks of the model from making and deleting one slot at the same time.
type modelLock struct{ held bool }

// incarnation is a partition between Create and Delete.
type incarnation struct {
	id    [16]byte
	state incarnationState
	log   *Log
	// first is the start offset it was created with.
	first int64
	// batches are those known to be in the log, in order. maybe follow them: handed to an append that has not answered,
	// or answered with an indefinite error.
	batches, maybe []modelBatch
	// acked is the largest durable end the log has told.
	acked int64
	// start is the largest start offset that was confirmed; trimming is the target of a trim that was not, or -1.
	start, trimming int64
	// cutting is the target of a truncation that was not confirmed, or -1; restarting that of a StartAt.
	cutting, restarting int64
	// unacked says that flush.ack was off at times: what was appended then becomes durable by a flush only.
	unacked bool
	// settled is the largest high watermark told: markers below it count.
	settled int64
	// trimmed says that something was trimmed: the producers are no function of the rest any more.
	trimmed bool
	epoch   int32
	cuts    int
}

type incarnationState int

const (
	incCreating incarnationState = iota
	incAlive
	incDeleting
	incGone
)

// modelBatch is one batch as it must come back.
type modelBatch struct {
	base, next int64
	epoch      int32
	bytes      []byte // base offset and epoch are compared apart
	sequence   int32  // of its only producer, -1 without
}

func (i *incarnation) end() int64 {
	if n := len(i.batches); n > 0 {
		return i.batches[n-1].next
	}
	return i.first
}

// modelProducer sends idempotent batches, the two behind it transactions.
const modelProducer = 7

func newWorld(seed uint64, mut mutant) *world {
	w := &world{seed: seed, mut: mut, sim: vfs.NewSim(seed), now: time.Now()}
	w.rng = w.sim.Rand()
	w.fs = vfs.NewMem(seed)
	w.fs.SetBlock(32)
	w.fs.SetYield(w.sim.Yield)
	w.wal = w.rng.IntN(5) > 0
	chance := func(max int) int {
		if w.rng.IntN(3) == 0 {
			return 0
		}
		return w.rng.IntN(max)
	}
	pause := func(max int) int {
		if w.rng.IntN(2) == 0 {
			return -1
		}
		return w.rng.IntN(max)
	}
	if w.rng.IntN(2) == 0 {
		w.fs.SetWriteBack(w.rng.IntN(128))
	}
	s := DefaultSettings()
	s.SegmentBytes = 200 + w.rng.Int64N(1<<(6+w.rng.IntN(9)))
	s.IndexIntervalBytes = w.rng.Int64N(300)
	s.RetentionAge = -1
	s.FileDeleteDelay = time.Duration(w.rng.IntN(2)) * time.Second
	s.SegmentAge = time.Duration(1+w.rng.IntN(100)) * time.Second
	s.FlushAck = w.rng.IntN(12) > 0
	w.chaos = modelChaos{
		lives: 2 + w.rng.IntN(3), interruptions: w.rng.IntN(4),
		truncate: chance(60), large: chance(60), trim: pause(400), flush: pause(400), tick: pause(200), remove: pause(1000), write: w.rng.IntN(20),
		replicate: chance(256), read: pause(200), watermark: w.rng.IntN(200), transactions: chance(200), toggle: w.rng.IntN(4) == 0, loseCheckpoint: w.rng.IntN(6) == 0, scrub: 1 + w.rng.Int64N(1<<w.rng.IntN(12)),
		failingSync: w.rng.IntN(3) == 0, fullDisk: w.rng.IntN(3) == 0,
		settings: s, direct: 200 + w.rng.Int64N(400), walBytes: 64 * (9 + w.rng.Int64N(16)), openFiles: 1 + w.rng.IntN(6),
	}
	for i := range 1 + w.rng.IntN(3) {
		w.slots = append(w.slots, &modelSlot{topic: fmt.Sprint("t", i), partition: int32(i), lock: &modelLock{}})
	}
	if w.rng.IntN(2) == 0 {
		w.sim.Stall(50+w.rng.IntN(400), 1+w.rng.IntN(200))
	}
	if *modelTrace {
		w.sim.Trace(func(task, op string) { fmt.Printf("%d %s: %s\n", w.sim.Steps(), task, op) })
	}
	return w
}

// runModel runs one seed.
func runModel(seed uint64, mut mutant) (stats modelStats, err error) {
	w := newWorld(seed, mut)
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
		stats = w.stats
	}()
	return stats, w.run()
}

func (w *world) failf(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

func (w *world) note(format string, args ...any) {
	if *modelTrace {
		fmt.Printf("%d --- %s\n", w.sim.Steps(), fmt.Sprintf(format, args...))
	}
}

func (w *world) config() Config {
	cfg := Default()
	cfg.FS, cfg.Tasks = w.fs, w.sim
	cfg.Wall = func() time.Time { return w.now }
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg.Rand = rand.New(rand.NewPCG(w.rng.Uint64(), 1))
	cfg.WAL = w.wal
	cfg.WALInitialBytes, cfg.WALFileBytes, cfg.walBlockBytes = w.chaos.walBytes, 2*w.chaos.walBytes, 64
	cfg.DirectBytes = w.chaos.direct
	cfg.SyncWorkers, cfg.RecoveryWorkers = 2, 2
	cfg.ReserveBytes, cfg.ReservePercent = 0, 0
	cfg.BallastBytes = 64
	cfg.OpenFiles = w.chaos.openFiles
	cfg.CheckpointBytes = 2000
	cfg.ScrubBytes = w.chaos.scrub
	cfg.CheckpointInterval = 20 * time.Second
	cfg.OnFailure = func(err error) {
		w.poisoned = true
		if errors.Is(err, vfs.ErrNoSpace) && strings.Contains(err.Error(), "write-ahead log") {
			w.failf("a full disk hits the write-ahead log, whose files are allocated: %w", err) // W12
		}
	}
	cfg.mutants = w.mut
	return cfg
}

// run is the whole story of a seed.
func (w *world) run() error {
	w.stats.seeds = 1
	defer func() {
		w.stats.steps = w.sim.Steps()
		w.sim.Abandon()
	}()
	for life := range w.chaos.lives {
		if w.rng.IntN(8) == 0 {
			w.wal = !w.wal // the write-ahead log is switched on or off between two starts
		}
		w.recover()
		if w.err == nil {
			w.check()
		}
		if w.err != nil {
			return fmt.Errorf("life %d: %w", life, w.err)
		}
		w.live()
		if w.err != nil {
			return fmt.Errorf("life %d: %w", life, w.err)
		}
	}
	w.recover()
	if w.err == nil {
		w.check()
	}
	return w.err
}

// count adds up what the directory did in this life.
func (w *world) count() {
	if w.dir == nil {
		return
	}
	if c, ok := w.dir.commit.(*walCommitter); ok {
		w.stats.walFrames += int(c.wal.sequence - w.firstFrame)
		w.stats.walRetired += int(c.wal.oldestLive() - w.firstGeneration)
		w.stats.diverted += c.diverted
	}
	for _, l := range w.dir.Logs() {
		w.stats.rolls += l.SegmentCount() - 1
	}
}

// crash ends the process, by a power cut or a kill, wherever its tasks stand.
func (w *world) crash() {
	w.count()
	w.fs.SetCapacity(-1)
	if w.rng.IntN(4) == 0 {
		w.note("kill")
		w.stats.kills++
		w.fs = w.fs.Kill()
	} else {
		mode := vfs.CrashMode(w.rng.IntN(5))
		if mode > vfs.CrashMixed {
			mode = vfs.CrashMixed
		}
		w.note("power cut, mode %d", mode)
		w.stats.powerCuts++
		w.fs = w.fs.Crash(mode)
	}
	w.sim.Abandon()
	w.dir, w.poisoned, w.stopping, w.busy = nil, false, false, 0
	if w.chaos.loseCheckpoint && w.rng.IntN(3) == 0 {
		// A lost or garbled checkpoint costs time, nothing else (L5).
		name := "data/" + checkpointName
		if w.rng.IntN(2) == 0 {
			_ = w.fs.Remove(name)
		} else {
			w.fs.Flip(name, w.rng.Int64N(40), uint(w.rng.IntN(8)))
		}
		w.stats.lostCheckpoints++
		w.checkpointLost = true
	}
}

// recover opens the directory, interrupted up to three times.
func (w *world) recover() {
	for attempt := 0; ; attempt++ {
		if attempt > 20 {
			w.failf("the directory does not open after %d attempts", attempt)
			return
		}
		var dir *Dir
		var err error
		done := false
		if w.chaos.failingSync && w.rng.IntN(16) == 0 {
			w.fs.FailSync(1 + w.rng.IntN(10))
		}
		if w.chaos.fullDisk && attempt < 3 && w.rng.IntN(8) == 0 {
			w.fillDisk()
		}
		w.sim.Go("recovery", func() {
			dir, err = OpenDir("data", w.config())
			done = true
		})
		if attempt < w.chaos.interruptions && w.rng.IntN(2) == 0 {
			w.sim.Run(w.rng.IntN(200))
			if !done {
				w.stats.interrupted++
				w.crash()
				continue
			}
		}
		for range 1_000_000 {
			if done || w.sim.Run(1) == 0 {
				break
			}
		}
		if !done {
			w.failf("recovery hangs: %v", w.sim.Blocked())
			return
		}
		w.fs.FailSync(0)
		w.fs.SetCapacity(-1)
		if err == nil && !w.poisoned {
			w.dir = dir
			w.stats.recoveries++
			if c, ok := dir.commit.(*walCommitter); ok {
				w.firstFrame, w.firstGeneration = c.wal.sequence, c.wal.oldestLive()
			}
			return
		}
		w.note("recovery failed: %v", err)
		if err != nil && !errors.Is(err, vfs.ErrIO) && !errors.Is(err, vfs.ErrNoSpace) {
			w.failf("recovery failed: %v", err)
			return
		}
		w.crash()
	}
}

// fillDisk leaves room for a little more.
func (w *world) fillDisk() {
	w.fs.SetCapacity(1 << 40)
	free, total, _ := w.fs.Usage("")
	w.fs.SetCapacity(total - free + w.rng.Int64N(800))
	w.stats.fullDisks++
}

// live runs the tasks for a while and ends in a crash, a clean stop, or a quiet end and then one of both.
func (w *world) live() {
	for i, slot := range w.slots {
		w.task(fmt.Sprint("writer", i), w.chaos.write, func() { w.write(slot) })
		w.task(fmt.Sprint("trimmer", i), w.chaos.trim, func() { w.trim(slot) })
		w.task(fmt.Sprint("reader", i), w.chaos.read, func() { w.read(slot) })
		w.task(fmt.Sprint("watermark", i), w.chaos.watermark, func() { w.watermark(slot) })
		w.task(fmt.Sprint("deleter", i), w.chaos.remove, func() { w.remove(slot) })
	}
	w.task("flusher", w.chaos.flush, w.flush)
	w.task("ticker", w.chaos.tick, w.tick)
	steps := w.rng.IntN(100 << w.rng.IntN(6))
	for steps > 0 && w.err == nil && !w.poisoned {
		if w.chaos.failingSync && w.rng.IntN(20) == 0 {
			w.stats.syncFailures++
			w.fs.FailSync(1 + w.rng.IntN(20))
		}
		if w.chaos.fullDisk {
			switch w.rng.IntN(6) {
			case 0:
				w.fillDisk()
			case 1, 2:
				w.fs.SetCapacity(-1)
			}
		}
		n := min(steps, 1+w.rng.IntN(200))
		steps -= n
		for range n {
			if w.sim.Run(1) == 0 || w.poisoned || w.err != nil {
				break
			}
		}
	}
	if w.err != nil {
		return
	}
	if w.poisoned || w.rng.IntN(3) > 0 {
		// After a failure the process lives on for a moment.
		if w.poisoned {
			w.sim.Run(w.rng.IntN(30))
		}
		w.crash()
		return
	}
	w.quiet()
	if w.err == nil && w.dir != nil && !w.poisoned {
		switch w.rng.IntN(4) {
		case 0, 1:
			w.stop()
		case 2:
			// The process dies while it stops.
			if w.chaos.failingSync && w.rng.IntN(2) == 0 {
				w.fs.FailSync(1 + w.rng.IntN(20))
			}
			w.sim.Go("stop", func() { _ = w.dir.Close() })
			w.sim.Run(w.rng.IntN(150))
			w.stats.brokenStops++
		}
	}
	if w.err == nil {
		w.crash()
	}
}

// task adds a task of this life; it repeats fn with pauses of so many steps at most until the life ends. A negative
// pause means never.
func (w *world) task(name string, pause int, fn func()) {
	if pause < 0 {
		return
	}
	w.busy++
	w.sim.Go(name, func() {
		for {
			w.sim.Pause(w.rng.IntN(pause + 1))
			if w.stopping || w.err != nil || w.poisoned {
				w.busy--
				return
			}
			fn()
		}
	})
}

// settle runs until only waiting tasks are left.
func (w *world) settle() bool {
	for range 200_000 {
		if w.sim.Run(1) == 0 {
			return true
		}
	}
	w.failf("the tasks do not come to rest: %v", w.sim.Blocked())
	return false
}

// quiet ends the tasks and checks that everything becomes durable and reads as written.
func (w *world) quiet() {
	w.fs.SetCapacity(-1)
	w.fs.FailSync(0)
	w.stopping = true
	if !w.settle() || w.poisoned {
		return
	}
	if w.busy > 0 {
		w.failf("deadlock: %v", w.sim.Blocked())
		return
	}
	w.stats.quiet++
	for _, slot := range w.slots {
		if inc := slot.inc; inc != nil && inc.state == incAlive && (inc.unacked || !inc.log.Settings().FlushAck) {
			w.sim.Go("flusher", func() {
				if err := inc.log.Flush(); err != nil {
					w.failf("flush: %v", err)
				}
			})
			if !w.settle() {
				return
			}
		}
	}
	w.checkRest()
}

// stop closes the directory and checks that the next start finds the proof.
func (w *world) stop() {
	var err error
	done := false
	w.sim.Go("stop", func() { err, done = w.dir.Close(), true })
	if !w.settle() {
		return
	}
	switch {
	case !done:
		w.failf("close hangs: %v", w.sim.Blocked())
	case err != nil:
		w.failf("close: %v", err)
	case w.sim.Running("") > 0:
		w.failf("tasks outlive the directory: %v", w.sim.Blocked())
	}
	w.count()
	w.stats.cleanStops++
	if w.rng.IntN(2) == 0 {
		// All is synced: a power cut takes nothing.
		w.fs = w.fs.Crash(vfs.CrashLose)
	} else {
		w.fs = w.fs.Kill()
	}
	w.sim.Abandon()
	w.dir = nil
	w.recover()
	if w.err == nil && !w.dir.CleanStart() && w.chaos.interruptions == 0 && !w.chaos.failingSync && !w.chaos.fullDisk {
		w.failf("a clean stop left no proof")
	}
	if w.err == nil {
		w.check()
	}
}
