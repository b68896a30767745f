//go:build !mutants

package replication

// mutated says whether a rule is broken on purpose: only in binaries built with the tag mutants, to see that the
// checker of package integration/check notices.
func mutated(mutant) bool { return false }
