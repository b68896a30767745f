package integration

import (
	"fmt"
	"math"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// longName is longer than a topic's name may be; ids and groups have no such bound.
var longName = strings.Repeat("n", 300)

// pairs that no producer has.
var wrongPairs = map[string]producerEdit{
	"with a negative epoch":        func(id string, p askedProducer) (string, askedProducer) { p.epoch = -7; return id, p },
	"with a negative producer id":  func(id string, p askedProducer) (string, askedProducer) { p.id = -7; return id, p },
	"with the last of all epochs":  func(id string, p askedProducer) (string, askedProducer) { p.epoch = math.MaxInt16; return id, p },
	"with the last of all ids":     func(id string, p askedProducer) (string, askedProducer) { p.id = math.MaxInt64; return id, p },
	"under a long id that is none": func(_ string, p askedProducer) (string, askedProducer) { return longName, p },
}

// badQuestions ask for what no client should, in every version: names that are too long, numbers that are none, lists that are
// empty or say the same twice. What they leave is described at their end.
func badQuestions(version int16) (all []question) {
	id := fmt.Sprint("bad-", version)
	add := func(qs ...question) { all = append(all, qs...) }
	init := func(name string, id *string, timeout int32, pid int64, epoch int16) question {
		return at(version, question{name: "init producer " + name, key: 22, build: ask(func(_ *askedBroker, req *kmsg.InitProducerIDRequest) {
			req.TransactionalID, req.TransactionTimeoutMillis, req.ProducerID, req.ProducerEpoch = id, timeout, pid, epoch
		})})
	}
	long := fmt.Sprint(longName, version)
	add(init("under a long id", &long, 60_000, -1, -1), init("with the least timeout", &id, math.MinInt32, -1, -1), init("with the longest of all timeouts", &id, math.MaxInt32, -1, -1),
		init("without a transaction, with no timeout", nil, 0, -1, -1), init("without a transaction, with a negative timeout", nil, -5, -1, -1), describe(id), begin(id))
	if version >= 3 {
		for _, p := range []askedProducer{{-7, -1}, {-1, -7}, {-7, -7}, {math.MaxInt64, 0}, {math.MaxInt64, math.MaxInt16}, {5, math.MaxInt16}, {5, -7}} {
			add(init(fmt.Sprint("with pair ", p), &id, 60_000, p.id, p.epoch), init(fmt.Sprint("without a transaction, with pair ", p), nil, 60_000, p.id, p.epoch))
		}
		add(begin(id))
	}

	for _, name := range []string{"with a negative epoch", "with a negative producer id", "with the last of all epochs", "with the last of all ids", "under a long id that is none"} {
		edit := wrongPairs[name]
		add(addPartitions(version, id, name, edit, askedPartitions{"txn", []int32{0}}))
		if version <= 4 {
			add(addOffsets(version, id, name, "g", edit))
		}
		add(end(version, id, name, true, edit), end(version, id, name+", abort", false, edit))
	}
	many := make([]int32, 2000)
	for i := range many {
		many[i] = int32(i) + 100
	}
	add(addPartitions(version, id, "of a topic with a long name", itself, askedPartitions{longName, []int32{0}}),
		addPartitions(version, id, "of a topic without a name", itself, askedPartitions{"", []int32{0}}),
		addPartitions(version, id, "of a topic, and none of it", itself, askedPartitions{"txn", nil}), // Kafka's transaction is open then, and ours is not
		addPartitions(version, id, "that are negative", itself, askedPartitions{"txn", []int32{-1, math.MinInt32, math.MaxInt32}}),
		addPartitions(version, id, "that are too many", itself, askedPartitions{"txn", many}),
		addPartitions(version, id, "twice", itself, askedPartitions{"txn", []int32{0, 0}}), describe(id),
		addPartitions(version, id, "of a topic that comes twice", itself, askedPartitions{"txn", []int32{1}}, askedPartitions{"txn", []int32{1, 2}}), describe(id))
	// The transaction is as open as it was.
	if version <= 4 { // Kafka describes a group as a partition of its topic of offsets
		add(addOffsets(version, id, "of no group", "", itself), addOffsets(version, id, "of a group with a long name", longName, itself))
	}
	return append(all, end(3, id, "after what was wrong", true, itself), completed(id))
}

func badOffsetQuestions(version int16) []question {
	id, group := fmt.Sprint("bad-commit-", version), fmt.Sprint("bad-g", version)
	commit := func(name string, edit producerEdit, change func(*kmsg.TxnOffsetCommitRequest)) question {
		return at(version, question{name: "commit offsets " + name, key: 28, build: ask(func(b *askedBroker, req *kmsg.TxnOffsetCommitRequest) {
			of, p := edit(id, b.producers[id])
			req.TransactionalID, req.Group, req.ProducerID, req.ProducerEpoch, req.Generation = of, group, p.id, p.epoch, -1
			rt := kmsg.NewTxnOffsetCommitRequestTopic()
			rt.Topic, rt.TopicID = "txn", b.topicID
			rp := kmsg.NewTxnOffsetCommitRequestTopicPartition()
			rp.Offset = 7
			rt.Partitions = append(rt.Partitions, rp)
			req.Topics = append(req.Topics, rt)
			change(req)
		})})
	}
	same := func(*kmsg.TxnOffsetCommitRequest) {}
	first := func(change func(*kmsg.TxnOffsetCommitRequestTopicPartition)) func(*kmsg.TxnOffsetCommitRequest) {
		return func(r *kmsg.TxnOffsetCommitRequest) { change(&r.Topics[0].Partitions[0]) }
	}
	qs := []question{begin(id), addOffsets(3, id, "to commit badly", group, itself)}
	for _, name := range []string{"with a negative epoch", "with a negative producer id", "with the last of all epochs", "with the last of all ids"} {
		qs = append(qs, commit(name, wrongPairs[name], same))
	}
	metadata := strings.Repeat("m", 5000)
	ours := func(why string, q question) question { q.better = why; return q }
	return append(qs,
		commit("of nothing", itself, func(r *kmsg.TxnOffsetCommitRequest) { r.Topics = nil }),
		ours("Kafka leaves a topic out of the answer of which nothing was asked", commit("of no partition", itself, func(r *kmsg.TxnOffsetCommitRequest) { r.Topics[0].Partitions = nil })),
		commit("of a partition below none", itself, first(func(p *kmsg.TxnOffsetCommitRequestTopicPartition) { p.Partition = -1 })),
		commit("with much to say", itself, first(func(p *kmsg.TxnOffsetCommitRequestTopicPartition) { p.Metadata = &metadata })),
		commit("of a topic with a long name", itself, func(r *kmsg.TxnOffsetCommitRequest) { r.Topics[0].Topic, r.Topics[0].TopicID = longName, [16]byte{8} }),
		ours("Kafka takes any group for added whose offsets lie in the same partition as one's that was",
			commit("in a group that was not added", itself, func(r *kmsg.TxnOffsetCommitRequest) { r.Group = longName })),
		commit("of a generation that can't be", itself, func(r *kmsg.TxnOffsetCommitRequest) { r.Generation = math.MinInt32 }),
		commit("twice", itself, func(r *kmsg.TxnOffsetCommitRequest) {
			r.Topics[0].Partitions = append(r.Topics[0].Partitions, r.Topics[0].Partitions[0])
		}),
		end(3, id, "after offsets that were wrong", false, itself))
}

func badToolQuestions() []question {
	describeMany := func(name string, ids ...string) question {
		return question{name: "describe " + name, key: 65, build: ask(func(_ *askedBroker, req *kmsg.DescribeTransactionsRequest) { req.TransactionalIDs = ids }), loose: []string{"StartTimestamp"}}
	}
	list := func(name string, minimum int16, change func(req *kmsg.ListTransactionsRequest)) question {
		return question{name: "list transactions " + name, key: 66, min: minimum, build: ask(func(_ *askedBroker, req *kmsg.ListTransactionsRequest) { change(req) })}
	}
	producers := func(name string, topics ...askedPartitions) question {
		return question{name: "describe the producers of " + name, key: 61, build: ask(func(_ *askedBroker, req *kmsg.DescribeProducersRequest) {
			for _, t := range topics {
				rt := kmsg.NewDescribeProducersRequestTopic()
				rt.Topic, rt.Partitions = t.topic, t.partitions
				req.Topics = append(req.Topics, rt)
			}
		}), loose: []string{"LastTimestamp", "CoordinatorEpoch"}}
	}
	marker := func(name string, change func(m *kmsg.WriteTxnMarkersRequestMarker), topics ...askedPartitions) question {
		return question{name: "write a marker " + name, key: 27, build: ask(func(_ *askedBroker, req *kmsg.WriteTxnMarkersRequest) {
			m := kmsg.NewWriteTxnMarkersRequestMarker()
			m.ProducerID, m.ProducerEpoch, m.CoordinatorEpoch = 1_000_001, 3, 5
			for _, t := range topics {
				rt := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
				rt.Topic, rt.Partitions = t.topic, t.partitions
				m.Topics = append(m.Topics, rt)
			}
			change(&m)
			req.Markers = append(req.Markers, m)
		})}
	}
	ours := func(why string, q question) question { q.better = why; return q }
	const left = "Kafka leaves a marker out of the answer that is for no partition"
	one := askedPartitions{"txn", []int32{2}}
	return []question{
		describeMany("none"), describeMany("one twice", "add-1", "add-1"), describeMany("a long id", longName),
		list("of a producer that can't be", 0, func(r *kmsg.ListTransactionsRequest) { r.ProducerIDFilters = []int64{-7, math.MinInt64} }),
		list("in a state with a long name", 0, func(r *kmsg.ListTransactionsRequest) { r.StateFilters = []string{longName, "", "ongoing"} }),
		list("that have been open for ever", 1, func(r *kmsg.ListTransactionsRequest) {
			r.DurationFilterMillis, r.ProducerIDFilters = math.MaxInt64, []int64{math.MaxInt64}
		}),
		list("by an expression that matches nothing", 2, func(r *kmsg.ListTransactionsRequest) { r.TransactionalIDPattern = &longName }),
		producers("no topic"), producers("a topic, and none of its partitions", askedPartitions{"txn", nil}),
		producers("a partition below none", askedPartitions{"txn", []int32{-1, math.MinInt32}}), producers("a topic with a long name", askedPartitions{longName, []int32{0}}),
		producers("a topic without a name", askedPartitions{"", []int32{0}}),
		{name: "write no marker", key: 27, build: ask(func(_ *askedBroker, req *kmsg.WriteTxnMarkersRequest) {})},
		ours(left, marker("in no topic", func(*kmsg.WriteTxnMarkersRequestMarker) {})),
		ours(left, marker("in no partition", func(*kmsg.WriteTxnMarkersRequestMarker) {}, askedPartitions{"txn", nil})),
		marker("below none", func(*kmsg.WriteTxnMarkersRequestMarker) {}, askedPartitions{"txn", []int32{-1, math.MaxInt32}}),
		marker("in a topic with a long name", func(*kmsg.WriteTxnMarkersRequestMarker) {}, askedPartitions{longName, []int32{0}}),
		ours("Kafka writes a marker of nobody", marker("of a negative producer id", func(m *kmsg.WriteTxnMarkersRequestMarker) { m.ProducerID = -7 }, one)),
		marker("of a negative epoch", func(m *kmsg.WriteTxnMarkersRequestMarker) { m.ProducerEpoch = -7 }, one),
		marker("of a negative coordinator epoch", func(m *kmsg.WriteTxnMarkersRequestMarker) { m.CoordinatorEpoch = -7 }, one),
		marker("of the last of all epochs", func(m *kmsg.WriteTxnMarkersRequestMarker) { m.ProducerID, m.ProducerEpoch = 1_000_002, math.MaxInt16 }, one),
		marker("of a protocol that is none", func(m *kmsg.WriteTxnMarkersRequestMarker) { m.ProducerID, m.TransactionVersion = 1_000_003, 9 }, one),
		producers("where markers were written", one),
	}
}
