package metadata

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"
	"github.com/stretchr/testify/require"
)

// D2, M17: brokers that join a lone voter over links of 100 ms enter as non-voters, one at a time, and vote once they have
// caught up, up to the quorum's size; the others never do. Nothing is held up meanwhile.
func TestVotersGrow(t *testing.T) {
	inQuorumWorld(t, 3, func(t *testing.T, w *quorumWorld) {
		w.link = 100 * time.Millisecond / 2
		first := w.join(1)
		require.True(t, first.IsController(), "a lone voter waits for nobody")
		createTopics(t, first.Store, newTopic("before", 50))
		for id := BrokerID(2); id <= 5; id++ {
			n := w.join(id)
			require.Equal(t, 50, len(n.Image().Topic("before").Partitions))
			voters, _ := first.ids()
			require.NotContains(t, voters, id, "ready comes before the vote")
		}
		w.voting(1, 2, 3)
		w.pass(time.Minute)
		w.voting(1, 2, 3)
		voters, others := first.ids()
		require.Equal(t, []BrokerID{1, 2, 3}, voters)
		require.Equal(t, []BrokerID{4, 5}, others)
		createTopics(t, w.nodes()[4].Store, newTopic("after", 1))
		w.close()
		requireSteps(t, configurations(t, first), 3)
	})
}

// M17: a server that answers calls and gets no entries is never given a vote, so that what is committed does not wait for
// it; once it has caught up it is.
func TestNoVoteBeforeCatchUp(t *testing.T) {
	inQuorumWorld(t, 3, func(t *testing.T, w *quorumWorld) {
		first := w.join(1)
		second := w.open(2, DirectoryID{2}, 1)
		w.deafen(second, true)
		require.NoError(t, first.AddServer(testContext(t), second.server()))
		r := testRegistration(2, 1)
		r.PeerAddress = second.address
		epoch, err := first.RegisterBroker(testContext(t), r)
		require.NoError(t, err)
		for i := range 60 {
			began := time.Now()
			beat(t, first.Store, 2, epoch) // it lives, and serves
			require.False(t, first.Image().Broker(2).Fenced)
			createTopics(t, first.Store, newTopic(fmt.Sprintf("t%d", i), 5))
			require.Less(t, time.Since(began), time.Second, "nobody waits for the new server")
			w.pass(time.Second)
			voters, others := first.ids()
			require.Equal(t, []BrokerID{1}, voters)
			require.Equal(t, []BrokerID{2}, others)
		}
		w.deafen(second, false)
		w.mu.Lock()
		second.epoch = epoch
		w.mu.Unlock()
		w.voting(1, 2)
		require.Equal(t, 60, second.Image().TopicCount(), "with all that was committed")
	})
}

// M17: two servers that are both ready are not let in by one look at a state that is older than the last promotion.
func TestOneVoteAtATime(t *testing.T) {
	inQuorumWorld(t, 2, func(t *testing.T, w *quorumWorld) {
		first := w.join(1)
		ready := func(id BrokerID) *autopilot.ServerState {
			return &autopilot.ServerState{
				Server: autopilot.Server{ID: serverID(id, DirectoryID{byte(id)})}, State: autopilot.RaftNonVoter,
				Health: autopilot.ServerHealth{Healthy: true, StableSince: time.Now().Add(-time.Hour)},
			}
		}
		state := &autopilot.State{Servers: map[raft.ServerID]*autopilot.ServerState{}}
		for id := BrokerID(2); id <= 4; id++ {
			s := ready(id)
			state.Servers[s.Server.ID] = s
		}
		c := first.pilot.AutopilotConfig()
		require.Equal(t, []raft.ServerID{serverID(2, DirectoryID{2})}, first.pilot.CalculatePromotionsAndDemotions(c, state).Promotions, "one, the lowest id")
		w.join(2)
		w.voting(1, 2)
		require.Empty(t, first.pilot.CalculatePromotionsAndDemotions(c, state).Promotions, "the state is old: two vote already")
	})
}

// M15: each of three voters in turn is cut off for a minute, is suspected by gossip on both sides and fenced, and nobody
// loses or gains a vote by it.
func TestIsolationChangesNoVoter(t *testing.T) {
	inQuorumWorld(t, 3, func(t *testing.T, w *quorumWorld) {
		for id := BrokerID(1); id <= 4; id++ {
			w.join(id)
		}
		w.voting(1, 2, 3)
		for _, n := range w.nodes() {
			w.isolate(n, true)
			lead := w.controller(n)
			for range 60 {
				for _, other := range w.nodes() { // what gossip says on each side
					if other != n {
						lead.Suspect(n.cfg.NodeID, lead.Image().Broker(n.cfg.NodeID).Incarnation, "gossip: failed")
						n.Suspect(other.cfg.NodeID, [16]byte{byte(other.cfg.NodeID), 1}, "gossip: failed")
					}
				}
				w.pass(time.Second)
				for _, any := range w.nodes() {
					voters, others := any.ids()
					require.Equal(t, []BrokerID{1, 2, 3}, voters, "broker %d is cut off, by broker %d's log", n.cfg.NodeID, any.cfg.NodeID)
					require.Equal(t, []BrokerID{4}, others)
				}
			}
			require.True(t, lead.Image().Broker(n.cfg.NodeID).Fenced, "the controller did see that it is gone")
			require.False(t, n.IsController())
			w.isolate(n, false)
			w.await("it is back", func() bool { return !w.controller().Image().Broker(n.cfg.NodeID).Fenced })
		}
		w.voting(1, 2, 3)
	})
}

// M14, M17: a voter that loses its metadata takes its place anew, and loses it again, before it votes, while it is given its
// vote and after it. Each time the vote of what it was goes first, there is never a configuration with two votes of one
// broker, and the two others commit all the while.
func TestRenewedAgainAndAgain(t *testing.T) {
	inQuorumWorld(t, 3, func(t *testing.T, w *quorumWorld) {
		for id := BrokerID(1); id <= 3; id++ {
			w.join(id)
		}
		w.voting(1, 2, 3)
		old := w.nodes()[1]
		for i, lives := range []time.Duration{10 * time.Second, 0, time.Second, 2 * time.Second, 2500 * time.Millisecond, 3 * time.Second, 4 * time.Second, 20 * time.Second} {
			w.kill(old)
			lead := w.controller()
			w.await("the others commit", func() bool { return lead.createsTopic(fmt.Sprintf("without-%d", i)) })
			now := w.open(2, DirectoryID{2, byte(i + 1)}, byte(i+2))
			w.await("it has its place", func() bool {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				lead = w.controller()
				if _, err := lead.AssignBrokerID(ctx, now.cfg.DirectoryID, 2, true); err != nil {
					return false
				}
				return lead.AddServer(ctx, now.server()) == nil
			})
			require.True(t, lead.tombstoned(old.server().raft()))
			w.await("its old vote is gone", func() bool {
				return !slices.ContainsFunc(lead.servers(), func(s raft.Server) bool { return s.ID == old.server().raft() })
			})
			// What autopilot decided on before would bring it back, as a voter.
			require.ErrorIs(t, promotions{lead.raft, lead.Store}.AddVoter(old.server().raft(), raft.ServerAddress(old.address), 0, time.Second).Error(), errNotPromoted)
			require.NoError(t, now.Ready(testContext(t)))
			w.register(now)
			require.True(t, lead.createsTopic(fmt.Sprintf("with-%d", i)))
			w.pass(lives)
			old = now
		}
		w.voting(1, 2, 3)
		w.close()
		all := configurations(t, w.nodes()[0])
		requireSteps(t, all, 3)
		for i, c := range all {
			votes := map[BrokerID]raft.ServerID{}
			for _, s := range c.Servers {
				if s.Suffrage == raft.Voter {
					require.Empty(t, votes[brokerOf(s.ID)], "configuration %d: two votes of broker %d", i, brokerOf(s.ID))
					votes[brokerOf(s.ID)] = s.ID
				}
			}
		}
	})
}

// M9, M12: a controller that the others can't hear may have been followed by another one. It does not tell what is missing or
// there already, by its old Image, but that it does not know.
func TestRefusalsAreProven(t *testing.T) {
	inQuorumWorld(t, 3, func(t *testing.T, w *quorumWorld) {
		for id := BrokerID(1); id <= 3; id++ {
			w.join(id)
		}
		w.voting(1, 2, 3)
		lead := w.controller()
		createTopics(t, lead.Store, newTopic("there", 1))
		ask := func() []error {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			return []error{
				lead.CreateTopics(ctx, []NewTopic{newTopic("there", 1)}, false)[0].Err,
				lead.CreateTopics(ctx, []NewTopic{newTopic("new", 1)}, true)[0].Err, // would it be created?
			}
		}
		told := ask()
		require.ErrorIs(t, told[0], ErrTopicExists)
		require.NoError(t, told[1])

		w.isolate(lead, true)
		w.pass(5 * time.Millisecond) // what was on its way has arrived
		require.True(t, lead.IsController(), "it does not know yet")
		for _, err := range ask() {
			require.Error(t, err)
			require.NotErrorIs(t, err, ErrTopicExists)
		}
		w.isolate(lead, false)
		w.await("it is in touch again", func() bool { told = ask(); return told[1] == nil })
		require.ErrorIs(t, told[0], ErrTopicExists)
	})
}

// D5, R16: a controller that the others can't hear may have been followed by another one, which fences its broker. It gives nobody
// a lease, least of all its own broker.
func TestLeasesAreProven(t *testing.T) {
	inQuorumWorld(t, 3, func(t *testing.T, w *quorumWorld) {
		for id := BrokerID(1); id <= 3; id++ {
			w.join(id)
		}
		w.voting(1, 2, 3)
		lead := w.controller()
		beat := func() (HeartbeatReply, error) {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			return lead.Heartbeat(ctx, Heartbeat{Broker: lead.cfg.NodeID, Epoch: lead.epoch, Applied: lead.Image().Version()})
		}
		reply, err := beat()
		require.NoError(t, err)
		require.False(t, reply.Fenced)
		require.Positive(t, reply.Lease)

		w.isolate(lead, true)
		w.pass(5 * time.Millisecond) // what was on its way has arrived
		require.True(t, lead.IsController(), "it does not know yet")
		_, err = beat()
		require.Error(t, err)
		w.isolate(lead, false)
		w.await("it is in touch again", func() bool { reply, err = beat(); return err == nil })
		require.Positive(t, reply.Lease)
	})
}

// createsTopic says whether the broker can have a topic created within ten seconds.
func (n *quorumNode) createsTopic(name string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return n.CreateTopics(ctx, []NewTopic{newTopic(name, 1)}, false)[0].Err == nil
}

// M14: a removed broker leaves the quorum by the operator's command, and the next non-voter takes its place. Its process,
// started again with its old directory, changes nothing and no term; it is refused by name, and with an empty directory
// it is a new broker.
func TestRemovedServerStaysOut(t *testing.T) {
	inQuorumWorld(t, 3, func(t *testing.T, w *quorumWorld) {
		first := w.join(1)
		for id := BrokerID(2); id <= 4; id++ {
			w.join(id)
		}
		w.voting(1, 2, 3)
		gone := w.nodes()[2]
		requireMend(t, first.RemoveServer(testContext(t), 3), ErrPolicyViolation, "belongs to the cluster", "decommission 3")
		requireMend(t, first.UnregisterBroker(testContext(t), 3), ErrPolicyViolation, "it lives and serves")
		w.voting(1, 2, 3)

		w.kill(gone)
		w.await("it is fenced", func() bool { return w.controller().Image().Broker(3).Fenced })
		require.NoError(t, first.UnregisterBroker(testContext(t), 3))
		require.NoError(t, first.RemoveServer(testContext(t), 3))
		w.voting(1, 2, 4)

		term := w.controller().raft.CurrentTerm()
		back := w.open(3, gone.cfg.DirectoryID, 2)
		w.pass(time.Minute)
		require.Equal(t, term, w.controller().raft.CurrentTerm(), "no election by one who is out")
		w.voting(1, 2, 4)
		requireMend(t, w.controller().AddServer(testContext(t), back.server()), ErrRemoved, "broker 3 was removed", "empty data directory")
		r := testRegistration(3, 2)
		r.Directories, r.PeerAddress = []DirectoryID{back.cfg.DirectoryID}, back.address
		_, err := w.controller().RegisterBroker(testContext(t), r)
		require.ErrorIs(t, err, ErrRemoved)
		_, err = w.controller().AssignBrokerID(testContext(t), back.cfg.DirectoryID, 3, false)
		require.ErrorIs(t, err, ErrRemoved)
		// … and with the network cut and healed, as a partition would.
		w.isolate(back, true)
		w.pass(20 * time.Second)
		w.isolate(back, false)
		w.pass(20 * time.Second)
		require.Equal(t, term, w.controller().raft.CurrentTerm())
		w.voting(1, 2, 4)
		w.kill(back)

		fresh := w.join(5)
		require.False(t, fresh.Image().Removed(fresh.cfg.DirectoryID))
		require.True(t, fresh.Image().Removed(gone.cfg.DirectoryID))
		w.close()
		requireSteps(t, configurations(t, first), 3)
	})
}

// M14: a controller that is cut off from its quorum removes nobody; what it was asked is refused, or unknown and undone.
func TestMinorityRemovesNobody(t *testing.T) {
	inQuorumWorld(t, 3, func(t *testing.T, w *quorumWorld) {
		for id := BrokerID(1); id <= 3; id++ {
			w.join(id)
		}
		w.voting(1, 2, 3)
		old := w.controller()
		var gone *quorumNode
		for _, n := range w.nodes() {
			if n != old {
				gone = n
			}
		}
		w.mu.Lock()
		gone.epoch = 0 // no heartbeats any more; its Raft server runs
		w.mu.Unlock()
		w.await("it is fenced", func() bool { return old.Image().Broker(gone.cfg.NodeID).Fenced })
		w.isolate(old, true)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		err := old.UnregisterBroker(ctx, gone.cfg.NodeID)
		require.Error(t, err, "a minority can't")
		require.True(t, is(err, ErrTimeout, ErrNotController, ErrBusy), "%v", err)
		require.Error(t, old.RemoveServer(ctx, gone.cfg.NodeID))
		w.controller(old)
		w.isolate(old, false)
		w.pass(10 * time.Second)
		w.voting(1, 2, 3)
		require.NotNil(t, w.controller().Image().Broker(gone.cfg.NodeID))
	})
}

// The controller's own removal: it hands the lead over first, so that the quorum is not without one for an election
// timeout, and the next controller takes it out. A lone voter can't go.
func TestControllerIsRemoved(t *testing.T) {
	inQuorumWorld(t, 3, func(t *testing.T, w *quorumWorld) {
		first := w.join(1)
		for id := BrokerID(2); id <= 4; id++ {
			w.join(id)
		}
		w.voting(1, 2, 3)
		if lead := w.controller(); lead != first {
			require.NoError(t, lead.TransferLeadership(testContext(t), 1))
			w.await("the first is the controller", first.IsController)
		}
		require.NoError(t, first.Decommission(testContext(t), 1, true))
		w.mu.Lock()
		first.epoch = 0 // it stops serving; its process still runs
		w.mu.Unlock()
		require.NoError(t, first.UnregisterBroker(testContext(t), 1))
		began := time.Now()
		lead := w.controller(first)
		require.NoError(t, lead.RemoveServer(testContext(t), 1))
		require.Less(t, time.Since(began), 3*time.Second)
		w.voting(2, 3, 4)
		createTopics(t, lead.Store, newTopic("after", 1))
		w.close()
		requireSteps(t, configurations(t, lead), 3)
	})
}

// The lead goes to the voter that is named, or to any; not to one without a vote.
func TestTransferLeadership(t *testing.T) {
	inQuorumWorld(t, 3, func(t *testing.T, w *quorumWorld) {
		first := w.join(1)
		requireMend(t, first.TransferLeadership(testContext(t), NoBroker), ErrBusy, "the controller did not change")
		require.NoError(t, first.TransferLeadership(testContext(t), 1), "it has it")
		for id := BrokerID(2); id <= 4; id++ {
			w.join(id)
		}
		w.voting(1, 2, 3)
		for _, to := range []BrokerID{2, 3, 1, 3} {
			asked := w.nodes()[3] // forwards
			require.NoError(t, asked.TransferLeadership(testContext(t), to))
			w.await("the lead is where it should be", func() bool { return w.controller().cfg.NodeID == to })
			createTopics(t, asked.Store, newTopic("t"+time.Now().Format("150405.000"), 1))
		}
		requireMend(t, first.TransferLeadership(testContext(t), 4), ErrInvalidRequest, "no voter", "quorum peers")
		requireMend(t, first.TransferLeadership(testContext(t), 9), ErrInvalidRequest, "no voter")
		was := w.controller()
		require.NoError(t, first.TransferLeadership(testContext(t), NoBroker))
		require.NotEqual(t, was, w.controller(was))

		q, err := first.DescribeQuorum(testContext(t))
		require.NoError(t, err)
		require.Equal(t, w.controller().cfg.NodeID, q.Leader)
		require.Equal(t, 3, q.Size)
		require.Len(t, q.Voters, 3)
		require.Len(t, q.NonVoters, 1)
		w.await("all are healthy", func() bool {
			q, err = first.DescribeQuorum(testContext(t))
			require.NoError(t, err)
			return !slices.ContainsFunc(append(q.Voters, q.NonVoters...), func(m QuorumMember) bool { return !m.Healthy })
		})
	})
}

// A server that does not answer in time is not refused for good: its machine may have stood still just then (S7-raft, seed 9205: a
// broker that was started with --replace ended for it).
func TestSilentServerIsAddedLater(t *testing.T) {
	inQuorumWorld(t, 3, func(t *testing.T, w *quorumWorld) {
		first := w.join(1)
		w.join(2)
		w.voting(1, 2)
		slow := w.open(3, DirectoryID{3}, 1)
		w.silence(slow, true)
		requireMend(t, first.AddServer(testContext(t), slow.server()), ErrBusy, "can't be reached at broker-3", "--advertise")
		w.silence(slow, false)
		require.NoError(t, first.AddServer(testContext(t), slow.server()))
	})
}

// AddServer refuses what could not vote one day: a server that is not reached, one that is another, a directory of another
// broker. An address that belongs to another server now is taken from the old one, which keeps its vote (M15).
func TestAddServerRules(t *testing.T) {
	inQuorumWorld(t, 3, func(t *testing.T, w *quorumWorld) {
		first := w.join(1)
		for id := BrokerID(2); id <= 3; id++ {
			w.join(id)
		}
		w.voting(1, 2, 3)
		add := func(s Server) error { return first.AddServer(testContext(t), s) }
		requireMend(t, add(Server{ID: 7, Directory: DirectoryID{7}, Address: "broker-7"}), ErrInvalidRequest, "can't be reached at broker-7", "--advertise")
		requireMend(t, add(Server{ID: 7, Directory: DirectoryID{7}, Address: "broker-2"}), ErrInvalidRequest, "broker 7 is not at broker-2")
		requireMend(t, add(Server{ID: 7, Directory: DirectoryID{2}, Address: "broker-7"}), ErrInvalidRequest, "is that of broker 2", "node.id=2")
		requireMend(t, add(Server{ID: 7}), ErrInvalidRequest)
		require.NoError(t, add(w.nodes()[1].server()), "a repetition")
		w.voting(1, 2, 3)

		lost := w.nodes()[2]
		w.kill(lost)
		instead := w.open(3, DirectoryID{33}, 2) // the disk was lost; the address is the same
		require.NoError(t, w.controller().AddServer(testContext(t), instead.server()))
		w.await("it has a place of its own, without a vote", func() bool {
			voters, others := w.controller().ids()
			return slices.Equal(voters, []BrokerID{1, 2, 3}) && slices.Equal(others, []BrokerID{3})
		})
		addresses := map[raft.ServerID]raft.ServerAddress{}
		for _, s := range w.controller().servers() {
			addresses[s.ID] = s.Address
		}
		require.NotEqual(t, raft.ServerAddress("broker-3"), addresses[lost.server().raft()])
		require.Equal(t, raft.ServerAddress("broker-3"), addresses[instead.server().raft()])
		w.pass(time.Minute)
		voters, others := w.controller().ids()
		require.Equal(t, []BrokerID{1, 2, 3}, voters, "only an operator gives the vote away")
		require.Equal(t, []BrokerID{3}, others)
	})
}
