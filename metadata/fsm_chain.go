package metadata

// requestID is random per command, decided by the proposer; it makes a repeated proposal recognizable (M11).
type requestID [16]byte

// chain is a command under way in several entries.
type chain struct {
	ID     requestID
	Parts  uint32
	Bodies [][]byte
}
