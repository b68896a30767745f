package metadata

import (
	"iter"
	"slices"
	"strings"
	"time"
)

// GroupType says which protocol a group speaks.
type GroupType uint8

// Types of groups. A group that only has committed offsets, from consumers that assign their partitions themselves, is a
// classic one without protocol type.
const (
	ClassicGroup  GroupType = iota + 1 // JoinGroup, SyncGroup
	ConsumerGroup                      // KIP-848
)

// GroupState is where a classic group is in its life, as far as that must outlive its coordinator. Of a consumer group it
// is GroupEmpty or GroupStable; what it shows follows from its epochs.
type GroupState uint8

// States of groups. A group in preparation of a rebalance is not among them: the generation before is in force until the
// next one is committed.
const (
	GroupEmpty      GroupState = iota // no members
	GroupCompleting                   // the generation is known, its assignments are not
	GroupStable
)

// Group is the committed state of one group: what its next coordinator needs to go on. Immutable.
//
// Invariants: Members ascend by ID, and each ID is there once. EmptySince is 0 as long as there are members. A group with
// committed offsets is there, whoever committed them.
type Group struct {
	Name  string
	Type  GroupType
	State GroupState
	// Revision grows with each change of the group, and never comes back, not even after the group was deleted. It is what
	// a GroupChange compares.
	Revision uint64
	// Generation is that of a classic group, and the epoch of a consumer group. It never goes back, also when the group is
	// deleted and created again within the retention time of offsets (I15): see Image.LastGeneration.
	Generation int32
	// AssignmentEpoch is the group epoch for which the targets of a consumer group's members were computed.
	AssignmentEpoch int32
	ProtocolType    string // "consumer", "connect", …; "" for a group that only has offsets
	Protocol        string // of a classic group: the assignor that its members agreed on
	Leader          string // of a classic group: member id
	// Assignor is the server-side assignor of a consumer group.
	Assignor string
	// TopicsHash is the coordinator's digest of the topics for which the targets were computed; a consumer group whose
	// topics have another one by now needs a new target.
	TopicsHash uint64
	Members    []*GroupMember
	// EmptySince is when the group lost its last member, in unix milliseconds of its coordinator's clock; 0 while it has
	// members, or never had any. Offsets expire from then on (G11).
	EmptySince int64
	// PutOutAt is when a member was last put out that may not know it yet, in unix milliseconds of its coordinator's clock; 0 for
	// never. Written from TransactionsFeatureLevel on.
	PutOutAt int64
	// Interrupted is set when the broker that coordinated the group, which had members, was fenced as dead, or came back
	// without having said good-bye. Who coordinates the group next starts one new generation, or resumes (D6), and clears
	// it.
	Interrupted bool
}

// GroupMember is the committed state of one member. Immutable. A member of a consumer group that has Protocols is one that
// speaks the classic protocol (live migration).
type GroupMember struct {
	ID               string
	InstanceID       string // static membership (KIP-345); "" for a dynamic member
	Rack             string
	ClientID         string
	ClientHost       string
	SessionTimeout   time.Duration // whole milliseconds
	RebalanceTimeout time.Duration // whole milliseconds

	// Of members that speak the classic protocol.
	Protocols  []GroupProtocol // in the member's order of preference
	Assignment []byte          // of the present generation; empty until GroupStable

	// Of members of a consumer group.
	MemberEpoch         int32
	PreviousMemberEpoch int32
	State               uint8 // the coordinator's own numbering, but 0 = nothing to wait for
	Subscription        []string
	SubscriptionRegex   string
	ServerAssignor      string
	Assigned            []TopicPartitions // owned by the member, ascending
	Revoking            []TopicPartitions // still owned, and to be given up, ascending
	Target              []TopicPartitions // what it is to have in the end, ascending
}

// GroupProtocol is one protocol that a member of a classic group supports.
type GroupProtocol struct {
	Name     string
	Metadata []byte // opaque
}

// TopicPartitions are partitions of one topic.
type TopicPartitions struct {
	TopicID    TopicID
	Partitions []int32 // ascending
	// Epochs, parallel to Partitions or nil, are the member epochs in which the member was given each; a commit of an older
	// epoch is not its own (KIP-1251). Nil means 0: any epoch of the member will do.
	Epochs []int32
}

// MemberAssignment gives a member of a classic group its part of the generation.
type MemberAssignment struct {
	Member     string
	Assignment []byte
}

// Member returns the member of that id, or nil.
func (g *Group) Member(id string) *GroupMember {
	i, ok := g.memberIndex(id)
	if !ok {
		return nil
	}
	return g.Members[i]
}

func (g *Group) memberIndex(id string) (int, bool) {
	return slices.BinarySearchFunc(g.Members, id, func(m *GroupMember, id string) int { return strings.Compare(m.ID, id) })
}

// GroupChange is one change of a group: a compare-and-set on Revision, in force only while the broker that proposes it
// coordinates the group. The scalar fields are those of the group after the change; of the members only those that change
// are named.
//
// It must not be written to once it was given to ChangeGroup, and neither must what it points to: an Image will show it.
type GroupChange struct {
	Group string
	// Revision is that of the Group the change was decided on; 0 says that there must be none.
	Revision uint64

	Type            GroupType
	State           GroupState
	Generation      int32 // not below the present one, nor below Image.LastGeneration
	AssignmentEpoch int32
	ProtocolType    string
	Protocol        string
	Leader          string
	Assignor        string
	TopicsHash      uint64
	EmptySince      int64 // ignored while there are members
	PutOutAt        int64 // dropped below TransactionsFeatureLevel
	Interrupted     bool

	// Upsert adds members, or replaces those of the same ids as a whole.
	Upsert []*GroupMember
	// Assign replaces the Assignment of members, after Upsert, so that a generation's assignments need not carry its
	// members again. Members that it does not name keep theirs.
	Assign []MemberAssignment
	// Remove takes members out, before Upsert. Ids that are not there are ignored.
	Remove []string
	// Delete takes the group out with its committed offsets. It must have no members then; Time is kept beside its last
	// generation.
	Delete bool
	// Seek sets offsets in the very step of the change, from TransactionsFeatureLevel on; nil for none.
	Seek *GroupSeek
	// Time is the coordinator's clock in unix milliseconds; only used with Delete and Seek.
	Time int64

	// Broker and BrokerEpoch name the coordinator that proposes. Store fills them in.
	Broker      BrokerID
	BrokerEpoch int64
}

// GroupSeek sets offsets of a group by order of an administrator. All of them are set, or the change is not made: it is
// refused with ErrUnknownTopicID or ErrUnknownPartition if one of the partitions is not there.
type GroupSeek struct {
	// Offsets, each partition once. An Offset of -1 takes away what is committed, also what a transaction has pending.
	Offsets []OffsetEntry
	// Prior, if not nil, is called before the change is answered with success, with what was committed of each partition until
	// then, parallel to Offsets; an Offset of -1 is nothing. It must not block.
	Prior func([]CommittedOffset)
}

// Group returns the group of that name, or nil.
func (im *Image) Group(name string) *Group { return im.st.group(name) }

// Groups yields all groups by ascending name, those that only have committed offsets included.
func (im *Image) Groups() iter.Seq[*Group] {
	return func(yield func(*Group) bool) {
		im.st.groups.all()(func(_ string, g *Group) bool { return yield(g) })
	}
}

// GroupCount is the number of groups.
func (im *Image) GroupCount() int { return im.st.groups.len() }

// ChangedGroups yields what differs between an older Image of the same Store and this one, by ascending name: (nil, new)
// for a created group, (old, nil) for a deleted one, (old, new) for a changed one. The cost is linear in the change, not in
// the Image. With a nil since every group is new. Committed offsets are no part of a group here.
func (im *Image) ChangedGroups(since *Image) iter.Seq2[*Group, *Group] {
	return func(yield func(old, new *Group) bool) {
		var before tree[string, *Group]
		if since != nil {
			before = since.st.groups
		}
		diffTrees(before, im.st.groups, func(_ string, c change[*Group]) bool { return yield(c.before, c.after) })
	}
}

// LastGeneration returns the generation that a group of that name has or had last, 0 if none is known. One that is created
// must begin above it, so that nobody's old generation comes back (I15).
func (im *Image) LastGeneration(group string) int32 { return im.st.lastGeneration(group) }
