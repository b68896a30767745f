package metadata

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// Followers see a change once it is committed, not when Raft next has something to say (M12): here that would be an hour
// later.
func TestFollowersHearOfCommits(t *testing.T) {
	inQuorumWorld(t, 3, func(t *testing.T, w *quorumWorld) {
		for id := BrokerID(1); id <= 3; id++ {
			w.join(id)
		}
		w.voting(1, 2, 3)
		for _, n := range w.nodes() {
			w.kill(n)
		}
		w.untold = true
		var nodes []*quorumNode
		for id := BrokerID(1); id <= 3; id++ {
			nodes = append(nodes, w.open(id, DirectoryID{byte(id)}, 2))
		}
		leader := w.controller()
		change := func() uint64 {
			_, _, err := leader.AllocateProducerIDs(testContext(t))
			require.NoError(t, err)
			return leader.Image().Version()
		}
		change()
		change() // Raft begins to pipeline
		for range 3 {
			changed, version := time.Now(), change() // of the bubble: no time passes but where all wait
			for _, n := range nodes {
				watcher := n.Watch()
				for n.Image().Version() < version {
					<-watcher.C()
				}
				watcher.Close()
			}
			require.Zero(t, time.Since(changed))
		}
	})
}

// announcerFollower is the transport to one follower that takes everything.
type announcerFollower struct {
	raft.Transport
	refuses bool
	sent    chan raft.AppendEntriesRequest
}

func (f *announcerFollower) AppendEntries(_ raft.ServerID, _ raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	resp.Success = !f.refuses
	f.sent <- *args
	return nil
}

func (f *announcerFollower) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return silentPipeline{}, nil
}

type silentPipeline struct{ raft.AppendPipeline }

func (silentPipeline) Consumer() <-chan raft.AppendFuture { return nil }
func (silentPipeline) Close() error                       { return nil }

// A follower that got a lead's first entries before Raft began to pipeline is told of their commit all the same, at once: Raft's own
// news come a moment later only, and until then nothing goes through the pipeline.
func TestFollowersHearOfCommitsBeforeThePipeline(t *testing.T) {
	for _, committedFirst := range []bool{false, true} {
		for _, refuses := range []bool{false, true} {
			t.Run(fmt.Sprintf("committed first %t, refused %t", committedFirst, refuses), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := &announcerFollower{sent: make(chan raft.AppendEntriesRequest, 9), refuses: refuses}
					a := newAnnouncer(f)
					message := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ID: []byte("leader")}, Term: 3, PrevLogEntry: 4, Entries: []*raft.Log{{Index: 5, Term: 3}}, LeaderCommitIndex: 4}
					require.NoError(t, a.AppendEntries("x", "", message, new(raft.AppendEntriesResponse)))
					<-f.sent
					require.NoError(t, a.AppendEntries("x", "", &raft.AppendEntriesRequest{Term: 3}, new(raft.AppendEntriesResponse))) // a heartbeat
					<-f.sent
					if committedFirst {
						a.committed(5, 3)
					}
					pipeline, err := a.AppendEntriesPipeline("x", "")
					require.NoError(t, err)
					defer pipeline.Close()
					if !committedFirst {
						synctest.Wait()
						require.Empty(t, f.sent)
						a.committed(5, 3)
					}
					synctest.Wait()
					if refuses {
						require.Empty(t, f.sent, "nobody knows what it holds")
						return
					}
					require.Len(t, f.sent, 1)
					told := <-f.sent
					require.Equal(t, raft.AppendEntriesRequest{RPCHeader: message.RPCHeader, Term: 3, PrevLogEntry: 5, PrevLogTerm: 3, LeaderCommitIndex: 5}, told)
				})
			})
		}
	}
}

// countedPipeline takes messages; its answers come from answer.
type countedPipeline struct {
	raft.AppendPipeline
	sent    []time.Time
	answers chan raft.AppendFuture
}

func (p *countedPipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	p.sent = append(p.sent, time.Now())
	resp.Success = true
	return needlessAppend{args: args, resp: resp}, nil
}
func (p *countedPipeline) Consumer() <-chan raft.AppendFuture { return p.answers }
func (p *countedPipeline) Close() error                       { return nil }

type countedFollower struct {
	raft.Transport
	pipeline *countedPipeline
	broken   bool
}

func (f *countedFollower) AppendEntries(raft.ServerID, raft.ServerAddress, *raft.AppendEntriesRequest, *raft.AppendEntriesResponse) error {
	if f.broken {
		return errAlone
	}
	return nil
}

func (f *countedFollower) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return f.pipeline, nil
}

// What a follower has said that it knows is repeated to it now and then only; a commit that it has not answered for, an entry, and
// whatever comes after a heartbeat that failed are sent at once. No heartbeat is ever kept back (D5).
func TestLittleIsRepeatedToWhoHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		follower := &countedFollower{pipeline: &countedPipeline{answers: make(chan raft.AppendFuture)}}
		a := newAnnouncer(follower)
		pipeline, err := a.AppendEntriesPipeline("x", "")
		require.NoError(t, err)
		defer pipeline.Close()
		go func() { // Raft reads the answers
			for {
				select {
				case <-pipeline.Consumer():
				case <-pipeline.(*announcedFollower).closed:
					return
				}
			}
		}()
		send := func(last, commit uint64, entries ...*raft.Log) (sent bool) {
			before := len(follower.pipeline.sent)
			_, err := pipeline.AppendEntries(&raft.AppendEntriesRequest{Term: 3, PrevLogEntry: last, PrevLogTerm: 3, Entries: entries, LeaderCommitIndex: commit}, new(raft.AppendEntriesResponse))
			require.NoError(t, err)
			return len(follower.pipeline.sent) > before
		}
		answer := func(last, commit uint64) {
			follower.pipeline.answers <- needlessAppend{args: &raft.AppendEntriesRequest{Term: 3, PrevLogEntry: last, LeaderCommitIndex: commit}, resp: &raft.AppendEntriesResponse{Success: true}}
			synctest.Wait()
		}
		heartbeat := func() {
			_ = a.AppendEntries("x", "", &raft.AppendEntriesRequest{Term: 3}, new(raft.AppendEntriesResponse))
		}
		require.True(t, send(7, 6))
		require.True(t, send(7, 6), "it has not answered yet")
		answer(7, 6)
		require.False(t, send(7, 6))
		require.True(t, send(7, 7), "a commit that it has not heard of")
		answer(7, 7)
		require.True(t, send(7, 7, &raft.Log{Index: 8, Term: 3}), "an entry")
		require.True(t, send(8, 7), "an entry that it has not answered for")
		answer(8, 7)

		began, before := time.Now(), len(follower.pipeline.sent)
		for time.Since(began) < time.Minute {
			time.Sleep(375 * time.Millisecond) // as Raft's CommitTimeout has it
			heartbeat()
			if send(8, 7) {
				answer(8, 7)
			}
		}
		sent := follower.pipeline.sent[before:]
		require.InDelta(t, time.Minute/repeatAfter, len(sent), 8)
		for i := 1; i < len(sent); i++ {
			require.LessOrEqual(t, sent[i].Sub(sent[i-1]), repeatAfter+375*time.Millisecond)
		}

		time.Sleep(repeatAfter)
		require.True(t, send(8, 7))
		answer(8, 7)
		require.False(t, send(8, 7))
		follower.broken = true
		heartbeat()
		require.True(t, send(8, 7), "a heartbeat has failed: another process may be there")
	})
}
