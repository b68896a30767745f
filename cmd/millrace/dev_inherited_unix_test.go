//go:build unix

package main

import (
	"fmt"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// The processes of dev do not keep what the caller of millrace has open.
func TestChildrenInheritNothing(t *testing.T) {
	var pipe [2]int
	require.NoError(t, syscall.Pipe(pipe[:])) // not close-on-exec: like what a shell hands on
	defer syscall.Close(pipe[0])
	defer syscall.Close(pipe[1])
	sees := func() bool {
		return exec.Command("sh", "-c", fmt.Sprintf("command : <&%d", pipe[0])).Run() == nil
	}
	if !sees() {
		t.Skip("no shell here, or one that closes descriptors itself")
	}
	closeInherited()
	require.False(t, sees())
	require.NoError(t, exec.Command("sh", "-c", ": <&0 >&1").Run(), "the first three stay")
}
