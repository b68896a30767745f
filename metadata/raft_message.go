package metadata

import (
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Raft bounds a message by the number of its entries alone, and gives each the same time. Entries are of 100 bytes or of 256 KiB here:
// a follower that is behind by large ones, over a slow link, would never take the first message in time, and be sent it
// again and again. So messages are cut to messageBytes, and have more time the larger they are.

const (
	// messageBytes bounds the entries of one message, but for one that is larger. It is more than can be proposed at once, so that
	// nothing but catching up is ever cut: Raft sends what is left with its next message.
	messageBytes = 4 * maxEntryBytes
	// messageEntries bounds their number. Raft reads so many before they are cut, and makes room for so many in each message.
	messageEntries = 128
	// slowestLink is how many bytes a second must get through at least.
	slowestLink = 64 << 10
)

// cutting is a transport with bounded messages. Raft looks at what a request contains after it was sent, not before, and goes on
// behind that.
type cutting struct{ raft.Transport }

// AppendEntries passes on as much as fits.
func (c cutting) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	cut(args)
	return c.Transport.AppendEntries(id, target, args, resp)
}

// AppendEntriesPipeline opens a pipeline for bounded messages.
func (c cutting) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	inner, err := c.Transport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	return cuttingPipeline{inner}, nil
}

// RequestPreVote is the method of raft.WithPreVote, which embedding the interface hides.
func (c cutting) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return preVote(c.Transport, id, target, args, resp)
}

// cuttingPipeline is a pipeline of cutting.
type cuttingPipeline struct{ raft.AppendPipeline }

// AppendEntries passes on as much as fits.
func (p cuttingPipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	cut(args)
	return p.AppendPipeline.AppendEntries(args, resp)
}

// cut leaves the first entries of a message, at least one.
func cut(args *raft.AppendEntriesRequest) {
	bytes := 0
	for i, e := range args.Entries {
		if bytes += size(e); bytes > messageBytes && i > 0 {
			clear(args.Entries[i:])
			args.Entries = args.Entries[:i]
			return
		}
	}
}

// patientStream is a stream layer whose connections give a large message more time than the transport, which gives all the same.
type patientStream struct{ raft.StreamLayer }

// Dial implements raft.StreamLayer.
func (s patientStream) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	conn, err := s.StreamLayer.Dial(address, timeout)
	if err != nil {
		return nil, err
	}
	return &patientConn{Conn: conn}, nil
}

// patientConn is a connection whose deadlines move with what was written since they were set.
type patientConn struct {
	net.Conn

	mu struct {
		sync.Mutex
		read, write time.Time // as set; zero = none
		// sentRead and sentWrite are how many bytes were written since: an answer can't come before what it answers has arrived.
		sentRead, sentWrite int
	}
}

// patience is how much later a deadline is for so many bytes.
func patience(bytes int) time.Duration {
	return time.Duration(bytes) * time.Second / slowestLink
}

// SetDeadline implements net.Conn.
func (c *patientConn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.read, c.mu.sentRead, c.mu.write, c.mu.sentWrite = t, 0, t, 0
	return c.Conn.SetDeadline(t)
}

// SetWriteDeadline implements net.Conn.
func (c *patientConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.write, c.mu.sentWrite = t, 0
	return c.Conn.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn. What was written before it was set may be on its way still.
func (c *patientConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.read = t
	late := c.mu.sentRead
	c.mu.sentRead = 0
	if !t.IsZero() {
		c.mu.read = t.Add(patience(late))
	}
	return c.Conn.SetReadDeadline(c.mu.read)
}

// Write implements net.Conn.
func (c *patientConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.mu.sentRead += len(b)
	c.mu.sentWrite += len(b)
	var err error
	if !c.mu.write.IsZero() {
		err = c.Conn.SetWriteDeadline(c.mu.write.Add(patience(c.mu.sentWrite)))
	}
	if err == nil && !c.mu.read.IsZero() {
		err = c.Conn.SetReadDeadline(c.mu.read.Add(patience(c.mu.sentRead)))
	}
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}
