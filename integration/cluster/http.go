package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// maxAnswer bounds what Get reads.
const maxAnswer = 16 << 20

// Get asks the node's HTTP port, from the node's own loopback, and returns the body of an answer 200.
func (n *Node) Get(ctx context.Context, path string) ([]byte, error) {
	// A connection for each question: one that is kept would outlive the process, and count as the broker's.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: n.dialInside}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.HTTP+path, nil)
	if err != nil {
		return nil, fmt.Errorf("ask node %d for %s: %w", n.Index, path, err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask node %d for %s: %w", n.Index, path, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.300s", resp.Status, body)
	}
	if err != nil {
		return nil, fmt.Errorf("ask node %d for %s: %w", n.Index, path, err)
	}
	return body, nil
}

// dialInside connects from inside the network namespace of the node, if it has one.
func (n *Node) dialInside(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	if n.cluster.network == nil {
		return d.DialContext(ctx, network, address)
	}
	type dialed struct {
		conn net.Conn
		err  error
	}
	got := make(chan dialed, 1)
	go func() {
		runtime.LockOSThread()
		conn, back, err := dialIn(ctx, n.cluster.network.holders[n.Index-1].Process.Pid, address)
		got <- dialed{conn, err}
		if !back {
			select {} // this thread is of no use any more, and must not end: processes that it has started die with it
		}
		runtime.UnlockOSThread()
	}()
	a := <-got
	return a.conn, a.err
}

// dialIn connects in the network namespace of a process. It changes that of the calling thread, which must be locked, and
// says whether it is back in its own.
func dialIn(ctx context.Context, pid int, address string) (conn net.Conn, back bool, err error) {
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, true, err
	}
	defer own.Close()
	inside, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return nil, true, err
	}
	defer inside.Close()
	if err := unix.Setns(int(inside.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, true, err
	}
	// A literal IPv4 address is dialed by the calling goroutine, hence on this thread.
	var d net.Dialer
	conn, err = d.DialContext(ctx, "tcp4", address)
	return conn, unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil, err
}
