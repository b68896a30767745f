package txn

// mutant names a rule of the protocol that a binary built with the tag mutants can be told to break.
type mutant string

// Each is a rule that the checker of package integration/check must miss when it is broken.
const (
	mutantLateProduce mutant = "late-produce" // P7: a batch may begin a transaction wherever it arrives, and whenever
)
