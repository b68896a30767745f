package metadata

import (
	"fmt"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type topicChange struct{ old, new *Topic }

func changes(before, after *Image) map[string][]topicChange {
	out := map[string][]topicChange{}
	for old, new := range after.ChangedTopics(before) {
		name := ""
		if old != nil {
			name = old.Name
		} else {
			name = new.Name
		}
		out[name] = append(out[name], topicChange{old, new})
	}
	return out
}

// ChangedTopics names exactly what differs, and takes a topic that was deleted and created anew for two.
func TestChangedTopics(t *testing.T) {
	f := threeBrokers(t)
	f.must(topicCommand(2, "same", on(1)))
	f.must(topicCommand(3, "again", on(1)))
	f.must(topicCommand(4, "gone", on(1)))
	before := f.image()
	require.Empty(t, changes(before, before))
	f.must(&deleteTopic{id: TopicID{3}})
	f.must(&deleteTopic{id: TopicID{4}})
	f.must(topicCommand(5, "again", on(2)))
	f.must(topicCommand(6, "new", on(2)))
	f.must(f.again(broker(2, 2))) // leads orders-1 among others
	after := f.image()
	require.Equal(t, map[string][]topicChange{
		"again":  {{before.Topic("again"), nil}, {nil, after.Topic("again")}},
		"gone":   {{before.Topic("gone"), nil}},
		"new":    {{nil, after.Topic("new")}},
		"orders": {{before.Topic("orders"), after.Topic("orders")}},
	}, changes(before, after))
	require.Len(t, changes(nil, after), after.TopicCount())
	for range after.ChangedTopics(nil) {
		break
	}
	for old, new := range after.ChangedTopics(before) {
		if old != nil && old.Name == "again" && new == nil {
			break // between the two halves
		}
	}
	// Backwards is exact too: a watcher may hold any two Images.
	require.Equal(t, []topicChange{{nil, before.Topic("gone")}}, changes(after, before)["gone"])
}

// The difference of any two versions says what a comparison of everything says.
func TestChangedTopicsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newDraft(newState())
		var images []*Image
		for i := range rapid.IntRange(1, 60).Draw(t, "steps") {
			name := fmt.Sprintf("t%d", rapid.IntRange(0, 40).Draw(t, "topic"))
			old := d.st.topic(name)
			switch {
			case old == nil:
				d.putTopic(&Topic{Name: name, ID: TopicID{byte(i + 1)}, Partitions: []*Partition{{}}}, true)
			case rapid.Bool().Draw(t, "delete"):
				d.removeTopic(old, tombstone{})
			default:
				d.ownTopic(name).Partitions[0].PartitionEpoch++
			}
			if rapid.Bool().Draw(t, "publish") {
				st := d.publish()
				images = append(images, &Image{st: st})
				d = newDraft(st)
			}
		}
		images = append(images, &Image{st: d.publish()})
		a := images[rapid.IntRange(0, len(images)-1).Draw(t, "a")]
		b := images[rapid.IntRange(0, len(images)-1).Draw(t, "b")]
		want := map[string][]topicChange{}
		for old := range a.Topics() {
			switch now := b.Topic(old.Name); {
			case now == nil:
				want[old.Name] = []topicChange{{old, nil}}
			case now.ID != old.ID:
				want[old.Name] = []topicChange{{old, nil}, {nil, now}}
			case now != old:
				want[old.Name] = []topicChange{{old, now}}
			}
		}
		for now := range b.Topics() {
			if a.Topic(now.Name) == nil {
				want[now.Name] = []topicChange{{nil, now}}
			}
		}
		require.Equal(t, want, changes(a, b))
	})
}

// A change of one topic costs a bounded number of nodes and no copy of any other topic, whatever the size of the cluster.
func TestOneChangeCopiesLittle(t *testing.T) {
	for _, topics := range []int{100, 5000} {
		f := bigFSM(t, topics, 4, 3)
		before := f.image()
		id := before.Topic("topic-00000050").ID
		f.must(&alterPartition{leader: f.st.topicByID(id).Partitions[0].Leader, leaderBrokerEpoch: int64(f.st.topicByID(id).Partitions[0].Leader),
			topic: id, isr: []ISRMember{{f.st.topicByID(id).Partitions[0].Leader, -1}}})
		after := f.image()
		require.LessOrEqual(t, newNodes(before.st.topics, after.st.topics), 4)
		require.Zero(t, newNodes(before.st.topicIDs, after.st.topicIDs))
		changed := 0
		for range after.ChangedTopics(before) {
			changed++
		}
		require.Equal(t, 1, changed)
	}
}

// bigFSM is an FSM with many topics, on three brokers.
func bigFSM(t testing.TB, topics, partitions, factor int) *testFSM {
	f := newTestFSM(t)
	f.must(&initCluster{clusterID: "millrace-big", featureLevel: 1})
	for id := BrokerID(1); id <= 3; id++ {
		f.must(broker(id, 1))
	}
	f.images = nil
	for i := range topics {
		c := &createTopic{id: TopicID{0: byte(i), 1: byte(i >> 8), 2: byte(i >> 16), 15: 1}, name: fmt.Sprintf("topic-%08d", i)}
		for p := range partitions {
			var ids []BrokerID
			for r := range factor {
				ids = append(ids, BrokerID((i+p+r)%3+1))
			}
			c.sets = append(c.sets, on(ids...))
		}
		f.must(c)
		f.images = nil
	}
	return f
}

// A watcher's signals coalesce, begin with one, and end with Close.
func TestWatch(t *testing.T) {
	s := cluster(t, 1)
	w, idle := s.Watch(), s.Watch()
	defer idle.Close()
	<-w.C()
	select {
	case <-w.C():
		t.Fatal("a signal without an Image")
	default:
	}
	seen := s.Image()
	for i := range 5 {
		createTopics(t, s, newTopic(fmt.Sprintf("t%d", i), 1))
	}
	<-w.C()
	require.Len(t, changes(seen, s.Image()), 5, "one signal for five Images")
	select {
	case <-w.C():
		t.Fatal("signals don't coalesce")
	default:
	}
	w.Close()
	w.Close()
	createTopics(t, s, newTopic("late", 1))
	require.Empty(t, w.c)
	require.Len(t, idle.c, 1)
}

func TestIDs(t *testing.T) {
	id := TopicID{0xff, 1, 2, 3}
	require.Len(t, id.String(), 22)
	back, err := ParseTopicID(id.String())
	require.NoError(t, err)
	require.Equal(t, id, back)
	for _, bad := range []string{"", "a", "!!!!!!!!!!!!!!!!!!!!!!", id.String() + "AA"} {
		_, err := ParseTopicID(bad)
		require.Error(t, err, bad)
	}
	require.Equal(t, "orders-3", TopicPartition{"orders", 3}.String())
	require.Equal(t, BrokerID(12), brokerOf(serverID(12, DirectoryID{5})))
	for _, bad := range []raft.ServerID{"", "x-1", "-1", "99999999999-1"} {
		require.Equal(t, NoBroker, brokerOf(bad), "%q", bad)
	}
}
