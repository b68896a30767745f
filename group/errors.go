package group

import "errors"

// Sentinels of this package; answers match them with errors.Is. Only transport/kafka/errors.go maps them to Kafka's
// codes. All of them are definite: what was asked for has not been done and will not be, unless it is asked again.
// Besides, answers may match sentinels of package metadata: metadata.ErrTimeout (the outcome is unknown) and
// metadata.ErrUnknownPartition for a single partition of a commit.
var (
	// ErrNotCoordinator: another broker coordinates the group, or nobody does. Ask FindCoordinator again.
	ErrNotCoordinator = errors.New("not the coordinator of the group")
	// ErrCoordinatorLoading: this broker will coordinate the group but does not know all of its state yet. Try again.
	ErrCoordinatorLoading = errors.New("the coordinator is loading the group")
	// ErrInvalidGroup: no group can have that name.
	ErrInvalidGroup = errors.New("invalid group id")
	// ErrUnknownMember: the group has no member of that id. Join with an empty id.
	ErrUnknownMember = errors.New("unknown member")
	// ErrIllegalGeneration: the group is in another generation.
	ErrIllegalGeneration = errors.New("illegal generation")
	// ErrRebalanceInProgress: the member has to join again, with its id.
	ErrRebalanceInProgress = errors.New("rebalance in progress")
	// ErrMemberIDRequired: the answer carries the id to join with (KIP-394).
	ErrMemberIDRequired = errors.New("member id required")
	// ErrFencedInstance: another member has taken over the instance id (KIP-345).
	ErrFencedInstance = errors.New("static member fenced by another one with its instance id")
	// ErrInconsistentProtocol: the protocol type differs from the group's, or no protocol is common to all members.
	ErrInconsistentProtocol = errors.New("inconsistent group protocol")
	// ErrInvalidSession: the session timeout is outside the broker's bounds.
	ErrInvalidSession = errors.New("invalid session timeout")
	// ErrGroupFull: the group has group.max.size members.
	ErrGroupFull = errors.New("group is full")
	// ErrNonEmpty: the group has members.
	ErrNonEmpty = errors.New("group is not empty")
	// ErrGroupNotFound: there is no group of that name.
	ErrGroupNotFound = errors.New("group not found")
	// ErrSubscribed: the group consumes the topic whose offsets were to be deleted.
	ErrSubscribed = errors.New("group is subscribed to the topic")
	// ErrMetadataTooLarge: the text stored with an offset exceeds offset.metadata.max.bytes.
	ErrMetadataTooLarge = errors.New("offset metadata too large")
	// ErrUnstableOffset: a transaction that is still open is about to replace the offset (KIP-447). Ask again.
	ErrUnstableOffset = errors.New("an open transaction is about to replace the offset")
	// ErrInvalidRequest: the request contradicts itself.
	ErrInvalidRequest = errors.New("invalid group request")
	// ErrStaleMemberEpoch, ErrFencedMemberEpoch and ErrUnreleasedInstance belong to consumer groups (KIP-848).
	ErrStaleMemberEpoch   = errors.New("stale member epoch")
	ErrFencedMemberEpoch  = errors.New("fenced member epoch")
	ErrUnreleasedInstance = errors.New("instance id still held by another member")
)
