//go:build !mutants

package txn

// mutated says whether a rule is broken on purpose: only in binaries built with the tag mutants, to see that the checker
// notices.
func mutated(mutant) bool { return false }
