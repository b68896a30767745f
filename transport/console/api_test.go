package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
)

// fakeCluster is a broker's parts without a broker. Orders are written down, and refused with err.
type fakeCluster struct {
	image  *metadata.Image
	quorum QuorumStatus
	status metadata.BalancerStatus
	states map[int32]ReplicaState
	orders []string
	err    error

	recovery []metadata.Recovery
}

func (f *fakeCluster) order(what string, id metadata.BrokerID) error {
	f.orders = append(f.orders, what+" "+id.String())
	return f.err
}

func (f *fakeCluster) Image() *metadata.Image { return f.image }
func (f *fakeCluster) SetMaintenance(_ context.Context, id metadata.BrokerID, on bool) error {
	return f.order(map[bool]string{true: "drain", false: "undrain"}[on], id)
}
func (f *fakeCluster) Decommission(_ context.Context, id metadata.BrokerID, on bool) error {
	return f.order(map[bool]string{true: "remove", false: "keep"}[on], id)
}
func (f *fakeCluster) UnregisterBroker(_ context.Context, id metadata.BrokerID) error {
	return f.order("forget", id)
}
func (f *fakeCluster) UpdateFeatureLevel(_ context.Context, level uint32) error {
	f.orders = append(f.orders, fmt.Sprintf("level %d", level))
	return f.err
}
func (f *fakeCluster) PlanRecovery(_ context.Context, partitions []metadata.TopicPartition) ([]metadata.Recovery, error) {
	return f.recovery, f.err
}
func (f *fakeCluster) Recover(_ context.Context, orders []metadata.RecoveryOrder) (out []metadata.ElectionResult) {
	for _, o := range orders {
		f.orders = append(f.orders, fmt.Sprintf("recover %s epoch %d by %d", o.TopicPartition, o.PartitionEpoch, o.Leader))
		out = append(out, metadata.ElectionResult{TopicPartition: o.TopicPartition, Leader: o.Leader, Err: f.err})
	}
	return out
}
func (f *fakeCluster) Quorum(context.Context) (QuorumStatus, error) { return f.quorum, nil }
func (f *fakeCluster) AddServer(_ context.Context, id metadata.BrokerID) error {
	return f.order("add", id)
}
func (f *fakeCluster) RemoveServer(_ context.Context, id metadata.BrokerID) error {
	return f.order("drop", id)
}
func (f *fakeCluster) TransferLeadership(_ context.Context, id metadata.BrokerID) error {
	return f.order("transfer", id)
}
func (f *fakeCluster) PlanBalance(context.Context) (*metadata.BalancerPlan, error) {
	return &f.status.BalancerPlan, f.err
}
func (f *fakeCluster) RunBalance(context.Context) (*metadata.BalancerPlan, error) {
	f.orders = append(f.orders, "balance")
	return &f.status.BalancerPlan, f.err
}
func (f *fakeCluster) BalanceStatus(context.Context) (*metadata.BalancerStatus, error) {
	return &f.status, f.err
}
func (f *fakeCluster) CancelBalance(context.Context) (int, error) {
	f.orders = append(f.orders, "cancel")
	return len(f.status.Moves), f.err
}
func (f *fakeCluster) LogDirs() []replication.LogDir {
	return []replication.LogDir{{Path: "/data", TotalBytes: 100, UsableBytes: 60, Replicas: []replication.LogDirReplica{{Topic: "pay", SizeBytes: 3}, {Topic: "orders", Partition: 1, SizeBytes: 2}, {Topic: "orders", SizeBytes: 1}}}}
}
func (f *fakeCluster) ReplicaState(_ metadata.TopicID, _ int32) (ReplicaState, bool) {
	s, ok := f.states[1]
	return s, ok
}

// fakePeers are the other brokers.
type fakePeers struct{ f *fakeCluster }

func (p fakePeers) ReplicaState(_ context.Context, broker metadata.BrokerID, _ metadata.TopicID, _ int32) (ReplicaState, bool, error) {
	s, ok := p.f.states[int32(broker)]
	if !ok {
		return s, false, errors.New("no answer")
	}
	return s, true, nil
}

// threeBrokers has brokers 1 to 3, and the topics orders (three partitions of three replicas) and pay (one of one, on
// broker 2).
func threeBrokers(change func(brokers []*metadata.Broker, orders, pay *metadata.Topic)) *metadata.Image {
	var brokers []*metadata.Broker
	for id := range metadata.BrokerID(3) {
		brokers = append(brokers, &metadata.Broker{ID: id + 1, Epoch: int64(id) + 10, Version: "1.0", PeerAddress: "m:9093", Listeners: []metadata.Listener{{Name: "PLAINTEXT", Host: "m" + (id + 1).String(), Port: 9092, Protocol: "PLAINTEXT"}}})
	}
	partition := func(replicas ...metadata.BrokerID) *metadata.Partition {
		return &metadata.Partition{Leader: replicas[0], LastLeader: replicas[0], Replicas: replicas, ISR: replicas, Directories: make([]metadata.DirectoryID, len(replicas)), UncleanEpoch: -1}
	}
	orders := &metadata.Topic{Name: "orders", ID: metadata.TopicID{1}, Partitions: []*metadata.Partition{partition(1, 2, 3), partition(2, 3, 1), partition(3, 1, 2)}}
	pay := &metadata.Topic{Name: "pay", ID: metadata.TopicID{2}, Partitions: []*metadata.Partition{partition(2)}}
	if change != nil {
		change(brokers, orders, pay)
	}
	return metadata.BuildImage("millrace-test", 1, 42, brokers, []*metadata.Topic{orders, pay})
}

func threeVoters() QuorumStatus {
	return QuorumStatus{Leader: 1, Term: 3, CommitIndex: 42, LastIndex: 42, Size: 3, Servers: []QuorumServer{
		{Broker: 3, Voter: true, Healthy: true}, {Broker: 1, Voter: true, Leader: true, Healthy: true}, {Broker: 2, Voter: true, Healthy: true},
	}}
}

// testServer serves the parts of broker 1 in a cluster.
func testServer(t *testing.T, im *metadata.Image) (*Server, *fakeCluster) {
	t.Helper()
	if im == nil {
		im = threeBrokers(nil)
	}
	f := &fakeCluster{image: im, quorum: threeVoters(), states: map[int32]ReplicaState{1: {Role: "leader", LogEndOffset: 10}, 2: {Role: "follower", LogEndOffset: 8}}}
	s := New(Config{Live: func() []string { return nil }, Ready: func() []string { return nil }, Gatherer: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler)})
	s.SetAdmin(&Admin{BrokerID: 1, Cluster: f, Quorum: f, Balancer: f, Replicas: f, Peers: fakePeers{f}, MinISR: func() func(t *metadata.Topic) int {
		return func(t *metadata.Topic) int { return min(2, len(t.Partitions[0].Replicas)) }
	}})
	return s, f
}

// ask sends a request as the broker's own machine does, and decodes the answer.
func ask[T any](t *testing.T, s *Server, status int, request string, body ...string) (answer T) {
	t.Helper()
	method, path, _ := strings.Cut(request, " ")
	r := httptest.NewRequest(method, "http://localhost:9644"+path, strings.NewReader(strings.Join(body, "")))
	r.RemoteAddr = "127.0.0.1:4711"
	w := httptest.NewRecorder()
	s.http.Handler.ServeHTTP(w, r)
	require.Equal(t, status, w.Code, "%s: %s", request, w.Body)
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer), "%s: %s", request, w.Body)
	return answer
}

// refused sends a request that must be refused with all three lines, and returns them.
func refused(t *testing.T, s *Server, status int, request string, body ...string) ErrorLines {
	t.Helper()
	e := ask[ErrorAnswer](t, s, status, request, body...).Error
	require.NotEmpty(t, e.What, request)
	require.NotEmpty(t, e.Why, request)
	require.NotEmpty(t, e.Fix, request)
	return e
}

// S7: without authentication the admin API answers this machine alone: no other address, no proxy, no name that a web
// page could have resolved to loopback, no other page's request. Health answers anyone.
func TestAdminIsForLoopback(t *testing.T) {
	s, f := testServer(t, nil)
	try := func(path, method, remote, host string, headers ...string) int {
		r := httptest.NewRequest(method, "http://"+host+path, nil)
		r.RemoteAddr = remote
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		s.http.Handler.ServeHTTP(w, r)
		if w.Code == http.StatusForbidden {
			var e ErrorAnswer
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &e))
			require.NotEmpty(t, e.Error.Why)
			require.NotEmpty(t, e.Error.Fix)
		}
		return w.Code
	}
	const path = "/v1/brokers/2/maintenance"
	for _, host := range []string{"localhost:9644", "LOCALHOST", "127.0.0.1:9644", "[::1]:9644", "[::1]", "127.9.9.9"} {
		require.Equal(t, 200, try(path, "PUT", "127.0.0.1:1", host), host)
		require.Equal(t, 200, try(path, "PUT", "[::1]:1", host), host)
		require.Equal(t, 200, try(path, "PUT", "[::ffff:127.0.0.1]:1", host), host)
	}
	orders := len(f.orders)
	require.Equal(t, 18, orders)
	for _, remote := range []string{"10.0.0.1:1", "[2001:db8::1]:1", "[::ffff:10.0.0.1]:1", "nonsense"} {
		require.Equal(t, 403, try(path, "PUT", remote, "localhost"), remote)
		require.Equal(t, 403, try("/v1/nothing", "GET", remote, "localhost"), remote)
		require.Equal(t, 200, try("/safe-to-stop", "GET", remote, "m1"), remote)
		require.Equal(t, 200, try("/readyz", "GET", remote, "m1"), remote)
	}
	for _, host := range []string{"evil.example", "localhost.evil.example:9644", "10.0.0.1", "0.0.0.0:9644"} {
		require.Equal(t, 403, try(path, "PUT", "127.0.0.1:1", host), host)
	}
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip"} {
		require.Equal(t, 403, try(path, "PUT", "127.0.0.1:1", "localhost", h, "127.0.0.1"), h)
	}
	require.Equal(t, 403, try(path, "PUT", "127.0.0.1:1", "localhost", "Origin", "http://evil.example"))
	require.Equal(t, 403, try(path, "PUT", "127.0.0.1:1", "localhost", "Sec-Fetch-Site", "cross-site"))
	require.Equal(t, 200, try(path, "PUT", "127.0.0.1:1", "localhost", "Origin", "http://localhost"))
	require.Len(t, f.orders, orders+1, "a refused request did something")
}

// I14: a broker says which state it has applied, and two that have the same say the same.
func TestMetadataState(t *testing.T) {
	s, _ := testServer(t, nil)
	state := ask[MetadataState](t, s, 200, "GET /v1/metadata")
	require.Equal(t, int32(1), state.Broker)
	require.Equal(t, int64(42), state.Index)
	require.Len(t, state.Hash, 64)
	other, _ := testServer(t, nil)
	require.Equal(t, state, ask[MetadataState](t, other, 200, "GET /v1/metadata"))
	other, _ = testServer(t, threeBrokers(func(_ []*metadata.Broker, orders, _ *metadata.Topic) { orders.Partitions[1].LeaderEpoch++ }))
	require.NotEqual(t, state.Hash, ask[MetadataState](t, other, 200, "GET /v1/metadata").Hash)
}

// Before the parts are open, and after, the answer is 503 with what the broker is doing.
func TestAdminBeforeReady(t *testing.T) {
	s, _ := testServer(t, nil)
	s.SetAdmin(nil)
	s.cfg.Ready = func() []string { return []string{"recovering logs"} }
	require.Equal(t, "recovering logs", refused(t, s, 503, "GET /v1/cluster").Why)
	h := ask[Health](t, s, 503, "GET /safe-to-stop?format=json")
	require.Equal(t, []string{"recovering logs"}, h.Reasons)
}

// Errors become the three lines and a status that tells scripts what kind they are.
func TestAdminErrors(t *testing.T) {
	s, f := testServer(t, nil)
	require.Contains(t, refused(t, s, 404, "GET /v1/brokers/9").Why, "1, 2, 3")
	refused(t, s, 400, "GET /v1/brokers/x")
	refused(t, s, 400, "GET /v1/brokers/-1")
	refused(t, s, 404, "GET /v1/partitions/nope/0")
	require.Contains(t, refused(t, s, 404, "GET /v1/partitions/orders/3").Why, "3 partitions")
	refused(t, s, 404, "GET /v1/partitions/orders/-1/diagnosis")
	refused(t, s, 404, "GET /v1/partitions?topic=nope")
	refused(t, s, 400, "GET /v1/partitions?state=sad")
	refused(t, s, 400, "GET /v1/partitions?limit=0")
	refused(t, s, 400, "GET /v1/partitions?limit=10001")
	refused(t, s, 400, "GET /v1/partitions?after=orders")
	refused(t, s, 404, "POST /v1/cluster")
	refused(t, s, 404, "GET /v1/")
	refused(t, s, 400, "POST /v1/quorum/voters", `{"brokr":1}`)
	refused(t, s, 400, "POST /v1/quorum/voters", `{"broker":1} more`)
	refused(t, s, 400, "POST /v1/quorum/voters", strings.Repeat(" ", maxBody)+`{"broker":1}`)
	refused(t, s, 404, "POST /v1/quorum/transfer", `{"broker":9}`)
	// A group may have offsets of many partitions: the order is read whole.
	many := strings.Repeat(`{"topic":"orders","partition":1,"offset":10},`, 5000)
	require.Equal(t, "there are no groups", refused(t, s, 400, "POST /v1/groups/billing/offsets", `{"offsets":[`+strings.TrimSuffix(many, ",")+`]}`).What)
	require.Empty(t, f.orders)
	for err, status := range map[error]int{
		metadata.ErrNotController: 503, metadata.ErrTimeout: 504, context.DeadlineExceeded: 504, errors.ErrUnsupported: 501, io.ErrUnexpectedEOF: 500, metadata.ErrStale: 409,
	} {
		f.err = err
		refused(t, s, status, "PUT /v1/brokers/2/maintenance")
	}
	f.err = &metadata.Error{Kind: metadata.ErrPolicyViolation, What: "a", Why: "b", Fix: "c"}
	require.Equal(t, ErrorLines{"a", "b", "c"}, refused(t, s, 409, "PUT /v1/brokers/2/maintenance"))
	s.admin.Load().Balancer = nil
	require.Equal(t, "there is no balancer", refused(t, s, 400, "GET /v1/rebalance").What)
}

func TestAdminAnswers(t *testing.T) {
	s, f := testServer(t, threeBrokers(func(b []*metadata.Broker, orders, pay *metadata.Topic) {
		b[2].Fenced = true
		b[1].Draining = true
		for _, p := range orders.Partitions {
			p.ISR = []metadata.BrokerID{1, 2}
		}
		orders.Partitions[2].Leader, orders.Partitions[2].LastLeader = 1, 1
		pay.Partitions[0].Adding, pay.Partitions[0].Removing, pay.Partitions[0].Replicas = []metadata.BrokerID{1}, []metadata.BrokerID{2}, []metadata.BrokerID{1, 2}
	}))
	info := ask[ClusterInfo](t, s, 200, "GET /v1/cluster")
	require.Equal(t, ClusterInfo{
		ClusterID: "millrace-test", Broker: 1, Controller: 1, Version: 42, FeatureLevel: int(f.image.FeatureLevel()), Brokers: 3, Fenced: 1, Topics: 2, Partitions: 4,
		AtMinISR: 4, UnderReplicated: 3, Reassigning: 1,
	}, info)
	brokers := ask[[]BrokerInfo](t, s, 200, "GET /v1/brokers")
	require.Len(t, brokers, 3)
	require.Equal(t, []string{StatusRunning, StatusMaintenance, StatusFenced}, []string{brokers[0].Status, brokers[1].Status, brokers[2].Status})
	require.Equal(t, []int{2, 2, 0}, []int{brokers[0].Leaders, brokers[1].Leaders, brokers[2].Leaders})
	require.Equal(t, []int{4, 4, 3}, []int{brokers[0].Replicas, brokers[1].Replicas, brokers[2].Replicas})
	require.Equal(t, 3, brokers[2].OutOfSync)
	require.Equal(t, brokers[1], ask[BrokerInfo](t, s, 200, "GET /v1/brokers/2"))
	require.Equal(t, brokers[0], ask[BrokerInfo](t, s, 200, "GET /v1/brokers/self"))

	page := ask[PartitionPage](t, s, 200, "GET /v1/partitions")
	require.Len(t, page.Partitions, 4)
	require.Empty(t, page.Next)
	var got []PartitionInfo
	for next := ""; ; {
		part := ask[PartitionPage](t, s, 200, "GET /v1/partitions?limit=2&after="+next)
		require.LessOrEqual(t, len(part.Partitions), 2)
		got = append(got, part.Partitions...)
		if next = part.Next; next == "" {
			break
		}
	}
	require.Equal(t, page.Partitions, got, "pages join without a gap")
	require.Len(t, ask[PartitionPage](t, s, 200, "GET /v1/partitions?state=under_replicated&broker=3").Partitions, 3)
	require.Empty(t, ask[PartitionPage](t, s, 200, "GET /v1/partitions?state=offline").Partitions)
	require.Len(t, ask[PartitionPage](t, s, 200, "GET /v1/partitions?topic=pay&state=reassigning").Partitions, 1)
	require.Len(t, ask[[]PartitionInfo](t, s, 200, "GET /v1/reassignments"), 1)

	d := ask[PartitionDetail](t, s, 200, "GET /v1/partitions/orders/0")
	require.Len(t, d.States, 2)
	require.Equal(t, []int32{1, 2}, []int32{d.States[0].Broker, d.States[1].Broker})
	require.Equal(t, []Unasked{{3, "it is fenced"}}, d.Unasked)

	dirs := ask[[]LogDir](t, s, 200, "GET /v1/log-dirs")
	require.Equal(t, []LogDirSize{{"orders", 0, 1, 0}, {"orders", 1, 2, 0}, {"pay", 0, 3, 0}}, dirs[0].Replicas)

	q := ask[QuorumStatus](t, s, 200, "GET /v1/quorum")
	require.Equal(t, int32(1), q.Servers[0].Broker, "in order of id")

	f.status = metadata.BalancerStatus{Mode: "node-change", Running: true, BalancerPlan: metadata.BalancerPlan{ID: "p", Moves: []metadata.BalancerMove{
		{TopicPartition: metadata.TopicPartition{Topic: "orders"}, From: 1, To: 2, Reason: "r", State: metadata.MoveDone, BytesMoved: 5, BytesTotal: 5},
		{TopicPartition: metadata.TopicPartition{Topic: "pay"}, From: 2, To: metadata.NoBroker, Reason: "r", State: metadata.MoveFailed, BytesMoved: -1, BytesTotal: -1},
	}}}
	r := ask[Rebalance](t, s, 200, "GET /v1/rebalance")
	require.Equal(t, []int{2, 1, 1}, []int{len(r.Moves), r.Done, r.Failed})
	require.Nil(t, r.Moves[0].Began)
	require.Equal(t, r.Moves, ask[Rebalance](t, s, 200, "POST /v1/rebalance").Moves)
	require.Equal(t, Cancelled{2}, ask[Cancelled](t, s, 200, "DELETE /v1/rebalance"))
	require.Equal(t, []string{"balance", "cancel"}, f.orders)
}
