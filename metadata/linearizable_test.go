package metadata

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// topicOp is one call of a client about one topic name.
type topicOp struct{ op, name string }

// topicAnswer is what came back: ok with an id, a definite refusal, or unknown.
type topicAnswer struct {
	outcome string // "ok", "exists", "missing", "refused" (nothing was done), "unknown"
	id      TopicID
}

// someID is the state of a topic that an unanswered creation may have made: its id is not known.
var someID = TopicID{15: 255}

// topicModel is a topic name as a register of ids: create needs it empty, delete needs the id in it, describe reads it. An
// operation with an unknown outcome may have happened or not.
var topicModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{TopicID{}} },
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byName := map[string][]porcupine.Operation{}
		for _, o := range history {
			name := o.Input.(topicOp).name
			byName[name] = append(byName[name], o)
		}
		var out [][]porcupine.Operation
		for _, h := range byName {
			out = append(out, h)
		}
		return out
	},
	Step: func(state, input, output any) []any {
		now, a := state.(TopicID), output.(topicAnswer)
		is := func(id TopicID) bool { return now == id || now == someID && id != TopicID{} }
		switch {
		case a.outcome == "refused":
			return []any{now}
		case a.outcome == "exists":
			if now != (TopicID{}) {
				return []any{now}
			}
		case a.outcome == "missing":
			if now == (TopicID{}) {
				return []any{now}
			}
		case input.(topicOp).op == "create" && a.outcome == "ok":
			if now == (TopicID{}) {
				return []any{a.id}
			}
		case input.(topicOp).op == "create":
			if now == (TopicID{}) {
				return []any{now, someID}
			}
			return []any{now}
		case input.(topicOp).op == "delete" && a.outcome == "ok":
			if is(a.id) {
				return []any{TopicID{}}
			}
		case input.(topicOp).op == "delete":
			return []any{now, TopicID{}}
		case input.(topicOp).op == "describe":
			if is(a.id) {
				return []any{a.id}
			}
		}
		return nil
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%v → %v", input, output) },
}).ToModel()

// topicHistory records what clients did.
type topicHistory struct {
	start time.Time
	mu    sync.Mutex
	ops   []porcupine.Operation
}

// do runs one operation of a client against a store.
func (h *topicHistory) do(ctx context.Context, client int, s *Store, op topicOp) topicAnswer {
	call := time.Since(h.start)
	var r TopicResult
	switch op.op {
	case "create":
		r = s.CreateTopics(ctx, []NewTopic{newTopic(op.name, 1)}, false)[0]
	case "delete":
		r = s.DeleteTopics(ctx, []TopicRef{{Name: op.name}})[0]
	case "describe":
		if t := s.Image().Topic(op.name); t != nil {
			r.ID = t.ID
		} else {
			r.Err = ErrUnknownTopic
		}
	}
	a := topicAnswer{outcome: "ok", id: r.ID}
	switch {
	case r.Err == nil:
	case is(r.Err, ErrTimeout, ErrFailed):
		a = topicAnswer{outcome: "unknown"}
	case is(r.Err, ErrTopicExists):
		a = topicAnswer{outcome: "exists"}
	case is(r.Err, ErrUnknownTopic):
		a = topicAnswer{outcome: "missing"}
	default:
		a = topicAnswer{outcome: "refused"}
	}
	end := int64(time.Since(h.start))
	if a.outcome == "unknown" {
		end = 1 << 62
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: op, Output: a, Call: int64(call), Return: end})
	return a
}

func (h *topicHistory) check(t *testing.T) {
	t.Helper()
	outcomes := map[string]int{}
	for _, o := range h.ops {
		outcomes[o.Input.(topicOp).op+" "+o.Output.(topicAnswer).outcome]++
	}
	t.Logf("%d operations: %v", len(h.ops), outcomes)
	require.Equal(t, porcupine.Ok, porcupine.CheckOperationsTimeout(topicModel, h.ops, 30*time.Second))
}

// I13, M11, M12: creations, deletions and reads of concurrent clients, with a restart in the middle that leaves outcomes
// unknown, are linearizable.
func TestTopicsAreLinearizable(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	h := &topicHistory{start: time.Now()}
	var done atomic.Int64
	for round := range 3 {
		s, err := Open(cfg)
		require.NoError(t, err)
		require.NoError(t, s.Ready(testContext(t)))
		register(t, s, 1, byte(round+1))
		var wg sync.WaitGroup
		closing := make(chan struct{})
		for client := range 6 {
			wg.Go(func() {
				random := rand.New(rand.NewPCG(uint64(round), uint64(client)))
				for {
					op := topicOp{[]string{"create", "delete", "describe"}[random.IntN(3)], fmt.Sprintf("t%d", random.IntN(3))}
					h.do(testContext(t), round*6+client, s, op)
					if done.Add(1) == int64(round+1)*400 {
						close(closing)
					}
					select {
					case <-s.stop:
						return
					default:
					}
				}
			})
		}
		<-closing
		require.NoError(t, s.Close())
		wg.Wait()
	}
	h.check(t)
}

// bubbleCluster is three brokers on an in-memory network, inside a synctest bubble.
type bubbleCluster struct {
	t      testing.TB
	stores []*Store
	trans  []*raft.InmemTransport
}

func newBubbleCluster(t testing.TB, tune ...func(i int, cfg *Config)) *bubbleCluster {
	c := &bubbleCluster{t: t}
	for i := range 3 {
		cfg := testConfig(t, t.TempDir())
		cfg.NodeID = BrokerID(i + 1)
		cfg.DirectoryID = DirectoryID{byte(i + 1)}
		cfg.Bootstrap = i == 0
		cfg.Rand = rand.New(rand.NewPCG(9, uint64(i)))
		cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLease = 500*time.Millisecond, 500*time.Millisecond, 350*time.Millisecond
		_, trans := raft.NewInmemTransport(raft.ServerAddress(fmt.Sprintf("broker-%d", i+1)))
		cfg.Transport = trans
		for _, f := range tune {
			f(i, &cfg)
		}
		s, err := Open(cfg)
		require.NoError(t, err)
		c.stores = append(c.stores, s)
		c.trans = append(c.trans, trans)
		if i == 0 {
			require.NoError(t, s.Ready(testContext(t)))
		}
	}
	for i := range c.trans {
		c.heal(i)
	}
	for i := 1; i < 3; i++ {
		s := c.stores[i]
		require.NoError(t, c.stores[0].raft.AddVoter(serverID(s.cfg.NodeID, s.cfg.DirectoryID), c.trans[i].LocalAddr(), 0, 0).Error())
		require.NoError(t, s.Ready(testContext(t)), "a follower is ready when it has caught up")
	}
	return c
}

// cut separates broker i from the two others, heal joins it again.
func (c *bubbleCluster) cut(i int) {
	c.trans[i].DisconnectAll()
	for j := range c.trans {
		c.trans[j].Disconnect(c.trans[i].LocalAddr())
	}
}

func (c *bubbleCluster) heal(i int) {
	for j := range c.trans {
		if i != j {
			c.trans[i].Connect(c.trans[j].LocalAddr(), c.trans[j])
			c.trans[j].Connect(c.trans[i].LocalAddr(), c.trans[i])
		}
	}
}

// controller waits for a store, other than those given, that is the controller.
func (c *bubbleCluster) controller(not ...*Store) *Store {
	for range 2000 {
		for _, s := range c.stores {
			if s.IsController() && (len(not) == 0 || s != not[0]) {
				return s
			}
		}
		time.Sleep(10 * time.Millisecond) // fake time: a step of the simulation
	}
	c.t.Fatal("no controller")
	return nil
}

// settle waits until all have applied the same, and returns the hash of the state they share (I14).
func (c *bubbleCluster) settle() [32]byte {
	lead := c.controller()
	require.NoError(c.t, lead.raft.Barrier(0).Error())
	want := lead.raft.AppliedIndex()
	for _, s := range c.stores {
		for range 2000 {
			if s.raft.AppliedIndex() >= want && s.Image().Version() == lead.Image().Version() {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	hash := stateHash(lead.Image().st, lead.Image().version)
	for _, s := range c.stores {
		require.Equal(c.t, hash, stateHash(s.Image().st, s.Image().version), "broker %d", s.cfg.NodeID)
		require.Equal(c.t, lead.cfg.NodeID, s.Image().ControllerID())
		require.Equal(c.t, lead.Image().ClusterID(), s.Image().ClusterID())
	}
	return hash
}

func (c *bubbleCluster) close() {
	for _, s := range c.stores {
		require.NoError(c.t, s.Close())
	}
}

// I14, M9, M11, M14: three brokers through elections in which leaders are cut off with proposals under way. Operations
// that were answered are linearizable, those of the cut-off leader are reported as unknown or refused, and all brokers
// end with equal states.
func TestElections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newBubbleCluster(t)
		defer c.close()
		register(t, c.controller(), 1, 1)
		h := &topicHistory{start: time.Now()}
		unknown := 0
		for round := range 6 {
			lead := c.controller()
			at := round % 4
			var wg sync.WaitGroup
			for client := range 3 {
				wg.Go(func() {
					random := rand.New(rand.NewPCG(uint64(round), uint64(client)))
					for i := range 12 {
						ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
						op := topicOp{[]string{"create", "delete"}[random.IntN(2)], fmt.Sprintf("t%d", random.IntN(2))}
						if a := h.do(ctx, 3*round+client, lead, op); a.outcome == "unknown" {
							h.mu.Lock()
							unknown++
							h.mu.Unlock()
						}
						cancel()
						if client == 0 && i == at {
							for b, s := range c.stores {
								if s == lead {
									c.cut(b)
								}
							}
						}
					}
				})
			}
			wg.Wait()
			next := c.controller(lead)
			old := lead.lead.Load()
			for i := range 6 {
				h.do(t.Context(), 100+round, next, topicOp{[]string{"create", "delete"}[i%2], fmt.Sprintf("t%d", i%2)})
			}
			if old != nil {
				t.Error("a leader that was cut off for seconds still thinks it is the controller")
			}
			for b, s := range c.stores {
				if s == lead {
					c.heal(b)
				}
			}
			c.settle()
		}
		require.Positive(t, unknown, "the faults did hit proposals under way")
		h.check(t)
	})
}

// I14, M5: a broker that was away so long that the log it needs is compacted gets a snapshot, and then has the same state.
func TestSnapshotInstall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newBubbleCluster(t)
		defer c.close()
		lead := c.controller()
		register(t, lead, 1, 1)
		away := 2
		if c.stores[2] == lead {
			away = 1
		}
		c.cut(away)
		w := c.stores[away].Watch()
		defer w.Close()
		<-w.C()
		for _, s := range c.stores {
			require.NoError(t, s.raft.ReloadConfig(raft.ReloadableConfig{
				TrailingLogs: 1, SnapshotInterval: time.Hour, SnapshotThreshold: 1 << 40,
				HeartbeatTimeout: s.cfg.HeartbeatTimeout, ElectionTimeout: s.cfg.ElectionTimeout,
			}))
		}
		for i := range 3 {
			createTopics(t, lead, newTopic(fmt.Sprintf("t%d", i), 600))
			require.NoError(t, lead.DeleteTopics(testContext(t), []TopicRef{{Name: fmt.Sprintf("t%d", i)}})[0].Err)
			createTopics(t, lead, newTopic(fmt.Sprintf("u%d", i), 3))
			require.NoError(t, lead.raft.Snapshot().Error())
		}
		require.Zero(t, c.stores[away].Image().TopicCount())
		c.heal(away)
		c.settle()
		<-w.C()
		require.Equal(t, 3, c.stores[away].Image().TopicCount())
		require.False(t, c.stores[away].Image().Broker(1) == nil)
	})
}
