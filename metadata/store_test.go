package metadata

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testConfig is the configuration of broker 1 in dir.
func testConfig(t testing.TB, dir string) Config {
	cfg := Default()
	cfg.Dir = filepath.Join(dir, "metadata")
	cfg.NodeID = 1
	cfg.DirectoryID = DirectoryID{1}
	cfg.Bootstrap = true
	cfg.BallastBytes = 64 << 10
	cfg.segmentBytes = 64 << 10
	cfg.Rand = rand.New(rand.NewPCG(1, 2))
	cfg.OnFailure = func(err error) { t.Errorf("store failed: %v", err) }
	return cfg
}

// openStore opens a store, waits until it is ready, closes it with the test, and replays its log then.
func openStore(t testing.TB, cfg Config) *Store {
	t.Helper()
	s, err := Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		if _, benchmark := t.(*testing.B); !benchmark && !t.Failed() {
			verifyReplay(t, s)
		}
	})
	require.NoError(t, s.Ready(testContext(t)))
	return s
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// register registers a broker with one directory, whose id begins with the broker's.
func register(t testing.TB, s *Store, id BrokerID, incarnation byte) int64 {
	t.Helper()
	epoch, err := s.RegisterBroker(testContext(t), testRegistration(id, incarnation))
	require.NoError(t, err)
	beat(t, s, id, epoch)
	return epoch
}

func testRegistration(id BrokerID, incarnation byte) Registration {
	return Registration{
		ID:          id,
		Incarnation: [16]byte{byte(id), incarnation},
		Directories: []DirectoryID{{byte(id)}},
		Listeners:   []Listener{{Name: "PLAINTEXT", Host: "127.0.0.1", Port: 9092, Protocol: "PLAINTEXT"}},
	}
}

func newTopic(name string, partitions int32) NewTopic {
	return NewTopic{Name: name, Partitions: partitions, ReplicationFactor: -1}
}

func createTopics(t testing.TB, s *Store, topics ...NewTopic) []TopicResult {
	t.Helper()
	results := s.CreateTopics(testContext(t), topics, false)
	for _, r := range results {
		require.NoError(t, r.Err)
	}
	return results
}

// A broker is ready quickly, on a new directory and on an existing one. The durations are printed, not asserted.
func TestOpenToReady(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	var clusterID string
	for i := range 3 {
		start := time.Now()
		s, err := Open(cfg)
		require.NoError(t, err)
		opened := time.Since(start)
		require.NoError(t, s.Ready(testContext(t)))
		t.Logf("open %d: Open %v, Ready %v", i, opened, time.Since(start))
		if i == 0 {
			clusterID = s.Image().ClusterID()
			require.Regexp(t, `^millrace-[A-Za-z0-9_-]{22}$`, clusterID)
		}
		require.Equal(t, clusterID, s.Image().ClusterID(), "minted once")
		require.True(t, s.IsController())
		require.Equal(t, BrokerID(1), s.Image().ControllerID())
		register(t, s, 1, byte(i+1))
		createTopics(t, s, newTopic(fmt.Sprintf("t%d", i), 3))
		require.Equal(t, i+1, s.Image().TopicCount())
		require.NoError(t, s.Close())
	}
}

// is reports whether err matches one of kinds.
func is(err error, kinds ...error) bool {
	for _, k := range kinds {
		if errors.Is(err, k) {
			return true
		}
	}
	return false
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
