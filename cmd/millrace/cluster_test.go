package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/transport/console"
)

// adminStub answers the admin API with documents by method and path; a list of documents is answered one after another,
// the last for ever.
type adminStub struct {
	answers map[string][]any
	asked   []string
}

func (s *adminStub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Method + " " + r.URL.Path
	s.asked = append(s.asked, key)
	list := s.answers[key]
	if len(list) == 0 {
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(console.ErrorAnswer{Error: console.ErrorLines{What: "nothing at " + key, Why: "the test has no answer", Fix: "none"}})
		return
	}
	if len(list) > 1 {
		s.answers[key] = list[1:]
	}
	if e, ok := list[0].(console.ErrorLines); ok {
		w.WriteHeader(http.StatusConflict)
		list[0] = console.ErrorAnswer{Error: e}
	}
	_ = json.NewEncoder(w).Encode(list[0])
}

// command runs one command line against the recorded admin API and returns what it printed and its exit code.
func (s *adminStub) command(t *testing.T, width int, line string) (stdout, stderr string, code int) {
	t.Helper()
	t.Setenv(profileDirEnv, filepath.Join(t.TempDir(), "config"))
	server := httptest.NewServer(s)
	defer server.Close()
	var out, talk bytes.Buffer
	e := &env{stdin: strings.NewReader(""), stdout: &out, stderr: &talk, width: width}
	code = run(context.Background(), e, append(strings.Fields(line), "--admin", server.Listener.Addr().String()))
	return out.String(), talk.String(), code
}

// A level is finalized only when every broker knows it, after its plan was shown and confirmed.
func TestUpgradeFinalize(t *testing.T) {
	stub := stubbed()
	_, stderr, code := stub.command(t, 80, "cluster upgrade finalize -y")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "brokers 1, 3 run an older version")
	require.NotContains(t, stub.asked, "POST /v1/upgrade")

	stub.answers["GET /v1/upgrade"] = stub.answers["GET /v1/upgrade-done"]
	_, stderr, code = stub.command(t, 80, "cluster upgrade finalize --dry-run")
	require.Equal(t, exitOK, code)
	require.Contains(t, stderr, "goes from 2 to 3")
	_, _, code = stub.command(t, 80, "cluster upgrade finalize")
	require.Equal(t, exitUsage, code, "nobody to ask")
	require.NotContains(t, stub.asked, "POST /v1/upgrade")
	stdout, _, code := stub.command(t, 80, "cluster upgrade status")
	require.Equal(t, exitOK, code)
	require.Contains(t, stdout, "0.4.0")
	stdout, _, code = stub.command(t, 80, "cluster upgrade finalize -y")
	require.Equal(t, exitOK, code)
	require.Contains(t, stdout, "3")
	require.Contains(t, stub.asked, "POST /v1/upgrade")
}

func stubbed() *adminStub {
	began := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	moves := []console.Move{
		{Topic: "orders", Partition: 4, From: 2, To: 4, Replicas: []int32{1, 4, 3}, Reason: "broker 4 joined and has 0 of 93 replicas", State: "done", BytesMoved: 2 << 30, BytesTotal: 2 << 30, Began: &began, Ended: &began},
		{Topic: "orders", Partition: 5, From: 3, To: 4, Replicas: []int32{4, 1, 2}, Reason: "broker 4 joined and has 0 of 93 replicas", State: "moving", BytesMoved: 1288490188, BytesTotal: 2040109465, Began: &began},
		{Topic: "pay", Partition: 0, From: 1, To: 4, Replicas: []int32{2, 3, 4}, Reason: "broker 4 joined and has 0 of 93 replicas", State: "waiting", BytesMoved: -1, BytesTotal: -1},
		{Topic: "pay", Partition: 1, From: 2, To: 4, Replicas: []int32{4, 3, 1}, Reason: "broker 4 joined and has 0 of 93 replicas", State: "failed", Trouble: "broker 4 was fenced", BytesMoved: -1, BytesTotal: -1, Began: &began, Ended: &began},
	}
	plan := console.Rebalance{Plan: "p-1", Trigger: "broker 4 joined", Throttle: 50 << 20, Moves: moves, Done: 1, Failed: 1, Cannot: []string{"t-0 stays on broker 1: no broker of another rack is free"}, LeastReplicas: 0, MostReplicas: 31, LeastAfter: 23, MostAfter: 24}
	status := plan
	status.Mode, status.Running = "node-change", true
	over := status
	over.Running = false
	stuck := console.Decommission{
		Broker: 2, Replicas: 93, Leaders: 31, Voter: true, Stranded: []string{"orders-1", "orders-4", "pay-0"}, StrandedOf: 3,
		Why: "orders-1, orders-4, pay-0 have 3 replicas and only 2 other brokers are alive", Fix: "millrace start … --join HOST   on a new machine, or   millrace topic alter orders pay --replicas 2",
	}
	free := console.Decommission{Broker: 3, Replicas: 93, Leaders: 31, Voter: true, Stranded: []string{}}
	going := free
	going.Removing, going.Moving = true, 5
	gone := console.Decommission{Broker: 3, Removing: true, Done: true, Stranded: []string{}}
	return &adminStub{answers: map[string][]any{
		"GET /v1/brokers/2": {console.BrokerInfo{
			ID: 2, Status: "maintenance", Maintenance: true, Rack: "b", Version: "0.4.0", Peer: "10.0.0.2:9093", Epoch: 7, Incarnation: strings.Repeat("ab", 16), Leaders: 1, Preferred: 31, Replicas: 93, OutOfSync: 2, MinLevel: 1, MaxLevel: 2,
			Listeners: []console.ListenerInfo{{Name: "PLAINTEXT", Address: "10.0.0.2:9092", Protocol: "PLAINTEXT"}, {Name: "EXTERNAL", Address: "broker2.example:9095", Protocol: "SSL"}},
		}},
		"GET /v1/quorum": {console.QuorumStatus{Leader: 1, Term: 4, CommitIndex: 812, LastIndex: 812, Size: 3, Servers: []console.QuorumServer{
			{Broker: 1, Server: "1-CyiKzkNXQFuAfDRL1FfcDg", Address: "10.0.0.1:9093", Voter: true, Leader: true, Healthy: true, LastIndex: 812},
			{Broker: 2, Server: "2-yWLX2B3nTM2Y3v4uLZ3QAw", Address: "10.0.0.2:9093", Voter: true, Healthy: true, LastContactMS: 42, LastIndex: 811, Lag: 1},
			{Broker: 4, Server: "4-Qv1Zg0GmS2yBq6cAqB1xwA", Address: "10.0.0.4:9093", LastContactMS: -1, LastIndex: -1, Lag: -1},
		}}},
		"DELETE /v1/quorum/voters/4":       {console.QuorumStatus{Leader: 1, Servers: []console.QuorumServer{}}},
		"GET /v1/brokers/1/maintenance":    {console.Maintenance{Broker: 1, Leaders: 40}},
		"GET /v1/brokers/2/maintenance":    {console.Maintenance{Broker: 2, Enabled: true, Leaders: 12, Stuck: 1}, console.Maintenance{Broker: 2, Enabled: true, Leaders: 1, Stuck: 1, Done: true}},
		"PUT /v1/brokers/2/maintenance":    {console.Maintenance{Broker: 2, Enabled: true, Leaders: 31, Stuck: 1}},
		"DELETE /v1/brokers/2/maintenance": {console.Maintenance{Broker: 2, Leaders: 1}},
		"GET /v1/brokers/2/decommission":   {stuck},
		"GET /v1/brokers/3/decommission":   {free, going, gone},
		"POST /v1/brokers/3/decommission":  {going},
		"POST /v1/brokers/3/recommission":  {free},
		"DELETE /v1/brokers/3":             {console.Done{Done: true}},
		"GET /v1/rebalance":                {status, over},
		"GET /v1/rebalance/plan":           {plan},
		"POST /v1/rebalance":               {status},
		"DELETE /v1/rebalance":             {console.Cancelled{Moves: 2}},
		"GET /v1/brokers":                  {[]console.BrokerInfo{{ID: 1, Status: "running"}, {ID: 2, Status: "maintenance"}}},
		"GET /v1/recovery": {[]console.RecoveryPlan{
			{Topic: "orders", Partition: 1, PartitionEpoch: 9, Leader: 3, LeaderEpoch: 4, Offset: 1200, Others: []console.ReplicaEnd{{Broker: 4, LeaderEpoch: 3, Offset: 1250}}, Missing: []int32{1, 2}},
			{Topic: "orders", Partition: 2, PartitionEpoch: 3, Leader: -1, LeaderEpoch: -1, Offset: -1, Others: []console.ReplicaEnd{}, Missing: []int32{2}},
			{Topic: "orders", Partition: 4, PartitionEpoch: 3, Leader: 3, LeaderEpoch: 7, Offset: 5, Others: []console.ReplicaEnd{}, Missing: []int32{}, Safe: true},
		}},
		"GET /v1/upgrade": {
			console.Upgrade{FeatureLevel: 2, Possible: 2, Final: true, Newest: "0.4.0", Next: 3, Why: []string{"orders-1 would have 1 in sync, acks=all needs 2"}, Brokers: []console.UpgradeBroker{
				{ID: 1, Version: "0.3.2", MinLevel: 1, MaxLevel: 2, Status: "running", Controller: true}, {ID: 2, Version: "0.4.0", MinLevel: 1, MaxLevel: 3, Status: "running", Newest: true},
				{ID: 3, Version: "0.3.2", MinLevel: 1, MaxLevel: 2, Status: "running"},
			}},
		},
		"GET /v1/upgrade-done": {console.Upgrade{FeatureLevel: 2, Possible: 3, Newest: "0.4.0", Next: -1, Safe: true, Why: []string{}, Brokers: []console.UpgradeBroker{
			{ID: 1, Version: "0.4.0", MinLevel: 1, MaxLevel: 3, Status: "running", Newest: true},
		}}},
		"POST /v1/upgrade":                      {console.Upgrade{FeatureLevel: 3, Possible: 3, Final: true, Newest: "0.4.0", Next: -1, Why: []string{}, Brokers: []console.UpgradeBroker{}}},
		"POST /v1/recovery":                     {[]console.Recovered{{Topic: "orders", Partition: 1, Leader: 3}}},
		"GET /safe-to-stop":                     {console.Health{Check: "safe-to-stop", Status: "failed", Reasons: []string{"orders-1 would have 1 in sync, acks=all needs 2"}, Total: 3}},
		"GET /v1/partitions/orders/1/diagnosis": {console.Diagnosis{}},
		"POST /v1/quorum/voters":                {console.ErrorLines{What: "broker 4 cannot become a voter", Why: "it is fenced", Fix: "start it, then try again"}},
	}}
}

// The commands of the admin API print what they printed when somebody last looked at it: as a table of 80 and of 200
// columns, and as JSON.
func TestClusterGolden(t *testing.T) {
	commands := []string{
		"cluster brokers describe 2", "cluster quorum peers", "cluster maintenance status", "cluster maintenance enable 2", "cluster maintenance enable 2 --wait", "cluster maintenance disable 2",
		"cluster maintenance enable 2 --dry-run", "cluster brokers decommission 2", "cluster brokers decommission 3 --dry-run", "cluster brokers decommission 3 -y", "cluster brokers decommission 3 -y --wait",
		"cluster brokers recommission 3", "cluster rebalance plan", "cluster rebalance run -y", "cluster rebalance run --dry-run", "cluster rebalance run -y --wait", "cluster rebalance status", "cluster rebalance status -w --interval 60ms",
		"cluster rebalance cancel -y", "cluster health --safe-to-stop 2", "cluster quorum remove-voter 4 -y", "cluster quorum add-voter 4",
		"cluster partitions unsafe-recover orders --dry-run", "cluster partitions unsafe-recover --all -p 1 -y", "cluster partitions unsafe-recover orders",
		"cluster upgrade status", "cluster upgrade finalize -y",
	}
	for _, form := range []struct {
		file, flags string
		width       int
	}{{"cluster_80.txt", "", 80}, {"cluster_200.txt", " --format wide", 200}, {"cluster_json.txt", " --format json", 0}} {
		var all strings.Builder
		for _, line := range commands {
			stdout, stderr, code := stubbed().command(t, form.width, line+form.flags)
			if code != exitOK && code != exitCondition && code != exitSome {
				threeLines(t, stderr)
			}
			fmt.Fprintf(&all, "$ millrace %s%s\n%s", line, form.flags, stdout)
			if stderr != "" {
				fmt.Fprintf(&all, "-- stderr\n%s", stderr)
			}
			fmt.Fprintf(&all, "-- exit %d\n\n", code)
			for row := range strings.SplitSeq(stdout, "\n") {
				if form.width > 0 && strings.Count(row, "") > form.width+1 && strings.Contains(row, "  ") {
					require.LessOrEqual(t, strings.Count(row, "")-1, form.width, "%s: a row is wider than the terminal: %s", line, row)
				}
			}
		}
		path := filepath.Join("testdata", form.file)
		if *update {
			require.NoError(t, os.WriteFile(path, []byte(all.String()), 0o644))
			continue
		}
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(want), all.String(), "go test ./cmd/millrace -run ClusterGolden -update, and review the diff")
	}
}

func threeLines(t *testing.T, stderr string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
	require.GreaterOrEqual(t, len(lines), 3, stderr)
	lines = lines[len(lines)-3:]
	for i, prefix := range []string{"error: ", "why:   ", "fix:   "} {
		require.True(t, strings.HasPrefix(lines[i], prefix), stderr)
		require.Greater(t, len(lines[i]), len(prefix), stderr)
	}
}

// --wait sees a decommission through to the end, and an order is given once.
func TestDecommissionWaits(t *testing.T) {
	s := stubbed()
	_, stderr, code := s.command(t, 80, "cluster brokers decommission 3 -y --wait")
	require.Equal(t, exitOK, code, stderr)
	require.Equal(t, []string{
		"GET /v1/brokers/3/decommission", "POST /v1/brokers/3/decommission", "GET /v1/brokers/3/decommission", "GET /v1/brokers/3/decommission", "DELETE /v1/brokers/3",
	}, s.asked)
	require.Contains(t, stderr, "broker 3 is out of the cluster")

	// Without an answer to the question nothing is ordered; with a time limit the wait ends with what is left.
	s = stubbed()
	_, stderr, code = s.command(t, 80, "cluster brokers decommission 3")
	require.Equal(t, exitUsage, code)
	threeLines(t, stderr)
	require.Equal(t, []string{"GET /v1/brokers/3/decommission"}, s.asked)
	s = stubbed()
	s.answers["GET /v1/brokers/3/decommission"] = s.answers["GET /v1/brokers/3/decommission"][:2]
	_, stderr, code = s.command(t, 80, "cluster brokers decommission 3 -y --wait --timeout 400ms")
	require.Equal(t, exitTimeout, code, stderr)
	threeLines(t, stderr)
	require.Contains(t, stderr, "93 replicas left, 5 on their way")
	require.NotContains(t, s.asked, "DELETE /v1/brokers/3")
	s = stubbed()
	_, stderr, code = s.command(t, 80, "cluster rebalance cancel")
	require.Equal(t, exitUsage, code, stderr)
	require.NotContains(t, s.asked, "DELETE /v1/rebalance")
}

// The admin API is looked for where the flag says, else the environment, else the profile of the brokers in use, else
// beside the brokers.
func TestAdminAddresses(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(profileDirEnv, dir)
	t.Setenv("MILLRACE_BROKERS", "")
	profiles, err := openProfiles()
	require.NoError(t, err)
	require.NoError(t, profiles.write("prod", map[string]string{"bootstrap.servers": "m1:9092,m2:9092", adminProperty: "m1:1,m2"}))
	addresses := func(args, environ string) string {
		t.Helper()
		t.Setenv("MILLRACE_ADMIN", environ)
		var got []string
		e := &env{stdin: strings.NewReader(""), stdout: &bytes.Buffer{}, stderr: &bytes.Buffer{}}
		app := newApp(e)
		for _, c := range app.Commands {
			if c.Name == "cluster" {
				for _, sub := range c.Subcommands {
					if sub.Name == "members" {
						sub.Action = func(c *cli.Context) error { got = e.adminAddresses(c); return nil }
					}
				}
			}
		}
		ordered, err := permute(app, strings.Fields(args))
		require.NoError(t, err)
		require.NoError(t, app.RunContext(context.WithValue(context.Background(), envKey{}, e), append([]string{"millrace"}, ordered...)))
		return strings.Join(got, " ")
	}
	require.Equal(t, "localhost:9644", addresses("cluster members", ""))
	require.Equal(t, "a:1 b:9644", addresses("cluster members --admin a:1,b -P prod", "c"))
	require.Equal(t, "c:9644 d:2", addresses("cluster members -P prod", "c,d:2"))
	require.Equal(t, "m1:1 m2:9644", addresses("cluster members -P prod", ""))
	require.Equal(t, "x:9644 y:9644", addresses("cluster members -b x,y:1,x:2 -P prod", ""), "the profile's admin API is of its own brokers")
	require.Equal(t, "[::1]:9644", addresses("cluster members -b [::1]:9092", ""))
}

// topic alter --replicas takes from those that are not needed and gives to those that have few, racks apart, and leaves
// the preferred leader where it is.
func TestRefactor(t *testing.T) {
	brokers := []placementBroker{{1, "a", 5}, {2, "a", 0}, {3, "b", 9}, {4, "c", 1}}
	plan := func(n int, leader int32, isr []int32, replicas ...int32) []int32 {
		t.Helper()
		moves, err := refactor([]kadm.TopicDetail{{Topic: "t", Partitions: kadm.PartitionDetails{0: {Topic: "t", Leader: leader, ISR: isr, Replicas: replicas}}}}, brokers, n)
		require.NoError(t, err)
		if len(moves) == 0 {
			return replicas
		}
		require.Equal(t, replicas, moves[0].Before)
		return moves[0].After
	}
	all := []int32{1, 2, 3, 4}
	require.Equal(t, []int32{1}, plan(1, 1, all, 1))
	require.Equal(t, []int32{1, 4}, plan(2, 1, all, 1), "another rack, the emptier broker")
	require.Equal(t, []int32{1, 4, 3}, plan(3, 1, all, 1), "another rack before an emptier broker")
	require.Equal(t, []int32{1, 4, 3, 2}, plan(4, 1, all, 1))
	require.Equal(t, []int32{1, 3}, plan(2, 1, all, 1, 2, 3), "racks apart")
	require.Equal(t, []int32{1, 2}, plan(2, 1, []int32{1, 2}, 1, 2, 3), "out of sync goes first")
	require.Equal(t, []int32{1, 3}, plan(2, 1, all, 1, 9, 3), "not there goes first")
	require.Equal(t, []int32{3}, plan(1, 3, all, 1, 3), "the leader stays")
	require.Equal(t, []int32{1}, plan(1, -1, nil, 1, 9))
	_, err := refactor(nil, brokers, 5)
	require.ErrorContains(t, err, "4 brokers are there")

	// The plan's own replicas count: six partitions of one replica get their second ones evenly.
	even := []placementBroker{{1, "", 6}, {2, "", 0}, {3, "", 0}, {4, "", 0}}
	parts := kadm.PartitionDetails{}
	for i := range int32(6) {
		parts[i] = kadm.PartitionDetail{Topic: "t", Partition: i, Leader: 1, ISR: []int32{1}, Replicas: []int32{1}}
	}
	moves, err := refactor([]kadm.TopicDetail{{Topic: "t", Partitions: parts}}, even, 2)
	require.NoError(t, err)
	count := map[int32]int{}
	for _, m := range moves {
		count[m.After[1]]++
	}
	require.Equal(t, map[int32]int{2: 2, 3: 2, 4: 2}, count)
}

func TestMoveProgress(t *testing.T) {
	at := time.Unix(1000, 0)
	r := &moveRates{}
	require.Zero(t, r.add("t", 0, 0, at))
	require.Equal(t, 100.0, r.add("t", 0, 100, at.Add(time.Second)))
	require.Equal(t, 200.0, r.add("t", 0, 400, at.Add(2*time.Second)))
	require.Zero(t, r.add("t", 0, 10, at.Add(3*time.Second)), "a replica that began anew")
	require.Zero(t, r.add("t", 1, -1, at))
	require.Equal(t, "62%", percent(62, 100))
	require.Nil(t, percent(-1, 100))
	require.Equal(t, "100%", percent(0, 0))
	require.Equal(t, "1.2 GiB/1.9 GiB", ofTotal(1288490188, 2040109465))
	require.Equal(t, "15s", eta(1288490188, 2040109465, 48<<20))
	require.Nil(t, eta(0, 1, 0))
	for n, want := range map[int64]string{-1: "-", 0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 99<<20 + 1000: "99.0 MiB", 1023 << 20: "1023 MiB", 1 << 40: "1.0 TiB", 1<<63 - 1: "8.0 EiB"} {
		require.Equal(t, want, sizeText(n))
	}
}

func TestAggregateReplicas(t *testing.T) {
	all := []describedReplica{
		{Broker: 1, Dir: "/a", Topic: "x", Partition: 0, Replicas: 1, Bytes: 5, Lag: 3, Total: 100, Usable: 60}, {Broker: 1, Dir: "/a", Topic: "y", Partition: 0, Replicas: 1, Bytes: 7, Total: 100, Usable: 60},
		{Broker: 1, Dir: "/b", Partition: -1, Total: 50, Usable: 50}, {Broker: 2, Dir: "/a", Topic: "x", Partition: 0, Replicas: 1, Bytes: 4, Lag: 9, Total: -1, Usable: -1},
	}
	require.Equal(t, []describedReplica{
		{Broker: 1, Partition: -1, Replicas: 2, Bytes: 12, Lag: 3, Total: 150, Usable: 110}, {Broker: 2, Partition: -1, Replicas: 1, Bytes: 4, Lag: 9, Total: -1, Usable: -1},
	}, aggregateReplicas(all, "broker"))
	require.Len(t, aggregateReplicas(all, "dir"), 3)
	require.Equal(t, []describedReplica{
		{Broker: -1, Topic: "x", Partition: -1, Replicas: 2, Bytes: 9, Lag: 9, Total: -1, Usable: -1}, {Broker: -1, Topic: "y", Partition: -1, Replicas: 1, Bytes: 7, Total: -1, Usable: -1},
	}, aggregateReplicas(all, "topic"))
}
