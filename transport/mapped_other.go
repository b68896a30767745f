//go:build !linux

package transport

const canMap = false

func (c *Conn) writeMapped(*buffer, uintptr, int64, int) (int, error) { return 0, nil }
