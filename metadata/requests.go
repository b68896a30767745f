package metadata

import "time"

// Registration is what a broker tells the controller when it starts.
type Registration struct {
	ID          BrokerID
	Incarnation [16]byte // random per process start
	Directories []DirectoryID
	Rack        string
	Listeners   []Listener
	Version     string
	// MinFeatureLevel and MaxFeatureLevel default to this binary's when both are 0.
	MinFeatureLevel, MaxFeatureLevel uint32
	// PeerAddress is host:port of the broker's listener for other brokers.
	PeerAddress string
	// TailsProven says that the logs on disk are known to hold all that this broker ever acknowledged without a sync:
	// it was stopped cleanly. Without it the broker is no candidate for partitions of topics with millrace.flush.ack=false
	// until it has caught up (I12).
	TailsProven bool
	// ReplaceDead takes the place of a registration whose process the controller can't reach, by order of a person
	// (--replace). A live one is never replaced.
	ReplaceDead bool
}

// Heartbeat is what a broker tells the controller every HeartbeatInterval.
type Heartbeat struct {
	Broker BrokerID
	Epoch  int64 // of its registration
	// Applied is the version of the Image that the broker has acted on: what it says about this broker's replicas is
	// done, and the copies of topics deleted by then are gone.
	Applied uint64
	// Shutdown asks to be relieved of all leaderships, and whether the process may stop.
	Shutdown bool
	// Offline are log directories that can't be used any more.
	Offline []DirectoryID
}

// HeartbeatReply is the controller's answer.
type HeartbeatReply struct {
	Fenced bool // the broker serves nobody
	// MayStop answers Shutdown: this broker leads nothing that another broker could lead.
	MayStop bool
	// Waiting says for what MayStop waits; "" if it does not.
	Waiting string
	// Lease is how long after this heartbeat was sent the controller will not fence the broker for silence.
	Lease time.Duration
}

// ElectionKind says who may be elected.
type ElectionKind uint8

// Kinds of elections, as in Kafka's ElectLeaders (KIP-460).
const (
	// Preferred makes the first replica the leader, if it is in the ISR.
	Preferred ElectionKind = iota
	// Unclean gives a partition without a leader the most complete of its live replicas, at the price of the records
	// which only the others have (R15).
	Unclean
)

// ElectionResult is the outcome for one partition. Err is nil when the partition has the leader that was asked for by
// this election, or matches ErrElectionNotNeeded, ErrPreferredLeaderUnfit, ErrNoEligibleLeader, ErrUnknownTopic,
// ErrUnknownPartition, or one of those of every operation (see CreateTopics).
type ElectionResult struct {
	TopicPartition TopicPartition
	Leader         BrokerID // after the election; NoBroker with Err
	Err            error
}

// Reassignment asks for another set of replicas of one partition (KIP-455).
type Reassignment struct {
	TopicPartition TopicPartition
	// Replicas is the set to reach, the preferred leader first. Nil cancels a reassignment under way.
	Replicas []BrokerID
}

// NewTopic asks for a topic. Either Partitions and ReplicationFactor say how large (-1 = the broker's default), or
// Assignments places every replica and both are -1.
type NewTopic struct {
	Name              string
	Partitions        int32
	ReplicationFactor int16
	// Assignments holds the replicas of each partition, the index is the partition id and the first replica the
	// preferred leader. Nil = the controller decides.
	Assignments [][]BrokerID
	// Configs are the topic's own configs; a nil value is refused, as Kafka does.
	Configs map[string]*string
}

// TopicRef names a topic by name, or by id when Name is "".
type TopicRef struct {
	Name string
	ID   TopicID
}

// NewPartitions asks for a topic to have Count partitions in all. Assignments, when not nil, places the replicas of the
// new ones only.
type NewPartitions struct {
	Topic       string
	Count       int32
	Assignments [][]BrokerID
}

// TopicResult is the outcome for one topic of a request, in the order of the request.
type TopicResult struct {
	Name string
	ID   TopicID // zero when the topic is not known or was only validated
	// Partitions and ReplicationFactor are those of the topic after the change, -1 with Err.
	Partitions        int32
	ReplicationFactor int16
	Configs           map[string]string // the topic's own configs after the change
	Err               error             // nil, or matches one of the sentinels
}

// ResourceType says what a ConfigChange is about.
type ResourceType uint8

// Resource types with configs.
const (
	TopicResource  ResourceType = iota + 1 // Name is the topic's
	BrokerResource                         // Name is the decimal broker id, "" is the default of all brokers
)

// Resource names something with configs.
type Resource struct {
	Type ResourceType
	Name string
}

// ConfigOpType is what one ConfigOp does, as in Kafka's IncrementalAlterConfigs (KIP-339).
type ConfigOpType uint8

// Config operations. Append and Subtract apply to list configs only.
const (
	ConfigSet ConfigOpType = iota
	ConfigDelete
	ConfigAppend
	ConfigSubtract
)

// ConfigOp changes one key.
type ConfigOp struct {
	Key   string
	Op    ConfigOpType
	Value *string // ignored by ConfigDelete, nil is refused by the others
}

// ConfigChange changes the configs of one resource, all of its Ops or none.
type ConfigChange struct {
	Resource Resource
	Ops      []ConfigOp
}

// PartitionChange asks for another ISR of one partition (KIP-497). The three epochs are compared inside Apply (R11).
type PartitionChange struct {
	TopicID        TopicID
	Partition      int32
	LeaderEpoch    int32 // the leader's present epoch
	PartitionEpoch int32 // of the state the change was decided on
	ISR            []ISRMember
}

// ISRMember is a member of a proposed ISR with the broker epoch that the leader saw in its fetches (KIP-903).
type ISRMember struct {
	ID    BrokerID
	Epoch int64 // -1 = not compared
}

// PartitionResult is the outcome of one PartitionChange: the partition after it, or Err.
type PartitionResult struct {
	Partition Partition
	Err       error
}

// LogEnd is how far one replica reaches: the leader epoch of its last batch, -1 when it is empty, and its log end offset.
type LogEnd struct {
	TopicPartition TopicPartition
	LeaderEpoch    int32
	Offset         int64
}
