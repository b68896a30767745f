package console

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

// The plan of an unsafe recovery says who would lead, how far that reaches and who is missing; the order carries what was
// looked at, and its refusals come back item by item.
func TestRecovery(t *testing.T) {
	s, f := testServer(t, nil)
	require.Empty(t, ask[[]RecoveryPlan](t, s, 200, "GET /v1/recovery"))
	f.recovery = []metadata.Recovery{{
		TopicPartition: metadata.TopicPartition{Topic: "orders", Partition: 1}, PartitionEpoch: 7, Leader: 2, LeaderEpoch: 3, Offset: 40,
		Others: []metadata.ReplicaEnd{{Broker: 3, LeaderEpoch: -1, Offset: -1}}, Missing: []metadata.BrokerID{1},
	}}
	require.Equal(t, []RecoveryPlan{{
		Topic: "orders", Partition: 1, PartitionEpoch: 7, Leader: 2, LeaderEpoch: 3, Offset: 40, Others: []ReplicaEnd{{3, -1, -1}}, Missing: []int32{1},
	}}, ask[[]RecoveryPlan](t, s, 200, "GET /v1/recovery?topic=orders"))
	require.Contains(t, refused(t, s, 404, "GET /v1/recovery?topic=none").What, "no topic none")
	order := `{"partitions":[{"topic":"orders","partition":1,"partition_epoch":7,"leader":2}]}`
	require.Equal(t, []Recovered{{Topic: "orders", Partition: 1, Leader: 2}}, ask[[]Recovered](t, s, 200, "POST /v1/recovery", order))
	f.err = &metadata.Error{Kind: metadata.ErrStale, What: "no leader", Why: "changed", Fix: "look again"}
	require.Equal(t, []Recovered{{Topic: "orders", Partition: 1, Leader: 2, What: "no leader", Why: "changed", Fix: "look again"}}, ask[[]Recovered](t, s, 200, "POST /v1/recovery", order))
	require.Contains(t, refused(t, s, 400, "POST /v1/recovery", `{"partitions":[]}`).What, "nothing to recover")
	require.Equal(t, []string{"recover orders-1 epoch 7 by 2", "recover orders-1 epoch 7 by 2"}, f.orders)
}

// A decommission that the controller has finished meanwhile is one that is done, not an unknown broker.
func TestDecommissionOfABrokerThatIsGone(t *testing.T) {
	s, _ := testServer(t, nil)
	require.Contains(t, refused(t, s, 404, "GET /v1/brokers/9/decommission").What, "no broker 9")
	require.Contains(t, refused(t, s, 404, "DELETE /v1/brokers/9").What, "no broker 9")
}
