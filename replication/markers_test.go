package replication

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/metadata"
)

// transactions are the transactional ids of a cluster, changed as their coordinator does.
type transactions struct{ c *cluster }

// begin opens the transaction of an id with a producer id of its own, in all partitions of a topic, and writes one record of
// it into each.
func (x transactions) begin(id string, topic metadata.TopicID, partitions ...int32) {
	c := x.c
	c.t.Helper()
	by, epoch := x.coordinator(id)
	c.store.must(func(r *metadata.Replica) error {
		if r.Image().Transaction(id) == nil {
			pid, _, err := r.AllocateProducerIDs()
			if err != nil {
				return err
			}
			_, err = r.ChangeTransaction(by, epoch, metadata.TransactionChange{
				ID: id, State: metadata.TransactionEmpty, ProducerID: pid, LastProducerID: -1, LastProducerEpoch: -1, MarkerProducerID: -1, MarkerEpoch: -1,
				Timeout: time.Minute, Version: 1,
			})
			if err != nil {
				return err
			}
		}
		t := r.Image().Transaction(id)
		return r.AddToTransaction(by, epoch, metadata.TransactionAddition{
			ID: id, ProducerID: t.ProducerID, ProducerEpoch: t.ProducerEpoch, Version: 1, Time: 1,
			Partitions: []metadata.TopicPartitions{{TopicID: topic, Partitions: partitions}},
		})
	})
}

func (x transactions) coordinator(id string) (metadata.BrokerID, int64) {
	im := x.c.store.Image()
	by, _ := im.Coordinator(metadata.TransactionCoordinator, id)
	return by, im.Broker(by).Epoch
}

// write appends a record of the open transaction.
func (x transactions) write(id string, p *Partition, sequence int32) int64 {
	x.c.t.Helper()
	t := x.c.store.Image().Transaction(id)
	b := record.NewBuilder(record.CodecNone)
	b.ProducerID, b.ProducerEpoch, b.BaseSequence, b.Transactional = t.ProducerID, t.ProducerEpoch, sequence, true
	b.Add(1000, nil, fmt.Append(nil, id, sequence), nil)
	r := newResult()
	p.Append(AppendRequest{Records: b.Build(), Acks: -1, Timeout: 20 * time.Second, CurrentLeaderEpoch: -1, Waiter: r})
	res := r.wait(x.c.t)
	require.NoError(x.c.t, res.Err)
	return res.BaseOffset
}

// end decides the transaction; with bump as the second protocol does.
func (x transactions) end(id string, commit, bump bool) {
	x.c.t.Helper()
	by, epoch := x.coordinator(id)
	x.c.store.must(func(r *metadata.Replica) error {
		t := r.Image().Transaction(id)
		ch := metadata.TransactionChange{
			ID: id, Revision: t.Revision, State: metadata.TransactionPrepareAbort, ProducerID: t.ProducerID, ProducerEpoch: t.ProducerEpoch,
			LastProducerID: -1, LastProducerEpoch: -1, MarkerProducerID: t.ProducerID, MarkerEpoch: t.ProducerEpoch, Timeout: t.Timeout, Version: 1,
		}
		if commit {
			ch.State = metadata.TransactionPrepareCommit
		}
		if bump {
			ch.ProducerEpoch++
			ch.MarkerEpoch++
			ch.Version = 2
		}
		_, err := r.ChangeTransaction(by, epoch, ch)
		return err
	})
}

func (x transactions) state(id string) metadata.TransactionState {
	return x.c.store.Image().Transaction(id).State
}

// markersOf returns what markers of a producer are in a log: true is a commit.
func markersOf(t testing.TB, p *Partition, producerID int64) (commits []bool) {
	t.Helper()
	for offset := p.StartOffset(); offset < p.HighWatermark(); {
		res := p.Read(NewReadRequest(offset, 1<<20))
		require.NoError(t, res.Err)
		buf := make([]byte, res.Slice.Len())
		_, err := res.Slice.ReadAt(buf, 0)
		require.NoError(t, err)
		res.Slice.Release()
		for len(buf) > 0 {
			b, rest, err := record.Next(buf)
			require.NoError(t, err)
			if h := b.Header(); h.IsControl() && h.ProducerID == producerID {
				m, ok, err := record.ParseMarker(b)
				require.True(t, ok && err == nil)
				commits = append(commits, m.Commit)
			}
			buf, offset = rest, b.NextOffset()
		}
	}
	return commits
}

// P9: a decision that is committed is carried out by the leaders of its partitions, by what they see in the metadata. Each
// partition gets one marker, the transaction is complete when all have theirs, and nothing is left to do.
func TestMarkersFollowDecisions(t *testing.T) {
	for _, bump := range []bool{false, true} {
		t.Run(fmt.Sprintf("epoch+1=%v", bump), func(t *testing.T) {
			c := newCluster(t, 3, true)
			topic := c.create("orders", 6, nil)
			x := transactions{c}
			want := []bool{true, false, true}
			for i, commit := range want {
				x.begin("a", topic, 0, 1, 2, 4)
				for _, p := range []int{0, 1, 2, 4} {
					sequence := int32(i)
					if bump {
						sequence = 0
					}
					x.write("a", c.leader("orders", p), sequence)
				}
				x.end("a", commit, bump)
				eventually(t, "the transaction is complete", func() bool { return !x.state("a").Active() })
			}
			pid := c.store.Image().Transaction("a").ProducerID
			for p := range 6 {
				got := markersOf(t, c.leader("orders", p), pid)
				if p == 3 || p == 5 {
					require.Empty(t, got)
					continue
				}
				require.Equal(t, want, got, "partition %d", p)
				_, open := c.leader("orders", p).OldestTransaction()
				require.False(t, open)
			}
			for _, n := range c.nodes {
				eventually(t, "there is nothing left to do", func() bool { return markersIdle(n.m) })
			}
		})
	}
}

func markersIdle(m *Manager) bool {
	im := m.cfg.Store.Image()
	return im.ActiveTransactionCount() == 0
}

// P9, P12: markers are written by whoever leads: one that was elected after the decision, one that was started after it, and
// not by one whose partition is short of replicas, until it has them again.
func TestMarkersFollowLeaders(t *testing.T) {
	c := newCluster(t, 3, true)
	topic := c.create("orders", 3, map[string]string{"min.insync.replicas": "2"})
	x := transactions{c}
	x.begin("a", topic, 0, 1, 2)
	for p := range 3 {
		x.write("a", c.leader("orders", p), 0)
	}
	// Two of three brokers go: no partition has enough replicas, and that of the third, too, can't take a marker.
	c.nodes[0].stop()
	c.nodes[1].stop()
	c.nodes[0].fence(true)
	c.nodes[1].fence(true)
	x.end("a", true, false)
	require.Equal(t, metadata.TransactionPrepareCommit, x.state("a"))
	c.nodes[0].start()
	c.nodes[1].start()
	eventually(t, "the transaction is complete", func() bool { return x.state("a") == metadata.TransactionCompleteCommit })
	pid := c.store.Image().Transaction("a").ProducerID
	for p := range 3 {
		got := markersOf(t, c.leader("orders", p), pid)
		require.NotEmpty(t, got)
		require.NotContains(t, got, false)
	}
}

// P12: what lacks a marker only in a topic that is deleted lacks none.
func TestMarkersOfDeletedTopic(t *testing.T) {
	c := newCluster(t, 1, true)
	topic := c.create("orders", 1, map[string]string{"min.insync.replicas": "1"})
	other := c.create("gone", 1, nil)
	x := transactions{c}
	x.begin("a", topic, 0)
	x.begin("a", other, 0)
	x.write("a", c.leader("orders", 0), 0)
	c.store.must(func(r *metadata.Replica) error { return r.DeleteTopic(other) })
	x.end("a", false, true)
	eventually(t, "the transaction is complete", func() bool { return x.state("a") == metadata.TransactionCompleteAbort })
}

// P7: a marker that was queued for a transaction which is complete by the time that it comes to its place in the log would end
// the next one. It is asked there, and is not appended.
func TestMarkerLateIsRefused(t *testing.T) {
	c := newCluster(t, 1, true)
	topic := c.create("orders", 1, map[string]string{"min.insync.replicas": "1"})
	x := transactions{c}
	x.begin("a", topic, 0)
	l := c.leader("orders", 0)
	x.write("a", l, 0)
	x.end("a", true, false)
	decided := c.store.Image().Transaction("a")
	eventually(t, "the transaction is complete", func() bool { return !x.state("a").Active() })
	x.begin("a", topic, 0) // the same producer id and epoch
	x.write("a", l, 1)
	end := l.EndOffset()

	d := &decision{id: "a", number: decided.Number, producerID: decided.MarkerProducerID, epoch: decided.MarkerEpoch, commit: true}
	mw := &c.nodes[0].m.markers
	r := newResult()
	late := MarkerRequest{
		ProducerID: d.producerID, ProducerEpoch: d.epoch, Commit: true, CoordinatorEpoch: decided.CoordinatorEpoch, CurrentLeaderEpoch: -1, Timeout: -1,
		Waiter: r, MayAppend: func() error { return mw.wanted(d, topic, 0) },
	}
	l.AppendMarker(late)
	require.ErrorIs(t, r.wait(t).Err, errMarkerNotWanted)
	require.Equal(t, end, l.EndOffset())
	_, open := l.OldestTransaction()
	require.True(t, open)

	x.end("a", false, false)
	eventually(t, "the next one is complete, too", func() bool { return x.state("a") == metadata.TransactionCompleteAbort })
	require.Equal(t, []bool{true, false}, markersOf(t, l, d.producerID))
}

// A marker of somebody's own, with a coordinator epoch that no coordinator has had, does not keep the cluster's out (KIP-664).
func TestMarkerAfterForeignEpoch(t *testing.T) {
	c := newCluster(t, 1, true)
	topic := c.create("orders", 1, map[string]string{"min.insync.replicas": "1"})
	x := transactions{c}
	x.begin("a", topic, 0)
	l := c.leader("orders", 0)
	x.write("a", l, 0)
	pid := c.store.Image().Transaction("a").ProducerID
	r := newResult()
	l.AppendMarker(MarkerRequest{ProducerID: pid, CoordinatorEpoch: 1 << 20, CurrentLeaderEpoch: -1, Timeout: -1, Waiter: r})
	require.NoError(t, r.wait(t).Err)
	x.write("a", l, 1)
	x.end("a", true, false)
	eventually(t, "the transaction is complete", func() bool { return x.state("a") == metadata.TransactionCompleteCommit })
	require.Equal(t, []bool{false, true}, markersOf(t, l, pid))
	var states []log.ProducerState = l.Producers()
	require.Equal(t, int32(1<<20), states[0].CoordinatorEpoch)
}

// TestMarkerCore plays a writer's core against decisions that come and go, leaders that move, and appends and reports that
// fail, succeed and are answered late, and asserts: one marker of a decision and a partition on its way at a time, none
// appended again that is in the log, all reported in the end, nothing remembered then.
func TestMarkerCore(t *testing.T) {
	for seed := range uint64(100) {
		playMarkerCore(t, rand.New(rand.NewPCG(seed, 7)), seed)
	}
}

func playMarkerCore(t *testing.T, rng *rand.Rand, seed uint64) {
	const partitions = 4
	var (
		c         markerCore
		now       Instant
		leads     [partitions]bool
		prepared  = map[uint64]*metadata.Transaction{}
		next      uint64
		appending []*marker
		reports   [][]*marker
		written   = map[markerKey]bool{}
		busy      = map[markerKey]bool{}
	)
	led := func(_ metadata.TopicID, p int32) (int32, bool) { return 1, leads[p] }
	key := func(m *marker) markerKey { return markerKey{m.of.number, m.partition} }
	sync := func() {
		for n := uint64(1); n <= next; n++ {
			if tx := prepared[n]; tx != nil {
				c.decided(now, tx, led)
			} else {
				c.over(n)
			}
		}
	}
	due := func() {
		toAppend, toReport := c.due(now)
		for _, m := range toAppend {
			require.False(t, busy[key(m)], "seed %d: two markers of one transaction on their way into one log", seed)
			require.False(t, written[key(m)], "seed %d: a marker is appended again", seed)
			busy[key(m)] = true
			appending = append(appending, m)
		}
		if len(toReport) > 0 {
			reports = append(reports, toReport)
		}
	}
	quiet := false
	step := func(op int) {
		switch op {
		case 0:
			next++
			tx := &metadata.Transaction{ID: "a", Number: next, State: metadata.TransactionPrepareCommit, MarkerProducerID: 1}
			list := metadata.TopicPartitions{TopicID: metadata.TopicID{1}}
			for p := range int32(partitions) {
				if rng.IntN(2) == 0 {
					list.Partitions = append(list.Partitions, p)
				}
			}
			if len(list.Partitions) > 0 && !quiet {
				tx.Partitions = []metadata.TopicPartitions{list}
				prepared[next] = tx
			}
			sync()
		case 1:
			leads[rng.IntN(partitions)] = rng.IntN(2) == 0 || quiet
			sync()
		case 2:
			if len(appending) > 0 {
				i := rng.IntN(len(appending))
				m := appending[i]
				appending = slices.Delete(appending, i, i+1)
				busy[key(m)] = false
				ok := quiet || rng.IntN(2) == 0
				if ok && m.state == markerAppending {
					written[key(m)] = true
				}
				c.appended(now, m, ok)
			}
		case 3:
			if len(reports) > 0 {
				i := rng.IntN(len(reports))
				ms := reports[i]
				reports = slices.Delete(reports, i, i+1)
				ok := quiet || rng.IntN(2) == 0
				for _, m := range ms {
					tx := prepared[m.of.number]
					if tx == nil || !ok && rng.IntN(2) == 0 {
						continue
					}
					left := slices.DeleteFunc(slices.Clone(tx.Partitions[0].Partitions), func(p int32) bool { return p == m.partition })
					prepared[m.of.number] = nil
					if len(left) > 0 {
						copied := *tx
						copied.Partitions = []metadata.TopicPartitions{{TopicID: metadata.TopicID{1}, Partitions: left}}
						prepared[m.of.number] = &copied
					}
				}
				c.reported(now, ms, ok)
				if rng.IntN(2) == 0 || quiet {
					sync()
				}
			}
		case 4:
			now += Instant(rng.IntN(int(markerRetryMax)))
		}
		due()
	}
	for range 300 {
		step(rng.IntN(5))
	}
	quiet = true
	for p := range leads {
		leads[p] = true
	}
	for range 400 {
		sync()
		for op := 2; op <= 4; op++ {
			step(op)
		}
	}
	sync()
	for n, tx := range prepared {
		require.Nil(t, tx, "seed %d: transaction %d lacks markers for ever", seed, n)
	}
	require.True(t, c.idle(), "seed %d: something is remembered", seed)
	require.Empty(t, c.waiting)
	require.Equal(t, Never, c.deadline())
}

type markerKey struct {
	number    uint64
	partition int32
}

// The core of the writer is as pure as the others.
func TestMarkerCoreIsPure(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "marker_core.go", nil, 0)
	require.NoError(t, err)
	for _, imp := range f.Imports {
		path, _ := strconv.Unquote(imp.Path.Value)
		require.Contains(t, []string{"cmp", "slices", "github.com/millrace/millrace/metadata"}, path)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n.(type) {
		case *ast.GoStmt, *ast.SendStmt, *ast.SelectStmt, *ast.ChanType, *ast.DeferStmt, *ast.MapType:
			t.Errorf("%T", n)
		}
		return true
	})
}
