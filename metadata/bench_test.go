package metadata

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
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
			c := &alterPartition{leader: t.Partitions[0].Leader, topic: t.ID}
			c.leaderBrokerEpoch = f.st.broker(c.leader).Epoch
			for _, id := range t.Partitions[0].Replicas {
				c.isr = append(c.isr, ISRMember{id, -1})
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := f.do(c); err != nil {
					b.Fatal(err)
				}
				c.partitionEpoch++
			}
		})
	}
}

// What an Image of 100 000 partitions keeps in memory, per partition.
func BenchmarkImageMemory(b *testing.B) {
	for _, s := range shapes {
		b.Run(fmt.Sprintf("%dx%d", s.topics, s.partitions), func(b *testing.B) {
			for b.Loop() {
				before := heap()
				f := bigFSM(b, s.topics, s.partitions, 3)
				b.ReportMetric(float64(heap()-before)/float64(s.topics*s.partitions), "bytes/partition")
				runtime.KeepAlive(f)
			}
		})
	}
}

func heap() int64 {
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
