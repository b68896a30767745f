//go:build unix

package vfs

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// L13, I21: that a quota is used up is a disk that is full.
func TestQuotaIsNoSpace(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		for _, op := range []string{"write", "open", "rename", "mkdir"} {
			err := classify(&os.PathError{Op: op, Path: "x", Err: errno})
			require.ErrorIs(t, err, ErrNoSpace)
			require.ErrorIs(t, err, errno)
		}
	}
}
