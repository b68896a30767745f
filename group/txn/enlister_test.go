package txn

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

// enlisterStore is a metadata store of one broker that counts what is proposed.
type enlisterStore struct {
	t        *testing.T
	mu       sync.Mutex // guards replica
	replica  *metadata.Replica
	epoch    int64
	signals  func()
	watcher  *metadata.Watcher
	proposed atomic.Int32
}

const enlistedID = "an id"

var enlistedTopic = metadata.TopicID{7}

func newEnlisterStore(t *testing.T) *enlisterStore {
	s := &enlisterStore{t: t, replica: metadata.NewReplica()}
	s.replica.Settings.MinInsyncReplicas = 1
	var err error
	s.epoch, err = s.replica.Register(metadata.Registration{
		ID: 0, Incarnation: [16]byte{1}, Directories: []metadata.DirectoryID{{1}}, Version: "test",
		Listeners:       []metadata.Listener{{Name: "PLAINTEXT", Host: "localhost", Port: 9092, Protocol: "PLAINTEXT"}},
		MinFeatureLevel: metadata.MinFeatureLevel, MaxFeatureLevel: metadata.MaxFeatureLevel,
	}, false)
	require.NoError(t, err)
	require.NoError(t, s.replica.CreateTopic("t", enlistedTopic, nil, [][]metadata.BrokerID{{0}, {0}}))
	s.watcher, s.signals = metadata.NewWatcher()
	return s
}

func (s *enlisterStore) Image() *metadata.Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replica.Image()
}

// do changes the replica, which the Enlister's goroutine reads too.
func (s *enlisterStore) do(fn func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fn()
}

func (s *enlisterStore) Watch() *metadata.Watcher { return s.watcher }

func (s *enlisterStore) AddToTransaction(addition metadata.TransactionAddition, done func(error)) {
	s.proposed.Add(1)
	done(s.do(func() error { return s.replica.AddToTransaction(0, s.epoch, addition) }))
}

// change moves the transaction on, from what it is now.
func (s *enlisterStore) change(with func(c *metadata.TransactionChange)) {
	s.t.Helper()
	c := metadata.TransactionChange{ID: enlistedID, LastProducerID: -1, LastProducerEpoch: -1, MarkerProducerID: -1, MarkerEpoch: -1, Timeout: time.Minute, Version: 2}
	if t := s.Image().Transaction(enlistedID); t != nil {
		c.Revision, c.State, c.ProducerID, c.ProducerEpoch = t.Revision, t.State, t.ProducerID, t.ProducerEpoch
	}
	with(&c)
	require.NoError(s.t, s.do(func() error {
		_, err := s.replica.ChangeTransaction(0, s.epoch, c)
		return err
	}))
}

// A producer that is ahead of its markers waits for them without a proposal that could only be refused; another pair is
// judged by the metadata at once.
func TestEnlisterWaitsForMarkersWithoutProposing(t *testing.T) {
	s := newEnlisterStore(t)
	first, _, err := s.replica.AllocateProducerIDs()
	require.NoError(t, err)
	s.change(func(c *metadata.TransactionChange) { c.ProducerID = first })
	e := NewEnlister(s, time.Hour, nil, nil)
	defer e.Close()
	answers := make(chan error, 1)
	enlist := func(epoch int16, partition int32) {
		e.Enlist(EnlistRequest{Membership{enlistedID, first, epoch}, []metadata.TopicPartitions{{TopicID: enlistedTopic, Partitions: []int32{partition}}}}, func(err error) { answers <- err })
	}
	enlist(0, 0)
	require.NoError(t, <-answers)
	require.EqualValues(t, 1, s.proposed.Load())
	enlist(0, 0)
	require.NoError(t, <-answers)
	require.EqualValues(t, 1, s.proposed.Load(), "what is in the transaction is not proposed again")

	s.change(func(c *metadata.TransactionChange) {
		c.State, c.LastProducerID, c.LastProducerEpoch = metadata.TransactionPrepareCommit, first, 0
		c.MarkerProducerID, c.MarkerEpoch, c.ProducerEpoch = first, 1, 1
	})
	enlist(1, 1)
	require.EqualValues(t, 1, s.proposed.Load(), "its markers are not written")
	require.Empty(t, answers)
	enlist(0, 1)
	require.Error(t, <-answers, "the pair of before")
	require.EqualValues(t, 2, s.proposed.Load())

	written := []metadata.WrittenMarker{{
		ProducerID: first, Epoch: 1, Number: s.Image().Transaction(enlistedID).Number, Partitions: []metadata.TopicPartitions{{TopicID: enlistedTopic, Partitions: []int32{0}}},
	}}
	require.NoError(t, s.do(func() error { return s.replica.MarkersWritten(0, s.epoch, written) }))
	s.signals()
	require.NoError(t, <-answers)
	require.True(t, Membership{enlistedID, first, 1}.Has(s.Image(), enlistedTopic, 1))
	require.EqualValues(t, 3, s.proposed.Load())
}
