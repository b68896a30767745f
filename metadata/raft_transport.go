package metadata

import (
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// raftPool is how many connections to one server are kept, raftTimeout how long one message may take; a large one may take
	// longer (patience), and so may a snapshot.
	raftPool    = 3
	raftTimeout = 3 * time.Second
)

// NewTransport makes a Config.Transport over connections between brokers. addresses says where a broker with that directory
// is reached at present, "" if that is not known better than by the Raft configuration: so servers find each other when all
// their addresses changed while they were stopped. It may be nil. The Store closes the transport and with it the stream
// layer.
func NewTransport(stream raft.StreamLayer, addresses func(BrokerID, DirectoryID) string, logger *slog.Logger) raft.Transport {
	cfg := &raft.NetworkTransportConfig{Stream: patientStream{stream}, MaxPool: raftPool, Timeout: raftTimeout, Logger: newRaftLogger(logger)}
	if addresses != nil {
		cfg.ServerAddressProvider = addressBook(addresses)
	}
	return raft.NewNetworkTransportWithConfig(cfg)
}

type addressBook func(BrokerID, DirectoryID) string

var errNoAddress = errors.New("no other address is known")

// ServerAddr returns the present address of a server; with an error, the transport takes the configuration's.
func (b addressBook) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	if address := b(brokerOf(id), directoryOf(id)); address != "" {
		return raft.ServerAddress(address), nil
	}
	return "", errNoAddress
}

// electing is a transport through which this server can tell itself to hold an election at once, as a leader tells the
// server it hands over to. A lone voter has nobody to wait for, and neither has the server that has just bootstrapped a
// cluster; both would otherwise sit through one or two election timeouts.
type electing struct {
	raft.Transport
	rpcs    chan raft.RPC
	elect   chan struct{}
	stop    chan struct{}
	closing sync.Once
	closed  error
	running sync.WaitGroup
}

func newElecting(t raft.Transport) *electing {
	e := &electing{Transport: t, rpcs: make(chan raft.RPC), elect: make(chan struct{}, 1), stop: make(chan struct{})}
	e.running.Go(e.carry)
	return e
}

// carry hands on what comes in, and the own request.
func (e *electing) carry() {
	for {
		var rpc raft.RPC
		select {
		case rpc = <-e.Transport.Consumer():
		case <-e.elect:
			rpc = raft.RPC{
				Command:  &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}},
				RespChan: make(chan raft.RPCResponse, 1),
			}
		case <-e.stop:
			return
		}
		select {
		case e.rpcs <- rpc:
		case <-e.stop:
			return
		}
	}
}

func (e *electing) now() {
	select {
	case e.elect <- struct{}{}:
	default:
	}
}

func (e *electing) Consumer() <-chan raft.RPC { return e.rpcs }

// RequestPreVote is the method of raft.WithPreVote, which embedding the interface hides.
func (e *electing) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return preVote(e.Transport, id, target, args, resp)
}

func preVote(through raft.Transport, id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if t, ok := through.(raft.WithPreVote); ok {
		return t.RequestPreVote(id, target, args, resp)
	}
	return errors.New("raft: the transport carries no pre-votes")
}

// Close closes the transport too, if it can be closed. It may be called more than once: Raft does, and Open when it fails.
func (e *electing) Close() error {
	e.closing.Do(func() {
		close(e.stop)
		if t, ok := e.Transport.(io.Closer); ok {
			e.closed = t.Close()
		}
		if t, ok := e.Transport.(interface{ CloseStreams() }); ok {
			t.CloseStreams() // those that it keeps for later: else the other ends wait on them for as long as this process lives
		}
		e.running.Wait()
	})
	return e.closed
}

// loopback is the Raft transport of a broker that is alone and can't be joined: nothing is ever sent or received.
type loopback struct {
	addr raft.ServerAddress
	rpcs chan raft.RPC
}

var errAlone = errors.New("raft: this broker is alone and reaches no other")

func newLoopback(addr raft.ServerAddress) *loopback {
	return &loopback{addr: addr, rpcs: make(chan raft.RPC)}
}

func (l *loopback) Consumer() <-chan raft.RPC { return l.rpcs }

func (l *loopback) LocalAddr() raft.ServerAddress { return l.addr }

func (l *loopback) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

func (l *loopback) AppendEntries(raft.ServerID, raft.ServerAddress, *raft.AppendEntriesRequest, *raft.AppendEntriesResponse) error {
	return errAlone
}

func (l *loopback) RequestVote(raft.ServerID, raft.ServerAddress, *raft.RequestVoteRequest, *raft.RequestVoteResponse) error {
	return errAlone
}

func (l *loopback) RequestPreVote(raft.ServerID, raft.ServerAddress, *raft.RequestPreVoteRequest, *raft.RequestPreVoteResponse) error {
	return errAlone
}

func (l *loopback) InstallSnapshot(raft.ServerID, raft.ServerAddress, *raft.InstallSnapshotRequest, *raft.InstallSnapshotResponse, io.Reader) error {
	return errAlone
}

func (l *loopback) TimeoutNow(raft.ServerID, raft.ServerAddress, *raft.TimeoutNowRequest, *raft.TimeoutNowResponse) error {
	return errAlone
}

func (l *loopback) EncodePeer(_ raft.ServerID, addr raft.ServerAddress) []byte { return []byte(addr) }

func (l *loopback) DecodePeer(b []byte) raft.ServerAddress { return raft.ServerAddress(b) }

func (l *loopback) SetHeartbeatHandler(func(raft.RPC)) {}
