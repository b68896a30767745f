// Package check judges what clients saw of a cluster while it was being broken.
//
// It owns the history (one JSON line for each call of a client and one for its end, written while a test runs) and the
// checker that reads it afterwards. The names of the findings are those of Jepsen's workload for Kafka, so that results
// can be compared; what each means stands at its constant.
//
// The rules that a history keeps:
//
//   - a value is unique in it: the process in the high bits, a counter below ([Value])
//   - an operation that timed out, or whose connection broke, ends as [Info]: it may have happened, may yet happen, or
//     never. The process that it belonged to stops, and its number is not used again
//   - lines stand in the order of time; the driver of the faults writes into the same file
//
// The end of a history is the reading of everything from the start ([Reread]) and what lies in the files of each
// replica ([Dump]), after the faults were healed.
//
// Callers are the commands and tests of integration; [Writer] may be used by many goroutines, [Check] runs in one.
// No goroutine is started and no file is written but the history.
package check
