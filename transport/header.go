package transport

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// errHeader is a request header that can't be parsed.
var errHeader = errors.New("malformed request header")

// keyAPIVersions is the one key whose responses keep header v0 in flexible versions, so that a client can read the answer of a broker that
// doesn't know its version.
const keyAPIVersions = 18

// requestHeader is a parsed request header. clientID and body alias the input.
type requestHeader struct {
	key, version  int16
	correlationID int32
	clientID      []byte // empty when null
	body          []byte
}

// parseHeader parses request header v1, or v2 when flexible: the same and a section of tagged fields, which are skipped. The client id is
// an int16-prefixed string in both.
func parseHeader(b []byte, flexible bool) (requestHeader, error) {
	if len(b) < minRequestBytes+2 {
		return requestHeader{}, fmt.Errorf("%w: %d bytes", errHeader, len(b))
	}
	h := requestHeader{
		key:           int16(binary.BigEndian.Uint16(b)),
		version:       int16(binary.BigEndian.Uint16(b[2:])),
		correlationID: int32(binary.BigEndian.Uint32(b[4:])),
	}
	n := int(int16(binary.BigEndian.Uint16(b[8:])))
	b = b[10:]
	switch {
	case n < -1 || n > len(b):
		return requestHeader{}, fmt.Errorf("%w: client id of %d bytes with %d left", errHeader, n, len(b))
	case n > 0:
		h.clientID, b = b[:n], b[n:]
	}
	if flexible {
		var err error
		if b, err = skipTags(b); err != nil {
			return requestHeader{}, err
		}
	}
	h.body = b
	return h, nil
}

// skipTags skips a section of tagged fields.
func skipTags(b []byte) ([]byte, error) {
	uvarint := func() (int, bool) {
		v, n := binary.Uvarint(b[:min(len(b), 5)])
		if n <= 0 || v > 1<<31-1 {
			return 0, false
		}
		b = b[n:]
		return int(v), true
	}
	count, ok := uvarint()
	for i := 0; ok && i < count; i++ { // each round takes two bytes or fails, so count needs no bound
		var size int
		if _, ok = uvarint(); ok {
			size, ok = uvarint()
		}
		if ok = ok && size <= len(b); ok {
			b = b[size:]
		}
	}
	if !ok {
		return nil, fmt.Errorf("%w: tagged fields", errHeader)
	}
	return b, nil
}

// maxResponseHeaderBytes is the size prefix, the correlation id and an empty section of tagged fields.
const maxResponseHeaderBytes = prefixBytes + 4 + 1

// appendResponseHeader appends size prefix and header of a response whose body has size bytes: header v1 when flexible, else v0.
func appendResponseHeader(b []byte, size int, correlationID int32, flexible bool) []byte {
	size += 4
	if flexible {
		size++
	}
	b = binary.BigEndian.AppendUint32(b, uint32(size))
	b = binary.BigEndian.AppendUint32(b, uint32(correlationID))
	if flexible {
		b = append(b, 0)
	}
	return b
}

// appendMessage appends a whole response frame.
func appendMessage(b []byte, correlationID int32, m kmsg.Response) []byte {
	start := len(b)
	b = appendResponseHeader(b, 0, correlationID, m.IsFlexible() && m.Key() != keyAPIVersions)
	b = m.AppendTo(b)
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start-prefixBytes))
	return b
}
