package metadata

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// A snapshot that a leader sends reaches further than the log of who gets it. Raft leaves the entries that the log has where
// they are, and goes on behind a gap. Some of them may never have been committed, if this server led before: were it to lead
// again, it would send them to a server that is further behind, which would apply them (I13). None of them is of use: from the
// older snapshot nothing leads across the gap (M6). So they go, when the snapshot has become the state, or at the start after.

// replacedBy removes the entries of a log that ends before a snapshot that was received. Raft waits for it, and touches the
// log not until then.
func (s *Store) replacedBy(snaps raft.SnapshotStore) {
	metas, err := snaps.List() // newest first
	if err == nil && len(metas) > 0 {
		err = dropReplaced(s.logs, metas[0].Index)
	}
	if err != nil {
		s.fail(fmt.Errorf("remove the raft entries that a received snapshot replaces: %w", err))
	}
}

func dropReplaced(logs raft.LogStore, through uint64) error {
	first, err := logs.FirstIndex()
	if err != nil {
		return err
	}
	last, err := logs.LastIndex()
	if err != nil || last == 0 || last >= through {
		return err
	}
	return logs.DeleteRange(first, last)
}

// dropReplacedAtStart is dropReplaced before Raft starts, of a log that a crash, or an earlier version, has left as it was: also
// of one that has gone on behind the gap. from is where the state ends that was loaded, tail the first entry behind the last gap.
func dropReplacedAtStart(logs raft.LogStore, from, tail uint64) error {
	first, err := logs.FirstIndex()
	if err != nil {
		return err
	}
	if tail > first && tail <= from+1 {
		err = logs.DeleteRange(first, tail-1)
	}
	return errors.Join(err, dropReplaced(logs, from))
}
