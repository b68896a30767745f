package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/millrace/millrace/cmd/broker"
)

// The ports of broker k are those of broker 1 plus 1000·(k-1). Within a broker they stand as far apart as the defaults
// 9092, 9093, 9094 and 9644 do.
const (
	devStep       = 1000
	devPeerPort   = 1
	devGossipPort = 2
	devHTTPPort   = 9644 - devPort
	// devMost is how many brokers a dev cluster may have: the ports of the last one of base 9092 are still below 65536.
	devMost = 50
)

// devLayoutFile marks a directory as that of a dev cluster and says which brokers it has, and on which ports: brokers
// remember one another by their addresses, so these stay as long as the data does.
const devLayoutFile = "millrace-dev.json"

type devLayout struct {
	Brokers []devPorts `json:"brokers"`
}

// devPorts are the ports of one broker, all on loopback.
type devPorts struct {
	ID      int `json:"id"`
	Clients int `json:"clients"`
	Peer    int `json:"peer"`
	Gossip  int `json:"gossip"`
	HTTP    int `json:"http"`
}

// portsByRule returns the ports of broker id in a cluster whose first broker has the client port base.
func portsByRule(id, base int) (devPorts, error) {
	first := base + devStep*(id-1)
	p := devPorts{ID: id, Clients: first, Peer: first + devPeerPort, Gossip: first + devGossipPort, HTTP: first + devHTTPPort}
	if base < 1 || p.HTTP > 65535 {
		f := usageError(fmt.Sprintf("broker %d has no ports when the first has %d", id, base), "--port 9092, or --any-port")
		f.why = fmt.Sprintf("broker k uses base + 1000·(k-1) for clients, and %d above that for HTTP; ports end at 65535", devHTTPPort)
		return p, f
	}
	return p, nil
}

// reserved is a set of ports that are held until the brokers take them over.
type reserved struct {
	held   []io.Closer
	states *devStates
}

// Close lets go of the ports, so that brokers can bind them.
func (r *reserved) Close() {
	for _, c := range r.held {
		_ = c.Close() // nothing was sent on it
	}
	r.held = nil
}

// take holds the ports of one broker. An error names the port's holder.
func (r *reserved) take(p devPorts) error {
	for _, at := range []struct {
		what string
		port int
		udp  bool
	}{{"clients", p.Clients, false}, {"other brokers", p.Peer, false}, {"gossip", p.Gossip, false}, {"gossip", p.Gossip, true}, {"HTTP", p.HTTP, false}} {
		address := loopback(at.port)
		var c io.Closer
		var err error
		if at.udp {
			c, err = net.ListenPacket("udp", address)
		} else {
			c, err = net.Listen("tcp", address)
		}
		if err != nil {
			return r.taken(p.ID, at.what, address, err)
		}
		r.held = append(r.held, c)
	}
	return nil
}

// taken explains why a port cannot be had.
func (r *reserved) taken(id int, what, address string, err error) error {
	f := explain("start broker "+strconv.Itoa(id), broker.PortError(fmt.Sprintf("broker %d, port for %s", id, what), address, err))
	f.code = exitFailed
	if !broker.PortTaken(err) {
		return f
	}
	f.fix = "millrace dev --any-port   takes free ports; --port BASE chooses others"
	if r.states == nil {
		return f
	}
	states, listErr := r.states.all()
	if listErr != nil {
		return f
	}
	for _, s := range states {
		for _, b := range s.Brokers {
			if s.running() && slices.Contains([]string{b.Clients, b.Peer, b.Gossip, b.HTTP}, address) {
				f.why = fmt.Sprintf("broker %d of the dev cluster on port %d runs there (process %d)", b.ID, s.Port, b.PID)
				f.fix = fmt.Sprintf("millrace dev stop --port %d   stops it; millrace dev --any-port   starts another beside it", s.Port)
			}
		}
	}
	return f
}

// Free ports are drawn from [devAnyFrom, devAnyTo), below those that Linux and macOS give to outgoing connections and to
// listeners that ask for any port: between the moment a port is let go of for its broker and the broker's bind nobody is
// given it by chance, and a broker that was killed finds it free when it comes back.
const (
	devAnyFrom = 12000
	devAnyTo   = 32000
)

// any holds free ports for one broker.
func (r *reserved) any(id int) (devPorts, error) {
	p := devPorts{ID: id}
	for _, at := range []struct {
		port *int
		udp  bool // gossip needs the same number for TCP and UDP
	}{{&p.Clients, false}, {&p.Peer, false}, {&p.HTTP, false}, {&p.Gossip, true}} {
		port, err := r.free(at.udp)
		if err != nil {
			return p, fmt.Errorf("find a free port for broker %d: %w", id, err)
		}
		*at.port = port
	}
	return p, nil
}

// free holds one port for TCP, and for UDP where that is asked for.
func (r *reserved) free(udp bool) (int, error) {
	const tries = 1000
	var last error
	for range tries {
		port := devAnyFrom + rand.IntN(devAnyTo-devAnyFrom)
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			last = err
			continue
		}
		if udp {
			u, err := net.ListenPacket("udp", loopback(port))
			if err != nil {
				last = errors.Join(err, l.Close())
				continue
			}
			r.held = append(r.held, u)
		}
		r.held = append(r.held, l)
		return port, nil
	}
	return 0, fmt.Errorf("%d ports between %d and %d were tried: %w", tries, devAnyFrom, devAnyTo, last)
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// readLayout returns the layout of a dev cluster's directory, nil when it has none.
func readLayout(dir string) (*devLayout, error) {
	path := filepath.Join(dir, devLayoutFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var l devLayout
	if err == nil {
		err = json.Unmarshal(b, &l)
	}
	if err == nil && len(l.Brokers) == 0 {
		err = errors.New("it names no brokers")
	}
	if err != nil {
		return nil, &failure{code: exitFailed, what: "cannot read " + path, why: oneLine(err.Error()), fix: "restore it, or choose another --data: without it nobody knows the ports of these brokers", cause: err}
	}
	return &l, nil
}

func writeLayout(dir string, l *devLayout) error {
	b, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the layout of the dev cluster: %w", err)
	}
	return writePrivate(filepath.Join(dir, devLayoutFile), append(b, '\n'))
}

// brokerDir and brokerLog are the places of one broker below a dev cluster's directory.
func brokerDir(dir string, id int) string { return filepath.Join(dir, fmt.Sprintf("broker-%d", id)) }
func brokerLog(dir string, id int) string {
	return filepath.Join(dir, fmt.Sprintf("broker-%d.log", id))
}

// removeDevDir removes what a dev cluster has written below its directory, and the directory if nothing else is in it.
// It touches nothing in a directory that has no layout.
func removeDevDir(dir string) error {
	l, err := readLayout(dir)
	if err != nil || l == nil {
		return err
	}
	for _, b := range l.Brokers {
		err = errors.Join(err, os.RemoveAll(brokerDir(dir, b.ID)), removeFile(brokerLog(dir, b.ID)))
	}
	if err == nil {
		err = removeFile(filepath.Join(dir, devLayoutFile))
	}
	if err != nil {
		return &failure{code: exitFailed, what: "cannot remove the data in " + dir, why: oneLine(err.Error()), fix: "remove the directory by hand", cause: err}
	}
	_ = os.Remove(dir) // what else is in it belongs to somebody
	return nil
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
