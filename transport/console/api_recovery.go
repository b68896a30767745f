package console

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/metadata"
)

// RecoveryPlan is what electing a leader of a partition without one would mean.
type RecoveryPlan struct {
	Topic          string       `json:"topic" doc:"topic"`
	Partition      int32        `json:"partition" doc:"partition"`
	PartitionEpoch int32        `json:"partition_epoch" doc:"of the state it was worked out on; the order is refused in another"`
	Leader         int32        `json:"leader" doc:"who would be elected: the live replica that reaches furthest; -1 when none lives"`
	LeaderEpoch    int32        `json:"leader_epoch" doc:"leader epoch of its last batch; -1 is unknown, or an empty log"`
	Offset         int64        `json:"log_end_offset" doc:"where its log ends; -1 is unknown"`
	Others         []ReplicaEnd `json:"others" doc:"the other live replicas"`
	Missing        []int32      `json:"missing" doc:"brokers that had every acknowledged record and are gone"`
	Safe           bool         `json:"safe" doc:"whether nothing is lost: a replica with every acknowledged record is there"`
}

// ReplicaEnd is how far a replica reaches.
type ReplicaEnd struct {
	Broker      int32 `json:"broker" doc:"broker id"`
	LeaderEpoch int32 `json:"leader_epoch" doc:"leader epoch of its last batch; -1 is unknown, or an empty log"`
	Offset      int64 `json:"log_end_offset" doc:"where its log ends; -1 is unknown"`
}

// RecoveryOrders are plans that were accepted; only these fields of them count.
type RecoveryOrders struct {
	Partitions []RecoveryOrder `json:"partitions" doc:"what to recover"`
}

// RecoveryOrder accepts one plan.
type RecoveryOrder struct {
	Topic          string `json:"topic" doc:"topic"`
	Partition      int32  `json:"partition" doc:"partition"`
	PartitionEpoch int32  `json:"partition_epoch" doc:"the plan's"`
	Leader         int32  `json:"leader" doc:"the plan's"`
}

// Recovered is what became of one order.
type Recovered struct {
	Topic     string `json:"topic" doc:"topic"`
	Partition int32  `json:"partition" doc:"partition"`
	Leader    int32  `json:"leader" doc:"who leads now; -1 when nobody was elected"`
	What      string `json:"what" doc:"what went wrong; empty when nothing did"`
	Why       string `json:"why" doc:"why"`
	Fix       string `json:"fix" doc:"what mends it"`
}

func getRecovery(c *call) (any, error) {
	var partitions []metadata.TopicPartition
	if name := c.r.URL.Query().Get("topic"); name != "" {
		t := c.image().Topic(name)
		if t == nil {
			return nil, &metadata.Error{Kind: metadata.ErrUnknownTopic, What: fmt.Sprintf("there is no topic %s", name), Why: "no topic has that name", Fix: "millrace topic list   shows them"}
		}
		partitions = []metadata.TopicPartition{}
		for i := range t.Partitions {
			partitions = append(partitions, metadata.TopicPartition{Topic: name, Partition: int32(i)})
		}
	}
	plans, err := c.Cluster.PlanRecovery(c.ctx, partitions)
	if err != nil {
		return nil, err
	}
	out := []RecoveryPlan{}
	for _, p := range plans {
		plan := RecoveryPlan{
			Topic: p.TopicPartition.Topic, Partition: p.TopicPartition.Partition, PartitionEpoch: p.PartitionEpoch,
			Leader: int32(p.Leader), LeaderEpoch: p.LeaderEpoch, Offset: p.Offset, Others: []ReplicaEnd{}, Missing: ids(p.Missing), Safe: p.Safe,
		}
		for _, o := range p.Others {
			plan.Others = append(plan.Others, ReplicaEnd{int32(o.Broker), o.LeaderEpoch, o.Offset})
		}
		out = append(out, plan)
	}
	return out, nil
}

func postRecovery(c *call) (any, error) {
	var body RecoveryOrders
	if err := c.read(&body); err != nil {
		return nil, err
	}
	if len(body.Partitions) == 0 {
		return nil, invalid("there is nothing to recover", "partitions is empty", "GET /v1/recovery shows what there is")
	}
	var orders []metadata.RecoveryOrder
	for _, o := range body.Partitions {
		orders = append(orders, metadata.RecoveryOrder{
			TopicPartition: metadata.TopicPartition{Topic: o.Topic, Partition: o.Partition}, PartitionEpoch: o.PartitionEpoch, Leader: metadata.BrokerID(o.Leader),
		})
	}
	out := []Recovered{}
	for _, r := range c.Cluster.Recover(c.ctx, orders) {
		row := Recovered{Topic: r.TopicPartition.Topic, Partition: r.TopicPartition.Partition, Leader: int32(r.Leader)}
		if e, ok := errors.AsType[*metadata.Error](r.Err); ok {
			row.What, row.Why, row.Fix = e.What, e.Why, e.Fix
		} else if r.Err != nil {
			row.What = r.Err.Error()
		}
		out = append(out, row)
	}
	return out, nil
}
