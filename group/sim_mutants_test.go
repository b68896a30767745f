package group

import (
	"slices"
	"testing"

	"github.com/millrace/millrace/metadata"
)

// simMutant breaks a rule on purpose, from outside the core, by forging what it hears or by reaching into its state, so
// that the core itself carries no switches. Nil hooks do nothing.
type simMutant struct {
	name string
	// seeds is how many seeds it may take to be noticed.
	seeds  int
	change func(s *sim, ch *metadata.GroupChange)
	commit func(s *sim, c *metadata.OffsetCommit)
	before func(s *sim, n *simNode, ev Event)
	after  func(s *sim, n *simNode, ev Event, acts []Action) []Action
}

// present has a proposal come from whoever coordinates.
func present(s *sim, ch *metadata.GroupChange) {
	im := s.fsm.Image()
	if id, _ := im.Coordinator(metadata.GroupCoordinator, simGroup); id >= 0 {
		ch.Broker, ch.BrokerEpoch = id, im.Broker(id).Epoch
	}
}

var simMutants = []simMutant{
	{
		// G5: members are told what has only been proposed.
		name: "told before committed", seeds: 300,
		after: func(s *sim, n *simNode, ev Event, acts []Action) []Action {
			for _, a := range acts {
				if a.Kind != ActionPropose || len(a.Change.Upsert) == 0 || n.core.change == nil || n.core.change.kind != changeGeneration {
					continue
				}
				g := &metadata.Group{Name: simGroup, Type: a.Change.Type, State: a.Change.State, Revision: a.Change.Revision, Generation: a.Change.Generation, ProtocolType: a.Change.ProtocolType, Protocol: a.Change.Protocol, Leader: a.Change.Leader}
				for _, m := range n.core.classic.members {
					g.Members = append(g.Members, m.record)
				}
				return append(acts, n.core.Step(s.at(), &Changed{Seq: a.Seq, Group: g})...)
			}
			return acts
		},
	},
	{
		// G5: a change is made whatever the record is, and whoever coordinates.
		name: "no compare and set, no fence", seeds: 1000,
		change: func(s *sim, ch *metadata.GroupChange) {
			present(s, ch)
			ch.Revision = 0
			if g := s.fsm.Image().Group(simGroup); g != nil {
				ch.Revision = g.Revision
				ch.Generation = max(ch.Generation, g.Generation)
			}
		},
	},
	{
		// I15: a new generation takes the number of the one before.
		name: "generation reused", seeds: 300,
		change: func(s *sim, ch *metadata.GroupChange) {
			if g := s.fsm.Image().Group(simGroup); g != nil && g.Generation > 0 {
				ch.Generation = g.Generation
			}
		},
	},
	{
		// G1: a commit counts whatever generation it is of.
		name: "no fence of commits", seeds: 1000,
		before: func(s *sim, n *simNode, ev Event) {
			if c, ok := ev.(*Commit); ok && len(n.core.classic.members) > 0 {
				m := n.core.classic.members[0]
				c.Generation, c.Member, c.Instance = n.core.generation(), m.id, m.record.InstanceID
			}
		},
		commit: func(s *sim, c *metadata.OffsetCommit) {
			if g := s.fsm.Image().Group(simGroup); g != nil && len(g.Members) > 0 {
				c.Generation, c.Member, c.Instance = g.Generation, g.Members[0].ID, g.Members[0].InstanceID
			}
		},
	},
	{
		// G6: the sessions of members end at their new coordinator before they can be heard.
		name: "no session after a move", seeds: 300,
		after: func(s *sim, n *simNode, ev Event, acts []Action) []Action {
			if _, ok := ev.(*Loaded); ok {
				for _, m := range n.core.classic.members {
					m.expires = s.now
				}
				n.core.classic.nextExpiry, n.core.wake = s.now, s.now
			}
			return acts
		},
	},
	{
		// D6: the death of a coordinator is passed over.
		name: "no generation after a death", seeds: 300,
		before: func(s *sim, n *simNode, ev Event) {
			if l, ok := ev.(*Loaded); ok {
				l.Resume = true
			}
		},
	},
	{
		// protocol.md trap 24: a rebalance waits for ids that were handed out and never used.
		name: "pending members hold", seeds: 1000,
		before: func(s *sim, n *simNode, ev Event) {
			if k := &n.core.classic; len(k.pending) > 0 {
				k.phase.complete = Never - pendingPatience
				k.phase.deadline = max(k.phase.deadline, s.now+Instant(simRebalance))
			}
		},
	},
	{
		// I18: a sync of an old generation is answered with the present assignment.
		name: "sync of an old generation", seeds: 6000,
		before: func(s *sim, n *simNode, ev Event) {
			if y, ok := ev.(*Sync); ok {
				r := *y.SyncRequest
				r.Generation = n.core.generation()
				y.SyncRequest = &r
			}
		},
	},
	{
		// Requests that wait at a coordinator are forgotten when the group moves.
		name: "let go without an answer", seeds: 1000,
		after: func(s *sim, n *simNode, ev Event, acts []Action) []Action {
			if _, ok := ev.(*LetGo); ok {
				return nil
			}
			return acts
		},
	},
	{
		// A seek sets the offsets and leaves the members in, which commit over them.
		name: "seek does not fence", seeds: 1000,
		change: func(s *sim, ch *metadata.GroupChange) {
			if g := s.fsm.Image().Group(simGroup); ch.Seek != nil && g != nil && ch.Revision == g.Revision {
				ch.Remove, ch.State, ch.Generation, ch.Protocol, ch.Leader, ch.Interrupted = nil, g.State, g.Generation, g.Protocol, g.Leader, g.Interrupted
			}
		},
	},
	{
		// G1: who takes over does not know who was put out.
		name: "put out and forgotten", seeds: 1000,
		change: func(s *sim, ch *metadata.GroupChange) { ch.PutOutAt = 0 },
	},
	{
		// A seek is acknowledged for its fence alone.
		name: "seek without offsets", seeds: 1000,
		change: func(s *sim, ch *metadata.GroupChange) { ch.Seek = nil },
	},
	{
		// I18: the leader gives one partition to two members, and nobody looks.
		name: "two owners", seeds: 300,
		before: func(s *sim, n *simNode, ev Event) {
			if y, ok := ev.(*Sync); ok && len(y.Assignments) > 1 {
				y.Assignments[0].Bytes = slices.Clone(y.Assignments[1].Bytes)
			}
		},
	},
}

// TestSimulationKillsMutants asserts that the simulator notices the loss of each rule, and prints the seed that does.
func TestSimulationKillsMutants(t *testing.T) {
	for i := range simMutants {
		m := &simMutants[i]
		t.Run(m.name, func(t *testing.T) {
			for seed := range uint64(m.seeds) {
				if err := newSim(simOptions{seed: seed + 1, steps: simSteps, mutant: m}).run(); err != nil {
					t.Logf("killed by seed %d: %.160v", seed+1, err)
					return
				}
			}
			t.Errorf("survived %d seeds", m.seeds)
		})
	}
}
