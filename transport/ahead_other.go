//go:build !linux

package transport

import "syscall"

// canLook is false: answers wait for what is in the read buffer, and for nothing else.
const canLook = false

// looker does nothing here.
type looker struct{}

func (*looker) init() {}

func (*looker) read(syscall.RawConn, []byte) int { return 0 }
