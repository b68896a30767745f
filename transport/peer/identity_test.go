package peer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

// M13, M14, M18: who is refused, for which reason, in which words.
func TestJudge(t *testing.T) {
	own := identity("c", 1)
	f := func(what purpose, edit func(*hello, *From), kind error, words ...string) {
		t.Helper()
		h := hello{Protocol: helloProtocol, Purpose: what}
		from := From{Identity: identity("c", 2), Remote: "10.0.0.2:5"}
		edit(&h, &from)
		e := judge(h, from, own)
		if kind == nil {
			require.Nil(t, e)
			return
		}
		require.NotNil(t, e)
		require.ErrorIs(t, e, kind)
		require.NotEmpty(t, e.Why)
		require.NotEmpty(t, e.Fix)
		for _, w := range words {
			require.Contains(t, e.Error(), w)
		}
	}
	same := func(*hello, *From) {}
	for _, what := range []purpose{forRaft, forCalls, forFetch, forProbe} {
		f(what, same, nil)
		f(what, func(h *hello, _ *From) { h.Protocol = 0 }, metadata.ErrInvalidRequest, "version 0", "upgrade broker 2 at 10.0.0.2:5")
		f(what, func(_ *hello, from *From) { from.ClusterID = "other" }, metadata.ErrClusterMismatch, `broker 2 at 10.0.0.2:5 is of cluster "other", broker 1 is of cluster "c"`)
		f(what, func(_ *hello, from *From) { from.Directory = own.Directory }, metadata.ErrDuplicateBroker, "one is a copy of the other")
		f(what, func(_ *hello, from *From) { from.Node, from.Directory = -1, own.Directory }, metadata.ErrDuplicateBroker, "a broker without an id")
		f(what, func(_ *hello, from *From) { from.Node = 1 }, metadata.ErrDuplicateBroker, "two brokers have node id 1")
	}
	f("tea", same, metadata.ErrInvalidRequest, `"tea"`, "upgrade broker 1")
	// Before a cluster is formed there are calls and Raft, no replication.
	noCluster := func(_ *hello, from *From) { from.ClusterID = "" }
	f(forCalls, noCluster, nil)
	f(forRaft, noCluster, nil)
	f(forFetch, noCluster, metadata.ErrInvalidRequest, "too early")
	noNode := func(_ *hello, from *From) { from.Node = metadata.NoBroker }
	f(forCalls, noNode, nil)
	f(forRaft, noNode, metadata.ErrInvalidRequest, "too early")
	f(forFetch, noNode, metadata.ErrInvalidRequest, "too early")
	// Oneself may be called, as --join names all addresses, but not followed.
	self := func(_ *hello, from *From) { from.Identity = own }
	f(forCalls, self, nil)
	f(forProbe, self, nil)
	f(forRaft, self, metadata.ErrInvalidRequest, "called itself")
	f(forFetch, self, metadata.ErrInvalidRequest, "called itself")
}

// A refusal is told to the caller with its mend, and logged once at the broker that refused, by name.
func TestRefusal(t *testing.T) {
	a, b := start(t, identity("blue", 1)), start(t, identity("red", 2))
	a.knows(b)
	for range 5 {
		_, err := a.Call(deadline(t), b.Advertised(), "x", nil)
		require.ErrorIs(t, err, ErrRefused)
		require.ErrorIs(t, err, metadata.ErrNotSent)
		require.ErrorIs(t, err, metadata.ErrClusterMismatch)
		require.ErrorContains(t, err, `is of cluster "blue", broker 2 is of cluster "red"`)
		require.ErrorContains(t, err, "fix:")
	}
	require.EqualValues(t, 5, b.metrics.refused.Load())
	require.Equal(t, 1, b.log.count("a broker was refused"), b.log.String())
	require.Equal(t, 1, b.log.count("level=WARN"), b.log.String())
	_, err := a.StreamLayer().Dial("", 0)
	require.Error(t, err)
	_, err = a.raft.Dial(raftAddress(b), 0)
	require.ErrorIs(t, err, metadata.ErrClusterMismatch)

	// What Admit says counts too.
	c := start(t, identity("red", 3), func(cfg *Config) {
		cfg.Admit = func(from From) error {
			return &metadata.Error{Kind: metadata.ErrRemoved, What: from.Node.String() + " was removed", Why: "y", Fix: "f"}
		}
	})
	_, err = b.Call(deadline(t), c.Advertised(), "x", nil)
	require.ErrorIs(t, err, metadata.ErrRemoved)
	require.ErrorContains(t, err, "2 was removed")
}

// A probe tells the process that is registered from another one at its address, and a dead one from both.
func TestProbe(t *testing.T) {
	a, b := start(t, identity("c", 1)), start(t, identity("c", 2))
	a.knows(b)
	registered := &metadata.Broker{ID: 2, Incarnation: identity("c", 2).Incarnation}
	probe := func() error { return a.Probe(deadline(t), registered) }
	a.cfg.ProbeTimeout = testDeadline // a loaded machine is not what is tested
	require.NoError(t, probe())
	again := identity("c", 2)
	again.Incarnation[5] = 9
	b.become(again)
	require.ErrorContains(t, probe(), "another process answers")
	b.become(identity("c", 5))
	require.ErrorContains(t, probe(), "at the address of broker 2 there is broker 5")
	b.stop()
	require.ErrorIs(t, probe(), ErrUnreachable)
	require.ErrorIs(t, a.Probe(deadline(t), &metadata.Broker{ID: 9}), ErrUnreachable)
	require.False(t, a.suspects(2), "a probe is an answer, not a hint")
	require.Zero(t, b.log.count("level=WARN"), b.log.String())
}

func FuzzHello(f *testing.F) {
	f.Add(encode(hello{Protocol: 1, Purpose: forCalls, identityText: textOf(identity("c", 1)), Address: "a:1"}))
	f.Add([]byte(`{"node":-2}`))
	f.Add([]byte("GET / HTTP/1.1"))
	own := identity("c", 1)
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = decodeReply(b)
		h, from, err := decodeHello(b)
		if err != nil {
			return
		}
		judge(h, from, own)
		again, same, err := decodeHello(encode(h))
		if err != nil || again.Purpose != h.Purpose && len(b) < maxHelloBytes/8 || same.Node != from.Node || same.Directory != from.Directory {
			t.Fatalf("%q became %+v (%v)", b, same, err)
		}
	})
}

func FuzzCall(f *testing.F) {
	f.Add(appendCall(nil, 1e9, "method", []byte("body")))
	f.Add([]byte{0, 0, 0, 1, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		wait, method, body, err := decodeCall(b)
		if err != nil {
			return
		}
		again := appendCall(nil, wait, method, body)
		if string(again) != string(b) {
			t.Fatalf("%x became %x", b, again)
		}
	})
}
