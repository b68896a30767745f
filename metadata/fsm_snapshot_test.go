package metadata

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

func snapshotBytes(t require.TestingT, st *state, index uint64) []byte {
	var b bytes.Buffer
	require.NoError(t, writeSnapshot(&b, st, index))
	return b.Bytes()
}

// M4: Restore(Persist(s)) = s, for states whose every field, at any depth, has a random value. A field that is added to
// state or to anything in it, and not to the snapshot, fails here: it comes back as zero.
func TestSnapshotEveryField(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		st := drawState(t)
		index := rapid.Uint64().Draw(t, "index")
		encoded := snapshotBytes(t, st, index)
		back, at, err := readSnapshot(bytes.NewReader(encoded))
		require.NoError(t, err)
		require.Equal(t, index, at)
		requireSameState(t, st, back)
		checkTree(t, back.topics)
		require.Equal(t, encoded, snapshotBytes(t, back, at), "and has the same hash")
		require.Equal(t, stateHash(st, index), stateHash(back, at))
	})
}

// drawState fills every field of a state by reflection, but for the trees and what is derived from them, which it fills
// through a draft. It panics on a field of a type it does not know, so that a new one can't be forgotten.
func drawState(t *rapid.T) *state {
	st := newState()
	v := reflect.ValueOf(st).Elem()
	d := &draft{edit: new(edit)}
	for i := range v.NumField() {
		switch name := v.Type().Field(i).Name; name {
		case "topics", "tombstones", "topicIDs", "collisions", "partitions", "groups", "lastGenerations", "offsets", "coordinators", "offsetCount",
			"transactions", "pending", "producers", "active":
			continue // below
		case "coordinatorEpoch":
			st.coordinatorEpoch = rapid.Int32Range(1, math.MaxInt32).Draw(t, name)
		case "groupRevision":
			st.groupRevision = rapid.Uint64Range(1<<40, math.MaxUint64).Draw(t, name)
		case "transactionRevision":
			st.transactionRevision = rapid.Uint64Range(1<<40, math.MaxUint64).Draw(t, name)
		case "commitSequences":
			for j := range rapid.IntRange(0, 4).Draw(t, name) {
				c := draw(t, reflect.TypeFor[commitSequence]()).Interface().(commitSequence)
				c.Broker, c.Lane = BrokerID(j/2), uint32(j%2)
				st.commitSequences = append(st.commitSequences, c)
			}
		case "clusterID":
			st.clusterID = rapid.StringN(1, 30, 60).Draw(t, name)
		case "featureLevel":
			st.featureLevel = rapid.Uint32Range(1, MaxFeatureLevel).Draw(t, name)
		case "nextBrokerID":
			st.nextBrokerID = BrokerID(rapid.Int32Range(1<<30, math.MaxInt32).Draw(t, name))
		case "identities":
			for j := range rapid.IntRange(0, 3).Draw(t, name) {
				id := draw(t, reflect.TypeFor[identity]()).Interface().(identity)
				id.Directory[0], id.Broker = byte(j), id.Broker%(1<<30)
				st.identities = append(st.identities, &id)
			}
		case "lastBrokerEpoch":
			st.lastBrokerEpoch = rapid.Int64Range(1, math.MaxInt64).Draw(t, name)
		case "nextProducerID":
			st.nextProducerID = rapid.Int64Range(1, math.MaxInt64).Draw(t, name)
		case "balance":
			if rapid.Bool().Draw(t, name) {
				st.balance = draw(t, reflect.TypeFor[*balance]()).Interface().(*balance)
				if rapid.Bool().Draw(t, "no plan yet") {
					st.balance.Plan = nil
				}
			}
		case "brokers":
			for j := range rapid.IntRange(0, 4).Draw(t, name) {
				b := draw(t, reflect.TypeFor[Broker]()).Interface().(Broker)
				b.ID = BrokerID(j * 3)
				st.brokers = append(st.brokers, &b)
			}
		case "configs":
			for j := range rapid.IntRange(0, 3).Draw(t, name) {
				c := draw(t, reflect.TypeFor[brokerConfigs]()).Interface().(brokerConfigs)
				c.ID = BrokerID(j*2 - 1)
				st.configs = append(st.configs, &c)
			}
		case "chains":
			for range rapid.IntRange(0, maxChains).Draw(t, name) {
				c := draw(t, reflect.TypeFor[chain]()).Interface().(chain)
				c.Parts = uint32(len(c.Bodies)) + 1 + c.Parts%5
				st.chains = append(st.chains, &c)
			}
		default:
			panic("drawState does not know the field " + name + " of state; fsm_snapshot.go may not either")
		}
	}
	d.st = *st
	for i := range rapid.IntRange(0, 5).Draw(t, "topics") {
		topic := draw(t, reflect.TypeFor[Topic]()).Interface().(Topic)
		topic.Name = fmt.Sprintf("t%d%s", i, []string{"", ".", "_x"}[i%3])
		if i == 0 && rapid.Bool().Draw(t, "large") {
			for len(topic.Partitions) <= partitionsPerRecord {
				topic.Partitions = append(topic.Partitions, topic.Partitions...)
			}
		}
		d.putTopic(&topic, true)
	}
	for i := range rapid.SampledFrom([]int{0, 1, 5, tombstonesPerRecord, tombstonesPerRecord + 1}).Draw(t, "tombstones") {
		var id TopicID
		binary.BigEndian.PutUint32(id[:], uint32(i)*2654435761)
		id[15] = 1
		stone := tombstone{Request: requestID{byte(i), 7}, Index: uint64(i) * 3}
		d.st.tombstones = d.st.tombstones.set(d.edit, id, stone)
	}
	drawGroups(t, d)
	drawTransactions(t, d)
	d.st.coordinators = d.st.findCoordinators()
	return d.publish()
}

// drawGroups fills groups, offsets and last generations.
func drawGroups(t *rapid.T, d *draft) {
	for i := range rapid.IntRange(0, 3).Draw(t, "groups") {
		g := draw(t, reflect.TypeFor[Group]()).Interface().(Group)
		g.Name = fmt.Sprintf("g%d", i)
		g.Type = rapid.SampledFrom([]GroupType{ClassicGroup, ConsumerGroup}).Draw(t, "type")
		g.State = rapid.SampledFrom([]GroupState{GroupEmpty, GroupCompleting, GroupStable}).Draw(t, "state")
		for j, m := range g.Members {
			m.ID = fmt.Sprintf("m%d", j)
			if j == 0 && rapid.IntRange(0, 20).Draw(t, "large") == 0 {
				m.Assignment = bytes.Repeat([]byte{1}, memberBytesPerRecord)
			}
		}
		if rapid.Bool().Draw(t, "empty") {
			g.Members = nil
		} else {
			g.EmptySince = 0
		}
		d.st.groups = d.st.groups.set(d.edit, g.Name, &g)
		n := rapid.SampledFrom([]int{0, 1, 3, offsetsPerRecord, offsetsPerRecord + 1}).Draw(t, "offsets")
		for j := range n {
			o := CommittedOffset{Offset: int64(j), LeaderEpoch: -1, CommittedAt: int64(j) + 1}
			if j < 5 {
				o = draw(t, reflect.TypeFor[CommittedOffset]()).Interface().(CommittedOffset)
				if rapid.Bool().Draw(t, "no metadata") {
					o.Metadata, o.LeaderEpoch = "", -1
				}
				if rapid.Bool().Draw(t, "no expiry") {
					o.ExpiresAt = 0
				}
			}
			d.putOffset(d.ownOffsets(g.Name), TopicIDPartition{TopicID{byte(j % 3), 1}, int32(j)}, o)
		}
	}
	for i := range rapid.SampledFrom([]int{0, 1, 3, lastGenerationsPerRecord + 1}).Draw(t, "last generations") {
		last := lastGeneration{Generation: int32(i) + 1, DeletedAt: int64(i) * 7}
		d.st.lastGenerations = d.st.lastGenerations.set(d.edit, fmt.Sprintf("old%d", i), last)
	}
}

// drawTransactions fills transactional ids and pending offsets.
func drawTransactions(t *rapid.T, d *draft) {
	var partitions []TopicPartitions
	d.st.eachTopic(func(topic *Topic) bool {
		partitions = addPartitions(partitions, []TopicPartitions{{TopicID: topic.ID, Partitions: []int32{int32(len(topic.Partitions)) - 1, 0}}})
		return true
	})
	var ongoing []int64
	for i := range rapid.IntRange(0, 5).Draw(t, "transactions") {
		x := draw(t, reflect.TypeFor[Transaction]()).Interface().(Transaction)
		x.ID = fmt.Sprintf("x%d", i)
		x.State = rapid.SampledFrom([]TransactionState{0, 1, 1, 2, 3, 4, 5}).Draw(t, "state")
		x.Revision = x.Number + uint64(rapid.IntRange(0, 3).Draw(t, "revision"))
		x.ProducerID, x.MarkerProducerID = int64(3*i), int64(3*i+rapid.IntRange(0, 1).Draw(t, "another producer id"))
		x.Partitions, x.Groups = partitions, nil
		if x.State.Prepared() && partitions == nil {
			x.State += 2
		}
		if x.State == TransactionOngoing {
			x.Groups, ongoing = []string{"g0", "g1", "g2"}, append(ongoing, x.ProducerID)
			if rapid.Bool().Draw(t, "has no partitions") {
				x.Partitions = nil
			}
		}
		if !x.State.Active() {
			x.Partitions = nil
		}
		if !x.State.Prepared() {
			x.MarkerProducerID, x.MarkerEpoch = -1, -1
		}
		if rapid.IntRange(0, 10).Draw(t, "large") == 0 {
			x.ID += strings.Repeat("x", transactionBytesPerRecord)
		}
		d.indexTransaction(nil, &x)
		d.st.transactions = d.st.transactions.set(d.edit, x.ID, &x)
	}
	for name := range d.st.groups.all() {
		for _, producer := range ongoing {
			n := rapid.SampledFrom([]int{0, 1, 3, offsetsPerRecord, offsetsPerRecord + 1}).Draw(t, "pending")
			for j := range n {
				o := pendingOffset{order: uint64(j) + 1, superseded: j%700 == 699}
				o.CommittedOffset = CommittedOffset{Offset: int64(j), LeaderEpoch: -1, CommittedAt: int64(j) + 1}
				if j < 3 {
					o.CommittedOffset = draw(t, reflect.TypeFor[CommittedOffset]()).Interface().(CommittedOffset)
					o.superseded = rapid.Bool().Draw(t, "superseded")
				}
				d.putPendingOffset(d.ownPending(name), producer, TopicIDPartition{TopicID{byte(j * 3 / n), 1}, int32(j)}, o)
			}
		}
	}
}

// draw makes a value of a type with no zero in it: numbers and ids are not 0, strings, lists and maps not empty. Slices
// that must have the length of another one get it.
func draw(t *rapid.T, typ reflect.Type) reflect.Value {
	v := reflect.New(typ).Elem()
	switch typ {
	case reflect.TypeFor[time.Duration]():
		v.SetInt(int64(time.Millisecond) * rapid.Int64Range(1, 1<<40).Draw(t, "milliseconds"))
		return v
	case reflect.TypeFor[TopicPartitions]():
		tps := TopicPartitions{TopicID: TopicID{1, byte(rapid.IntRange(1, 255).Draw(t, "topic"))}, Partitions: []int32{0, 7}}
		if rapid.Bool().Draw(t, "epochs") {
			tps.Epochs = []int32{0, 5}
		}
		return reflect.ValueOf(tps)
	}
	switch typ.Kind() {
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	case reflect.Int8, reflect.Int16:
		v.SetInt(rapid.Int64Range(1, math.MaxInt8).Draw(t, "int"))
	case reflect.Int32, reflect.Int64:
		v.SetInt(rapid.Int64Range(1, math.MaxInt32).Draw(t, "int"))
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(rapid.Uint64Range(1, 255).Draw(t, "uint"))
	case reflect.String:
		v.SetString(rapid.StringN(1, 5, 20).Draw(t, "string"))
	case reflect.Array:
		for i := range v.Len() {
			v.Index(i).Set(draw(t, typ.Elem()))
		}
	case reflect.Slice:
		n := rapid.IntRange(1, 3).Draw(t, "len")
		v.Set(reflect.MakeSlice(typ, n, n))
		for i := range n {
			v.Index(i).Set(draw(t, typ.Elem()))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(typ))
		for range rapid.IntRange(1, 3).Draw(t, "len") {
			v.SetMapIndex(draw(t, typ.Key()), draw(t, typ.Elem()))
		}
	case reflect.Pointer:
		p := reflect.New(typ.Elem())
		p.Elem().Set(draw(t, typ.Elem()))
		return p
	case reflect.Struct:
		if typ == reflect.TypeFor[Partition]() {
			return reflect.ValueOf(drawPartition(t))
		}
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.Name == "configVersion" || f.Name == "fencedIndex" {
				// Not settable by reflection; see below.
				continue
			} else if !f.IsExported() {
				panic("draw can't fill the field " + f.Name + " of " + typ.String())
			}
			v.Field(i).Set(draw(t, v.Field(i).Type()))
		}
		if topic, ok := v.Addr().Interface().(*Topic); ok {
			topic.configVersion = rapid.Uint64Range(1, 1000).Draw(t, "config version")
		}
		if b, ok := v.Addr().Interface().(*Broker); ok {
			b.fencedIndex = rapid.Uint64Range(1, 1000).Draw(t, "fenced index")
		}
	default:
		panic("draw does not know the type " + typ.String())
	}
	return v
}

// drawPartition makes a partition with distinct replicas, and ISR, ELR and leader among them, as checkPartition demands.
func drawPartition(t *rapid.T) Partition {
	p := Partition{
		LeaderEpoch:    rapid.Int32Range(1, math.MaxInt32).Draw(t, "leader epoch"),
		PartitionEpoch: rapid.Int32Range(1, math.MaxInt32).Draw(t, "partition epoch"),
		Leader:         NoBroker,
	}
	if n := reflect.TypeFor[Partition]().NumField(); n != 11 {
		panic(fmt.Sprintf("drawPartition fills 11 fields, Partition has %d", n))
	}
	for i := range rapid.IntRange(1, 5).Draw(t, "replicas") {
		id := BrokerID(i*7 + rapid.IntRange(0, 6).Draw(t, "replica"))
		p.Replicas = append(p.Replicas, id)
		p.Directories = append(p.Directories, DirectoryID{byte(rapid.IntRange(1, 3).Draw(t, "directory"))})
		switch rapid.IntRange(0, 2).Draw(t, "is in") {
		case 0:
			p.ISR = append(p.ISR, id)
		case 1:
			p.ELR = append(p.ELR, id)
		}
	}
	p.UncleanEpoch = rapid.SampledFrom([]int32{-1, 0, p.LeaderEpoch}).Draw(t, "unclean epoch")
	p.LastLeader = rapid.SampledFrom(append([]BrokerID{NoBroker}, p.Replicas...)).Draw(t, "last leader")
	if len(p.ISR) > 0 {
		p.Leader = rapid.SampledFrom(p.ISR).Draw(t, "leader")
		p.LastLeader = p.Leader
	}
	if rapid.Bool().Draw(t, "reassigning") {
		p.Adding = p.Replicas[:1:1]
		if len(p.Replicas) > 1 {
			p.Removing = p.Replicas[1:]
		}
	}
	return p
}

// requireSameState compares two states field by field, trees by their entries.
func requireSameState(t require.TestingT, want, got *state) {
	w, g := reflect.ValueOf(want).Elem(), reflect.ValueOf(got).Elem()
	for i := range w.NumField() {
		name := w.Type().Field(i).Name
		if strings.HasPrefix(w.Field(i).Type().String(), "metadata.tree[") {
			continue
		}
		require.Equal(t, fmt.Sprintf("%+v", unexported(w.Field(i))), fmt.Sprintf("%+v", unexported(g.Field(i))), "field %s", name)
	}
	require.Equal(t, want.brokers, got.brokers)
	require.Equal(t, want.configs, got.configs)
	require.Equal(t, want.chains, got.chains)
	require.Equal(t, want.balance, got.balance)
	require.Equal(t, want.identities, got.identities)
	require.Equal(t, entriesOf(want.topics), entriesOf(got.topics))
	require.Equal(t, entriesOf(want.tombstones), entriesOf(got.tombstones))
	require.Equal(t, entriesOf(want.topicIDs), entriesOf(got.topicIDs))
	require.Equal(t, entriesOf(want.collisions), entriesOf(got.collisions))
	require.Equal(t, want.commitSequences, got.commitSequences)
	require.Equal(t, want.coordinators, got.coordinators)
	require.Equal(t, entriesOf(want.groups), entriesOf(got.groups))
	require.Equal(t, entriesOf(want.lastGenerations), entriesOf(got.lastGenerations))
	require.Equal(t, want.offsets.len(), got.offsets.len())
	for name, of := range want.offsets.all() {
		back, ok := got.offsets.get(name)
		require.True(t, ok)
		require.Equal(t, offsetMap(of), offsetMap(back))
		checkOffsets(t, back)
	}
	require.Equal(t, entriesOf(want.transactions), entriesOf(got.transactions))
	require.Equal(t, entriesOf(want.active), entriesOf(got.active))
	require.Equal(t, entriesOf(want.producers), entriesOf(got.producers))
	require.Equal(t, want.pending.len(), got.pending.len())
	for name, of := range want.pending.all() {
		back, ok := got.pending.get(name)
		require.True(t, ok)
		require.Equal(t, entriesOf(of.holders), entriesOf(back.holders))
		require.Equal(t, of.producers.len(), back.producers.len())
		for id, pending := range of.producers.all() {
			p, _ := back.producers.get(id)
			require.Equal(t, entriesOf(pending.offsets), entriesOf(p.offsets))
		}
	}
}

// unexported prints scalars; pointers and slices are compared by their contents in requireSameState.
func unexported(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Slice:
		return v.Len()
	case reflect.Pointer:
		return v.IsNil()
	}
	return v.String() + fmt.Sprint(v)
}

func entriesOf[K comparable, V any](tr tree[K, V]) map[K]V {
	m := make(map[K]V)
	for k, v := range tr.all() {
		m[k] = v
	}
	return m
}

// M5: whatever error reading a snapshot meets, at any byte, the state stays what it was.
func TestRestoreFailsWhole(t *testing.T) {
	f := threeBrokers(t)
	f.must(&deleteTopic{id: TopicID{1}})
	f.must(topicCommand(2, "a", on(1, 2)))
	snapshot := snapshotBytes(t, f.st, f.index)
	g := threeBrokers(t)
	before, images := *g.st, len(g.images)
	hash := stateHash(g.st, g.index)
	for cut := range len(snapshot) {
		for _, end := range []error{nil, errTestIO} {
			var r io.Reader = bytes.NewReader(snapshot[:cut])
			if end != nil {
				r = io.MultiReader(r, iotest.ErrReader(end))
			}
			err := g.Restore(io.NopCloser(r))
			require.Error(t, err, "cut at %d of %d", cut, len(snapshot))
			if end != nil {
				require.ErrorIs(t, err, errTestIO)
			}
			require.Len(t, g.images, images, "nothing was published")
			require.Equal(t, hash, stateHash(g.st, g.index))
		}
	}
	require.Equal(t, before.clusterID, g.st.clusterID)
	require.Error(t, g.Restore(io.NopCloser(bytes.NewReader(append(bytes.Clone(snapshot), 0)))), "more after the footer")
	require.NoError(t, g.Restore(io.NopCloser(iotest.OneByteReader(bytes.NewReader(snapshot)))))
	require.Equal(t, stateHash(f.st, f.index), stateHash(g.st, g.index))
	require.Len(t, g.images, images+1)
}

// A flipped bit anywhere in a snapshot is found.
func TestSnapshotBitFlips(t *testing.T) {
	f := threeBrokers(t)
	snapshot := snapshotBytes(t, f.st, f.index)
	for i := range len(snapshot) * 8 {
		snapshot[i/8] ^= 1 << (i % 8)
		_, _, err := readSnapshot(bytes.NewReader(snapshot))
		require.Error(t, err, "bit %d of byte %d", i%8, i/8)
		snapshot[i/8] ^= 1 << (i % 8)
	}
	_, _, err := readSnapshot(bytes.NewReader(snapshot))
	require.NoError(t, err)
}

// framed makes a snapshot of records with right checksums, for records that no writer would write.
func framed(t testing.TB, records ...*pb.SnapshotRecord) []byte {
	out := []byte(snapshotMagic)
	for _, rec := range records {
		b, err := proto.Marshal(rec)
		require.NoError(t, err)
		out = binary.LittleEndian.AppendUint32(out, uint32(len(b)))
		out = binary.LittleEndian.AppendUint32(out, crc32.Checksum(b, castagnoli))
		out = append(out, b...)
	}
	return out
}

// A snapshot whose checksums are right and whose contents no sequence of commands could have made is refused.
func TestSnapshotOfImpossibleState(t *testing.T) {
	header := &pb.SnapshotRecord{Record: &pb.SnapshotRecord_Header{Header: &pb.SnapshotHeader{FeatureLevel: 1}}}
	footer := func(n uint64) *pb.SnapshotRecord {
		return &pb.SnapshotRecord{Record: &pb.SnapshotRecord_Footer{Footer: &pb.SnapshotFooter{Records: n}}}
	}
	topic := func(id byte, name string, partitions uint32) *pb.SnapshotRecord {
		return &pb.SnapshotRecord{Record: &pb.SnapshotRecord_Topic{Topic: &pb.SnapshotTopic{
			TopicId: append([]byte{id}, make([]byte, 15)...), Name: name, Partitions: partitions}}}
	}
	partitions := func(n int, change func(*pb.SnapshotPartitions)) *pb.SnapshotRecord {
		var ps []*Partition
		for range n {
			ps = append(ps, &Partition{Leader: 1, LastLeader: 1, UncleanEpoch: -1, Replicas: []BrokerID{1}, ISR: []BrokerID{1}, Directories: []DirectoryID{{1}}})
		}
		m := encodePartitions(ps)
		if change != nil {
			change(m)
		}
		return &pb.SnapshotRecord{Record: &pb.SnapshotRecord_Partitions{Partitions: m}}
	}
	brokerRecord := func(id int32) *pb.SnapshotRecord {
		return &pb.SnapshotRecord{Record: &pb.SnapshotRecord_Broker{Broker: &pb.Broker{Id: id, Incarnation: make([]byte, 16)}}}
	}
	_, _, err := readSnapshot(bytes.NewReader(framed(t, header, brokerRecord(1), topic(1, "a", 3), partitions(2, nil), partitions(1, nil), footer(5))))
	require.NoError(t, err, "the good one")
	for want, records := range map[string][]*pb.SnapshotRecord{
		"header missing":            {footer(0)},
		"not first":                 {header, header, footer(2)},
		"counts":                    {header, footer(2)},
		"empty record":              {header, {}, footer(2)},
		"out of order":              {header, brokerRecord(1), brokerRecord(1), footer(3)},
		"broker id":                 {header, brokerRecord(-1), footer(2)},
		"lacks 1":                   {header, topic(1, "a", 2), partitions(1, nil), footer(3)},
		"too many":                  {header, topic(1, "a", 2), partitions(3, nil), footer(3)},
		"no topic":                  {header, partitions(1, nil), footer(2)},
		"a twice":                   {header, topic(1, "a", 1), partitions(1, nil), topic(2, "a", 1), partitions(1, nil), footer(5)},
		"id AQAAAAAAAAAAAAAAAAAAAA": {header, topic(1, "a", 1), partitions(1, nil), topic(1, "b", 1), partitions(1, nil), footer(5)},
		"with 0 partitions":         {header, topic(1, "a", 0), footer(2)},
		"columns":                   {header, topic(1, "a", 1), partitions(1, func(m *pb.SnapshotPartitions) { m.Leaders = nil }), footer(3)},
		"ISR":                       {header, topic(1, "a", 1), partitions(1, func(m *pb.SnapshotPartitions) { m.IsrCounts[0] = 2 }), footer(3)},
		"ids of no partition":       {header, topic(1, "a", 1), partitions(1, func(m *pb.SnapshotPartitions) { m.Elr = []int32{1} }), footer(3)},
		"with 2 of":                 {header, topic(1, "a", 1), partitions(1, func(m *pb.SnapshotPartitions) { m.Placement.ReplicaCounts[0] = 2 }), footer(3)},
		"in directory 7":            {header, topic(1, "a", 1), partitions(1, func(m *pb.SnapshotPartitions) { m.Placement.ReplicaDirectories[0] = 7 }), footer(3)},
		"feature level":             {{Record: &pb.SnapshotRecord_Header{Header: &pb.SnapshotHeader{FeatureLevel: 99}}}, footer(1)},
		"tombstones of":             {header, {Record: &pb.SnapshotRecord_Tombstones{Tombstones: &pb.SnapshotTombstones{TopicIds: make([]byte, 17), RequestIds: make([]byte, 17)}}}, footer(2)},
		"chain 0000":                {header, {Record: &pb.SnapshotRecord_Chain{Chain: &pb.SnapshotChain{ChainId: make([]byte, 16), Parts: 1, Bodies: [][]byte{{1}}}}}, footer(2)},
		"config \"k\" twice":        {header, {Record: &pb.SnapshotRecord_Configs{Configs: &pb.SnapshotConfigs{Values: []*pb.KeyValue{{Key: "k"}, {Key: "k"}}}}}, footer(2)},
	} {
		_, _, err := readSnapshot(bytes.NewReader(framed(t, records...)))
		require.ErrorContains(t, err, want)
	}
}

// I13: a snapshot that ends before the present state is refused, and changes nothing; the same one again is taken.
func TestOlderSnapshotIsRefused(t *testing.T) {
	f := newTestFSM(t)
	take := func() io.ReadCloser {
		var b bytes.Buffer
		require.NoError(t, writeSnapshot(&b, f.st, f.index))
		return io.NopCloser(&b)
	}
	_, err := f.do(&initCluster{clusterID: "c", featureLevel: MaxFeatureLevel})
	require.NoError(t, err)
	older := take()
	_, err = f.do(&allocateProducerIDs{expectedNext: f.st.nextProducerID, count: 1000})
	require.NoError(t, err)
	before, images := f.st, len(f.images)
	require.ErrorIs(t, f.Restore(older), errOlderSnapshot)
	require.Same(t, before, f.st)
	require.Len(t, f.images, images, "nobody is told of an older state")
	require.Empty(t, f.failures)
	same := take()
	require.NoError(t, f.Restore(same))
	require.Equal(t, before.nextProducerID, f.st.nextProducerID)
}

// I13: a snapshot that a leader has given up, sent anew, and that is read after all by a follower which stood still, does not take
// the follower's state back, and the follower goes on.
func TestLateSnapshot(t *testing.T) {
	inQuorumWorld(t, 3, func(t *testing.T, w *quorumWorld) {
		for id := range BrokerID(3) {
			w.join(id + 1)
		}
		w.voting(1, 2, 3)
		lead := w.controller()
		follower := w.other(lead)
		at, servers, err := lead.configuration()
		require.NoError(t, err)
		im := lead.Image()
		var old bytes.Buffer
		require.NoError(t, writeSnapshot(&old, im.st, im.Version()))
		var entry raft.Log
		require.NoError(t, lead.logs.GetLog(im.Version(), &entry))
		_, err = lead.create("later", time.Minute)
		require.NoError(t, err)
		w.await("the follower has it", func() bool { return follower.Image().Topic("later") != nil })

		watched, version := follower.Watch(), follower.Image().Version()
		defer watched.Close()
		request := &raft.InstallSnapshotRequest{
			RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(lead.server().raft()), Addr: []byte(lead.address)}, SnapshotVersion: raft.SnapshotVersionMax,
			Term: lead.raft.CurrentTerm(), LastLogIndex: entry.Index, LastLogTerm: entry.Term, Size: int64(old.Len()),
			Configuration: raft.EncodeConfiguration(raft.Configuration{Servers: servers}), ConfigurationIndex: at,
		}
		var answer raft.InstallSnapshotResponse
		err = lead.trans.InstallSnapshot(follower.server().raft(), raft.ServerAddress(follower.address), request, &answer, &old)
		require.True(t, err != nil || !answer.Success)
		require.GreaterOrEqual(t, follower.Image().Version(), version)
		require.NotNil(t, follower.Image().Topic("later"))
		_, err = follower.create("last", time.Minute)
		require.NoError(t, err)
		require.GreaterOrEqual(t, follower.Image().Version(), version)
	})
}
