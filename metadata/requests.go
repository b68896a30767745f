package metadata

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
