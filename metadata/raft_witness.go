package metadata

import (
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// witnesses is a transport that remembers until when each follower is known to have taken this server for its leader: a proof of the lead
// that Raft does not give. [raft.Raft.VerifyLeader] counts any answer that comes in after the question, from non-voters too, and answers
// to messages from long before can wait in the sockets of a process that stood still, several from each follower.
//
// An answer that bears the term of its message says that the follower knew no newer term at some moment after that was sent. If a
// majority of the voters says so of messages sent after a moment, no other server was elected before it: that one would have had the
// vote of one of them, which would know the newer term.
type witnesses struct {
	raft.Transport

	// clock orders messages and questions: it counts questions. It is no time, which may stand still with the machine.
	clock atomic.Uint64

	mu   sync.Mutex
	seen map[raft.ServerID]witness
}

// witness is what an answer says of a follower.
type witness struct {
	term uint64 // of the message, and of the answer
	sent uint64 // the clock before the message was sent
}

func newWitnesses(t raft.Transport) *witnesses {
	return &witnesses{Transport: t, seen: make(map[raft.ServerID]witness)}
}

// AppendEntries passes on a message that is sent outside of a pipeline, as all heartbeats are.
func (w *witnesses) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	sent := w.clock.Load()
	err := w.Transport.AppendEntries(id, target, args, resp)
	if err != nil || resp.Term != args.Term {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if old := w.seen[id]; args.Term > old.term || args.Term == old.term && sent > old.sent {
		w.seen[id] = witness{args.Term, sent}
	}
	return nil
}

// RequestPreVote is the method of raft.WithPreVote, which embedding the interface hides.
func (w *witnesses) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return preVote(w.Transport, id, target, args, resp)
}

// now returns a moment: messages that are sent from now on are sent after it.
func (w *witnesses) now() (moment uint64) { return w.clock.Add(1) }

// prove reports whether a majority of the voters has taken the server self for the leader of a term after a moment. What self itself
// knows is for the caller to look at.
func (w *witnesses) prove(self raft.ServerID, term, moment uint64, servers []raft.Server) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	voters, told := 0, 0
	for _, s := range servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if seen := w.seen[s.ID]; s.ID == self || seen.term == term && seen.sent >= moment {
			told++
		}
	}
	return told > voters/2
}
