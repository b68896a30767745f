// Package integration holds the black-box tests: the real binary, real
// clients, kill -9, and the test that keeps the architecture.
//
// It may import anything of ours; nothing imports it.
package integration
