//go:build !linux

package transport

// writeDirectLocked leaves all to the writer.
func (c *Conn) writeDirectLocked() bool { return false }
