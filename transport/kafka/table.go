package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// api is one line of the version table: what is advertised, what is served and
// who serves it.
type api struct {
	key  int16
	name string // Kafka's, as in metrics and logs

	// ApiVersions advertises minAdvertised to max; the dispatcher serves
	// minServed to max and closes the connection below or above. The two
	// minima differ only where a client switches a feature off unless it
	// sees a low version (protocol.md 3.2): minAdvertised ≤ minServed ≤ max.
	minAdvertised, minServed, max int16

	// flexible is the first version with tagged fields (KIP-482), -1 if the
	// API has none: it decides the request and response header.
	flexible int16

	// serve answers one request. It is called on the connection's reader
	// goroutine, in request order. nil: Handle knows who does.
	serve func(h *Handlers, c *call)
}

// table is the one place that says which APIs and versions this broker speaks.
// A maximum is a promise about behaviour (design D13): it moves up when the
// semantics of the version are here, and never because the codec knows a newer
// layout.
//
// Produce 0 to 2 are advertised and refused, as Kafka does, because librdkafka
// before 2.11 turns compression off otherwise. It looks for the exact versions
// FindCoordinator 0, JoinGroup 0, SyncGroup 0, Heartbeat 0, LeaveGroup 0,
// OffsetCommit 1 and OffsetFetch 1 before it uses groups.
func table() []api {
	return []api{
		{keyProduce, "Produce", 0, 3, 13, 9, (*Handlers).produce},
		{keyFetch, "Fetch", 4, 4, 17, 12, (*Handlers).fetch},
		{keyListOffsets, "ListOffsets", 1, 1, 10, 6, answer((*Handlers).listOffsets)},
		{keyMetadata, "Metadata", 0, 0, 13, 9, answer((*Handlers).metadata)},
		{keyOffsetCommit, "OffsetCommit", 1, 1, 10, 8, answerGroup((*Handlers).offsetCommit)},
		{keyOffsetFetch, "OffsetFetch", 1, 1, 10, 6, answerGroup((*Handlers).offsetFetch)},
		{keyFindCoordinator, "FindCoordinator", 0, 0, 5, 3, answer((*Handlers).findCoordinator)},
		{keyJoinGroup, "JoinGroup", 0, 0, 9, 6, answerGroup((*Handlers).joinGroup)},
		{keyHeartbeat, "Heartbeat", 0, 0, 4, 4, nil}, // see Handle
		{keyLeaveGroup, "LeaveGroup", 0, 0, 5, 4, answerGroup((*Handlers).leaveGroup)},
		{keySyncGroup, "SyncGroup", 0, 0, 5, 4, answerGroup((*Handlers).syncGroup)},
		{keyDescribeGroups, "DescribeGroups", 0, 0, 6, 5, answer((*Handlers).describeGroups)},
		{keyListGroups, "ListGroups", 0, 0, 5, 3, answer((*Handlers).listGroups)},
		{keyAPIVersions, "ApiVersions", 0, 0, 5, 3, answer((*Handlers).apiVersions)},
		{keyCreateTopics, "CreateTopics", 0, 0, 7, 5, answerWaiting((*Handlers).createTopics)},
		{keyDeleteTopics, "DeleteTopics", 0, 0, 6, 4, answerWaiting((*Handlers).deleteTopics)},
		{keyDeleteRecords, "DeleteRecords", 0, 0, 2, 2, answerWaiting((*Handlers).deleteRecords)},
		{keyInitProducerID, "InitProducerId", 0, 0, 5, 2, answerGroup((*Handlers).initProducerID)},
		{keyOffsetForLeaderEpoch, "OffsetForLeaderEpoch", 2, 2, 4, 4, answer((*Handlers).offsetForLeaderEpoch)},
		{keyAddPartitionsToTxn, "AddPartitionsToTxn", 0, 0, 5, 3, answerGroup((*Handlers).addPartitionsToTxn)},
		{keyAddOffsetsToTxn, "AddOffsetsToTxn", 0, 0, 4, 3, answerGroup((*Handlers).addOffsetsToTxn)},
		{keyEndTxn, "EndTxn", 0, 0, 5, 3, answerGroup((*Handlers).endTxn)},
		{keyWriteTxnMarkers, "WriteTxnMarkers", 1, 1, 2, 1, answerGroup((*Handlers).writeTxnMarkers)},
		{keyTxnOffsetCommit, "TxnOffsetCommit", 0, 0, 6, 3, answerGroup((*Handlers).txnOffsetCommit)},
		{keyDescribeConfigs, "DescribeConfigs", 0, 0, 4, 4, answer((*Handlers).describeConfigs)},
		{keyAlterConfigs, "AlterConfigs", 0, 0, 2, 2, answerWaiting((*Handlers).alterConfigs)},
		{keyDescribeLogDirs, "DescribeLogDirs", 0, 0, 4, 2, answer((*Handlers).describeLogDirs)},
		{keyCreatePartitions, "CreatePartitions", 0, 0, 3, 2, answerWaiting((*Handlers).createPartitions)},
		{keyDeleteGroups, "DeleteGroups", 0, 0, 2, 2, answerGroup((*Handlers).deleteGroups)},
		{keyElectLeaders, "ElectLeaders", 0, 0, 2, 2, answerWaiting((*Handlers).electLeaders)},
		{keyIncrementalAlterConfigs, "IncrementalAlterConfigs", 0, 0, 1, 1, answerWaiting((*Handlers).incrementalAlterConfigs)},
		{keyAlterPartitionReassignments, "AlterPartitionReassignments", 0, 0, 0, 0, answerWaiting((*Handlers).alterPartitionReassignments)},
		{keyListPartitionReassignments, "ListPartitionReassignments", 0, 0, 0, 0, answer((*Handlers).listPartitionReassignments)},
		{keyOffsetDelete, "OffsetDelete", 0, 0, 0, -1, answerGroup((*Handlers).offsetDelete)},
		{keyDescribeQuorum, "DescribeQuorum", 0, 0, 2, 0, answerWaiting((*Handlers).describeQuorum)},
		{keyUpdateFeatures, "UpdateFeatures", 0, 0, 2, 0, answerWaiting((*Handlers).updateFeatures)},
		{keyDescribeCluster, "DescribeCluster", 0, 0, 2, 0, answer((*Handlers).describeCluster)},
		{keyDescribeProducers, "DescribeProducers", 0, 0, 0, 0, answer((*Handlers).describeProducers)},
		{keyDescribeTransactions, "DescribeTransactions", 0, 0, 0, 0, answer((*Handlers).describeTransactions)},
		{keyListTransactions, "ListTransactions", 0, 0, 2, 0, answer((*Handlers).listTransactions)},
		{keyConsumerGroupHeartbeat, "ConsumerGroupHeartbeat", 0, 0, 1, 0, answerGroup((*Handlers).consumerGroupHeartbeat)},
		{keyConsumerGroupDescribe, "ConsumerGroupDescribe", 0, 0, 1, 0, answer((*Handlers).consumerGroupDescribe)},
	}
}

// API keys of the table.
const (
	keyProduce                     int16 = 0
	keyFetch                       int16 = 1
	keyListOffsets                 int16 = 2
	keyMetadata                    int16 = 3
	keyOffsetCommit                int16 = 8
	keyOffsetFetch                 int16 = 9
	keyFindCoordinator             int16 = 10
	keyJoinGroup                   int16 = 11
	keyHeartbeat                   int16 = 12
	keyLeaveGroup                  int16 = 13
	keySyncGroup                   int16 = 14
	keyDescribeGroups              int16 = 15
	keyListGroups                  int16 = 16
	keyAPIVersions                 int16 = 18
	keyCreateTopics                int16 = 19
	keyDeleteTopics                int16 = 20
	keyDeleteRecords               int16 = 21
	keyInitProducerID              int16 = 22
	keyOffsetForLeaderEpoch        int16 = 23
	keyAddPartitionsToTxn          int16 = 24
	keyAddOffsetsToTxn             int16 = 25
	keyEndTxn                      int16 = 26
	keyWriteTxnMarkers             int16 = 27
	keyTxnOffsetCommit             int16 = 28
	keyDescribeConfigs             int16 = 32
	keyAlterConfigs                int16 = 33
	keyDescribeLogDirs             int16 = 35
	keyCreatePartitions            int16 = 37
	keyDeleteGroups                int16 = 42
	keyElectLeaders                int16 = 43
	keyIncrementalAlterConfigs     int16 = 44
	keyAlterPartitionReassignments int16 = 45
	keyListPartitionReassignments  int16 = 46
	keyOffsetDelete                int16 = 47
	keyDescribeQuorum              int16 = 55
	keyUpdateFeatures              int16 = 57
	keyDescribeCluster             int16 = 60
	keyDescribeProducers           int16 = 61
	keyDescribeTransactions        int16 = 65
	keyListTransactions            int16 = 66
	keyConsumerGroupHeartbeat      int16 = 68
	keyConsumerGroupDescribe       int16 = 69
)

// maxKey bounds the dispatcher's lookup array.
const maxKey = 96

// index arranges the table for lookup by key and checks what every line must
// hold: an error here is a bug in the table, found when the process starts.
func index(apis []api) [maxKey]*api {
	var byKey [maxKey]*api
	for i := range apis {
		a := &apis[i]
		if byKey[a.key] != nil || a.minAdvertised > a.minServed || a.minServed > a.max {
			panic(fmt.Sprintf("version table: bad line for key %d (%s)", a.key, a.name))
		}
		if kmsg.RequestForKey(a.key) == nil {
			panic(fmt.Sprintf("version table: the codec does not know key %d (%s)", a.key, a.name))
		}
		byKey[a.key] = a
	}
	return byKey
}

// lookup returns the line that serves a request, or nil: the connection is
// then closed without a response, as clients count on.
func (h *Handlers) lookup(key, version int16) *api {
	if key < 0 || key >= maxKey {
		return nil
	}
	a := h.byKey[key]
	if a == nil || version < a.minServed || version > a.max {
		return nil
	}
	return a
}
