package txn

import (
	"testing"

	"github.com/millrace/millrace/metadata"
)

// simMutant breaks a rule on purpose, from outside the core, by forging what it hears or says, so that the core itself carries
// no switches. Nil hooks and false switches do nothing.
type simMutant struct {
	name string
	// seeds is how many seeds it may take to be noticed.
	seeds  int
	change func(s *sim, ch *metadata.TransactionChange)
	before func(s *sim, ev Event) bool // false: the core does not get the event
	after  func(s *sim, c *Core, acts []Action) []Action
	// unverified: batches are appended without a look at the transaction. late: markers without a look at their place in the
	// log. anyNumber: a report counts for whatever transaction is there.
	// anybody: a change is judged as if its proposer coordinated.
	unverified, late, anyNumber, anybody bool
}

var simMutants = []simMutant{
	{name: "batches are not verified", seeds: 50, unverified: true},
	{
		name: "a new producer does not get a new epoch", seeds: 50,
		change: func(s *sim, ch *metadata.TransactionChange) {
			if t := s.fsm.Image().Transaction(ch.ID); t != nil && ch.State == metadata.TransactionEmpty && ch.ProducerID == t.ProducerID {
				ch.ProducerEpoch = t.ProducerEpoch
			}
		},
	},
	{
		name: "the end is told before it is committed", seeds: 100,
		after: func(s *sim, c *Core, acts []Action) []Action {
			for _, a := range acts {
				if a.Kind == ActionPropose && a.Change.State.Prepared() {
					return append(acts, c.Step(s.at(), &Changed{Seq: a.Seq})...)
				}
			}
			return acts
		},
	},
	{
		name: "time does not pass", seeds: 50,
		before: func(_ *sim, ev Event) bool { _, tick := ev.(*Tick); return !tick },
	},
	{
		name: "commit for abort", seeds: 50,
		change: func(_ *sim, ch *metadata.TransactionChange) {
			if ch.State == metadata.TransactionPrepareAbort {
				ch.State = metadata.TransactionPrepareCommit
			}
		},
	},
	{
		name: "an epoch behind the last one is given away", seeds: 100,
		after: func(_ *sim, _ *Core, acts []Action) []Action {
			for i := range acts {
				if p := &acts[i].Init; acts[i].Kind == ActionInit && p.Err == nil && p.ProducerEpoch == epochLast {
					p.ProducerEpoch++
				}
			}
			return acts
		},
	},
}

// TestSimulationNoticesMutants asserts that the simulation finds what it is there to find.
func TestSimulationNoticesMutants(t *testing.T) {
	for i := range simMutants {
		m := &simMutants[i]
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			for seed := 1; seed <= m.seeds; seed++ {
				if err := newSim(simOptions{seed: uint64(seed), steps: simSteps, mutant: m}).run(); err != nil {
					t.Logf("noticed at seed %d: %.200v", seed, err)
					return
				}
			}
			t.Errorf("not noticed in %d seeds", m.seeds)
		})
	}
}
