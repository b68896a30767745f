package log

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/millrace/millrace/log/record"
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
	lost   []string
}

// modelChaos is drawn per seed, so that seeds differ in kind (swarm).
type modelChaos struct {
	lives, interruptions             int
	truncate, large                  int // chances of 256
	trim, flush, tick, remove, write int // pauses in steps, -1: never
	replicate                        int // chance of 256
	read                             int // pause
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
		replicate: chance(256), read: pause(200), toggle: w.rng.IntN(4) == 0,
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
	if w.err == nil && w.dir != nil && !w.poisoned && w.rng.IntN(2) == 0 {
		w.stop()
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

// write appends to a partition or truncates it: one task does both, as a follower does.
func (w *world) write(slot *modelSlot) {
	inc := slot.inc
	if inc == nil || inc.state != incAlive {
		w.create(slot)
		return
	}
	switch {
	case inc.cutting >= 0 || inc.restarting >= 0:
		// It failed half-way: the process is about to end.
	case w.rng.IntN(256) < w.chaos.truncate:
		if w.rng.IntN(8) == 0 {
			w.restart(inc)
		} else {
			w.truncate(inc)
		}
	case w.rng.IntN(256) < w.chaos.replicate:
		w.replicate(inc)
	default:
		w.append(inc)
	}
}

// modelBuffer is an owner that destroys its bytes with the last release: whoever uses them later is found out.
type modelBuffer struct {
	w     *world
	bytes []byte
	uses  int
}

func (b *modelBuffer) Retain() { b.uses++ }

func (b *modelBuffer) Release() {
	b.uses--
	if b.uses < 0 {
		b.w.failf("a buffer was released too often")
	}
	if b.uses == 0 {
		for i := range b.bytes {
			b.bytes[i] = 0xdb
		}
	}
}

// makeBatch builds a batch with a payload nobody else has.
func (w *world) makeBatch(sequence int32, large bool) []byte {
	w.ids++
	value := make([]byte, 8+w.rng.IntN(24))
	if large {
		value = make([]byte, 8+w.rng.IntN(500))
	}
	binary.BigEndian.PutUint64(value, w.seed)
	binary.BigEndian.PutUint64(value, w.ids)
	b := record.NewBuilder(record.CodecNone)
	for range 1 + w.rng.IntN(2) {
		b.Add(w.now.UnixMilli(), nil, value, nil)
	}
	if sequence >= 0 {
		b.ProducerID, b.ProducerEpoch, b.BaseSequence = modelProducer, 0, sequence
	}
	return b.Build()
}

// nextSequence returns the sequence number that the producer of a partition continues with.
func (i *incarnation) nextSequence() int32 {
	for k := len(i.batches) - 1; k >= 0; k-- {
		if b := &i.batches[k]; b.sequence >= 0 {
			return b.sequence + int32(b.next-b.base)
		}
	}
	return 0
}

func (w *world) append(inc *incarnation) {
	if w.rng.IntN(10) == 0 {
		inc.epoch++
	}
	n := 1 + w.rng.IntN(5)/3
	sets := make([]Set, n)
	buffers := make([]*modelBuffer, n)
	out := make([]Appended, n)
	sequence := inc.nextSequence()
	idempotent := !inc.trimmed && w.rng.IntN(2) == 0
	for i := range sets {
		large := w.rng.IntN(256) < w.chaos.large
		var set []byte
		for range 1 + w.rng.IntN(4)/3 {
			seq := int32(-1)
			if idempotent {
				seq = sequence
			}
			b := w.makeBatch(seq, large)
			count := record.Batch(b).LastOffsetDelta() + 1
			if idempotent {
				sequence += count
			}
			inc.maybe = append(inc.maybe, modelBatch{next: int64(count), epoch: inc.epoch, bytes: append([]byte(nil), b...), sequence: seq})
			set = append(set, b...)
		}
		sets[i].Records = set
		buffers[i] = &modelBuffer{w: w, bytes: set, uses: 1}
		if w.rng.IntN(2) == 0 {
			sets[i].Owner = buffers[i]
		}
	}
	maybe := inc.maybe
	end := inc.end()
	err := inc.log.Append(inc.epoch, sets, out)
	var left []modelBatch
	for i := range sets {
		k := countBatches(sets[i].Records)
		set := maybe[:k]
		maybe = maybe[k:]
		switch {
		case out[i].Err == nil:
			if out[i].BaseOffset != end || out[i].Duplicate {
				w.failf("append answers %+v at %d", out[i], end)
			}
			for _, b := range set {
				b.base, b.next = end, end+b.next
				end = b.next
				inc.batches = append(inc.batches, b)
			}
			if out[i].NextOffset != end {
				w.failf("append answers %+v, end is %d", out[i], end)
			}
			w.stats.appended++
		case errors.Is(out[i].Err, ErrNoSpace) || errors.Is(out[i].Err, ErrClosed) || errors.Is(out[i].Err, ErrOutOfOrderSequence):
			// Definite: it must never be seen. A gap in the sequence follows a refusal before it.
			w.stats.refused++
		case errors.Is(out[i].Err, ErrPoisoned):
			left = append(left, set...)
		default:
			w.failf("append: %v", out[i].Err)
		}
		buffers[i].Release()
	}
	inc.maybe = left
	if err != nil && !errors.Is(err, ErrNoSpace) && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrPoisoned) {
		w.failf("append: %v", err)
	}
}

// replicate appends as a follower: batches with offsets and epochs of their leader.
func (w *world) replicate(inc *incarnation) {
	if w.rng.IntN(10) == 0 {
		inc.epoch++
	}
	sets := make([]Set, 1+w.rng.IntN(3))
	var buffers []*modelBuffer
	end := inc.end()
	at := end
	var batches []modelBatch
	for i := range sets {
		b := record.Batch(w.makeBatch(-1, w.rng.IntN(256) < w.chaos.large))
		b.SetBaseOffset(at)
		b.SetLeaderEpoch(inc.epoch)
		batches = append(batches, modelBatch{base: at, next: b.NextOffset(), epoch: inc.epoch, bytes: append([]byte(nil), b...), sequence: -1})
		at = b.NextOffset()
		sets[i].Records = b
		buffer := &modelBuffer{w: w, bytes: b, uses: 1}
		buffers = append(buffers, buffer)
		if w.rng.IntN(2) == 0 {
			sets[i].Owner = buffer
		}
	}
	for _, b := range batches {
		b.next -= b.base
		inc.maybe = append(inc.maybe, b)
	}
	err := inc.log.Replicate(sets)
	switch {
	case err == nil:
		inc.batches = append(inc.batches, batches...)
		w.stats.replicated++
	case errors.Is(err, ErrNoSpace) || errors.Is(err, ErrClosed):
		// Those before the refused one are in.
		got := inc.log.EndOffset()
		for _, b := range batches {
			if b.next <= got {
				inc.batches = append(inc.batches, b)
			}
		}
		w.stats.refused++
	case errors.Is(err, ErrPoisoned):
		for _, b := range buffers {
			b.Release()
		}
		return
	default:
		w.failf("replicate: %v", err)
	}
	inc.maybe = nil
	for _, b := range buffers {
		b.Release()
	}
}

// restart empties a log, which goes on at a later offset.
func (w *world) restart(inc *incarnation) {
	if inc.trimming >= 0 {
		return
	}
	to := inc.start + w.rng.Int64N(inc.end()-inc.start+20)
	inc.restarting = to
	err := inc.log.StartAt(to)
	switch {
	case err == nil:
		inc.restarted()
		w.stats.restarts++
	case errors.Is(err, ErrPoisoned):
	case errors.Is(err, ErrClosed) || errors.Is(err, ErrNoSpace):
		inc.restarting = -1 // nothing was changed
	default:
		w.failf("start at %d: %v", to, err)
	}
}

// restarted takes note that the log is empty and begins at the target of StartAt.
func (i *incarnation) restarted() {
	to := i.restarting
	i.batches, i.maybe = nil, nil
	i.first, i.start, i.acked, i.restarting = to, to, to, -1
	i.trimmed, i.epoch = false, i.epoch+1
}

// read reads some of a log while everything else goes on.
func (w *world) read(slot *modelSlot) {
	inc := slot.inc
	if inc == nil || inc.state != incAlive {
		return
	}
	start, end := inc.log.StartOffset(), inc.log.EndOffset()
	from := start + w.rng.Int64N(end-start+1)
	limit := from + w.rng.Int64N(end-from+1)
	s, err := inc.log.Read(from, limit, 1+w.rng.IntN(600), w.rng.IntN(2) == 0)
	if err != nil {
		if !errors.Is(err, ErrOffsetOutOfRange) && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrPoisoned) {
			w.failf("read %d to %d: %v", from, limit, err)
		}
		return
	}
	if s.Len() == 0 {
		return
	}
	b := make([]byte, s.Len())
	_, err = s.ReadAt(b, 0)
	cut := inc.cuts
	s.Release()
	if err != nil {
		if cut == 0 && inc.cutting < 0 && inc.restarting < 0 {
			w.failf("read %d to %d: %v", from, limit, err)
		}
		return
	}
	w.stats.reads++
	if cut > 0 || inc.cutting >= 0 {
		return // the bytes may have been cut and written anew under the reader
	}
	for at := s.BaseOffset(); len(b) > 0; {
		batch, rest, err := record.Next(b)
		if err != nil || !batch.CheckCRC() || batch.BaseOffset() != at || batch.NextOffset() > limit {
			w.failf("read %d to %d: bad batch at %d: %v", from, limit, at, err)
			return
		}
		at, b = batch.NextOffset(), rest
	}
}

func countBatches(b []byte) int {
	n := 0
	for len(b) > 0 {
		_, rest, err := record.Next(b)
		if err != nil {
			panic(err)
		}
		b = rest
		n++
	}
	return n
}

// told is the notification of a log.
func (w *world) told(inc *incarnation, durableEnd int64) {
	w.stats.acked++
	if inc.restarting >= 0 {
		return
	}
	if inc.cutting >= 0 {
		// What is being cut away may be acknowledged once more.
		durableEnd = min(durableEnd, inc.cutting)
	}
	inc.acked = max(inc.acked, durableEnd)
}

func (w *world) truncate(inc *incarnation) {
	if len(inc.batches) == 0 {
		return
	}
	// The batch that holds the target goes as a whole; mostly the target is its base.
	i := len(inc.batches) - 1 - min(w.rng.IntN(len(inc.batches)), w.rng.IntN(12))
	cut := inc.batches[i].base
	to := cut + w.rng.Int64N(2)*w.rng.Int64N(inc.batches[i].next-cut)
	if to < inc.start || inc.trimming >= 0 {
		return
	}
	// A batch below the start goes as a whole; the log goes on, empty, at its start.
	cut = max(cut, inc.start)
	inc.cutting = cut
	err := inc.log.Truncate(to)
	switch {
	case err == nil:
		inc.cuts++
		if got := inc.log.EndOffset(); got != cut && w.err == nil {
			w.failf("truncated to %d, end is %d", cut, got)
		}
		inc.cut(cut)
		w.stats.truncations++
	case errors.Is(err, ErrPoisoned):
		return // whether it was cut is not known
	case errors.Is(err, ErrClosed) || errors.Is(err, ErrOffsetOutOfRange) || errors.Is(err, ErrNoSpace):
		inc.cutting = -1 // nothing was changed
	default:
		w.failf("truncate to %d: %v", to, err)
	}
}

// cut forgets the batches from offset on.
func (i *incarnation) cut(offset int64) {
	n := len(i.batches)
	for n > 0 && i.batches[n-1].next > offset {
		n--
	}
	if n > 0 && i.batches[n-1].next < offset {
		n = 0 // all that is left lay below the start
	}
	i.batches = i.batches[:n]
	i.acked, i.start = min(i.acked, offset), min(i.start, offset)
	i.cutting = -1
	if n == 0 {
		i.first = offset
	}
}

func (w *world) trim(slot *modelSlot) {
	inc := slot.inc
	if inc == nil || inc.state != incAlive || inc.cutting >= 0 || inc.restarting >= 0 || inc.trimming >= 0 {
		return
	}
	l := inc.log
	l.SetHighWatermark(l.DurableEnd())
	high := l.HighWatermark()
	if high <= inc.start {
		return
	}
	to := inc.start + 1 + w.rng.Int64N(high-inc.start)
	inc.trimming = to
	inc.trimmed = true
	err := l.TrimPrefix(to)
	switch {
	case err == nil:
		inc.start = max(inc.start, min(to, l.StartOffset()))
		inc.trimming = -1
		w.stats.trims++
	case errors.Is(err, ErrNoSpace):
		// What could go without any new file may be gone.
		inc.start = max(inc.start, l.StartOffset())
		inc.trimming = -1
	case errors.Is(err, ErrOffsetOutOfRange) || errors.Is(err, ErrClosed):
		inc.trimming = -1
	case errors.Is(err, ErrPoisoned):
	default:
		w.failf("trim to %d: %v", to, err)
	}
}

func (w *world) flush() {
	if inc := w.slots[w.rng.IntN(len(w.slots))].inc; inc != nil && inc.state == incAlive {
		end := inc.end()
		cuts := w.stats.truncations + w.stats.restarts
		err := inc.log.Flush()
		switch {
		case err == nil:
			if got := inc.log.DurableEnd(); got < end && cuts == w.stats.truncations+w.stats.restarts && inc.restarting < 0 && inc.cutting < 0 && inc.state == incAlive {
				w.failf("flushed to %d, durable end is %d", end, got)
			}
			w.stats.directSyncs++
		case !errors.Is(err, ErrClosed) && !errors.Is(err, ErrPoisoned):
			w.failf("flush: %v", err)
		}
	}
}

func (w *world) tick() {
	w.now = w.now.Add(time.Duration(w.rng.IntN(5000)) * time.Millisecond)
	w.dir.Tick(w.now)
	if w.chaos.toggle && w.rng.IntN(4) == 0 {
		if inc := w.slots[w.rng.IntN(len(w.slots))].inc; inc != nil && inc.state == incAlive {
			s := inc.log.Settings()
			s.FlushAck = !s.FlushAck
			inc.unacked = true
			inc.log.Configure(s)
		}
	}
}

// create makes the next incarnation of a slot: with a new id, or moved back with the old one.
func (w *world) create(slot *modelSlot) {
	if slot.lock.held {
		return
	}
	slot.lock.held = true
	old := slot.inc
	inc := &incarnation{trimming: -1, cutting: -1, restarting: -1, first: w.rng.Int64N(3) * w.rng.Int64N(100)}
	inc.start, inc.acked = inc.first, inc.first
	if old != nil && w.rng.IntN(2) == 0 {
		inc.id = old.id
	} else {
		binary.BigEndian.PutUint64(inc.id[:], w.rng.Uint64())
	}
	slot.inc = inc
	s := w.chaos.settings
	l, err := w.dir.Create(slot.topic, inc.id, slot.partition, inc.first, s)
	switch {
	case err == nil:
		inc.log, inc.state = l, incAlive
		l.Notify(func(durableEnd int64) { w.told(inc, durableEnd) })
		w.stats.creations++
	case errors.Is(err, ErrNoSpace):
		// Not made. A directory may be left without a state file.
		if old != nil {
			old.state = incGone
		}
		slot.inc = old
	case errors.Is(err, ErrPoisoned):
	default:
		w.failf("create %s: %v", slot.topic, err)
	}
	slot.lock.held = false
}

// remove deletes a partition once in a while.
func (w *world) remove(slot *modelSlot) {
	inc := slot.inc
	if inc == nil || inc.state != incAlive {
		return
	}
	inc.state = incDeleting
	slot.lock.held = true
	err := w.dir.Delete(inc.log)
	slot.lock.held = false
	switch {
	case err == nil:
		inc.state = incGone
		w.stats.deletions++
	case errors.Is(err, ErrPoisoned):
	default:
		w.failf("delete %s: %v", slot.topic, err)
	}
}
