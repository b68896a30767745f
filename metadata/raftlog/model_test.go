package raftlog

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// world drives a log on a disk that crashes, fails, fills up and rots, beside what must be in it.
type world struct {
	random *rand.Rand
	disk   *disk
	note   *note
	limit  int // bytes of a segment
	wrong  mutant

	log *Log
	// entries is what was acknowledged. or are the other states that a crash may leave of a call that did not return.
	entries map[uint64]*raft.Log
	or      []map[uint64]*raft.Log
	head    uint64 // entries below were removed from the front, for good or perhaps
	clock   uint64 // makes every entry another one
	counts  map[string]int
}

func newWorld(seed uint64, wrong mutant) *world {
	random := rand.New(rand.NewPCG(seed, 14))
	d := newDisk(random)
	return &world{
		random: random, disk: d, note: &note{disk: d}, wrong: wrong, entries: map[uint64]*raft.Log{}, counts: map[string]int{},
		limit: []int{16, 24, 64}[random.IntN(3)] * sectorBytes,
	}
}

func (w *world) options() Options {
	return Options{Record: w.note, SegmentBytes: w.limit, ID: 77, files: w.disk, alone: true, mutants: w.wrong}
}

// run returns what is wrong, nil for nothing.
func (w *world) run(steps int) (err error) {
	for w.log == nil { // the first start may be cut off anywhere
		w.may(func() { w.log, err = Create(w.options()) })
		if err != nil || w.note.b != nil {
			break
		}
		w.crash()
	}
	if err == nil && w.log == nil {
		err = w.reopen()
	}
	for i := 0; err == nil && i < steps; i++ {
		if err = w.step(); err != nil {
			err = fmt.Errorf("step %d: %w", i, err)
		}
	}
	return err
}

// may runs what may be cut off by a crash, and reports whether it was not.
func (w *world) may(do func()) (done bool) {
	defer func() {
		w.disk.left = 0
		if p := recover(); p != nil {
			if _, ok := p.(stopped); !ok {
				panic(p)
			}
			w.log = nil
		}
	}()
	if w.random.IntN(6) == 0 {
		w.disk.left = 1 + w.random.IntN(8)
	}
	do()
	return true
}

// crash ends the process, and most often the power.
func (w *world) crash() {
	w.log = nil
	if w.random.IntN(4) > 0 {
		w.disk.power()
	}
}

func (w *world) bounds() (first, last uint64) {
	for i := range w.entries {
		if first == 0 || i < first {
			first = i
		}
		last = max(last, i)
	}
	return first, last
}

func (w *world) step() error {
	first, last := w.bounds()
	switch n := w.random.IntN(100); {
	case n < 45:
		return w.store(last)
	case n < 53 && last > 0:
		return w.remove("front", first, min(last-1, first+uint64(w.random.IntN(int(last-first)+1))))
	case n < 61 && last > 0:
		return w.remove("tail", last-uint64(w.random.IntN(int(last-first)+1)), last)
	case n < 62 && last > 0:
		return w.remove("all", first, last)
	case n < 70:
		w.counts["spare"]++
		if !w.may(w.log.makeSpare) {
			w.crash()
			return w.reopen()
		}
	case n < 76:
		w.counts["full"]++
		w.disk.full = true
		err := w.store(last)
		w.disk.full = false
		return err
	case n < 80:
		w.counts["failed sync"]++
		w.disk.fail = true
		err := w.store(last)
		w.disk.fail = false
		return err
	case n < 82:
		w.counts["failed record"]++
		w.note.lies = true
		var err error
		if last > first && w.random.IntN(2) == 0 {
			err = w.remove("front", first, last-1)
		} else if w.log.makeSpare(); w.log.failed() != nil {
			w.crash()
			err = w.reopen()
		}
		w.note.lies = false
		return err
	case n < 88:
		w.counts["kill"]++
		w.crash()
		return w.reopen()
	case n < 93:
		w.counts["close"]++
		if err := w.log.Close(); err != nil {
			return err
		}
		w.log = nil
		if w.random.IntN(2) == 0 {
			w.disk.power()
		}
		if w.random.IntN(2) == 0 {
			if err := w.rot(true); err != nil {
				return err
			}
		}
		return w.reopen()
	case n < 97:
		w.crash()
		if err := w.rot(false); err != nil {
			return err
		}
		return w.reopen()
	}
	return w.compare(w.log, w.entries)
}

func (w *world) entry(index uint64) *raft.Log {
	w.clock++
	n := w.random.IntN(200)
	if w.random.IntN(8) == 0 {
		n = w.random.IntN(5000)
	}
	l := &raft.Log{Index: index, Term: w.clock, Type: raft.LogType(w.random.IntN(6))}
	if n > 0 {
		l.Data = make([]byte, n)
		if w.random.IntN(2) == 0 { // else zeros, which look like a sector that was not written
			for i := range l.Data {
				l.Data[i] = byte(w.random.Uint32())
			}
		}
	}
	if w.random.IntN(4) == 0 {
		l.Extensions = bytes.Repeat([]byte{byte(w.clock)}, 1+w.random.IntN(20))
	}
	return l
}

func (w *world) store(last uint64) error {
	w.counts["store"]++
	index := last + 1
	if last == 0 {
		index = max(1, w.head)
	}
	if w.random.IntN(12) == 0 {
		index += uint64(w.random.IntN(5))
	}
	var entries []*raft.Log
	after := maps.Clone(w.entries)
	or := []map[uint64]*raft.Log{w.entries}
	count := 1 + w.random.IntN(4)
	if w.random.IntN(10) == 0 {
		count = 40
	}
	for range count {
		e := w.entry(index)
		entries = append(entries, e)
		after[index] = e
		or = append(or, maps.Clone(after))
		index++
	}
	var err error
	done := w.may(func() {
		err = w.log.StoreLogs(entries)
		if RefusedForSpace(err) && w.random.IntN(4) > 0 {
			w.counts["retry"]++
			if w.random.IntN(4) > 0 { // else still full
				w.disk.full = false
			}
			switch other := w.random.IntN(8) == 0; {
			case other && count == 1: // another one, which only counts if nothing of the first was written
				e := w.entry(entries[0].Index)
				after, or = maps.Clone(w.entries), append(or, maps.Clone(w.entries))
				after[e.Index] = e
				or[len(or)-1][e.Index] = e
				err = w.log.StoreLogs([]*raft.Log{e})
			default:
				err = w.log.StoreLogs(entries)
			}
		}
	})
	if done && err == nil {
		w.entries = after
		return nil
	}
	w.or = or
	w.crash()
	return w.reopen()
}

func (w *world) remove(what string, from, to uint64) error {
	if to < from {
		return nil
	}
	w.counts["remove "+what]++
	_, last := w.bounds()
	after := maps.Clone(w.entries)
	maps.DeleteFunc(after, func(i uint64, _ *raft.Log) bool { return i >= from && i <= to })
	if to < last {
		w.head = max(w.head, to+1)
	}
	var err error
	if w.may(func() { err = w.log.DeleteRange(from, to) }) && err == nil {
		w.entries = after
		return nil
	}
	w.or = []map[uint64]*raft.Log{after}
	w.crash()
	return w.reopen()
}

// reopen opens the log, perhaps after starts that are cut off, and compares. What is found is what counts from then on: it
// must not change any more, although nothing was written since.
func (w *world) reopen() error {
	w.disk.full, w.disk.fail, w.note.lies = false, false, false
	for {
		var l *Log
		var err error
		if !w.may(func() { l, err = Open(w.options()) }) {
			w.counts["open cut off"]++
			w.crash()
			continue
		}
		if err != nil {
			return fmt.Errorf("open: %w", err)
		}
		w.log = l
		break
	}
	found := w.found(w.log)
	w.or = append(w.or, w.entries)
	for _, state := range w.or {
		if w.compare(w.log, state) == nil {
			w.entries, w.or = state, nil
			return nil
		}
	}
	return fmt.Errorf("%d entries, and they should be %d: %w", found, len(w.entries), w.compare(w.log, w.entries))
}

func (w *world) found(l *Log) (n int) {
	first, _ := l.FirstIndex()
	last, _ := l.LastIndex()
	return int(last - first)
}

// compare reads all of a log.
func (w *world) compare(l *Log, want map[uint64]*raft.Log) error {
	first, err := l.FirstIndex()
	if err != nil {
		return err
	}
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	low, high := uint64(0), uint64(0)
	for i := range want {
		if low == 0 || i < low {
			low = i
		}
		high = max(high, i)
	}
	if first != low || last != high {
		return fmt.Errorf("entries %d to %d, and they should be %d to %d", first, last, low, high)
	}
	for i := low; i > 0 && i <= high+1; i++ {
		var got raft.Log
		err := l.GetLog(i, &got)
		switch e := want[i]; {
		case e == nil && errors.Is(err, raft.ErrLogNotFound):
		case e == nil || err != nil:
			return fmt.Errorf("entry %d: %w", i, errors.Join(err, errors.New("it should not be there, or be")))
		case got.Index != e.Index || got.Term != e.Term || got.Type != e.Type || !bytes.Equal(got.Data, e.Data) || !bytes.Equal(got.Extensions, e.Extensions):
			return fmt.Errorf("entry %d has term %d, not %d, or other bytes", i, got.Term, e.Term)
		}
	}
	return nil
}

// rot damages what is at rest: a start refuses it, changing nothing, or has all that there was. clean says that the log was
// closed: then losing what was written last is noticed too.
func (w *world) rot(clean bool) error {
	before, record := w.disk.clone(), bytes.Clone(w.note.b)
	names := slices.Sorted(maps.Keys(w.disk.cached))
	i := w.disk.cached[names[w.random.IntN(len(names))]]
	what := ""
	switch n := w.random.IntN(12); {
	case n == 0:
		what = "a bit of the record"
		w.note.b[w.random.IntN(len(w.note.b))] ^= 1 << w.random.IntN(8)
	case n == 1:
		what = "a file gone"
		maps.DeleteFunc(w.disk.cached, func(_ string, o *inode) bool { return o == i })
	case n == 2:
		what = "a file cut off"
		i.data = i.data[:w.random.IntN(len(i.data)+1)]
	case n < 6 && clean:
		what = "sectors of zeros"
		for range 1 + w.random.IntN(3) {
			if len(i.data) > 0 {
				at := w.random.IntN(len(i.data)/sectorBytes) * sectorBytes
				copy(i.data[at:at+sectorBytes], zeros[:])
			}
		}
	case len(i.data) == 0:
		return nil
	default:
		what = "a bit"
		at := w.random.IntN(len(i.data))
		for range 20 { // most of a segment may be empty
			if i.data[at] != 0 {
				break
			}
			at = w.random.IntN(len(i.data))
		}
		i.data[at] ^= 1 << w.random.IntN(8)
	}
	damaged := w.disk.clone()
	l, err := Open(w.options())
	if err == nil {
		err = w.compare(l, w.entries)
		for _, state := range w.or {
			if err != nil {
				err = w.compare(l, state)
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		w.counts["rot harmless"]++
	} else {
		if !errors.Is(err, ErrDamaged) {
			return fmt.Errorf("%s: %w", what, err)
		}
		w.counts["rot refused"]++
		if !w.disk.same(damaged) {
			return fmt.Errorf("%s: a start that was refused has changed something", what)
		}
	}
	before.random = w.random
	*w.disk = *before
	w.note.b = record
	return nil
}

var (
	seeds     = flag.Int("model.seeds", 500, "how many seeds TestModel tries")
	firstSeed = flag.Uint64("model.seed", 0, "the first of them")
)

// M6, M7, I14, I19: whatever is done to it and wherever it is cut off, a log has every entry that was acknowledged, none that
// was removed, and in place of what was under way all of it or, of entries, any number of the first; what rots is refused,
// never taken for an end.
func TestModel(t *testing.T) {
	n := *seeds
	if testing.Short() {
		n = min(n, 100)
	}
	counts := map[string]int{}
	for seed := *firstSeed; seed < *firstSeed+uint64(n); seed++ {
		w := newWorld(seed, 0)
		if err := w.run(60); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for what, n := range w.counts {
			counts[what] += n
		}
	}
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		t.Log(what, counts[what])
		require.Greater(t, counts[what], n/10, what)
	}
	require.Len(t, counts, 14)
}

// Each step that a log takes care of is needed: without it the model finds a seed. Where that takes long, from is one.
func TestModelNoticesMutants(t *testing.T) {
	all := mutant(0)
	for _, m := range []struct {
		wrong mutant
		from  uint64
		name  string
	}{
		{mutantNoSync, 0, "an append returns before it is durable (M7)"},
		{mutantCutUnwritten, 0, "a tail is removed in memory only"},
		{mutantRotIsTorn, 0, "rot is taken for a torn append (M6)"},
		{mutantUnlinkFirst, 0, "segments are removed before the record says so (M6)"},
		{mutantTornStays, 0, "a torn append is not erased"},
		{mutantErasedOnce, 0, "what was erased once is believed to be gone"},
		{mutantCached, 0, "what a failed sync left is believed (M7)"},
		{mutantNameUnsynced, 0, "the name of a segment is not synced"},
		{mutantSegmentUnsynced, 0, "a segment is used before it is durable"},
		{mutantNoNumbers, 0, "batches are not counted"},
		{mutantNoDurable, 0, "the end noted at Close is not looked at"},
		{mutantAnyRetry, 11_900, "a refused append gives way to another one"},
	} {
		all |= m.wrong
		t.Run(m.name, func(t *testing.T) {
			for seed := m.from; seed < m.from+20_000; seed++ {
				if err := newWorld(seed, m.wrong).run(60); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Fatal("no seed notices it")
		})
	}
	require.Equal(t, mutantEnd-1, all)
}
