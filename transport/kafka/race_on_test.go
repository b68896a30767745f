//go:build race

package kafka

// raceEnabled says that the race detector is on: it allocates, and pools drop
// things at random, so that allocations can't be guarded.
const raceEnabled = true
