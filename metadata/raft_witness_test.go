package metadata

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// lateAnswers is a transport whose followers' answers lie in the socket, as those to a process that stands still do, until each follower's
// are read.
type lateAnswers struct {
	raft.Transport
	mu   sync.Mutex
	late map[raft.ServerID]chan struct{}
}

func (l *lateAnswers) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	err := l.Transport.AppendEntries(id, target, args, resp)
	l.mu.Lock()
	read := l.late[id]
	l.mu.Unlock()
	if err == nil && read != nil {
		<-read
	}
	return err
}

func (l *lateAnswers) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

func (l *lateAnswers) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return preVote(l.Transport, id, target, args, resp)
}

// hold leaves the answers of these servers unread from now on, and returns what reads those of each.
func (l *lateAnswers) hold(ids ...raft.ServerID) (read []func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late = map[raft.ServerID]chan struct{}{}
	for _, id := range ids {
		c := make(chan struct{})
		l.late[id] = c
		read = append(read, sync.OnceFunc(func() { close(c) }))
	}
	return read
}

// TestLateAnswersProveNoLead: a controller stands still while another is elected, and reads afterwards what both others had answered
// before that, one after the other. It must not take that for a proof that it still leads: it would answer from its old Image, and
// give itself a lease (I18, R16).
func TestLateAnswersProveNoLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newQuorumWorld(t, 3)
		links := map[BrokerID]*lateAnswers{}
		w.edit = func(cfg *Config) {
			links[cfg.NodeID] = &lateAnswers{Transport: cfg.Transport}
			cfg.Transport = links[cfg.NodeID]
		}
		for id := BrokerID(1); id <= 3; id++ {
			w.join(id)
		}
		w.voting(1, 2, 3)
		old := w.controller()
		next := w.other(old)
		third := w.other(old, next)
		l := old.lead.Load()
		require.NoError(t, old.proveLead(l))

		// Both have answered, and the answers are not read.
		read := links[old.cfg.NodeID].hold(next.server().raft(), third.server().raft())
		defer func() { read[0](); read[1]() }()
		before, after := make(chan error, 1), make(chan error, 1)
		go func() { before <- old.proveLead(l) }()
		synctest.Wait()
		w.deafen(old, true)
		next.elect.now()
		synctest.Wait()
		_, _, err := next.AllocateProducerIDs(testContext(t))
		require.NoError(t, err)
		require.True(t, old.IsController(), "it has not noticed yet, or nothing is tested")

		go func() { after <- old.proveLead(l) }()
		synctest.Wait()
		read[0]()
		synctest.Wait()
		read[1]()
		<-before // when this was asked it did lead
		require.ErrorIs(t, <-after, ErrNotController)
	})
}

// TestWitnesses: only voters count, and only with what was sent afterwards and answered in the same term.
func TestWitnesses(t *testing.T) {
	follower := &answeringFollower{}
	w := newWitnesses(follower)
	servers := []raft.Server{{ID: "a"}, {ID: "b"}, {ID: "c"}, {ID: "n", Suffrage: raft.Nonvoter}, {ID: "m", Suffrage: raft.Nonvoter}}
	send := func(id raft.ServerID, term, answered uint64) {
		follower.term = answered
		require.NoError(t, w.AppendEntries(id, "", &raft.AppendEntriesRequest{Term: term}, &raft.AppendEntriesResponse{}))
	}
	moment := w.now()
	proven := func() bool { return w.prove("a", 5, moment, servers) }
	require.False(t, proven())
	send("n", 5, 5)
	send("m", 5, 5)
	require.False(t, proven(), "servers without a vote")
	send("b", 4, 4)
	send("b", 5, 6)
	require.False(t, proven(), "other terms")
	follower.during = func() { moment = w.now() }
	send("b", 5, 5)
	require.False(t, proven(), "sent before")
	follower.during = nil
	send("b", 5, 5)
	require.True(t, proven())
	follower.during = func() { follower.during = nil; send("c", 5, 5); moment = w.now() }
	send("c", 5, 5) // two at once, and the older one is answered last
	require.False(t, proven())
	send("c", 5, 5)
	send("c", 4, 4)
	require.True(t, proven(), "what is older is not forgotten for")
	require.True(t, w.prove("a", 5, moment, servers[:1]), "it is alone")
	require.False(t, w.prove("a", 6, moment, servers))
	require.False(t, w.prove("n", 5, w.now(), servers), "one that has no vote itself")
}

// answeringFollower answers messages with a term.
type answeringFollower struct {
	raft.Transport
	term   uint64
	during func() // happens between message and answer
}

func (f *answeringFollower) AppendEntries(_ raft.ServerID, _ raft.ServerAddress, _ *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	resp.Term = f.term
	if f.during != nil {
		f.during()
	}
	return nil
}
