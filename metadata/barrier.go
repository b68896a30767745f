package metadata

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// barriers are callbacks that wait until the Image here holds all that is committed by now, wherever it could be seen. There
// is one question to the controller at a time; who comes meanwhile waits for the next one, which all of them share.
type barriers struct {
	wake chan struct{}
	mu   sync.Mutex
	next []func(error) // not asked for yet
	over bool
}

// Barrier returns once the local Image holds everything that was committed before the call, on whichever broker it could be
// seen already (M12).
//
// Errors: ErrNotController when there is no controller to ask, ErrTimeout when the answer did not come in time, or this
// broker does not catch up, ErrClosed, ErrFailed, and ctx's. They say nothing about the Image.
func (s *Store) Barrier(ctx context.Context) error {
	outcome := make(chan error, 1)
	s.barriers.wait(func(err error) { outcome <- err })
	select {
	case err := <-outcome:
		return err
	case <-ctx.Done():
		return fmt.Errorf("wait for the newest metadata: %w", context.Cause(ctx))
	}
}

// WhenCurrent calls done as [Store.Barrier] would return, once, from another goroutine or before it returns. It does not
// block; done must not either.
func (s *Store) WhenCurrent(done func(err error)) { s.barriers.wait(done) }

// wait calls done as Barrier returns, from another goroutine.
func (b *barriers) wait(done func(err error)) {
	b.mu.Lock()
	over := b.over
	if !over {
		b.next = append(b.next, done)
	}
	b.mu.Unlock()
	if over {
		done(ErrClosed)
		return
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take returns those that wait.
func (b *barriers) take(last bool) []func(error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.next
	b.next, b.over = nil, b.over || last
	return taken
}

// askBarriers serves barriers until the Store is closed.
func (s *Store) askBarriers() {
	defer func() {
		for _, done := range s.barriers.take(true) {
			done(ErrClosed)
		}
	}()
	for {
		select {
		case <-s.barriers.wake:
		case <-s.stop:
			return
		}
		waiting := s.barriers.take(false)
		if len(waiting) == 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(s.lifetime, outboxTimeout)
		version, err := call(ctx, s, &opBarrier, none{})
		cancel()
		if err != nil {
			for _, done := range waiting {
				done(err)
			}
			continue
		}
		s.whenApplied(version, func(landed bool) {
			var err error
			if !landed {
				err = behind()
			}
			for _, done := range waiting {
				done(err)
			}
		})
	}
}

// behind is the answer to a barrier that this broker has not reached.
func behind() error {
	return &Error{
		Kind: ErrTimeout,
		What: "the newest metadata can't be seen on this broker yet",
		Why:  "it is behind the other brokers, cut off from them, or about to stop",
		Fix:  "try again in a moment, or ask another broker",
	}
}

// barrier returns the version of the last entry with commands that is committed, and so may have been seen anywhere. Its
// being the controller is proven after it has looked: another one can't have committed anything before that.
func (s *Store) barrier(_ context.Context, _ none) (version uint64, err error) {
	l, err := s.controller()
	if err != nil {
		return 0, err
	}
	committed := s.raft.CommitIndex()
	if err := s.proveLead(l); err != nil {
		return 0, err
	}
	// What is committed need not be applied here, but may be on another broker.
	return s.versionAt(committed)
}

// versionAt returns the version of the Image that has all entries up to an index: that of the last one with commands. Raft's applied
// index says less: it counts what the goroutine that applies entries has been handed.
func (s *Store) versionAt(index uint64) (version uint64, err error) {
	applied := s.Image().Version()
	for i := index; i > applied; i-- {
		var entry raft.Log
		switch err := s.logs.GetLog(i, &entry); {
		case errors.Is(err, raft.ErrLogNotFound):
			return applied, nil // in a snapshot, and so it has been applied
		case err != nil:
			return 0, fmt.Errorf("%w: read entry %d: %w", ErrBusy, i, err)
		case entry.Type == raft.LogCommand:
			return i, nil
		}
	}
	return applied, nil
}
