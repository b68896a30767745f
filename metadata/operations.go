package metadata

import "context"

// Every operation of the controller that may be called on any broker (D15). The exported methods of Store are thin: they
// send their arguments through call.

type createTopicsArgs struct {
	Topics       []NewTopic `json:"topics"`
	ValidateOnly bool       `json:"validate_only,omitempty"`
}

type createPartitionsArgs struct {
	Topics       []NewPartitions `json:"topics"`
	ValidateOnly bool            `json:"validate_only,omitempty"`
}

type alterConfigsArgs struct {
	Changes      []ConfigChange `json:"changes"`
	ReplaceAll   bool           `json:"replace_all,omitempty"`
	ValidateOnly bool           `json:"validate_only,omitempty"`
}

type alterPartitionArgs struct {
	Leader  BrokerID          `json:"leader"`
	Epoch   int64             `json:"epoch"`
	Changes []PartitionChange `json:"changes"`
}

type assignBrokerIDArgs struct {
	Directory DirectoryID `json:"directory"`
	Want      BrokerID    `json:"want"`
	Replace   bool        `json:"replace,omitempty"`
}

type suspectArgs struct {
	Broker      BrokerID `json:"broker"`
	Incarnation [16]byte `json:"incarnation"`
	Reason      string   `json:"reason"`
}

type electLeadersArgs struct {
	Kind       ElectionKind     `json:"kind"`
	Partitions []TopicPartition `json:"partitions"` // nil = all
}

type switchArgs struct {
	Broker BrokerID `json:"broker"`
	On     bool     `json:"on"`
}

// none is the result of operations that only succeed or fail.
type none struct{}

type producerIDs struct {
	First int64 `json:"first"`
	Count int   `json:"count"`
}

var (
	opCreateTopics = operation[createTopicsArgs, topicResults]{name: "create_topics",
		local: func(s *Store, ctx context.Context, a createTopicsArgs) (topicResults, error) {
			return s.createTopics(ctx, a.Topics, a.ValidateOnly), nil
		}}
	opCreatePartitions = operation[createPartitionsArgs, topicResults]{name: "create_partitions",
		local: func(s *Store, ctx context.Context, a createPartitionsArgs) (topicResults, error) {
			return s.createPartitions(ctx, a.Topics, a.ValidateOnly), nil
		}}
	opDeleteTopics = operation[[]TopicRef, topicResults]{name: "delete_topics",
		local: func(s *Store, ctx context.Context, topics []TopicRef) (topicResults, error) {
			return s.deleteTopics(ctx, topics), nil
		}}
	opAlterConfigs = operation[alterConfigsArgs, errorList]{name: "alter_configs",
		local: func(s *Store, ctx context.Context, a alterConfigsArgs) (errorList, error) {
			return s.alterConfigs(ctx, a.Changes, a.ReplaceAll, a.ValidateOnly), nil
		}}
	opAllocateProducerIDs = operation[none, producerIDs]{name: "allocate_producer_ids", repeatable: true, unseen: true,
		local: func(s *Store, ctx context.Context, _ none) (producerIDs, error) { return s.allocateProducerIDs(ctx) }}
	opAlterPartition = operation[alterPartitionArgs, partitionResults]{name: "alter_partition", unseen: true,
		local: func(s *Store, ctx context.Context, a alterPartitionArgs) (partitionResults, error) {
			return s.alterPartitions(ctx, a.Leader, a.Epoch, a.Changes), nil
		}}
	opRegisterBroker = operation[Registration, int64]{name: "register_broker", repeatable: true,
		local: (*Store).registerBroker}
	opAssignBrokerID = operation[assignBrokerIDArgs, BrokerID]{name: "assign_broker_id", repeatable: true,
		local: (*Store).assignBrokerID}
	opHeartbeat = operation[Heartbeat, HeartbeatReply]{name: "heartbeat", unseen: true,
		local: (*Store).heartbeat}
	opSuspect = operation[suspectArgs, none]{name: "suspect", unseen: true,
		local: (*Store).suspect}
	opElectLeaders = operation[electLeadersArgs, electionResults]{name: "elect_leaders",
		local: func(s *Store, ctx context.Context, a electLeadersArgs) (electionResults, error) {
			return s.electLeaders(ctx, a.Kind, a.Partitions), nil
		}}
	opAlterReassignments = operation[[]Reassignment, errorList]{name: "alter_reassignments",
		local: func(s *Store, ctx context.Context, moves []Reassignment) (errorList, error) {
			return s.alterReassignments(ctx, moves), nil
		}}
	opSetMaintenance = operation[switchArgs, none]{name: "set_maintenance", repeatable: true,
		local: (*Store).setMaintenance}
	opDecommission = operation[switchArgs, none]{name: "decommission", repeatable: true,
		local: (*Store).decommission}
	opUnregisterBroker = operation[BrokerID, none]{name: "unregister_broker",
		local: (*Store).unregisterBroker}
	opPlanBalance = operation[none, BalancerPlan]{name: "plan_balance", repeatable: true, unseen: true,
		local: (*Store).planBalance}
	opRunBalance    = operation[none, BalancerPlan]{name: "run_balance", local: (*Store).runBalance}
	opBalanceStatus = operation[none, BalancerStatus]{name: "balance_status", repeatable: true, unseen: true, local: (*Store).balanceStatus}
	opCancelBalance = operation[none, int]{name: "cancel_balance", local: (*Store).cancelBalance}
	opProposeGroups = operation[groupProposals, groupAnswers]{name: "propose_groups", unseen: true, local: (*Store).proposeGroups,
		binary: &binaryForm[groupProposals, groupAnswers]{
			method: "propose_groups/binary", appendRequest: appendGroupProposals, readRequest: readGroupProposals, appendResult: appendGroupAnswers, readResult: readGroupAnswers,
		}}
	opBarrier            = operation[none, uint64]{name: "barrier", repeatable: true, unseen: true, local: (*Store).barrier}
	opUpdateFeatureLevel = operation[uint32, none]{name: "update_feature_level", repeatable: true,
		local: (*Store).updateFeatureLevel}
)

// operations are those that ServeForward knows.
var operations = []served{
	&opCreateTopics, &opCreatePartitions, &opDeleteTopics, &opAlterConfigs, &opAllocateProducerIDs, &opAlterPartition,
	&opRegisterBroker, &opAssignBrokerID, &opHeartbeat, &opSuspect, &opElectLeaders, &opAlterReassignments,
	&opSetMaintenance, &opDecommission, &opUnregisterBroker, &opUpdateFeatureLevel,
	&opProposeGroups, inBinary[groupProposals, groupAnswers]{&opProposeGroups}, &opBarrier,
	&opPlanBalance, &opRunBalance, &opBalanceStatus, &opCancelBalance,
	&opPlanRecovery, &opRecover,
	&opQuorum, &opAddServer, &opRemoveServer, &opTransferLeadership,
}

func findOperation(name string) served {
	for _, op := range operations {
		if op.method() == name {
			return op
		}
	}
	return nil
}
