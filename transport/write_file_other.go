//go:build !linux

package transport

import "net"

// fileSender exists on Linux only: elsewhere bytes of files are copied.
type fileSender struct{}

func newFileSender(net.Conn, *turnWriter) *fileSender { return nil }

func (c *Conn) sendFile(*fileSender, uintptr, int64, int) error { return errNoSendFile }

func (c *Conn) writeMore(_ *fileSender, p []byte) error { return c.writeBytes(p) }
