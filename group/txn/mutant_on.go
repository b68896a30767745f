//go:build mutants

package txn

var chosenMutant mutant

// Mutate has every leader of this process break the named rule; a name that is not a rule of this package breaks none. It
// is called before the first request.
func Mutate(name string) { chosenMutant = mutant(name) }

func mutated(m mutant) bool { return chosenMutant == m }
