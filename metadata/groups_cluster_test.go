package metadata

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
)

// groupOf returns the name of a group that broker i coordinates.
func (bs *brokers) groupOf(i int, prefix string) string {
	for n := range 1000 {
		name := fmt.Sprintf("%s-%d", prefix, n)
		if id, _ := bs.stores[i].Image().Coordinator(GroupCoordinator, name); id == BrokerID(i+1) {
			return name
		}
	}
	bs.t.Fatalf("broker %d coordinates nothing", i+1)
	return ""
}

// coordinatorOf waits until brokers that are up agree on who coordinates a group, not among those given, and returns it.
func (bs *brokers) coordinatorOf(group string, not ...int) int {
	for range 3000 {
		id, _ := bs.controller().Image().Coordinator(GroupCoordinator, group)
		if at := int(id) - 1; at >= 0 && bs.reach(at, at) && !contains(not, at) {
			if seen, _ := bs.stores[at].Image().Coordinator(GroupCoordinator, group); seen == id {
				return at
			}
		}
		time.Sleep(10 * time.Millisecond) // fake time: a step of the simulation
	}
	bs.t.Fatal("nobody coordinates " + group)
	return 0
}

func contains(of []int, x int) bool {
	for _, y := range of {
		if x == y {
			return true
		}
	}
	return false
}

func newGroupBrokers(t *testing.T) (*brokers, TopicID) {
	bs := newBrokers(t)
	for i := range bs.stores {
		bs.await(i, "all serve", func(im *Image) bool { return unfenced(im) == 3 })
	}
	return bs, createTopics(t, bs.controller(), NewTopic{Name: "orders", Partitions: 4, ReplicationFactor: 3})[0].ID
}

// D6, G3, G4, G5: what a coordinator acknowledged is seen by its successor; a death marks its groups, a planned stop does
// not; the old one can change nothing any more.
func TestCoordinatorMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bs, id := newGroupBrokers(t)
		defer bs.close()
		for i := range bs.stores {
			bs.await(i, "there is a topic", func(im *Image) bool { return im.Topic("orders") != nil })
		}
		dies := bs.other()
		group, planned := bs.groupOf(dies, "g"), bs.groupOf(bs.other(dies), "p")
		leaves := bs.other(dies)
		for at, name := range map[int]string{dies: group, leaves: planned} {
			s := bs.stores[at]
			revision, err := changeGroup1(t, s, GroupChange{Group: name, Type: ClassicGroup, State: GroupStable, Generation: 3, ProtocolType: "consumer",
				Upsert: []*GroupMember{{ID: "m", Assignment: []byte("x")}}})
			require.NoError(t, err)
			require.Equal(t, revision, s.Image().Group(name).Revision, "seen here when it is answered (M12)")
			_, err = commit(t, s, OffsetCommit{Group: name, Member: "m", Generation: 3, Offsets: entriesFor(id, 2, 10)})
			require.NoError(t, err)
			o, ok := s.Offset(name, id, 1)
			require.True(t, ok)
			require.Equal(t, int64(10), o.Offset)
			for other := range bs.stores {
				if other != at {
					_, err := commit(t, bs.stores[other], OffsetCommit{Group: name, Member: "m", Generation: 3, Offsets: entriesFor(id, 1, 66)})
					require.ErrorIs(t, err, ErrNotCoordinator)
				}
			}
		}

		zombie := bs.stores[dies]
		bs.kill(dies)
		next := bs.coordinatorOf(group, dies)
		g := bs.stores[next].Image().Group(group)
		require.True(t, g.Interrupted)
		require.Equal(t, []byte("x"), g.Member("m").Assignment)
		o, ok := bs.stores[next].Offset(group, id, 0)
		require.True(t, ok)
		require.Equal(t, int64(10), o.Offset)
		_, err := commit(t, bs.stores[next], OffsetCommit{Group: group, Member: "m", Generation: 3, Offsets: entriesFor(id, 1, 20)})
		require.NoError(t, err)
		_, err = commit(t, zombie, OffsetCommit{Group: group, Member: "m", Generation: 3, Offsets: entriesFor(id, 1, 99)})
		require.Error(t, err)

		r, err := bs.stores[leaves].Heartbeat(testContext(t), Heartbeat{Broker: BrokerID(leaves + 1), Epoch: bs.epoch(leaves), Shutdown: true})
		require.NoError(t, err)
		_ = r
		moved := bs.coordinatorOf(planned, leaves)
		require.False(t, bs.stores[moved].Image().Group(planned).Interrupted)
		_, err = commit(t, bs.stores[moved], OffsetCommit{Group: planned, Member: "m", Generation: 3, Offsets: entriesFor(id, 1, 20)})
		require.NoError(t, err, "the same generation goes on")

		bs.start(dies, 2)
		bs.await(dies, "it serves again", func(im *Image) bool { return unfenced(im) >= 2 })
		o, _ = bs.controller().Image().Offset(group, id, 0)
		require.Equal(t, int64(20), o.Offset)
		bs.settle()
	})
}

// I18: a batch of commits that is held up on the way, for longer than its coordinator waits, undoes nothing that was
// acknowledged after it.
func TestHeldBatchOfCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bs, id := newGroupBrokers(t)
		defer bs.close()
		at := bs.other()
		bs.await(at, "there is a topic", func(im *Image) bool { return im.Topic("orders") != nil })
		group, s := bs.groupOf(at, "g"), bs.stores[at]
		put := func(offset int64) error {
			_, err := commit(t, s, OffsetCommit{Group: group, Generation: -1, Offsets: entriesFor(id, 1, offset)})
			return err
		}
		require.NoError(t, put(1))
		release := bs.hold(opProposeGroups.binary.method)
		require.ErrorIs(t, put(2), ErrTimeout, "it may have been applied, or not")
		late := release()
		require.NoError(t, put(3))
		late()
		bs.settle()
		o, _ := s.Offset(group, id, 0)
		require.Equal(t, int64(3), o.Offset)
	})
}

// M11: a coordinator that Raft does not reach any more can have its commits proposed, and can't see what became of them: it
// says so in time, and does not acknowledge what its own readers would not find.
func TestCommitAtCutOffCoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bs, id := newGroupBrokers(t)
		defer bs.close()
		at := bs.other()
		bs.await(at, "there is a topic", func(im *Image) bool { return im.Topic("orders") != nil })
		group, s := bs.groupOf(at, "g"), bs.stores[at]
		bs.cut(at)
		begun := time.Now()
		_, err := commit(t, s, OffsetCommit{Group: group, Generation: -1, Offsets: entriesFor(id, 1, 2)})
		require.ErrorIs(t, err, ErrTimeout)
		require.Less(t, time.Since(begun), 2*outboxTimeout)
		bs.heal(at)
		bs.settle()
	})
}

// hold keeps the next call of a method on its way. release lets later ones through and returns the function that delivers
// the one that was held.
func (bs *brokers) hold(method string) (release func() (deliver func())) {
	var held func()
	bs.mu.Lock()
	defer bs.mu.Unlock()
	bs.mu.holding = func(m string, deliver func()) bool {
		if m == method {
			held = deliver
		}
		return m == method
	}
	return func() func() {
		bs.mu.Lock()
		defer bs.mu.Unlock()
		bs.mu.holding = nil
		return held
	}
}

// D17: in a cluster at an older level groups are refused with the mend, and nothing of them is proposed; once the level is
// raised they are there.
func TestGroupsInMixedVersions(t *testing.T) {
	s := openStore(t, testConfig(t, t.TempDir()))
	r := testRegistration(1, 1)
	_, err := s.RegisterBroker(testContext(t), r)
	require.NoError(t, err)
	require.Equal(t, MaxFeatureLevel, s.Image().FeatureLevel(), "a new cluster begins there")
	id := createTopics(t, s, newTopic("orders", 1))[0].ID

	st := *s.fsm.st // as if an older version had formed it
	st.featureLevel = 1
	s.publish(&st, s.Image().Version())
	_, err = commit(t, s, OffsetCommit{Group: "g", Generation: -1, Offsets: entriesFor(id, 1, 1)})
	require.ErrorIs(t, err, ErrInvalidFeatureLevel)
	require.ErrorContains(t, err, "raise the feature level to 2")
	_, err = changeGroup1(t, s, GroupChange{Group: "g", Type: ClassicGroup})
	require.ErrorIs(t, err, ErrInvalidFeatureLevel)
	body, err := encodeBody(nil, &commitOffsets{commits: []OffsetCommit{{Group: "g", Generation: -1}}})
	require.NoError(t, err)
	_, err = s.proposeGroups(testContext(t), groupProposals{[]groupProposal{{19, body}}})
	require.ErrorIs(t, err, ErrInvalidFeatureLevel, "the controller does not take it from others either")
	s.publish(s.fsm.st, s.Image().Version())
	_, err = commit(t, s, OffsetCommit{Group: "g", Generation: -1, Offsets: entriesFor(id, 1, 1)})
	require.NoError(t, err)

	out, err := s.proposeGroups(testContext(t), groupProposals{[]groupProposal{{19, []byte{0xff}}, {6, nil}, {19, nil}}})
	require.NoError(t, err)
	require.ErrorIs(t, out.Answers[0].Err.err(), ErrInvalidRequest, "what can't be read is not proposed: it would stop every broker")
	require.ErrorIs(t, out.Answers[1].Err.err(), ErrInvalidRequest, "nor what is not a coordinator's to propose")
	require.ErrorIs(t, out.Answers[2].Err.err(), ErrNotCoordinator)
}

// A Store that closes answers everything that waits, once, and what comes later too.
func TestGroupsWhileClosing(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	s, err := Open(cfg)
	require.NoError(t, err)
	require.NoError(t, s.Ready(testContext(t)))
	register(t, s, 1, 1)
	id := createTopics(t, s, newTopic("orders", 1))[0].ID
	var wg sync.WaitGroup
	var answers [3]sync.Map
	closing := make(chan struct{})
	for i := range 200 {
		wg.Add(1)
		go s.CommitOffsets(OffsetCommit{Group: fmt.Sprintf("g%d", i%7), Generation: -1, Offsets: entriesFor(id, 1, int64(i))}, func(_ []error, err error) {
			if _, twice := answers[0].LoadOrStore(i, true); twice {
				t.Error("answered twice")
			}
			if err != nil && !is(err, ErrClosed, ErrTimeout, ErrNotController, ErrFailed, ErrBusy) {
				t.Errorf("unexpected: %v", err)
			}
			wg.Done()
		})
		if i == 100 {
			go func() { s.Close(); close(closing) }()
		}
	}
	wg.Wait()
	<-closing
	_, err = commit(t, s, OffsetCommit{Group: "g", Generation: -1})
	require.ErrorIs(t, err, ErrClosed)
	landed := true
	s.whenApplied(1<<60, func(ok bool) { landed = ok })
	require.False(t, landed)
}

// offsetOp is one call of a client about one partition of one group: a commit of a value, or a read.
type offsetOp struct {
	group     string
	partition int32
	value     int64 // -1 = read
}

// offsetModel is a committed offset as a register.
var offsetModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{int64(-1)} },
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		by := map[string][]porcupine.Operation{}
		for _, o := range history {
			in := o.Input.(offsetOp)
			key := fmt.Sprint(in.group, in.partition)
			by[key] = append(by[key], o)
		}
		var out [][]porcupine.Operation
		for _, h := range by {
			out = append(out, h)
		}
		return out
	},
	Step: func(state, input, output any) []any {
		now, in := state.(int64), input.(offsetOp)
		switch out := output.(string); {
		case out == "refused":
			return []any{now}
		case in.value < 0:
			if out == fmt.Sprint(now) {
				return []any{now}
			}
			return nil
		case out == "unknown":
			return []any{now, in.value}
		}
		return []any{in.value}
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%v → %v", input, output) },
}).ToModel()

// I18, G2, G3, G4, G5: committed offsets are registers, through coordinators that are killed, come back and leave, and
// controllers that are cut off. A read is preceded by a commit of nothing, which passes the same fence.
func TestOffsetsAreLinearizable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bs, id := newGroupBrokers(t)
		defer bs.close()
		h := &topicHistory{start: time.Now()}
		var value, client int64
		groups := []string{"a", "b", "c", "d"}
		outcomes := map[string]int{}
		for round := range 3 {
			var wg sync.WaitGroup
			end := make(chan struct{})
			for range 4 {
				client++
				me := client
				random := rand.New(rand.NewPCG(uint64(round), uint64(me)))
				wg.Go(func() {
					for {
						op := offsetOp{group: groups[random.IntN(len(groups))], partition: int32(random.IntN(2)), value: -1}
						if random.IntN(2) == 0 {
							h.mu.Lock()
							value++
							op.value = value
							h.mu.Unlock()
						}
						call := int64(time.Since(h.start))
						out := bs.offsetOp(id, op)
						done := int64(time.Since(h.start))
						if out == "unknown" {
							done = 1 << 62
						}
						h.mu.Lock()
						if out != "refused" && !(out == "unknown" && op.value < 0) {
							h.ops = append(h.ops, porcupine.Operation{ClientId: int(me), Input: op, Output: out, Call: call, Return: done})
						}
						kind := map[bool]string{true: "read ", false: "commit "}[op.value < 0]
						if out != "refused" && out != "unknown" {
							kind += "ok"
						} else {
							kind += out
						}
						outcomes[kind]++
						h.mu.Unlock()
						select {
						case <-end:
							return
						case <-time.After(time.Duration(random.IntN(20)) * time.Millisecond):
						}
						if out == "unknown" {
							return // its process is never used again
						}
					}
				})
			}
			time.Sleep(300 * time.Millisecond)
			victim := bs.coordinatorOf(groups[round%len(groups)])
			switch round % 3 {
			case 0: // its death, wherever the controller is
				bs.kill(victim)
				bs.await(bs.other(victim), "it is fenced", func(im *Image) bool { return im.Broker(BrokerID(victim + 1)).Fenced })
			case 1: // a moment's cut
				bs.cut(victim)
				time.Sleep(700 * time.Millisecond)
				bs.heal(victim)
			case 2: // maintenance
				require.NoError(t, bs.controller().SetMaintenance(testContext(t), BrokerID(victim+1), true))
			}
			time.Sleep(500 * time.Millisecond)
			close(end)
			wg.Wait()
			switch round % 3 {
			case 0:
				bs.start(victim, byte(round+2))
			case 2:
				require.NoError(t, bs.controller().SetMaintenance(testContext(t), BrokerID(victim+1), false))
			}
			bs.await(victim, "all serve", func(im *Image) bool { return unfenced(im) == 3 })
			bs.settle()
		}
		t.Logf("%d operations: %v", len(h.ops), outcomes)
		require.Greater(t, outcomes["commit ok"], 100)
		require.Greater(t, outcomes["read ok"], 100)
		require.Equal(t, porcupine.Ok, porcupine.CheckOperationsTimeout(offsetModel, h.ops, 60*time.Second))
	})
}

// offsetOp carries an operation out at whoever says that it is the coordinator, a zombie included.
func (bs *brokers) offsetOp(id TopicID, op offsetOp) string {
	for _, s := range bs.stores {
		if at, _ := s.Image().Coordinator(GroupCoordinator, op.group); at != s.cfg.NodeID {
			continue
		}
		c := OffsetCommit{Group: op.group, Generation: -1}
		if op.value >= 0 {
			c.Offsets = []OffsetEntry{{id, op.partition, op.value, -1, ""}}
		}
		type answer struct {
			entries []error
			err     error
		}
		got := make(chan answer, 1)
		s.CommitOffsets(c, func(entries []error, err error) { got <- answer{entries, err} })
		a := <-got
		switch {
		case errors.Is(a.err, ErrNotCoordinator) && !errors.Is(a.err, ErrTimeout):
			continue
		case is(a.err, ErrTimeout, ErrFailed, context.DeadlineExceeded):
			return "unknown"
		case a.err != nil || a.entries != nil:
			return "refused"
		case op.value >= 0:
			return "ok"
		}
		o, ok := s.Offset(op.group, id, op.partition)
		if !ok {
			return "-1"
		}
		return fmt.Sprint(o.Offset)
	}
	return "refused"
}
