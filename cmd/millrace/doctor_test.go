package main

import (
	"bytes"
	"errors"
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
	"github.com/twmb/franz-go/pkg/kgo"
)

// wellExamination is of a machine without complaints.
func wellExamination(t *testing.T) *examination {
	t.Helper()
	e, _, _ := testEnv()
	e.timeout, e.brokers = 2*time.Second, []string{"seed:9092"}
	x := newExamination(e)
	x.openFiles = func() (uint64, error) { return 1 << 20, nil }
	x.usage = func(string) (int64, int64, error) { return 600 << 30, 1000 << 30, nil }
	return x
}

// only returns the findings as text and empties the examination.
func (x *examination) only() string {
	var b bytes.Buffer
	for _, f := range x.findings {
		b.WriteString(f.Status + " | " + f.Check + " | " + f.Message + " | " + f.Fix + "\n")
	}
	x.findings = nil
	return b.String()
}

// Each check of this machine, well and ill.
func TestDoctorMachine(t *testing.T) {
	x := wellExamination(t)
	files := func(n uint64, err error, want string) {
		t.Helper()
		x.openFiles = func() (uint64, error) { return n, err }
		x.limits()
		require.Contains(t, x.only(), want)
	}
	files(1<<20, nil, "ok | open files | a process may have 1048576 | ")
	files(1024, nil, "failed | open files | a process may have 1024 open files here")
	files(10000, nil, "warning | open files | a process may have 10000")
	files(0, nil, "ok | open files | there is no limit")
	files(0, errors.New("no /proc"), "skipped | open files | the limit cannot be read: no /proc")

	room := func(free, total int64, err error, want string) {
		t.Helper()
		x.usage = func(string) (int64, int64, error) { return free, total, err }
		x.space("/data")
		require.Contains(t, x.only(), want)
	}
	room(600<<30, 1000<<30, nil, "ok | disk space | 600.0 GiB of 1000.0 GiB free (60 %) for /data | ")
	room(50<<30, 1000<<30, nil, "warning | disk space | 50.0 GiB of 1000.0 GiB free (5 %) for /data")
	room(1<<30, 1000<<30, nil, "failed | disk space | 1.0 GiB of 1000.0 GiB free (0 %) for /data; a broker refuses produce requests now | make room")
	room(1<<29, 10<<30, nil, "failed | disk space")
	room(0, 0, nil, "skipped | disk space")
	room(0, 0, errors.New("gone"), "skipped | disk space | cannot be read: gone")

	// A directory, and a file in it, of another user: what a start as root leaves behind.
	x = wellExamination(t)
	dir := t.TempDir()
	x.dataDirectory(dir, true)
	require.Contains(t, x.only(), "ok | data directory | "+dir+" can be written | ")
	x.euid++
	x.dataDirectory(dir, true)
	got := x.only()
	require.Contains(t, got, "failed | data directory | "+dir+" belongs to user ")
	require.Contains(t, got, "while no broker runs")
	if os.Geteuid() != 0 { // root may write anywhere
		closed := filepath.Join(dir, "closed")
		require.NoError(t, os.Mkdir(closed, 0o500))
		x.dataDirectory(closed, true)
		require.Contains(t, x.only(), "failed | data directory | "+closed+" cannot be written")
		x.dataDirectory(filepath.Join(closed, "new"), true)
		require.Contains(t, x.only(), "cannot make it in "+closed)
	}
	x.dataDirectory(filepath.Join(dir, "none"), false)
	require.Contains(t, x.only(), "skipped | data directory | there is no ")
}

// The cluster's state: a controller that is missing, partitions offline, under min.insync.replicas, out of sync.
func TestDoctorPartitions(t *testing.T) {
	x := wellExamination(t)
	partition := func(n, leader int32, isr ...int32) kadm.PartitionDetail {
		return kadm.PartitionDetail{Topic: "orders", Partition: n, Leader: leader, Replicas: []int32{1, 2, 3}, ISR: isr}
	}
	m := kadm.Metadata{Controller: 2, Topics: kadm.TopicDetails{"orders": {Topic: "orders", Partitions: kadm.PartitionDetails{0: partition(0, 1, 1, 2, 3)}}}}
	x.partitions(m, nil)
	require.Equal(t, "ok | controller | broker 2 | \nok | offline partitions | none of 1 partition | \nok | min.insync.replicas | kept by every partition | \nok | replicas in sync | all | \n", x.only())

	m.Controller = -1
	for n := range int32(7) {
		m.Topics["orders"].Partitions[n] = partition(n, -1)
	}
	x.partitions(m, []string{"orders-1"})
	got := x.only()
	require.Contains(t, got, "failed | controller | there is no controller")
	require.Contains(t, got, "failed | offline partitions | 7 partitions (orders-0 orders-1 orders-2 orders-3 orders-4 …) without a leader")
	require.Contains(t, got, "failed | min.insync.replicas | 1 partition (orders-1) with fewer replicas in sync")
	require.Contains(t, got, "warning | replicas in sync | 7 partitions")
}

// The advertised address trap of a broker that cannot be dialled, in the words of every other command.
func TestDoctorAdvertised(t *testing.T) {
	x := wellExamination(t)
	reached := x.advertised(t.Context(), []kgo.BrokerMetadata{{NodeID: 2, Host: "127.0.0.1", Port: 1}})
	require.Empty(t, reached)
	require.Equal(t, "failed | advertised addresses | broker 2 told me to connect to 127.0.0.1:1, and connection refused; I reached the cluster through seed:9092, but clients are always redirected to advertised.listeners"+
		" | on broker 2 set  advertised.listeners=PLAINTEXT://<address clients can reach>:1    (containers: one listener inside, one outside)\n", x.only())
}

// A broker that is not ready says why; the Date of its answer tells its clock.
func TestDoctorHealth(t *testing.T) {
	status, body := 200, "ok"
	var ahead time.Duration
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, "/readyz", r.URL.Path)
		w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	address := strings.TrimPrefix(server.URL, "http://")
	x := wellExamination(t)
	f := func(want ...string) {
		t.Helper()
		x.health(t.Context(), "broker 1", address)
		got := x.only()
		for _, w := range want {
			require.Contains(t, got, w)
		}
	}
	f("ok | ready broker 1 | http://"+address+"/readyz says ok", "ok | clock broker 1 | agrees with this machine's")
	ahead = 10 * time.Minute
	f("failed | clock broker 1 | its clock is ", " ahead of this machine's")
	ahead = -20 * time.Second
	f("warning | clock broker 1 | its clock is ", " behind this machine's")
	status, body, ahead = 503, "failed\nrecovering logs\nbroker 1 is fenced\n", 0
	f("failed | ready broker 1 | http://" + address + "/readyz says 503: recovering logs; broker 1 is fenced | wait when it is starting")
	server.Close()
	f("failed | ready broker 1 | no answer from http://" + address + "/readyz: connection refused")
}

// Where a broker's health is asked: never at a loopback address of another machine.
func TestHealthAddress(t *testing.T) {
	f := func(listener, host, address, why string) {
		t.Helper()
		gotAddress, gotWhy := healthAddress(listener, host)
		require.Equal(t, address, gotAddress)
		require.Contains(t, gotWhy, why)
	}
	f(":9644", "127.0.0.1", "127.0.0.1:9644", "")
	f(":9644", "localhost", "127.0.0.1:9644", "")
	f(":9644", "m1", "", "answers its own machine only")
	f("0.0.0.0:9644", "m1", "m1:9644", "")
	f("10.0.0.7:9644", "m1", "10.0.0.7:9644", "")
	f("off", "m1", "", "is off")
	f("127.0.0.1:0", "127.0.0.1", "", "chosen by the system")
}

// The table at 80 and at 200 columns: long findings go on under themselves, and no line is wider.
func TestDoctorWidths(t *testing.T) {
	findings := []finding{
		{"open files", checkOK, "a process may have 1048576", ""},
		{"advertised addresses", checkFailed, "broker 2 told me to connect to broker2:9092, and that name does not resolve here; I reached the cluster through localhost:9092", "on broker 2 set  advertised.listeners=PLAINTEXT://<address clients can reach>:9092"},
	}
	for _, width := range []int{80, 200} {
		var b bytes.Buffer
		printExamination(&b, findings, width)
		for line := range strings.SplitSeq(b.String(), "\n") {
			require.LessOrEqual(t, len(line), width, line)
		}
		golden(t, fmt.Sprintf("doctor_%d.txt", width), b.String())
	}
}

// The explanation of a config and the findings of lint at 80 and 200 columns.
func TestConfigTextWidths(t *testing.T) {
	findings := []lintFinding{{Severity: "error", Kind: "refused", Key: "authorizer.class.name", Message: "broker config authorizer.class.name=\"org.example.Mine\" is refused: authorisation comes in a later release; to start without it would open what you closed",
		Fix: "leave it out, and keep the broker on a trusted network until then"}}
	x := explainedConfig{Key: "message.max.bytes", Scope: "broker", Meaning: "Default of max.message.bytes.", Effect: "accepted, no effect", Reason: strings.Repeat("because of a long reason ", 6), Type: "int", Dynamic: true}
	for _, width := range []int{80, 200} {
		var b bytes.Buffer
		printFindings(&b, findings, width)
		x.print(&b, width)
		for line := range strings.SplitSeq(b.String(), "\n") {
			require.LessOrEqual(t, len(line), width, line)
		}
		golden(t, fmt.Sprintf("config_%d.txt", width), b.String())
	}
}

// golden compares text with a file in testdata.
func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		return
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), text)
}
