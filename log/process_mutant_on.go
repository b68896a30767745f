//go:build mutants

package log

var skipDedup bool

// Mutate has every log of this process break the named rule; a name that is not a rule of this package breaks none. It
// is called before the first log is opened.
func Mutate(name string) { skipDedup = name == "skip-dedup" }
