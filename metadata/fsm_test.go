package metadata

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

const testTerm = 7

// testFSM is an FSM without Raft, for commands.
type testFSM struct {
	*fsm
	t        testing.TB
	next     uint64
	batches  uint64 // of offset commits
	failures []error
	images   []*Image
}

func newTestFSM(t testing.TB) *testFSM {
	f := &testFSM{t: t}
	f.fsm = &fsm{
		st:        newState(),
		published: func(st *state, index uint64) { f.images = append(f.images, &Image{version: index, st: st}) },
		failure:   func(err error) { f.failures = append(f.failures, err) },
	}
	return f
}

// entry encodes commands as one Raft entry at the next index.
func (f *testFSM) entry(commands ...command) *raft.Log {
	var data []byte
	for _, c := range commands {
		b, err := encodeCommand(c, testTerm)
		require.NoError(f.t, err)
		data = append(data, newProposal(b).data...)
	}
	f.next++
	return &raft.Log{Index: f.next, Term: testTerm, Type: raft.LogCommand, Data: data}
}

// do applies one command in an entry of its own.
func (f *testFSM) do(c command) (any, error) {
	f.t.Helper()
	results, ok := f.Apply(f.entry(c)).([]result)
	require.True(f.t, ok, "the FSM has failed: %v", f.failed)
	require.Len(f.t, results, 1)
	return results[0].value, results[0].err
}

// must applies a command that must succeed.
func (f *testFSM) must(c command) any {
	f.t.Helper()
	v, err := f.do(c)
	require.NoError(f.t, err)
	return v
}

func (f *testFSM) image() *Image { return &Image{version: f.index, st: f.st} }

// checkState makes sure that the derived parts of a state are what they are derived from.
func checkState(t require.TestingT, st *state) {
	checkTree(t, st.topics)
	checkTree(t, st.topicIDs)
	checkTree(t, st.collisions)
	checkTree(t, st.tombstones)
	ids, collisions, partitions := map[TopicID]string{}, map[string]string{}, 0
	st.eachTopic(func(topic *Topic) bool {
		ids[topic.ID] = topic.Name
		if strings.ContainsAny(topic.Name, "._") {
			collisions[metricName(topic.Name)] = topic.Name
		}
		partitions += len(topic.Partitions)
		require.NotEmpty(t, topic.Partitions)
		require.False(t, st.tombstoned(topic.ID), "a topic and a tombstone with id %s", topic.ID)
		for i := range topic.Partitions {
			checkPartition(t, topic.Partitions[i])
		}
		return true
	})
	require.Equal(t, ids, maps.Collect(st.topicIDs.all()))
	require.Equal(t, collisions, maps.Collect(st.collisions.all()))
	require.Equal(t, partitions, st.partitions)
	checkGroups(t, st)
	checkTransactions(t, st)
}

// checkTransactions makes sure of the invariants of transactions and pending offsets.
func checkTransactions(t require.TestingT, st *state) {
	checkTree(t, st.transactions)
	checkTree(t, st.producers)
	checkTree(t, st.active)
	checkTree(t, st.pending)
	producers, active := map[int64]string{}, map[string]*Transaction{}
	for id, x := range st.transactions.all() {
		require.Equal(t, id, x.ID)
		require.Positive(t, x.Revision)
		require.LessOrEqual(t, x.Revision, st.transactionRevision)
		require.LessOrEqual(t, x.Number, x.Revision)
		require.True(t, ascend(x.Partitions), "%v", x.Partitions)
		require.True(t, strictlyAscending(x.Groups), "%v", x.Groups)
		require.True(t, x.State == TransactionOngoing || x.Groups == nil)
		require.Equal(t, x.State.Prepared(), x.MarkerProducerID >= 0)
		require.True(t, x.State.Prepared() == (x.Partitions != nil) || x.State == TransactionOngoing, "%v with %v", x.State, x.Partitions)
		for _, tps := range x.Partitions {
			topic := st.topicByID(tps.TopicID)
			require.NotNil(t, topic, "a partition of a topic that is deleted")
			require.Less(t, tps.Partitions[len(tps.Partitions)-1], int32(len(topic.Partitions)))
		}
		for _, pid := range x.producerIDs() {
			if pid >= 0 {
				require.Contains(t, []string{"", id}, producers[pid])
				producers[pid] = id
			}
		}
		if x.State.Active() {
			active[id] = x
		}
	}
	require.Equal(t, producers, entriesOf(st.producers))
	require.Equal(t, active, entriesOf(st.active))
	for name, of := range st.pending.all() {
		require.NotNil(t, st.group(name), "pending offsets of a group that is not there")
		require.Positive(t, of.producers.len())
		checkTree(t, of.producers)
		checkTree(t, of.holders)
		holders := map[TopicIDPartition][]int64{}
		for pid, pending := range of.producers.all() {
			checkTree(t, pending.offsets)
			require.Positive(t, pending.offsets.len())
			x := st.transactionByProducer(pid)
			require.True(t, x != nil && x.ProducerID == pid && x.State == TransactionOngoing && x.HasGroup(name), "pending offsets of no transaction")
			for tp, o := range pending.offsets.all() {
				holders[tp] = append(holders[tp], pid)
				require.LessOrEqual(t, o.order, st.transactionRevision)
			}
		}
		require.Equal(t, holders, entriesOf(of.holders))
	}
}

// checkGroups makes sure of the invariants of groups and offsets.
func checkGroups(t require.TestingT, st *state) {
	checkTree(t, st.groups)
	checkTree(t, st.offsets)
	checkTree(t, st.lastGenerations)
	require.Equal(t, st.findCoordinators(), st.coordinators)
	for name, g := range st.groups.all() {
		require.Equal(t, name, g.Name)
		require.LessOrEqual(t, g.Revision, st.groupRevision)
		require.True(t, slices.IsSortedFunc(g.Members, func(a, b *GroupMember) int { return strings.Compare(a.ID, b.ID) }))
		require.False(t, len(g.Members) > 0 && g.EmptySince != 0)
		_, deleted := st.lastGenerations.get(name)
		require.False(t, deleted)
	}
	offsets := 0
	for name, of := range st.offsets.all() {
		require.NotNil(t, st.group(name), "offsets of a group that is not there")
		checkOffsets(t, of)
		offsets += of.len()
	}
	require.Equal(t, offsets, st.offsetCount)
}

// checkOffsets makes sure of the invariants of a group's offsets.
func checkOffsets(t require.TestingT, of *groupOffsets) {
	require.Positive(t, of.len())
	checkTree(t, of.topics)
	n := 0
	for _, topic := range of.topics.all() {
		require.Positive(t, topic.offsets.len())
		checkTree(t, topic.offsets)
		checkTree(t, topic.extras)
		extras := 0
		for partition, o := range topic.offsets.all() {
			x, ok := topic.extras.get(partition)
			require.Equal(t, o.extras, ok)
			require.Equal(t, o.extras, x != offsetExtras{})
			if ok {
				extras++
			}
		}
		require.Equal(t, extras, topic.extras.len())
		n += topic.offsets.len()
	}
	require.Equal(t, n, of.len())
}

// offsetMap are a group's offsets.
func offsetMap(of *groupOffsets) map[TopicIDPartition]CommittedOffset { return maps.Collect(of.all()) }

// led fills in what a partition has that was never led by another broker or elected uncleanly.
func led(p Partition) *Partition {
	p.LastLeader, p.UncleanEpoch = p.Leader, -1
	return &p
}

func checkPartition(t require.TestingT, p *Partition) {
	require.NotEmpty(t, p.Replicas)
	require.Len(t, p.Directories, len(p.Replicas))
	for _, id := range slices.Concat(p.ISR, p.ELR) {
		require.Contains(t, p.Replicas, id)
	}
	for _, id := range p.ELR {
		require.NotContains(t, p.ISR, id)
	}
	if p.Leader != NoBroker {
		require.Contains(t, p.ISR, p.Leader)
	}
	require.NoError(t, p.check())
}

func broker(id BrokerID, incarnation byte, dirs ...DirectoryID) *registerBroker {
	if dirs == nil {
		dirs = []DirectoryID{{byte(id)}}
	}
	return &registerBroker{broker: &Broker{
		ID: id, Incarnation: [16]byte{byte(id), incarnation}, Directories: dirs, MinFeatureLevel: 1, MaxFeatureLevel: MaxFeatureLevel,
	}}
}

// again makes a registration one that replaces the present one.
func (f *testFSM) again(c *registerBroker) *registerBroker {
	c.expectedEpoch = f.st.broker(c.broker.ID).Epoch
	return c
}

// on places a partition on brokers, each in its first directory.
func on(ids ...BrokerID) replicaSet {
	set := replicaSet{replicas: ids}
	for _, id := range ids {
		set.directories = append(set.directories, DirectoryID{byte(id)})
	}
	return set
}

func topicCommand(id byte, name string, sets ...replicaSet) *createTopic {
	return &createTopic{id: TopicID{id}, name: name, sets: sets}
}

// threeBrokers is an FSM with a cluster id, the brokers 1 to 3, and topic "orders" (id 1): partition 0 on 1 2 3,
// partition 1 on 2 3 1.
func threeBrokers(t testing.TB) *testFSM {
	f := newTestFSM(t)
	f.must(&initCluster{clusterID: "millrace-test", featureLevel: 1})
	for id := BrokerID(1); id <= 3; id++ {
		f.must(broker(id, 1))
	}
	f.must(topicCommand(1, "orders", on(1, 2, 3), on(2, 3, 1)))
	return f
}

// M1: nothing that decides what Apply does may look at the clock, at chance or at this machine.
func TestFSMFilesImportNothingNonDeterministic(t *testing.T) {
	var files []string
	for _, pattern := range []string{"fsm*.go", "command_*.go", "tree*.go", "image.go", "ids.go", "coordinator.go", "offset.go"} {
		matches, err := filepath.Glob(pattern)
		require.NoError(t, err)
		files = append(files, matches...)
	}
	files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
	require.Greater(t, len(files), 12)
	commands := 0
	for _, name := range files {
		if strings.HasPrefix(name, "command_") {
			commands++
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		for _, imp := range file.Imports {
			path := strings.Trim(imp.Path.Value, `"`)
			for _, banned := range []string{"time", "os", "math/rand", "math/rand/v2", "crypto/rand", "net", "runtime", "sync", "context"} {
				require.NotEqual(t, banned, path, "%s imports it", name)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if g, ok := n.(*ast.GoStmt); ok {
				t.Errorf("%s starts a goroutine at %v", name, g.Pos())
			}
			return true
		})
	}
	require.Equal(t, len(pb.CommandType_name)-2, commands, "one file per command, but for chain parts")
	// Groups have durations; these files may know the type, and nothing that tells the time.
	for _, name := range []string{"group.go", "group_codec.go", "transaction.go", "transaction_codec.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" {
					require.Contains(t, []string{"Duration", "Millisecond"}, sel.Sel.Name, "%s uses it", name)
				}
			}
			return true
		})
	}
}

// Every command type of the schema has its place in the dispatch.
func TestEveryCommandTypeIsKnown(t *testing.T) {
	for kind := range pb.CommandType_name {
		_, err := decodeCommand(pb.CommandType(kind), nil)
		unknown := err != nil && strings.Contains(err.Error(), "unknown command type")
		require.Equal(t, kind == 0, unknown, "type %d: %v", kind, err)
	}
}

// M2: an entry of a newer version stops the broker: an unknown type, an unknown field at any depth, garbage. Nothing of
// its batch becomes visible, nothing after it is applied, no snapshot is taken, no proposer gets an answer.
func TestUnknownEntryStops(t *testing.T) {
	field := func(b []byte) []byte { return append(slices.Clone(b), 0xf8, 0x3f, 1) } // field 1023, varint 1
	create := topicCommand(9, "new", on(1))
	encoded, err := encodeCommand(create, testTerm)
	require.NoError(t, err)
	body, err := proto.Marshal(create.message())
	require.NoError(t, err)
	nested := proto.Clone(create.message()).(*pb.CreateTopic)
	nested.Placement.ProtoReflect().SetUnknown([]byte{0xf8, 0x3f, 1})
	nestedBody, err := proto.Marshal(nested)
	require.NoError(t, err)
	part := func(data []byte) []byte {
		b, err := encodeCommand(&chainPart{chain: requestID{1}, parts: 1, data: data}, testTerm)
		require.NoError(t, err)
		return newProposal(b).data
	}
	kind := pb.CommandType_COMMAND_CREATE_TOPIC
	for name, data := range map[string][]byte{
		"type":                  newProposal(appendCommand(nil, 99, testTerm, nil)).data,
		"no type":               newProposal(appendCommand(nil, 0, testTerm, nil)).data,
		"field of the entry":    field(newProposal(encoded).data),
		"field of the envelope": newProposal(field(encoded)).data,
		"field of the command":  newProposal(appendCommand(nil, kind, testTerm, field(body))).data,
		"field below it":        newProposal(appendCommand(nil, kind, testTerm, nestedBody)).data,
		"garbage body":          newProposal(appendCommand(nil, kind, testTerm, []byte{0xff, 0xff})).data,
		"garbage":               {0xff, 0xff, 0xff},
		"type in a chain":       part(appendCommand(nil, 99, testTerm, nil)),
		"garbage in a chain":    part([]byte{0xff}),
		"chain in a chain":      part(appendCommand(nil, pb.CommandType_COMMAND_CHAIN_PART, testTerm, nil)),
	} {
		t.Run(name, func(t *testing.T) {
			f := threeBrokers(t)
			before, images := f.image(), len(f.images)
			good := f.entry(topicCommand(2, "before", on(1)))
			f.next++
			bad := &raft.Log{Index: f.next, Term: testTerm, Type: raft.LogCommand, Data: data}
			after := f.entry(topicCommand(3, "after", on(1)))
			f.ApplyBatch([]*raft.Log{good, bad})
			answer := f.Apply(after)
			require.Len(t, f.failures, 1, "reported once")
			require.ErrorIs(t, answer.(error), ErrFailed)
			require.Equal(t, before.st, f.st)
			require.Len(t, f.images, images)
			_, err := f.Snapshot()
			require.ErrorIs(t, err, ErrFailed)
			require.ErrorIs(t, f.Restore(io.NopCloser(bytes.NewReader(nil))), ErrFailed)
		})
	}
}

// M9: a command decided on in another term has no effect, also inside a chain.
func TestCommandOfAnotherTerm(t *testing.T) {
	f := threeBrokers(t)
	old := f.entry(topicCommand(2, "late", on(1)))
	old.Term = testTerm + 1
	require.Equal(t, []result{{err: ErrNotController}}, f.Apply(old))
	whole, err := encodeCommand(topicCommand(2, "late", on(1)), testTerm-1)
	require.NoError(t, err)
	_, err = f.do(&chainPart{chain: requestID{1}, parts: 1, data: whole})
	require.ErrorIs(t, err, ErrNotController)
	require.Nil(t, f.image().Topic("late"))
}

// Commands of one batch see each other, share one publication, and leave every published Image as it was.
func TestBatchPublishesOnce(t *testing.T) {
	f := threeBrokers(t)
	before, hash, images := f.image(), stateHash(f.st, f.index), len(f.images)
	entries := []*raft.Log{
		f.entry(topicCommand(2, "a", on(1)), topicCommand(3, "a", on(1)), &deleteTopic{id: TopicID{1}}),
		{Index: f.next + 1, Term: testTerm, Type: raft.LogConfiguration},
	}
	f.next++
	entries = append(entries, f.entry(topicCommand(4, "orders", on(3)), f.again(broker(1, 2))))
	out := f.ApplyBatch(entries)
	require.Nil(t, out[1])
	require.ErrorIs(t, out[0].([]result)[1].err, ErrTopicExists)
	require.Len(t, f.images, images+1)
	require.Equal(t, f.next, f.image().Version())
	require.Equal(t, int32(1), f.image().Topic("a").Partitions[0].LeaderEpoch, "the registration saw the topic")
	require.Equal(t, TopicID{4}, f.image().Topic("orders").ID)
	require.Equal(t, hash, stateHash(before.st, before.version), "the old Image is as it was")
	checkState(t, f.st)
}

// I14, M1: FSMs that apply the same entries, in whatever batches, or from a snapshot taken anywhere, have equal hashes.
func TestReplayIsDeterministic(t *testing.T) {
	t.Run("topics", func(t *testing.T) { replayIsDeterministic(t, workload(newTestFSM(t), 300)) })
	t.Run("groups", func(t *testing.T) {
		f := newTestFSM(t)
		entries := groupWorkload(f, 400)
		require.Greater(t, f.st.groups.len(), 5)
		require.Greater(t, f.st.offsetCount, 5)
		require.NotZero(t, f.st.lastGenerations.len())
		replayIsDeterministic(t, entries)
	})
	t.Run("transactions", func(t *testing.T) {
		f := newTestFSM(t)
		entries := transactionWorkload(f, 400)
		require.Greater(t, f.st.transactions.len(), 5)
		require.NotZero(t, f.st.active.len())
		require.NotZero(t, f.st.pending.len())
		require.NotZero(t, f.st.offsetCount)
		replayIsDeterministic(t, entries)
	})
}

func replayIsDeterministic(t *testing.T, entries []*raft.Log) {
	f := newTestFSM(t)
	var hashes [][32]byte
	for _, e := range entries {
		f.Apply(e)
		hashes = append(hashes, stateHash(f.st, f.index))
	}
	checkState(t, f.st)
	require.NotEqual(t, hashes[0], hashes[len(hashes)-1])
	for range 2 {
		g := newTestFSM(t)
		for i, e := range entries {
			g.Apply(e)
			require.Equal(t, hashes[i], stateHash(g.st, g.index), "after entry %d", i)
		}
	}
	for _, batch := range []int{7, 64, len(entries)} {
		g := newTestFSM(t)
		at := 0
		for chunk := range slices.Chunk(entries, batch) {
			g.ApplyBatch(chunk)
			at += len(chunk)
			require.Equal(t, hashes[at-1], stateHash(g.st, g.index), "batches of %d", batch)
		}
	}
	g := newTestFSM(t)
	for i, e := range entries {
		if i%37 == 0 {
			h := newTestFSM(t)
			require.NoError(t, h.Restore(io.NopCloser(bytes.NewReader(snapshotBytes(t, g.st, g.index)))))
			g = h
		}
		g.Apply(e)
		require.Equal(t, hashes[i], stateHash(g.st, g.index), "after entry %d, with snapshots", i)
	}
}

// workload makes entries of all kinds of commands, most of them successful, some refused.
func workload(f *testFSM, n int) []*raft.Log {
	seq := uint32(1)
	random := func(n int) int { seq = seq*1664525 + 1013904223; return int(seq>>8) % n }
	entries := []*raft.Log{f.entry(&initCluster{clusterID: "millrace-w", featureLevel: 1}, broker(1, 1), broker(2, 1), broker(3, 1))}
	epochs := map[BrokerID]int64{1: 1, 2: 2, 3: 3}
	lastEpoch := int64(3)
	var next int64
	for i := range n {
		id := TopicID{byte(i), byte(i >> 8), 1}
		name := fmt.Sprintf("topic.%d", random(60))
		var c command
		old := random(i + 1)
		tp := topicIDPartition{TopicID{byte(old), byte(old >> 8), 1}, int32(random(2))}
		bid := BrokerID(random(3) + 1)
		policy := partitionPolicy{minInsync: random(3), flushLazily: random(2) == 0}
		switch random(15) {
		case 0, 1, 2:
			c = &createTopic{id: id, name: name, sets: []replicaSet{on(1, 2, 3), on(3, 1)}, configs: map[string]string{"a": "1", "b": name}}
		case 3:
			c = &deleteTopic{id: TopicID{byte(old), byte(old >> 8), 1}, request: requestID{byte(i)}}
		case 4:
			c = &createPartitions{id: TopicID{byte(old), byte(old >> 8), 1}, expectedCount: 2, sets: []replicaSet{on(2)}}
		case 5:
			c = &alterConfigs{broker: NoBroker, expectedVersion: uint64(i), set: map[string]string{"k": name, "l": ""}}
		case 6:
			c = &allocateProducerIDs{expectedNext: next, count: 1000}
			next += 1000
		case 7:
			b := BrokerID(random(3) + 1)
			reg := broker(b, byte(i+2))
			reg.expectedEpoch = epochs[b]
			reg.tailsProven, reg.policy, reg.broker.Fenced = random(2) == 0, policy, random(3) == 0
			lastEpoch++
			epochs[b] = lastEpoch
			c = reg
		case 8:
			c = &alterBroker{broker: bid, epoch: epochs[bid], fenced: pb.Switch(random(2)), draining: pb.Switch(random(3)), removing: pb.Switch(random(3)), policy: policy}
		case 9:
			c = &alterBroker{broker: bid, epoch: epochs[bid], leaving: pb.Switch_SWITCH_ON, offline: []DirectoryID{{byte(bid)}}, policy: policy}
			if random(4) > 0 {
				c = &assignBrokerID{directory: DirectoryID{90, byte(i)}, want: NoBroker}
			}
		case 10:
			c = &alterPartitions{leader: bid, leaderBrokerEpoch: epochs[bid], policy: policy, changes: []PartitionChange{
				{TopicID: tp.topic, Partition: tp.partition, ISR: []ISRMember{{bid, -1}}}, {TopicID: tp.topic, Partition: 1, ISR: []ISRMember{{bid, epochs[bid]}}},
			}}
		case 11:
			e := election{topicIDPartition: tp}
			if i%2 == 0 {
				e.leader = bid
			}
			c = &electLeaders{unclean: i%2 == 0, policy: policy, elections: []election{e}}
		case 12:
			c = &reassignPartition{topicIDPartition: tp, target: on(bid), policy: policy}
			if random(3) == 0 {
				c = &reassignPartition{topicIDPartition: tp, target: on(bid, bid%3+1), policy: policy}
			}
		case 13:
			c = &unregisterBroker{broker: bid + 5, epoch: 1}
			if random(2) == 0 {
				c = &setFeatureLevel{expected: 1, level: 1}
			}
		case 14:
			c = &pruneTombstones{through: uint64(i / 2)}
		}
		if random(5) == 0 {
			whole, err := encodeCommand(c, testTerm)
			require.NoError(f.t, err)
			half := len(whole) / 2
			entries = append(entries, f.entry(&chainPart{chain: requestID{byte(i), 9}, parts: 2, data: whole[:half]}))
			entries = append(entries, f.entry(&chainPart{chain: requestID{byte(i), 9}, part: 1, parts: 2, data: whole[half:]}))
			continue
		}
		entries = append(entries, f.entry(c))
	}
	return entries
}

// groupWorkload makes entries of all kinds of commands about groups, at the feature level that has them, most of them
// successful, some refused. It needs an FSM to itself: f is left in the state after them.
func groupWorkload(f *testFSM, n int) (entries []*raft.Log) {
	seq := uint32(7)
	random := func(n int) int { seq = seq*1664525 + 1013904223; return int(seq>>8) % n }
	do := func(commands ...command) {
		e := f.entry(commands...)
		entries = append(entries, e)
		f.Apply(e)
	}
	do(&initCluster{clusterID: "millrace-g", featureLevel: GroupsFeatureLevel}, broker(1, 1), broker(2, 1), broker(3, 1))
	do(topicCommand(1, "orders", on(1, 2, 3), on(2, 3, 1)), topicCommand(2, "clicks", on(1), on(2), on(3)))
	sequence := uint64(0)
	for i := range n {
		name := fmt.Sprintf("group-%d", random(25))
		by, _ := f.image().Coordinator(GroupCoordinator, name)
		if random(20) == 0 {
			by = BrokerID(random(3) + 1)
		}
		b := f.st.broker(by)
		if b == nil {
			b = f.st.broker(1)
		}
		var revision uint64
		g := f.st.group(name)
		if g != nil {
			revision = g.Revision
		}
		if random(15) == 0 {
			revision++
		}
		member := func(i int) *GroupMember {
			return &GroupMember{ID: fmt.Sprintf("m%d", i), ClientID: "c", ClientHost: "/10.0.0.1", SessionTimeout: 45e9, RebalanceTimeout: 60e9,
				Protocols: []GroupProtocol{{"range", []byte{1, byte(i)}}, {"sticky", nil}}}
		}
		switch random(10) {
		case 0, 1, 2:
			c := &changeGroup{broker: b.ID, epoch: b.Epoch, group: &Group{Name: name, Type: ClassicGroup, State: GroupCompleting, Revision: revision,
				Generation: f.st.lastGeneration(name) + 1, ProtocolType: "consumer", Protocol: "range", Leader: "m1"}}
			for range random(4) {
				c.upsert = append(c.upsert, member(random(5)))
			}
			c.remove = []string{fmt.Sprintf("m%d", random(5))}
			do(c)
		case 3:
			c := &changeGroup{broker: b.ID, epoch: b.Epoch, group: &Group{Name: name, Type: ConsumerGroup, State: GroupStable, Revision: revision,
				Generation: f.st.lastGeneration(name) + 1, AssignmentEpoch: int32(i), Assignor: "uniform", TopicsHash: uint64(i) << 40}}
			c.upsert = []*GroupMember{{ID: fmt.Sprintf("m%d", random(5)), InstanceID: "i1", Rack: "r", MemberEpoch: int32(i), PreviousMemberEpoch: 3, State: 2,
				Subscription: []string{"orders"}, SubscriptionRegex: "o.*", ServerAssignor: "range", Target: []TopicPartitions{{TopicID: TopicID{1}, Partitions: []int32{0, 1}}},
				Assigned: []TopicPartitions{{TopicID: TopicID{1}, Partitions: []int32{0}, Epochs: []int32{2}}}, Revoking: []TopicPartitions{{TopicID: TopicID{2}, Partitions: []int32{2}}}}}
			do(c)
		case 4:
			if g != nil && len(g.Members) > 0 {
				do(&changeGroup{broker: b.ID, epoch: b.Epoch, group: &Group{Name: name, Type: g.Type, State: GroupStable, Revision: revision, Generation: g.Generation},
					assign: []MemberAssignment{{g.Members[0].ID, []byte("part")}}})
				continue
			}
			do(&changeGroup{broker: b.ID, epoch: b.Epoch, group: &Group{Name: name, Type: ClassicGroup, Revision: revision}, delete: true, time: int64(i)})
		case 5, 6, 7:
			sequence++
			c := &commitOffsets{broker: b.ID, epoch: b.Epoch, coordinatorEpoch: f.st.coordinatorEpoch, lane: uint32(i % 2), sequence: sequence}
			for range 3 {
				commit := OffsetCommit{Group: fmt.Sprintf("group-%d", random(25)), Generation: -1, Time: int64(i), Offsets: []OffsetEntry{
					{TopicID{1}, int32(random(3)), int64(i), -1, ""}, {TopicID{2}, int32(random(3)), int64(i), int32(random(3)), []string{"", "note"}[random(2)]}}}
				if g != nil && len(g.Members) > 0 && random(2) == 0 {
					commit.Group, commit.Member, commit.Generation = name, g.Members[0].ID, g.Generation
				}
				if random(4) == 0 {
					commit.ExpiresAt = int64(i) + 1
				}
				c.commits = append(c.commits, commit)
			}
			do(c)
		case 8:
			do(&deleteOffsets{broker: b.ID, epoch: b.Epoch, group: name, partitions: []TopicIDPartition{{TopicID{1}, 0}, {TopicID{2}, int32(random(3))}}})
			if g != nil {
				do(&changeGroup{broker: b.ID, epoch: b.Epoch, group: &Group{Name: name, Type: ClassicGroup, Revision: g.Revision, Generation: g.Generation, EmptySince: int64(i)},
					remove: []string{"m0", "m1", "m2", "m3", "m4"}})
			}
			for _, c := range f.image().expirations(b.ID, int64(i), 20, nil) {
				c.epoch = b.Epoch
				do(c)
			}
		case 9:
			fenced := f.st.broker(BrokerID(random(3) + 1))
			do(&alterBroker{broker: fenced.ID, epoch: fenced.Epoch, fenced: pb.Switch(1 + i%2), fencedIndex: fenced.fencedIndex, leaving: pb.Switch(random(8) / 7)})
			if random(5) == 0 {
				do(f.again(broker(fenced.ID, byte(i))))
			}
			if random(12) == 0 {
				do(&deleteTopic{id: TopicID{2}, request: requestID{byte(i)}})
			}
		}
	}
	return entries
}

// M3: a snapshot is of the moment it was asked for, whatever is applied while it is written. With -race this also shows
// that nobody writes to a published state.
func TestSnapshotDuringApply(t *testing.T) {
	f := newTestFSM(t)
	entries := workload(f, 400)
	f.ApplyBatch(entries[:200])
	want := snapshotBytes(t, f.st, f.index)
	snap, err := f.Snapshot()
	require.NoError(t, err)
	sink := &memorySink{}
	started := make(chan struct{})
	sink.onWrite = sync.OnceFunc(func() { close(started) })
	var wg sync.WaitGroup
	wg.Go(func() { err = snap.Persist(sink) })
	<-started
	for _, e := range entries[200:] {
		f.Apply(e)
	}
	wg.Wait()
	require.NoError(t, err)
	require.True(t, sink.closed)
	require.Equal(t, want, sink.Bytes())
	require.NotEqual(t, want, snapshotBytes(t, f.st, f.index))
}

// memorySink is a raft.SnapshotSink; its writes fail from byte failAt on, if that is > 0.
type memorySink struct {
	bytes.Buffer
	failAt            int
	failClose         error
	closed, cancelled bool
	onWrite           func()
}

var errTestIO = errors.New("input/output error")

func (s *memorySink) Write(p []byte) (int, error) {
	if s.onWrite != nil {
		s.onWrite()
	}
	if s.failAt > 0 && s.Len()+len(p) >= s.failAt {
		return 0, errTestIO
	}
	return s.Buffer.Write(p)
}

func (s *memorySink) Close() error  { s.closed = true; return s.failClose }
func (s *memorySink) Cancel() error { s.cancelled = true; return nil }
func (s *memorySink) ID() string    { return "memory" }

// A snapshot that can't be written in full is cancelled, never closed.
func TestPersistFails(t *testing.T) {
	f := threeBrokers(t)
	snap, err := f.Snapshot()
	require.NoError(t, err)
	sink := &memorySink{failAt: 1}
	require.ErrorIs(t, snap.Persist(sink), errTestIO)
	require.True(t, sink.cancelled)
	require.False(t, sink.closed)
	persisted := false
	f.persisted = func() { persisted = true }
	snap, err = f.Snapshot()
	require.NoError(t, err)
	require.ErrorIs(t, snap.Persist(&memorySink{failClose: errTestIO}), errTestIO)
	require.False(t, persisted)
	require.NoError(t, snap.Persist(&memorySink{}))
	require.True(t, persisted)
	snap.Release()
}
