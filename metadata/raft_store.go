package metadata

import (
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// logStore is Raft's log on disk, guarded: the first error of any kind is reported, and after it nothing is written any
// more. Raft itself would log the error, step down and go on with the same files, and the next sync of one may succeed
// although the pages of the failed one are gone (M7).
//
// It also holds on to what M6 needs: entries are removed from the front only up to the older of the two snapshots that
// are kept, so that a damaged newest snapshot leaves the older one and everything after it.
type logStore struct {
	next  raft.LogStore
	guard *guard
	// floor returns the index up to which entries may be removed from the front.
	floor func() (uint64, error)
}

// stableStore is Raft's term and vote on disk, guarded in the same way.
type stableStore struct {
	next  raft.StableStore
	guard *guard
}

// guard is shared by both: what one can't write the other may not add to.
type guard struct {
	failure func(error) // called once
	ballast *ballast
	noSpace func() // called when the ballast had to go
	disk    *diskWatch
	hold    func() // of tests: called before each write that Raft waits for; nil = none

	mu struct {
		sync.Mutex
		err error // the first error
	}
}

// writable returns the first error, wrapped, if there was one.
func (g *guard) writable() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.err != nil {
		return fmt.Errorf("%w: %w", ErrFailed, g.mu.err)
	}
	return nil
}

// watched is write for what Raft waits for, so that nothing goes on while it does not come back.
func (g *guard) watched(do func() error) error {
	g.disk.begin()
	defer g.disk.end()
	if g.hold != nil {
		g.hold()
	}
	return g.write(do)
}

// write runs a write, and once more if it was refused for lack of space and dropping the ballast may have made some.
func (g *guard) write(do func() error) error {
	err := do()
	if err == nil || !refusedForSpace(err) || !g.ballast.drop() {
		return err
	}
	g.noSpace()
	return do()
}

// check reports the first error. It returns err, after failure has returned: Raft must not go on before.
func (g *guard) check(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf(format+": %w", append(args, err)...)
	g.mu.Lock()
	first := g.mu.err == nil
	if first {
		g.mu.err = err
	}
	g.mu.Unlock()
	if first {
		g.failure(err)
	}
	return err
}

func (s *logStore) FirstIndex() (uint64, error) {
	i, err := s.next.FirstIndex()
	return i, s.guard.check(err, "read the first index of the raft log")
}

func (s *logStore) LastIndex() (uint64, error) {
	i, err := s.next.LastIndex()
	return i, s.guard.check(err, "read the last index of the raft log")
}

func (s *logStore) GetLog(index uint64, entry *raft.Log) error {
	err := s.next.GetLog(index, entry)
	if errors.Is(err, raft.ErrLogNotFound) {
		return err // an answer, not a failure
	}
	return s.guard.check(err, "read raft entry %d", index)
}

func (s *logStore) StoreLog(entry *raft.Log) error { return s.StoreLogs([]*raft.Log{entry}) }

func (s *logStore) StoreLogs(entries []*raft.Log) error {
	if len(entries) == 0 {
		return nil
	}
	if err := s.guard.writable(); err != nil {
		return err
	}
	err := s.guard.watched(func() error { return s.next.StoreLogs(entries) })
	return s.guard.check(err, "write raft entries %d to %d", entries[0].Index, entries[len(entries)-1].Index)
}

// DeleteRange removes entries: behind a snapshot from the front, bounded by floor, or a tail that another leader
// replaces, as asked.
func (s *logStore) DeleteRange(first, last uint64) error {
	if err := s.guard.writable(); err != nil {
		return err
	}
	end, err := s.LastIndex()
	if err != nil {
		return err
	}
	if last < end {
		floor, err := s.floor()
		if err != nil {
			return fmt.Errorf("list snapshots before removing raft entries %d to %d: %w", first, last, err)
		}
		if last = min(last, floor); last < first {
			return nil
		}
	}
	err = s.guard.write(func() error { return s.next.DeleteRange(first, last) })
	return s.guard.check(err, "remove raft entries %d to %d", first, last)
}

func (s *stableStore) Set(key, val []byte) error {
	if err := s.guard.writable(); err != nil {
		return err
	}
	err := s.guard.watched(func() error { return s.next.Set(key, val) })
	return s.guard.check(err, "write raft state %s", key)
}

func (s *stableStore) SetUint64(key []byte, val uint64) error {
	if err := s.guard.writable(); err != nil {
		return err
	}
	err := s.guard.watched(func() error { return s.next.SetUint64(key, val) })
	return s.guard.check(err, "write raft state %s", key)
}

func (s *stableStore) Get(key []byte) ([]byte, error) {
	val, err := s.next.Get(key)
	if isNotFound(err) {
		return val, err
	}
	return val, s.guard.check(err, "read raft state %s", key)
}

func (s *stableStore) GetUint64(key []byte) (uint64, error) {
	val, err := s.next.GetUint64(key)
	if isNotFound(err) {
		return val, err
	}
	return val, s.guard.check(err, "read raft state %s", key)
}

// isNotFound recognizes a missing key as Raft does, by the text: its stores have no common sentinel.
func isNotFound(err error) bool { return err != nil && err.Error() == "not found" }
