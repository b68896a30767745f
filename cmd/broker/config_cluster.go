package broker

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/metadata/membership"
	"github.com/millrace/millrace/transport/peer"
)

// setCluster reads which other brokers there are: millrace.join and millrace.bootstrap.expect, else what a KRaft file says
// in controller.quorum.voters and controller.quorum.bootstrap.servers.
func (c *Config) setCluster(s *Settings, o Options) error {
	c.Metadata.QuorumSize = int(s.number("millrace.quorum.size"))
	c.Metadata.SnapshotEntries = uint64(s.number("millrace.metadata.snapshot.entries"))
	c.Metadata.TrailingEntries = c.Metadata.SnapshotEntries
	c.Metadata.HeartbeatInterval = s.duration("broker.heartbeat.interval.ms")
	c.Metadata.SessionTimeout = s.duration("broker.session.timeout.ms")
	if c.Metadata.HeartbeatInterval > c.Metadata.SessionTimeout/2 {
		return &metadata.Error{
			Kind: metadata.ErrInvalidConfig,
			What: fmt.Sprintf("broker.heartbeat.interval.ms=%d does not fit broker.session.timeout.ms=%d", c.Metadata.HeartbeatInterval.Milliseconds(), c.Metadata.SessionTimeout.Milliseconds()),
			Why:  "a single lost heartbeat would fence the broker",
			Fix:  "set broker.session.timeout.ms to at least twice the interval",
		}
	}
	c.Join = metadata.SplitConfigList(s.Get("millrace.join"))
	c.BootstrapExpect = int(s.number("millrace.bootstrap.expect"))
	if o.Replaces {
		c.Replace = o.Replace
		c.BootstrapExpect = 0 // the cluster exists
	}
	if len(c.Join) > 0 || c.BootstrapExpect > 0 {
		return nil
	}
	return c.setKRaftCluster(s)
}

// setKRaftCluster reads the keys of a KRaft broker. They name listeners for brokers; gossip is taken to be on the port
// after, as it is by default.
func (c *Config) setKRaftCluster(s *Settings) error {
	own := firstSet(s, "node.id", "broker.id")
	voters := metadata.SplitConfigList(s.Get("controller.quorum.voters"))
	ids := make([]string, len(voters))
	for i, voter := range voters {
		id, address, _ := strings.Cut(voter, "@")
		gossip, err := gossipBeside(address)
		if err != nil {
			return err
		}
		ids[i] = id
		c.Join = append(c.Join, gossip)
	}
	switch {
	case len(voters) == 1 && (own == "" || own == ids[0]):
		c.Join = nil // a quorum of itself
		return nil
	case slices.Contains(ids, own):
		c.BootstrapExpect = len(voters)
		return nil
	case len(voters) > 0:
		return nil // not a voter: it only joins
	}
	servers := metadata.SplitConfigList(s.Get("controller.quorum.bootstrap.servers"))
	if len(servers) == 1 && thisMachine(servers[0], s) {
		return nil
	}
	for _, server := range servers {
		gossip, err := gossipBeside(server)
		if err != nil {
			return err
		}
		c.Join = append(c.Join, gossip)
	}
	return nil
}

// gossipBeside returns the address of gossip of a broker whose listener for brokers is at address.
func gossipBeside(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("read the address %q: %w", address, err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return "", fmt.Errorf("read the port of %q: %w", address, err)
	}
	return net.JoinHostPort(host, strconv.Itoa(n+1)), nil
}

// opened says whether this broker can ever have others beside it, so that its ports for them are opened: it is told of
// some, or told to be reachable for some. A broker that is started without any of that is for this machine only.
func (c *Config) opened(s *Settings, o Options) bool {
	_, gossip := s.IsSet("millrace.gossip.listener")
	return c.forms() || o.Advertise != "" || gossip || c.Peers != nil
}

// setPeers completes Peers, which setListeners has begun if the listener was named, or makes one.
func (c *Config) setPeers(s *Settings, o Options) error {
	if !c.opened(s, o) {
		return nil
	}
	p := c.Peers
	if p == nil {
		host := ""
		if !c.reachable(s, o) {
			host = "127.0.0.1"
		}
		p = &PeerConfig{Name: controllerName(s), Bind: net.JoinHostPort(host, "9093")}
		p.Advertised = net.JoinHostPort(advertisedHost(host, o.Advertise), "9093")
		if err := c.peerTLS(s, p, p.Name); err != nil {
			return err
		}
		c.Peers = p
	}
	bindHost, _, err := net.SplitHostPort(p.Bind)
	if err != nil {
		return fmt.Errorf("read the listener for brokers %q: %w", p.Bind, err)
	}
	if _, ok := s.IsSet("millrace.gossip.listener"); ok {
		p.GossipBind = s.Get("millrace.gossip.listener")
	} else if p.GossipBind, err = gossipBeside(p.Bind); err != nil {
		return err
	}
	if host, port, err := net.SplitHostPort(p.GossipBind); err != nil {
		return &metadata.Error{Kind: metadata.ErrInvalidConfig, What: "millrace.gossip.listener=" + p.GossipBind, Why: err.Error(), Fix: "millrace.gossip.listener=:9094"}
	} else if host == "" && !everywhere(bindHost) {
		p.GossipBind = net.JoinHostPort(bindHost, port)
	}
	if p.GossipKeys, err = membership.ParseKeys(s.Get("millrace.gossip.key")); err != nil {
		return &metadata.Error{
			Kind: metadata.ErrInvalidConfig, What: "millrace.gossip.key can't be used", Why: err.Error(),
			Fix: "make one with   openssl rand -base64 32   and give all brokers the same; to change it: \"old,new\" on all, then \"new,old\", then \"new\"",
		}
	}
	if !isLoopback(bindHost) && p.TLS == nil {
		c.Notes = append(c.Notes, fmt.Sprintf("warning: the listener for other brokers (%s) and gossip (%s) are open to the network without encryption or authentication; ssl.* keys of listener %s and millrace.gossip.key close them",
			p.Bind, p.GossipBind, p.Name))
	}
	return nil
}

// controllerName is the name of the listener for other brokers.
func controllerName(s *Settings) string {
	if names := metadata.SplitConfigList(s.Get("controller.listener.names")); len(names) > 0 {
		return strings.ToUpper(names[0])
	}
	return peer.ListenerName
}

// reachable says whether listeners without a host are for other machines too (S1).
func (c *Config) reachable(s *Settings, o Options) bool {
	_, configured := s.IsSet("listeners")
	return configured || o.Advertise != "" || c.forms()
}

// peerListener takes a listener named in controller.listener.names as the one for other brokers.
func (c *Config) peerListener(s *Settings, o Options, name, host string, port int, advertised string) error {
	p := &PeerConfig{Name: name, Bind: net.JoinHostPort(host, strconv.Itoa(port))}
	p.Advertised = net.JoinHostPort(advertisedHost(host, o.Advertise), strconv.Itoa(port))
	if advertised != "" {
		_, h, n, err := metadata.SplitListener(advertised)
		if err != nil {
			return err
		}
		p.Advertised = net.JoinHostPort(h, strconv.Itoa(n))
	}
	c.Peers = p
	return c.peerTLS(s, p, name)
}

// peerTLS turns on mutual TLS if the listener's protocol is SSL.
func (c *Config) peerTLS(s *Settings, p *PeerConfig, name string) error {
	protocol := "PLAINTEXT"
	for _, item := range metadata.SplitConfigList(s.Get("listener.security.protocol.map")) {
		if n, v, _ := strings.Cut(item, ":"); strings.EqualFold(n, name) {
			protocol = v
		}
	}
	switch protocol {
	case "PLAINTEXT":
		return nil
	case "SSL":
	default:
		return &metadata.Error{
			Kind: metadata.ErrInvalidConfig,
			What: fmt.Sprintf("listener %s asks for %s", name, protocol),
			Why:  "brokers know each other by certificates",
			Fix:  fmt.Sprintf("listener.security.protocol.map=%s:SSL, with ssl.keystore.location and ssl.truststore.location", name),
		}
	}
	t, err := tlsOf(s, name)
	if err != nil {
		return err
	}
	if t.ClientCAFile == "" {
		return &metadata.Error{
			Kind: metadata.ErrInvalidConfig,
			What: fmt.Sprintf("listener %s is SSL and has no authorities", name),
			Why:  "ssl.truststore.location is not set, so no other broker's certificate could be checked",
			Fix:  "ssl.truststore.location=/etc/millrace/ca.pem",
		}
	}
	p.TLS = &peer.TLS{CertFile: t.CertFile, KeyFile: t.KeyFile, CAFile: t.ClientCAFile}
	return nil
}

// validateCluster refuses combinations that could form two clusters, or none (M18).
func (c *Config) validateCluster() error {
	refuse := func(what, why, fix string) error {
		return &metadata.Error{Kind: metadata.ErrInvalidConfig, What: what, Why: why, Fix: fix}
	}
	n := c.BootstrapExpect
	switch {
	case c.forms() && c.Peers == nil:
		return refuse("a broker that joins others needs a listener for them", "no listener is named "+peer.ListenerName, "listeners=…,CONTROLLER://:9093")
	case c.Replace >= 0 && len(c.Join) == 0:
		return refuse(fmt.Sprintf("--replace %d without --join", c.Replace), "the place to take is in a cluster, and no broker of it is named", "add --join HOST,… with brokers of the cluster")
	case c.Replace >= 0 && c.NodeID >= 0 && c.NodeID != c.Replace:
		return refuse(fmt.Sprintf("--replace %d with node.id=%d", c.Replace, c.NodeID), "a broker that takes another's place gets its id", "leave node.id out")
	case n == 1 && len(c.Join) > 0:
		return refuse("--bootstrap-expect 1 with --join", "a broker that is to join others must not form a cluster of its own when they do not answer",
			"leave --join out for a cluster of one, or --bootstrap-expect to join a cluster")
	case n > 1 && len(c.Join) >= 2*n:
		return refuse(fmt.Sprintf("--join names %d brokers, and --bootstrap-expect is %d", len(c.Join), n), "two clusters could be formed, side by side",
			fmt.Sprintf("--bootstrap-expect %d, or fewer names in --join", len(c.Join)/2+1))
	case n > 99:
		return refuse(fmt.Sprintf("--bootstrap-expect %d", n), "a cluster is formed by at most 99 brokers; others join it later", "--bootstrap-expect 3")
	}
	return nil
}
