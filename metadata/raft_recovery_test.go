package metadata

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// snapshotsIn returns the folders of the snapshots, oldest first. One that is being written does not count.
func snapshotsIn(t *testing.T, cfg Config) []string {
	entries, err := os.ReadDir(filepath.Join(cfg.Dir, "snapshots"))
	require.NoError(t, err)
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { return strings.HasSuffix(e.Name(), ".tmp") })
	store, err := openSnapshots(cfg.Dir, discard())
	require.NoError(t, err)
	metas, err := store.List()
	require.NoError(t, err)
	require.Len(t, metas, len(entries))
	var out []string
	for _, m := range slices.Backward(metas) {
		out = append(out, filepath.Join(cfg.Dir, "snapshots", m.ID))
	}
	return out
}

// withSnapshots makes a directory with topics t0…, a snapshot after each of the given counts of topics, and one more
// topic at the end. The log is compacted as much as M6 allows.
func withSnapshots(t *testing.T, counts ...int) (Config, int) {
	cfg := testConfig(t, t.TempDir())
	cfg.TrailingEntries = 1
	cfg.SnapshotEntries = 1 << 40
	s, err := Open(cfg)
	require.NoError(t, err)
	require.NoError(t, s.Ready(testContext(t)))
	register(t, s, 1, 1)
	n := 0
	for _, count := range counts {
		for ; n < count; n++ {
			createTopics(t, s, newTopic(fmt.Sprintf("t%d", n), 1))
		}
		require.NoError(t, s.raft.Snapshot().Error())
	}
	createTopics(t, s, newTopic(fmt.Sprintf("t%d", n), 1))
	require.NoError(t, s.Close())
	return cfg, n + 1
}

func requireTopics(t *testing.T, cfg Config, n int) *Store {
	t.Helper()
	s := openStore(t, cfg)
	require.Equal(t, n, s.Image().TopicCount())
	for i := range n {
		require.NotNil(t, s.Image().Topic(fmt.Sprintf("t%d", i)))
	}
	return s
}

func flipBit(t *testing.T, path string) {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	b[len(b)/2] ^= 4
	require.NoError(t, os.WriteFile(path, b, 0o600))
}

// M6: with a damaged newest snapshot, however damaged, a broker starts from the older one and the log, loses nothing, and
// keeps what it could not read.
func TestDamagedNewestSnapshot(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, dir string){
		"bit in the state": func(t *testing.T, dir string) { flipBit(t, filepath.Join(dir, "state.bin")) },
		"state missing":    func(t *testing.T, dir string) { require.NoError(t, os.Remove(filepath.Join(dir, "state.bin"))) },
		"state cut":        func(t *testing.T, dir string) { require.NoError(t, os.Truncate(filepath.Join(dir, "state.bin"), 20)) },
		"meta garbled": func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "meta.json"), []byte("{"), 0o600))
		},
		"meta missing": func(t *testing.T, dir string) { require.NoError(t, os.Remove(filepath.Join(dir, "meta.json"))) },
	} {
		t.Run(name, func(t *testing.T) {
			cfg, n := withSnapshots(t, 3, 6)
			snaps := snapshotsIn(t, cfg)
			require.Len(t, snaps, 2)
			damage(t, snaps[1])
			s := requireTopics(t, cfg, n)
			// And it goes on: snapshots, restarts.
			createTopics(t, s, newTopic(fmt.Sprintf("t%d", n), 1))
			require.NoError(t, s.raft.Snapshot().Error())
			require.NoError(t, s.Close())
			requireTopics(t, cfg, n+1)
			kept, _ := filepath.Glob(filepath.Join(cfg.Dir, "snapshots*", filepath.Base(snaps[1])))
			require.Len(t, kept, 1, "the damaged one is still there")
		})
	}
}

// M6: when entries are missing between the newest snapshot that is whole and the log, the start is refused with the three
// lines, and nothing is changed, so that it is refused again. An older state is never taken for the present one, and the
// directory never for an empty one.
func TestDamagedSnapshotsRefuse(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, cfg Config, snaps []string){
		"all damaged": func(t *testing.T, cfg Config, snaps []string) {
			for _, dir := range snaps {
				flipBit(t, filepath.Join(dir, "state.bin"))
			}
		},
		"all metas": func(t *testing.T, cfg Config, snaps []string) {
			for _, dir := range snaps {
				require.NoError(t, os.Remove(filepath.Join(dir, "meta.json")))
			}
		},
		"all gone": func(t *testing.T, cfg Config, snaps []string) {
			require.NoError(t, os.RemoveAll(filepath.Join(cfg.Dir, "snapshots")))
		},
		"damaged, log gone": func(t *testing.T, cfg Config, snaps []string) {
			for _, dir := range snaps {
				flipBit(t, filepath.Join(dir, "state.bin"))
			}
			require.NoError(t, os.Remove(filepath.Join(cfg.Dir, databaseFile)))
		},
		"metas and log gone": func(t *testing.T, cfg Config, snaps []string) {
			for _, dir := range snaps {
				require.NoError(t, os.Remove(filepath.Join(dir, "meta.json")))
			}
			require.NoError(t, os.Remove(filepath.Join(cfg.Dir, databaseFile)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, _ := withSnapshots(t, 3, 6)
			snaps := snapshotsIn(t, cfg)
			damage(t, cfg, snaps)
			for range 2 {
				_, err := Open(cfg)
				requireMend(t, err, ErrCorrupt, cfg.Dir)
			}
			_, err := os.Stat(filepath.Join(cfg.Dir, damagedDir))
			require.ErrorIs(t, err, os.ErrNotExist, "nothing was moved")
		})
	}
}

// M6: an entry missing in the middle of the log, between the older snapshot and the damaged newer one, is found.
func TestGapBehindOlderSnapshot(t *testing.T) {
	cfg, _ := withSnapshots(t, 3, 6)
	db, err := cfg.openDatabase()
	require.NoError(t, err)
	logs, err := cfg.openEntries(db)
	require.NoError(t, err)
	first, err := logs.FirstIndex()
	require.NoError(t, err)
	last, err := logs.LastIndex()
	require.NoError(t, err)
	var all []*raft.Log
	for i := first; i <= last; i++ {
		all = append(all, readEntry(t, logs, i))
	}
	require.NoError(t, logs.DeleteRange(first, last))
	require.NoError(t, logs.StoreLogs(append(all[:1:1], all[2:]...)))
	require.NoError(t, logs.Close())
	require.NoError(t, db.Close())
	flipBit(t, filepath.Join(snapshotsIn(t, cfg)[1], "state.bin"))
	_, err = Open(cfg)
	requireMend(t, err, ErrCorrupt, "missing")
}

// M6: a snapshot from a leader may reach beyond the log. When it is damaged, the older one and the log are no substitute: what they
// lack this broker has confirmed.
func TestDamagedSnapshotBeyondTheLog(t *testing.T) {
	for name, damage := range map[string]string{"state": "state.bin", "meta": "meta.json"} {
		t.Run(name, func(t *testing.T) {
			cfg, _ := withSnapshots(t, 3, 6)
			snaps := snapshotsIn(t, cfg)
			db, err := cfg.openDatabase()
			require.NoError(t, err)
			logs, err := cfg.openEntries(db)
			require.NoError(t, err)
			var term, index, ms uint64
			_, err = fmt.Sscanf(filepath.Base(snaps[1]), "%d-%d-%d", &term, &index, &ms)
			require.NoError(t, err)
			last, err := logs.LastIndex()
			require.NoError(t, err)
			require.NoError(t, logs.DeleteRange(index, last))
			require.NoError(t, errors.Join(logs.Close(), db.Close()))
			flipBit(t, filepath.Join(snaps[1], damage))
			for range 2 {
				_, err = Open(cfg)
				requireMend(t, err, ErrCorrupt, "reached entry")
			}
		})
	}
}

// A damaged raft.db is an error, not a crash, and not an empty store.
func TestDamagedDatabase(t *testing.T) {
	cfg, _ := withSnapshots(t, 3)
	path := filepath.Join(cfg.Dir, databaseFile)
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	for name, bytes := range map[string][]byte{
		"zeros":   make([]byte, len(good)),
		"cut":     good[:5000],
		"garbage": slices.Concat([]byte("this is no database"), make([]byte, 1<<15)),
	} {
		require.NoError(t, os.WriteFile(path, bytes, 0o600))
		_, err := Open(cfg)
		require.Error(t, err, name)
	}
	require.NoError(t, os.WriteFile(path, good, 0o600))
	requireTopics(t, cfg, 4)
}

// M18: a bootstrap that was cut off between its two writes is taken up again; a directory with data is never bootstrapped
// again; without the permission nothing is formed.
func TestBootstrap(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	cfg.Bootstrap = false
	_, err := Open(cfg)
	requireMend(t, err, ErrCorrupt, "there is no metadata")
	cfg.Bootstrap = true
	db, err := cfg.openDatabase()
	require.NoError(t, err)
	require.NoError(t, db.SetUint64([]byte("CurrentTerm"), 1))
	require.NoError(t, db.Close())
	s := openStore(t, cfg)
	id := s.Image().ClusterID()
	require.NoError(t, s.Close())

	cfg.ClusterID = id
	require.NoError(t, openStore(t, cfg).Close())
	cfg.ClusterID = "millrace-other"
	s, err = Open(cfg)
	require.NoError(t, err)
	requireMend(t, s.Ready(testContext(t)), ErrClusterMismatch, id)
	require.False(t, s.IsController())
	require.NoError(t, s.Close())

	fresh := testConfig(t, t.TempDir())
	fresh.ClusterID = "millrace-given"
	require.Equal(t, "millrace-given", openStore(t, fresh).Image().ClusterID())
}

// M14: the metadata of another node, or of a node whose log directory was replaced, is not taken over.
func TestForeignMetadata(t *testing.T) {
	cfg, n := withSnapshots(t, 2)
	other := cfg
	other.DirectoryID = DirectoryID{99}
	_, err := Open(other)
	requireMend(t, err, ErrClusterMismatch)
	other = cfg
	other.NodeID = 2
	_, err = Open(other)
	requireMend(t, err, ErrClusterMismatch)
	requireTopics(t, cfg, n)
}

// Two processes can't use one directory.
func TestDirectoryIsLocked(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	openStore(t, cfg)
	_, err := Open(cfg)
	requireMend(t, err, ErrInvalidRequest, "another process")
}

func TestConfigValidate(t *testing.T) {
	good := testConfig(t, "x")
	require.NoError(t, good.Validate())
	for name, change := range map[string]func(*Config){
		"Dir":                     func(c *Config) { c.Dir = "" },
		"NodeID":                  func(c *Config) { c.NodeID = -1 },
		"DirectoryID":             func(c *Config) { c.DirectoryID = DirectoryID{} },
		"MaxPartitionsPerRequest": func(c *Config) { c.MaxPartitionsPerRequest = 0 },
		"TrailingEntries":         func(c *Config) { c.TrailingEntries = 0 },
		"SnapshotEntries":         func(c *Config) { c.SnapshotEntries = 0 },
	} {
		c := good
		change(&c)
		require.ErrorContains(t, c.Validate(), name)
		_, err := Open(c)
		require.ErrorContains(t, err, name)
	}
	bad := good
	bad.Dir = t.TempDir()
	bad.LeaderLease = 2 * bad.HeartbeatTimeout
	_, err := Open(bad)
	require.Error(t, err)
}

// M2: a snapshot of a newer version is not damaged. The start is refused, everything stays where it is.
func TestSnapshotOfNewerVersion(t *testing.T) {
	cfg, n := withSnapshots(t, 3, 6)
	newest := snapshotsIn(t, cfg)[1]
	metaPath, statePath := filepath.Join(newest, "meta.json"), filepath.Join(newest, "state.bin")
	meta, err := os.ReadFile(metaPath)
	require.NoError(t, err)
	good, err := os.ReadFile(statePath)
	require.NoError(t, err)
	header := &pb.SnapshotRecord{Record: &pb.SnapshotRecord_Header{Header: &pb.SnapshotHeader{FeatureLevel: 1}}}
	unknown := &pb.SnapshotRecord{}
	unknown.ProtoReflect().SetUnknown([]byte{0xf8, 0x3f, 1})
	later := &pb.SnapshotRecord{Record: &pb.SnapshotRecord_Header{Header: &pb.SnapshotHeader{FeatureLevel: MaxFeatureLevel + 1}}}
	bare := good[len(snapshotNoteMagic)+4+int(binary.LittleEndian.Uint32(good[len(snapshotNoteMagic):])):]
	format := slices.Clone(bare)
	format[len(snapshotMagic)-1]++
	for name, state := range map[string][]byte{"record": framed(t, header, unknown), "level": framed(t, later), "format": format} {
		var parsed map[string]any
		require.NoError(t, json.Unmarshal(meta, &parsed))
		sum := crc64.New(crc64.MakeTable(crc64.ECMA))
		sum.Write(state)
		parsed["CRC"] = sum.Sum(nil)
		changed, err := json.Marshal(parsed)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(metaPath, changed, 0o600))
		require.NoError(t, os.WriteFile(statePath, state, 0o600))
		_, err = Open(cfg)
		requireMend(t, err, ErrPolicyViolation, "newer version")
		require.Len(t, snapshotsIn(t, cfg), 2, name)

		f := newTestFSM(t)
		require.ErrorIs(t, f.Restore(io.NopCloser(bytes.NewReader(state))), errNewerVersion)
		require.Len(t, f.failures, 1, "and stops a follower that gets it from its leader")
	}
	note := slices.Clone(good)
	note[len(snapshotNoteMagic)-1]++
	var parsed map[string]any
	require.NoError(t, json.Unmarshal(meta, &parsed))
	sum := crc64.New(crc64.MakeTable(crc64.ECMA))
	sum.Write(note)
	parsed["CRC"] = sum.Sum(nil)
	changed, err := json.Marshal(parsed)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(metaPath, changed, 0o600))
	require.NoError(t, os.WriteFile(statePath, note, 0o600))
	_, err = Open(cfg)
	requireMend(t, err, ErrPolicyViolation, "newer version")
	require.NoError(t, os.WriteFile(metaPath, meta, 0o600))
	require.NoError(t, os.WriteFile(statePath, good, 0o600))
	unfinished := filepath.Join(cfg.Dir, "snapshots", "9-9-9.tmp")
	require.NoError(t, os.MkdirAll(unfinished, 0o700))
	requireTopics(t, cfg, n)
	require.NoDirExists(t, unfinished)
}
