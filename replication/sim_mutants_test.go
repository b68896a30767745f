package replication

import (
	"fmt"
	"slices"
	"testing"
)

// simMutants are protocols that lack one rule each. The rule is taken out from outside the core, by forging what it
// hears or by reaching into its state, so that the core itself carries no switches.
var simMutants = []simMutant{
	{
		// I3, R9: the high watermark is one record ahead of what all in-sync replicas hold.
		name: "high watermark off by one", seeds: 300,
		after: func(s *sim, n *simNode, ev Event, acts []Action) []Action {
			if c := n.core; c.role == RoleLeader && c.highWatermark < c.end && len(c.isr) >= c.policy.MinInsync {
				c.highWatermark++
				if s.onAction == nil {
					s.commit(n)
				}
			}
			return acts
		},
	},
	{
		// I2: the leader reports as durable what it has only written.
		name: "ack before sync", seeds: 300, flushAck: new(true),
		after: func(s *sim, n *simNode, ev Event, acts []Action) []Action {
			if _, ok := ev.(*Appended); ok {
				return append(acts, n.core.Step(s.now, &Flushed{LogGeneration: n.core.Generation(), DurableEnd: n.log.end()})...)
			}
			return acts
		},
	},
	{
		// wal.md 5: the leader counts itself by its end, not its durable end.
		name: "leader by end", seeds: 300, flushAck: new(true),
		before: func(s *sim, n *simNode, ev Event) { n.core.policy.FlushAck = n.core.role != RoleLeader },
	},
	{
		// wal.md 5: a follower reports its end.
		name: "follower by end", seeds: 500, flushAck: new(true),
		before: func(s *sim, n *simNode, ev Event) { n.core.policy.FlushAck = n.core.role != RoleFollower },
	},
	{
		// R1 (KIP-101): a new follower cuts its log to its high watermark.
		name: "truncation to the high watermark", seeds: 2000,
		before: func(s *sim, n *simNode, ev Event) {
			if d, ok := ev.(*MetadataDelta); ok && d.Leader >= 0 && d.Leader != n.id && d.LeaderEpoch > n.core.leaderEpoch && n.core.highWatermark < n.log.end() && n.core.highWatermark >= n.log.start {
				n.log.records = n.log.records[:n.core.highWatermark]
				n.log.durable = min(n.log.durable, n.log.end())
				n.core.end, n.core.durable, n.core.lastEpoch = n.log.end(), min(n.core.durable, n.log.end()), n.log.lastEpoch()
				n.core.generation++
				s.checkElectable(n, "was cut to its high watermark")
			}
		},
	},
	{
		// R7, R9: a follower may join, and a leader may answer, before the start of the leader's epoch is reached.
		name: "no epoch-start check", seeds: 12000,
		after: func(s *sim, n *simNode, ev Event, acts []Action) []Action {
			n.core.leading.epochStart = 0
			return acts
		},
	},
	{
		// R9: the high watermark counts the committed ISR only.
		name: "no maximal ISR", seeds: 4000,
		after: func(s *sim, n *simNode, ev Event, acts []Action) []Action {
			if n.core.leading.proposal.open() {
				n.core.leading.proposal.isr = slices.Clone(n.core.isr)
			}
			return acts
		},
	},
	{
		// R9: a refusal forgets a proposal of which an earlier copy may still be applied.
		name: "forgotten proposal", seeds: 4000,
		before: func(s *sim, n *simNode, ev Event) {
			if r, ok := ev.(*ISRResult); ok && r.Outcome == ProposalUnknown && r.Seq == n.core.leading.proposal.seq {
				n.core.leading.proposal = proposal{}
			}
		},
	},
	{
		// R10: an ISR smaller than min.insync.replicas commits.
		name: "high watermark below min.insync", seeds: 4000,
		before: func(s *sim, n *simNode, ev Event) {
			if _, ok := ev.(*Produce); !ok {
				n.core.policy.MinInsync, n.core.elr = 1, nil
			}
		},
	},
	{
		// R11: proposals are applied without compare and set.
		name: "no compare and set", seeds: 12000, noCAS: true,
	},
	{
		// R12, R24: a fetch counts whatever life of the follower it comes from.
		name: "no broker epoch", seeds: 12000, flushAck: new(false),
		before: func(s *sim, n *simNode, ev Event) {
			if r, ok := ev.(*FetchRequest); ok {
				if p := n.core.peer(r.Replica); p != nil {
					r.BrokerEpoch = p.BrokerEpoch
				}
				if f := n.core.follower(r.Replica); f != nil {
					f.brokerEpoch = r.BrokerEpoch
				}
			}
		},
	},
	{
		// R14: a leader that restarts goes on in its old epoch.
		name: "same epoch after restart", seeds: 300, noEpochBump: true,
	},
	{
		// M16: a restarted broker acts on what the metadata said of its earlier life.
		name: "replayed metadata", seeds: 2000, replay: true,
	},
	{
		// R17: an answer of another leader epoch is taken in.
		name: "response of an old epoch", seeds: 4000,
		before: func(s *sim, n *simNode, ev Event) {
			if r, ok := ev.(*FetchResponse); ok {
				r.LeaderEpoch = n.core.leaderEpoch
				r.Seq = n.core.following.seq
				r.Offset, r.LastEpoch = n.core.end, n.core.lastEpoch
			}
		},
	},
	{
		// R3: the leader does not compare the last epoch of the follower's log.
		name: "no divergence check", seeds: 2000,
		before: func(s *sim, n *simNode, ev Event) {
			if r, ok := ev.(*FetchRequest); ok {
				r.LastEpoch = -1
			}
		},
	},
	{
		// R23: requests survive a change of the leader epoch.
		name: "old waiter", seeds: 6000,
		before: func(s *sim, n *simNode, ev Event) {
			if _, ok := ev.(*MetadataDelta); ok {
				n.kept = slices.Clone(n.core.leading.committed.items[n.core.leading.committed.head:])
			}
		},
		after: func(s *sim, n *simNode, ev Event, acts []Action) []Action {
			if _, ok := ev.(*MetadataDelta); !ok || n.core.leading.committed.len() > 0 {
				return acts
			}
			acts = slices.DeleteFunc(acts, func(a Action) bool {
				return a.Kind == ActionComplete && slices.ContainsFunc(n.kept, func(w waiting) bool { return w.waiter == a.Waiter })
			})
			for _, w := range n.kept {
				n.core.leading.committed.push(w)
			}
			return acts
		},
	},
	{
		// R27: an answer counts though the log is not the one that was asked about.
		name: "late divergence", seeds: 12000,
		before: func(s *sim, n *simNode, ev Event) {
			if r, ok := ev.(*FetchResponse); ok && r.LeaderEpoch == n.core.leaderEpoch && r.DivergingEpoch >= 0 {
				r.Seq = n.core.following.seq
				r.Offset, r.LastEpoch = n.core.end, n.core.lastEpoch
			}
		},
	},
	{
		// W7: a flush counts though the log was cut since it began.
		name: "flush of another log", seeds: 6000, flushAck: new(true),
		before: func(s *sim, n *simNode, ev Event) {
			if f, ok := ev.(*Flushed); ok {
				f.LogGeneration = n.core.generation
			}
		},
	},
	{
		// I12: a broker that may have lost its cache stays in the ISR.
		name: "unclean restart stays electable", seeds: 1000, flushAck: new(false), keepUnclean: true,
	},
	{
		// P13: a transaction is over when its marker is in the log.
		name: "marker counts before it is committed", seeds: 4000, earlyMarkers: true,
	},
	{
		// R8: a follower takes the leader's high watermark as it is.
		name: "high watermark above the end", seeds: 300,
		after: func(s *sim, n *simNode, ev Event, acts []Action) []Action {
			if _, ok := ev.(*FetchResponse); ok && n.core.role == RoleFollower {
				n.core.highWatermark = max(n.core.highWatermark, n.core.following.leaderHighWatermark)
			}
			return acts
		},
	},
}

// TestSimulationKillsMutants asserts that the simulator notices the loss of each rule, in both flush modes where it
// matters in both, and prints the seed that does.
func TestSimulationKillsMutants(t *testing.T) {
	for i := range simMutants {
		m := &simMutants[i]
		for _, flush := range []bool{true, false} {
			if m.flushAck != nil && *m.flushAck != flush {
				continue
			}
			t.Run(fmt.Sprintf("%s,flush=%v", m.name, flush), func(t *testing.T) {
				t.Parallel()
				for seed := range uint64(m.seeds) {
					if err := newSim(simOptions{seed: seed + 1, steps: simSteps, flush: &flush, mutant: m}).run(); err != nil {
						t.Logf("killed by seed %d: %.160v", seed+1, err)
						return
					}
				}
				t.Errorf("survived %d seeds", m.seeds)
			})
		}
	}
}
