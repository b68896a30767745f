package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// groupAnswers asks the same of groups, mostly what is wrong: zombies, strangers, foreign
// protocols, texts that are too long, names that are too long, null where it is legal.
func groupAnswers(ctx context.Context, t *testing.T, pair *answerPair) {
	// Kafka makes its topic of offsets when a coordinator is first asked for, and loads it.
	ready := question{name: "ready", key: 12, build: ask(func(_ *askedBroker, req *kmsg.HeartbeatRequest) { req.Group, req.MemberID = "g", "m" })}
	find := question{name: "find", key: 10, build: ask(func(_ *askedBroker, req *kmsg.FindCoordinatorRequest) { req.CoordinatorKey = "g" })}
	for said := ""; !strings.Contains(said, `"ErrorCode":25`); {
		_, err := pair.kafka.answer(ctx, find, 0)
		require.NoError(t, err)
		said, err = pair.kafka.answer(ctx, ready, 0)
		require.NoError(t, err)
	}
	for _, q := range groupQuestions() {
		q.anyOrder = true
		pair.ask(ctx, t, q)
	}
}

func groupQuestions() []question {
	long := strings.Repeat("n", 300)
	join := func(name, group, member string, more func(*kmsg.JoinGroupRequest), loose ...string) question {
		return question{name: name, key: 11, build: ask(func(_ *askedBroker, req *kmsg.JoinGroupRequest) {
			req.Group, req.MemberID, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis, req.ProtocolType = group, member, 10_000, 10_000, "consumer"
			p := kmsg.NewJoinGroupRequestProtocol()
			p.Name, p.Metadata = "range", []byte("m")
			req.Protocols = append(req.Protocols, p)
			if more != nil {
				more(req)
			}
		}), loose: loose}
	}
	sync := func(name, group, member string) question {
		return question{name: name, key: 14, build: ask(func(_ *askedBroker, req *kmsg.SyncGroupRequest) {
			req.Group, req.MemberID, req.Generation = group, member, 3
			req.ProtocolType, req.Protocol = kmsg.StringPtr("consumer"), kmsg.StringPtr("range")
		})}
	}
	beat := func(name, group, member string) question {
		return question{name: name, key: 12, build: ask(func(_ *askedBroker, req *kmsg.HeartbeatRequest) {
			req.Group, req.MemberID, req.Generation = group, member, 3
		})}
	}
	leave := func(name, group, member string) question {
		return question{name: name, key: 13, build: ask(func(_ *askedBroker, req *kmsg.LeaveGroupRequest) {
			req.Group, req.MemberID = group, member
			m := kmsg.NewLeaveGroupRequestMember()
			m.MemberID = member
			req.Members = append(req.Members, m)
		})}
	}
	type offset struct {
		topic     string
		partition int32
		at        int64
		metadata  *string
	}
	commit := func(name, group, member string, generation int32, max int16, offsets ...offset) question {
		return question{name: name, key: 8, max: max, build: ask(func(b *askedBroker, req *kmsg.OffsetCommitRequest) {
			req.Group, req.MemberID, req.Generation = group, member, generation
			for _, o := range offsets {
				if n := len(req.Topics); n == 0 || req.Topics[n-1].Topic != o.topic {
					rt := kmsg.NewOffsetCommitRequestTopic()
					rt.Topic, rt.TopicID = o.topic, b.topicID
					req.Topics = append(req.Topics, rt)
				}
				rt := &req.Topics[len(req.Topics)-1]
				rp := kmsg.NewOffsetCommitRequestTopicPartition()
				rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata = o.partition, o.at, 0, o.metadata
				rt.Partitions = append(rt.Partitions, rp)
			}
		})}
	}
	fetch := func(name, group string, all bool, max int16, topics ...string) question {
		return question{name: name, key: 9, max: max, build: ask(func(b *askedBroker, req *kmsg.OffsetFetchRequest) {
			req.Group = group
			g := kmsg.NewOffsetFetchRequestGroup()
			g.Group = group
			if !all {
				req.Topics, g.Topics = []kmsg.OffsetFetchRequestTopic{}, []kmsg.OffsetFetchRequestGroupTopic{}
			}
			for _, name := range topics {
				rt := kmsg.NewOffsetFetchRequestTopic()
				rt.Topic, rt.Partitions = name, []int32{0, 1, 7}
				req.Topics = append(req.Topics, rt)
				gt := kmsg.NewOffsetFetchRequestGroupTopic()
				gt.Topic, gt.TopicID, gt.Partitions = name, b.topicID, []int32{0, 1, 7}
				g.Topics = append(g.Topics, gt)
			}
			req.Groups = append(req.Groups, g)
		})}
	}
	describe := func(name string, groups ...string) question {
		return question{name: name, key: 15, build: ask(func(_ *askedBroker, req *kmsg.DescribeGroupsRequest) {
			req.Groups, req.IncludeAuthorizedOperations = groups, true
		})}
	}
	list := func(name string, states, types []string) question {
		return question{name: name, key: 16, build: ask(func(_ *askedBroker, req *kmsg.ListGroupsRequest) {
			req.StatesFilter, req.TypesFilter = states, types
		})}
	}
	remove := func(name string, groups ...string) question {
		return question{name: name, key: 42, once: true, build: ask(func(_ *askedBroker, req *kmsg.DeleteGroupsRequest) { req.Groups = groups })}
	}
	forget := func(name, group string, topics ...string) question {
		return question{name: name, key: 47, build: ask(func(_ *askedBroker, req *kmsg.OffsetDeleteRequest) {
			req.Group = group
			for _, topic := range topics {
				rt := kmsg.NewOffsetDeleteRequestTopic()
				rt.Topic = topic
				for _, p := range []int32{0, 7} {
					rp := kmsg.NewOffsetDeleteRequestTopicPartition()
					rp.Partition = p
					rt.Partitions = append(rt.Partitions, rp)
				}
				req.Topics = append(req.Topics, rt)
			}
		})}
	}
	consumer := func(name string, fill func(*kmsg.ConsumerGroupHeartbeatRequest)) question {
		return question{name: name, key: 68, build: ask(func(_ *askedBroker, req *kmsg.ConsumerGroupHeartbeatRequest) {
			req.Group, req.MemberID, req.RebalanceTimeoutMillis, req.SubscribedTopicNames, req.Topics = "kip848", "m", 10_000, []string{"read"}, []kmsg.ConsumerGroupHeartbeatRequestTopic{}
			fill(req)
		})}
	}
	first := question{name: "create", key: 19, once: true, build: ask(func(_ *askedBroker, req *kmsg.CreateTopicsRequest) {
		rt := kmsg.NewCreateTopicsRequestTopic()
		rt.Topic, rt.NumPartitions, rt.ReplicationFactor = "read", 2, 1
		req.Topics, req.TimeoutMillis = append(req.Topics, rt), 15000
	}), loose: []string{"Configs"}}
	coordinator := func(name string, kind int8, keys ...string) question {
		return question{name: name, key: 10, min: 1, build: ask(func(_ *askedBroker, req *kmsg.FindCoordinatorRequest) {
			req.CoordinatorType, req.CoordinatorKey, req.CoordinatorKeys = kind, keys[0], keys
		}), loose: []string{"NodeID"}}
	}
	note := kmsg.StringPtr("note")
	tooLong := kmsg.StringPtr(strings.Repeat("x", 5000))
	return []question{
		first,
		coordinator("the coordinator of a group", 0, "g", "other"),
		coordinator("the coordinator of a type that is none", 7, "g"),

		// Strangers and zombies.
		beat("heartbeat of a stranger", "g", "m"),
		beat("heartbeat in no group", "", "m"),
		beat("heartbeat of nobody", "g", ""),
		sync("sync of a stranger", "g", "m"),
		sync("sync in no group", "", "m"),
		leave("leave of a stranger", "g", "m"),
		leave("leave of no group", "", "m"),
		join("join in no group", "", "", nil),
		join("join of a stranger", "g", "m", nil),
		join("join with a short session", "g", "", func(r *kmsg.JoinGroupRequest) { r.SessionTimeoutMillis = 5_999 }),
		join("join with a long session", "g", "", func(r *kmsg.JoinGroupRequest) { r.SessionTimeoutMillis = 1_800_001 }),
		join("join with a negative session", "g", "", func(r *kmsg.JoinGroupRequest) { r.SessionTimeoutMillis = -1 }),
		join("join without protocols", "g", "m", func(r *kmsg.JoinGroupRequest) { r.Protocols = nil }),
		join("join without a protocol type", "g", "m", func(r *kmsg.JoinGroupRequest) { r.ProtocolType = "" }),
		commit("commit of a zombie", "g", "m", 3, 9, offset{"read", 0, 5, note}),
		commit("commit of a member id without a generation", "g", "m", -1, 9, offset{"read", 0, 5, note}),
		describe("describe groups that are not there", "g", "", long),
		list("no groups", nil, nil),
		remove("delete groups that are not there", "g", "", long),
		forget("forget offsets of a group that is not there", "g", "read"),
		fetch("offsets of a group that is not there", "g", false, 9, "read"),
		fetch("all offsets of a group that is not there", "g", true, 9),

		// Offsets without members.
		commit("commit from outside", "simple", "", -1, 9, offset{"read", 0, 5, note}, offset{"read", 1, 7, nil}, offset{"read", 7, 1, note}, offset{"nowhere", 0, 1, note}, offset{long, 0, 1, note}),
		commit("commit of a long text", "simple", "", -1, 9, offset{"read", 0, 9, tooLong}, offset{"read", 1, 8, note}),
		commit("commit of nothing", "simple", "", -1, 9),
		commit("commit by topic id", "simple", "", -1, 0, offset{"read", 0, 6, note}),
		commit("commit of a zombie of a group that is there", "simple", "m", 3, 9, offset{"read", 0, 5, note}),
		commit("commit with a generation and no member", "simple", "", 3, 9, offset{"read", 0, 5, note}),
		fetch("offsets", "simple", false, 9, "read", "nowhere"),
		fetch("offsets of no topics", "simple", false, 9),
		fetch("all offsets", "simple", true, 9),
		fetch("offsets by topic id", "simple", false, 0, "read"),
		describe("describe a group without members", "simple"),
		list("the groups", nil, nil),
		list("groups that are empty", []string{"empty"}, nil),
		list("groups of a state that is none", []string{"asleep"}, nil),
		list("groups of the consumer type", nil, []string{"consumer"}),
		list("groups of the classic type", []string{"Empty"}, []string{"Classic"}),
		beat("heartbeat of a stranger in a group that is there", "simple", "m"),
		join("join of a stranger in a group that is there", "simple", "m", nil),
		join("join without an id", "fresh", "", func(r *kmsg.JoinGroupRequest) { r.Group += fmt.Sprint(r.Version) }, "MemberID", "LeaderID", "Members"),

		// Consumer groups (KIP-848).
		consumer("consumer heartbeat in no group", func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.Group = "" }),
		consumer("consumer heartbeat of an epoch below -2", func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberEpoch = -3 }),
		consumer("consumer heartbeat without topics", func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.SubscribedTopicNames = nil }),
		consumer("consumer heartbeat without what is owned", func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.Topics = nil }),
		consumer("consumer heartbeat without a rebalance timeout", func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.RebalanceTimeoutMillis = -1 }),
		consumer("consumer heartbeat with an assignor that is none", func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.ServerAssignor = kmsg.StringPtr("magic") }),
		consumer("consumer heartbeat of a stranger", func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberEpoch = 3 }),
		consumer("consumer leave of a stranger", func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberEpoch = -1 }),
		consumer("static consumer leave without an instance", func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberEpoch = -2 }),
		{name: "describe consumer groups that are none", key: 69, build: ask(func(_ *askedBroker, req *kmsg.ConsumerGroupDescribeRequest) {
			req.Groups = []string{"simple", "nowhere", ""}
		})},

		forget("forget offsets", "simple", "read", "nowhere"),
		fetch("what is left", "simple", true, 9),
		remove("delete a group", "simple", "nowhere"),
		fetch("offsets of a group that was deleted", "simple", false, 9, "read"),
	}
}
