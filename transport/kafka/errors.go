package kafka

import (
	"errors"
	"fmt"
	"strings"

	"github.com/millrace/millrace/group"
	"github.com/millrace/millrace/group/txn"
	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
)

// This file is the only place that knows Kafka's error codes. Everything below
// speaks in sentinel errors.

// Error codes of the protocol, as far as this broker sends them.
const (
	codeUnknownServerError                 int16 = -1
	codeNone                               int16 = 0
	codeOffsetOutOfRange                   int16 = 1
	codeCorruptMessage                     int16 = 2
	codeUnknownTopicOrPartition            int16 = 3
	codeLeaderNotAvailable                 int16 = 5
	codeNotLeaderOrFollower                int16 = 6
	codeRequestTimedOut                    int16 = 7
	codeReplicaNotAvailable                int16 = 9
	codeMessageTooLarge                    int16 = 10
	codeOffsetMetadataTooLarge             int16 = 12
	codeCoordinatorLoadInProgress          int16 = 14
	codeCoordinatorNotAvailable            int16 = 15
	codeNotCoordinator                     int16 = 16
	codeInvalidTopic                       int16 = 17
	codeNotEnoughReplicas                  int16 = 19
	codeNotEnoughReplicasAfterAppend       int16 = 20
	codeInvalidRequiredAcks                int16 = 21
	codeIllegalGeneration                  int16 = 22
	codeInconsistentGroupProtocol          int16 = 23
	codeInvalidGroupID                     int16 = 24
	codeUnknownMemberID                    int16 = 25
	codeInvalidSessionTimeout              int16 = 26
	codeRebalanceInProgress                int16 = 27
	codeInvalidCommitOffsetSize            int16 = 28
	codeTopicAuthorizationFailed           int16 = 29
	codeInvalidTimestamp                   int16 = 32
	codeUnsupportedVersion                 int16 = 35
	codeTopicAlreadyExists                 int16 = 36
	codeInvalidPartitions                  int16 = 37
	codeInvalidReplicationFactor           int16 = 38
	codeInvalidReplicaAssignment           int16 = 39
	codeInvalidConfig                      int16 = 40
	codeNotController                      int16 = 41
	codeInvalidRequest                     int16 = 42
	codePolicyViolation                    int16 = 44
	codeOutOfOrderSequence                 int16 = 45
	codeInvalidProducerEpoch               int16 = 47
	codeInvalidTxnState                    int16 = 48
	codeInvalidProducerIDMapping           int16 = 49
	codeInvalidTransactionTimeout          int16 = 50
	codeConcurrentTransactions             int16 = 51
	codeTransactionCoordinatorFenced       int16 = 52
	codeTransactionalIDAuthorizationFailed int16 = 53
	codeOperationNotAttempted              int16 = 55
	codeStorageError                       int16 = 56
	codeNonEmptyGroup                      int16 = 68
	codeGroupIDNotFound                    int16 = 69
	codeFetchSessionIDNotFound             int16 = 70
	codeInvalidFetchSessionEpoch           int16 = 71
	codeListenerNotFound                   int16 = 72
	codeTopicDeletionDisabled              int16 = 73
	codeFencedLeaderEpoch                  int16 = 74
	codeUnknownLeaderEpoch                 int16 = 75
	codeUnsupportedCompressionType         int16 = 76
	codeStaleBrokerEpoch                   int16 = 77
	codeOffsetNotAvailable                 int16 = 78
	codeMemberIDRequired                   int16 = 79
	codePreferredLeaderNotAvailable        int16 = 80
	codeGroupMaxSizeReached                int16 = 81
	codeFencedInstanceID                   int16 = 82
	codeEligibleLeadersNotAvailable        int16 = 83
	codeElectionNotNeeded                  int16 = 84
	codeNoReassignmentInProgress           int16 = 85
	codeGroupSubscribedToTopic             int16 = 86
	codeInvalidRecord                      int16 = 87
	codeUnstableOffsetCommit               int16 = 88
	codeProducerFenced                     int16 = 90
	codeDuplicateResource                  int16 = 92
	codeInvalidUpdateVersion               int16 = 95
	codeFeatureUpdateFailed                int16 = 96
	codeUnknownTopicID                     int16 = 100
	codeDuplicateBrokerRegistration        int16 = 101
	codeBrokerIDNotRegistered              int16 = 102
	codeInconsistentTopicID                int16 = 103
	codeInconsistentClusterID              int16 = 104
	codeTransactionalIDNotFound            int16 = 105
	codeFetchSessionTopicIDError           int16 = 106
	codeIneligibleReplica                  int16 = 107
	codeFencedMemberEpoch                  int16 = 110
	codeUnreleasedInstanceID               int16 = 111
	codeUnsupportedAssignor                int16 = 112
	codeStaleMemberEpoch                   int16 = 113
	codeMismatchedEndpointType             int16 = 114
	codeUnsupportedEndpointType            int16 = 115
	codeTransactionAbortable               int16 = 120
	codeInvalidRegularExpression           int16 = 128
	codeRebootstrapRequired                int16 = 129
)

// codeNames are Kafka's names, for metrics and logs.
var codeNames = map[int16]string{
	codeUnknownServerError:                 "UNKNOWN_SERVER_ERROR",
	codeNone:                               "NONE",
	codeOffsetOutOfRange:                   "OFFSET_OUT_OF_RANGE",
	codeCorruptMessage:                     "CORRUPT_MESSAGE",
	codeUnknownTopicOrPartition:            "UNKNOWN_TOPIC_OR_PARTITION",
	codeLeaderNotAvailable:                 "LEADER_NOT_AVAILABLE",
	codeNotLeaderOrFollower:                "NOT_LEADER_OR_FOLLOWER",
	codeRequestTimedOut:                    "REQUEST_TIMED_OUT",
	codeReplicaNotAvailable:                "REPLICA_NOT_AVAILABLE",
	codeMessageTooLarge:                    "MESSAGE_TOO_LARGE",
	codeOffsetMetadataTooLarge:             "OFFSET_METADATA_TOO_LARGE",
	codeCoordinatorLoadInProgress:          "COORDINATOR_LOAD_IN_PROGRESS",
	codeCoordinatorNotAvailable:            "COORDINATOR_NOT_AVAILABLE",
	codeNotCoordinator:                     "NOT_COORDINATOR",
	codeInvalidTopic:                       "INVALID_TOPIC_EXCEPTION",
	codeNotEnoughReplicas:                  "NOT_ENOUGH_REPLICAS",
	codeNotEnoughReplicasAfterAppend:       "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
	codeInvalidRequiredAcks:                "INVALID_REQUIRED_ACKS",
	codeIllegalGeneration:                  "ILLEGAL_GENERATION",
	codeInconsistentGroupProtocol:          "INCONSISTENT_GROUP_PROTOCOL",
	codeInvalidGroupID:                     "INVALID_GROUP_ID",
	codeUnknownMemberID:                    "UNKNOWN_MEMBER_ID",
	codeInvalidSessionTimeout:              "INVALID_SESSION_TIMEOUT",
	codeRebalanceInProgress:                "REBALANCE_IN_PROGRESS",
	codeInvalidCommitOffsetSize:            "INVALID_COMMIT_OFFSET_SIZE",
	codeTopicAuthorizationFailed:           "TOPIC_AUTHORIZATION_FAILED",
	codeInvalidTimestamp:                   "INVALID_TIMESTAMP",
	codeUnsupportedVersion:                 "UNSUPPORTED_VERSION",
	codeTopicAlreadyExists:                 "TOPIC_ALREADY_EXISTS",
	codeInvalidPartitions:                  "INVALID_PARTITIONS",
	codeInvalidReplicationFactor:           "INVALID_REPLICATION_FACTOR",
	codeInvalidReplicaAssignment:           "INVALID_REPLICA_ASSIGNMENT",
	codeInvalidConfig:                      "INVALID_CONFIG",
	codeNotController:                      "NOT_CONTROLLER",
	codeInvalidRequest:                     "INVALID_REQUEST",
	codePolicyViolation:                    "POLICY_VIOLATION",
	codeOutOfOrderSequence:                 "OUT_OF_ORDER_SEQUENCE_NUMBER",
	codeInvalidProducerEpoch:               "INVALID_PRODUCER_EPOCH",
	codeInvalidTxnState:                    "INVALID_TXN_STATE",
	codeInvalidProducerIDMapping:           "INVALID_PRODUCER_ID_MAPPING",
	codeInvalidTransactionTimeout:          "INVALID_TRANSACTION_TIMEOUT",
	codeConcurrentTransactions:             "CONCURRENT_TRANSACTIONS",
	codeTransactionCoordinatorFenced:       "TRANSACTION_COORDINATOR_FENCED",
	codeTransactionalIDAuthorizationFailed: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
	codeOperationNotAttempted:              "OPERATION_NOT_ATTEMPTED",
	codeStorageError:                       "KAFKA_STORAGE_ERROR",
	codeNonEmptyGroup:                      "NON_EMPTY_GROUP",
	codeGroupIDNotFound:                    "GROUP_ID_NOT_FOUND",
	codeFetchSessionIDNotFound:             "FETCH_SESSION_ID_NOT_FOUND",
	codeInvalidFetchSessionEpoch:           "INVALID_FETCH_SESSION_EPOCH",
	codeListenerNotFound:                   "LISTENER_NOT_FOUND",
	codeTopicDeletionDisabled:              "TOPIC_DELETION_DISABLED",
	codeFencedLeaderEpoch:                  "FENCED_LEADER_EPOCH",
	codeUnknownLeaderEpoch:                 "UNKNOWN_LEADER_EPOCH",
	codeUnsupportedCompressionType:         "UNSUPPORTED_COMPRESSION_TYPE",
	codeStaleBrokerEpoch:                   "STALE_BROKER_EPOCH",
	codeOffsetNotAvailable:                 "OFFSET_NOT_AVAILABLE",
	codeMemberIDRequired:                   "MEMBER_ID_REQUIRED",
	codePreferredLeaderNotAvailable:        "PREFERRED_LEADER_NOT_AVAILABLE",
	codeGroupMaxSizeReached:                "GROUP_MAX_SIZE_REACHED",
	codeFencedInstanceID:                   "FENCED_INSTANCE_ID",
	codeEligibleLeadersNotAvailable:        "ELIGIBLE_LEADERS_NOT_AVAILABLE",
	codeElectionNotNeeded:                  "ELECTION_NOT_NEEDED",
	codeNoReassignmentInProgress:           "NO_REASSIGNMENT_IN_PROGRESS",
	codeGroupSubscribedToTopic:             "GROUP_SUBSCRIBED_TO_TOPIC",
	codeInvalidRecord:                      "INVALID_RECORD",
	codeUnstableOffsetCommit:               "UNSTABLE_OFFSET_COMMIT",
	codeProducerFenced:                     "PRODUCER_FENCED",
	codeDuplicateResource:                  "DUPLICATE_RESOURCE",
	codeInvalidUpdateVersion:               "INVALID_UPDATE_VERSION",
	codeFeatureUpdateFailed:                "FEATURE_UPDATE_FAILED",
	codeUnknownTopicID:                     "UNKNOWN_TOPIC_ID",
	codeDuplicateBrokerRegistration:        "DUPLICATE_BROKER_REGISTRATION",
	codeBrokerIDNotRegistered:              "BROKER_ID_NOT_REGISTERED",
	codeInconsistentTopicID:                "INCONSISTENT_TOPIC_ID",
	codeInconsistentClusterID:              "INCONSISTENT_CLUSTER_ID",
	codeTransactionalIDNotFound:            "TRANSACTIONAL_ID_NOT_FOUND",
	codeFetchSessionTopicIDError:           "FETCH_SESSION_TOPIC_ID_ERROR",
	codeIneligibleReplica:                  "INELIGIBLE_REPLICA",
	codeFencedMemberEpoch:                  "FENCED_MEMBER_EPOCH",
	codeUnreleasedInstanceID:               "UNRELEASED_INSTANCE_ID",
	codeUnsupportedAssignor:                "UNSUPPORTED_ASSIGNOR",
	codeStaleMemberEpoch:                   "STALE_MEMBER_EPOCH",
	codeMismatchedEndpointType:             "MISMATCHED_ENDPOINT_TYPE",
	codeUnsupportedEndpointType:            "UNSUPPORTED_ENDPOINT_TYPE",
	codeTransactionAbortable:               "TRANSACTION_ABORTABLE",
	codeInvalidRegularExpression:           "INVALID_REGULAR_EXPRESSION",
	codeRebootstrapRequired:                "REBOOTSTRAP_REQUIRED",
}

// errorCode is one line of the table: an error that matches err goes to the
// client as code. Tests read the table too: every exported sentinel of the
// packages below must be matched by a line.
type errorCode struct {
	err  error
	code int16
}

// errorTable is searched in order; the first match wins, so an error that wraps
// two sentinels gets the code of the line that comes first. Codes that
// correctness.md part 2 calls definite (I17: nothing was appended and nothing
// ever becomes visible) stand only beside sentinels that promise it.
var errorTable = []errorCode{
	// replication: the role of the partition and the fate of an append. A
	// produce whose wait was cut off by a new leader, a deletion or the end of
	// the process wraps ErrTimeout: it was appended, so it must not be told 6.
	{replication.ErrNotEnoughReplicasAfterAppend, codeNotEnoughReplicasAfterAppend},
	{replication.ErrLeadershipLost, codeRequestTimedOut},
	{replication.ErrDeleted, codeRequestTimedOut},
	{replication.ErrClosed, codeRequestTimedOut},
	{replication.ErrTimeout, codeRequestTimedOut},
	{replication.ErrUnknownTopicOrPartition, codeUnknownTopicOrPartition},
	{replication.ErrUnknownTopicID, codeUnknownTopicID},
	{replication.ErrNotLeader, codeNotLeaderOrFollower},
	{replication.ErrLeaseLapsed, codeNotLeaderOrFollower},
	{replication.ErrNotReplica, codeReplicaNotAvailable},
	{replication.ErrFencedLeaderEpoch, codeFencedLeaderEpoch},
	{replication.ErrUnknownLeaderEpoch, codeUnknownLeaderEpoch},
	{replication.ErrStaleBrokerEpoch, codeStaleBrokerEpoch},
	{replication.ErrNotEnoughReplicas, codeNotEnoughReplicas},
	{replication.ErrInvalidAcks, codeInvalidRequiredAcks},
	{replication.ErrOffsetNotAvailable, codeOffsetNotAvailable},
	{replication.ErrUnknownOffsetSpec, codeUnsupportedVersion},
	{replication.ErrTruncationBelowHighWatermark, codeStorageError},
	{replication.ErrOffline, codeStorageError},
	{replication.ErrStorage, codeStorageError},

	// record: what a producer sent.
	{record.ErrTooLarge, codeMessageTooLarge},
	{record.ErrDecompressedTooLarge, codeMessageTooLarge},
	{record.ErrUnsupportedCodec, codeUnsupportedCompressionType},
	{record.ErrInvalidTimestamp, codeInvalidTimestamp},
	{record.ErrInvalidRecord, codeInvalidRecord},
	{record.ErrShort, codeCorruptMessage},
	{record.ErrCorrupt, codeCorruptMessage},

	// log: what the partition's log or its disk said.
	{log.ErrOffsetOutOfRange, codeOffsetOutOfRange},
	{log.ErrOutOfOrderSequence, codeOutOfOrderSequence},
	{log.ErrInvalidProducerEpoch, codeInvalidProducerEpoch},
	{log.ErrInvalidTransactionState, codeInvalidTxnState},
	{log.ErrCoordinatorFenced, codeTransactionCoordinatorFenced},
	{log.ErrInvalidBatch, codeInvalidRecord},
	{log.ErrStaleEpoch, codeNotLeaderOrFollower},
	{log.ErrUnexpectedOffset, codeUnknownServerError},
	{log.ErrNoSpace, codeStorageError},
	{log.ErrPoisoned, codeStorageError},
	{log.ErrCorrupt, codeStorageError},
	{log.ErrClosed, codeStorageError},
	{log.ErrExists, codeStorageError},
	{log.ErrLocked, codeStorageError},

	// metadata: admin requests. A controller that is not there or has no room
	// is 7: retriable in every client, while 41 sends clients looking for a
	// controller that in this design is every broker (D15).
	{metadata.ErrTimeout, codeRequestTimedOut},
	{metadata.ErrNotController, codeRequestTimedOut},
	{metadata.ErrBusy, codeRequestTimedOut},
	{metadata.ErrClosed, codeRequestTimedOut},
	{metadata.ErrTopicExists, codeTopicAlreadyExists},
	{metadata.ErrUnknownTopicID, codeUnknownTopicID},
	{metadata.ErrUnknownTopic, codeUnknownTopicOrPartition},
	{metadata.ErrUnknownPartition, codeUnknownTopicOrPartition},
	{metadata.ErrUnknownBroker, codeBrokerIDNotRegistered},
	{metadata.ErrInvalidTopic, codeInvalidTopic},
	{metadata.ErrInvalidPartitions, codeInvalidPartitions},
	{metadata.ErrInvalidReplicationFactor, codeInvalidReplicationFactor},
	{metadata.ErrInvalidAssignment, codeInvalidReplicaAssignment},
	{metadata.ErrInvalidConfig, codeInvalidConfig},
	{metadata.ErrInvalidRequest, codeInvalidRequest},
	{metadata.ErrDuplicateResource, codeInvalidRequest},
	{metadata.ErrPolicyViolation, codePolicyViolation},
	{metadata.ErrStale, codeInvalidUpdateVersion},
	{metadata.ErrStaleBrokerEpoch, codeStaleBrokerEpoch},
	{metadata.ErrFencedLeaderEpoch, codeFencedLeaderEpoch},
	{metadata.ErrIneligibleReplica, codeIneligibleReplica},
	{metadata.ErrDuplicateBroker, codeDuplicateBrokerRegistration},
	{metadata.ErrClusterMismatch, codeInconsistentClusterID},
	{metadata.ErrRemoved, codeDuplicateBrokerRegistration},
	{metadata.ErrElectionNotNeeded, codeElectionNotNeeded},
	{metadata.ErrPreferredLeaderUnfit, codePreferredLeaderNotAvailable},
	{metadata.ErrNoEligibleLeader, codeEligibleLeadersNotAvailable},
	{metadata.ErrNoReassignment, codeNoReassignmentInProgress},
	{metadata.ErrInvalidFeatureLevel, codeFeatureUpdateFailed},
	{metadata.ErrNotSent, codeRequestTimedOut},
	{metadata.ErrCorrupt, codeStorageError},
	{metadata.ErrFailed, codeStorageError},

	// metadata: what Apply says of a transaction. The handlers know which versions of which requests want another code.
	{metadata.ErrProducerFenced, codeProducerFenced},
	{metadata.ErrInvalidProducerEpoch, codeInvalidProducerEpoch},
	{metadata.ErrInvalidProducerIDMapping, codeInvalidProducerIDMapping},
	{metadata.ErrInvalidTransactionState, codeInvalidTxnState},
	{metadata.ErrConcurrentTransactions, codeConcurrentTransactions},
	{metadata.ErrTransactionNotFound, codeTransactionalIDNotFound},

	{metadata.ErrNotCoordinator, codeNotCoordinator},
	{metadata.ErrGroupNotFound, codeGroupIDNotFound},
	{metadata.ErrGroupNotEmpty, codeNonEmptyGroup},
	{metadata.ErrUnknownMember, codeUnknownMemberID},
	{metadata.ErrFencedInstance, codeFencedInstanceID},
	{metadata.ErrIllegalGeneration, codeIllegalGeneration},
	{metadata.ErrStaleMemberEpoch, codeStaleMemberEpoch},

	// txn: what a coordinator of transactions refused, and what keeps a batch out of a transaction. Nothing was appended
	// then: 19 is what producers of every age repeat their request upon.
	{txn.ErrNotCoordinator, codeNotCoordinator},
	{txn.ErrUnavailable, codeCoordinatorLoadInProgress},
	{txn.ErrInvalidRequest, codeInvalidRequest},
	{txn.ErrInvalidTimeout, codeInvalidTransactionTimeout},
	{txn.ErrAbortable, codeTransactionAbortable},
	{txn.ErrUnverified, codeNotEnoughReplicas},

	// group: what a coordinator refused. All of it is definite.
	{group.ErrNotCoordinator, codeNotCoordinator},
	{group.ErrCoordinatorLoading, codeCoordinatorLoadInProgress},
	{group.ErrInvalidGroup, codeInvalidGroupID},
	{group.ErrUnknownMember, codeUnknownMemberID},
	{group.ErrIllegalGeneration, codeIllegalGeneration},
	{group.ErrRebalanceInProgress, codeRebalanceInProgress},
	{group.ErrMemberIDRequired, codeMemberIDRequired},
	{group.ErrFencedInstance, codeFencedInstanceID},
	{group.ErrInconsistentProtocol, codeInconsistentGroupProtocol},
	{group.ErrInvalidSession, codeInvalidSessionTimeout},
	{group.ErrGroupFull, codeGroupMaxSizeReached},
	{group.ErrNonEmpty, codeNonEmptyGroup},
	{group.ErrGroupNotFound, codeGroupIDNotFound},
	{group.ErrSubscribed, codeGroupSubscribedToTopic},
	{group.ErrMetadataTooLarge, codeOffsetMetadataTooLarge},
	{group.ErrInvalidRequest, codeInvalidRequest},
	{group.ErrStaleMemberEpoch, codeStaleMemberEpoch},
	{group.ErrFencedMemberEpoch, codeFencedMemberEpoch},
	{group.ErrUnreleasedInstance, codeUnreleasedInstanceID},
	{group.ErrUnsupportedAssignor, codeUnsupportedAssignor},
	{group.ErrInvalidRegex, codeInvalidRegularExpression},
	{group.ErrUnstableOffset, codeUnstableOffsetCommit},

	// this package.
	{errNoProducerID, codeInvalidRecord},
	{errTwoProducers, codeInvalidProducerIDMapping},
	{errNoTransactionalID, codeTransactionalIDAuthorizationFailed}, // nobody may write under no id, says Kafka
	{errDuplicatePartition, codeInvalidRequest},
	{errNegativeOffset, codeInvalidCommitOffsetSize},
	{errNotBroker, codeTopicAuthorizationFailed}, // as Kafka answers who lacks ClusterAction
}

// Errors that are found here rather than below.
var (
	errNoProducerID       = errors.New("a transactional batch without a producer id")
	errTwoProducers       = errors.New("batches of two producers in a transactional request")
	errNoTransactionalID  = errors.New("a transactional batch in a request without a transactional id")
	errNotBroker          = errors.New("only brokers follow, on their own listener")
	errFetchSession       = errors.New("fetch session is not known any more")
	errDuplicatePartition = errors.New("partition named more than once in one request")
	errNegativeOffset     = errors.New("an offset that is committed must not be negative")
)

// codeOf returns the code of an error: codeNone for nil and
// codeUnknownServerError for what no line of the table matches.
func codeOf(err error) int16 {
	if err == nil {
		return codeNone
	}
	for i := range errorTable {
		if errors.Is(err, errorTable[i].err) {
			return errorTable[i].code
		}
	}
	return codeUnknownServerError
}

// groupCode is codeOf for the answers of a coordinator. Clients know few codes
// there, and Java's throws at others: whatever says that the coordinator's work did
// not get through, or may not have, is 15, upon which they look for the coordinator
// again. Membership and commits may be asked for twice.
func groupCode(err error) int16 {
	switch code := codeOf(err); code {
	case codeUnknownServerError, codeRequestTimedOut, codeStorageError, codeInvalidUpdateVersion, codeStaleBrokerEpoch, codeFeatureUpdateFailed:
		return codeCoordinatorNotAvailable
	default:
		return code
	}
}

// fetchCode is codeOf for a partition of a Fetch response. Java's consumer
// throws an IllegalStateException into user code for codes it does not expect
// there (trap 8), so what it does not know becomes 6: look for the leader again.
func fetchCode(err error) int16 {
	switch code := codeOf(err); code {
	case codeNone, codeOffsetOutOfRange, codeUnknownTopicOrPartition, codeNotLeaderOrFollower, codeReplicaNotAvailable,
		codeTopicAuthorizationFailed, codeStorageError, codeFencedLeaderEpoch, codeUnknownLeaderEpoch, codeOffsetNotAvailable,
		codeUnknownTopicID, codeInconsistentTopicID, codeUnknownServerError:
		return code
	default:
		return codeNotLeaderOrFollower
	}
}

// replicaErrors are the errors of a leader that a follower acts upon, by code.
var replicaErrors = map[int16]error{
	codeOffsetOutOfRange:         log.ErrOffsetOutOfRange,
	codeUnknownTopicOrPartition:  replication.ErrUnknownTopicOrPartition,
	codeNotLeaderOrFollower:      replication.ErrNotLeader,
	codeReplicaNotAvailable:      replication.ErrNotReplica,
	codeStorageError:             replication.ErrStorage,
	codeFencedLeaderEpoch:        replication.ErrFencedLeaderEpoch,
	codeUnknownLeaderEpoch:       replication.ErrUnknownLeaderEpoch,
	codeStaleBrokerEpoch:         replication.ErrStaleBrokerEpoch,
	codeUnknownTopicID:           replication.ErrUnknownTopicID,
	codeFetchSessionIDNotFound:   errFetchSession,
	codeInvalidFetchSessionEpoch: errFetchSession,
}

// replicaError is the error that a leader meant by a code: nil for codeNone. One that a follower has no use for is known
// by its name only.
func replicaError(code int16) error {
	if code == codeNone {
		return nil
	}
	if err := replicaErrors[code]; err != nil {
		return err
	}
	return fmt.Errorf("the leader answered %s (%d)", codeName(code), code)
}

// codeName returns Kafka's name of a code.
func codeName(code int16) string {
	if name, ok := codeNames[code]; ok {
		return name
	}
	return "UNKNOWN_SERVER_ERROR"
}

// maxMessage bounds an error message on the wire: strings of non-flexible
// versions wrap beyond 32767 bytes, and a message that long says nothing.
const maxMessage = 2000

// errorMessage is the text for a response's ErrorMessage field: the error's own
// words, with its mend. nil for nil.
func errorMessage(err error) *string {
	if err == nil {
		return nil
	}
	return message(err.Error())
}

func message(s string) *string {
	if len(s) > maxMessage {
		s = strings.ToValidUTF8(s[:maxMessage], "") + "…"
	}
	return &s
}
