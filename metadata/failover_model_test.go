package metadata

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// failoverModel drives one FSM with random fates of brokers and leaders, and knows from the outside which replicas have
// every committed record.
type failoverModel struct {
	*testFSM
	rng     *rand.Rand
	entries []*raft.Log
	policy  partitionPolicy
	// complete are, for each partition, the replicas that have all that was ever committed and not given up uncleanly.
	complete    map[TopicPartition][]BrokerID
	incarnation byte
	fresh       byte
	unclean     int
}

const modelBrokers = 5

func newFailoverModel(t testing.TB, seed uint64) *failoverModel {
	m := &failoverModel{testFSM: newTestFSM(t), rng: rand.New(rand.NewPCG(seed, 1)), complete: make(map[TopicPartition][]BrokerID)}
	m.policy = partitionPolicy{minInsync: m.rng.IntN(3), flushLazily: m.rng.IntN(2) == 0}
	m.apply(&initCluster{clusterID: "m", featureLevel: 1})
	for id := BrokerID(1); id <= modelBrokers; id++ {
		m.apply(m.registration(id, DirectoryID{byte(id)}, false))
	}
	var sets []replicaSet
	for i := range 6 {
		var ids []BrokerID
		for _, id := range m.rng.Perm(modelBrokers)[:1+i%4] {
			ids = append(ids, BrokerID(id+1))
		}
		sets = append(sets, on(ids...))
	}
	m.apply(topicCommand(1, "orders", sets...))
	m.committed()
	return m
}

func (m *failoverModel) apply(c command) (any, error) {
	e := m.entry(c)
	m.entries = append(m.entries, e)
	results, ok := m.Apply(e).([]result)
	require.True(m.t, ok, "%v", m.failed)
	return results[0].value, results[0].err
}

func (m *failoverModel) registration(id BrokerID, dir DirectoryID, fenced bool) *registerBroker {
	m.incarnation++
	c := broker(id, m.incarnation, dir)
	c.broker.Incarnation[2] = byte(m.next)
	c.broker.Incarnation[3] = byte(m.next >> 8)
	c.broker.Fenced, c.policy = fenced, m.policy
	if old := m.st.broker(id); old != nil {
		c.expectedEpoch = old.Epoch
	}
	return c
}

// committed notes that every partition which can commit records does so: whoever is not in its ISR lacks some from now on.
func (m *failoverModel) committed() {
	t := m.image().Topic("orders")
	for i, p := range t.Partitions {
		if p.Leader != NoBroker && len(p.ISR) >= m.policy.minISR(t, len(p.Replicas)) {
			m.complete[TopicPartition{t.Name, int32(i)}] = slices.Clone(p.ISR)
		}
	}
}

// lost notes that what a broker has on disk is not all it had.
func (m *failoverModel) lost(id BrokerID) {
	for tp, ids := range m.complete {
		m.complete[tp] = without(ids, id)
	}
}

// step does something at random.
func (m *failoverModel) step() {
	before := m.image()
	t := before.Topic("orders")
	id := BrokerID(1 + m.rng.IntN(modelBrokers))
	b := before.Broker(id)
	i := m.rng.IntN(len(t.Partitions))
	p, tp := t.Partitions[i], TopicPartition{t.Name, int32(i)}
	what := ""
	switch m.rng.IntN(13) {
	case 0, 1:
		what = fmt.Sprintf("fence %d", id)
		m.apply(&alterBroker{broker: id, epoch: b.Epoch, fenced: pb.Switch_SWITCH_ON, policy: m.policy})
	case 2, 3, 4:
		what = fmt.Sprintf("unfence %d", id)
		m.apply(&alterBroker{broker: id, epoch: b.Epoch, fenced: pb.Switch_SWITCH_OFF, fencedIndex: b.fencedIndex, policy: m.policy})
	case 5: // it restarts; without a proof, an unsynced tail is gone
		c := m.registration(id, b.Directories[0], m.rng.IntN(4) > 0)
		c.tailsProven = m.rng.IntN(2) == 0
		what = fmt.Sprintf("restart %d, proven %v, fenced %v", id, c.tailsProven, c.broker.Fenced)
		if !c.tailsProven && m.policy.flushLazily {
			m.lost(id)
		}
		m.apply(c)
	case 6:
		if m.rng.IntN(4) > 0 {
			return
		}
		what = fmt.Sprintf("%d has a new disk", id)
		m.fresh++
		m.lost(id)
		m.apply(m.registration(id, DirectoryID{100, m.fresh}, true))
		for i, p := range m.image().Topic("orders").Partitions {
			if len(p.Replicas) == 1 && p.Replicas[0] == id {
				m.complete[TopicPartition{t.Name, int32(i)}] = []BrokerID{id} // starts anew, empty (I12)
			}
		}
	case 7:
		what = fmt.Sprintf("%d leaves", id)
		m.apply(&alterBroker{broker: id, epoch: b.Epoch, leaving: pb.Switch_SWITCH_ON, policy: m.policy})
	case 8:
		on := m.rng.IntN(2) == 0
		what = fmt.Sprintf("maintenance of %d: %v", id, on)
		m.apply(&alterBroker{broker: id, epoch: b.Epoch, draining: switchOf(on), policy: m.policy})
	case 9, 10: // the leader shrinks or grows the ISR; who joins has caught up, with a leader that has everything
		if p.Leader == NoBroker {
			return
		}
		ch := PartitionChange{TopicID: t.ID, Partition: int32(i), LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch}
		for _, r := range p.Replicas {
			if rb := before.Broker(r); r == p.Leader || m.rng.IntN(3) > 0 {
				ch.ISR = append(ch.ISR, ISRMember{r, rb.Epoch})
			}
		}
		what = fmt.Sprintf("ISR %v of %v", ch.ISR, tp)
		v, err := m.apply(&alterPartitions{leader: p.Leader, leaderBrokerEpoch: before.Broker(p.Leader).Epoch, policy: m.policy, changes: []PartitionChange{ch}})
		require.NoError(m.t, err)
		if v.([]alteredPartition)[0].err == nil {
			for _, member := range ch.ISR {
				if !slices.Contains(m.complete[tp], member.ID) {
					m.complete[tp] = append(m.complete[tp], member.ID)
				}
			}
		}
	case 11:
		e := election{topicIDPartition: topicIDPartition{t.ID, int32(i)}, leader: id, partitionEpoch: p.PartitionEpoch}
		unclean := m.rng.IntN(8) == 0
		what = fmt.Sprintf("elect in %v, unclean %v", tp, unclean)
		m.apply(&electLeaders{unclean: unclean, policy: m.policy, elections: []election{e}})
	case 12:
		c := &reassignPartition{topicIDPartition: topicIDPartition{t.ID, int32(i)}, partitionEpoch: p.PartitionEpoch, policy: m.policy}
		if m.rng.IntN(4) > 0 {
			for _, r := range m.rng.Perm(modelBrokers)[:1+m.rng.IntN(4)] {
				c.target.replicas = append(c.target.replicas, BrokerID(r+1))
				c.target.directories = append(c.target.directories, before.Broker(BrokerID(r + 1)).Directories[0])
			}
		}
		what = fmt.Sprintf("reassign %v to %v", tp, c.target.replicas)
		m.apply(c)
	}
	m.check(before, what)
	m.committed()
}

// check holds the state to what correctness.md promises of it.
func (m *failoverModel) check(before *Image, what string) {
	checkState(m.t, m.st)
	old, now := before.Topic("orders"), m.image().Topic("orders")
	for i, p := range now.Partitions {
		o, tp := old.Partitions[i], TopicPartition{now.Name, int32(i)}
		say := fmt.Sprintf("%s: %v was %+v, is %+v", what, tp, *o, *p)
		require.Equal(m.t, p != o, p.PartitionEpoch != o.PartitionEpoch, say)
		require.LessOrEqual(m.t, p.PartitionEpoch-o.PartitionEpoch, int32(1), say)
		require.True(m.t, p.LeaderEpoch == o.LeaderEpoch || p.LeaderEpoch == o.LeaderEpoch+1, say)
		if p.Leader != o.Leader {
			require.Greater(m.t, p.LeaderEpoch, o.LeaderEpoch, "I9: "+say)
		}
		if ob, nb := before.Broker(o.Leader), m.image().Broker(o.Leader); ob != nil && ob.Epoch != nb.Epoch {
			require.Greater(m.t, p.LeaderEpoch, o.LeaderEpoch, "R14: "+say)
		}
		for _, id := range p.ISR {
			require.False(m.t, m.image().Broker(id).Fenced, "a fenced broker in the ISR; "+say)
		}
		if p.UncleanEpoch != o.UncleanEpoch {
			require.Equal(m.t, p.LeaderEpoch, p.UncleanEpoch, say)
			m.unclean++
			m.complete[tp] = []BrokerID{p.Leader} // the others follow it
		}
		for _, id := range slices.Concat(p.ISR, p.ELR) {
			require.Contains(m.t, m.complete[tp], id, "I10: "+say)
		}
		if p.Leader == NoBroker { // nobody who may lead is left out
			r := (&draft{st: *m.st}).revise(now, i, m.policy)
			require.Equal(m.t, NoBroker, r.pick(slices.Concat(p.ISR, p.ELR)), say)
		}
	}
}

// I9–I12, R14, KIP-966: whatever happens to brokers, in whatever order, only replicas that have every committed record are
// electable, no leader epoch has two leaders, and a partition with a live electable replica has a leader. The same entries
// lead to the same state on another FSM, also when it starts from a snapshot in the middle (I14).
func TestFailoverModel(t *testing.T) {
	seeds, steps, unclean := uint64(20), 250, 0
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		m := newFailoverModel(t, seed)
		middle := 50 + m.rng.IntN(100)
		var snapshot []byte
		for i := range steps {
			if i == middle {
				snapshot = snapshotBytes(t, m.st, m.index)
			}
			m.step()
			if t.Failed() {
				t.Fatalf("seed %d, step %d", seed, i)
			}
		}
		unclean += m.unclean
		st, index := restored(t, snapshot)
		other, third := newTestFSM(t), newTestFSM(t)
		third.st, third.index = st, index
		for _, e := range m.entries {
			other.Apply(e)
			if e.Index > index {
				third.Apply(e)
				if e.Index%20 == 0 {
					require.Equal(t, stateHash(other.st, other.index), stateHash(third.st, third.index), "seed %d, entry %d", seed, e.Index)
				}
			}
		}
		require.Equal(t, stateHash(m.st, m.index), stateHash(other.st, other.index), "seed %d", seed)
		require.Equal(t, stateHash(m.st, m.index), stateHash(third.st, third.index), "seed %d", seed)
	}
	require.NotZero(t, unclean, "the last known leader was never elected")
}

// restored reads a snapshot.
func restored(t testing.TB, snapshot []byte) (*state, uint64) {
	t.Helper()
	st, index, err := readSnapshot(bytes.NewReader(snapshot))
	require.NoError(t, err)
	return st, index
}
