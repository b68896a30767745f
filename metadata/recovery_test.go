package metadata

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// R15: a partition whose last leader is gone with what only it had. The plan names who would lead, how far that replica
// reaches and who is missing; the order takes effect on exactly that state, once; and a safe election needs none.
func TestRecoverByOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bs := newBrokers(t)
		defer bs.close()
		lead := bs.controller()
		self := lead.cfg.NodeID
		a := BrokerID(bs.other() + 1)
		b := BrokerID(bs.other(int(a)-1) + 1)
		bs.await(int(self)-1, "all serve", func(im *Image) bool { return unfenced(im) == 3 })
		one := "1"
		require.NoError(t, lead.CreateTopics(testContext(t), []NewTopic{
			{Name: "lost", Partitions: -1, ReplicationFactor: -1, Assignments: [][]BrokerID{{a, self, b}}, Configs: map[string]*string{"min.insync.replicas": &one}},
			{Name: "alone", Partitions: -1, ReplicationFactor: -1, Assignments: [][]BrokerID{{a}}},
			{Name: "well", Partitions: -1, ReplicationFactor: -1, Assignments: [][]BrokerID{{self, b}}},
		}, false)[0].Err)
		topic := lead.Image().Topic("lost")
		r := bs.stores[a-1].AlterPartition(testContext(t), a, bs.epoch(int(a-1)), []PartitionChange{{TopicID: topic.ID, PartitionEpoch: topic.Partitions[0].PartitionEpoch, LeaderEpoch: topic.Partitions[0].LeaderEpoch, ISR: []ISRMember{{a, -1}}}})
		require.NoError(t, r[0].Err)
		plan, err := bs.stores[b-1].PlanRecovery(testContext(t), nil)
		require.NoError(t, err)
		require.Empty(t, plan, "all have leaders")

		bs.kill(int(a) - 1)
		lead.Suspect(a, lead.Image().Broker(a).Incarnation, "a test")
		bs.await(int(self)-1, "a is fenced", func(im *Image) bool { return im.Broker(a).Fenced })
		plan, err = bs.stores[b-1].PlanRecovery(testContext(t), nil)
		require.NoError(t, err)
		slices.SortFunc(plan, func(x, y Recovery) int { return len(x.TopicPartition.Topic) - len(y.TopicPartition.Topic) })
		longest, other := max(self, b), min(self, b) // the harness's logs end at the broker's id
		lost := TopicPartition{"lost", 0}
		require.Equal(t, Recovery{
			TopicPartition: lost, PartitionEpoch: lead.Image().Topic("lost").Partitions[0].PartitionEpoch, Leader: longest, LeaderEpoch: 1, Offset: int64(longest),
			Others: []ReplicaEnd{{other, 1, int64(other)}}, Missing: []BrokerID{a},
		}, plan[0])
		require.Equal(t, NoBroker, plan[1].Leader, "nobody has it")
		require.Equal(t, []BrokerID{a}, plan[1].Missing)
		_, err = lead.PlanRecovery(testContext(t), []TopicPartition{{"lost", 7}})
		require.ErrorIs(t, err, ErrUnknownPartition)

		stale := RecoveryOrder{TopicPartition: lost, PartitionEpoch: plan[0].PartitionEpoch - 1, Leader: longest}
		good := RecoveryOrder{TopicPartition: lost, PartitionEpoch: plan[0].PartitionEpoch, Leader: longest}
		none := RecoveryOrder{TopicPartition: TopicPartition{"alone", 0}, PartitionEpoch: plan[1].PartitionEpoch, Leader: NoBroker}
		well := RecoveryOrder{TopicPartition: TopicPartition{"well", 0}, Leader: b}
		unknown := RecoveryOrder{TopicPartition: TopicPartition{"none", 0}, Leader: b}
		results := bs.stores[b-1].Recover(testContext(t), []RecoveryOrder{stale, none, well, unknown})
		requireMend(t, results[0].Err, ErrStale, "has changed since the plan")
		requireMend(t, results[1].Err, ErrNoEligibleLeader)
		requireMend(t, results[2].Err, ErrElectionNotNeeded)
		require.ErrorIs(t, results[3].Err, ErrUnknownTopic)
		require.Equal(t, NoBroker, lead.Image().Topic("lost").Partitions[0].Leader)
		results = bs.stores[b-1].Recover(testContext(t), []RecoveryOrder{good})
		require.NoError(t, results[0].Err)
		p := lead.Image().Topic("lost").Partitions[0]
		require.Equal(t, longest, p.Leader)
		require.Equal(t, p.LeaderEpoch, p.UncleanEpoch)
		require.Equal(t, []BrokerID{longest}, p.ISR)
		require.Error(t, lead.Recover(testContext(t), []RecoveryOrder{good})[0].Err, "once")
		bs.start(int(a)-1, 2)
	})
}

// Leaders that move to their preferred replicas are asked first to let those catch up, each about its own partitions and
// only where there will be an election; one that does not answer holds nothing up.
func TestPreferredElectionsDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bs := newBrokers(t)
		defer bs.close()
		lead := bs.controller()
		self := lead.cfg.NodeID
		a := BrokerID(bs.other() + 1)
		b := BrokerID(bs.other(int(a)-1) + 1)
		bs.await(int(self)-1, "all serve", func(im *Image) bool { return unfenced(im) == 3 })
		asked := make(chan map[BrokerID][]TopicPartition, 10)
		hang := false
		lead.cfg.Drain = func(ctx context.Context, leader *Broker, partitions []TopicPartition) error {
			for _, tp := range partitions {
				require.Equal(t, leader.ID, lead.Image().Topic(tp.Topic).Partitions[tp.Partition].Leader, "asked while it leads")
			}
			asked <- map[BrokerID][]TopicPartition{leader.ID: partitions}
			if hang {
				<-ctx.Done()
			}
			return ctx.Err()
		}
		require.NoError(t, lead.CreateTopics(testContext(t), []NewTopic{
			{Name: "t", Partitions: -1, ReplicationFactor: -1, Assignments: [][]BrokerID{{a, b}, {b, a}, {self, a}}},
		}, false)[0].Err)
		for _, hang = range []bool{false, true} {
			require.NoError(t, lead.SetMaintenance(testContext(t), a, true))
			require.NoError(t, lead.SetMaintenance(testContext(t), a, false))
			require.Equal(t, b, lead.Image().Topic("t").Partitions[0].Leader)
			began := time.Now()
			results := lead.ElectLeaders(testContext(t), Preferred, []TopicPartition{{"t", 0}, {"t", 1}, {"t", 2}})
			require.NoError(t, results[0].Err)
			require.ErrorIs(t, results[1].Err, ErrElectionNotNeeded)
			require.ErrorIs(t, results[2].Err, ErrElectionNotNeeded)
			require.Equal(t, map[BrokerID][]TopicPartition{b: {{"t", 0}}}, <-asked)
			require.Empty(t, asked)
			require.Less(t, time.Since(began), time.Second)
			require.Equal(t, a, lead.Image().Topic("t").Partitions[0].Leader)
		}
		// The controller's own elections do the same, and its other work goes on meanwhile.
		require.NoError(t, lead.SetMaintenance(testContext(t), a, true))
		require.NoError(t, lead.SetMaintenance(testContext(t), a, false))
		bs.await(int(self)-1, "a leads again", func(im *Image) bool { time.Sleep(time.Second); return im.Topic("t").Partitions[0].Leader == a })
		require.Equal(t, map[BrokerID][]TopicPartition{b: {{"t", 0}}}, <-asked)
	})
}

// A decommission that nobody watches is finished by the controller, once no replica is left and the quorum can do without
// the broker's vote.
func TestDecommissionFinishesByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newQuorumWorld(t, 3)
		for id := BrokerID(1); id <= 3; id++ {
			w.join(id)
		}
		w.voting(1, 2, 3)
		lead := w.controller()
		var others []*quorumNode
		for _, n := range w.nodes() {
			if n != lead {
				others = append(others, n)
			}
		}
		gone, dead := others[0], others[1]
		require.NoError(t, lead.CreateTopics(testContext(t), []NewTopic{{Name: "t", Partitions: -1, ReplicationFactor: -1, Assignments: [][]BrokerID{{gone.cfg.NodeID}}}}, false)[0].Err)
		require.NoError(t, lead.Decommission(testContext(t), gone.cfg.NodeID, true))
		w.pass(10 * time.Second)
		require.NotNil(t, lead.Image().Broker(gone.cfg.NodeID), "it has a replica")

		w.isolate(dead, true)
		w.await("the dead one is fenced", func() bool { return lead.Image().Broker(dead.cfg.NodeID).Fenced })
		require.NoError(t, lead.DeleteTopics(testContext(t), []TopicRef{{Name: "t"}})[0].Err)
		w.pass(10 * time.Second)
		require.NotNil(t, lead.Image().Broker(gone.cfg.NodeID), "without its vote nothing could be committed")
		requireMend(t, lead.UnregisterBroker(testContext(t), gone.cfg.NodeID), ErrPolicyViolation, "of the 2 voters that would be left only 1", "quorum peers")
		w.isolate(dead, false)
		w.await("it is out of the cluster", func() bool { return w.controller().Image().Departed(gone.cfg.NodeID) })
		w.voting(slices.Sorted(slices.Values([]BrokerID{lead.cfg.NodeID, dead.cfg.NodeID}))...)
		require.False(t, w.controller().Image().Departed(lead.cfg.NodeID))
		require.False(t, w.controller().Image().Departed(99))
	})
}
