package metadata

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// says is what a consumer tells its group under a protocol.
func says(topics ...string) []byte {
	b := binary.BigEndian.AppendUint16(nil, 3)
	b = binary.BigEndian.AppendUint32(b, uint32(len(topics)))
	for _, name := range topics {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(name))), name...)
	}
	b = append(b, 0xff, 0xff, 0xff, 0xff) // nothing for the assignor
	return append(b, 0, 0, 0, 0)          // it owns nothing: version 1
}

// KIP-211: offsets of topics that no member of a live group reads expire, from their commit on; those that are read never
// do. Apache Kafka: of classic groups only those of consumers, only while stable, and only if all members can be understood
// under the protocol in use; of consumer groups (KIP-848) at any time, where an expression counts for what it matches.
func TestOffsetsOfTopicsNoLongerRead(t *testing.T) {
	const retention = 100
	under := func(protocol string, topics ...string) GroupProtocol { return GroupProtocol{protocol, says(topics...)} }
	classic := Group{Type: ClassicGroup, State: GroupStable, ProtocolType: "consumer", Protocol: "range"}
	modern := Group{Type: ConsumerGroup, State: GroupStable, ProtocolType: "consumer"}
	reads := func(topics ...string) *GroupMember {
		return &GroupMember{ID: "m", Protocols: []GroupProtocol{under("range", topics...)}}
	}
	for name, tc := range map[string]struct {
		group  Group
		edit   func(*Group)
		m      *GroupMember
		others []*GroupMember
		old    bool // feature level 2
		busy   bool // its coordinator prepares a rebalance
		gone   int
	}{
		"read":                      {group: classic, m: reads("orders", "bills")},
		"not read":                  {group: classic, m: reads("bills"), gone: 1},
		"reads nothing":             {group: classic, m: reads(), gone: 1},
		"read by another":           {group: classic, m: reads("bills"), others: []*GroupMember{{ID: "n", Protocols: []GroupProtocol{under("range", "orders")}}}},
		"older brokers":             {group: classic, m: reads("bills"), old: true},
		"rebalancing":               {group: classic, edit: func(g *Group) { g.State = GroupCompleting }, m: reads("bills")},
		"coordinator died":          {group: classic, edit: func(g *Group) { g.Interrupted = true }, m: reads("bills")},
		"preparing a rebalance":     {group: classic, m: reads("bills"), busy: true},
		"Connect":                   {group: classic, edit: func(g *Group) { g.ProtocolType = "connect" }, m: reads("bills")},
		"no type":                   {group: classic, edit: func(g *Group) { g.ProtocolType = "" }, m: reads("bills")},
		"not understood":            {group: classic, m: &GroupMember{ID: "m", Protocols: []GroupProtocol{{"range", []byte("m")}}}},
		"cut off":                   {group: classic, m: &GroupMember{ID: "m", Protocols: []GroupProtocol{{"range", says("bills")[:12]}}}},
		"one not understood":        {group: classic, m: reads("bills"), others: []*GroupMember{{ID: "n", Protocols: []GroupProtocol{{"range", nil}}}}},
		"not under the protocol":    {group: classic, edit: func(g *Group) { g.Protocol = "other" }, m: reads("bills")},
		"another protocol's topics": {group: classic, m: &GroupMember{ID: "m", Protocols: []GroupProtocol{under("range", "bills"), under("old", "orders"), {"odd", []byte("?")}}}, gone: 1},

		"KIP-848, read":            {group: modern, m: &GroupMember{ID: "m", Subscription: []string{"orders"}}},
		"KIP-848, not read":        {group: modern, m: &GroupMember{ID: "m", Subscription: []string{"bills"}}, gone: 1},
		"KIP-848, regex":           {group: modern, m: &GroupMember{ID: "m", SubscriptionRegex: "ord.*"}},
		"KIP-848, other regex":     {group: modern, m: &GroupMember{ID: "m", SubscriptionRegex: "b.*|order"}, gone: 1},
		"KIP-848, name or regex":   {group: modern, m: &GroupMember{ID: "m", Subscription: []string{"orders"}, SubscriptionRegex: "b.*"}},
		"KIP-848, reconciling":     {group: modern, edit: func(g *Group) { g.Generation = 5 }, m: &GroupMember{ID: "m", Subscription: []string{"bills"}}, busy: true, gone: 1},
		"KIP-848, classic member":  {group: modern, m: &GroupMember{ID: "m", Subscription: []string{"bills"}, Protocols: []GroupProtocol{under("range", "orders")}}, gone: 1},
		"KIP-848, regex of others": {group: modern, m: &GroupMember{ID: "m", Subscription: []string{"bills"}}, others: []*GroupMember{{ID: "n", SubscriptionRegex: ".*s"}}},
	} {
		t.Run(name, func(t *testing.T) {
			f := groupsFSM(t)
			if f.st.featureLevel < TransactionsFeatureLevel && !tc.old {
				f.must(&setFeatureLevel{expected: f.st.featureLevel, level: TransactionsFeatureLevel})
			}
			m := *tc.m
			tc.group.Name, tc.group.Generation, m.MemberEpoch = "g", 4, 4
			if tc.edit != nil {
				tc.edit(&tc.group)
			}
			generation := tc.group.Generation
			if tc.group.Type == ConsumerGroup {
				generation = m.MemberEpoch
			}
			f.must(f.change(&tc.group, append(tc.others, &m)...))
			require.NoError(t, f.commit1(OffsetCommit{Group: "g", Member: "m", Generation: generation, Time: 10, Offsets: []OffsetEntry{{TopicID{1}, 0, 1, -1, ""}}}).err)
			settled := func(group string) bool { return group != "g" || !tc.busy }
			id, epoch := f.by("g")
			expire := func(now int64) (out expired) {
				for _, c := range f.image().expirations(id, now, retention, settled) {
					c.epoch = epoch
					out.Offsets += f.must(c).(expired).Offsets
				}
				return out
			}
			require.Equal(t, expired{}, expire(109), "not yet")
			require.Equal(t, expired{Offsets: tc.gone}, expire(110))
			require.Equal(t, 1-tc.gone, f.image().OffsetCount())
			require.NotNil(t, f.image().Group("g"))
			checkState(t, f.st)
		})
	}
}

// What is committed under a transaction that is not decided keeps the offset that it would replace, as does a time that the
// commit asked for; what was decided on another revision goes by nobody's word.
func TestUnreadOffsetsThatStay(t *testing.T) {
	f := transactionsFSM(t)
	f.must(topicCommand(5, "logs", on(1), on(2), on(3)))
	live := func(generation int32, topics ...string) *changeGroup {
		return f.change(&Group{Name: "g", Type: ClassicGroup, State: GroupStable, Generation: generation, ProtocolType: "consumer", Protocol: "range"},
			&GroupMember{ID: "m", Protocols: []GroupProtocol{{"range", says(topics...)}}})
	}
	f.must(live(1, "bills"))
	entry := func(p int32) []OffsetEntry { return []OffsetEntry{{TopicID{5}, p, 1, -1, ""}} }
	for p, expires := range []int64{0, 5000, 0} {
		require.Equal(t, commitOutcome{}, f.commit1(OffsetCommit{Group: "g", Member: "m", Generation: 1, Time: 10, ExpiresAt: expires, Offsets: entry(int32(p))}))
	}
	x := offsetsOf(f.ongoing("x", 7, "g"), "g", 9)
	x.Member, x.Generation, x.Offsets = "m", 1, entry(2)
	require.Empty(t, f.step("x", x).entries)
	require.True(t, f.st.isPending("g", TopicIDPartition{TopicID{5}, 2}))
	require.Equal(t, expired{Offsets: 1}, f.expire("g", 1000, 100), "partition 0; 1 has its own time, 2 another one pending")
	require.Equal(t, expired{Offsets: 1}, f.expire("g", 5000, 100))

	f.must(live(2, "bills"))
	require.NoError(t, f.commit1(OffsetCommit{Group: "g", Member: "m", Generation: 2, Time: 10, Offsets: entry(0)}).err)
	id, epoch := f.by("g")
	late := f.image().expirations(id, 1000, 100, nil)
	require.Len(t, late, 1)
	late[0].epoch = epoch
	f.must(live(3, "bills", "logs"))
	require.Equal(t, expired{}, f.must(late[0]), "by now it is read")
	checkState(t, f.st)
}

// M2: an entry that an older build of this feature level has written means what it meant then: it names no topics, and no
// offset of a group with members goes by it.
func TestExpiryOfOlderEntries(t *testing.T) {
	f := groupsFSM(t)
	if f.st.featureLevel < TransactionsFeatureLevel {
		f.must(&setFeatureLevel{expected: f.st.featureLevel, level: TransactionsFeatureLevel})
	}
	f.must(f.change(&Group{Name: "g", Type: ClassicGroup, State: GroupStable, Generation: 1, ProtocolType: "consumer", Protocol: "range"},
		&GroupMember{ID: "m", Protocols: []GroupProtocol{{"range", says("bills")}}}))
	require.NoError(t, f.commit1(OffsetCommit{Group: "g", Member: "m", Generation: 1, Time: 10, Offsets: []OffsetEntry{{TopicID{1}, 0, 1, -1, ""}}}).err)
	id, epoch := f.by("g")
	c := f.image().expirations(id, 1000, 100, nil)[0]
	c.epoch = epoch
	require.Equal(t, []unreadTopics{{0, []TopicID{{1}}}}, c.unread)
	c.unread = nil
	require.Equal(t, expired{}, f.must(c))
	require.Equal(t, 1, f.image().OffsetCount())
}

// An entry that can't be is refused whole (M2).
func TestUnreadTopicsDecode(t *testing.T) {
	a, b := make([]byte, 16), make([]byte, 16)
	b[0] = 1
	for name, unread := range map[string][]*pb.UnreadTopics{
		"no such group":       {{Group: 2, Topics: [][]byte{a}}},
		"groups out of order": {{Group: 1, Topics: [][]byte{a}}, {Group: 0, Topics: [][]byte{a}}},
		"one group twice":     {{Group: 1, Topics: [][]byte{a}}, {Group: 1, Topics: [][]byte{b}}},
		"topics out of order": {{Group: 1, Topics: [][]byte{b, a}}},
		"short id":            {{Group: 1, Topics: [][]byte{a[:15]}}},
		"long id":             {{Group: 1, Topics: [][]byte{append(a, 0)}}},
	} {
		body, err := proto.Marshal(&pb.ExpireOffsets{Groups: []string{"a", "b"}, Revisions: []uint64{1, 2}, Unread: unread})
		require.NoError(t, err)
		_, err = decodeExpireOffsets(body)
		require.Error(t, err, name)
	}
}

// I23: an expression is whole by itself, and small when it is compiled, however short it is written.
func TestCompileSubscriptionBounds(t *testing.T) {
	for _, expr := range []string{"a)|(b", "(", strings.Repeat("[ab]{1000}", 100), "(" + strings.Repeat("x", 60_000) + ")"} {
		_, err := CompileSubscription(expr)
		require.Error(t, err, "%.20s", expr)
	}
	var names []string
	for i := range 1000 {
		names = append(names, fmt.Sprintf("orders-of-region-%d", i))
	}
	re, err := CompileSubscription(strings.Join(names, "|"))
	require.NoError(t, err)
	require.True(t, re.MatchString("orders-of-region-999"))
	require.False(t, re.MatchString("orders-of-region-9999"))
}
