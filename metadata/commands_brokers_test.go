package metadata

import (
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// refuses makes sure that a command is refused with an error and has no effect.
func (f *testFSM) refuses(want error, c command) {
	f.t.Helper()
	before := stateHash(f.st, 0)
	_, err := f.do(c)
	require.ErrorIs(f.t, err, want)
	require.Equal(f.t, before, stateHash(f.st, 0))
}

func (f *testFSM) orders(i int) *Partition { return f.image().Topic("orders").Partitions[i] }

func (f *testFSM) fence(id BrokerID, on bool) failover {
	b := f.st.broker(id)
	return f.must(&alterBroker{broker: id, epoch: b.Epoch, fenced: switchOf(on), fencedIndex: b.fencedIndex}).(failover)
}

// KIP-966: an ISR that becomes too small leaves behind who is eligible; the last ones come back in the order of replicas,
// and only they.
func TestFence(t *testing.T) {
	f := threeBrokers(t)
	require.Equal(t, failover{Moved: 1, Shrunk: 2}, f.fence(1, true))
	require.Equal(t, []BrokerID{2, 3}, f.orders(0).ISR)
	require.Empty(t, f.orders(0).ELR, "2 of min.insync.replicas 2 commit records that 1 lacks")
	require.Equal(t, BrokerID(2), f.orders(0).Leader)
	require.Equal(t, failover{}, f.fence(1, true), "again")
	f.fence(2, true)
	require.Equal(t, []BrokerID{3}, f.orders(0).ISR)
	require.Equal(t, []BrokerID{2}, f.orders(0).ELR)
	require.Equal(t, failover{Leaderless: 2, Shrunk: 2}, f.fence(3, true))
	require.Equal(t, []any{NoBroker, []BrokerID(nil), []BrokerID{2, 3}, BrokerID(3)}, []any{f.orders(0).Leader, f.orders(0).ISR, f.orders(0).ELR, f.orders(0).LastLeader})
	epoch := f.orders(0).LeaderEpoch
	require.Equal(t, failover{}, f.fence(1, false), "it lacks records")
	require.Equal(t, failover{Moved: 2}, f.fence(2, false))
	require.Equal(t, []any{BrokerID(2), []BrokerID{2}, []BrokerID{3}, epoch + 1}, []any{f.orders(0).Leader, f.orders(0).ISR, f.orders(0).ELR, f.orders(0).LeaderEpoch})
	require.Equal(t, int32(-1), f.orders(0).UncleanEpoch)

	b := f.st.broker(3)
	f.refuses(ErrStaleBrokerEpoch, &alterBroker{broker: 3, epoch: 1, fenced: pb.Switch_SWITCH_ON})
	f.refuses(ErrUnknownBroker, &alterBroker{broker: 8, epoch: 1})
	f.refuses(ErrStale, &alterBroker{broker: 3, epoch: b.Epoch, fenced: pb.Switch_SWITCH_OFF, fencedIndex: b.fencedIndex - 1})
	checkState(t, f.st)
}

// I12: with flush.ack=false a broker that can't prove its tail is no candidate, and leads again only as the last known
// leader when nobody else is left, with a mark; a topic that flushes is not touched by that.
func TestRegistrationWithoutProof(t *testing.T) {
	f := threeBrokers(t)
	lazy := topicCommand(2, "lazy", on(1, 2), on(1))
	lazy.configs = map[string]string{"millrace.flush.ack": "false"}
	f.must(lazy)
	f.must(topicCommand(3, "safe", on(1)))
	again := f.again(broker(1, 2))
	again.broker.Fenced = true
	out := f.must(again).(registered)
	require.Empty(t, out.Unclean)
	p := f.image().Topic("lazy").Partitions
	require.Equal(t, []any{BrokerID(2), []BrokerID{2}}, []any{p[0].Leader, p[0].ISR})
	require.Equal(t, []any{NoBroker, BrokerID(1)}, []any{p[1].Leader, p[1].LastLeader})
	require.Empty(t, p[1].ELR)
	require.Equal(t, []BrokerID{1}, f.image().Topic("safe").Partitions[0].ELR)
	require.Equal(t, []TopicPartition{{"lazy", 1}}, f.fence(1, false).Unclean)
	p = f.image().Topic("lazy").Partitions
	require.Equal(t, []any{BrokerID(1), p[1].LeaderEpoch}, []any{p[1].Leader, p[1].UncleanEpoch})
	require.Equal(t, BrokerID(1), f.image().Topic("safe").Partitions[0].Leader)
	require.Equal(t, int32(-1), f.image().Topic("safe").Partitions[0].UncleanEpoch)

	proven := f.again(broker(1, 3))
	proven.tailsProven = true
	require.Empty(t, f.must(proven).(registered).Unclean)
	require.Equal(t, BrokerID(1), f.image().Topic("lazy").Partitions[1].Leader)
	checkState(t, f.st)
}

// A directory that fails takes its replicas out of the ISRs and off the lead, until the next registration.
func TestOfflineDirectory(t *testing.T) {
	f := newTestFSM(t)
	f.must(&initCluster{clusterID: "c", featureLevel: 1})
	f.must(broker(1, 1, DirectoryID{1}, DirectoryID{11}))
	f.must(broker(2, 1))
	f.must(topicCommand(1, "orders", on(1, 2), replicaSet{[]BrokerID{1}, []DirectoryID{{11}}}))
	f.must(&alterBroker{broker: 1, epoch: 1, offline: []DirectoryID{{1}}})
	require.Equal(t, []any{BrokerID(2), []BrokerID{2}}, []any{f.orders(0).Leader, f.orders(0).ISR})
	require.Equal(t, BrokerID(1), f.orders(1).Leader, "the other directory works")
	isr := &alterPartitions{leader: 2, leaderBrokerEpoch: 2, changes: []PartitionChange{
		{TopicID: TopicID{1}, LeaderEpoch: f.orders(0).LeaderEpoch, PartitionEpoch: f.orders(0).PartitionEpoch, ISR: []ISRMember{{1, 1}, {2, 2}}}}}
	require.ErrorIs(t, f.must(isr).([]alteredPartition)[0].err, ErrIneligibleReplica)
	f.must(f.again(broker(1, 2, DirectoryID{1}, DirectoryID{11})))
	require.Empty(t, f.st.broker(1).Offline)
	checkState(t, f.st)
}

// R11, R12: each change of a batch is compared by itself, in the order of the log.
func TestAlterPartitionsCommand(t *testing.T) {
	f := threeBrokers(t)
	change := func(i int32, isr ...ISRMember) PartitionChange {
		p := f.orders(int(i))
		return PartitionChange{TopicID: TopicID{1}, Partition: i, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch, ISR: isr}
	}
	batch := func(changes ...PartitionChange) []alteredPartition {
		return f.must(&alterPartitions{leader: 1, leaderBrokerEpoch: 1, changes: changes}).([]alteredPartition)
	}
	good := change(0, ISRMember{1, 1})
	out := batch(good, good, change(1, ISRMember{1, 1}), PartitionChange{TopicID: TopicID{9}}, PartitionChange{TopicID: TopicID{1}, Partition: 7})
	require.NoError(t, out[0].err)
	require.Equal(t, *f.orders(0), out[0].partition)
	require.Equal(t, []BrokerID{2, 3}, f.orders(0).ELR, "both had everything when the ISR became too small")
	require.ErrorIs(t, out[1].err, ErrStale)
	require.ErrorIs(t, out[2].err, ErrFencedLeaderEpoch)
	require.ErrorIs(t, out[3].err, ErrUnknownTopicID)
	require.ErrorIs(t, out[4].err, ErrUnknownPartition)
	for want, ch := range map[error]PartitionChange{
		ErrInvalidRequest:    change(0, ISRMember{1, 1}, ISRMember{9, -1}),                                         // not a replica
		ErrIneligibleReplica: change(0, ISRMember{1, 1}, ISRMember{2, 77}),                                         // another incarnation
		ErrFencedLeaderEpoch: {TopicID: TopicID{1}, LeaderEpoch: 3, PartitionEpoch: 1, ISR: []ISRMember{{1, 1}}},   // a later epoch
		ErrStale:             {TopicID: TopicID{1}, LeaderEpoch: 0, PartitionEpoch: 100, ISR: []ISRMember{{1, 1}}}, // a later state
	} {
		require.ErrorIs(t, batch(ch)[0].err, want)
	}
	require.ErrorIs(t, batch(change(0, ISRMember{1, 1}, ISRMember{1, 1}))[0].err, ErrInvalidRequest, "twice")
	f.refuses(ErrStaleBrokerEpoch, &alterPartitions{leader: 1, leaderBrokerEpoch: 9, changes: []PartitionChange{good}})
	f.fence(3, true)
	require.ErrorIs(t, batch(change(0, ISRMember{1, 1}, ISRMember{3, 3}))[0].err, ErrIneligibleReplica, "fenced")
	f.must(&alterBroker{broker: 2, epoch: 2, leaving: pb.Switch_SWITCH_ON})
	require.ErrorIs(t, batch(change(0, ISRMember{1, 1}, ISRMember{2, 2}))[0].err, ErrIneligibleReplica, "about to stop")
}

// R15: unclean elections only where nobody leads and nobody is eligible, on the state they were decided on, with a mark.
func TestElectLeadersCommand(t *testing.T) {
	f := threeBrokers(t)
	elect := func(unclean bool, leader BrokerID, epoch int32) elected {
		return f.must(&electLeaders{unclean: unclean, elections: []election{{topicIDPartition{TopicID{1}, 0}, leader, epoch}}}).([]elected)[0]
	}
	require.ErrorIs(t, elect(false, 0, 0).err, ErrElectionNotNeeded)
	require.ErrorIs(t, elect(true, 2, 0).err, ErrElectionNotNeeded)
	f.must(&alterBroker{broker: 1, epoch: 1, draining: pb.Switch_SWITCH_ON})
	require.Equal(t, BrokerID(2), f.orders(0).Leader)
	require.ErrorIs(t, elect(false, 0, 0).err, ErrPreferredLeaderUnfit, "in maintenance")
	f.must(&alterBroker{broker: 1, epoch: 1, draining: pb.Switch_SWITCH_OFF})
	require.Equal(t, elected{leader: 1}, elect(false, 0, 0))
	f.fence(1, true)
	f.fence(2, true)
	f.fence(3, true)
	f.must(f.again(broker(2, 2, DirectoryID{52}))) // its disk is new
	f.fence(1, false)
	require.Equal(t, NoBroker, f.orders(0).Leader)
	epoch := f.orders(0).PartitionEpoch
	require.ErrorIs(t, elect(true, 1, epoch-1).err, ErrStale)
	require.ErrorIs(t, elect(true, 3, epoch).err, ErrNoEligibleLeader, "fenced")
	require.Equal(t, elected{leader: 1}, elect(true, 1, epoch))
	require.Equal(t, []any{[]BrokerID{1}, f.orders(0).LeaderEpoch}, []any{f.orders(0).ISR, f.orders(0).UncleanEpoch})
	require.Empty(t, f.orders(0).ELR)
	checkState(t, f.st)
}

// KIP-455: a move adds, completes when what it adds is in the ISR, gives way to another, and can be taken back.
func TestReassignPartitionCommand(t *testing.T) {
	f := threeBrokers(t)
	f.must(broker(4, 1))
	f.must(broker(5, 1))
	move := func(to ...BrokerID) *reassignPartition {
		return &reassignPartition{topicIDPartition: topicIDPartition{TopicID{1}, 0}, partitionEpoch: f.orders(0).PartitionEpoch, target: on(to...)}
	}
	isr := func(ids ...BrokerID) Partition {
		p := f.orders(0)
		ch := PartitionChange{TopicID: TopicID{1}, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch}
		for _, id := range ids {
			ch.ISR = append(ch.ISR, ISRMember{id, -1})
		}
		out := f.must(&alterPartitions{leader: p.Leader, leaderBrokerEpoch: f.st.broker(p.Leader).Epoch, changes: []PartitionChange{ch}}).([]alteredPartition)[0]
		require.NoError(t, out.err)
		return out.partition
	}
	f.refuses(ErrNoReassignment, move())
	p := f.must(move(4, 2, 5)).(Partition)
	require.Equal(t, []any{[]BrokerID{4, 2, 5, 1, 3}, []BrokerID{4, 5}, []BrokerID{1, 3}}, []any{p.Replicas, p.Adding, p.Removing})
	require.Equal(t, []DirectoryID{{4}, {2}, {5}, {1}, {3}}, p.Directories)
	require.Equal(t, []any{BrokerID(1), int32(0)}, []any{p.Leader, p.LeaderEpoch}, "it leads on")
	count := 0
	for tp, moving := range f.image().Reassignments() {
		require.Equal(t, []any{TopicPartition{"orders", 0}, f.orders(0)}, []any{tp, moving})
		count++
	}
	require.Equal(t, 1, count)
	stale := move(1)
	stale.partitionEpoch--
	f.refuses(ErrStale, stale)
	p = isr(1, 2, 3, 4)
	require.Len(t, p.Adding, 2, "5 is missing")
	p = isr(1, 2, 3, 4, 5)
	require.Equal(t, []any{[]BrokerID{4, 2, 5}, []BrokerID{2, 4, 5}, BrokerID(4)}, []any{p.Replicas, sorted(p.ISR), p.Leader})
	require.False(t, p.Reassigning())
	require.Equal(t, int32(1), p.LeaderEpoch, "R24")

	// Another move takes the place of the first: what only that wanted goes at once, in a new leader epoch.
	p = f.must(move(1, 4, 5)).(Partition)
	epoch := p.LeaderEpoch
	p = f.must(move(3, 4, 5)).(Partition)
	require.Equal(t, []any{[]BrokerID{3, 4, 5, 2}, []BrokerID{3}, []BrokerID{2}, epoch + 1}, []any{p.Replicas, p.Adding, p.Removing, p.LeaderEpoch})
	p = f.must(move()).(Partition)
	require.Equal(t, []BrokerID{2, 4, 5}, sorted(p.Replicas))
	require.False(t, p.Reassigning())
	require.Equal(t, []BrokerID{2, 4, 5}, sorted(p.ISR))

	// Fewer replicas need nobody to catch up, but somebody who has everything.
	isr(4)
	p = f.must(move(2)).(Partition)
	require.True(t, p.Reassigning(), "2 has not all records, 4 stays until it has")
	f.must(move())
	p = f.must(move(4)).(Partition)
	require.Equal(t, []any{[]BrokerID{4}, []BrokerID{4}, BrokerID(4)}, []any{p.Replicas, p.ISR, p.Leader})
	lost := move(9)
	f.refuses(ErrStale, lost)
	checkState(t, f.st)
}

func sorted(ids []BrokerID) []BrokerID {
	out := append([]BrokerID(nil), ids...)
	for i := range out {
		for j := range i {
			if out[i] < out[j] {
				out[i], out[j] = out[j], out[i]
			}
		}
	}
	return out
}

// M13, M14, I15: a directory has one broker id for ever, no id is given out twice, and what was removed stays out.
func TestBrokerIdentities(t *testing.T) {
	f := threeBrokers(t)
	assign := func(dir byte, want BrokerID) *assignBrokerID {
		return &assignBrokerID{directory: DirectoryID{dir}, want: want}
	}
	require.Equal(t, BrokerID(1), f.must(assign(1, NoBroker)), "its registration gave it the id")
	require.Equal(t, BrokerID(4), f.must(assign(60, NoBroker)))
	require.Equal(t, BrokerID(4), f.must(assign(60, 4)))
	require.Equal(t, BrokerID(9), f.must(assign(61, 9)))
	require.Equal(t, BrokerID(10), f.must(assign(62, NoBroker)))
	f.refuses(ErrDuplicateBroker, assign(60, 5))
	f.refuses(ErrDuplicateBroker, assign(63, 9))
	f.refuses(ErrDuplicateBroker, assign(63, 2))
	f.refuses(ErrDuplicateBroker, broker(7, 1, DirectoryID{60})) // of broker 4

	// Broker 2 has lost its disk for good, and another takes its place.
	replace := &assignBrokerID{directory: DirectoryID{64}, want: 2, replace: true, expectedEpoch: 9}
	f.refuses(ErrStale, replace)
	replace.expectedEpoch = 2
	require.Equal(t, BrokerID(2), f.must(replace))
	require.Equal(t, BrokerID(2), f.must(replace), "a repetition")
	f.refuses(ErrRemoved, assign(2, 2))
	f.refuses(ErrRemoved, f.again(broker(2, 2)))
	f.must(f.again(broker(2, 2, DirectoryID{64})))

	f.refuses(ErrPolicyViolation, &unregisterBroker{broker: 3, epoch: 3})
	f.refuses(ErrUnknownBroker, &unregisterBroker{broker: 4, epoch: 3})
	f.must(&deleteTopic{id: TopicID{1}})
	f.refuses(ErrStale, &unregisterBroker{broker: 3, epoch: 2})
	if !f.image().Broker(3).Fenced {
		f.refuses(ErrPolicyViolation, &unregisterBroker{broker: 3, epoch: 3})
		f.must(&alterBroker{broker: 3, epoch: 3, removing: pb.Switch_SWITCH_ON})
	}
	f.must(&unregisterBroker{broker: 3, epoch: 3})
	require.Nil(t, f.image().Broker(3))
	f.refuses(ErrRemoved, assign(3, NoBroker))
	f.refuses(ErrRemoved, assign(70, 3))
	f.refuses(ErrRemoved, broker(3, 2))
	require.Equal(t, BrokerID(11), f.must(assign(71, NoBroker)))
	checkState(t, f.st)
}

// D17: the level goes up only, and only when every registered broker knows it. M2: a binary that does not know a committed
// level stops.
func TestSetFeatureLevelCommand(t *testing.T) {
	f := threeBrokers(t)
	f.must(&setFeatureLevel{expected: 7, level: 1}) // nothing to do
	f.refuses(ErrStale, &setFeatureLevel{expected: 2, level: 3})
	f.refuses(ErrInvalidFeatureLevel, &setFeatureLevel{expected: 1, level: 0})
	f.refuses(ErrInvalidFeatureLevel, &setFeatureLevel{expected: 1, level: MaxFeatureLevel + 1})
	for id := BrokerID(1); id <= 3; id++ {
		c := f.again(broker(id, 2))
		c.broker.MaxFeatureLevel = 99
		f.must(c)
	}
	f.Apply(f.entry(&setFeatureLevel{expected: 1, level: 99}))
	require.Len(t, f.failures, 1)
	require.ErrorIs(t, f.failures[0], errNewerVersion)
}

// L12, M11: tombstones go by the index of their deletion.
func TestPruneTombstonesCommand(t *testing.T) {
	f := threeBrokers(t)
	for i := byte(2); i < 6; i++ {
		f.must(topicCommand(i, string(rune('a'+i)), on(1)))
		f.must(&deleteTopic{id: TopicID{i}})
	}
	stone, _ := f.st.tombstones.get(TopicID{3})
	require.Equal(t, 2, f.must(&pruneTombstones{through: stone.Index}))
	require.False(t, f.image().Tombstone(TopicID{3}))
	require.True(t, f.image().Tombstone(TopicID{4}))
	require.Equal(t, 0, f.must(&pruneTombstones{through: stone.Index}))
}
