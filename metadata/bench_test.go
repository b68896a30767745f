package metadata

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// shapes are clusters of 100 000 partitions with three replicas each.
var shapes = []struct{ topics, partitions int }{{10_000, 10}, {1000, 100}, {100, 1000}}

// One ISR change at 100 000 partitions: decode, compare-and-set, copy, publish.
func BenchmarkOneChange(b *testing.B) {
	for _, s := range shapes {
		b.Run(fmt.Sprintf("%dx%d", s.topics, s.partitions), func(b *testing.B) {
			f := bigFSM(b, s.topics, s.partitions, 3)
			f.published = func(*state, uint64) {}
			t := f.st.topic(fmt.Sprintf("topic-%08d", s.topics/2))
			p := t.Partitions[0]
			ch := PartitionChange{TopicID: t.ID, PartitionEpoch: p.PartitionEpoch, ISR: []ISRMember{{p.Leader, -1}}}
			full := []ISRMember{{p.Replicas[0], -1}, {p.Replicas[1], -1}, {p.Replicas[2], -1}}
			c := &alterPartitions{leader: p.Leader, leaderBrokerEpoch: f.st.broker(p.Leader).Epoch, changes: []PartitionChange{ch}}
			b.ReportAllocs()
			for b.Loop() {
				v, err := f.do(c)
				if err != nil || v.([]alteredPartition)[0].err != nil {
					b.Fatal(err, v)
				}
				c.changes[0].PartitionEpoch++
				c.changes[0].ISR, full = full, c.changes[0].ISR
			}
		})
	}
}

// The fail-over plan at 100 000 partitions on three brokers: one of them is fenced, which leads a third and is in the ISR of
// all.
func BenchmarkFailOver(b *testing.B) {
	for _, s := range shapes {
		b.Run(fmt.Sprintf("%dx%d", s.topics, s.partitions), func(b *testing.B) {
			f := bigFSM(b, s.topics, s.partitions, 3)
			f.published = func(*state, uint64) {}
			before := f.st
			c := &alterBroker{broker: 1, epoch: f.st.broker(1).Epoch, fenced: pb.Switch_SWITCH_ON}
			var out failover
			b.ReportAllocs()
			for b.Loop() {
				f.st = before
				v, err := f.do(c)
				if err != nil {
					b.Fatal(err)
				}
				out = v.(failover)
			}
			b.ReportMetric(float64(out.Moved), "leaders")
			b.ReportMetric(float64(out.Shrunk), "ISRs")
		})
	}
}

// The ISRs of 10 000 partitions of one leader change, among 100 000: encoding, entries, Apply.
func BenchmarkAlterPartitions(b *testing.B) {
	f := bigFSM(b, 100, 1000, 3)
	f.published = func(*state, uint64) {}
	before, lead := f.st, BrokerID(1)
	var changes []PartitionChange
	for t := range f.image().Topics() {
		for i, p := range t.Partitions {
			if p.Leader == lead && len(changes) < 10_000 {
				changes = append(changes, PartitionChange{TopicID: t.ID, Partition: int32(i), ISR: []ISRMember{{lead, 1}, {p.Replicas[1], -1}}})
			}
		}
	}
	b.ReportAllocs()
	size, commands := 0, 0
	for b.Loop() {
		f.st, size, commands = before, 0, 0
		for chunk := range slices.Chunk(changes, changesPerCommand) {
			e := f.entry(&alterPartitions{leader: lead, leaderBrokerEpoch: f.st.broker(lead).Epoch, changes: chunk})
			size += len(e.Data)
			commands++
			for _, altered := range f.Apply(e).([]result)[0].value.([]alteredPartition) {
				if altered.err != nil {
					b.Fatal(altered.err)
				}
			}
		}
	}
	b.ReportMetric(float64(len(changes)), "partitions")
	b.ReportMetric(float64(size), "entry-bytes")
	b.ReportMetric(float64(commands), "commands")
}

// What an Image of 100 000 partitions keeps in memory, per partition.
func BenchmarkImageMemory(b *testing.B) {
	for _, s := range shapes {
		b.Run(fmt.Sprintf("%dx%d", s.topics, s.partitions), func(b *testing.B) {
			for b.Loop() {
				before := heapBytes()
				f := bigFSM(b, s.topics, s.partitions, 3)
				b.ReportMetric(float64(heapBytes()-before)/float64(s.topics*s.partitions), "bytes/partition")
				runtime.KeepAlive(f)
			}
		})
	}
}

func heapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Writing and reading a snapshot of 100 000 partitions.
func BenchmarkSnapshot(b *testing.B) {
	for _, s := range shapes {
		f := bigFSM(b, s.topics, s.partitions, 3)
		encoded := snapshotBytes(b, f.st, f.index)
		b.Run(fmt.Sprintf("write/%dx%d", s.topics, s.partitions), func(b *testing.B) {
			b.SetBytes(int64(len(encoded)))
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, writeSnapshot(io.Discard, f.st, f.index))
			}
		})
		b.Run(fmt.Sprintf("restore/%dx%d", s.topics, s.partitions), func(b *testing.B) {
			b.SetBytes(int64(len(encoded)))
			b.ReportAllocs()
			for b.Loop() {
				_, _, err := readSnapshot(bytes.NewReader(encoded))
				require.NoError(b, err)
			}
		})
	}
}

// The difference of two Images of 100 000 partitions in which one topic differs.
func BenchmarkChangedTopics(b *testing.B) {
	f := bigFSM(b, 10_000, 10, 3)
	before := f.image()
	f.must(&deleteTopic{id: TopicID{0: 1, 15: 1}})
	after := f.image()
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		for range after.ChangedTopics(before) {
			n++
		}
		if n != 1 {
			b.Fatal(n)
		}
	}
}

// A broker with 100 000 partitions, of which it leads a third, registers anew.
func BenchmarkRegister(b *testing.B) {
	f := bigFSM(b, 1000, 100, 3)
	f.published = func(*state, uint64) {}
	i := byte(2)
	for b.Loop() {
		if _, err := f.do(f.again(broker(1, i))); err != nil {
			b.Fatal(err)
		}
		if i++; i == 0 {
			i = 1
		}
	}
}

// Commands through a real store, on disk, by clients that each wait for their answer. The commands are compare-and-sets
// that fail: what is measured is the way there and back, not what Apply does.
func BenchmarkPropose(b *testing.B) {
	for _, clients := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			s := openStore(b, testConfig(b, b.TempDir()))
			term := s.lead.Load().term
			work := make(chan struct{}, clients)
			var wg sync.WaitGroup
			for range clients {
				wg.Go(func() {
					for range work {
						_, err := s.proposeIn(b.Context(), term, &allocateProducerIDs{expectedNext: 1, count: 1})
						if !is(err, ErrStale) {
							b.Error(err)
						}
					}
				})
			}
			b.ResetTimer()
			for range b.N {
				work <- struct{}{}
			}
			close(work)
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commands/s")
		})
	}
}

// Deciding where 10 000 partitions with three replicas go, on 12 brokers.
func BenchmarkPlacement(b *testing.B) {
	st := newState()
	d := newDraft(st)
	for id := BrokerID(1); id <= 12; id++ {
		d.putBroker(&Broker{ID: id, Directories: []DirectoryID{{byte(id)}}, Rack: string(rune('a' + id%3))})
	}
	im := &Image{st: d.publish()}
	for b.Loop() {
		p := newPlacement(im, 0)
		p.begin(nil)
		p.spread(10_000, 3)
	}
}
