package metadata

import (
	"container/heap"
	"sync"
	"time"
)

// landings are callbacks that wait until this broker has applied what it knows to be committed (M12).
type landings struct {
	wake chan struct{}
	mu   sync.Mutex
	heap landingHeap
	over bool
}

type landing struct {
	version  uint64
	deadline time.Time
	done     func(landed bool)
}

// landingPoll is how often landings are looked at that have waited too long.
const landingPoll = time.Second

// whenApplied calls done(true) once the Image has reached a version, at once if it has; done(false) when it has not within
// outboxTimeout, for this broker is cut off from the quorum, or can't any more, for the Store closes or has failed.
func (s *Store) whenApplied(version uint64, done func(landed bool)) {
	if s.Image().Version() >= version {
		done(true)
		return
	}
	s.landings.mu.Lock()
	over := s.landings.over
	if !over {
		heap.Push(&s.landings.heap, landing{version, time.Now().Add(outboxTimeout), done})
	}
	s.landings.mu.Unlock()
	if over {
		done(false)
		return
	}
	select {
	case s.landings.wake <- struct{}{}: // the Image may have come meanwhile
	default:
	}
}

// land serves landings, until the Store is closed or fails.
func (s *Store) land() {
	w := s.Watch()
	defer w.Close()
	poll := time.NewTicker(landingPoll)
	defer poll.Stop()
	for {
		select {
		case <-w.C():
		case <-s.landings.wake:
		case now := <-poll.C:
			for _, l := range s.landings.overdue(now) {
				l.done(false)
			}
		case <-s.failed.c:
			s.landings.end()
			return
		case <-s.stop:
			s.landings.end()
			return
		}
		for _, l := range s.landings.through(s.Image().Version()) {
			l.done(true)
		}
	}
}

// through takes out those that wait for a version or an earlier one.
func (ls *landings) through(version uint64) (out []landing) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for len(ls.heap) > 0 && ls.heap[0].version <= version {
		out = append(out, heap.Pop(&ls.heap).(landing))
	}
	return out
}

// overdue takes out those that have waited too long.
func (ls *landings) overdue(now time.Time) (out []landing) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	kept := ls.heap[:0]
	for _, l := range ls.heap {
		if l.deadline.After(now) {
			kept = append(kept, l)
		} else {
			out = append(out, l)
		}
	}
	clear(ls.heap[len(kept):])
	ls.heap = kept
	heap.Init(&ls.heap)
	return out
}

func (ls *landings) end() {
	ls.mu.Lock()
	left := ls.heap
	ls.heap, ls.over = nil, true
	ls.mu.Unlock()
	for _, l := range left {
		l.done(false)
	}
}

// landingHeap is a heap by version.
type landingHeap []landing

func (h landingHeap) Len() int           { return len(h) }
func (h landingHeap) Less(i, j int) bool { return h[i].version < h[j].version }
func (h landingHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *landingHeap) Push(x any)        { *h = append(*h, x.(landing)) }
func (h *landingHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = landing{}
	*h = old[:len(old)-1]
	return last
}
