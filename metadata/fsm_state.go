package metadata

import (
	"cmp"
	"slices"
	"strings"
)

// state is everything the FSM holds, one immutable version of it. draft makes the next one. Every field but those marked
// derived is part of the snapshot; a field added here without its place in fsm_snapshot.go fails TestSnapshotEveryField.
type state struct {
	clusterID    string
	featureLevel uint32
	// lastBrokerEpoch is the broker epoch given out last, 0 before the first; the next registration gets one more (I15).
	lastBrokerEpoch int64
	// nextProducerID is the first producer id that no block has covered yet (P5).
	nextProducerID int64
	// nextBrokerID is above every broker id that was ever given out or registered (I15).
	nextBrokerID BrokerID
	brokers      []*Broker        // by ascending ID
	configs      []*brokerConfigs // by ascending ID; the cluster default is NoBroker and so comes first
	identities   []*identity      // by ascending Directory
	topics       tree[string, *Topic]
	tombstones   tree[TopicID, tombstone]
	chains       []*chain // oldest first, at most maxChains
	balance      *balance // nil before the balancer first looked

	// coordinatorEpoch grows with every change of coordinators, or of their broker epochs, from GroupsFeatureLevel on (I15).
	coordinatorEpoch int32
	// groupRevision is the last Revision that any group was given.
	groupRevision uint64
	groups        tree[string, *Group]
	// lastGenerations are those of deleted groups.
	lastGenerations tree[string, lastGeneration]
	offsets         tree[string, *groupOffsets] // by group; none is empty, and each belongs to a group
	commitSequences []commitSequence            // by ascending Broker and Lane

	// transactionRevision is the last Revision that any transactional id was given, or the last order of a pending offset,
	// whichever is greater.
	transactionRevision uint64
	transactions        tree[string, *Transaction]
	pending             tree[string, *groupPending] // by group; none is empty, and each belongs to a group

	topicIDs   tree[TopicID, string] // derived: id → name of each topic
	collisions tree[string, string]  // derived: metric name → name, of topics whose name has '.' or '_'
	partitions int                   // derived: number of partitions of all topics

	coordinators []BrokerID // derived: ascending, see Image.Coordinator
	offsetCount  int        // derived: number of offsets of all groups

	producers tree[int64, string]        // derived: producer id → transactional id, of ProducerID and MarkerProducerID
	active    tree[string, *Transaction] // derived: those of transactions whose state is active
}

// brokerConfigs are the dynamic configs of one broker, or of all with ID NoBroker. Immutable.
type brokerConfigs struct {
	ID      BrokerID
	Version uint64 // index of the entry that last changed Values; compared by alter-configs commands
	Values  map[string]string
}

// identity says which broker a log directory belongs to; it outlives the registration. A removed one can't come back (M14).
// Immutable.
type identity struct {
	Directory DirectoryID
	Broker    BrokerID
	Removed   bool
}

// tombstone remembers a deleted topic. Index is that of the entry which deleted it. Request is the id of the delete command, so that the same command, proposed again
// after an indefinite answer, is told that it had succeeded while another delete of the same topic is told "unknown".
type tombstone struct {
	Request requestID
	Index   uint64
}

func newState() *state {
	return &state{
		featureLevel: MinFeatureLevel,
		nextBrokerID: 1,
		topics:       newTree[string, *Topic](strings.Compare),
		tombstones:   newTree[TopicID, tombstone](compareTopicIDs),
		topicIDs:     newTree[TopicID, string](compareTopicIDs),
		collisions:   newTree[string, string](strings.Compare),

		groups:          newTree[string, *Group](strings.Compare),
		lastGenerations: newTree[string, lastGeneration](strings.Compare),
		offsets:         newTree[string, *groupOffsets](strings.Compare),

		transactions: newTree[string, *Transaction](strings.Compare),
		pending:      newTree[string, *groupPending](strings.Compare),
		producers:    newTree[int64, string](cmp.Compare[int64]),
		active:       newTree[string, *Transaction](strings.Compare),
	}
}

func (st *state) broker(id BrokerID) *Broker {
	i, ok := slices.BinarySearchFunc(st.brokers, id, func(b *Broker, id BrokerID) int { return cmp.Compare(b.ID, id) })
	if !ok {
		return nil
	}
	return st.brokers[i]
}

// identity returns what is known of a directory, or nil.
func (st *state) identity(dir DirectoryID) *identity {
	i, ok := st.identityIndex(dir)
	if !ok {
		return nil
	}
	return st.identities[i]
}

func (st *state) identityIndex(dir DirectoryID) (int, bool) {
	return slices.BinarySearchFunc(st.identities, dir, func(id *identity, dir DirectoryID) int { return compareTopicIDs(id.Directory, dir) })
}

func (st *state) topic(name string) *Topic {
	t, _ := st.topics.get(name)
	return t
}

func (st *state) topicByID(id TopicID) *Topic {
	name, ok := st.topicIDs.get(id)
	if !ok {
		return nil
	}
	return st.topic(name)
}

func (st *state) tombstoned(id TopicID) bool {
	_, ok := st.tombstones.get(id)
	return ok
}

func (st *state) eachTopic(yield func(*Topic) bool) {
	st.topics.all()(func(_ string, t *Topic) bool { return yield(t) })
}

func (st *state) brokerConfigs(id BrokerID) *brokerConfigs {
	i, ok := slices.BinarySearchFunc(st.configs, id, func(c *brokerConfigs, id BrokerID) int { return cmp.Compare(c.ID, id) })
	if !ok {
		return nil
	}
	return st.configs[i]
}

func (st *state) brokerConfig(id BrokerID) map[string]string {
	if c := st.brokerConfigs(id); c != nil {
		return c.Values
	}
	return nil
}

// collision returns the name of a present topic, other than name, whose metric name is that of name, or "". Metric names
// have '_' for '.', so that a.b and a_b could not be told apart on a dashboard; Kafka refuses the second.
func (st *state) collision(name string) string {
	if !strings.ContainsAny(name, "._") {
		return ""
	}
	other, ok := st.collisions.get(metricName(name))
	if !ok || other == name {
		return ""
	}
	return other
}

func metricName(topic string) string { return strings.ReplaceAll(topic, ".", "_") }
