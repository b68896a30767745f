//go:build !linux

package transport

import (
	"io"
	"sync/atomic"
)

// aheadReader exists on Linux only: elsewhere answers wait for what is in the read buffer, and for nothing else.
type aheadReader struct{ io.Reader }

func newAheadReader(*Conn, *atomic.Int64) *aheadReader { return nil }
