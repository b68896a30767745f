package kafka

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/transport"
)

func drawFollowerFetch(t *rapid.T) *replication.FollowerFetch {
	topics := []metadata.TopicID{{1}, {2}, {3, 3}}
	ints := rapid.IntRange(0, 1<<31-1)
	req := &replication.FollowerFetch{
		BrokerEpoch: rapid.Int64().Draw(t, "broker epoch"), MaxWait: time.Duration(ints.Draw(t, "wait")) * time.Millisecond,
		MinBytes: ints.Draw(t, "min"), MaxBytes: ints.Draw(t, "max"),
	}
	for range rapid.IntRange(0, 20).Draw(t, "changed") {
		req.Changed = append(req.Changed, replication.FetchPosition{
			TopicID: rapid.SampledFrom(topics).Draw(t, "topic"), Partition: rapid.Int32().Draw(t, "partition"), LeaderEpoch: rapid.Int32().Draw(t, "epoch"),
			Offset: rapid.Int64().Draw(t, "offset"), LastEpoch: rapid.Int32().Draw(t, "last"), LogStartOffset: rapid.Int64().Draw(t, "start"), MaxBytes: ints.Draw(t, "bytes"),
		})
	}
	for range rapid.IntRange(0, 5).Draw(t, "forgotten") {
		req.Forgotten = append(req.Forgotten, replication.TopicIDPartition{TopicID: rapid.SampledFrom(topics).Draw(t, "topic"), Partition: rapid.Int32().Draw(t, "partition")})
	}
	return req
}

// The request of a follower is what kmsg writes of the same request, and what the leader reads of it is the request.
func TestReplicaFetchEqualsKmsg(t *testing.T) {
	var in replicaFetch // reused, as by a connection
	rapid.Check(t, func(t *rapid.T) {
		req := drawFollowerFetch(t)
		session := ReplicaSession{rapid.Int32().Draw(t, "session"), rapid.Int32().Draw(t, "session epoch")}
		frame := AppendReplicaFetch(nil, 9, 5, session, req)

		k := kmsg.NewFetchRequest()
		k.Version = replicaFetchVersion
		k.MaxWaitMillis, k.MinBytes, k.MaxBytes = int32(req.MaxWait.Milliseconds()), int32(req.MinBytes), int32(req.MaxBytes)
		k.SessionID, k.SessionEpoch = session.ID, session.Epoch
		k.ReplicaState.ID, k.ReplicaState.Epoch = 5, req.BrokerEpoch
		for i, p := range req.Changed {
			if i == 0 || p.TopicID != req.Changed[i-1].TopicID {
				topic := kmsg.NewFetchRequestTopic()
				topic.TopicID = p.TopicID
				k.Topics = append(k.Topics, topic)
			}
			kp := kmsg.NewFetchRequestTopicPartition()
			kp.Partition, kp.CurrentLeaderEpoch, kp.FetchOffset, kp.LastFetchedEpoch = p.Partition, p.LeaderEpoch, p.Offset, p.LastEpoch
			kp.LogStartOffset, kp.PartitionMaxBytes = p.LogStartOffset, int32(p.MaxBytes)
			topic := &k.Topics[len(k.Topics)-1]
			topic.Partitions = append(topic.Partitions, kp)
		}
		for i, p := range req.Forgotten {
			if i == 0 || p.TopicID != req.Forgotten[i-1].TopicID {
				topic := kmsg.NewFetchRequestForgottenTopic()
				topic.TopicID = p.TopicID
				k.ForgottenTopics = append(k.ForgottenTopics, topic)
			}
			topic := &k.ForgottenTopics[len(k.ForgottenTopics)-1]
			topic.Partitions = append(topic.Partitions, p.Partition)
		}
		want := kmsg.NewRequestFormatter().AppendRequest(nil, &k, 9)
		if !bytes.Equal(want, frame) {
			t.Fatalf("\nwant %x\ngot  %x", want, frame)
		}
		if err := in.decode(frame[4+11:]); err != nil {
			t.Fatal(err)
		}
		require.Equal(t, metadata.BrokerID(5), in.replica)
		require.Equal(t, session, in.session)
		require.Equal(t, req.BrokerEpoch, in.BrokerEpoch)
		require.Equal(t, req.MaxWait, in.MaxWait)
		require.Equal(t, [2]int{req.MinBytes, req.MaxBytes}, [2]int{in.MinBytes, in.MaxBytes})
		require.Equal(t, append([]replication.FetchPosition{}, req.Changed...), append([]replication.FetchPosition{}, in.Changed...))
		require.Equal(t, append([]replication.TopicIDPartition{}, req.Forgotten...), append([]replication.TopicIDPartition{}, in.Forgotten...))
	})
}

// An answer as the encoder and kmsg write it is what the follower reads; our own tag does not disturb kmsg.
func TestReplicaAnswer(t *testing.T) {
	var e fetchEncoder
	rapid.Check(t, func(t *rapid.T) {
		parts, brokers := drawFetch(t)
		for i := range parts {
			parts[i].errorCode = rapid.SampledFrom([]int16{0, 0, 0, codeOffsetOutOfRange, codeFencedLeaderEpoch, 99}).Draw(t, "code")
			if rapid.Bool().Draw(t, "with end") {
				parts[i].logEndOffset = rapid.Int64Range(0, 1<<62).Draw(t, "end")
			}
		}
		e.encode(replicaFetchVersion, codeNone, 77, parts, brokers)
		body := e.spliced(parts)
		resp := kmsg.NewPtrFetchResponse()
		resp.Version = replicaFetchVersion
		if err := resp.ReadFrom(body); err != nil {
			t.Fatal(err)
		}
		got, session, err := ReadReplicaAnswer(append([]byte{0}, body...), nil, nil)
		if err != nil || session != 77 || len(got) != len(parts) {
			t.Fatal(err, session, len(got), len(parts))
		}
		for i := range parts {
			p, want := &got[i], &parts[i]
			require.Equal(t, metadata.TopicID(want.topic.id), p.TopicID)
			require.Equal(t, want.partition, p.Partition)
			require.Equal(t, [5]int64{want.highWatermark, want.logStartOffset, want.logEndOffset, int64(want.divergingEpoch), want.divergingOffset},
				[5]int64{p.HighWatermark, p.LogStartOffset, p.LogEndOffset, int64(p.DivergingEpoch), p.DivergingEnd})
			if want.records == nil {
				require.Empty(t, p.Records)
			} else {
				require.Equal(t, []byte(want.records.(bytesSource)), append([]byte{}, p.Records...))
			}
			switch want.errorCode {
			case codeNone:
				require.NoError(t, p.Err)
			case codeOffsetOutOfRange:
				require.ErrorIs(t, p.Err, log.ErrOffsetOutOfRange)
			case codeFencedLeaderEpoch:
				require.ErrorIs(t, p.Err, replication.ErrFencedLeaderEpoch)
			default:
				require.Error(t, p.Err)
			}
		}
		cut := rapid.IntRange(0, len(body)).Draw(t, "cut")
		_, _, err = ReadReplicaAnswer(append([]byte{0}, body[:cut]...), nil, nil)
		if cut < len(body) {
			require.ErrorIs(t, err, ErrReplicaAnswer)
		}
	})
}

// Every code that a follower acts upon comes back as the error it was.
func TestReplicaErrors(t *testing.T) {
	for _, err := range []error{
		log.ErrOffsetOutOfRange, replication.ErrUnknownTopicOrPartition, replication.ErrUnknownTopicID, replication.ErrNotLeader, replication.ErrNotReplica,
		replication.ErrFencedLeaderEpoch, replication.ErrUnknownLeaderEpoch, replication.ErrStaleBrokerEpoch, replication.ErrStorage,
	} {
		require.ErrorIs(t, replicaError(codeOf(err)), err)
	}
	require.NoError(t, replicaError(codeNone))
	require.ErrorContains(t, replicaError(codeInvalidRequest), "INVALID_REQUEST")
}

func FuzzReplicaFetch(f *testing.F) {
	f.Add(AppendReplicaFetch(nil, 1, 1, ReplicaSession{1, 2}, &replication.FollowerFetch{
		Changed: []replication.FetchPosition{{Offset: 4}}, Forgotten: []replication.TopicIDPartition{{Partition: 2}}})[4+11:])
	f.Add([]byte{0, 0, 0, 1, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var in replicaFetch
		if in.decode(b) != nil {
			return
		}
		if cap(in.Changed) > len(b) || cap(in.Forgotten) > 2*len(b)+8 {
			t.Fatalf("%d bytes became %d and %d partitions", len(b), cap(in.Changed), cap(in.Forgotten))
		}
		var again replicaFetch
		if err := again.decode(AppendReplicaFetch(nil, 1, in.replica, in.session, &in.FollowerFetch)[4+11:]); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzReplicaAnswer(f *testing.F) {
	var e fetchEncoder
	p := newFetchPartition(fetchTopic{id: kafkaUUID{1}}, 3)
	p.logEndOffset, p.divergingEpoch, p.records = 5, 2, bytesSource("abc")
	e.encode(replicaFetchVersion, 0, 1, []fetchPartition{p}, nil)
	f.Add(append([]byte{0}, e.spliced([]fetchPartition{p})...))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, _, _ := ReadReplicaAnswer(b, nil, nil)
		if cap(got) > len(b)+8 {
			t.Fatalf("%d bytes became %d partitions", len(b), cap(got))
		}
	})
}

// fakeSession is a session whose news the test makes.
type fakeSession struct {
	mu      sync.Mutex
	updates []replication.FollowerFetch
	news    []replication.FollowerNews
	wake    func()
	closed  bool
}

func (s *fakeSession) Update(req *replication.FollowerFetch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := *req
	kept.Changed = append([]replication.FetchPosition{}, req.Changed...)
	s.updates = append(s.updates, kept)
}

func (s *fakeSession) Ready(int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.news) > 0
}

func (s *fakeSession) Park(_ int, wake func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake = wake
}

func (s *fakeSession) Unpark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake = nil
}

func (s *fakeSession) Collect(_ int, each func(replication.FollowerNews)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.news {
		each(n)
	}
	s.news = nil
}

func (s *fakeSession) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

func (s *fakeSession) parked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wake != nil
}

func (s *fakeSession) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

func (s *fakeSession) tell(n replication.FollowerNews) {
	s.mu.Lock()
	s.news = append(s.news, n)
	wake := s.wake
	s.wake = nil
	s.mu.Unlock()
	if wake != nil {
		wake()
	}
}

// replicaServer serves followers with fake sessions; every connection is from broker 2.
type replicaServer struct {
	*ReplicaHandlers
	t        testing.TB
	server   *transport.Server
	sessions chan *fakeSession
}

// asBroker lets every connection be broker 2's.
type asBroker struct{ *ReplicaHandlers }

func (h asBroker) Handle(req *transport.Request) {
	req.Conn.SetBroker(2)
	h.ReplicaHandlers.Handle(req)
}

func startReplicaServer(t testing.TB, internal bool) *replicaServer {
	r := &replicaServer{ReplicaHandlers: theBroker(t).handlers.Replicas(), t: t, sessions: make(chan *fakeSession, 10)}
	r.open = func(id metadata.BrokerID) followerSession {
		require.Equal(t, metadata.BrokerID(2), id)
		s := &fakeSession{}
		r.sessions <- s
		return s
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	cfg := transport.Default()
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg.Listeners = []transport.ListenerConfig{{Name: "CONTROLLER", Protocol: transport.Plaintext, Listener: listener, Internal: internal}}
	r.server, err = transport.New(cfg, asBroker{r.ReplicaHandlers})
	require.NoError(t, err)
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		_ = r.server.Run(context.Background())
	}()
	t.Cleanup(func() {
		_ = r.server.Close()
		<-ran
	})
	return r
}

// follower is a follower's connection.
type follower struct {
	*rawClient
	session ReplicaSession
	sent    int32
}

func (r *replicaServer) follower() *follower {
	conn, err := net.Dial("tcp", r.server.Listeners()[0].Addr().String())
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = conn.Close() })
	require.NoError(r.t, conn.SetDeadline(time.Now().Add(testDeadline)))
	return &follower{rawClient: &rawClient{t: r.t, conn: conn, buf: make([]byte, 1<<20)}}
}

func (f *follower) ask(req *replication.FollowerFetch) {
	f.sent++
	_, err := f.conn.Write(AppendReplicaFetch(nil, f.sent, 2, f.session, req))
	require.NoError(f.t, err)
}

func (f *follower) answer() ([]replication.FetchedPartition, error) {
	b := f.read()
	require.Equal(f.t, f.sent, int32(binary.BigEndian.Uint32(b)))
	parts, id, err := ReadReplicaAnswer(b[4:], nil, nil)
	f.session = f.session.Next(id)
	return parts, err
}

// A session's life on its connection: new, incremental, parked and woken by news, by a wake, by its time and by the
// server's draining; it ends with the connection.
func TestReplicaFetch(t *testing.T) {
	r := startReplicaServer(t, true)
	f := r.follower()
	f.ask(&replication.FollowerFetch{BrokerEpoch: 8, Changed: []replication.FetchPosition{{TopicID: metadata.TopicID{1}, Offset: 5}}})
	parts, err := f.answer()
	require.NoError(t, err)
	require.Empty(t, parts)
	s := <-r.sessions
	require.EqualValues(t, 8, s.updates[0].BrokerEpoch)
	require.EqualValues(t, 5, s.updates[0].Changed[0].Offset)
	require.EqualValues(t, 1, f.session.Epoch)

	hour := &replication.FollowerFetch{MaxWait: time.Hour, MinBytes: 1}
	f.ask(hour)
	require.Eventually(t, s.parked, testDeadline, time.Millisecond)
	s.tell(replication.FollowerNews{TopicID: metadata.TopicID{1}, Partition: 4, HighWatermark: 7, LogStartOffset: 1, LogEndOffset: 9, DivergingEpoch: -1, DivergingEnd: -1})
	parts, err = f.answer()
	require.NoError(t, err)
	require.Equal(t, []replication.FetchedPartition{{TopicID: metadata.TopicID{1}, Partition: 4, HighWatermark: 7, LogStartOffset: 1, LogEndOffset: 9, DivergingEpoch: -1, DivergingEnd: -1, Records: parts[0].Records}}, parts)
	require.Empty(t, parts[0].Records)
	require.EqualValues(t, 2, f.session.Epoch)

	for range 3 {
		f.ask(hour)
		require.Eventually(t, s.parked, testDeadline, time.Millisecond)
		_, err = f.conn.Write([]byte{0, 0, 0, 10, byte(KeyWakeReplicaFetch >> 8), byte(KeyWakeReplicaFetch & 0xff), 0, 0, 0, 0, 0, 0, 0xff, 0xff})
		require.NoError(t, err)
		parts, err = f.answer()
		require.NoError(t, err)
		require.Empty(t, parts)
		f.ask(&replication.FollowerFetch{MaxWait: 2 * time.Millisecond})
		_, err = f.answer()
		require.NoError(t, err)
	}

	// KIP-227: a wrong epoch ends the session, and a new one takes its place.
	wrong := f.session
	f.session.Epoch++
	f.ask(hour)
	_, err = f.answer()
	require.ErrorIs(t, err, errFetchSession)
	require.True(t, s.isClosed())
	f.session = wrong
	f.ask(hour)
	_, err = f.answer()
	require.ErrorIs(t, err, errFetchSession)
	f.ask(&replication.FollowerFetch{})
	_, err = f.answer()
	require.NoError(t, err)
	second := <-r.sessions

	g := r.follower()
	g.ask(hour)
	third := <-r.sessions
	require.Eventually(t, third.parked, testDeadline, time.Millisecond)
	_ = g.conn.Close()
	require.Eventually(t, third.isClosed, testDeadline, time.Millisecond)
	third.tell(replication.FollowerNews{})
	r.mu.Lock()
	require.Len(t, r.mu.fetchers, 1)
	r.mu.Unlock()

	f.ask(hour)
	require.Eventually(t, second.parked, testDeadline, time.Millisecond)
	ctx, cancel := context.WithTimeout(context.Background(), testDeadline)
	defer cancel()
	require.NoError(t, r.server.Shutdown(ctx))
	_, err = f.answer()
	require.NoError(t, err)
}

// S5: nobody follows on a listener that is not the brokers' own, not even who says he is a replica; Kafka's answer to
// those is that they are not authorized.
func TestReplicaFetchElsewhere(t *testing.T) {
	f := startReplicaServer(t, false).follower()
	f.ask(&replication.FollowerFetch{})
	_, err := f.conn.Read(f.buf)
	require.Error(t, err)

	b := theBroker(t)
	topic := b.topic(t, 1)
	for _, version := range []int16{4, 12, 17} {
		req := fetchRequest(version, fetched{topic, 0, 0})
		req.ReplicaID, req.ReplicaState.ID = 2, 2
		require.EqualValues(t, codeTopicAuthorizationFailed, b.dial(t).fetchOne(req).ErrorCode, "v%d", version)
	}
}
