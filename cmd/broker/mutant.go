//go:build mutants

package broker

import (
	"os"

	"github.com/millrace/millrace/group"
	"github.com/millrace/millrace/group/txn"
	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/replication"
)

// A binary built with the tag mutants breaks the rule that MILLRACE_MUTANT names. It is for tests of the checker alone.
func init() {
	name := os.Getenv("MILLRACE_MUTANT")
	log.Mutate(name)
	replication.Mutate(name)
	group.Mutate(name)
	txn.Mutate(name)
}
