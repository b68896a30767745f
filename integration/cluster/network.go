package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// network gives each node a network namespace, tied to a bridge beside the driver. A link between two nodes is cut one
// way by giving the sender a wrong hardware address for the receiver: packets leave and reach nobody, without an error,
// as on a broken wire. Connections survive and go on when the link heals.
type network struct {
	nodes   int
	holders []*exec.Cmd // keep the namespaces alive, by index - 1
	cut     map[[2]int]bool
}

// bridge is the driver's end. The names are ours alone: the Sandbox has a network of its own.
const bridge = "millrace0"

// address is that of a node, 0 the driver's.
func (w *network) address(index int) string { return "10.77.0." + strconv.Itoa(index+1) }

func (w *network) hardware(index int) string { return fmt.Sprintf("02:4d:52:00:00:%02x", index+1) }

// nobody is a hardware address that no node has.
const nobody = "02:4d:52:ff:ff:ff"

func newNetwork(nodes int) (w *network, err error) {
	if !InSandbox() {
		return nil, fmt.Errorf("%w: network namespaces take root and the sandbox", ErrNotHere)
	}
	w = &network{nodes: nodes, cut: map[[2]int]bool{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
			w = nil
		}
	}()
	if err := each(
		"ip link add "+bridge+" type bridge",
		"ip addr add "+w.address(0)+"/24 dev "+bridge,
		"ip link set "+bridge+" up",
	); err != nil {
		return w, err
	}
	for i := 1; i <= nodes; i++ {
		if err := w.join(i); err != nil {
			return w, err
		}
	}
	for i := 1; i <= nodes; i++ {
		for k := 1; k <= nodes; k++ {
			if i != k {
				if err := w.link(i, k, true); err != nil {
					return w, err
				}
			}
		}
	}
	return w, nil
}

// join makes the namespace of a node and ties it to the bridge.
func (w *network) join(i int) error {
	holder := exec.Command("sleep", "infinity")
	holder.SysProcAttr = dieWithUs()
	holder.SysProcAttr.Cloneflags = syscall.CLONE_NEWNET
	if err := holder.Start(); err != nil {
		return fmt.Errorf("%w: a network namespace: %w", ErrNotHere, err)
	}
	w.holders = append(w.holders, holder)
	inside := strings.Join(w.enter(i), " ") + " "
	end := "veth" + strconv.Itoa(i)
	return each(
		"ip link add "+end+" type veth peer name eth0 netns "+strconv.Itoa(holder.Process.Pid),
		"ip link set "+end+" master "+bridge+" up",
		inside+"ip link set lo up",
		inside+"ip link set eth0 address "+w.hardware(i),
		inside+"ip addr add "+w.address(i)+"/24 dev eth0",
		inside+"ip link set eth0 up",
	)
}

// enter is the beginning of a command line that runs in the namespace of a node; the process keeps its id.
func (w *network) enter(i int) []string {
	return []string{"nsenter", "-n", "-t", strconv.Itoa(w.holders[i-1].Process.Pid)}
}

// link lets packets from one node to another through, or not.
func (w *network) link(from, to int, through bool) error {
	hardware := nobody
	if through {
		hardware = w.hardware(to)
	}
	w.cut[[2]int{from, to}] = !through
	return each(strings.Join(w.enter(from), " ") + " ip neigh replace " + w.address(to) + " lladdr " + hardware + " dev eth0 nud permanent")
}

func (w *network) healAll() error {
	var errs []error
	for pair, cut := range w.cut {
		if cut {
			errs = append(errs, w.link(pair[0], pair[1], true))
		}
	}
	return errors.Join(errs...)
}

// close ends the namespaces; the bridge stays for the kernel where it cannot be removed.
func (w *network) close() error {
	for _, h := range w.holders {
		_ = h.Process.Kill()
		_ = h.Wait()
	}
	if len(w.holders) == 0 {
		return nil
	}
	return each("ip link del " + bridge)
}

// each runs commands until one fails.
func each(commands ...string) error {
	for _, c := range commands {
		argv := strings.Fields(c)
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s: %w: %s", ErrNotHere, c, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}

// dieWithUs has a child killed when the driver is.
func dieWithUs() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// HasLinks says whether links between brokers can be cut.
func (c *Cluster) HasLinks() bool { return c.network != nil }

// CutLink loses every packet from one broker to another, one way, until [Cluster.Heal] or [Cluster.MendLink].
func (c *Cluster) CutLink(from, to *Node) error {
	if c.network == nil {
		return fmt.Errorf("%w: the brokers share one network", ErrNotHere)
	}
	return c.network.link(from.Index, to.Index, false)
}

// MendLink undoes [Cluster.CutLink].
func (c *Cluster) MendLink(from, to *Node) error {
	if c.network == nil {
		return fmt.Errorf("%w: the brokers share one network", ErrNotHere)
	}
	return c.network.link(from.Index, to.Index, true)
}

// Isolate cuts a broker off the others, both ways. Clients still reach it.
func (c *Cluster) Isolate(n *Node) error {
	var errs []error
	for _, o := range c.Nodes {
		if o != n {
			errs = append(errs, c.CutLink(n, o), c.CutLink(o, n))
		}
	}
	return errors.Join(errs...)
}

// BreakConnections resets the live connections of a broker with the others.
func (c *Cluster) BreakConnections(n *Node) error {
	if c.network == nil {
		return fmt.Errorf("%w: the brokers share one network", ErrNotHere)
	}
	for _, o := range c.Nodes {
		if o == n {
			continue
		}
		if err := each(strings.Join(c.network.enter(n.Index), " ") + " ss -K dst " + c.network.address(o.Index)); err != nil {
			return err
		}
	}
	return nil
}

// sandboxVariable marks the command that runs inside.
const sandboxVariable = "MILLRACE_FAULTS_SANDBOX"

// InSandbox says whether this process has namespaces of its own.
func InSandbox() bool { return os.Getenv(sandboxVariable) != "" }
