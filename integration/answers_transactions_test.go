package integration

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/log/record"
)

// askedProducer is a transactional producer of one broker.
type askedProducer struct {
	id    int64
	epoch int16
}

// producerEdit makes a producer that there is not.
type producerEdit func(id string, p askedProducer) (string, askedProducer)

func itself(id string, p askedProducer) (string, askedProducer) { return id, p }
func older(id string, p askedProducer) (string, askedProducer)  { p.epoch--; return id, p }
func newer(id string, p askedProducer) (string, askedProducer)  { p.epoch++; return id, p }
func impostor(id string, p askedProducer) (string, askedProducer) {
	p.id += 100_000
	return id, p
}
func stranger(_ string, p askedProducer) (string, askedProducer) { return "nobody has this id", p }
func nameless(_ string, p askedProducer) (string, askedProducer) { return "", p }
func nobody(id string, _ askedProducer) (string, askedProducer)  { return id, askedProducer{-1, -1} }

// transactionAnswers asks what transactional producers ask, and what they should not, in every version: KIP-98, KIP-360,
// KIP-588, KIP-664, KIP-890.
func transactionAnswers(ctx context.Context, t *testing.T, pair *answerPair) {
	find := question{name: "find", key: 10, build: ask(func(_ *askedBroker, req *kmsg.FindCoordinatorRequest) {
		req.CoordinatorType, req.CoordinatorKey, req.CoordinatorKeys = 1, "a", []string{"a"}
	})}
	// Kafka makes its topic of transactions when a coordinator is first asked for.
	for said := ""; !strings.Contains(said, `"ErrorCode":0`); {
		var err error
		said, err = pair.kafka.answer(ctx, find, 4)
		require.NoError(t, err)
	}
	for _, q := range transactionQuestions() {
		q.anyOrder = true
		pair.ask(ctx, t, q)
	}
}

func transactionQuestions() (all []question) {
	add := func(qs ...question) { all = append(all, qs...) }
	add(question{name: "create", key: 19, once: true, build: ask(func(_ *askedBroker, req *kmsg.CreateTopicsRequest) {
		rt := kmsg.NewCreateTopicsRequestTopic()
		rt.Topic, rt.NumPartitions, rt.ReplicationFactor = "txn", 4, 1
		req.Topics, req.TimeoutMillis = append(req.Topics, rt), 15000
	}), loose: []string{"Configs"}})
	for version := int16(0); version <= 5; version++ {
		add(initQuestions(version)...)
		add(addQuestions(version)...)
		if version <= 4 {
			add(addOffsetsQuestions(version)...)
		}
		add(endQuestions(version)...)
		add(badQuestions(version)...)
	}
	for version := int16(0); version <= 6; version++ {
		add(offsetQuestions(version)...)
		add(badOffsetQuestions(version)...)
	}
	for version := int16(3); version <= 13; version++ {
		add(transactionalProduceQuestions(version)...)
	}
	add(toolQuestions()...)
	return append(all, badToolQuestions()...)
}

// at is a question in one version.
func at(version int16, q question) question {
	q.name, q.min, q.exact = fmt.Sprintf("%s (%d)", q.name, version), version, true
	return q
}

// begin makes a producer that the questions after it use.
func begin(id string) question {
	return at(4, question{name: "begin " + id, key: 22, build: ask(func(_ *askedBroker, req *kmsg.InitProducerIDRequest) {
		req.TransactionalID, req.TransactionTimeoutMillis = &id, 60_000
	}), after: func(b *askedBroker, resp kmsg.Response) {
		r := resp.(*kmsg.InitProducerIDResponse)
		b.producers[id] = askedProducer{r.ProducerID, r.ProducerEpoch}
	}})
}

func initQuestions(version int16) []question {
	id := fmt.Sprint("init-", version)
	init := func(name string, transactionalID *string, timeout int32, edit func(p askedProducer) askedProducer) question {
		return at(version, question{name: "init producer " + name, key: 22, build: ask(func(b *askedBroker, req *kmsg.InitProducerIDRequest) {
			p := edit(b.producers[id])
			req.TransactionalID, req.TransactionTimeoutMillis, req.ProducerID, req.ProducerEpoch = transactionalID, timeout, p.id, p.epoch
		})})
	}
	none := func(askedProducer) askedProducer { return askedProducer{-1, -1} }
	empty := ""
	qs := []question{
		init("without an id", &empty, 1000, none), init("with a timeout of 0", &id, 0, none), init("with a negative timeout", &id, -1, none),
		init("with a long timeout", &id, 900_001, none), init("with the longest timeout", &id, 900_000, none), begin(id), init("again", &id, 60_000, none), begin(id),
	}
	if version < 3 {
		return qs
	}
	fresh := id + "-fresh"
	change := func(f func(*askedProducer)) func(askedProducer) askedProducer {
		return func(p askedProducer) askedProducer { f(&p); return p }
	}
	return append(qs,
		init("with its own pair", &id, 60_000, change(func(*askedProducer) {})),
		init("with its own pair again", &id, 60_000, change(func(*askedProducer) {})),
		init("with an older epoch", &id, 60_000, change(func(p *askedProducer) { p.epoch -= 2 })),
		init("with a later epoch", &id, 60_000, change(func(p *askedProducer) { p.epoch += 5 })),
		init("with another producer id", &id, 60_000, change(func(p *askedProducer) { p.id += 100_000 })),
		init("new, with a pair", &fresh, 60_000, func(askedProducer) askedProducer { return askedProducer{0, 0} }),
		init("with an id and no epoch", &id, 60_000, change(func(p *askedProducer) { p.epoch = -1 })),
		init("with an epoch and no id", &id, 60_000, change(func(p *askedProducer) { p.id = -1 })),
		init("without a transaction, with a pair", nil, 60_000, change(func(*askedProducer) {})),
		init("without a transaction, with half a pair", nil, 60_000, change(func(p *askedProducer) { p.epoch = -1 })),
	)
}

// describe asks for what a transactional id is in. Kafka counts offsets as a partition of its topic of offsets.
func describe(id string) question {
	return question{name: "describe " + id, key: 65, build: ask(func(_ *askedBroker, req *kmsg.DescribeTransactionsRequest) {
		req.TransactionalIDs = []string{id}
	}), loose: []string{"StartTimestamp"}}
}

type askedPartitions struct {
	topic      string
	partitions []int32
}

func addPartitions(version int16, id, name string, edit producerEdit, topics ...askedPartitions) question {
	return at(version, question{name: "add partitions " + name, key: 24, build: ask(func(b *askedBroker, req *kmsg.AddPartitionsToTxnRequest) {
		of, p := edit(id, b.producers[id])
		req.TransactionalID, req.ProducerID, req.ProducerEpoch = of, p.id, p.epoch
		tx := kmsg.NewAddPartitionsToTxnRequestTransaction()
		tx.TransactionalID, tx.ProducerID, tx.ProducerEpoch = of, p.id, p.epoch
		for _, t := range topics {
			rt := kmsg.NewAddPartitionsToTxnRequestTopic()
			rt.Topic, rt.Partitions = t.topic, t.partitions
			req.Topics = append(req.Topics, rt)
			tt := kmsg.NewAddPartitionsToTxnRequestTransactionTopic()
			tt.Topic, tt.Partitions = t.topic, t.partitions
			tx.Topics = append(tx.Topics, tt)
		}
		req.Transactions = append(req.Transactions, tx)
	})})
}

func addQuestions(version int16) []question {
	id := fmt.Sprint("add-", version)
	one := askedPartitions{"txn", []int32{2}}
	return []question{
		begin(id),
		addPartitions(version, id, "", itself, askedPartitions{"txn", []int32{0, 1}}), addPartitions(version, id, "again", itself, askedPartitions{"txn", []int32{1}}),
		addPartitions(version, id, "and name none", itself),
		addPartitions(version, id, "of which one has no topic", itself, one, askedPartitions{"nowhere", []int32{0}}),
		addPartitions(version, id, "of which one is none", itself, askedPartitions{"txn", []int32{2, 9}}),
		addPartitions(version, id, "with an older epoch", older, one), addPartitions(version, id, "with a later epoch", newer, one),
		addPartitions(version, id, "with another producer id", impostor, one), addPartitions(version, id, "of an id that is none", stranger, one),
		addPartitions(version, id, "without an id", nameless, one), addPartitions(version, id, "of nobody", nobody, one),
		describe(id),
	}
}

func addOffsets(version int16, id, name, group string, edit producerEdit) question {
	return at(version, question{name: "add offsets " + name, key: 25, build: ask(func(b *askedBroker, req *kmsg.AddOffsetsToTxnRequest) {
		of, p := edit(id, b.producers[id])
		req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Group = of, p.id, p.epoch, group
	})})
}

func addOffsetsQuestions(version int16) []question {
	id := fmt.Sprint("offsets-", version)
	return []question{
		begin(id), addOffsets(version, id, "", "g", itself), addOffsets(version, id, "again", "g", itself),
		addOffsets(version, id, "with an older epoch", "g", older), addOffsets(version, id, "with a later epoch", "g", newer),
		addOffsets(version, id, "with another producer id", "g", impostor), addOffsets(version, id, "of an id that is none", "g", stranger), addOffsets(version, id, "without an id", "g", nameless),
	}
}

func end(version int16, id, name string, commit bool, edit producerEdit) question {
	return at(version, question{name: "end " + name, key: 26, build: ask(func(b *askedBroker, req *kmsg.EndTxnRequest) {
		of, p := edit(id, b.producers[id])
		req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = of, p.id, p.epoch, commit
	})})
}

func endQuestions(version int16) []question {
	id := fmt.Sprint("end-", version)
	qs := []question{
		begin(id), end(version, id, "with nothing open", true, itself), end(version, id, "with an older epoch", true, older), end(version, id, "with a later epoch", true, newer),
		end(version, id, "with another producer id", true, impostor), end(version, id, "of an id that is none", true, stranger), end(version, id, "without an id", true, nameless),
	}
	if version < 5 {
		qs = append(qs, end(version, id, "by an abort with nothing open", false, itself))
	}
	for _, commit := range []bool{true, false} {
		qs = append(qs, begin(id), addPartitions(3, id, "to end", itself, askedPartitions{"txn", []int32{0}}),
			end(version, id, fmt.Sprint("commit ", commit), commit, itself), end(version, id, fmt.Sprint("again, commit ", commit), commit, itself),
			end(version, id, fmt.Sprint("otherwise, commit ", !commit), !commit, itself))
	}
	return append(qs, begin(id), end(5, id, "by an abort with nothing open", false, itself), completed(id))
}

func offsetQuestions(version int16) []question {
	id, group := fmt.Sprint("commit-", version), fmt.Sprint("txn-g", version)
	commit := func(name string, edit producerEdit, change func(*kmsg.TxnOffsetCommitRequest), partitions ...int32) question {
		return at(version, question{name: "commit offsets " + name, key: 28, build: ask(func(b *askedBroker, req *kmsg.TxnOffsetCommitRequest) {
			of, p := edit(id, b.producers[id])
			req.TransactionalID, req.Group, req.ProducerID, req.ProducerEpoch, req.Generation = of, group, p.id, p.epoch, -1
			rt := kmsg.NewTxnOffsetCommitRequestTopic()
			rt.Topic, rt.TopicID = "txn", b.topicID
			for _, partition := range partitions {
				rp := kmsg.NewTxnOffsetCommitRequestTopicPartition()
				rp.Partition, rp.Offset = partition, 7
				rt.Partitions = append(rt.Partitions, rp)
			}
			req.Topics = append(req.Topics, rt)
			if change != nil {
				change(req)
			}
		})})
	}
	fetch := func(name string, all, stable bool) question {
		return at(8, question{name: "offsets " + name, key: 9, build: ask(func(_ *askedBroker, req *kmsg.OffsetFetchRequest) {
			g := kmsg.NewOffsetFetchRequestGroup()
			g.Group = group
			if !all {
				rt := kmsg.NewOffsetFetchRequestGroupTopic()
				rt.Topic, rt.Partitions = "txn", []int32{0, 1}
				g.Topics = append(g.Topics, rt)
			}
			req.Groups, req.RequireStable = append(req.Groups, g), stable
		})})
	}
	settled := func(q question) question {
		q.settles = true // Kafka's coordinator of the group learns of the end a little later; ours with it
		return q
	}
	foreign := commit("under an id that is none", stranger, nil, 0)
	foreign.better = "Kafka does not look at the id once the transaction is open; ours refuses what the producer is not"
	return []question{
		begin(id), commit("before they are added", itself, nil, 0), addOffsets(3, id, "to commit", group, itself),
		commit("", itself, nil, 0, 9), commit("of no topic", itself, func(r *kmsg.TxnOffsetCommitRequest) { r.Topics[0].Topic, r.Topics[0].TopicID = "nowhere", [16]byte{9} }, 0),
		commit("of a stranger", itself, func(r *kmsg.TxnOffsetCommitRequest) { r.MemberID, r.Generation = "m", 3 }, 0),
		commit("of a member without a generation", itself, func(r *kmsg.TxnOffsetCommitRequest) { r.MemberID = "m" }, 0),
		commit("of a generation without a member", itself, func(r *kmsg.TxnOffsetCommitRequest) { r.Generation = 3 }, 0),
		commit("with an older epoch", older, nil, 0), commit("with a later epoch", newer, nil, 0), commit("with another producer id", impostor, nil, 0), foreign,
		commit("in no group", itself, func(r *kmsg.TxnOffsetCommitRequest) { r.Group = "" }, 0),
		fetch("that are stable", false, true), fetch("of all", true, true), fetch("as they are", false, false),
		end(3, id, "with offsets", true, itself), settled(fetch("that are committed", false, true)),
		addOffsets(3, id, "to abort", group, itself), commit("to abort", itself, nil, 1), end(3, id, "with offsets by an abort", false, itself), settled(fetch("that are left", false, true)),
	}
}

func transactionalProduceQuestions(version int16) []question {
	id := fmt.Sprint("produce-", version)
	produce := func(name string, partition int32, sequence int32, transactional, named bool, edit producerEdit) question {
		return at(version, question{name: "produce in a transaction " + name, key: 0, build: ask(func(b *askedBroker, req *kmsg.ProduceRequest) {
			of, p := edit(id, b.producers[id])
			if named {
				req.TransactionID = &of
			}
			builder := record.NewBuilder(record.CodecNone)
			builder.Add(time.Now().UnixMilli(), []byte("k"), []byte("v"), nil) // an old one would have Kafka roll at the marker
			batch := builder.Build()
			binary.BigEndian.PutUint64(batch[43:], uint64(p.id))
			binary.BigEndian.PutUint16(batch[51:], uint16(p.epoch))
			binary.BigEndian.PutUint32(batch[53:], uint32(sequence))
			if transactional {
				batch[22] |= 1 << 4
			}
			batch.Seal()
			rt := kmsg.NewProduceRequestTopic()
			rt.Topic, rt.TopicID = "txn", b.topicID
			rp := kmsg.NewProduceRequestTopicPartition()
			rp.Partition, rp.Records = partition, batch
			rt.Partitions = append(rt.Partitions, rp)
			req.Topics, req.Acks, req.TimeoutMillis = append(req.Topics, rt), -1, 15_000
		})})
	}
	read := func(name string, partition int32, isolation int8) []question {
		fetch := question{name: "fetch " + name, key: 1, min: 11, build: ask(func(b *askedBroker, req *kmsg.FetchRequest) {
			rt := kmsg.NewFetchRequestTopic()
			rt.Topic, rt.TopicID = "txn", b.topicID
			rp := kmsg.NewFetchRequestTopicPartition()
			rp.Partition, rp.PartitionMaxBytes, rp.CurrentLeaderEpoch = partition, 1<<20, -1
			rt.Partitions = append(rt.Partitions, rp)
			req.Topics, req.MaxBytes, req.IsolationLevel, req.ReplicaID = append(req.Topics, rt), 1<<20, isolation, -1
		}), loose: []string{"RecordBatches"}} // leader epochs and times are each broker's own
		list := question{name: "offset of the end " + name, key: 2, min: 4, build: ask(func(_ *askedBroker, req *kmsg.ListOffsetsRequest) {
			rt := kmsg.NewListOffsetsRequestTopic()
			rt.Topic = "txn"
			rp := kmsg.NewListOffsetsRequestTopicPartition()
			rp.Partition, rp.Timestamp, rp.CurrentLeaderEpoch = partition, -1, -1
			rt.Partitions = append(rt.Partitions, rp)
			req.Topics, req.IsolationLevel, req.ReplicaID = append(req.Topics, rt), isolation, -1
		})}
		return []question{fetch, list}
	}
	unnumbered := produce("of nobody", 2, -1, true, true, nobody)
	unnumbered.better = "Kafka appends a transactional batch that no producer wrote; nothing could ever end it, and 87 says so"
	qs := []question{
		begin(id), produce("of which the partition is not", 0, 0, true, true, itself), addPartitions(3, id, "to produce", itself, askedPartitions{"txn", []int32{3}}),
		produce("", 3, 0, true, true, itself), produce("that is none, under an id", 3, 1, false, true, itself), produce("that is none", 3, 1, false, false, itself),
		produce("without an id", 3, 1, true, false, itself), produce("with an older epoch", 3, 1, true, true, older), produce("with a later epoch", 3, 0, true, true, newer),
		produce("with a later epoch elsewhere", 2, 0, true, true, newer), produce("of an id that is none", 2, 0, true, true, stranger), unnumbered,
		produce("with another producer id", 2, 0, true, true, impostor), describe(id),
	}
	if version == 3 { // one is enough
		for isolation := range int8(2) {
			qs = append(qs, read(fmt.Sprint("while it is open, isolation ", isolation), 3, isolation)...)
		}
	}
	commit := version%2 == 0
	qs = append(qs, end(3, id, fmt.Sprint("what was produced, commit ", commit), commit, itself), completed(id), produce("that is late", 3, 2, true, true, itself))
	if version == 7 {
		for isolation := range int8(2) {
			qs = append(qs, read(fmt.Sprint("when it is over, isolation ", isolation), 3, isolation)...)
		}
	}
	return qs
}

// completed describes a transactional id until its markers are written.
func completed(id string) question {
	q := describe(id)
	q.name, q.until = "complete "+id, `"State":"Complete`
	return q
}

func toolQuestions() []question {
	list := func(name string, change func(b *askedBroker, req *kmsg.ListTransactionsRequest)) question {
		return question{name: "list " + name, key: 66, build: ask(change)}
	}
	producers := func(name, topic string, partitions ...int32) question {
		return question{name: "describe the producers of " + name, key: 61, build: ask(func(_ *askedBroker, req *kmsg.DescribeProducersRequest) {
			rt := kmsg.NewDescribeProducersRequestTopic()
			rt.Topic, rt.Partitions = topic, partitions
			req.Topics = append(req.Topics, rt)
		}), loose: []string{"LastTimestamp", "CoordinatorEpoch"}}
	}
	marker := func(name string, coordinatorEpoch int32) question {
		return question{name: "write a marker " + name, key: 27, build: ask(func(_ *askedBroker, req *kmsg.WriteTxnMarkersRequest) {
			m := kmsg.NewWriteTxnMarkersRequestMarker()
			m.ProducerID, m.ProducerEpoch, m.CoordinatorEpoch = 1_000_000, 0, coordinatorEpoch
			for _, topic := range []string{"txn", "nowhere"} {
				rt := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
				rt.Topic, rt.Partitions = topic, []int32{2, 9}
				m.Topics = append(m.Topics, rt)
			}
			req.Markers = append(req.Markers, m)
		})}
	}
	return []question{
		list("the transactions of a producer", func(b *askedBroker, req *kmsg.ListTransactionsRequest) {
			req.ProducerIDFilters = []int64{b.producers["add-3"].id}
		}),
		list("the transactions in a state that is none", func(_ *askedBroker, req *kmsg.ListTransactionsRequest) { req.StateFilters = []string{"Nonsense"} }),
		list("the transactions in two states", func(b *askedBroker, req *kmsg.ListTransactionsRequest) {
			req.StateFilters, req.ProducerIDFilters = []string{"Ongoing", "Dead"}, []int64{b.producers["add-1"].id, b.producers["end-1"].id}
		}),
		{name: "list transactions by expression", key: 66, min: 2, build: ask(func(_ *askedBroker, req *kmsg.ListTransactionsRequest) {
			req.TransactionalIDPattern = kmsg.StringPtr("add-[12]")
		})},
		{name: "list transactions by part of an id", key: 66, min: 2, build: ask(func(_ *askedBroker, req *kmsg.ListTransactionsRequest) {
			req.TransactionalIDPattern = kmsg.StringPtr("dd-")
		})},
		{name: "list transactions by an expression that is none", key: 66, min: 2, build: ask(func(_ *askedBroker, req *kmsg.ListTransactionsRequest) {
			req.TransactionalIDPattern = kmsg.StringPtr("(")
		})},
		describe("nobody has this id"), describe(""),
		producers("partitions", "txn", 3, 9), producers("a topic that is none", "nowhere", 0),
		marker("", 5), marker("of an older coordinator", 4), marker("of the same coordinator", 5),
	}
}
