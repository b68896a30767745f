package metadata

import (
	"errors"
	"io"

	"github.com/hashicorp/raft"
)

// loopback is the Raft transport of a broker that is alone. Nothing is ever sent to another server; the one message it
// carries is the broker's own request to hold an election at once, because a lone voter has nobody to wait for.
type loopback struct {
	addr raft.ServerAddress
	rpcs chan raft.RPC
}

var errAlone = errors.New("raft: this broker is alone and reaches no other")

func newLoopback(addr raft.ServerAddress) *loopback {
	return &loopback{addr: addr, rpcs: make(chan raft.RPC, 1)}
}

// electNow ends the follower state of a lone voter. Without it the first election waits one to two heartbeat timeouts.
func (l *loopback) electNow() {
	rpc := raft.RPC{
		Command:  &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}},
		RespChan: make(chan raft.RPCResponse, 1),
	}
	select {
	case l.rpcs <- rpc:
	default:
	}
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
