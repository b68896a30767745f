package replication

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log/vfs"
	"github.com/millrace/millrace/metadata"
)

// powerRun is a cluster under load whose brokers lose power, are cut off and come back.
type powerRun struct {
	t       *testing.T
	c       *cluster
	rng     *rand.Rand
	flush   bool
	stop    chan struct{}
	workers sync.WaitGroup
	// concluded is what readers of committed records were shown.
	concluded *conclusions
	mu        struct {
		sync.Mutex
		acked   []map[int64]string // by partition and offset
		n       int
		enough  int
		reached chan struct{}
	}
}

const powerPartitions = 3

// TestPowerCuts: whatever a producer was told with acks=all is there after power cuts of single brokers and of all at
// once, zombies that were cut off with the leadership, and restarts in between: at its offset (I1, I2), and the replicas
// are byte for byte equal (I5) and know the same of transactions (P2, P12). What readers of committed records conclude
// meanwhile, on any replica, stays so (I3, P13). Without millrace.flush.ack the promise holds while one in-sync replica lives, so power
// goes one broker at a time there (I12, R13, R14).
func TestPowerCuts(t *testing.T) {
	for _, flush := range []bool{true, false} {
		for seed := range uint64(6) {
			t.Run(fmt.Sprintf("flush=%v,seed=%d", flush, seed), func(t *testing.T) {
				t.Parallel()
				playPowerCuts(t, seed, flush)
			})
		}
	}
}

func playPowerCuts(t *testing.T, seed uint64, flush bool) {
	r := &powerRun{t: t, rng: rand.New(rand.NewPCG(seed, 7)), flush: flush, stop: make(chan struct{})}
	r.mu.acked = make([]map[int64]string, powerPartitions)
	for i := range r.mu.acked {
		r.mu.acked[i] = map[int64]string{}
	}
	r.c = newCluster(t, 3, seed%2 == 0, func(cfg *Config) {
		cfg.ReplicaLagMax, cfg.FetchWait, cfg.ProposalTimeout = 60*time.Millisecond, 10*time.Millisecond, 50*time.Millisecond
		cfg.FetchRetryMin, cfg.FetchRetryMax = time.Millisecond, 20*time.Millisecond
	})
	r.c.create("orders", powerPartitions, map[string]string{"min.insync.replicas": "2", "millrace.flush.ack": fmt.Sprint(flush)})
	r.concluded = newConclusions()
	for g := range 4 {
		r.workers.Go(func() { r.produce(g) })
	}
	r.workers.Go(func() { r.readCommitted(rand.New(rand.NewPCG(seed, 8))) })
	for range 5 {
		r.await(10 + r.rng.IntN(40))
		n := r.c.nodes[r.rng.IntN(3)]
		switch op := r.rng.IntN(4); {
		case op == 0 && flush:
			r.cutAll()
		case op <= 1:
			r.cutOne(n)
		case op == 2:
			r.zombie(n)
		default:
			n.fence(true)
			n.stop()
			r.await(10)
			n.start()
		}
		r.whole()
	}
	r.await(10)
	close(r.stop)
	r.workers.Wait()
	r.whole()
	r.check()
}

// produce sends one record after another to whoever leads, each value once.
func (r *powerRun) produce(g int) {
	for i := 0; ; i++ {
		select {
		case <-r.stop:
			return
		default:
		}
		part := (g + i) % powerPartitions
		value := fmt.Sprintf("%d:%d", g, i)
		l := r.lifeOf(r.c.record("orders", part).Leader)
		var p *Partition
		if l != nil {
			p, _ = l.m.Partition("orders", int32(part))
		}
		if p == nil {
			select {
			case <-time.After(time.Millisecond):
			case <-r.stop:
			}
			continue
		}
		w := &powerWaiter{r: r, life: l, part: part, value: value, done: make(chan struct{})}
		records := batch(value)
		if g >= 2 {
			records = transactionalBatch(int64(g), value)
		}
		p.Append(AppendRequest{Records: records, Acks: -1, Timeout: 300 * time.Millisecond, CurrentLeaderEpoch: -1, Waiter: w})
		select {
		case <-w.done:
		case <-time.After(2 * time.Second): // its process is gone
		}
		if g >= 2 && i%4 == 0 {
			p.AppendMarker(MarkerRequest{ProducerID: int64(g), Commit: i%2 == 0, Timeout: 300 * time.Millisecond, CurrentLeaderEpoch: -1, Waiter: newResult()})
		}
	}
}

func (r *powerRun) lifeOf(id metadata.BrokerID) *life {
	r.c.net.mu.Lock()
	defer r.c.net.mu.Unlock()
	return r.c.net.mu.lives[id]
}

type powerWaiter struct {
	r     *powerRun
	life  *life
	part  int
	value string
	done  chan struct{}
}

// Appended notes an acknowledgement, unless the process that gives it is dead already.
func (w *powerWaiter) Appended(_ int, res AppendResult) {
	defer close(w.done)
	if res.Err != nil {
		return
	}
	// A dying process holds the gate: what cannot be taken now was not told anybody before the end.
	if !w.life.gate.TryRLock() {
		return
	}
	defer w.life.gate.RUnlock()
	if w.life.dead {
		return
	}
	mu := &w.r.mu
	mu.Lock()
	defer mu.Unlock()
	if old, ok := mu.acked[w.part][res.BaseOffset]; ok {
		w.r.t.Errorf("offset %d of partition %d was acknowledged for %s and for %s", res.BaseOffset, w.part, old, w.value)
	}
	mu.acked[w.part][res.BaseOffset] = w.value
	if mu.n++; mu.n == mu.enough {
		close(mu.reached)
	}
}

// await waits for n more acknowledgements.
func (r *powerRun) await(n int) {
	r.mu.Lock()
	r.mu.enough, r.mu.reached = r.mu.n+n, make(chan struct{})
	reached := r.mu.reached
	r.mu.Unlock()
	select {
	case <-reached:
	case <-time.After(20 * time.Second):
		r.t.Fatalf("no acknowledgements any more\n%s", r.describe())
	}
}

// whole waits until every partition has a leader and all replicas in sync (I20).
func (r *powerRun) whole() {
	deadline := time.Now().Add(20 * time.Second)
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for range ticker.C {
		ok := true
		for part := range powerPartitions {
			rec := r.c.record("orders", part)
			ok = ok && rec.Leader >= 0 && len(rec.ISR) == 3
		}
		if ok {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("not healed\n%s", r.describe())
		}
	}
}

func (r *powerRun) describe() (s string) {
	for part := range powerPartitions {
		s += fmt.Sprintf("%d: %+v\n", part, r.c.record("orders", part))
		for _, n := range r.c.nodes {
			if n.m == nil {
				continue
			}
			if p, err := n.m.Partition("orders", int32(part)); err == nil {
				s += fmt.Sprintf("   broker %d: %+v\n", n.id, p.Status())
			} else {
				s += fmt.Sprintf("   broker %d: %v\n", n.id, err)
			}
		}
	}
	return s
}

// cut ends the processes of brokers at one instant and gives them the disks that the power cut leaves.
func (r *powerRun) cut(nodes ...*node) {
	var disks []*vfs.Mem
	gate := &r.c.net.gate
	gate.Lock()
	for _, n := range nodes {
		n.life.dead = true
		mode := []vfs.CrashMode{vfs.CrashLose, vfs.CrashKeep, vfs.CrashMixed}[r.rng.IntN(3)]
		disks = append(disks, n.fs.(*vfs.Mem).CrashClone(mode))
	}
	gate.Unlock()
	for i, n := range nodes {
		r.c.net.set(n.id, nil)
		m, dir := n.m, n.dir
		n.m = nil
		require.NoError(r.t, m.Close())
		require.NoError(r.t, dir.Close()) // on the disk that nobody will see
		n.fs = disks[i]
	}
}

func (r *powerRun) cutOne(n *node) {
	r.cut(n)
	if r.rng.IntN(2) == 0 {
		n.fence(true) // noticed, and others lead before it is back
		r.await(10)
	}
	n.start()
}

func (r *powerRun) cutAll() {
	r.cut(r.c.nodes...)
	for _, i := range r.rng.Perm(3) {
		r.c.nodes[i].start()
	}
}

// zombie cuts a broker off from the others and from the metadata, lets the rest go on without it, and heals.
func (r *powerRun) zombie(n *node) {
	n.store.frozen.Store(n.store.Image())
	for _, o := range r.c.nodes {
		if o != n {
			r.c.net.link(n.id, o.id, false)
		}
	}
	// Produced to a leader that is none any more, and never acknowledged: it has to cut this.
	for part := range powerPartitions {
		if p, err := n.m.Partition("orders", int32(part)); err == nil && p.IsLeader() {
			w := &powerWaiter{r: r, life: n.life, part: part, value: fmt.Sprint("zombie ", part), done: make(chan struct{})}
			p.Append(AppendRequest{Records: batch(w.value), Acks: -1, Timeout: 10 * time.Millisecond, CurrentLeaderEpoch: -1, Waiter: w})
		}
	}
	n.fence(true)
	r.await(10 + r.rng.IntN(20))
	if r.rng.IntN(2) == 0 {
		r.cut(n)
		for _, o := range r.c.nodes {
			r.c.net.link(n.id, o.id, true)
		}
		n.start()
		return
	}
	n.store.frozen.Store(nil)
	for _, o := range r.c.nodes {
		r.c.net.link(n.id, o.id, true)
	}
	n.fence(false)
}

// check compares what is there with what was promised.
func (r *powerRun) check() {
	total := 0
	for part := range powerPartitions {
		l := r.c.leader("orders", part)
		eventually(r.t, "everything is committed", func() bool { return l.HighWatermark() == l.EndOffset() })
		end := l.HighWatermark()
		want := r.bytes(l, end)
		values := valuesOf(r.t, want)
		require.Equal(r.t, end, int64(len(values)))
		transactions := transactionsOf(r.t, want)
		r.concluded.check(r.t, part, transactions)
		for offset, value := range r.mu.acked[part] {
			require.Less(r.t, offset, end, "acknowledged: %s", value)
			require.Equal(r.t, value, values[offset], "acknowledged at offset %d of partition %d", offset, part)
		}
		total += len(r.mu.acked[part])
		slices.Sort(values)
		require.Len(r.t, slices.Compact(values), int(end), "every value once")
		for _, n := range r.c.nodes {
			p := r.c.replica(n.id, "orders", part)
			eventually(r.t, "the replica knows the high watermark", func() bool { return p.HighWatermark() == end })
			require.Equal(r.t, want, r.bytes(p, end), "broker %d holds other bytes than the leader", n.id)
			transactions.require(r.t, p, end)
		}
	}
	require.Greater(r.t, total, 50)
	for _, n := range r.c.nodes {
		select {
		case err := <-n.failed:
			r.t.Errorf("broker %d: %v", n.id, err)
		default:
		}
	}
}

// bytes returns a replica's log below end.
func (r *powerRun) bytes(p *Partition, end int64) []byte {
	var all []byte
	for offset := p.log.StartOffset(); offset < end; {
		s, err := p.log.Read(offset, end, 1<<20, true)
		require.NoError(r.t, err)
		buf := make([]byte, s.Len())
		_, err = s.ReadAt(buf, 0)
		require.NoError(r.t, err)
		all = append(all, buf...)
		offset = s.NextOffset()
		s.Release()
	}
	return all
}
