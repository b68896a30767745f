package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/integration/proxy"
)

// ErrNotHere is matched by the errors of faults that this machine or user cannot make; the text says why.
var ErrNotHere = errors.New("not possible here")

// Config says what to run. Binary and Dir are required.
type Config struct {
	// Binary is the millrace to run; Dir an empty or new folder for data and output.
	Binary, Dir string
	// Brokers is how many form the cluster; default 3.
	Brokers int
	// Set is given to each with --set; Env is added to the environment.
	Set, Env []string
	// MemoryMiB caps each process by a cgroup where there is one; 0 does not.
	MemoryMiB int
	// Namespaces gives each broker a network of its own, so that links can be cut; it takes the [Sandbox].
	Namespaces bool
	// DiskMiB puts the data of each broker on a file system of its own of that size, so that its power can be cut and its
	// disk filled, frozen and slowed down; it takes root. 0 does not.
	DiskMiB int64
	// ClientProxy stands a proxy between the clients and each broker.
	ClientProxy bool
}

// Cluster is a set of brokers. Its methods are for one goroutine.
type Cluster struct {
	cfg     Config
	Nodes   []*Node
	network *network // nil: all on 127.0.0.1
	memory  string   // folder of our cgroups, "" without
}

// Open prepares folders, networks and disks. Nothing runs yet.
func Open(cfg Config) (c *Cluster, err error) {
	if cfg.Brokers == 0 {
		cfg.Brokers = 3
	}
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("open a cluster: %w", err)
	}
	c = &Cluster{cfg: cfg}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open a cluster: %w", err), c.Close())
			c = nil
		}
	}()
	if cfg.Namespaces {
		if c.network, err = newNetwork(cfg.Brokers); err != nil {
			return c, err
		}
	}
	if cfg.MemoryMiB > 0 {
		c.memory = memoryGroup()
	}
	for range cfg.Brokers {
		if err := c.add(); err != nil {
			return c, err
		}
	}
	return c, nil
}

// add prepares one more broker.
func (c *Cluster) add() error {
	n := &Node{cluster: c, Index: len(c.Nodes) + 1}
	c.Nodes = append(c.Nodes, n)
	n.Data = filepath.Join(c.cfg.Dir, fmt.Sprintf("node-%d", n.Index))
	n.LogFile = n.Data + ".log"
	if err := os.MkdirAll(n.Data, 0o755); err != nil {
		return err
	}
	if c.cfg.DiskMiB > 0 {
		n.disk = &disk{image: n.Data + ".img", mount: n.Data}
		if err := n.disk.create(c.cfg.DiskMiB); err != nil {
			return err
		}
	}
	ports := []int{9092, 9093, 9094, 9644}
	host := "127.0.0.1"
	if c.network != nil {
		host = c.network.address(n.Index)
	} else {
		var err error
		if ports, err = freePorts(len(ports)); err != nil {
			return err
		}
	}
	at := func(i int) string { return net.JoinHostPort(host, strconv.Itoa(ports[i])) }
	n.Listener, n.Peer, n.Gossip, n.HTTP = at(0), at(1), at(2), at(3)
	if c.network != nil {
		n.HTTP = net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[3])) // the admin API answers its own machine only
	}
	n.Addr = n.Listener
	if c.cfg.ClientProxy {
		own := "127.0.0.1"
		if c.network != nil {
			own = c.network.address(0)
		}
		var err error
		if n.Proxy, err = proxy.Open(net.JoinHostPort(own, "0"), n.Listener); err != nil {
			return err
		}
		n.Addr = n.Proxy.Addr()
	}
	return nil
}

// Grow prepares one more broker, which joins the cluster when it is started. The others do not have it on their command
// lines.
func (c *Cluster) Grow() (*Node, error) {
	if c.network != nil {
		return nil, errors.New("grow a cluster: its brokers have networks of their own, made when it was opened")
	}
	if err := c.add(); err != nil {
		return nil, fmt.Errorf("grow a cluster: %w", err)
	}
	return c.Nodes[len(c.Nodes)-1], nil
}

// Start starts all brokers and waits until each answers that all are there.
func (c *Cluster) Start(ctx context.Context) error {
	for _, n := range c.Nodes {
		if err := n.Start(); err != nil {
			return err
		}
	}
	for _, n := range c.Nodes {
		if err := n.Serves(ctx, len(c.Nodes)); err != nil {
			return err
		}
	}
	return nil
}

// Seeds are the addresses of the brokers for clients.
func (c *Cluster) Seeds() []string {
	var out []string
	for _, n := range c.Nodes {
		out = append(out, n.Addr)
	}
	return out
}

// Heal ends every fault that is in force but stopped processes: links, pauses, disks.
func (c *Cluster) Heal() error {
	var errs []error
	if c.network != nil {
		errs = append(errs, c.network.healAll())
	}
	for _, n := range c.Nodes {
		errs = append(errs, n.heal())
	}
	return errors.Join(errs...)
}

// Close heals, kills, unmounts and removes. Data and output stay in Config.Dir, but for what lay on mounts.
func (c *Cluster) Close() error {
	errs := []error{c.Heal()}
	for _, n := range c.Nodes {
		errs = append(errs, n.Kill())
		if n.Proxy != nil {
			errs = append(errs, n.Proxy.Close())
		}
		if n.disk != nil {
			errs = append(errs, n.disk.remove())
		}
		n.removeMemoryGroup()
	}
	if c.network != nil {
		errs = append(errs, c.network.close())
	}
	if c.memory != "" {
		_ = os.Remove(c.memory)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close the cluster: %w", err)
	}
	return nil
}

// given are the ports that freePorts has returned: nobody listens on them before a broker is started, or while it is down.
var given = struct {
	sync.Mutex
	ports map[int]bool
}{ports: map[int]bool{}}

// freePorts returns ports of 127.0.0.1 that nobody listens on, by TCP or UDP, below those that the kernel gives to
// outgoing connections: a broker that restarts finds its port free. It returns none twice.
func freePorts(n int) ([]int, error) {
	given.Lock()
	defer given.Unlock()
	var out []int
	for range 1000 {
		port := 12000 + rand.IntN(20000)
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		u, err := net.ListenPacket("udp", address)
		_ = l.Close()
		if err != nil {
			continue
		}
		_ = u.Close()
		if given.ports[port] {
			continue
		}
		given.ports[port] = true
		if out = append(out, port); len(out) == n {
			return out, nil
		}
	}
	return nil, errors.New("no free ports on 127.0.0.1")
}

// arguments is the command line of a broker.
func (c *Cluster) arguments(n *Node) []string {
	args := []string{
		"start", "--data", n.Data,
		"--set", "millrace.http.listener=" + n.HTTP,
		"--set", "advertised.listeners=PLAINTEXT://" + n.Addr,
	}
	if c.cfg.Brokers == 1 {
		args = append(args, "--set", "listeners=PLAINTEXT://"+n.Listener)
	} else {
		var join []string
		for _, o := range c.Nodes[:c.cfg.Brokers] {
			join = append(join, o.Gossip)
		}
		args = append(args, "--set", "listeners=PLAINTEXT://"+n.Listener+",CONTROLLER://"+n.Peer, "--set", "millrace.gossip.listener="+n.Gossip,
			"--join", strings.Join(join, ","))
		if n.Index <= c.cfg.Brokers {
			args = append(args, "--bootstrap-expect", strconv.Itoa(c.cfg.Brokers))
		}
	}
	for _, kv := range c.cfg.Set {
		args = append(args, "--set", kv)
	}
	return args
}

// poll tries until fn succeeds, ctx ends or over is closed.
func poll(ctx context.Context, over <-chan struct{}, fn func() error) error {
	for {
		err := fn()
		if err == nil {
			return nil
		}
		select {
		case <-over:
			return fmt.Errorf("the process ended: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
