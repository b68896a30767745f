package metadata

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// reopen closes a store and opens its directory again.
func reopen(t testing.TB, s *Store) *Store {
	t.Helper()
	require.NoError(t, s.Close())
	return openStore(t, s.cfg)
}

// P5: producer ids are never given out twice, whatever happens between allocation and use: the store is closed in the
// middle of allocations, again and again, so that blocks are lost and outcomes stay unknown.
func TestProducerIDsAcrossRestarts(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	type block struct {
		first, end int64
		by         string
	}
	var taken []block
	var mu sync.Mutex
	take := func(first int64, count int, by string) {
		mu.Lock()
		defer mu.Unlock()
		taken = append(taken, block{first, first + int64(count), by})
	}
	blocks := 0
	for round := range 8 {
		s, err := Open(cfg)
		require.NoError(t, err)
		require.NoError(t, s.Ready(testContext(t)))
		var wg sync.WaitGroup
		enough := make(chan struct{})
		var once sync.Once
		for worker := range 4 {
			wg.Go(func() {
				for i := 0; ; i++ {
					first, count, err := s.AllocateProducerIDs(testContext(t))
					if err != nil {
						if !is(err, ErrClosed, ErrTimeout, ErrNotController) {
							t.Error(err)
						}
						return
					}
					require.Equal(t, producerIDBlock, count)
					take(first, count, fmt.Sprintf("%d/%d/%d", round, worker, i))
					if i == 5 {
						once.Do(func() { close(enough) })
					}
				}
			})
		}
		<-enough
		require.NoError(t, s.Close())
		wg.Wait()
		require.Greater(t, len(taken), blocks)
		blocks = len(taken)
	}
	slices.SortFunc(taken, func(a, b block) int { return cmp.Compare(a.first, b.first) })
	for i := 1; i < len(taken); i++ {
		require.GreaterOrEqual(t, taken[i].first, taken[i-1].end, "%v and %v", taken[i-1], taken[i])
	}
}

// L12, D14: tombstones outlive restarts and snapshots; an id is known to be deleted for as long as anybody can ask.
func TestTombstonesAcrossRestarts(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	cfg.TrailingEntries = 1
	s := openStore(t, cfg)
	register(t, s, 1, 1)
	var gone []TopicID
	for round := range 3 {
		for i := range 3 {
			r := createTopics(t, s, newTopic("again", 1), newTopic(fmt.Sprintf("other-%d-%d", round, i), 1))
			gone = append(gone, r[0].ID)
			require.NoError(t, s.DeleteTopics(testContext(t), []TopicRef{{Name: "again"}})[0].Err)
		}
		require.NoError(t, s.raft.Snapshot().Error())
		s = reopen(t, s)
		for _, id := range gone {
			require.True(t, s.Image().Tombstone(id))
			require.Nil(t, s.Image().TopicByID(id))
		}
		require.False(t, s.Image().Tombstone(TopicID{123}))
	}
	unique := map[TopicID]bool{}
	for _, id := range gone {
		unique[id] = true
	}
	require.Len(t, unique, 9, "every incarnation had an id of its own")
}

// M12 on one broker: what an operation has answered can be seen in the Image at once, and is there after a restart.
func TestAcknowledgedSurvivesRestart(t *testing.T) {
	s := openStore(t, testConfig(t, t.TempDir()))
	epoch := register(t, s, 1, 1)
	model := map[string]int32{}
	configs := map[string]string{}
	for round := range 6 {
		for i := range 5 {
			name := fmt.Sprintf("t-%d-%d", round, i)
			n := int32(i + 1)
			createTopics(t, s, newTopic(name, n))
			model[name] = n
			require.Len(t, s.Image().Topic(name).Partitions, int(n))
			require.NoError(t, s.CreatePartitions(testContext(t), []NewPartitions{{Topic: name, Count: n + 2}}, false)[0].Err)
			model[name] = n + 2
			require.Len(t, s.Image().Topic(name).Partitions, int(n)+2)
			configs[name] = fmt.Sprint(1000 + round)
			change := ConfigChange{Resource{TopicResource, name}, []ConfigOp{{"retention.ms", ConfigSet, ptr(configs[name])}}}
			require.NoError(t, s.AlterConfigs(testContext(t), []ConfigChange{change}, false, false)[0])
			require.Equal(t, configs[name], s.Image().Topic(name).Configs["retention.ms"])
			if i == 3 {
				require.NoError(t, s.DeleteTopics(testContext(t), []TopicRef{{Name: name}})[0].Err)
				require.Nil(t, s.Image().Topic(name))
				delete(model, name)
			}
		}
		version := s.Image().Version()
		leaderEpochs := map[string]int32{}
		for topic := range s.Image().Topics() {
			leaderEpochs[topic.Name] = topic.Partitions[0].LeaderEpoch
		}
		s = reopen(t, s)
		require.GreaterOrEqual(t, s.Image().Version(), version)
		next := register(t, s, 1, byte(round+2))
		require.Equal(t, epoch+1, next, "broker epochs go on (I15)")
		epoch = next
		got := map[string]int32{}
		for topic := range s.Image().Topics() {
			got[topic.Name] = int32(len(topic.Partitions))
			require.Equal(t, configs[topic.Name], topic.Configs["retention.ms"])
			require.Equal(t, leaderEpochs[topic.Name]+1, topic.Partitions[0].LeaderEpoch, "R14")
		}
		require.Equal(t, model, got)
	}
}

// M4, M20: a soak with a snapshot about every 50 entries, restarts in between, large topics among small ones: the state
// is that of a model all the time.
func TestSoakWithSnapshots(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	cfg.SnapshotEntries = 50
	cfg.SnapshotInterval = 5e6 // 5 ms
	cfg.TrailingEntries = 10
	s := openStore(t, cfg)
	register(t, s, 1, 1)
	model := map[string]int{}
	for round := range 4 {
		for i := range 120 {
			name := fmt.Sprintf("t%d", (i*31+round)%40)
			if _, ok := model[name]; ok {
				require.NoError(t, s.DeleteTopics(testContext(t), []TopicRef{{Name: name}})[0].Err)
				delete(model, name)
				continue
			}
			n := 1 + i%3
			if i%40 == 0 {
				n = 1000
			}
			createTopics(t, s, newTopic(name, int32(n)))
			model[name] = n
		}
		before := s
		s = reopen(t, s)
		require.Equal(t, stateHash(before.fsm.st, before.fsm.index), stateHash(s.fsm.st, s.fsm.index), "I14")
		got := map[string]int{}
		for topic := range s.Image().Topics() {
			got[topic.Name] = len(topic.Partitions)
		}
		require.Equal(t, model, got)
		register(t, s, 1, byte(round+2))
	}
	require.NoError(t, s.Close()) // one that is being written is renamed, and the oldest removed, at any moment before
	require.Len(t, snapshotsIn(t, cfg), retainedSnapshots, "it did make snapshots")
	first, err := closedLog(t, cfg).FirstIndex()
	require.NoError(t, err)
	require.Greater(t, first, uint64(100), "and compact the log behind them")
}

// M20: a creation too large for one entry is a chain of entries, none above the bound, and is seen as a whole.
func TestHugeTopic(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	cfg.MaxPartitionsPerRequest = 60_000
	s := openStore(t, cfg)
	for id := BrokerID(1); id <= 3; id++ {
		register(t, s, id, 1)
	}
	w := s.Watch()
	defer w.Close()
	seen := map[int]bool{}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-w.C():
				seen[s.Image().PartitionCount()] = true
			case <-stop:
				return
			}
		}
	})
	createTopics(t, s, NewTopic{Name: "huge", Partitions: 50_000, ReplicationFactor: 3})
	close(stop)
	wg.Wait()
	seen[s.Image().PartitionCount()] = true
	require.Equal(t, []int{0, 50_000}, slices.Sorted(maps.Keys(seen)))
	entries := 0
	require.NoError(t, s.Close())
	logs := closedLog(t, cfg)
	last, err := logs.LastIndex()
	require.NoError(t, err)
	for i := uint64(1); i <= last; i++ {
		l := readEntry(t, logs, i)
		require.LessOrEqual(t, len(l.Data), maxEntryBytes)
		if len(l.Data) > maxCommandBytes/2 {
			entries++
		}
	}
	require.Greater(t, entries, 1)
}
