package metadata

import (
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// slowNet is a network of stream layers over which so many bytes a second pass, in fake time.
type slowNet struct {
	rate   int
	mu     sync.Mutex
	layers map[string]*slowStream
}

type slowStream struct {
	net      *slowNet
	address  string
	accepted chan net.Conn
	closed   chan struct{}
	closing  sync.Once
}

func (n *slowNet) layer(address string) *slowStream {
	s := &slowStream{net: n, address: address, accepted: make(chan net.Conn), closed: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.layers == nil {
		n.layers = map[string]*slowStream{}
	}
	n.layers[address] = s
	return s
}

func (s *slowStream) Network() string { return "slow" }
func (s *slowStream) String() string  { return s.address }
func (s *slowStream) Addr() net.Addr  { return s }

func (s *slowStream) Close() error {
	s.closing.Do(func() { close(s.closed) })
	return nil
}

func (s *slowStream) Accept() (net.Conn, error) {
	select {
	case conn := <-s.accepted:
		return conn, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

func (s *slowStream) Dial(address raft.ServerAddress, _ time.Duration) (net.Conn, error) {
	s.net.mu.Lock()
	to := s.net.layers[string(address)]
	s.net.mu.Unlock()
	here, there := net.Pipe()
	select {
	case to.accepted <- &slowConn{Conn: there, rate: s.net.rate}:
		return &slowConn{Conn: here, rate: s.net.rate}, nil
	case <-to.closed:
		return nil, net.ErrClosed
	}
}

// slowConn is a connection that takes some time for each byte written.
type slowConn struct {
	net.Conn
	rate     int
	deadline atomic.Pointer[time.Time]
}

func (c *slowConn) SetDeadline(t time.Time) error {
	c.deadline.Store(&t)
	return c.Conn.SetDeadline(t)
}

func (c *slowConn) SetWriteDeadline(t time.Time) error {
	c.deadline.Store(&t)
	return c.Conn.SetWriteDeadline(t)
}

func (c *slowConn) Write(b []byte) (int, error) {
	takes := time.Duration(len(b)) * time.Second / time.Duration(c.rate)
	if d := c.deadline.Load(); d != nil && !d.IsZero() && time.Until(*d) < takes {
		time.Sleep(time.Until(*d))
		return 0, os.ErrDeadlineExceeded
	}
	time.Sleep(takes)
	return c.Conn.Write(b)
}

// A follower that is far behind gets what it lacks over a slow link too: in messages that are bounded, and that have the time
// they need. A follower that does not answer is given up after that time all the same.
func TestMessagesOverASlowLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := &slowNet{rate: slowestLink + 8<<10}
		transport := func(address string) raft.Transport {
			return cutting{NewTransport(network.layer(address), nil, slog.New(slog.DiscardHandler))}
		}
		leader, follower := transport("leader"), transport("follower")
		defer leader.(cutting).Transport.(io.Closer).Close()
		defer follower.(cutting).Transport.(io.Closer).Close()
		var last, messages uint64
		var silent atomic.Bool
		stop := make(chan struct{})
		var running sync.WaitGroup
		defer running.Wait()
		defer close(stop)
		running.Go(func() {
			for {
				select {
				case rpc := <-follower.Consumer():
					if silent.Load() {
						continue
					}
					request := rpc.Command.(*raft.AppendEntriesRequest)
					messages++
					for _, e := range request.Entries {
						last = e.Index
					}
					rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
				case <-stop:
					return
				}
			}
		})
		entries := make([]*raft.Log, 30)
		for i := range entries {
			entries[i] = &raft.Log{Index: uint64(i + 1), Data: make([]byte, maxEntryBytes-1000)}
		}
		for next := 0; next < len(entries); { // as raft does
			request := &raft.AppendEntriesRequest{Term: 1, Entries: slices.Clone(entries[next:]), PrevLogEntry: uint64(next), PrevLogTerm: 1}
			require.NoError(t, leader.AppendEntries("follower", "follower", request, &raft.AppendEntriesResponse{}))
			require.NotEmpty(t, request.Entries)
			next += len(request.Entries)
		}
		require.EqualValues(t, len(entries), last)
		require.EqualValues(t, 8, messages)

		pipeline, err := leader.AppendEntriesPipeline("follower", "follower")
		require.NoError(t, err)
		for range 4 {
			request := &raft.AppendEntriesRequest{Term: 1, Entries: slices.Clone(entries), PrevLogTerm: 1}
			_, err := pipeline.AppendEntries(request, &raft.AppendEntriesResponse{})
			require.NoError(t, err)
			require.Len(t, request.Entries, 4)
			answer := <-pipeline.Consumer()
			require.NoError(t, answer.Error())
		}
		require.NoError(t, pipeline.Close())

		silent.Store(true)
		began := time.Now()
		require.Error(t, leader.AppendEntries("follower", "follower", &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 1, PrevLogTerm: 1}, &raft.AppendEntriesResponse{}))
		require.Less(t, time.Since(began), raftTimeout+time.Second)
		began = time.Now()
		require.Error(t, leader.AppendEntries("follower", "follower", &raft.AppendEntriesRequest{Term: 1, Entries: slices.Clone(entries), PrevLogTerm: 1}, &raft.AppendEntriesResponse{}))
		require.Less(t, time.Since(began), raftTimeout+patience(messageBytes)+time.Second)
	})
}

// weighing is a transport that notes how large messages are.
type weighing struct {
	raft.Transport
	largest atomic.Uint64
}

func (w *weighing) weigh(args *raft.AppendEntriesRequest) {
	bytes := 0
	for _, e := range args.Entries {
		bytes += size(e)
	}
	raise(&w.largest, uint64(bytes))
}

func (w *weighing) AppendEntries(id raft.ServerID, to raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	w.weigh(args)
	return w.Transport.AppendEntries(id, to, args, resp)
}

func (w *weighing) AppendEntriesPipeline(id raft.ServerID, to raft.ServerAddress) (raft.AppendPipeline, error) {
	inner, err := w.Transport.AppendEntriesPipeline(id, to)
	return weighingPipeline{inner, w}, err
}

func (w *weighing) RequestPreVote(id raft.ServerID, to raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return preVote(w.Transport, id, to, args, resp)
}

type weighingPipeline struct {
	raft.AppendPipeline
	w *weighing
}

func (p weighingPipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	p.w.weigh(args)
	return p.AppendPipeline.AppendEntries(args, resp)
}

// Raft goes on behind what was left of a message, in both of its ways to send entries: a follower that was away gets all, in
// bounded messages. A version of raft that looks at a message before it sends it would leave entries out.
func TestCatchingUpInBoundedMessages(t *testing.T) {
	inQuorumWorld(t, 3, func(t *testing.T, w *quorumWorld) {
		scales := map[BrokerID]*weighing{}
		w.edit = func(c *Config) {
			scales[c.NodeID] = &weighing{Transport: c.Transport}
			c.Transport = scales[c.NodeID]
			c.SnapshotEntries, c.commitTimeout = 1<<20, 0
		}
		w.untold = true // so that there are pipelines
		for id := range BrokerID(3) {
			w.join(id + 1)
		}
		w.voting(1, 2, 3)
		lead := w.controller()
		away := w.other(lead)
		w.deafen(away, true)
		w.pass(time.Second)
		for range 40 { // they are refused, but are entries
			_, err := lead.proposeIn(testContext(t), lead.lead.Load().term, &commitOffsets{broker: 99, commits: []OffsetCommit{{Group: strings.Repeat("g", 120_000)}}})
			require.Error(t, err)
		}
		_, err := lead.create("after", time.Minute)
		require.NoError(t, err)
		w.deafen(away, false)
		w.await("it has caught up", func() bool { return away.Image().Version() >= lead.Image().Version() })
		require.LessOrEqual(t, scales[lead.cfg.NodeID].largest.Load(), uint64(messageBytes))
		require.Greater(t, scales[lead.cfg.NodeID].largest.Load(), uint64(messageBytes/2), "it was behind by more than a message")
	})
}
