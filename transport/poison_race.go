//go:build race

package transport

// poison overwrites the memory of a released frame in race builds, so that a handler that kept a slice without Retain reads
// nonsense in tests instead of bytes that are right most of the time.
func poison(b []byte) {
	if len(b) == 0 {
		return
	}
	b[0] = 0xdb
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}
