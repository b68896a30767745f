//go:build !linux

package transport

import "net"

// turnWriter is not used here: connections write their chunks when they like.
type turnWriter struct{ net.Conn }

func (c *Conn) openTurns() {}

func (w *turnWriter) begin()  {}
func (w *turnWriter) filled() {}
func (w *turnWriter) end()    {}
