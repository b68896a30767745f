package metadata

import (
	"crypto/sha256"
	"iter"
)

// Image is the cluster's metadata after one committed command: immutable, safe for any number of readers, and a prefix
// of the one log that all brokers share (I13). Nothing reachable from an Image may be written to, by anyone.
type Image struct {
	version    uint64
	controller BrokerID
	st         *state
}

// Version is the Raft index of the last entry that is part of this Image. It never goes back on one Store.
func (im *Image) Version() uint64 { return im.version }

// TopicsOnly returns an Image that has the Version and the topics of this one and nothing else, for who keeps it for them: an
// Image that is kept keeps all that has changed since, of groups and offsets too.
func (im *Image) TopicsOnly() *Image {
	st := im.st
	return &Image{version: im.version, controller: im.controller, st: &state{
		clusterID: st.clusterID, featureLevel: st.featureLevel, topics: st.topics, topicIDs: st.topicIDs, partitions: st.partitions,
	}}
}

// SharesTopics reports whether the topics of both Images are one and the same, which costs no look at them. Topics that were
// changed and changed back are not.
func (im *Image) SharesTopics(other *Image) bool { return im.st.topics.root == other.st.topics.root }

// DiffersInOffsets reports whether all that two Images may differ in are their versions, committed offsets, and the batches that
// committed them: with many consumers nearly all that happens, and nothing to most who watch. Like SharesTopics it may be false of
// equal Images, and costs no look at what they hold.
func (im *Image) DiffersInOffsets(other *Image) bool {
	a, b := im.st, other.st
	return im.controller == other.controller &&
		a.clusterID == b.clusterID && a.featureLevel == b.featureLevel && a.lastBrokerEpoch == b.lastBrokerEpoch && a.nextProducerID == b.nextProducerID && a.nextBrokerID == b.nextBrokerID &&
		sameSlice(a.brokers, b.brokers) && sameSlice(a.configs, b.configs) && sameSlice(a.identities, b.identities) && sameSlice(a.chains, b.chains) && a.balance == b.balance &&
		a.topics.root == b.topics.root && a.tombstones.root == b.tombstones.root &&
		a.coordinatorEpoch == b.coordinatorEpoch && a.groupRevision == b.groupRevision && a.groups.root == b.groups.root && a.lastGenerations.root == b.lastGenerations.root &&
		a.transactionRevision == b.transactionRevision && a.transactions.root == b.transactions.root && a.pending.root == b.pending.root
}

// sameSlice reports whether two slices are one and the same.
func sameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// Hash is equal on all brokers whose Image has the same Version, however they came to it: by replay or by a snapshot (I14).
// It costs as much as writing a snapshot.
func (im *Image) Hash() [sha256.Size]byte { return stateHash(im.st, im.version) }

// ClusterID is the id minted when the cluster was formed; "" until then.
func (im *Image) ClusterID() string { return im.st.clusterID }

// ControllerID is the broker that leads the metadata quorum as far as this broker knows, NoBroker if it knows none.
func (im *Image) ControllerID() BrokerID { return im.controller }

// Brokers returns all registered brokers by ascending id, fenced ones included.
func (im *Image) Brokers() []*Broker { return im.st.brokers }

// Broker returns the broker of that id, or nil.
func (im *Image) Broker(id BrokerID) *Broker { return im.st.broker(id) }

// Topics yields all topics by ascending name.
func (im *Image) Topics() iter.Seq[*Topic] { return im.st.eachTopic }

// TopicCount is the number of topics.
func (im *Image) TopicCount() int { return im.st.topics.len() }

// PartitionCount is the number of partitions of all topics.
func (im *Image) PartitionCount() int { return im.st.partitions }

// Topic returns the topic of that name, or nil.
func (im *Image) Topic(name string) *Topic { return im.st.topic(name) }

// TopicByID returns the topic of that id, or nil.
func (im *Image) TopicByID(id TopicID) *Topic { return im.st.topicByID(id) }

// BrokerConfig returns the dynamic configs of a broker, or with NoBroker the cluster-wide defaults. The map may be nil;
// it must not be written to.
func (im *Image) BrokerConfig(id BrokerID) map[string]string { return im.st.brokerConfig(id) }

// FeatureLevel is the committed level of the metadata commands (D17).
func (im *Image) FeatureLevel() uint32 { return im.st.featureLevel }

// Reassignments yields the partitions whose replicas are being moved, by ascending topic name and partition.
func (im *Image) Reassignments() iter.Seq2[TopicPartition, *Partition] {
	return func(yield func(TopicPartition, *Partition) bool) {
		for t := range im.Topics() {
			for i, p := range t.Partitions {
				if p.Reassigning() && !yield(TopicPartition{Topic: t.Name, Partition: int32(i)}, p) {
					return
				}
			}
		}
	}
}

// Balances reports whether the reassignment of a partition that is under way was begun by the balancer.
func (im *Image) Balances(id TopicID, partition int32) bool {
	plan := im.st.balance.planOrNil()
	t := im.TopicByID(id)
	if plan == nil || t == nil || int(partition) >= len(t.Partitions) {
		return false
	}
	for i := range plan.Moves {
		m := &plan.Moves[i]
		if m.Topic == id && m.Partition == partition && !m.State.final() && m.begun(t.Partitions[partition]) {
			return true
		}
	}
	return false
}

// Tombstone reports whether a topic of that id existed and was deleted by a committed command. Copies of its partitions
// may go; copies of ids that are neither known nor tombstoned must be kept (L12).
func (im *Image) Tombstone(id TopicID) bool { return im.st.tombstoned(id) }

// ChangedTopics yields what differs between an older Image of the same Store and this one, by ascending name: (nil, new)
// for a created topic, (old, nil) for a deleted one, (old, new) for a changed one. A topic that was deleted and created
// again in between comes as two: (old, nil), then (nil, new). The cost is linear in the change, not in the Image. With a
// nil since every topic is new.
func (im *Image) ChangedTopics(since *Image) iter.Seq2[*Topic, *Topic] {
	return func(yield func(old, new *Topic) bool) {
		var before tree[string, *Topic]
		if since != nil {
			before = since.st.topics
		}
		diffTopics(before, im.st.topics, yield)
	}
}

// Broker is a registered broker. Immutable.
type Broker struct {
	ID BrokerID
	// Epoch grows with each registration of any broker and is never reused (I15).
	Epoch int64
	// Incarnation is random per process start; it tells a restarted process from a second one with the same id (M13).
	Incarnation [16]byte
	// Directories are the ids of the broker's log directories, as registered.
	Directories []DirectoryID
	Rack        string // "" = none
	Listeners   []Listener
	// PeerAddress is host:port of the listener for other brokers; "" for a broker that is alone.
	PeerAddress string
	// Fenced brokers lead nothing and are in no ISR. A broker is fenced from its registration until it has caught up with
	// the metadata, and whenever the controller has lost contact with it.
	Fenced bool
	// Draining brokers are in maintenance: they lead nothing that another replica in the ISR could lead, and get no new
	// replicas.
	Draining bool
	// Removing brokers are to go for good: they get no new replicas, and those they have are moved away.
	Removing bool
	// Leaving brokers are in a controlled shutdown; it ends with the next registration.
	Leaving bool
	// Offline are those of Directories that the broker can't use until its next start.
	Offline []DirectoryID
	// Version is the software version, for people.
	Version string
	// MinFeatureLevel and MaxFeatureLevel bound the metadata feature levels this broker's binary knows (D17).
	MinFeatureLevel, MaxFeatureLevel uint32

	// fencedIndex is that of the entry which last fenced the broker. Who has applied that has caught up.
	fencedIndex uint64
}

// Listener is one advertised endpoint of a broker.
type Listener struct {
	Name     string // as in listeners, e.g. PLAINTEXT or INTERNAL
	Host     string
	Port     int32
	Protocol string // PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL
}

// Topic is one topic. Immutable.
type Topic struct {
	Name string
	ID   TopicID
	// Partitions by partition id. They are pointers, so that a change of one copies one, and so that a partition which
	// did not change between two Images is the same pointer in both.
	Partitions []*Partition
	Configs    map[string]string // only what was set on the topic; may be nil

	configVersion uint64 // index of the entry that last changed Configs; compared by alter-configs commands
}

// Partition is one partition's part of the metadata. Immutable.
//
// Invariants: ISR ⊆ Replicas, ELR ⊆ Replicas, ISR ∩ ELR = ∅, Leader is in ISR or NoBroker, Adding ⊆ Replicas, Removing ⊆
// Replicas, Adding ∩ Removing = ∅, len(Directories) equals len(Replicas). LeaderEpoch grows with every change of Leader,
// every registration of the leader's broker (I9, R14) and when replicas are taken away (R24); PartitionEpoch with every
// change of the partition.
type Partition struct {
	Leader         BrokerID
	LeaderEpoch    int32
	PartitionEpoch int32
	Replicas       []BrokerID // the first is the preferred leader
	ISR            []BrokerID
	ELR            []BrokerID // eligible leader replicas (KIP-966)
	// Directories are the log directories that hold the replicas, parallel to Replicas.
	Directories []DirectoryID
	// Adding and Removing describe a reassignment under way (KIP-455): replicas that are being copied to, and those that
	// go once all of Adding are in the ISR. Both nil when there is none.
	Adding, Removing []BrokerID
	// LastLeader is Leader, or while there is none the broker that led last and still has its log; NoBroker if that is
	// gone (I12).
	LastLeader BrokerID
	// UncleanEpoch is the last leader epoch that began with an election outside ISR and ELR, -1 if there never was one.
	// A follower cuts below its high watermark only for such an epoch (R25).
	UncleanEpoch int32
}

// Reassigning reports whether the replicas of the partition are being moved.
func (p *Partition) Reassigning() bool { return len(p.Adding) > 0 || len(p.Removing) > 0 }
