package main

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A recorded process is ended only while it is the one that was recorded: its pid may belong to a stranger by now.
func TestProcessIdentity(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Skip("no sleep here: ", err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	id := identify(cmd.Process.Pid)
	if id.Started == "" {
		require.NoError(t, cmd.Process.Kill())
		t.Skip("this system does not tell when processes started")
	}
	require.True(t, id.alive())
	for _, other := range []processID{{PID: id.PID, Started: "1@other"}, {PID: id.PID}, {}, {PID: 1 << 30, Started: id.Started}} {
		require.False(t, other.alive())
		require.False(t, other.kill())
	}
	require.True(t, id.alive(), "a process that is not the recorded one was ended")
	require.True(t, id.kill())
	require.True(t, id.waitGone(10*time.Second))
	<-done
	require.False(t, id.kill())
	require.NotEqual(t, identify(os.Getpid()), identify(os.Getppid()))
}

// No two ports of a dev cluster are the same, whatever the base, and none is beyond 65535.
func TestDevPorts(t *testing.T) {
	for _, base := range []int{1, devPort, 15000} {
		seen := map[int]int{}
		for id := 1; id <= devMost; id++ {
			p, err := portsByRule(id, base)
			require.NoError(t, err, "base %d, broker %d", base, id)
			for _, port := range []int{p.Clients, p.Peer, p.Gossip, p.HTTP} {
				require.Zero(t, seen[port], "port %d of broker %d", port, id)
				require.Less(t, port, 65536)
				seen[port] = id
			}
		}
	}
	first, err := portsByRule(1, devPort)
	require.NoError(t, err)
	require.Equal(t, devPorts{1, 9092, 9093, 9094, 9644}, first)
	_, err = portsByRule(2, 65000)
	require.ErrorContains(t, err, "ports end at 65535")
	r := &reserved{}
	defer r.Close()
	seen := map[int]bool{}
	for id := range 10 {
		p, err := r.any(id)
		require.NoError(t, err)
		for _, port := range []int{p.Clients, p.Peer, p.Gossip, p.HTTP} {
			require.False(t, seen[port])
			require.True(t, port >= devAnyFrom && port < devAnyTo, "the kernel gives port %d to others", port)
			seen[port] = true
		}
	}
}

// A port that is taken, TCP or UDP, is told with its use and its mend before anything is started.
func TestDevPortTaken(t *testing.T) {
	u, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer u.Close()
	gossip := u.LocalAddr().(*net.UDPAddr).Port
	r := &reserved{}
	defer r.Close()
	p, err := r.any(2)
	require.NoError(t, err)
	r.Close()
	p.Gossip = gossip
	err = r.take(p)
	var f *failure
	require.ErrorAs(t, err, &f)
	require.Equal(t, exitFailed, f.code)
	require.Contains(t, f.what, "broker 2, port for gossip: cannot listen on 127.0.0.1:")
	require.Contains(t, f.fix, "millrace dev --any-port")
}

// What a dev process left behind that could not tidy up is tidied up by the next: state, profile, temporary data; and
// data that is to be kept stays.
func TestDevSweep(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(profileDirEnv, filepath.Join(dir, "config"))
	states, err := openDevStates()
	require.NoError(t, err)
	profiles, err := openProfiles()
	require.NoError(t, err)
	require.NoError(t, profiles.write("mine", map[string]string{"client.id": "me"}))
	require.NoError(t, profiles.use("mine"))

	make1 := func(port int, name string, temporary bool) devState {
		root := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(brokerDir(root, 1), 0o700))
		require.NoError(t, writeLayout(root, &devLayout{Brokers: []devPorts{{ID: 1, Clients: port}}}))
		return devState{Port: port, Phase: "ready", Supervisor: processID{PID: 1 << 30, Started: "gone"}, Dir: root, Temporary: temporary, Brokers: []devBroker{{ID: 1, State: devRunning, Clients: loopback(port)}}}
	}
	gone, kept := make1(1001, "gone", true), make1(1002, "kept", false)
	stranger := filepath.Join(gone.Dir, "stranger.txt")
	require.NoError(t, os.WriteFile(stranger, nil, 0o600))
	p := &devProfile{wanted: true}
	require.NoError(t, p.take(gone))
	gone.Profile = p.taken()
	require.NoError(t, states.write(&gone))
	require.NoError(t, states.write(&kept))
	current, err := profiles.current()
	require.NoError(t, err)
	require.Equal(t, devProfileName, current)

	require.NoError(t, states.sweep())
	all, err := states.all()
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, devStopped, all[0].Phase)
	require.NoDirExists(t, brokerDir(gone.Dir, 1))
	require.FileExists(t, stranger, "what dev did not make is not removed")
	require.DirExists(t, brokerDir(kept.Dir, 1))
	current, err = profiles.current()
	require.NoError(t, err)
	require.Equal(t, "mine", current)
	require.False(t, profiles.exists(devProfileName))

	// A profile dev of the user's own is not touched, and a running cluster's not taken over.
	require.NoError(t, profiles.write(devProfileName, map[string]string{"client.id": "me"}))
	require.ErrorIs(t, (&devProfile{wanted: true}).take(kept), errDevProfileTaken)
	require.NoError(t, os.Remove(profiles.path(devProfileName)))
	gone.Supervisor = identify(os.Getpid())
	if gone.running() {
		require.NoError(t, states.write(&gone))
		require.NoError(t, p.take(gone))
		require.ErrorIs(t, (&devProfile{wanted: true}).take(kept), errDevProfileTaken)
	}
	// Who has selected another profile meanwhile keeps it.
	require.NoError(t, profiles.write("other", map[string]string{"client.id": "me"}))
	require.NoError(t, profiles.use("other"))
	require.NoError(t, p.giveBack())
	current, err = profiles.current()
	require.NoError(t, err)
	require.Equal(t, "other", current)
}

// Orders need the token, which no answer gives away, and carry the three lines of a refusal.
func TestDevControl(t *testing.T) {
	refusal := &failure{code: exitFailed, what: "no", why: "because", fix: "do so"}
	var got int
	c, err := serveDevControl(func() devState { return devState{Port: 7, Token: "secret"} }, map[string]devOrder{
		"kill": func(_ context.Context, id int) error { got = id; return nil },
		"add":  func(context.Context, int) error { return refusal },
	})
	require.NoError(t, err)
	defer c.close()
	s := &devState{Control: c.address, Token: c.token}
	after, err := s.ask(context.Background(), "kill", 4)
	require.NoError(t, err)
	require.Equal(t, 4, got)
	require.Empty(t, after.Token)
	_, err = s.ask(context.Background(), "add", 0)
	var f *failure
	require.ErrorAs(t, err, &f)
	require.Equal(t, refusal.Error(), f.Error())
	require.Equal(t, refusal.code, f.code)
	after, err = s.ask(context.Background(), "", 0)
	require.NoError(t, err)
	require.Equal(t, 7, after.Port)
	for _, token := range []string{"", "secret", c.token + "x"} {
		_, err = (&devState{Control: c.address, Token: token}).ask(context.Background(), "kill", 9)
		require.ErrorContains(t, err, "401")
	}
	require.Equal(t, 4, got)
}

// The last lines of a log are those of the last run, and a broker's own three lines become the failure.
func TestTailLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	require.Empty(t, tailLines(path, 0, 3))
	old := "error: old\nwhy:   old\nfix:   old\n"
	require.NoError(t, os.WriteFile(path, []byte(old+"a\nb\nc\nd\n"), 0o600))
	require.Equal(t, []string{"b", "c", "d"}, tailLines(path, 0, 3))
	require.Equal(t, []string{"a", "b", "c", "d"}, tailLines(path, int64(len(old)), 20))
	c := &devChild{id: 2, log: path, logAt: int64(len(old)), exit: "exit status 1"}
	require.Equal(t, "broker 2 ended (exit status 1)", c.failed().what)
	require.NoError(t, os.WriteFile(path, []byte(old+"error: new\nwhy:   w\nfix:   f\n"), 0o600))
	require.Equal(t, "broker 2 ended: new\nwhy:   w\nfix:   f", c.failed().Error())
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("x", 200<<10)+"\nlast\n"), 0o600))
	require.Equal(t, []string{"last"}, tailLines(path, 0, 1))
}

// logs -n counts lines, long ones too, and the last one without its end.
func TestSeekLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	long := strings.Repeat("y", 10<<10)
	require.NoError(t, os.WriteFile(path, []byte("one\n"+long+"\nthree\nfour"), 0o600))
	check := func(n int, want string) {
		t.Helper()
		f, err := os.Open(path)
		require.NoError(t, err)
		defer f.Close()
		require.NoError(t, seekLines(f, n))
		b := make([]byte, 20<<10)
		read, err := f.Read(b)
		require.NoError(t, err)
		require.Equal(t, want, string(b[:read]))
	}
	check(1, "four")
	check(2, "three\nfour")
	check(3, long+"\nthree\nfour")
	check(9, "one\n"+long+"\nthree\nfour")
}

// A broker of dev ends with the process that holds its stdin.
func TestUntilClosed(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	ctx, cancel := untilClosed(context.Background(), r)
	defer cancel()
	require.NoError(t, ctx.Err())
	require.NoError(t, w.Close())
	<-ctx.Done()
	require.True(t, errors.Is(ctx.Err(), context.Canceled))
}
