package metadata

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// viewOf is a view of brokers and partitions; a partition's name is its topic's.
func viewOf(brokers []balancerBroker, topics map[string][][]BrokerID) *balancerView {
	v := &balancerView{brokers: brokers, at: make(map[BrokerID]int)}
	for i, b := range brokers {
		v.at[b.id] = i
	}
	var names []string
	for name := range topics {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for i, replicas := range topics[name] {
			v.partitions = append(v.partitions, balancerPartition{
				TopicPartition: TopicPartition{name, int32(i)}, id: TopicID{byte(v.topics + 1)}, topic: v.topics, replicas: slices.Clone(replicas),
			})
		}
		v.topics++
	}
	return v
}

func takersOf(ids ...BrokerID) (out []balancerBroker) {
	for _, id := range ids {
		out = append(out, balancerBroker{id: id, takes: true})
	}
	return out
}

// What a plan promises, whatever the cluster: no partition twice on a broker, the number of replicas kept, nothing moved to
// brokers that take none, no move without a reason, racks spread no worse, brokers that must be empty emptied or named, the
// others even, and nothing left to do.
func TestPlannerPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var brokers []balancerBroker
		racks := rapid.IntRange(0, 4).Draw(t, "racks")
		for i := range rapid.IntRange(1, 9).Draw(t, "brokers") {
			b := balancerBroker{id: BrokerID(i + 1), takes: true}
			if racks > 0 {
				b.rack = fmt.Sprint("r", rapid.IntRange(1, racks).Draw(t, "rack"))
			}
			switch rapid.IntRange(0, 9).Draw(t, "kind") {
			case 0:
				b.takes, b.drops = false, "it must go"
			case 1:
				b.takes = false // in maintenance
			}
			brokers = append(brokers, b)
		}
		topics := make(map[string][][]BrokerID)
		// Only the first few brokers have replicas: the others have just joined.
		have := rapid.IntRange(1, len(brokers)).Draw(t, "have")
		for i := range rapid.IntRange(0, 5).Draw(t, "topics") {
			factor := rapid.IntRange(1, min(have, 4)).Draw(t, "factor")
			var parts [][]BrokerID
			for range rapid.IntRange(1, 20).Draw(t, "partitions") {
				ids := rapid.Permutation(takenIDs(have)).Draw(t, "replicas")
				parts = append(parts, ids[:factor])
			}
			topics[fmt.Sprint("t", i)] = parts
		}
		before, v := viewOf(brokers, topics), viewOf(brokers, topics)
		frozen := rapid.IntRange(0, max(len(v.partitions)-1, 0)).Draw(t, "frozen")
		if len(v.partitions) > 0 && rapid.Bool().Draw(t, "freeze") {
			v.partitions[frozen].moving = true
			before.partitions[frozen].moving = true
		}
		p := newPlanner(v, maxPlannedMoves)
		p.plan(true)

		now := make(map[TopicPartition][]BrokerID)
		for _, part := range before.partitions {
			now[part.TopicPartition] = part.replicas
		}
		for _, m := range p.moves {
			require.NotEmpty(t, m.Reason)
			require.True(t, m.fits(now[m.partition()]), "%v of %v", m, now[m.partition()])
			require.False(t, hasDuplicates(m.Replicas))
			if m.To != NoBroker {
				require.True(t, brokers[v.at[m.To]].takes)
			}
			now[m.partition()] = m.Replicas
		}
		distinct := func(replicas []BrokerID) int {
			seen := make(map[string]bool)
			for _, id := range replicas {
				rack := brokers[v.at[id]].rack
				if rack == "" {
					rack = id.String()
				}
				seen[rack] = true
			}
			return len(seen)
		}
		constrained := racks > 0
		for i, part := range before.partitions {
			after := now[part.TopicPartition]
			require.Equal(t, v.partitions[i].replicas, after)
			if part.moving {
				require.Equal(t, part.replicas, after)
				constrained = true
			}
			if !slices.ContainsFunc(part.replicas, func(id BrokerID) bool { return brokers[v.at[id]].drops != "" }) {
				require.GreaterOrEqual(t, distinct(after), distinct(part.replicas), "%v became %v", part.replicas, after)
			}
			for _, id := range after {
				if brokers[v.at[id]].drops != "" && !part.moving {
					require.NotEmpty(t, p.cannot)
				}
			}
		}
		// Plans come to an end, and then nothing stands in the way of evenness but racks, of which a small one may be full of
		// what only it can hold, and brokers that are in each partition already.
		for round := 0; ; round++ {
			again := newPlanner(v, maxPlannedMoves)
			again.plan(true)
			if len(again.moves) == 0 {
				p = again
				break
			}
			require.Less(t, round, 5)
		}
		if constrained {
			return
		}
		for from := range brokers {
			for to := range brokers {
				if !brokers[from].takes || !brokers[to].takes || p.count[from]-p.count[to] < 2 {
					continue
				}
				for _, i := range p.on[from] {
					require.Contains(t, v.partitions[i].replicas, brokers[to].id, "%d has %d, %d has %d", from+1, p.count[from], to+1, p.count[to])
				}
			}
		}
	})
}

func takenIDs(n int) (ids []BrokerID) {
	for i := range n {
		ids = append(ids, BrokerID(i+1))
	}
	return ids
}

// A broker that joins gets its share, and not one replica moves between the others.
func TestPlannerJoin(t *testing.T) {
	for _, brokers := range []int{3, 5, 9} {
		ids := takenIDs(brokers)
		topics := make(map[string][][]BrokerID)
		for i := range 7 {
			for j := range 12 {
				topics[fmt.Sprint("t", i)] = append(topics[fmt.Sprint("t", i)], []BrokerID{ids[(i+j)%brokers], ids[(i+j+1)%brokers], ids[(i+j+2)%brokers]})
			}
		}
		newcomer := BrokerID(brokers + 1)
		v := viewOf(takersOf(append(ids, newcomer)...), topics)
		p := newPlanner(v, maxPlannedMoves)
		p.plan(true)
		total := 7 * 12 * 3
		copied := 0
		for _, m := range p.moves {
			if m.To != NoBroker {
				require.Equal(t, newcomer, m.To)
				copied++
			}
		}
		require.Equal(t, total/(brokers+1), copied, "as many as its share, no more")
		for b := range v.brokers {
			require.InDelta(t, float64(total)/float64(brokers+1), p.count[b], 1)
			require.InDelta(t, float64(7*12)/float64(brokers+1), p.leaders[b], 1)
		}
		for topic := range p.topics {
			require.InDelta(t, 36.0/float64(brokers+1), p.topics[topic][v.at[newcomer]], 3, "of each topic")
		}
		require.Equal(t, fmt.Sprintf("broker %d has 0 replicas, broker 1 has 84, and even is 63", newcomer), firstReason(p, brokers, 3))
	}
}

// firstReason is the first move's reason, for three brokers; the others have other numbers.
func firstReason(p *planner, brokers, only int) string {
	if brokers != only {
		return fmt.Sprintf("broker %d has 0 replicas, broker 1 has 84, and even is 63", brokers+1)
	}
	i := slices.IndexFunc(p.moves, func(m balancerMove) bool { return m.From == 1 })
	return p.moves[i].Reason
}

// A partition with two replicas in one rack gets one moved to a rack that has none.
func TestPlannerRacks(t *testing.T) {
	brokers := takersOf(1, 2, 3, 4)
	for i, rack := range []string{"a", "a", "b", "c"} {
		brokers[i].rack = rack
	}
	v := viewOf(brokers, map[string][][]BrokerID{"t": {{1, 2, 3}, {2, 1, 3}}})
	p := newPlanner(v, maxPlannedMoves)
	p.plan(true)
	for i := range v.partitions {
		require.Contains(t, v.partitions[i].replicas, BrokerID(3))
		require.Contains(t, v.partitions[i].replicas, BrokerID(4))
	}
	require.Equal(t, "two replicas are in rack a and none in rack c", p.moves[0].Reason)
}

// Preferred leaders are made even along chains, without copying anything.
func TestPlannerLeaders(t *testing.T) {
	// 1 leads all it shares with 2, 2 what it shares with 3: one must pass from 1 to 2 and another from 2 to 3.
	v := viewOf(takersOf(1, 2, 3), map[string][][]BrokerID{"t": {{1, 2}, {1, 2}, {1, 2}, {2, 3}, {2, 3}, {3, 1}}})
	p := newPlanner(v, maxPlannedMoves)
	p.evenLeaders()
	require.Equal(t, []int{2, 2, 2}, p.leaders)
	for _, m := range p.moves {
		require.Equal(t, [2]BrokerID{NoBroker, NoBroker}, [2]BrokerID{m.From, m.To})
	}
	require.Contains(t, p.moves[0].Reason, "is to lead 3 partitions")
}

// 8 brokers, one replica each, topics of 13 and 19 partitions: exactly 32 folders, 4 per broker, in whichever order and
// however many requests they are created.
func TestPlacementOfSmallTopicsIsEven(t *testing.T) {
	for _, sizes := range [][]int{{13, 19}, {19, 13}} {
		for turn := range 16 {
			f := newTestFSM(t)
			f.must(&initCluster{clusterID: "c", featureLevel: 1})
			for i := range 8 {
				f.must(broker(BrokerID(i+1), 1))
			}
			folders := make(map[BrokerID]int)
			for i, n := range sizes {
				p := newPlacement(f.image(), turn*(i+1))
				p.begin(nil)
				f.must(&createTopic{id: TopicID{byte(i + 1)}, name: fmt.Sprint("t", i), sets: p.spread(n, 1)})
			}
			for topic := range f.image().Topics() {
				for _, part := range topic.Partitions {
					folders[part.Replicas[0]]++
				}
			}
			require.Len(t, folders, 8)
			for id, n := range folders {
				require.Equal(t, 4, n, "folders of broker %d", id)
			}
			// And the balancer finds nothing to do.
			v := newBalancerView(f.image(), func(*Broker) bool { return false }, 0)
			require.False(t, v.uneven())
			pl := newPlanner(v, maxPlannedMoves)
			pl.plan(true)
			require.Empty(t, pl.moves)
		}
	}
}
