package metadata

import (
	"fmt"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// Replica is the FSM without Raft: the controller of a simulation, in which the log is ideal and time stands still. What it
// decides is what Apply decides in a broker. It is deterministic, has no goroutine, clock or lock, and is used by one
// goroutine.
type Replica struct {
	fsm  *fsm
	next uint64
	// sequence counts the batches of offset commits.
	sequence uint64
	// Settings stand in for the brokers' configs, where a topic says nothing. They may be changed between changes.
	Settings ReplicaSettings
}

// ReplicaSettings are the broker configs that Apply goes by.
type ReplicaSettings struct {
	MinInsyncReplicas int  // 0 = by the number of replicas
	FlushLazily       bool // millrace.flush.ack=false
}

// NewReplica returns one that has a cluster id and nothing else.
func NewReplica() *Replica {
	r := &Replica{next: 1}
	r.fsm = &fsm{
		st:        newState(),
		published: func(*state, uint64) {},
		failure:   func(err error) { panic(fmt.Sprintf("metadata: replica: %v", err)) },
	}
	r.must(&initCluster{clusterID: "replica", featureLevel: MaxFeatureLevel})
	return r
}

// Image returns the state after what was done so far.
func (r *Replica) Image() *Image {
	return &Image{version: r.fsm.index, controller: NoBroker, st: r.fsm.st}
}

// Hash is equal for two Replicas to which the same was done, in the same order (I14).
func (r *Replica) Hash() [32]byte { return stateHash(r.fsm.st, r.fsm.index) }

// Clone returns an independent Replica in the same state.
func (r *Replica) Clone() *Replica {
	f := *r.fsm
	return &Replica{fsm: &f, next: r.next, sequence: r.sequence, Settings: r.Settings}
}

// do applies one command, as an entry of its own.
func (r *Replica) do(c command) (any, error) {
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(c.message())
	if err != nil {
		return nil, fmt.Errorf("encode %v: %w", c.kind(), err)
	}
	data, err := proto.Marshal(&pb.Entry{Commands: []*pb.Command{{Type: c.kind(), Term: 1, Body: body}}})
	if err != nil {
		return nil, fmt.Errorf("encode an entry: %w", err)
	}
	r.next++
	results, ok := r.fsm.Apply(&raft.Log{Index: r.next, Term: 1, Type: raft.LogCommand, Data: data}).([]result)
	if !ok {
		panic(fmt.Sprintf("metadata: replica: %v", r.fsm.failed))
	}
	return results[0].value, results[0].err
}

func (r *Replica) must(c command) {
	if _, err := r.do(c); err != nil {
		panic(fmt.Sprintf("metadata: replica: %v: %v", c.kind(), err))
	}
}

func (r *Replica) policy() partitionPolicy {
	return partitionPolicy{minInsync: r.Settings.MinInsyncReplicas, flushLazily: r.Settings.FlushLazily}
}

// Register registers a process of a broker, fenced or not, in place of whatever is registered under its id, and returns its
// broker epoch.
func (r *Replica) Register(reg Registration, fenced bool) (epoch int64, err error) {
	b, err := newBroker(reg)
	if err != nil {
		return 0, err
	}
	b.Fenced = fenced
	c := &registerBroker{broker: b, tailsProven: reg.TailsProven, policy: r.policy()}
	if old := r.Image().Broker(b.ID); old != nil {
		c.expectedEpoch = old.Epoch
	}
	v, err := r.do(c)
	if err != nil {
		return 0, err
	}
	return v.(registered).Epoch, nil
}

// Fence fences a broker, or lifts its fence.
func (r *Replica) Fence(id BrokerID, epoch int64, on bool) error {
	c := &alterBroker{broker: id, epoch: epoch, fenced: switchOf(on), policy: r.policy()}
	if b := r.Image().Broker(id); b != nil {
		c.fencedIndex = b.fencedIndex
	}
	_, err := r.do(c)
	return err
}

// Leave begins a controlled shutdown.
func (r *Replica) Leave(id BrokerID, epoch int64) error {
	_, err := r.do(&alterBroker{broker: id, epoch: epoch, leaving: pb.Switch_SWITCH_ON, policy: r.policy()})
	return err
}

// Maintain begins or ends maintenance.
func (r *Replica) Maintain(id BrokerID, epoch int64, on bool) error {
	_, err := r.do(&alterBroker{broker: id, epoch: epoch, draining: switchOf(on), policy: r.policy()})
	return err
}

// CreateTopic creates a topic with these replicas, in the first directory of each broker. The id must be new.
func (r *Replica) CreateTopic(name string, id TopicID, configs map[string]string, assignments [][]BrokerID) error {
	c := &createTopic{id: id, name: name, configs: configs}
	for _, ids := range assignments {
		set, err := r.place(ids)
		if err != nil {
			return err
		}
		c.sets = append(c.sets, set)
	}
	_, err := r.do(c)
	return err
}

func (r *Replica) place(ids []BrokerID) (replicaSet, error) {
	set := replicaSet{replicas: ids}
	for _, id := range ids {
		b := r.Image().Broker(id)
		if b == nil {
			return set, ErrUnknownBroker
		}
		set.directories = append(set.directories, b.Directories[0])
	}
	return set, nil
}

// AlterTopic sets configs of a topic.
func (r *Replica) AlterTopic(name string, set map[string]string) error {
	t := r.Image().Topic(name)
	if t == nil {
		return ErrUnknownTopic
	}
	_, err := r.do(&alterConfigs{broker: NoBroker, topic: t.ID, expectedVersion: t.configVersion, set: set})
	return err
}

// AlterPartition changes the ISR of one partition, as Store.AlterPartition does.
func (r *Replica) AlterPartition(leader BrokerID, leaderBrokerEpoch int64, ch PartitionChange) (*Partition, error) {
	v, err := r.do(&alterPartitions{leader: leader, leaderBrokerEpoch: leaderBrokerEpoch, policy: r.policy(), changes: []PartitionChange{ch}})
	if err != nil {
		return nil, err
	}
	out := v.([]alteredPartition)[0]
	return &out.partition, out.err
}

// Elect elects the preferred leader of a partition, or with Unclean this one.
func (r *Replica) Elect(kind ElectionKind, tp TopicPartition, leader BrokerID) error {
	t := r.Image().Topic(tp.Topic)
	if t == nil || int(tp.Partition) >= len(t.Partitions) {
		return ErrUnknownPartition
	}
	e := election{topicIDPartition: topicIDPartition{t.ID, tp.Partition}, leader: leader, partitionEpoch: t.Partitions[tp.Partition].PartitionEpoch}
	v, err := r.do(&electLeaders{unclean: kind == Unclean, policy: r.policy(), elections: []election{e}})
	if err != nil {
		return err
	}
	return v.([]elected)[0].err
}

// Reassign begins, changes or, with nil replicas, cancels the move of a partition's replicas.
func (r *Replica) Reassign(tp TopicPartition, replicas []BrokerID) error {
	t := r.Image().Topic(tp.Topic)
	if t == nil || int(tp.Partition) >= len(t.Partitions) {
		return ErrUnknownPartition
	}
	set, err := r.place(replicas)
	if err != nil {
		return err
	}
	_, err = r.do(&reassignPartition{
		topicIDPartition: topicIDPartition{t.ID, tp.Partition}, partitionEpoch: t.Partitions[tp.Partition].PartitionEpoch,
		target: set, policy: r.policy(),
	})
	return err
}

func switchOf(on bool) pb.Switch {
	if on {
		return pb.Switch_SWITCH_ON
	}
	return pb.Switch_SWITCH_OFF
}
