package member

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Conn is one connection to a broker, with one request on its way at a time. It is for one goroutine.
type Conn struct {
	conn        net.Conn
	in          *bufio.Reader
	format      *kmsg.RequestFormatter
	out         []byte
	correlation int32
}

// Dial connects to a broker; clientID is what its requests say.
func Dial(addr, clientID string) (*Conn, error) {
	conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return nil, err
	}
	return &Conn{conn: conn, in: bufio.NewReaderSize(conn, 512), format: kmsg.NewRequestFormatter(kmsg.FormatterClientID(clientID))}, nil
}

// Close ends the connection.
func (c *Conn) Close() error { return c.conn.Close() }

// errMalformed is an answer that cannot be one.
var errMalformed = errors.New("malformed answer")

// maxAnswer bounds answers, in bytes.
const maxAnswer = 16 << 20

// Do sends a request in the version that it says, and returns the answer. After an error the connection is of no use.
func (c *Conn) Do(req kmsg.Request, patience time.Duration) (kmsg.Response, error) {
	c.correlation++
	c.out = c.format.AppendRequest(c.out[:0], req, c.correlation)
	if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if _, err := c.conn.Write(c.out); err != nil {
		return nil, err
	}
	var head [8]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return nil, err
	}
	size := int(int32(binary.BigEndian.Uint32(head[:])))
	if size < 4 || size > maxAnswer || int32(binary.BigEndian.Uint32(head[4:])) != c.correlation {
		return nil, errMalformed
	}
	body := make([]byte, size-4)
	if _, err := io.ReadFull(c.in, body); err != nil {
		return nil, err
	}
	resp := req.ResponseKind()
	if resp.IsFlexible() && req.Key() != 18 {
		if len(body) == 0 || body[0] != 0 {
			return nil, errMalformed // tags, which nobody sends
		}
		body = body[1:]
	}
	if err := resp.ReadFrom(body); err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	return resp, nil
}
