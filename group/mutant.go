package group

// mutant names a rule of the protocol that a binary built with the tag mutants can be told to break.
type mutant string

// Each is a rule that the checker of package integration/check must miss when it is broken.
const (
	mutantCommitEarly mutant = "commit-before-apply" // G3: a commit is acknowledged when it is proposed
	mutantUnfenced    mutant = "unfenced-commit"     // G1: a commit counts, whoever sends it in whatever generation
	mutantGivenTwice  mutant = "given-twice"         // I18: a member gets what another one still has
	mutantOffsetsNow  mutant = "offsets-before-end"  // I8: offsets of a transaction count when they are sent, not when it commits
)
