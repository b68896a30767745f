package metadata

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// transact1 carries one transaction out, as brokers do: each of three leaders adds its partition, the coordinator ends it by
// pair, and the leaders report their markers. It returns how long the end took to be answered.
func (c *benchCluster) transact1(b *testing.B, id string, pid int64, epoch int16, client int) (end time.Duration, err error) {
	at, _ := c.stores[0].Image().Coordinator(TransactionCoordinator, id)
	coordinator := c.stores[at-1]
	answers := make(chan error, 3)
	partition := func(i int) []TopicPartitions {
		return []TopicPartitions{{TopicID: c.topic, Partitions: []int32{int32(client*3+i) % 1000}}}
	}
	for i, leader := range c.stores {
		leader.AddToTransaction(TransactionAddition{ID: id, ProducerID: pid, ProducerEpoch: epoch, Partitions: partition(i), Version: 2, Time: 1}, func(err error) { answers <- err })
	}
	for range c.stores {
		err = errors.Join(err, <-answers)
	}
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	coordinator.ChangeTransaction(TransactionChange{ID: id, Revision: AnyRevision, State: TransactionPrepareCommit, ProducerID: pid, ProducerEpoch: epoch + 1, LastProducerID: pid, LastProducerEpoch: epoch,
		MarkerProducerID: pid, MarkerEpoch: epoch + 1, Version: 2, UpdatedAt: 2}, func(_ uint64, err error) { answers <- err })
	if err := <-answers; err != nil {
		return 0, err
	}
	end = time.Since(begun)
	number := coordinator.Image().Transaction(id).Number
	for i, leader := range c.stores {
		leader.MarkersWritten([]WrittenMarker{{ProducerID: pid, Epoch: epoch + 1, Number: number, Partitions: partition(i)}}, func(err error) { answers <- err })
	}
	for range c.stores {
		err = errors.Join(err, <-answers)
	}
	return end, err
}

// Transactions of three partitions, three additions, an end and three reports of markers each, through three stores on one
// machine: what the metadata alone allows.
func BenchmarkTransactions(b *testing.B) {
	for _, clients := range []int{1, 16, 200} {
		b.Run(fmt.Sprintf("ids=%d", clients), func(b *testing.B) {
			c := newBenchCluster(b)
			lead := c.controller()
			first, _, err := lead.AllocateProducerIDs(b.Context())
			require.NoError(b, err)
			lead.waitVersion(b.Context(), lead.Image().Version())
			for _, s := range c.stores {
				s.waitVersion(b.Context(), lead.Image().Version())
			}
			ready := make(chan error, clients)
			for i := range clients {
				id := fmt.Sprintf("tx-%d", i)
				at, _ := c.stores[0].Image().Coordinator(TransactionCoordinator, id)
				c.stores[at-1].ChangeTransaction(TransactionChange{ID: id, ProducerID: first + int64(i), LastProducerID: -1, LastProducerEpoch: -1, Version: 2}, func(_ uint64, err error) { ready <- err })
			}
			for range clients {
				require.NoError(b, <-ready)
			}
			before := lead.raft.LastIndex()
			var n atomic.Int64
			var mu sync.Mutex
			var wg sync.WaitGroup
			var all, ends []time.Duration
			cpu := processCPU()
			b.ResetTimer()
			for client := range clients {
				wg.Go(func() {
					var own, ownEnds []time.Duration
					for epoch := int16(0); n.Add(1) <= int64(b.N); epoch++ {
						begun := time.Now()
						end, err := c.transact1(b, fmt.Sprintf("tx-%d", client), first+int64(client), epoch, client)
						if err != nil {
							b.Error(err)
							return
						}
						own, ownEnds = append(own, time.Since(begun)), append(ownEnds, end)
					}
					mu.Lock()
					all, ends = append(all, own...), append(ends, ownEnds...)
					mu.Unlock()
				})
			}
			wg.Wait()
			b.StopTimer()
			slices.Sort(all)
			slices.Sort(ends)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tx/s")
			b.ReportMetric(float64(lead.raft.LastIndex()-before)/b.Elapsed().Seconds(), "entries/s")
			b.ReportMetric(percentile(all, 0.5), "p50-ms")
			b.ReportMetric(percentile(all, 0.99), "p99-ms")
			b.ReportMetric(percentile(ends, 0.5), "end-p50-ms")
			b.ReportMetric(percentile(ends, 0.99), "end-p99-ms")
			b.ReportMetric(float64(processCPU()-cpu)/float64(b.Elapsed()), "cores")
		})
	}
}

// D11: what it costs Apply that the offsets of a transaction and its end are one command.
func BenchmarkApplyPrepareWithOffsets(b *testing.B) {
	for _, n := range []int{1, 10, 100, 1000, 10_000} {
		b.Run(fmt.Sprintf("offsets=%d", n), func(b *testing.B) {
			f := transactionsFSM(b)
			sets := slices.Repeat([]replicaSet{on(1, 2, 3)}, n)
			f.must(topicCommand(2, "wide", sets...))
			x := f.ongoing("x", 7, "g")
			o := offsetsOf(x, "g", 1)
			o.Offsets = nil
			for p := range n {
				o.Offsets = append(o.Offsets, OffsetEntry{TopicID{2}, int32(p), 5, -1, ""})
			}
			require.NoError(b, f.step("x", o).err)
			first := ends(x, TransactionPrepareCommit)
			end := f.entry(f.steps("x", &first))
			inner := *f.fsm
			for b.Loop() {
				fork := inner // a state never changes: each round begins where the first did
				fork.published = func(*state, uint64) {}
				results := fork.Apply(end).([]result)
				if results[0].err != nil || results[0].value.([]stepOutcome)[0].err != nil {
					b.Fatal(results)
				}
				if fork.st.offsetCount != n {
					b.Fatal(fork.st.offsetCount)
				}
			}
		})
	}
}

// Apply of the steps of one transaction: three additions, the end, three reports.
func BenchmarkApplyTransaction(b *testing.B) {
	f := transactionsFSM(b)
	f.must(topicCommand(2, "wide", slices.Repeat([]replicaSet{on(1, 2, 3)}, 1000)...))
	f.must(&allocateProducerIDs{expectedNext: 1000, count: 100_000})
	fillTransactions(f, 100_000)
	f.images = nil
	f.fsm.published = func(*state, uint64) {}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		id, pid := fmt.Sprintf("app-%08d", i%100_000), int64(i%100_000)
		x := f.st.transaction(id)
		where := func(k int) []TopicPartitions {
			return []TopicPartitions{{TopicID: TopicID{2}, Partitions: []int32{int32(i+k) % 1000}}}
		}
		for k := range 3 {
			f.step(id, &TransactionAddition{ID: id, ProducerID: pid, ProducerEpoch: x.ProducerEpoch, Partitions: where(k), Version: 2})
		}
		x = f.st.transaction(id)
		c := ends2(x, TransactionPrepareCommit)
		f.step(id, &c)
		for k := range 3 {
			f.step(id, writtenMarkers{{ProducerID: pid, Epoch: c.MarkerEpoch, Number: x.Number, Partitions: where(k)}})
		}
		if f.st.transaction(id).State != TransactionCompleteCommit {
			b.Fatal(f.st.transaction(id))
		}
		i++
	}
}

func fillTransactions(f *testFSM, n int) {
	d := newDraft(f.st)
	for i := range n {
		d.putTransaction(&Transaction{ID: fmt.Sprintf("app-%08d", i), ProducerID: int64(i), LastProducerID: -1, LastProducerEpoch: -1, MarkerProducerID: -1, MarkerEpoch: -1,
			Timeout: time.Minute, Version: 2, UpdatedAt: 1, StartedAt: 1, State: TransactionCompleteCommit})
	}
	f.fsm.st = d.publish()
}

// A hundred thousand idle transactional ids: memory, and a snapshot.
func BenchmarkIdleTransactions(b *testing.B) {
	const n = 100_000
	for b.Loop() {
		f := transactionsFSM(b)
		heap := func() uint64 {
			runtime.GC()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		before := heap()
		fillTransactions(f, n)
		b.ReportMetric(float64(heap()-before)/n, "B/id")
		begun := time.Now()
		encoded := snapshotBytes(b, f.st, 1)
		b.ReportMetric(float64(time.Since(begun).Milliseconds()), "write-ms")
		b.ReportMetric(float64(len(encoded))/n, "snapshot-B/id")
		begun = time.Now()
		st, _, err := readSnapshot(bytes.NewReader(encoded))
		require.NoError(b, err)
		b.ReportMetric(float64(time.Since(begun).Milliseconds()), "read-ms")
		runtime.KeepAlive(st)
		runtime.KeepAlive(f)
	}
}
