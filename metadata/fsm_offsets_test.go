package metadata

import (
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Offsets are a map from partition to offset, in order, whatever is set and deleted; and a published version stays what it was
// while later ones are made (M3).
func TestGroupOffsetsAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type version struct {
			of   *groupOffsets
			want map[TopicIDPartition]CommittedOffset
		}
		d := newDraft(newState())
		d.createGroup(&Group{Name: "g"})
		want := map[TopicIDPartition]CommittedOffset{}
		var published []version
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			tp := TopicIDPartition{TopicID{byte(rapid.IntRange(1, 3).Draw(t, "topic"))}, rapid.Int32Range(0, 80).Draw(t, "partition")}
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				st := d.publish()
				if of, ok := st.offsets.get("g"); ok {
					published = append(published, version{of, maps.Clone(want)})
				}
				d = newDraft(st)
			case 1, 2, 3:
				d.dropOffsets("g", []TopicIDPartition{tp})
				delete(want, tp)
			default:
				o := CommittedOffset{Offset: rapid.Int64Range(0, 1000).Draw(t, "offset"), LeaderEpoch: rapid.Int32Range(-1, 5).Draw(t, "epoch"), CommittedAt: 7}
				if rapid.Bool().Draw(t, "metadata") {
					o.Metadata = "m"
				}
				if rapid.Bool().Draw(t, "expires") {
					o.ExpiresAt = 9
				}
				d.putOffset(d.ownOffsets("g"), tp, o)
				want[tp] = o
			}
			require.Equal(t, len(want), d.st.offsetCount)
		}
		check := func(of *groupOffsets, want map[TopicIDPartition]CommittedOffset) {
			checkOffsets(t, of)
			require.Equal(t, want, offsetMap(of))
			var last TopicIDPartition
			for tp, o := range of.all() {
				require.Negative(t, compareTopicIDPartitions(last, tp))
				last = tp
				got, ok := of.get(tp)
				require.True(t, ok)
				require.Equal(t, o, got)
			}
			_, ok := of.get(TopicIDPartition{TopicID{1}, 81})
			require.False(t, ok)
		}
		if of, ok := d.st.offsets.get("g"); ok {
			check(of, want)
		} else {
			require.Empty(t, want)
		}
		for _, v := range published {
			check(v.of, v.want)
		}
	})
}

// What is kept of each of a million offsets has no pointer that the garbage collector would follow, and is small.
func TestStoredOffsetsAreSmall(t *testing.T) {
	typ := reflect.TypeFor[storedOffset]()
	require.LessOrEqual(t, typ.Size(), uintptr(24))
	for i := range typ.NumField() {
		switch typ.Field(i).Type.Kind() {
		case reflect.Int64, reflect.Int32, reflect.Bool:
		default:
			t.Errorf("field %s may point to something", typ.Field(i).Name)
		}
	}
	// In the order of a snapshot, leaves are full: 28 bytes for each offset, and little for the nodes above them.
	const n = 100_000
	topic := bigFSM(t, 1, 1, 1).st.topic("topic-00000000")
	before := heapBytes()
	d := newDraft(newState())
	of := d.ownOffsets("g")
	for p := range int32(n) {
		d.putOffset(of, TopicIDPartition{topic.ID, p}, CommittedOffset{Offset: 1 << 40, LeaderEpoch: 5, CommittedAt: 1 << 40})
	}
	st := d.publish()
	require.Less(t, float64(heapBytes()-before)/n, 45.0)
	runtime.KeepAlive(st)
}

// What a commit copies is a path in trees: a hundred times as many offsets make it longer by a node or two, no more (D3).
func TestCommitCopiesLittle(t *testing.T) {
	perCommit := func(groups int) float64 {
		f := bigFSM(t, 1, 100, 3)
		f.published = func(*state, uint64) {}
		topic := f.st.topic("topic-00000000")
		f.st = fillOffsets(f.st, topic, groups, 100)
		var batches []*commitOffsets
		for i := range 100 {
			name := fmt.Sprintf("consumer-group-%06d", i*7919%groups)
			c := f.commits(OffsetCommit{Group: name, Generation: -1, Time: 5, Offsets: []OffsetEntry{{topic.ID, int32(i), 77, 5, ""}}})
			batches = append(batches, c)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for _, c := range batches {
			d := newDraft(f.st)
			out, err := c.apply(d, position{})
			if err != nil || out.([]commitOutcome)[0].err != nil {
				t.Fatal(err, out)
			}
			f.st = d.publish()
		}
		runtime.ReadMemStats(&after)
		return float64(after.TotalAlloc-before.TotalAlloc) / float64(len(batches))
	}
	few, many := perCommit(10), perCommit(1000)
	t.Logf("%.0f bytes with 1000 offsets, %.0f with 100,000", few, many)
	require.Less(t, many, 3*few)
}
