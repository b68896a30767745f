package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The tests run in the sandbox where there is root, so that links can be cut and nothing is left behind.
func TestMain(m *testing.M) {
	code, ended, err := Sandbox()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if !ended {
		code = m.Run()
	}
	os.Exit(code)
}

const patience = 30 * time.Second

func open(t *testing.T, cfg Config) *Cluster {
	t.Helper()
	cfg.Dir = filepath.Join(t.TempDir(), "brokers")
	c, err := Open(cfg)
	if err != nil && strings.Contains(err.Error(), ErrNotHere.Error()) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// A process is killed, paused, stopped and started again, at the same addresses and with the same data.
func TestProcess(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and starts a broker")
	}
	binary := filepath.Join(t.TempDir(), "millrace")
	out, err := exec.Command("go", "build", "-o", binary, "github.com/millrace/millrace/cmd/millrace").CombinedOutput()
	require.NoError(t, err, "%s", out)
	c := open(t, Config{Binary: binary, Brokers: 1, MemoryMiB: 256, ClientProxy: true})
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	n := c.Nodes[0]
	require.Error(t, ignore(n.files(func(string) bool { return true })), "there are no files yet")
	require.NoError(t, c.Start(ctx))
	require.ErrorContains(t, n.Start(), "it runs")

	require.NoError(t, n.Kill())
	require.False(t, n.Running())
	require.NoError(t, n.Kill(), "twice is no error")
	require.NoError(t, n.Start())
	require.NoError(t, n.Serves(ctx, 1))

	v, err := n.Vitals(ctx)
	require.NoError(t, err)
	require.Greater(t, v.Goroutines, 10)
	require.Greater(t, v.Sockets, 1, "listeners are sockets")
	require.Greater(t, v.ResidentBytes, int64(1<<20))
	_, err = n.Get(ctx, "/nothing")
	require.ErrorContains(t, err, "404")
	require.NoError(t, n.Pause())
	require.True(t, n.Paused())
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.Pid()))
	require.NoError(t, err)
	require.Contains(t, string(state), ") T ")
	short, stop := context.WithTimeout(ctx, 200*time.Millisecond)
	require.Error(t, n.Serves(short, 1))
	stop()
	require.NoError(t, c.Heal(), "ends a pause")
	require.NoError(t, n.Serves(ctx, 1))

	_, err = n.FlipBit(rand.New(rand.NewPCG(1, 1)), func(string) bool { return true })
	require.ErrorContains(t, err, "it runs")
	require.NoError(t, n.Stop())
	require.Contains(t, n.LogTail(64<<10), "broker serves")
	require.NoError(t, n.Start())
	require.NoError(t, n.Serves(ctx, 1))
}

func ignore[T any](_ T, err error) error { return err }

// Damage hits one file of those that match, and says where.
func TestDamage(t *testing.T) {
	c := open(t, Config{Binary: "none", Brokers: 1})
	n, random := c.Nodes[0], rand.New(rand.NewPCG(1, 2))
	before := []byte("some bytes of a file")
	write := func() {
		require.NoError(t, os.WriteFile(filepath.Join(n.Data, "victim"), before, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(n.Data, "other"), before, 0o600))
	}
	victim := func(name string) bool { return name == "victim" }
	write()
	what, err := n.FlipBit(random, victim)
	require.NoError(t, err)
	require.Contains(t, what, "victim")
	after, err := os.ReadFile(filepath.Join(n.Data, "victim"))
	require.NoError(t, err)
	differ := 0
	for i := range before {
		if before[i] != after[i] {
			differ++
		}
	}
	require.Equal(t, 1, differ)
	_, err = n.Truncate(random, victim)
	require.NoError(t, err)
	info, err := os.Stat(filepath.Join(n.Data, "victim"))
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(len(before)))
	write()
	_, err = n.Delete(random, victim)
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(n.Data, "victim"))
	_, err = n.Delete(random, victim)
	require.ErrorContains(t, err, "none matches")
	other, err := os.ReadFile(filepath.Join(n.Data, "other"))
	require.NoError(t, err)
	require.Equal(t, before, other)
}

// At a power cut stays what was synced, and goes what was not (L3).
func TestPowerCut(t *testing.T) {
	c := open(t, Config{Binary: "none", Brokers: 1, DiskMiB: 64})
	n := c.Nodes[0]
	name := func(s string) string { return filepath.Join(n.Data, s) }
	synced, err := os.Create(name("synced"))
	require.NoError(t, err)
	_, err = synced.WriteString("kept")
	require.NoError(t, err)
	require.NoError(t, synced.Sync())
	dir, err := os.Open(n.Data)
	require.NoError(t, err)
	require.NoError(t, dir.Sync())
	require.NoError(t, dir.Close())
	_, err = synced.WriteString(" and a tail")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name("unsynced"), []byte("gone"), 0o600))
	require.NoError(t, synced.Close())

	require.NoError(t, n.PowerCut())
	kept, err := os.ReadFile(name("synced"))
	require.NoError(t, err)
	require.Equal(t, "kept", string(kept))
	require.NoFileExists(t, name("unsynced"))
}

// A frozen disk takes nothing until it thaws; a full one has no room until it is freed. Heal ends both.
func TestDisks(t *testing.T) {
	c := open(t, Config{Binary: "none", Brokers: 1, DiskMiB: 64})
	n := c.Nodes[0]
	name := filepath.Join(n.Data, "file")
	_, err := n.FreezeDisk()
	require.NoError(t, err)
	written := make(chan error, 1)
	go func() { written <- os.WriteFile(name, []byte("x"), 0o600) }()
	select {
	case err := <-written:
		t.Fatalf("a frozen disk takes a file: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	require.NoError(t, c.Heal())
	require.NoError(t, <-written)

	end, err := n.FillDisk()
	require.NoError(t, err)
	require.ErrorIs(t, os.WriteFile(name+"-2", make([]byte, 64<<10), 0o600), unix.ENOSPC)
	require.NoError(t, end())
	require.NoError(t, os.WriteFile(name+"-2", make([]byte, 64<<10), 0o600))
}

// A link is cut one way, and heals.
func TestLinks(t *testing.T) {
	if !InSandbox() {
		t.Skip("network namespaces take root")
	}
	c := open(t, Config{Binary: "none", Brokers: 2, Namespaces: true})
	a, b := c.Nodes[0], c.Nodes[1]
	inA, inB := socket(t, c, a), socket(t, c, b)
	arrives := func(from net.PacketConn, to *Node, at net.PacketConn, want bool) {
		t.Helper()
		for range 3 { // packets may be lost for other reasons
			_, err := from.WriteTo([]byte("x"), &net.UDPAddr{IP: net.ParseIP(c.network.address(to.Index)), Port: 4000})
			require.NoError(t, err)
			limit := 50 * time.Millisecond
			if want {
				limit = patience
			}
			require.NoError(t, at.SetReadDeadline(time.Now().Add(limit)))
			if _, _, err = at.ReadFrom(make([]byte, 10)); err == nil {
				require.True(t, want, "a packet came through a cut link")
				return
			}
		}
		require.False(t, want, "no packet came through")
	}
	arrives(inA, b, inB, true)
	arrives(inB, a, inA, true)
	require.NoError(t, c.CutLink(a, b))
	arrives(inA, b, inB, false)
	arrives(inB, a, inA, true)
	require.NoError(t, c.Isolate(a))
	arrives(inB, a, inA, false)
	require.NoError(t, c.MendLink(b, a))
	arrives(inB, a, inA, true)
	require.NoError(t, c.Heal())
	arrives(inA, b, inB, true)
	require.NoError(t, c.BreakConnections(a))
}

// socket opens a UDP socket in the namespace of a node.
func socket(t *testing.T, c *Cluster, n *Node) net.PacketConn {
	t.Helper()
	type result struct {
		conn net.PacketConn
		err  error
	}
	got := make(chan result)
	go func() {
		// The thread is of no use to others any more, and must not end: processes that it has started die with it.
		runtime.LockOSThread()
		defer func() { select {} }()
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", c.network.holders[n.Index-1].Process.Pid))
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			_ = ns.Close()
		}
		if err != nil {
			got <- result{err: err}
			return
		}
		conn, err := net.ListenPacket("udp", c.network.address(n.Index)+":4000")
		got <- result{conn, err}
	}()
	r := <-got
	require.NoError(t, r.err)
	t.Cleanup(func() { _ = r.conn.Close() })
	return r.conn
}

// A port is free until its broker is started, and while that is down: no other broker of this process may be given it.
func TestPortsAreGivenOnce(t *testing.T) {
	seen := map[int]bool{}
	for range 20 {
		ports, err := freePorts(100)
		require.NoError(t, err)
		for _, p := range ports {
			require.False(t, seen[p], "port %d twice", p)
			seen[p] = true
		}
	}
}
