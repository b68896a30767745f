package metadata

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// L9: a broker whose copy is damaged takes itself out, whether it leads or not, and its leadership passes on; nobody gives
// up the last copy that may be complete.
func TestGiveUpReplica(t *testing.T) {
	r := NewReplica()
	epochs := map[BrokerID]int64{}
	for id := BrokerID(1); id <= 3; id++ {
		epoch, err := r.Register(Registration{
			ID: id, Incarnation: [16]byte{byte(id)}, Directories: []DirectoryID{{byte(id)}}, Version: "test",
			MinFeatureLevel: MinFeatureLevel, MaxFeatureLevel: MaxFeatureLevel, TailsProven: true,
		}, false)
		require.NoError(t, err)
		epochs[id] = epoch
	}
	require.NoError(t, r.CreateTopic("orders", TopicID{1}, map[string]string{"min.insync.replicas": "3"}, [][]BrokerID{{1, 2, 3}}))
	record := func() *Partition { return r.Image().Topic("orders").Partitions[0] }
	giveUp := func(id BrokerID, partitionEpoch int32, left ...BrokerID) error {
		ch := PartitionChange{TopicID: TopicID{1}, PartitionEpoch: partitionEpoch}
		for _, id := range left {
			ch.ISR = append(ch.ISR, ISRMember{ID: id, Epoch: -1})
		}
		_, err := r.AlterPartition(id, epochs[id], ch)
		return err
	}
	require.ErrorIs(t, giveUp(2, 9, 1, 3), ErrStale)
	require.ErrorIs(t, giveUp(2, 0, 1), ErrInvalidRequest, "it does not throw out another")
	require.NoError(t, giveUp(2, 0, 1, 3))
	require.Equal(t, []BrokerID{1, 3}, record().ISR)
	require.Empty(t, record().ELR, "a damaged copy is not eligible")
	require.Equal(t, BrokerID(1), record().Leader)
	epoch := record().LeaderEpoch
	require.NoError(t, giveUp(1, record().PartitionEpoch, 3))
	require.Equal(t, BrokerID(3), record().Leader)
	require.Greater(t, record().LeaderEpoch, epoch)
	require.ErrorIs(t, giveUp(3, record().PartitionEpoch), ErrNoEligibleLeader)
	require.Equal(t, []BrokerID{3}, record().ISR)
}
