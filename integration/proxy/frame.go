package proxy

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// Direction is the way that bytes take.
type Direction uint8

// Directions.
const (
	Request Direction = iota // from the client to the broker
	Answer                   // from the broker to the client
)

// String returns "request" or "answer".
func (d Direction) String() string { return [...]string{"request", "answer"}[d] }

// maxFrameBytes bounds what the proxy keeps of one frame; brokers take 100 MiB.
const maxFrameBytes = 128 << 20

// Frame is one request or answer.
type Frame struct {
	Direction Direction
	// Conn numbers the connections of a proxy from 1, Nth the frames of a connection in this direction from 0.
	Conn, Nth int
	// Key, Version and ClientID are the request's, also for its answer; Correlation ties the two together. An answer
	// that belongs to no request has Key -1.
	Key, Version int16
	Correlation  int32
	ClientID     string
	// Payload is the frame behind its size; valid during the call only.
	Payload []byte
}

// String names the frame.
func (f Frame) String() string {
	return fmt.Sprintf("%s key %d v%d correlation %d on connection %d", f.Direction, f.Key, f.Version, f.Correlation, f.Conn)
}

// readFrame reads one frame into buf, which it grows, and returns its payload.
func readFrame(r *bufio.Reader, buf []byte) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := int32(binary.BigEndian.Uint32(size[:]))
	if n < 0 || n > maxFrameBytes {
		return nil, fmt.Errorf("a frame of %d bytes", n)
	}
	if cap(buf) < int(n) {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	_, err := io.ReadFull(r, buf)
	return buf, err
}

// appendFrame appends size and payload.
func appendFrame(to, payload []byte) []byte {
	return append(binary.BigEndian.AppendUint32(to, uint32(len(payload))), payload...)
}

// parseRequest fills in what the header of a request says; a short one leaves the rest at zero.
func (f *Frame) parseRequest() {
	p := f.Payload
	if len(p) < 8 {
		f.Key = -1
		return
	}
	f.Key = int16(binary.BigEndian.Uint16(p))
	f.Version = int16(binary.BigEndian.Uint16(p[2:]))
	f.Correlation = int32(binary.BigEndian.Uint32(p[4:]))
	if len(p) < 10 {
		return
	}
	if n := int16(binary.BigEndian.Uint16(p[8:])); n > 0 && int(n) <= len(p)-10 {
		f.ClientID = string(p[10 : 10+n])
	}
}
