//go:build !mutants

package log

// skipDedup appends a batch again that the producer sent before (L8): only in binaries built with the tag mutants, to see
// that the checker of package integration/check notices. The mutants of the model are in mutants.go.
const skipDedup = false
