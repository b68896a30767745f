package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/integration/peer"
	"github.com/millrace/millrace/log/record"
)

// TestAnswersAsKafka asks Apache Kafka and millrace the same, good and bad, in
// every version which both serve, and compares the answers field by field:
// error codes, offsets, epochs, shapes. Words of messages, ids and addresses are
// their own.
func TestAnswersAsKafka(t *testing.T) {
	requirePeer(t)
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	defer cancel()
	settings := []string{"auto.create.topics.enable=false", "group.initial.rebalance.delay.ms=0"}
	// The records of the questions are years old, and half a minute after its start Apache Kafka would look for such, and delete them.
	k, err := peer.StartKafka(ctx, t.TempDir(), append(settings, "log.initial.task.delay.ms=3600000", "offsets.topic.num.partitions=1", "offsets.topic.replication.factor=1",
		"transaction.state.log.num.partitions=1", "transaction.state.log.replication.factor=1", "transaction.state.log.min.isr=1")...)
	require.NoError(t, err)
	t.Cleanup(k.Close)
	ours := startBroker(t, settings...)
	for peer.AskMetadata(ctx, k.Addr) != nil {
		select {
		case <-ctx.Done():
			t.Fatal("Apache Kafka does not answer")
		case <-k.Done():
			t.Fatalf("Apache Kafka ended:\n%s", k.Output())
		case <-time.After(50 * time.Millisecond):
		}
	}
	pair := &answerPair{ours: &askedBroker{addr: ours.Addr, producers: map[string]askedProducer{}}, kafka: &askedBroker{addr: k.Addr, producers: map[string]askedProducer{}}}
	pair.ours.versions, pair.kafka.versions = versionsOf(ctx, t, ours.Addr), versionsOf(ctx, t, k.Addr)
	for _, q := range questions() {
		pair.ask(ctx, t, q)
	}
	groupAnswers(ctx, t, pair)
	commitAnswers(ctx, t, pair)
	transactionAnswers(ctx, t, pair)
}

// A question is one request. It is asked in every version from min on.
type question struct {
	name     string
	key      int16
	min, max int16 // 0: all
	exact    bool  // only in version min
	once     bool  // only in the newest version, since it changes something
	build    func(b *askedBroker, req kmsg.Request)
	after    func(b *askedBroker, resp kmsg.Response) // may be nil: looks at each answer
	until    string                                   // asked again until this is in the answer
	settles  bool                                     // a code 88 in the answer is of the moment
	anyOrder bool                                     // lists of the answer are in no order
	// better tells why ours is not Kafka's answer, on purpose.
	better string
	// loose names fields that are not compared here, each with its reason beside it.
	loose []string
}

type askedBroker struct {
	addr     string
	versions map[int16][2]int16
	topicID  [16]byte // of the topic that was created last

	producers map[string]askedProducer // by transactional id
}

type answerPair struct{ ours, kafka *askedBroker }

func (p *answerPair) ask(ctx context.Context, t *testing.T, q question) {
	ov, kv := p.ours.versions[q.key], p.kafka.versions[q.key]
	low, high := max(ov[0], kv[0], q.min), min(ov[1], kv[1])
	if q.max > 0 {
		high = min(high, q.max)
	}
	if q.once {
		low = high
	}
	if q.exact {
		low, high = max(low, q.min), min(high, q.min)
	}
	settled := func(b *askedBroker, v int16) (said string, err error) {
		for {
			said, err = b.answer(ctx, q, v)
			again := strings.Contains(said, `"ErrorCode":14,`) || strings.Contains(said, `"ErrorCode":51,`) || !strings.Contains(said, q.until) ||
				q.settles && strings.Contains(said, `"ErrorCode":88,`)
			if err != nil || !again || ctx.Err() != nil { // it is still getting ready, or writing markers
				return said, err
			}
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond): // asking without a pause takes from it what it needs to get ready
			}
		}
	}
	for v := low; v <= high; v++ {
		want, err := settled(p.kafka, v)
		if err != nil {
			t.Errorf("Apache Kafka: %s v%d: %v", q.name, v, err)
			continue
		}
		got, err := settled(p.ours, v)
		if err != nil {
			t.Errorf("%s v%d: %v, Kafka answers\n%s", q.name, v, err, want)
			continue
		}
		if want != got && q.better == "" {
			t.Errorf("%s v%d:\nKafka %s\nours  %s", q.name, v, want, got)
		}
	}
}

func (b *askedBroker) answer(ctx context.Context, q question, version int16) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req := kmsg.RequestForKey(q.key)
	req.SetVersion(version)
	q.build(b, req)
	body, err := roundTrip(ctx, b.addr, req)
	if err != nil {
		return "", err
	}
	resp := req.ResponseKind()
	if err := resp.ReadFrom(body); err != nil {
		return "", err
	}
	if created, ok := resp.(*kmsg.CreateTopicsResponse); ok && q.name == "create" {
		b.topicID = created.Topics[0].TopicID
	}
	if q.after != nil {
		q.after(b, resp)
	}
	if described, ok := resp.(*kmsg.DescribeConfigsResponse); ok { // in no order
		for i := range described.Resources {
			r := &described.Resources[i]
			r.Configs = slices.DeleteFunc(r.Configs, func(c kmsg.DescribeConfigsResponseResourceConfig) bool { return notBoth.MatchString(c.Name) })
			slices.SortFunc(r.Configs, func(a, b kmsg.DescribeConfigsResponseResourceConfig) int { return strings.Compare(a.Name, b.Name) })
		}
	}
	encoded, err := json.Marshal(resp)
	if err != nil {
		return "", err
	}
	var tree any
	if err := json.Unmarshal(encoded, &tree); err != nil {
		return "", err
	}
	tree = ownLeftOut(tree, q.loose)
	if q.anyOrder {
		inOrder(tree)
	}
	encoded, err = json.Marshal(tree)
	return string(encoded), err
}

// inOrder sorts all lists by what is in them.
func inOrder(v any) {
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			inOrder(x)
		}
		slices.SortFunc(v, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	case map[string]any:
		for _, x := range v {
			inOrder(x)
		}
	}
}

// ownLeftOut leaves out what belongs to a broker: words, ids and addresses.
func ownLeftOut(v any, loose []string) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = ownLeftOut(v[i], loose)
		}
	case map[string]any:
		for name, field := range v {
			switch name {
			case "ErrorMessage", "Host", "Port", "ClusterID", "ThrottleMillis", "UnknownTags", "LogDir", "ProducerID", "SessionID":
				delete(v, name)
			case "TopicID":
				v[name] = fmt.Sprint(field) != fmt.Sprint(make([]int, 16))
			default:
				v[name] = ownLeftOut(field, loose)
			}
			for _, l := range loose {
				if name == l {
					delete(v, name)
				}
			}
		}
	}
	return v
}

// notBoth are topic keys of ours or Kafka's alone, keys of older brokers which we
// still take, and one whose default Kafka's controller
// keeps as a dynamic config; ours bounds what is decompressed more tightly.
var notBoth = regexp.MustCompile(`^(millrace\..*|max\.decompressed\.message\.bytes|message\.(downconversion\.enable|format\.version|timestamp\.difference\.max\.ms)|min\.insync\.replicas)$`)

func versionsOf(ctx context.Context, t *testing.T, addr string) map[int16][2]int16 {
	t.Helper()
	req := kmsg.NewPtrApiVersionsRequest()
	req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = 3, "answers", "1"
	body, err := roundTrip(ctx, addr, req)
	require.NoError(t, err)
	resp := req.ResponseKind().(*kmsg.ApiVersionsResponse)
	require.NoError(t, resp.ReadFrom(body))
	versions := map[int16][2]int16{}
	for _, k := range resp.ApiKeys {
		versions[k.ApiKey] = [2]int16{k.MinVersion, k.MaxVersion}
	}
	return versions
}

// ask makes the function that fills in one kind of request.
func ask[R any](fill func(b *askedBroker, req *R)) func(*askedBroker, kmsg.Request) {
	return func(b *askedBroker, req kmsg.Request) { fill(b, any(req).(*R)) }
}

func questions() []question {
	var all []question
	for _, group := range [][]question{createQuestions(), produceQuestions(), readQuestions(), configQuestions(), changeQuestions(), featureQuestions()} {
		all = append(all, group...)
	}
	return all
}

func createQuestions() []question {
	create := func(name, topic string, partitions int32, replicas int16, more ...func(*kmsg.CreateTopicsRequestTopic)) question {
		return question{name: name, key: 19, min: 4, build: ask(func(_ *askedBroker, req *kmsg.CreateTopicsRequest) {
			rt := kmsg.NewCreateTopicsRequestTopic()
			rt.Topic, rt.NumPartitions, rt.ReplicationFactor = topic, partitions, replicas
			for _, f := range more {
				f(&rt)
			}
			req.Topics, req.TimeoutMillis = append(req.Topics, rt), 15000
		}), loose: []string{"Configs"}} // every key with its default: compared by the table of keys
	}
	config := func(k, v string) func(*kmsg.CreateTopicsRequestTopic) {
		return func(rt *kmsg.CreateTopicsRequestTopic) {
			c := kmsg.NewCreateTopicsRequestTopicConfig()
			c.Name, c.Value = k, &v
			rt.Configs = append(rt.Configs, c)
		}
	}
	assigned := func(replicas ...[]int32) func(*kmsg.CreateTopicsRequestTopic) {
		return func(rt *kmsg.CreateTopicsRequestTopic) {
			for i, r := range replicas {
				a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
				a.Partition, a.Replicas = int32(i), r
				rt.ReplicaAssignment = append(rt.ReplicaAssignment, a)
			}
		}
	}
	first := create("create", "t", 2, 1)
	first.once = true
	twice := create("create twice in a request", "twice", 1, 1)
	build := twice.build
	twice.build = func(b *askedBroker, req kmsg.Request) { build(b, req); build(b, req) }
	return []question{
		first,
		create("create existing", "t", 1, 1),
		twice,
		create("create with a bad name", "no/such!", 1, 1),
		create("create with an empty name", "", 1, 1),
		create("create with the name ..", "..", 1, 1),
		create("create with a long name", strings.Repeat("n", 250), 1, 1),
		create("create without partitions", "p0", 0, 1),
		create("create with -2 partitions", "p2", -2, 1),
		create("create without replicas", "r0", 1, 0),
		create("create with two replicas", "r2", 1, 2),
		create("create with an unknown config", "c1", 1, 1, config("no.such.key", "1")),
		create("create with a bad value", "c2", 1, 1, config("retention.ms", "soon")),
		create("create with a value out of range", "c3", 1, 1, config("segment.bytes", "-5")),
		create("create with a bad policy", "c4", 1, 1, config("cleanup.policy", "burn")),
		create("create with a bad codec", "c5", 1, 1, config("compression.type", "brotli")),
		create("create with more in sync than replicas", "c6", 1, 1, config("min.insync.replicas", "0")),
		create("create with an unknown broker", "a1", -1, -1, assigned([]int32{7})),
		create("create with a broker twice", "a2", -1, -1, assigned([]int32{1, 1})),
		create("create with partitions and assignment", "a3", 1, 1, assigned([]int32{1})),
		create("create with an empty assignment", "a4", -1, -1, assigned([]int32{})),
	}
}

func produceQuestions() []question {
	produce := func(name, topic string, partition int32, acks int16, records func() []byte) question {
		return question{name: name, key: 0, min: 3, build: ask(func(b *askedBroker, req *kmsg.ProduceRequest) {
			rp := kmsg.NewProduceRequestTopicPartition()
			rp.Partition, rp.Records = partition, records()
			rt := kmsg.NewProduceRequestTopic()
			rt.Topic = topic
			if topic == "t" {
				rt.TopicID = b.topicID
			} else {
				rt.TopicID = [16]byte{9, 9, 9}
			}
			rt.Partitions = append(rt.Partitions, rp)
			req.Topics, req.Acks, req.TimeoutMillis = append(req.Topics, rt), acks, 15000
		})}
	}
	batch := func(change ...func(record.Batch)) func() []byte {
		return func() []byte {
			b := record.NewBuilder(0)
			for i := range 3 {
				b.Add(1_700_000_000_000+int64(i)*1000, []byte("k"), []byte(fmt.Sprint("v", i)), nil)
			}
			built := b.Build()
			built.Seal()
			for _, f := range change {
				f(built)
			}
			return built
		}
	}
	large := func() []byte {
		b := record.NewBuilder(0)
		b.Add(1, nil, bytes.Repeat([]byte("x"), 2<<20), nil)
		built := b.Build()
		built.Seal()
		return built
	}
	sealed := func(f func(record.Batch)) func(record.Batch) {
		return func(b record.Batch) { f(b); b.Seal() }
	}
	codec7 := produce("produce codec 7", "t", 0, -1, batch(sealed(func(b record.Batch) { b[22] |= 7 })))
	codec7.better = "76 says what is wrong, Kafka's -1 nothing"
	return []question{
		codec7,
		produce("produce", "t", 0, -1, batch()),
		produce("produce acks=1", "t", 0, 1, batch()),
		produce("produce acks=2", "t", 0, 2, batch()),
		produce("produce acks=-2", "t", 0, -2, batch()),
		produce("produce to an unknown topic", "nope", 0, -1, batch()),
		produce("produce to an unknown partition", "t", 9, -1, batch()),
		produce("produce to a negative partition", "t", -1, -1, batch()),
		produce("produce too large", "t", 0, -1, large),
		produce("produce a bad checksum", "t", 0, -1, batch(func(b record.Batch) { b[len(b)-1] ^= 1 })),
		produce("produce half a batch", "t", 0, -1, func() []byte { return batch()()[:80] }),
		produce("produce a header alone", "t", 0, -1, func() []byte { return batch()()[:30] }),
		produce("produce two batches", "t", 0, -1, func() []byte { return append(batch()(), batch()()...) }),
		produce("produce no records", "t", 0, -1, func() []byte { return []byte{} }),
		produce("produce magic 1", "t", 0, -1, batch(func(b record.Batch) { b[16] = 1 })),
		produce("produce magic 3", "t", 0, -1, batch(func(b record.Batch) { b[16] = 3 })),
		produce("produce a control batch", "t", 0, -1, batch(sealed(func(b record.Batch) { b[22] |= 0x20 }))),
		produce("produce a transactional batch without an id", "t", 0, -1, batch(sealed(func(b record.Batch) { b[22] |= 0x10 }))),
		produce("produce a wrong count", "t", 0, -1, batch(sealed(func(b record.Batch) { b[60] = 9 }))),
		produce("produce a base offset above zero", "t", 0, -1, batch(func(b record.Batch) { b.SetBaseOffset(77) })),
		produce("produce an unknown producer's first sequence", "t", 1, -1, batch(sealed(func(b record.Batch) { b[50], b[52], b[56] = 1, 0, 5 }))),
	}
}

func readQuestions() []question {
	list := func(name, topic string, partition int32, ts int64, more ...func(*kmsg.ListOffsetsRequestTopicPartition)) question {
		return question{name: name, key: 2, min: 1, build: ask(func(_ *askedBroker, req *kmsg.ListOffsetsRequest) {
			rp := kmsg.NewListOffsetsRequestTopicPartition()
			rp.Partition, rp.Timestamp = partition, ts
			for _, f := range more {
				f(&rp)
			}
			rt := kmsg.NewListOffsetsRequestTopic()
			rt.Topic, rt.Partitions = topic, append(rt.Partitions, rp)
			req.ReplicaID, req.Topics = -1, append(req.Topics, rt)
		})}
	}
	listEpoch := func(e int32) func(*kmsg.ListOffsetsRequestTopicPartition) {
		return func(rp *kmsg.ListOffsetsRequestTopicPartition) { rp.CurrentLeaderEpoch = e }
	}
	fetch := func(name, topic string, partition int32, offset int64, more ...func(*kmsg.FetchRequest, *kmsg.FetchRequestTopicPartition)) question {
		return question{name: name, key: 1, min: 4, build: ask(func(b *askedBroker, req *kmsg.FetchRequest) {
			rp := kmsg.NewFetchRequestTopicPartition()
			rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes = partition, offset, 1<<20
			req.ReplicaID, req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.SessionEpoch = -1, 0, 1, 50<<20, -1
			for _, f := range more {
				f(req, &rp)
			}
			rt := kmsg.NewFetchRequestTopic()
			rt.Topic, rt.TopicID = topic, [16]byte{9, 9, 9}
			if topic == "t" {
				rt.TopicID = b.topicID
			}
			rt.Partitions = append(rt.Partitions, rp)
			req.Topics = append(req.Topics, rt)
		}), loose: []string{"RecordBatches"}} // compared by the client script, byte for byte
	}
	fetchEpoch := func(e int32) func(*kmsg.FetchRequest, *kmsg.FetchRequestTopicPartition) {
		return func(_ *kmsg.FetchRequest, rp *kmsg.FetchRequestTopicPartition) { rp.CurrentLeaderEpoch = e }
	}
	session := func(id, epoch int32) func(*kmsg.FetchRequest, *kmsg.FetchRequestTopicPartition) {
		return func(req *kmsg.FetchRequest, _ *kmsg.FetchRequestTopicPartition) {
			req.SessionID, req.SessionEpoch = id, epoch
		}
	}
	isolation := func(i int8) func(*kmsg.FetchRequest, *kmsg.FetchRequestTopicPartition) {
		return func(req *kmsg.FetchRequest, _ *kmsg.FetchRequestTopicPartition) { req.IsolationLevel = i }
	}
	epoch := func(name, topic string, current, asked int32) question {
		return question{name: name, key: 23, min: 2, build: ask(func(_ *askedBroker, req *kmsg.OffsetForLeaderEpochRequest) {
			rp := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
			rp.CurrentLeaderEpoch, rp.LeaderEpoch = current, asked
			rt := kmsg.NewOffsetForLeaderEpochRequestTopic()
			rt.Topic, rt.Partitions = topic, append(rt.Partitions, rp)
			req.ReplicaID, req.Topics = -1, append(req.Topics, rt)
		})}
	}
	return []question{
		list("list the end", "t", 0, -1), list("list the start", "t", 0, -2), list("list the maximum", "t", 0, -3), list("list the local start", "t", 0, -4),
		list("list tiered", "t", 0, -5), list("list -6", "t", 0, -6), list("list -7", "t", 0, -7), list("list time 0", "t", 0, 0),
		list("list a time", "t", 0, 1_700_000_001_500), list("list a late time", "t", 0, 1_900_000_000_000), list("list an empty partition", "t", 1, -3),
		list("list an unknown topic", "nope", 0, -1), list("list an unknown partition", "t", 9, -1), list("list by an old epoch", "t", 0, -1, listEpoch(-5)), list("list by a new epoch", "t", 0, -1, listEpoch(99)),
		fetch("fetch", "t", 0, 0), fetch("fetch the end", "t", 0, 36), fetch("fetch out of range", "t", 0, 5000), fetch("fetch a negative offset", "t", 0, -9), fetch("fetch an unknown topic", "nope", 0, 0),
		fetch("fetch an unknown partition", "t", 9, 0), fetch("fetch by a new epoch", "t", 0, 0, fetchEpoch(99)), fetch("fetch committed", "t", 0, 0, isolation(1)),
		fetch("fetch an empty partition", "t", 1, 0), fetch("fetch an unknown session", "t", 0, 0, session(12345, 3)), fetch("fetch a session epoch without a session", "t", 0, 0, session(0, 5)), fetch("fetch a full session", "t", 0, 0, session(0, 0)),
		epoch("epoch 0", "t", -1, 0), epoch("epoch 50", "t", -1, 50), epoch("epoch -1", "t", -1, -1), epoch("epoch by a new epoch", "t", 99, 0), epoch("epoch of an unknown topic", "nope", -1, 0),
		metadata("metadata of one", false, "t"), metadata("metadata of an unknown one", false, "nope"), metadata("metadata of a bad name", false, "no/such!"), metadata("metadata of an empty name", false, ""),
		metadata("metadata of none", true), metadata("metadata of all", false),
		{name: "metadata of an unknown id", key: 3, min: 12, build: ask(func(_ *askedBroker, req *kmsg.MetadataRequest) {
			rt := kmsg.NewMetadataRequestTopic()
			rt.TopicID = [16]byte{9, 9, 9}
			req.Topics = append(req.Topics, rt)
		})},
		{name: "cluster", key: 60, build: ask(func(_ *askedBroker, _ *kmsg.DescribeClusterRequest) {})},
		{name: "cluster with operations", key: 60, build: ask(func(_ *askedBroker, req *kmsg.DescribeClusterRequest) { req.IncludeClusterAuthorizedOperations = true })},
		{name: "cluster with fenced brokers", key: 60, min: 2, build: ask(func(_ *askedBroker, req *kmsg.DescribeClusterRequest) { req.IncludeFencedBrokers = true })},
		elect("elect all", 0), elect("elect one that has its leader", 0, "t"), elect("elect uncleanly one that has a leader", 1, "t"), elect("elect an unknown topic", 0, "nope"),
		elect("elect none", 0, ""), elect("elect by an unknown kind", 9, "t"),
		reassign("reassign nothing", "", 0), reassign("cancel no reassignment", "t", 0), reassign("reassign an unknown topic", "nope", 0, 1),
		reassign("reassign an unknown partition", "t", 99, 1), reassign("reassign to nobody", "t", 0, -2), reassign("reassign to an unknown broker", "t", 0, 77),
		reassign("reassign to one broker twice", "t", 0, 1, 1), reassign("reassign to where it is", "t", 0, 1),
		{name: "reassignments", key: 46, build: ask(func(_ *askedBroker, _ *kmsg.ListPartitionReassignmentsRequest) {})},
		{name: "reassignments of an unknown topic", key: 46, build: ask(func(_ *askedBroker, req *kmsg.ListPartitionReassignmentsRequest) {
			rt := kmsg.NewListPartitionReassignmentsRequestTopic()
			rt.Topic, rt.Partitions = "nope", []int32{0}
			req.Topics = append(req.Topics, rt)
		})},
		quorum("quorum", "__cluster_metadata", 0), quorum("quorum of another partition", "__cluster_metadata", 1), quorum("quorum of a topic", "t", 0),
		{name: "producer id", key: 22, build: ask(func(_ *askedBroker, req *kmsg.InitProducerIDRequest) { req.TransactionTimeoutMillis = 1000 })},
	}
}

func elect(name string, kind int8, topics ...string) question {
	better := ""
	if topics == nil {
		better = "a topic in which nothing was elected is not named, with no partitions, in an answer about all"
	}
	return question{name: name, better: better, key: 43, build: ask(func(_ *askedBroker, req *kmsg.ElectLeadersRequest) {
		req.ElectionType, req.TimeoutMillis = kind, 5000
		for _, topic := range topics {
			req.Topics = []kmsg.ElectLeadersRequestTopic{}
			if topic != "" {
				rt := kmsg.NewElectLeadersRequestTopic()
				rt.Topic, rt.Partitions = topic, []int32{0}
				req.Topics = append(req.Topics, rt)
			}
		}
	})}
}

// reassign asks for replicas; none cancels, and -2 stands for an empty list.
func reassign(name, topic string, partition int32, replicas ...int32) question {
	return question{name: name, key: 45, build: ask(func(_ *askedBroker, req *kmsg.AlterPartitionAssignmentsRequest) {
		req.TimeoutMillis = 5000
		if topic == "" {
			return
		}
		rt := kmsg.NewAlterPartitionAssignmentsRequestTopic()
		rt.Topic = topic
		rp := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
		if rp.Partition, rp.Replicas = partition, replicas; len(replicas) == 1 && replicas[0] == -2 {
			rp.Replicas = []int32{}
		}
		rt.Partitions = append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
	})}
}

func quorum(name, topic string, partition int32) question {
	return question{name: name, key: 55, build: ask(func(_ *askedBroker, req *kmsg.DescribeQuorumRequest) {
		rt := kmsg.NewDescribeQuorumRequestTopic()
		rt.Topic = topic
		rp := kmsg.NewDescribeQuorumRequestTopicPartition()
		rp.Partition = partition
		rt.Partitions = append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
	}), loose: []string{"LeaderEpoch", "HighWatermark", "LogEndOffset", "LastFetchTimestamp", "LastCaughtUpTimestamp", "ReplicaDirectoryID", // each its own
		"Listeners"}, // a broker that is alone has none for others
	}
}

func metadata(name string, none bool, topics ...string) question {
	return question{name: name, key: 3, min: 1, build: ask(func(_ *askedBroker, req *kmsg.MetadataRequest) {
		if none {
			req.Topics = []kmsg.MetadataRequestTopic{}
		}
		req.IncludeTopicAuthorizedOperations, req.IncludeClusterAuthorizedOperations = true, true
		for _, topic := range topics {
			rt := kmsg.NewMetadataRequestTopic()
			rt.Topic = &topic
			req.Topics = append(req.Topics, rt)
		}
	})}
}

func configQuestions() []question {
	describe := func(name string, kind kmsg.ConfigResourceType, resource string, keys ...string) question {
		return question{name: name, key: 32, min: 1, build: ask(func(_ *askedBroker, req *kmsg.DescribeConfigsRequest) {
			rr := kmsg.NewDescribeConfigsRequestResource()
			rr.ResourceType, rr.ResourceName, rr.ConfigNames = kind, resource, keys
			req.Resources, req.IncludeSynonyms = append(req.Resources, rr), true
		}), loose: []string{"Documentation"}} // words
	}
	increment := func(name string, kind kmsg.ConfigResourceType, resource, key string, op kmsg.IncrementalAlterConfigOp, value *string) question {
		return question{name: name, key: 44, build: ask(func(_ *askedBroker, req *kmsg.IncrementalAlterConfigsRequest) {
			rr := kmsg.NewIncrementalAlterConfigsRequestResource()
			rr.ResourceType, rr.ResourceName = kind, resource
			rc := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
			rc.Name, rc.Op, rc.Value = key, op, value
			rr.Configs = append(rr.Configs, rc)
			req.Resources = append(req.Resources, rr)
		})}
	}
	alter := func(name string, kind kmsg.ConfigResourceType, resource, key, value string) question {
		return question{name: name, key: 33, build: ask(func(_ *askedBroker, req *kmsg.AlterConfigsRequest) {
			rr := kmsg.NewAlterConfigsRequestResource()
			rr.ResourceType, rr.ResourceName = kind, resource
			rc := kmsg.NewAlterConfigsRequestResourceConfig()
			rc.Name, rc.Value = key, &value
			rr.Configs = append(rr.Configs, rc)
			req.Resources = append(req.Resources, rr)
		})}
	}
	value := func(s string) *string { return &s }
	const topic, broker = kmsg.ConfigResourceTypeTopic, kmsg.ConfigResourceTypeBroker
	shows := func(value string, q question) question {
		q.until = `"Value":"` + value + `"` // a broker of Kafka hears of a change a moment after it is answered
		return q
	}
	operation9 := increment("operation 9", topic, "t", "retention.ms", 9, value("1"))
	operation9.better = "42 says what is wrong, Kafka's -1 nothing"
	return []question{
		describe("describe a topic's keys", topic, "t", "retention.ms", "cleanup.policy", "max.message.bytes", "no.such.key"),
		describe("describe all of a topic", topic, "t"),
		describe("describe an unknown topic", topic, "nope"), describe("describe a bad name", topic, "no/such!"), describe("describe an unknown broker", broker, "77"),
		describe("describe a broker by a word", broker, "one"), describe("describe type 99", 99, "x"),
		increment("set a key", topic, "t", "retention.ms", 0, value("3600000")),
		shows("3600000", describe("describe the changed key", topic, "t", "retention.ms")),
		increment("set an unknown key", topic, "t", "no.such.key", 0, value("1")), increment("set a bad value", topic, "t", "retention.ms", 0, value("soon")),
		increment("set without a value", topic, "t", "retention.ms", 0, nil), increment("append to a number", topic, "t", "retention.ms", 2, value("1")), increment("append to a list", topic, "t", "cleanup.policy", 2, value("compact")),
		shows("delete,compact", describe("describe the longer list", topic, "t", "cleanup.policy")),
		increment("subtract from a list", topic, "t", "cleanup.policy", 3, value("compact")), operation9,
		increment("set on an unknown topic", topic, "nope", "retention.ms", 0, value("1")), increment("set on an unknown broker", broker, "77", "log.cleaner.threads", 0, value("2")),
		increment("set on a broker by a word", broker, "one", "log.cleaner.threads", 0, value("2")), increment("set on type 99", 99, "x", "a", 0, value("1")),
		alter("replace the keys", topic, "t", "segment.bytes", "16777216"), shows("16777216", describe("describe the replaced keys", topic, "t", "retention.ms", "segment.bytes")),
		alter("replace by an unknown key", topic, "t", "no.such.key", "1"), alter("replace on an unknown topic", topic, "nope", "segment.bytes", "16777216"), alter("replace by a bad value", topic, "t", "segment.bytes", "big"),
	}
}

func changeQuestions() []question {
	partitions := func(name, topic string, count int32, assigned ...[]int32) question {
		return question{name: name, key: 37, build: ask(func(_ *askedBroker, req *kmsg.CreatePartitionsRequest) {
			rt := kmsg.NewCreatePartitionsRequestTopic()
			rt.Topic, rt.Count = topic, count
			for _, a := range assigned {
				ra := kmsg.NewCreatePartitionsRequestTopicAssignment()
				ra.Replicas = a
				rt.Assignment = append(rt.Assignment, ra)
			}
			req.Topics, req.TimeoutMillis = append(req.Topics, rt), 15000
		})}
	}
	trim := func(name, topic string, partition int32, offset int64) question {
		return question{name: name, key: 21, build: ask(func(_ *askedBroker, req *kmsg.DeleteRecordsRequest) {
			rp := kmsg.NewDeleteRecordsRequestTopicPartition()
			rp.Partition, rp.Offset = partition, offset
			rt := kmsg.NewDeleteRecordsRequestTopic()
			rt.Topic, rt.Partitions = topic, append(rt.Partitions, rp)
			req.Topics, req.TimeoutMillis = append(req.Topics, rt), 15000
		})}
	}
	remove := func(name string, topics ...string) question {
		return question{name: name, key: 20, min: 1, build: ask(func(_ *askedBroker, req *kmsg.DeleteTopicsRequest) {
			req.TopicNames, req.TimeoutMillis = topics, 15000
			for _, topic := range topics {
				rt := kmsg.NewDeleteTopicsRequestTopic()
				rt.Topic = &topic
				req.Topics = append(req.Topics, rt)
			}
		})}
	}
	last := remove("delete", "t")
	last.once = true
	return []question{
		partitions("fewer partitions", "t", 1), partitions("as many partitions", "t", 2), partitions("no partitions", "t", 0), partitions("negative partitions", "t", -1), partitions("partitions of an unknown topic", "nope", 4),
		{name: "partitions with no assignments", key: 37, build: ask(func(_ *askedBroker, req *kmsg.CreatePartitionsRequest) {
			rt := kmsg.NewCreatePartitionsRequestTopic()
			rt.Topic, rt.Count, rt.Assignment = "t", 5, []kmsg.CreatePartitionsRequestTopicAssignment{}
			req.Topics, req.TimeoutMillis = append(req.Topics, rt), 15000
		})},
		partitions("partitions on an unknown broker", "t", 3, []int32{7}), partitions("too few assignments", "t", 4, []int32{1}), partitions("too many assignments", "t", 3, []int32{1}, []int32{1}), partitions("an empty assignment", "t", 3, []int32{}),
		trim("trim", "t", 0, 2), trim("trim to before", "t", 0, 1), trim("trim above the end", "t", 0, 5000), trim("trim to -2", "t", 0, -2), trim("trim an unknown topic", "nope", 0, 1), trim("trim an unknown partition", "t", 9, 1), trim("trim all", "t", 0, -1),
		remove("delete an unknown topic", "nope"), remove("delete a bad name", "no/such!"), remove("delete twice in a request", "nope", "nope"), remove("delete nothing"),
		{name: "delete by an unknown id", key: 20, min: 6, build: ask(func(_ *askedBroker, req *kmsg.DeleteTopicsRequest) {
			rt := kmsg.NewDeleteTopicsRequestTopic()
			rt.TopicID, req.TimeoutMillis = [16]byte{9, 9, 9}, 15000
			req.Topics = append(req.Topics, rt)
		})},
		last,
		{name: "metadata after the end", key: 3, min: 1, until: `"ErrorCode":3,`, build: metadata("", false, "t").build},
	}
}
