package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

type sampleJSON struct {
	Name   string   `json:"name" doc:"what it is called"`
	Size   *int64   `json:"size" doc:"null when unknown"`
	Secret string   `json:"-"`
	Tags   []string `json:"tags,omitempty" doc:"words"`
	Parts  []struct {
		ID int32 `json:"id" doc:"number"`
	} `json:"parts" doc:"pieces"`
}

// Each format of --format prints the same data; a pipe sees no colour and no padding at line ends.
func TestEmit(t *testing.T) {
	size := int64(1) << 62
	r := result{
		value: []sampleJSON{{Name: "<a> & 'é'", Size: &size, Tags: []string{"true", "1"}}},
		cols:  columns("NAME", "SIZE#", "+ID"), rows: [][]any{{"<a>", 1 << 62, "x"}, {"", nil, "y"}},
	}
	f := func(format, want string) {
		t.Helper()
		e, out, _ := testEnv()
		e.format = format
		require.NoError(t, e.emit(r))
		require.Equal(t, want, out.String())
	}
	f("table", "NAME                 SIZE\n<a>   4611686018427387904\n-                       -\n")
	f("wide", "NAME                 SIZE  ID\n<a>   4611686018427387904  x\n-                       -  y\n")
	f("json", "[\n  {\n    \"name\": \"<a> & 'é'\",\n    \"size\": 4611686018427387904,\n    \"tags\": [\n      \"true\",\n      \"1\"\n    ],\n    \"parts\": null\n  }\n]\n")
	f("yaml", "- name: <a> & 'é'\n  size: 4611686018427387904\n  tags:\n    - \"true\"\n    - \"1\"\n  parts: null\n")
	r.value, r.rows = []sampleJSON(nil), nil
	f("json", "[]\n")
	f("yaml", "[]\n")
	f("table", "NAME  SIZE\n")
}

// S6: a name that a client chose takes one line of a table and draws nothing on the terminal.
func TestTableOfHostileNames(t *testing.T) {
	var b bytes.Buffer
	writeTable(&b, columns("NAME", "NEXT"), [][]any{{"a\x1b[2J\nb", 1}}, false, 0)
	require.Equal(t, "NAME         NEXT\na\\x1b[2J\\nb  1\n", b.String())
}

func TestWriteFields(t *testing.T) {
	var b bytes.Buffer
	writeFields(&b, []sampleJSON{})
	require.Equal(t, `a list; each item has:
FIELD     TYPE             MEANING
name      string           what it is called
size      null or integer  null when unknown
tags      list of string   words (left out when there is none)
parts     list of object   pieces
parts.id  integer          number
`, b.String())
}

// Every error becomes three lines and an exit code.
func TestExplain(t *testing.T) {
	f := func(err error, code int, parts ...string) {
		t.Helper()
		got := explain("list topics", err)
		require.Equal(t, code, got.code, "%v", got)
		require.NotEmpty(t, got.what)
		require.NotEmpty(t, got.why)
		require.NotEmpty(t, got.fix)
		for _, p := range parts {
			require.Contains(t, got.Error(), p)
		}
	}
	dial := func(err error) error {
		return fmt.Errorf("unable to dial: %w", &net.OpError{Op: "dial", Net: "tcp", Err: err})
	}
	f(dial(&os.SyscallError{Syscall: "connect", Err: syscall.ECONNREFUSED}), exitNoConnection, "connection refused")
	f(dial(&net.DNSError{Name: "broker2", Err: "no such host"}), exitNoConnection, "broker2 does not resolve")
	f(kgo.ErrRecordTimeout, exitTimeout, "--timeout")
	f(os.ErrDeadlineExceeded, exitTimeout)
	f(kerr.TopicAuthorizationFailed, exitUnauthorised)
	f(kerr.RequestTimedOut, exitTimeout)
	f(kerr.UnknownTopicOrPartition, exitFailed, "no such topic")
	for code := int16(-1); code < 140; code++ {
		if err := kerr.ErrorForCode(code); err != nil {
			f(err, explain("", err).code)
		}
	}
}

// A server's own three lines are shown as they came; a single line becomes the reason.
func TestExplainServerMessage(t *testing.T) {
	got := explainCode("create topic x", kerr.InvalidConfig, "unknown topic config \"a\"\nwhy:   there is none\nfix:   did you mean b?")
	require.Equal(t, "unknown topic config \"a\"\nwhy:   there is none\nfix:   did you mean b?", got.Error())
	got = explainCode("create topic x", kerr.InvalidConfig, "Unknown topic config name: a")
	require.Equal(t, "cannot create topic x", got.what)
	require.Equal(t, "Unknown topic config name: a", got.why)
	require.NotEmpty(t, got.fix)
}

// A broker that died refuses connections too: while another answers that is no trap, and when none does it is one only
// after some patience, in which another may take over.
func TestDeadBrokerIsNoTrap(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	dead, alive := kgo.BrokerMetadata{NodeID: 2, Host: "m2", Port: 9092}, kgo.BrokerMetadata{NodeID: 3, Host: "m3", Port: 9092}
	synctest.Test(t, func(t *testing.T) {
		var d dialFailures
		ended := make(chan *failure, 1)
		d.arm(func(f *failure) { ended <- f })
		d.OnBrokerConnect(dead, 0, nil, refused)
		d.OnBrokerConnect(alive, 0, nil, nil)
		time.Sleep(2 * trapPatience)
		require.Empty(t, ended)
		require.Nil(t, d.trap())
	})
	synctest.Test(t, func(t *testing.T) {
		var d dialFailures
		ended := make(chan *failure, 1)
		began := time.Now()
		d.OnBrokerConnect(dead, 0, nil, refused)
		d.arm(func(f *failure) { ended <- f })
		f := <-ended
		require.Equal(t, trapPatience, time.Since(began))
		require.Equal(t, "broker 2 told me to connect to m2:9092, and connection refused", f.what)
	})
}

// The advertised address trap is named with both addresses, and only for a broker that never answered.
func TestAdvertisedAddressTrap(t *testing.T) {
	var d dialFailures
	seed := kgo.BrokerMetadata{NodeID: -2147483648, Host: "localhost", Port: 9092}
	broker := kgo.BrokerMetadata{NodeID: 2, Host: "broker2", Port: 9092}
	refused := &net.OpError{Op: "dial", Err: &net.DNSError{Name: "broker2", Err: "no such host"}}
	d.OnBrokerConnect(seed, 0, nil, nil)
	require.Nil(t, d.trap())
	ended := make(chan *failure, 1)
	d.arm(func(f *failure) { ended <- f })
	d.OnBrokerConnect(broker, 0, nil, refused)
	got := <-ended
	require.Equal(t, exitNoConnection, got.code)
	require.Equal(t, "broker 2 told me to connect to broker2:9092, and that name does not resolve here", got.what)
	require.Equal(t, "I reached the cluster through localhost:9092, but clients are always redirected to advertised.listeners", got.why)
	require.Contains(t, got.fix, "on broker 2 set  advertised.listeners=PLAINTEXT://")
	// It came up: no trap, and later failures are a restart.
	d.OnBrokerConnect(broker, 0, nil, nil)
	require.Nil(t, d.trap())
	d.OnBrokerConnect(broker, time.Second, nil, refused)
	require.Nil(t, d.trap())
	// Other errors are not the address's fault.
	d.OnBrokerConnect(kgo.BrokerMetadata{NodeID: 3}, 0, nil, errors.New("handshake"))
	require.Nil(t, d.trap())
}
