package console

import (
	"slices"

	"github.com/millrace/millrace/metadata"
)

// ClusterInfo is the cluster in numbers.
type ClusterInfo struct {
	ClusterID       string `json:"cluster_id" doc:"made once, when the cluster was formed"`
	Broker          int32  `json:"broker" doc:"the broker that answers"`
	Controller      int32  `json:"controller" doc:"broker id; -1 is none"`
	Version         int64  `json:"metadata_version" doc:"last entry of the metadata that the answering broker has applied"`
	FeatureLevel    int    `json:"feature_level" doc:"level of features that the cluster has agreed on"`
	Brokers         int    `json:"brokers" doc:"registered brokers"`
	Fenced          int    `json:"fenced_brokers" doc:"brokers that the controller has lost contact with, or that are not ready"`
	Topics          int    `json:"topics" doc:"topics"`
	Partitions      int    `json:"partitions" doc:"partitions"`
	Offline         int    `json:"offline_partitions" doc:"partitions without a leader"`
	UnderMinISR     int    `json:"under_min_isr_partitions" doc:"partitions that refuse acks=all"`
	AtMinISR        int    `json:"at_min_isr_partitions" doc:"partitions that would refuse acks=all with one replica less"`
	UnderReplicated int    `json:"under_replicated_partitions" doc:"partitions with replicas out of sync"`
	Reassigning     int    `json:"reassigning_partitions" doc:"partitions whose replicas are being moved"`
}

// Done is the answer to an order that leaves nothing to be shown.
type Done struct {
	Done bool `json:"done" doc:"true"`
}

func getCluster(c *call) (any, error) {
	im := c.image()
	info := ClusterInfo{
		ClusterID: im.ClusterID(), Broker: int32(c.BrokerID), Controller: int32(im.ControllerID()), Version: int64(im.Version()), FeatureLevel: int(im.FeatureLevel()),
		Brokers: len(im.Brokers()), Topics: im.TopicCount(), Partitions: im.PartitionCount(),
	}
	for _, b := range im.Brokers() {
		if b.Fenced {
			info.Fenced++
		}
	}
	for t := range im.Topics() {
		least := c.minISR(t)
		for _, p := range t.Partitions {
			s := stateOf(p, least)
			for _, count := range []struct {
				is bool
				n  *int
			}{{s.offline, &info.Offline}, {s.underMinISR, &info.UnderMinISR}, {s.atMinISR, &info.AtMinISR}, {s.underReplicated, &info.UnderReplicated}, {p.Reassigning(), &info.Reassigning}} {
				if count.is {
					*count.n++
				}
			}
		}
	}
	return info, nil
}

// partitionState is what is wrong with a partition, by the metadata alone.
type partitionState struct{ offline, underMinISR, atMinISR, underReplicated bool }

func stateOf(p *metadata.Partition, minISR int) partitionState {
	minISR = min(minISR, len(p.Replicas)-len(p.Adding))
	return partitionState{
		offline:         p.Leader == metadata.NoBroker,
		underMinISR:     len(p.ISR) < minISR,
		atMinISR:        len(p.ISR) == minISR,
		underReplicated: slices.ContainsFunc(p.Replicas, func(r metadata.BrokerID) bool { return !slices.Contains(p.ISR, r) && !slices.Contains(p.Adding, r) }),
	}
}
