package broker

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

// groupWire is one connection that speaks any version of a request, also such that no client would send.
type groupWire struct {
	t    *testing.T
	conn net.Conn
}

func dialGroupWire(t *testing.T, b *Broker) *groupWire {
	conn, err := net.Dial("tcp", b.Advertised())
	require.NoError(t, err)
	require.NoError(t, conn.SetDeadline(time.Now().Add(2*patience)))
	t.Cleanup(func() { _ = conn.Close() })
	return &groupWire{t, conn}
}

// ask sends a request whose encoding edit may change, and returns the answer.
func (w *groupWire) ask(req kmsg.Request, edit func(frame []byte)) kmsg.Response {
	w.t.Helper()
	frame := kmsg.NewRequestFormatter(kmsg.FormatterClientID("tester")).AppendRequest(nil, req, 1)
	if edit != nil {
		edit(frame)
	}
	_, err := w.conn.Write(frame)
	require.NoError(w.t, err)
	var size [4]byte
	_, err = io.ReadFull(w.conn, size[:])
	require.NoError(w.t, err, "%T version %d: no answer", req, req.GetVersion())
	body := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err = io.ReadFull(w.conn, body)
	require.NoError(w.t, err)
	body = body[4:]
	if req.IsFlexible() {
		body = body[1:]
	}
	resp := req.ResponseKind()
	require.NoError(w.t, resp.ReadFrom(body))
	return resp
}

// nullLast makes the array at the end of a request, which is empty, null.
func nullLast(frame []byte) { binary.BigEndian.PutUint32(frame[len(frame)-4:], 0xffffffff) }

// badGroup has two classic members, one of them static, a KIP-848 member, and offsets of no members.
type badGroup struct {
	b               *Broker
	topic           *metadata.Topic
	dynamic, static string // member ids
	generation      int32
	modern          string
	epoch           int32
}

func classicJoin(version int16, name, member string) *kmsg.JoinGroupRequest {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.MemberID, req.ProtocolType, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = version, name, member, "consumer", 1_800_000, 60_000
	p := kmsg.NewJoinGroupRequestProtocol()
	meta := kmsg.NewConsumerMemberMetadata()
	meta.Topics = []string{"orders"}
	p.Name, p.Metadata = "range", meta.AppendTo(nil)
	req.Protocols = append(req.Protocols, p)
	return req
}

func modernHeartbeat(name, member string, epoch int32) *kmsg.ConsumerGroupHeartbeatRequest {
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.MemberEpoch = 1, name, member, epoch
	if epoch == 0 {
		req.RebalanceTimeoutMillis, req.SubscribedTopicNames, req.Topics = 60_000, []string{"orders"}, []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	}
	return req
}

func oneOffset(version int16, name, member string, generation int32, topic *metadata.Topic, note string) *kmsg.OffsetCommitRequest {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group, req.MemberID, req.Generation = version, name, member, generation
	rt, rp := kmsg.NewOffsetCommitRequestTopic(), kmsg.NewOffsetCommitRequestTopicPartition()
	rt.Topic, rt.TopicID = topic.Name, topic.ID
	rp.Offset, rp.Metadata = 99, &note
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return req
}

func newBadGroup(t *testing.T, set ...string) *badGroup {
	c := testConfig(t.TempDir())
	c.Static = map[string]string{"group.initial.rebalance.delay.ms": "200", "group.consumer.session.timeout.ms": "60000"}
	for i := 0; i < len(set); i += 2 {
		c.Static[set[i]] = set[i+1]
	}
	g := &badGroup{b: startBroker(t, c)}
	_, err := kadm.NewClient(client(t, g.b)).CreateTopic(t.Context(), 1, 1, nil, "orders")
	require.NoError(t, err)
	g.topic = g.b.store.Image().Topic("orders")

	dynamic, static := dialGroupWire(t, g.b), dialGroupWire(t, g.b)
	g.dynamic = dynamic.ask(classicJoin(9, "billing", ""), nil).(*kmsg.JoinGroupResponse).MemberID
	var both sync.WaitGroup
	var joined [2]*kmsg.JoinGroupResponse
	both.Go(func() {
		joined[0] = dynamic.ask(classicJoin(9, "billing", g.dynamic), nil).(*kmsg.JoinGroupResponse)
	})
	both.Go(func() {
		req := classicJoin(9, "billing", "")
		req.InstanceID = kmsg.StringPtr("i")
		joined[1] = static.ask(req, nil).(*kmsg.JoinGroupResponse)
	})
	both.Wait()
	require.Equal(t, [2]int16{}, [2]int16{joined[0].ErrorCode, joined[1].ErrorCode})
	require.Equal(t, joined[0].Generation, joined[1].Generation)
	g.generation, g.static = joined[0].Generation, joined[1].MemberID
	for i, w := range []*groupWire{dynamic, static} {
		if joined[i].MemberID != joined[i].LeaderID {
			continue
		}
		req := kmsg.NewPtrSyncGroupRequest()
		req.Version, req.Group, req.MemberID, req.Generation = 5, "billing", joined[i].MemberID, g.generation
		req.ProtocolType, req.Protocol = kmsg.StringPtr("consumer"), kmsg.StringPtr("range")
		require.Zero(t, w.ask(req, nil).(*kmsg.SyncGroupResponse).ErrorCode)
	}
	g.modern = "modern-member-of-this-test"
	beat := dynamic.ask(modernHeartbeat("modern", g.modern, 0), nil).(*kmsg.ConsumerGroupHeartbeatResponse)
	require.Zero(t, beat.ErrorCode)
	g.epoch = beat.MemberEpoch
	for name, of := range map[string]struct {
		member     string
		generation int32
	}{"billing": {g.dynamic, g.generation}, "modern": {g.modern, g.epoch}, "simple": {"", -1}} {
		resp := dynamic.ask(oneOffset(9, name, of.member, of.generation, g.topic, "kept"), nil).(*kmsg.OffsetCommitResponse)
		require.Zero(t, resp.Topics[0].Partitions[0].ErrorCode, name)
	}
	return g
}

// state is everything about groups that is committed, and what the coordinator says beside it.
func (g *badGroup) state(t *testing.T) string {
	im := g.b.store.Image()
	out := fmt.Sprintf("%d groups, %d offsets\n", im.GroupCount(), im.OffsetCount())
	for _, name := range []string{"billing", "modern", "simple"} {
		d, err := g.b.groups.Describe(name)
		require.NoError(t, err)
		var ids []string
		for i := range d.Members {
			ids = append(ids, d.Members[i].ID)
		}
		out += fmt.Sprintf("%s: revision %d, %s in generation %d of %v", name, im.Group(name).Revision, d.State, d.Generation, ids)
		for at, o := range im.Offsets(name) {
			out += fmt.Sprintf(", %v %+v", at, o)
		}
		out += "\n"
	}
	return out
}

// Bad input of groups, in every version that can say it: the error of protocol.md 7, and nothing is another than before: not what is
// committed, not what the coordinator tells, not how many groups there are (G1, G9, G10).
func TestBadGroupInputChangesNothing(t *testing.T) {
	g := newBadGroup(t)
	w := dialGroupWire(t, g.b)
	long, big := strings.Repeat("n", 300), strings.Repeat("x", 4097)
	unknown := &metadata.Topic{Name: long, ID: metadata.TopicID{9}}
	type badInput struct {
		from, to int16
		ask      func(version int16) []int16 // the codes of the answer
		want     int16
		code     func(version int16) int16 // if want depends on it
	}
	join := func(edit func(*kmsg.JoinGroupRequest), frame func([]byte)) func(int16) []int16 {
		return func(version int16) []int16 {
			req := classicJoin(version, "billing", "")
			edit(req)
			return []int16{w.ask(req, frame).(*kmsg.JoinGroupResponse).ErrorCode}
		}
	}
	sync := func(edit func(*kmsg.SyncGroupRequest), frame func([]byte)) func(int16) []int16 {
		return func(version int16) []int16 {
			req := kmsg.NewPtrSyncGroupRequest()
			req.Version, req.Group, req.MemberID, req.Generation = version, "billing", g.dynamic, g.generation
			req.ProtocolType, req.Protocol = kmsg.StringPtr("consumer"), kmsg.StringPtr("range")
			edit(req)
			return []int16{w.ask(req, frame).(*kmsg.SyncGroupResponse).ErrorCode}
		}
	}
	beat := func(name, member, instance string, generation int32) func(int16) []int16 {
		return func(version int16) []int16 {
			req := kmsg.NewPtrHeartbeatRequest()
			req.Version, req.Group, req.MemberID, req.Generation = version, name, member, generation
			if instance != "" {
				req.InstanceID = &instance
			}
			return []int16{w.ask(req, nil).(*kmsg.HeartbeatResponse).ErrorCode}
		}
	}
	leave := func(name, member, instance string) func(int16) []int16 {
		return func(version int16) []int16 {
			req := kmsg.NewPtrLeaveGroupRequest()
			req.Version, req.Group, req.MemberID = version, name, member
			m := kmsg.NewLeaveGroupRequestMember()
			if m.MemberID = member; instance != "" {
				m.InstanceID = &instance
			}
			req.Members = append(req.Members, m)
			resp := w.ask(req, nil).(*kmsg.LeaveGroupResponse)
			codes := []int16{resp.ErrorCode}
			for _, m := range resp.Members {
				codes = append(codes, m.ErrorCode)
			}
			return codes
		}
	}
	commit := func(name, member, instance string, generation int32, topic *metadata.Topic, note string, frame func([]byte)) func(int16) []int16 {
		return func(version int16) []int16 {
			req := oneOffset(version, name, member, generation, topic, note)
			if instance != "" {
				req.InstanceID = &instance
			}
			if frame != nil {
				req.Topics = nil
			}
			var codes []int16
			for _, t := range w.ask(req, frame).(*kmsg.OffsetCommitResponse).Topics {
				for _, p := range t.Partitions {
					codes = append(codes, p.ErrorCode)
				}
			}
			return codes
		}
	}
	consumer := func(edit func(*kmsg.ConsumerGroupHeartbeatRequest)) func(int16) []int16 {
		return func(version int16) []int16 {
			req := modernHeartbeat("modern", g.modern, 0)
			req.Version = version
			edit(req)
			return []int16{w.ask(req, nil).(*kmsg.ConsumerGroupHeartbeatResponse).ErrorCode}
		}
	}
	remove := func(frame func([]byte), names ...string) func(int16) []int16 {
		return func(version int16) (codes []int16) {
			req := kmsg.NewPtrDeleteGroupsRequest()
			req.Version, req.Groups = version, names
			for _, g := range w.ask(req, frame).(*kmsg.DeleteGroupsResponse).Groups {
				codes = append(codes, g.ErrorCode)
			}
			return codes
		}
	}
	forget := func(name, topic string, frame func([]byte)) func(int16) []int16 {
		return func(int16) []int16 {
			req := kmsg.NewPtrOffsetDeleteRequest()
			req.Group = name
			if topic != "" {
				rt := kmsg.NewOffsetDeleteRequestTopic()
				rt.Topic, rt.Partitions = topic, []kmsg.OffsetDeleteRequestTopicPartition{kmsg.NewOffsetDeleteRequestTopicPartition()}
				req.Topics = append(req.Topics, rt)
			}
			resp := w.ask(req, frame).(*kmsg.OffsetDeleteResponse)
			codes := []int16{resp.ErrorCode}
			for _, t := range resp.Topics {
				for _, p := range t.Partitions {
					codes = append(codes, p.ErrorCode)
				}
			}
			return codes
		}
	}
	since := func(version, below, from int16) func(int16) int16 {
		return func(v int16) int16 {
			if v < version {
				return below
			}
			return from
		}
	}
	inputs := map[string]badInput{
		"join of no group":                     {0, 9, join(func(r *kmsg.JoinGroupRequest) { r.Group = "" }, nil), 24, nil},
		"join of a stranger":                   {0, 9, join(func(r *kmsg.JoinGroupRequest) { r.MemberID = "nobody" }, nil), 25, nil},
		"join of a stranger, a long name":      {0, 9, join(func(r *kmsg.JoinGroupRequest) { r.Group, r.MemberID = long, long }, nil), 25, nil},
		"join of a short session":              {0, 9, join(func(r *kmsg.JoinGroupRequest) { r.SessionTimeoutMillis = 5999 }, nil), 26, nil},
		"join of a long session":               {0, 9, join(func(r *kmsg.JoinGroupRequest) { r.SessionTimeoutMillis = 1_800_001 }, nil), 26, nil},
		"join of a negative session":           {0, 9, join(func(r *kmsg.JoinGroupRequest) { r.SessionTimeoutMillis = -1 }, nil), 26, nil},
		"join of a foreign type":               {0, 9, join(func(r *kmsg.JoinGroupRequest) { r.MemberID, r.ProtocolType = g.dynamic, "connect" }, nil), 23, nil},
		"join of no type":                      {0, 9, join(func(r *kmsg.JoinGroupRequest) { r.MemberID, r.ProtocolType = g.dynamic, "" }, nil), 23, nil},
		"join of a foreign protocol":           {0, 9, join(func(r *kmsg.JoinGroupRequest) { r.MemberID, r.Protocols[0].Name = g.dynamic, long }, nil), 23, nil},
		"join of no protocols":                 {0, 9, join(func(r *kmsg.JoinGroupRequest) { r.MemberID, r.Protocols = g.dynamic, nil }, nil), 23, nil},
		"join of null protocols":               {0, 5, join(func(r *kmsg.JoinGroupRequest) { r.MemberID, r.Protocols = g.dynamic, nil }, nullLast), 23, nil},
		"join under another's instance":        {5, 9, join(func(r *kmsg.JoinGroupRequest) { r.MemberID, r.InstanceID = g.dynamic, kmsg.StringPtr("i") }, nil), 82, nil},
		"join of a foreign type, modern":       {0, 9, join(func(r *kmsg.JoinGroupRequest) { r.Group, r.ProtocolType = "modern", "connect" }, nil), 23, nil},
		"sync of no group":                     {0, 5, sync(func(r *kmsg.SyncGroupRequest) { r.Group = "" }, nil), 24, nil},
		"sync of a stranger":                   {0, 5, sync(func(r *kmsg.SyncGroupRequest) { r.MemberID = long }, nil), 25, nil},
		"sync of a group that is not there":    {0, 5, sync(func(r *kmsg.SyncGroupRequest) { r.Group = long }, nil), 25, nil},
		"sync of a generation before":          {0, 5, sync(func(r *kmsg.SyncGroupRequest) { r.Generation-- }, nil), 22, nil},
		"sync of a generation to come":         {0, 5, sync(func(r *kmsg.SyncGroupRequest) { r.Generation++ }, nil), 22, nil},
		"sync under another's instance":        {3, 5, sync(func(r *kmsg.SyncGroupRequest) { r.InstanceID = kmsg.StringPtr("i") }, nil), 82, nil},
		"sync of a foreign type":               {5, 5, sync(func(r *kmsg.SyncGroupRequest) { r.ProtocolType = kmsg.StringPtr("connect") }, nil), 23, nil},
		"sync of a foreign protocol":           {5, 5, sync(func(r *kmsg.SyncGroupRequest) { r.Protocol = kmsg.StringPtr(long) }, nil), 23, nil},
		"sync of no protocol":                  {5, 5, sync(func(r *kmsg.SyncGroupRequest) { r.Protocol = nil }, nil), 23, nil},
		"sync of null assignments, a stranger": {0, 3, sync(func(r *kmsg.SyncGroupRequest) { r.MemberID = "nobody" }, nullLast), 25, nil},
		"heartbeat of no group":                {0, 4, beat("", g.dynamic, "", g.generation), 24, nil},
		"heartbeat of a long name":             {0, 4, beat(long, g.dynamic, "", g.generation), 25, nil},
		"heartbeat of a stranger":              {0, 4, beat("billing", long, "", g.generation), 25, nil},
		"heartbeat of nobody":                  {0, 4, beat("billing", "", "", g.generation), 25, nil},
		"heartbeat of a generation before":     {0, 4, beat("billing", g.dynamic, "", g.generation-1), 22, nil},
		"heartbeat of a generation to come":    {0, 4, beat("billing", g.dynamic, "", g.generation+1), 22, nil},
		"heartbeat under another's instance":   {3, 4, beat("billing", g.dynamic, "i", g.generation), 82, nil},
		"heartbeat of an instance of nobody":   {3, 4, beat("billing", g.dynamic, long, g.generation), 25, nil},
		"leave of no group":                    {0, 5, leave("", g.dynamic, ""), 24, nil},
		"leave of a stranger":                  {0, 5, leave("billing", long, ""), 25, nil},
		"leave of a long name":                 {0, 5, leave(long, g.dynamic, ""), 25, nil},
		"leave under another's instance":       {3, 5, leave("billing", g.dynamic, "i"), 82, nil},

		"commit of a stranger":                {1, 9, commit("billing", "nobody", "", g.generation, g.topic, "", nil), 25, nil},
		"commit from outside":                 {1, 9, commit("billing", "", "", -1, g.topic, "", nil), 25, nil},
		"commit of a zombie":                  {1, 9, commit("billing", g.dynamic, "", g.generation-1, g.topic, "", nil), 22, nil},
		"commit of a generation to come":      {1, 10, commit("billing", g.dynamic, "", g.generation+1, g.topic, "", nil), 22, nil},
		"commit under another's instance":     {7, 10, commit("billing", g.dynamic, "i", g.generation, g.topic, "", nil), 82, nil},
		"commit in no group":                  {1, 10, commit("", g.dynamic, "", g.generation, g.topic, "", nil), 24, nil},
		"commit in a group that is not there": {1, 10, commit(long, "nobody", "", 3, g.topic, "", nil), 0, since(9, 22, 69)},
		"commit of a text too long":           {1, 10, commit("billing", g.dynamic, "", g.generation, g.topic, big, nil), 12, nil},
		"commit of a text too long, simple":   {1, 10, commit("simple", "", "", -1, g.topic, big, nil), 12, nil},
		"commit of a topic that is not there": {1, 10, commit("billing", g.dynamic, "", g.generation, unknown, "", nil), 0, since(10, 3, 100)},
		"commit of null topics":               {1, 7, commit("billing", g.dynamic, "", g.generation, g.topic, "", nullLast), 0, nil},
		"commit of a stranger, modern":        {1, 10, commit("modern", "nobody", "", g.epoch, g.topic, "", nil), 25, nil},
		"commit from outside, modern":         {1, 10, commit("modern", "", "", -1, g.topic, "", nil), 25, nil},
		"commit of an epoch to come, modern":  {1, 10, commit("modern", g.modern, "", g.epoch+1, g.topic, "", nil), 0, since(9, 35, 113)},
		"commit of a text too long, modern":   {9, 10, commit("modern", g.modern, "", g.epoch, g.topic, big, nil), 12, nil},

		"consumer heartbeat of no group":          {0, 1, consumer(func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.Group = "" }), 42, nil},
		"consumer heartbeat of a stranger":        {0, 1, consumer(func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberID, r.MemberEpoch = long, 1 }), 25, nil},
		"consumer heartbeat of a long name":       {0, 1, consumer(func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.Group, r.MemberEpoch = long, 1 }), 69, nil},
		"consumer heartbeat of an epoch to come":  {0, 1, consumer(func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberEpoch = g.epoch + 7 }), 110, nil},
		"consumer heartbeat without topics":       {0, 1, consumer(func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberID, r.SubscribedTopicNames = "another", nil }), 42, nil},
		"consumer heartbeat of an odd assignor":   {0, 1, consumer(func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberID, r.ServerAssignor = "another", &long }), 112, nil},
		"consumer heartbeat of an odd regex":      {1, 1, consumer(func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.SubscribedTopicRegex = kmsg.StringPtr("(") }), 128, nil},
		"consumer heartbeat without a timeout":    {0, 1, consumer(func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberID, r.RebalanceTimeoutMillis = "another", -1 }), 42, nil},
		"consumer heartbeat of an epoch below -2": {0, 1, consumer(func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberEpoch = -3 }), 42, nil},

		"delete of groups with members":         {0, 2, remove(nil, "billing", "modern"), 68, nil},
		"delete of groups that are not there":   {0, 2, remove(nil, long, ""), 69, nil},
		"delete of null groups":                 {0, 1, remove(nullLast), 0, nil},
		"delete of offsets that are read":       {0, 0, forget("billing", "orders", nil), 86, nil},
		"delete of offsets, modern":             {0, 0, forget("modern", "orders", nil), 86, nil},
		"delete of offsets of no group":         {0, 0, forget(long, "orders", nil), 69, nil},
		"delete of offsets of no topic":         {0, 0, forget("simple", long, nil), 3, nil},
		"delete of offsets of null topics":      {0, 0, forget("simple", "", nullLast), 0, nil},
		"delete of offsets in a group of no id": {0, 0, forget("", "orders", nil), 24, nil},
	}
	full := map[string]badInput{
		"join of one too many":               {0, 9, join(func(*kmsg.JoinGroupRequest) {}, nil), 81, nil},
		"consumer heartbeat of one too many": {0, 1, consumer(func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberID = "another" }), 81, nil},
	}
	before := g.state(t)
	try := func(name string, in badInput) {
		for version := in.from; version <= in.to; version++ {
			want := in.want
			if in.code != nil {
				want = in.code(version)
			}
			codes := in.ask(version)
			worst := int16(0)
			for _, code := range codes {
				if code != 0 {
					require.True(t, worst == 0 || worst == code, "%s, version %d: %v", name, version, codes)
					worst = code
				}
			}
			require.Equal(t, want, worst, "%s, version %d", name, version)
			require.Equal(t, before, g.state(t), "%s, version %d", name, version)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(inputs)) {
		try(name, inputs[name])
	}
	// And it would have been seen: the members still do what they may.
	require.Equal(t, []int16{0}, beat("billing", g.dynamic, "", g.generation)(4))
	require.Equal(t, []int16{0}, commit("billing", g.dynamic, "", g.generation, g.topic, "new", nil)(9))
	require.NotEqual(t, before, g.state(t))

	g = newBadGroup(t, "group.max.size", "2", "group.consumer.max.size", "1") // where a group is full before all else is looked at
	w, before = dialGroupWire(t, g.b), g.state(t)
	for name, in := range full {
		try(name, in)
	}
}
