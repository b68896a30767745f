package metadata

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/raft"
)

// retainedSnapshots is how many snapshots are kept: the newest, and one to fall back to.
const retainedSnapshots = 2

// snapshotsDir is Raft's folder for them.
const snapshotsDir = "snapshots"

// damagedDir is where damaged snapshots are moved, beside the folder of the good ones; nothing is deleted (I16).
const damagedDir = "snapshots-damaged"

// recovered is what Raft's files say before Raft is started.
type recovered struct {
	st    *state
	index uint64 // of the last entry with commands in st
	from  uint64 // Raft's index of the snapshot that st is, 0 for none
	empty bool   // nothing was ever written here
}

// recoverState loads the newest snapshot that is whole, and makes sure that the log continues it without a gap. It does
// here what Raft would do by itself, because Raft falls back to an older snapshot without looking whether the entries
// in between still exist, and would come up with a state from which entries are missing (M6).
//
// Damaged newer snapshots are moved aside, so that Raft starts from the one that was loaded. If no start without loss is
// possible, nothing is touched and the error says so; the directory is never taken for an empty one.
func recoverState(cfg *Config, snaps raft.SnapshotStore, logs raft.LogStore) (*recovered, error) {
	dir, logger := cfg.Dir, cfg.Logger
	if err := removeUnfinished(dir, logger); err != nil {
		return nil, err
	}
	metas, err := snaps.List()
	if err != nil {
		return nil, fmt.Errorf("list metadata snapshots in %s: %w", dir, err)
	}
	first, err := logs.FirstIndex()
	if err != nil {
		return nil, err
	}
	last, err := logs.LastIndex()
	if err != nil {
		return nil, err
	}
	folders, err := snapshotFolders(dir)
	if err != nil {
		return nil, err
	}
	r := &recovered{st: newState(), empty: len(metas) == 0 && folders == 0 && last == 0}
	var damaged []string
	var why error
	for _, meta := range metas {
		st, index, err := loadSnapshot(snaps, meta.ID)
		if err == nil {
			r.st, r.index, r.from = st, index, meta.Index
			break
		}
		if errors.Is(err, errNewerVersion) {
			return nil, &Error{
				Kind: ErrPolicyViolation,
				What: fmt.Sprintf("this version can't read the metadata in %s", dir),
				Why:  fmt.Sprintf("snapshot %s: %v", meta.ID, err),
				Fix:  "start the version that wrote it, or a later one",
			}
		}
		why = errors.Join(why, fmt.Errorf("snapshot %s: %w", meta.ID, err))
		damaged = append(damaged, meta.ID)
	}
	reach, err := unreadReach(dir, metas, damaged)
	if err != nil {
		return nil, err
	}
	if err := checkContinues(logs, r.from, first, last, reach, folders > 0, len(damaged) > 0 || folders > len(metas)); err != nil {
		return nil, cfg.damaged(fmt.Sprintf("metadata in %s is damaged: %v", dir, err), whyDamaged(why, folders, len(metas)))
	}
	for _, id := range damaged {
		if err := moveAside(dir, id); err != nil {
			return nil, err
		}
		logger.Error("damaged metadata snapshot moved aside, continuing from an older one and the log",
			"snapshot", id, "to", filepath.Join(dir, damagedDir), "index", r.from, "error", why)
	}
	return r, nil
}

// damaged is the refusal to start on what cannot be trusted. A voter that has lost what it wrote must not come back as
// itself: it may vote twice, and entries that it had confirmed may be gone (M6, M14). An older copy of the folder has lost as
// much, so a backup is of use to a broker alone only.
func (c *Config) damaged(what, why string) error {
	fix := "put the folder back from a backup made while the broker was stopped; it is never treated as empty"
	if c.Transport != nil {
		fix = fmt.Sprintf("mv %s %s-damaged, then start the broker with --replace %d added, once: it fetches the metadata from the others, and its records stay", c.Dir, c.Dir, c.NodeID)
	}
	return &Error{Kind: ErrCorrupt, What: what, Why: why, Fix: fix}
}

// verifyRaft reads everything that Raft has written and will start from, and returns what is damaged or missing; founded
// says that there was something. It changes nothing. tail is the first entry behind the last gap, the first of all without one.
func verifyRaft(logs raft.LogStore, stable raft.StableStore, snaps raft.SnapshotStore, founded bool) (tail uint64, err error) {
	defer func() {
		if p := recover(); p != nil { // the decoder of entries, on garbage
			err = fmt.Errorf("%v", p)
		}
	}()
	metas, err := snaps.List()
	if err != nil {
		return 0, err
	}
	first, err := logs.FirstIndex()
	if err != nil {
		return 0, err
	}
	last, err := logs.LastIndex()
	if err != nil {
		return 0, err
	}
	tail = first
	var newest uint64 // term
	for _, meta := range metas {
		newest = max(newest, meta.Term)
	}
	for i := first; i <= last && last > 0; i++ {
		var entry raft.Log
		switch err := logs.GetLog(i, &entry); {
		case errors.Is(err, raft.ErrLogNotFound): // judged by recoverState
			tail = i + 1
		case err != nil:
			return 0, fmt.Errorf("read entry %d of %d to %d: %w", i, first, last, err)
		}
		newest = max(newest, entry.Term)
	}
	for _, key := range []string{"CurrentTerm", "LastVoteTerm"} {
		term, err := stable.GetUint64([]byte(key))
		if err != nil && !isNotFound(err) {
			return 0, err
		}
		if key == "CurrentTerm" && term < newest {
			return 0, fmt.Errorf("its term is %d, and there are entries or snapshots of term %d", term, newest)
		}
	}
	if founded && last == 0 && len(metas) == 0 {
		return 0, errors.New("it is empty, and the broker has been part of a cluster")
	}
	return tail, nil
}

// removeUnfinished removes what is left of snapshots that a crash cut off. Raft would list them for ever.
func removeUnfinished(dir string, logger *slog.Logger) error {
	unfinished, err := filepath.Glob(filepath.Join(dir, "snapshots", "*.tmp"))
	if err != nil {
		return fmt.Errorf("look for unfinished snapshots: %w", err)
	}
	for _, path := range unfinished {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("remove the unfinished snapshot %s: %w", path, err)
		}
		logger.Info("unfinished metadata snapshot removed", "path", path)
	}
	return nil
}

func whyDamaged(why error, folders, readable int) string {
	switch {
	case why != nil:
		return why.Error()
	case folders > readable:
		return fmt.Sprintf("%d of %d snapshots can't even be listed", folders-readable, folders)
	}
	return "entries or snapshots were removed by somebody else"
}

// checkContinues makes sure that the log, first to last, continues what ends at from. When that is an older snapshot,
// every entry is looked at: some between the two snapshots can be missing in the middle of the log, if the newer one was
// received from a leader. Then the log may also end before it: reach is the index up to which one that can't be read went.
func checkContinues(logs raft.LogStore, from, first, last, reach uint64, hadSnapshots, fellBack bool) error {
	switch {
	case reach > max(last, from):
		return fmt.Errorf("a snapshot that can't be read reached entry %d, the log ends at %d, the newest whole snapshot at %d", reach, last, from)
	case last == 0 && from == 0 && hadSnapshots:
		return errors.New("no snapshot can be read and the log is empty")
	case last <= from:
		return nil // nothing to continue with, or nothing after the snapshot
	case first > from+1:
		return fmt.Errorf("the log begins at entry %d, the newest whole snapshot ends at %d", first, from)
	}
	end := from + 1
	if fellBack {
		end = last
	}
	var entry raft.Log
	for i := from + 1; i <= end; i++ {
		if err := logs.GetLog(i, &entry); err != nil {
			return fmt.Errorf("entry %d of %d is missing: %w", i, last, err)
		}
	}
	return nil
}

func loadSnapshot(snaps raft.SnapshotStore, id string) (*state, uint64, error) {
	_, r, err := snaps.Open(id) // checks the checksum of the whole file
	if err != nil {
		return nil, 0, err
	}
	st, index, err := readSnapshot(r)
	return st, index, errors.Join(err, r.Close())
}

// snapshotFolders counts the snapshots in dir, readable or not.
func snapshotFolders(dir string) (int, error) {
	entries, err := os.ReadDir(filepath.Join(dir, "snapshots"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("list metadata snapshots: %w", err)
	}
	n := 0
	for _, e := range entries {
		if e.IsDir() && filepath.Ext(e.Name()) != ".tmp" {
			n++
		}
	}
	return n, nil
}

// unreadReach returns the highest Raft index that a snapshot reached which is damaged or can't be listed. Its folder's name has
// that: <term>-<index>-<ms>.
func unreadReach(dir string, metas []*raft.SnapshotMeta, damaged []string) (reach uint64, err error) {
	entries, err := os.ReadDir(filepath.Join(dir, snapshotsDir))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("list metadata snapshots: %w", err)
	}
	for _, e := range entries {
		listed := slices.ContainsFunc(metas, func(m *raft.SnapshotMeta) bool { return m.ID == e.Name() })
		var term, index, ms uint64
		if n, _ := fmt.Sscanf(e.Name(), "%d-%d-%d", &term, &index, &ms); n == 3 && (!listed || slices.Contains(damaged, e.Name())) {
			reach = max(reach, index)
		}
	}
	return reach, nil
}

func moveAside(dir, id string) error {
	to := filepath.Join(dir, damagedDir)
	if err := os.MkdirAll(to, 0o755); err != nil {
		return fmt.Errorf("move damaged snapshot %s aside: %w", id, err)
	}
	if err := os.Rename(filepath.Join(dir, "snapshots", id), filepath.Join(to, id)); err != nil {
		return fmt.Errorf("move damaged snapshot %s aside: %w", id, err)
	}
	return errors.Join(syncDir(filepath.Join(dir, "snapshots")), syncDir(to), syncDir(dir))
}

// syncDir makes the entries of a directory durable (L3).
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync directory %s: %w", path, err)
	}
	err = d.Sync()
	return errors.Join(err, d.Close())
}
