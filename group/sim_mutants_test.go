package group

import "github.com/millrace/millrace/metadata"

// simMutant breaks a rule on purpose, from outside the core. Nil hooks do nothing.
type simMutant struct {
	name   string
	seeds  int
	change func(s *sim, ch *metadata.GroupChange)
	commit func(s *sim, c *metadata.OffsetCommit)
	before func(s *sim, n *simNode, ev Event)
	after  func(s *sim, n *simNode, ev Event, acts []Action) []Action
}
