package metadata

import (
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// absentAfter is how many messages in a row must have failed before a server counts as absent: what a broken connection
	// costs is repeated at once.
	absentAfter = 3
	// absenceHeld is for how long at most a failed message to an absent server is not reported to Raft, which doubles its own
	// wait at each failure, twelve times. So it is at 10 s after more than ten minutes, instead of after ten seconds.
	absenceHeld = time.Minute
	// absenceLook is how often it is looked at meanwhile whether this server leads still.
	absenceLook = 250 * time.Millisecond
)

// awaiting is a transport that notices when a server is back. After each message that fails, Raft waits for twice as long as
// before, up to 10 s, and nothing wakes it: a broker that was away for half a minute got no entries for up to 10 s after its
// return, though its heartbeats were answered all the while. Here a message that failed is reported as such only when
// a heartbeat to the same server succeeds, and so Raft tries again a moment after. What Raft is told stays true, and it is told
// no less than that a message of its failed.
type awaiting struct {
	raft.Transport
	stop <-chan struct{}
	raft atomic.Pointer[raft.Raft] // nil before it has started

	mu     sync.Mutex
	absent map[raft.ServerID]*absence // those to which the last message failed
}

// absence is a server that messages don't reach. Guarded by awaiting.mu.
type absence struct {
	failures int           // in a row, of messages that are no heartbeats
	back     chan struct{} // closed by the next heartbeat that is answered
}

func newAwaiting(t raft.Transport, stop <-chan struct{}) *awaiting {
	return &awaiting{Transport: t, stop: stop, absent: make(map[raft.ServerID]*absence)}
}

// AppendEntries passes on a message of Raft's.
func (a *awaiting) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	err := a.Transport.AppendEntries(id, target, args, resp)
	if len(args.Entries) == 0 && args.PrevLogEntry == 0 && args.LeaderCommitIndex == 0 { // Raft's heartbeats say nothing more
		if err == nil {
			a.heard(id)
		}
		return err
	}
	a.sent(id, args.Term, err)
	return err
}

// InstallSnapshot passes on a snapshot.
func (a *awaiting) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	err := a.Transport.InstallSnapshot(id, target, args, resp, data)
	a.sent(id, args.Term, err)
	return err
}

// RequestPreVote is the method of raft.WithPreVote, which embedding the interface hides.
func (a *awaiting) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return preVote(a.Transport, id, target, args, resp)
}

// heard wakes who waits for a server.
func (a *awaiting) heard(id raft.ServerID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.absent[id]; s != nil && s.back != nil {
		close(s.back)
		s.back = nil
	}
}

// sent notes what came of a message, and returns when Raft may be told.
func (a *awaiting) sent(id raft.ServerID, term uint64, err error) {
	a.mu.Lock()
	if err == nil {
		delete(a.absent, id)
		a.mu.Unlock()
		return
	}
	s := a.absent[id]
	if s == nil {
		s = &absence{}
		a.absent[id] = s
	}
	s.failures++
	if s.failures < absentAfter {
		a.mu.Unlock()
		return
	}
	if s.back == nil {
		s.back = make(chan struct{})
	}
	back := s.back
	a.mu.Unlock()

	end := time.NewTimer(absenceHeld)
	defer end.Stop()
	look := time.NewTicker(absenceLook)
	defer look.Stop()
	for {
		select {
		case <-back:
			return
		case <-look.C:
			if !a.leads(term) { // nobody cares any more, and Raft's goroutine is to end
				return
			}
		case <-end.C:
			return
		case <-a.stop:
			return
		}
	}
}

// leads reports whether this server leads in that term, as far as it knows.
func (a *awaiting) leads(term uint64) bool {
	r := a.raft.Load()
	return r == nil || r.State() == raft.Leader && r.CurrentTerm() == term
}
