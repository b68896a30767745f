package group

import (
	"time"

	"github.com/millrace/millrace/metadata"
)

// Protocol is one way to divide the work that a member offers, with what the member tells about itself under it. The
// metadata is opaque to the coordinator.
type Protocol struct {
	Name     string
	Metadata []byte
}

// JoinRequest is JoinGroup. The coordinator keeps Protocols and their bytes: the caller must not write to them any more.
type JoinRequest struct {
	Group string
	// Member is "" for a new member. Instance is "" for a dynamic member.
	Member, Instance string
	// ClientID and ClientHost are for people, and ClientID is the first part of a new member's id.
	ClientID, ClientHost string
	// Address is that of the connection, for people: who comes back from the same is the same process. "": not known.
	Address        string
	SessionTimeout time.Duration
	// RebalanceTimeout is how long the others wait for this member to join again; 0 (version 0): SessionTimeout.
	RebalanceTimeout time.Duration
	ProtocolType     string
	// Protocols in the order of the member's preference.
	Protocols []Protocol
	// RequireKnownMember (version 4 and later): a new dynamic member is answered ErrMemberIDRequired with an id to join
	// with (KIP-394). Otherwise it is admitted at once.
	RequireKnownMember bool
	// CanSkipAssignment (version 9 and later): a static member that returns as the leader of an unchanged generation is
	// told that it is the leader and need not assign (KIP-814). Without, it is told another leader's id.
	CanSkipAssignment bool
	// Reason is for people, why the member joins (KIP-800).
	Reason string
}

// JoinResult answers JoinGroup.
type JoinResult struct {
	Err error
	// Member is the member's id, also with ErrMemberIDRequired; "" with most errors.
	Member     string
	Generation int32 // -1 with an error
	// ProtocolType and Protocol are the group's; "" with an error.
	ProtocolType, Protocol string
	// Leader is the id of the member that assigns.
	Leader string
	// SkipAssignment: this member leads, but the assignment stands (KIP-814).
	SkipAssignment bool
	// Members with their metadata under Protocol, by id; only for the leader. The slices belong to the coordinator.
	Members []JoinedMember
}

// JoinedMember is what the leader is told of a member.
type JoinedMember struct {
	ID, Instance string
	Metadata     []byte
}

// SyncRequest is SyncGroup. The coordinator keeps the bytes of Assignments.
type SyncRequest struct {
	Group, Member, Instance string
	Generation              int32
	// ProtocolType and Protocol are compared with the group's unless HasProtocol is false (before version 5, or null).
	HasProtocolType, HasProtocol bool
	ProtocolType, Protocol       string
	// Assignments come from the leader; from all others they are ignored. Members that are not named get no bytes.
	Assignments []Assignment
}

// Assignment is one member's share of the work; the bytes are opaque to the coordinator.
type Assignment struct {
	Member string
	Bytes  []byte
}

// SyncResult answers SyncGroup.
type SyncResult struct {
	Err                    error
	ProtocolType, Protocol string
	// Assignment is never nil when Err is nil; it belongs to the coordinator.
	Assignment []byte
}

// HeartbeatRequest is Heartbeat.
type HeartbeatRequest struct {
	Group, Member, Instance string
	Generation              int32
}

// LeaveRequest is LeaveGroup, of one member (before version 3) or several.
type LeaveRequest struct {
	Group string
	// Address is that of the connection, for people; "": not known.
	Address string
	Members []LeavingMember
}

// LeavingMember names a member by its id, or a static one by its instance id with Member empty or equal to its id.
type LeavingMember struct {
	Member, Instance string
	Reason           string // for people (KIP-800)
}

// CommitRequest is OffsetCommit.
type CommitRequest struct {
	Group, Member, Instance string
	// Generation is that of the member, its epoch in a consumer group; -1: by somebody who is no member, which is
	// accepted while the group has none.
	Generation int32
	// Retention, if positive, is how long the offsets are kept at least (versions 2 to 4); else the broker's setting holds.
	Retention time.Duration
	Offsets   []OffsetEntry
}

// OffsetEntry is one offset to store.
type OffsetEntry = metadata.OffsetEntry

// TopicIDPartition names a partition of one incarnation of a topic.
type TopicIDPartition = metadata.TopicIDPartition

// FetchRequest is OffsetFetch for one group.
type FetchRequest struct {
	Group string
	// Partitions asked for; All: every partition that has an offset.
	All        bool
	Partitions []TopicIDPartition
	// Member, Instance and MemberEpoch are checked for consumer groups if Member is given (version 9 and later).
	Member      string
	MemberEpoch int32
	// RequireStable: an offset that an open transaction is about to replace is an error of its partition (KIP-447).
	RequireStable bool
}

// FetchedOffset is one stored offset; Offset is -1, LeaderEpoch -1 and Metadata "" where there is none.
type FetchedOffset struct {
	TopicIDPartition
	Offset      int64
	LeaderEpoch int32
	Metadata    string
	Err         error
}

// State is what a group does at present, under the names that Kafka's tools know.
type State string

// States of groups. Assigning and Reconciling are those of consumer groups (KIP-848), Preparing- and CompletingRebalance of
// classic ones.
const (
	StateEmpty       State = "Empty"
	StatePreparing   State = "PreparingRebalance"
	StateCompleting  State = "CompletingRebalance"
	StateStable      State = "Stable"
	StateDead        State = "Dead"
	StateAssigning   State = "Assigning"
	StateReconciling State = "Reconciling"
)

// Type is the protocol that a group's members speak.
type Type string

// Types of groups.
const (
	TypeClassic  Type = "classic"
	TypeConsumer Type = "consumer"
)

// Description is what DescribeGroups tells of a classic group.
type Description struct {
	Group string
	Type  Type
	State State
	// Generation is -1 where it is not known; Kafka's answer has no place for it, the CLI's has.
	Generation             int32
	ProtocolType, Protocol string
	Leader                 string
	Members                []DescribedMember // by id
	// Since is how long the group has been in State.
	Since time.Duration
	// Reason is why it last rebalanced, for people; "" if it has not since this broker coordinates it.
	Reason string
}

// DescribedMember is one member of a Description. Metadata is that under the group's protocol, nil while there is none.
type DescribedMember struct {
	ID, Instance         string
	ClientID, ClientHost string
	Metadata, Assignment []byte
	SessionTimeout       time.Duration
	// LastSeen is how long ago it was heard from.
	LastSeen time.Duration
	// RebalanceTimeout is how long the others wait for it in a rebalance.
	RebalanceTimeout time.Duration
	// Joined says whether it takes part in the rebalance under way.
	Joined bool
	// Offered are the names of all the protocols that it offers, in its order.
	Offered []string
	// Away: it is a static member of a consumer group that has left for a while, as it said (KIP-848).
	Away bool
	// Assigned and Topics are what a member of a consumer group has and wants; of a classic one it is in Assignment and Metadata,
	// for those who can read them. They belong to the coordinator.
	Assigned []metadata.TopicPartitions
	Topics   []string
}

// Listing is one line of ListGroups.
type Listing struct {
	Group        string
	Type         Type
	State        State
	ProtocolType string
}
