package replication

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

// fsmStore is the metadata of a cluster in one process: the real FSM behind an ideal log, changed at once for all who
// look.
type fsmStore struct {
	t  testing.TB
	mu struct {
		sync.Mutex
		r       *metadata.Replica
		signals []func()
		topics  byte
	}
	image atomic.Pointer[metadata.Image]
}

func newFSMStore(t testing.TB) *fsmStore {
	s := &fsmStore{t: t}
	s.mu.r = metadata.NewReplica()
	s.image.Store(s.mu.r.Image())
	return s
}

func (s *fsmStore) Image() *metadata.Image { return s.image.Load() }

// change commits what fn does.
func (s *fsmStore) change(fn func(r *metadata.Replica)) {
	s.mu.Lock()
	fn(s.mu.r)
	s.image.Store(s.mu.r.Image())
	signals := s.mu.signals
	s.mu.Unlock()
	for _, signal := range signals {
		signal()
	}
}

func (s *fsmStore) must(fn func(r *metadata.Replica) error) {
	s.t.Helper()
	s.change(func(r *metadata.Replica) { require.NoError(s.t, fn(r)) })
}

// nodeStore is what one process sees of it: everything, or, while it is cut off, what it had seen by then.
type nodeStore struct {
	*fsmStore
	life   *life
	frozen atomic.Pointer[metadata.Image]
	signal func()
}

// Image implements Metadata.
func (s *nodeStore) Image() *metadata.Image {
	if im := s.frozen.Load(); im != nil {
		return im
	}
	return s.fsmStore.Image()
}

// Watch implements Metadata.
func (s *nodeStore) Watch() *metadata.Watcher {
	w, signal := metadata.NewWatcher()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.signal = signal
	s.mu.signals = append(s.mu.signals, signal)
	return w
}

// AlterPartition implements Metadata.
func (s *nodeStore) AlterPartition(_ context.Context, leader metadata.BrokerID, epoch int64, changes []metadata.PartitionChange) []metadata.PartitionResult {
	results := make([]metadata.PartitionResult, len(changes))
	s.life.gate.RLock()
	defer s.life.gate.RUnlock()
	if s.life.dead || s.frozen.Load() != nil {
		for i := range results {
			results[i].Err = metadata.ErrTimeout
		}
		return results
	}
	s.change(func(r *metadata.Replica) {
		for i, ch := range changes {
			p, err := r.AlterPartition(leader, epoch, ch)
			if results[i].Err = err; err == nil {
				results[i].Partition = *p
			}
		}
	})
	return results
}

// MarkersWritten implements Metadata.
func (s *nodeStore) MarkersWritten(markers []metadata.WrittenMarker, done func(error)) {
	s.life.gate.RLock()
	defer s.life.gate.RUnlock()
	if s.life.dead || s.frozen.Load() != nil {
		done(metadata.ErrTimeout)
		return
	}
	var err error
	s.change(func(r *metadata.Replica) {
		if b := r.Image().Broker(s.life.id); b != nil {
			err = r.MarkersWritten(b.ID, b.Epoch, markers)
		}
	})
	done(err)
}
