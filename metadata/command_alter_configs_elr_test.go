package metadata

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// I10, KIP-966: an eligible replica has all committed records only while the ISR commits none. Whoever lowers
// min.insync.replicas lets it commit, so nobody outside the ISR is eligible from then on.
func TestLowerMinInsyncForgetsELR(t *testing.T) {
	for name, lower := range map[string]func(r *Replica) error{
		"topic": func(r *Replica) error { return r.AlterTopic("t", map[string]string{"min.insync.replicas": "1"}) },
		"all": func(r *Replica) error {
			_, err := r.do(&alterConfigs{broker: NoBroker, set: map[string]string{"min.insync.replicas": "1"}})
			return err
		},
		"all, taken away": func(r *Replica) error {
			_, err := r.do(&alterConfigs{broker: NoBroker, delete: []string{"min.insync.replicas"}})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewReplica()
			r.Settings = ReplicaSettings{MinInsyncReplicas: 2}
			epochs := map[BrokerID]int64{}
			for id := range BrokerID(3) {
				epoch, err := r.Register(Registration{
					ID: id, Incarnation: [16]byte{byte(id) + 1}, Directories: []DirectoryID{{byte(id) + 1}}, TailsProven: true,
					Listeners: []Listener{{Name: "PLAINTEXT", Host: "localhost", Port: 9092, Protocol: "PLAINTEXT"}},
				}, false)
				require.NoError(t, err)
				epochs[id] = epoch
			}
			require.NoError(t, r.CreateTopic("t", TopicID{1}, nil, [][]BrokerID{{0, 1, 2}}))
			require.NoError(t, r.Fence(1, epochs[1], true))
			require.NoError(t, r.Fence(2, epochs[2], true))
			before := r.Image().Topic("t").Partitions[0]
			require.Equal(t, []BrokerID{0}, before.ISR)
			require.Equal(t, []BrokerID{2}, before.ELR)

			require.NoError(t, r.AlterTopic("t", map[string]string{"retention.ms": "1000"}))
			require.Equal(t, []BrokerID{2}, r.Image().Topic("t").Partitions[0].ELR, "another config")

			require.NoError(t, lower(r))
			after := r.Image().Topic("t").Partitions[0]
			require.Empty(t, after.ELR)
			require.Greater(t, after.PartitionEpoch, before.PartitionEpoch, "the leader must hear of it")
			require.Equal(t, before.LeaderEpoch, after.LeaderEpoch)
			require.Equal(t, []BrokerID{2}, before.ELR, "a published version was changed")
		})
	}
}

// A value that the ISR does not reach leaves the eligible replicas as they are: they may be all that is left.
func TestMinInsyncAboveISRKeepsELR(t *testing.T) {
	n, ok := (&alterConfigs{set: map[string]string{"min.insync.replicas": "2"}}).minInsync()
	require.True(t, ok)
	require.Equal(t, 2, n)

	d := newDraft(newState())
	topic := &Topic{Name: "t", ID: TopicID{1}, Partitions: []*Partition{{
		Leader: 0, Replicas: []BrokerID{0, 1, 2}, ISR: []BrokerID{0}, ELR: []BrokerID{1}, Directories: []DirectoryID{{1}, {2}, {3}},
	}}}
	d.putTopic(topic, true)
	d.forgetELR(topic, 2)
	require.Equal(t, []BrokerID{1}, d.st.topic("t").Partitions[0].ELR)
	d.forgetELR(topic, 1)
	require.Empty(t, d.st.topic("t").Partitions[0].ELR)
}
