package broker

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/transport/console"
	"github.com/millrace/millrace/transport/peer"
)

// replicaStateMethod is the call between brokers that asks for a console.ReplicaState.
const replicaStateMethod = "console.replica_state"

// openAdmin gives the parts to the HTTP server: from now on /v1 and /safe-to-stop answer.
func (b *Broker) openAdmin(context.Context) error {
	if b.http == nil {
		return nil
	}
	a := &console.Admin{
		BrokerID: b.nodeID,
		Cluster:  b.store,
		Quorum:   quorum{b.store},
		Balancer: b.store,
		Replicas: replicas{b.replicas, b.nodeID},
		MinISR:   b.minISR,
		Groups:   newGroupReports(b),
		Patience: b.cfg.groupPatience,
	}
	if b.peers != nil {
		handle(b.peers, replicaStateMethod, b.serveReplicaState)
		a.Peers = peerStates{b.store, b.peers}
	}
	b.http.SetAdmin(a)
	return nil
}

// closeAdmin takes the parts away before they are closed.
func (b *Broker) closeAdmin(context.Context) error {
	if b.http != nil {
		b.http.SetAdmin(nil)
	}
	return nil
}

// minISR returns how many replicas of a topic's partitions must be in sync for acks=all, as this broker's configuration
// has it now. Values were checked when they were set.
func (b *Broker) minISR() func(t *metadata.Topic) int {
	const key = "min.insync.replicas"
	inherited := b.effective()[key]
	return func(t *metadata.Topic) int {
		factor := 1
		if len(t.Partitions) > 0 {
			factor = len(t.Partitions[0].Replicas) - len(t.Partitions[0].Adding)
		}
		own, ok := t.Configs[key]
		if !ok {
			own = inherited
		}
		n, _ := strconv.Atoi(own) // "" is not set
		return (&metadata.TopicSettings{MinInsyncReplicas: n}).MinISR(factor)
	}
}

// quorum is the metadata's quorum in the form of the admin API.
type quorum struct{ store *metadata.Store }

// Quorum asks the controller; without one it says what this broker knows.
func (q quorum) Quorum(ctx context.Context) (console.QuorumStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	s, err := q.store.DescribeQuorum(ctx)
	if err != nil {
		s = q.store.Quorum()
		s.Leader = metadata.NoBroker
	}
	out := console.QuorumStatus{Leader: int32(s.Leader), Term: int64(s.Term), CommitIndex: int64(s.CommitIndex), LastIndex: int64(s.LastIndex), Size: s.Size}
	for _, m := range slices.Concat(s.Voters, s.NonVoters) {
		server := console.QuorumServer{
			Broker: int32(m.ID), Server: fmt.Sprintf("%d-%s", m.ID, directoryIDText(m.Directory)), Address: m.Address, Voter: m.Voter, Leader: m.ID == s.Leader, Healthy: m.Healthy,
			LastContactMS: -1, LastIndex: -1, Lag: -1,
		}
		if m.LastContact >= 0 {
			server.LastContactMS = m.LastContact.Milliseconds()
		}
		if m.DiskHang > 0 {
			server.DiskHangMS = max(m.DiskHang.Milliseconds(), 1)
		}
		if m.LogIndex > 0 {
			server.LastIndex = int64(m.LogIndex)
			server.Lag = max(int64(s.LastIndex)-int64(m.LogIndex), 0)
		}
		out.Servers = append(out.Servers, server)
	}
	return out, nil
}

// AddServer makes a registered broker a voter.
func (q quorum) AddServer(ctx context.Context, id metadata.BrokerID) error {
	b := q.store.Image().Broker(id)
	if b == nil || len(b.Directories) == 0 {
		return metadata.ErrUnknownBroker
	}
	return q.store.AddServer(ctx, metadata.Server{ID: id, Directory: b.Directories[0], Address: b.PeerAddress})
}

// RemoveServer takes a broker out of the quorum, for good (M14).
func (q quorum) RemoveServer(ctx context.Context, id metadata.BrokerID) error {
	return q.store.RemoveServer(ctx, id)
}

// TransferLeadership makes another voter the controller.
func (q quorum) TransferLeadership(ctx context.Context, to metadata.BrokerID) error {
	return q.store.TransferLeadership(ctx, to)
}

// replicas is this broker's replicas in the form of the admin API.
type replicas struct {
	*replication.Manager
	self metadata.BrokerID
}

// ReplicaState describes this broker's replica of a partition; false when it has none.
func (r replicas) ReplicaState(topic metadata.TopicID, partition int32) (console.ReplicaState, bool) {
	p, err := r.PartitionByID(topic, partition)
	if err != nil {
		return console.ReplicaState{}, false
	}
	s := p.Status()
	out := console.ReplicaState{
		Broker: int32(r.self), Role: s.Role.String(), LeaderEpoch: s.LeaderEpoch, LogStartOffset: s.StartOffset, HighWatermark: s.HighWatermark, LogEndOffset: s.EndOffset,
		DurableOffset: s.DurableEnd, SizeBytes: s.SizeBytes, Followers: []console.FollowerState{},
	}
	if s.Err != nil {
		out.Trouble = s.Err.Error()
	}
	now := time.Now().UTC()
	ago := func(d time.Duration) *time.Time {
		if d < 0 {
			return nil
		}
		t := now.Add(-d).Truncate(time.Millisecond)
		return &t
	}
	for _, f := range s.Followers {
		state := console.FollowerState{Broker: int32(f.ID), InSync: f.InSync, LogEndOffset: f.Position, LagRecords: -1, Fetched: ago(f.Fetched), CaughtUp: ago(f.CaughtUp)}
		if f.Position >= 0 {
			state.LagRecords = max(s.EndOffset-f.Position, 0)
		}
		out.Followers = append(out.Followers, state)
	}
	slices.SortFunc(out.Followers, func(a, b console.FollowerState) int { return int(a.Broker) - int(b.Broker) })
	return out, true
}

// replicaQuestion asks another broker about its replica.
type replicaQuestion struct {
	Topic     metadata.TopicID `json:"topic"`
	Partition int32            `json:"partition"`
}

// serveReplicaState answers a replicaQuestion of another broker: nil when there is no such replica.
func (b *Broker) serveReplicaState(_ context.Context, q replicaQuestion) (*console.ReplicaState, error) {
	if state, ok := (replicas{b.replicas, b.nodeID}).ReplicaState(q.Topic, q.Partition); ok {
		return &state, nil
	}
	return nil, nil
}

// peerStates asks other brokers over their listener for brokers.
type peerStates struct {
	store *metadata.Store
	peers *peer.Peers
}

// ReplicaState asks a broker for the state of its replica.
func (p peerStates) ReplicaState(ctx context.Context, broker metadata.BrokerID, topic metadata.TopicID, partition int32) (console.ReplicaState, bool, error) {
	b := p.store.Image().Broker(broker)
	if b == nil || b.PeerAddress == "" {
		return console.ReplicaState{}, false, metadata.ErrUnknownBroker
	}
	var state *console.ReplicaState
	if err := callJSON(ctx, p.peers, b.PeerAddress, replicaStateMethod, replicaQuestion{topic, partition}, &state); err != nil {
		return console.ReplicaState{}, false, fmt.Errorf("ask broker %d for its replica: %w", broker, err)
	}
	if state == nil {
		return console.ReplicaState{}, false, nil
	}
	return *state, true, nil
}
