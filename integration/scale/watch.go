package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/integration/member"
)

// watched is a set of members that run, and what has happened to them.
type watched struct {
	stop context.CancelFunc
	work sync.WaitGroup

	mu  sync.Mutex
	all []*seen
}

// seen is what has happened to one member.
type seen struct {
	group      string
	id         string
	generation int32
	synced     time.Time     // when it got its assignment in that generation
	told       time.Time     // when it last heard of a rebalance
	beat       time.Time     // when its last heartbeat was accepted
	gap        time.Duration // the longest between two of those, within a generation
	beats      int
	lost       int // how often the coordinator did not know it
}

func newWatched() *watched { return &watched{} }

// add starts a member; begin, which may be nil, bounds how many connect at once.
func (w *watched) add(ctx context.Context, cfg member.Config) *seen {
	s := &seen{group: cfg.Group}
	w.mu.Lock()
	w.all = append(w.all, s)
	w.mu.Unlock()
	cfg.Notice = func(e member.Event) {
		w.mu.Lock()
		defer w.mu.Unlock()
		switch e.Kind {
		case member.Told:
			s.told = e.At
		case member.Lost:
			s.lost++
		case member.Synced:
			s.id, s.generation, s.synced, s.beat = e.ID, e.Generation, e.At, e.At
		case member.Beat:
			s.gap = max(s.gap, e.At.Sub(s.beat))
			s.beat = e.At
			s.beats++
		}
	}
	m := member.New(cfg)
	w.work.Go(func() { m.Run(ctx) })
	return s
}

// look returns what has happened so far.
func (w *watched) look() []seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]seen, len(w.all))
	for i, s := range w.all {
		out[i] = *s
	}
	return out
}

// forget begins to look for gaps and losses anew.
func (w *watched) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.all {
		s.gap, s.lost, s.beats = 0, 0, 0
	}
}

// settled waits until all members of each group are in one generation, later than that of before where that says one.
func (w *watched) settled(ctx context.Context, d time.Duration, after map[string]int32) (generations map[string]int32, err error) {
	err = until(ctx, d, 5*time.Millisecond, func(context.Context) error {
		generations = map[string]int32{}
		w.mu.Lock()
		defer w.mu.Unlock()
		for i, s := range w.all {
			g, ok := generations[s.group]
			if !ok {
				g, generations[s.group] = s.generation, s.generation
			}
			if was, ok := after[s.group]; s.id == "" || s.generation != g || ok && s.generation <= was {
				return fmt.Errorf("member %d of %d is in generation %d, others in %d", i, len(w.all), s.generation, g)
			}
		}
		return nil
	})
	return generations, err
}

func (w *watched) end() {
	w.stop()
	w.work.Wait()
}
