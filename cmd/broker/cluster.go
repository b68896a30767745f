package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/metadata/membership"
	"github.com/millrace/millrace/transport"
	"github.com/millrace/millrace/transport/peer"
)

// PeerConfig is what a broker needs to have others beside it. A broker without one is alone for ever, and opens neither
// port.
type PeerConfig struct {
	// Name is the listener's, CONTROLLER by default.
	Name string
	// Bind is where brokers reach each other; Listener, when not nil, is used instead.
	Bind     string
	Listener net.Listener
	// Advertised is host:port of it as the others reach it; port 0 is the bound one, "" the bound address.
	Advertised string
	// TLS is nil for plain connections.
	TLS *peer.TLS
	// GossipBind is the address of gossip, TCP and UDP; GossipAdvertise what others are told, "" derives it.
	GossipBind, GossipAdvertise string
	GossipKeys                  [][]byte
}

// forms says whether this broker takes part in forming a cluster of several, or joins one.
func (c *Config) forms() bool { return len(c.Join) > 0 || c.BootstrapExpect > 1 || c.Replace >= 0 }

// TLS says whether any listener shows a certificate.
func (c *Config) TLS() bool {
	return c.Peers != nil && c.Peers.TLS != nil || slices.ContainsFunc(c.Listeners, func(l transport.ListenerConfig) bool { return l.TLS != nil })
}

// foreignPeer is a broker of another cluster that was met in gossip.
type foreignPeer struct {
	cluster string
	gossip  netip.AddrPort
}

// openPeers opens the listener for other brokers. Until the cluster is known it takes only calls about forming one.
func (b *Broker) openPeers(context.Context) error {
	p := b.cfg.Peers
	if p == nil {
		return nil
	}
	b.setIdentity("", metadata.NoBroker)
	if b.meta != nil {
		b.setIdentity(b.meta.clusterID, b.meta.nodeID)
	}
	cfg := peer.Default()
	if p.Name != "" {
		cfg.Name = p.Name
	}
	cfg.Listener = p.Listener
	if cfg.Listener == nil {
		listener, err := net.Listen("tcp", p.Bind)
		if err != nil {
			return PortError("listener "+cfg.Name, p.Bind, err)
		}
		cfg.Listener = listener
	}
	if host, port, err := net.SplitHostPort(p.Advertised); err == nil {
		if tcp, ok := cfg.Listener.Addr().(*net.TCPAddr); ok && port == "0" {
			port = strconv.Itoa(tcp.Port)
		}
		cfg.Advertised = net.JoinHostPort(host, port)
	} else if tcp, ok := cfg.Listener.Addr().(*net.TCPAddr); ok {
		cfg.Advertised = net.JoinHostPort(advertisedHost(tcp.IP.String(), ""), strconv.Itoa(tcp.Port))
	}
	cfg.TLS = p.TLS
	cfg.Identity = func() peer.Identity { return *b.identity.Load() }
	cfg.Address = b.peerAddress
	cfg.Admit = b.admitPeer
	cfg.RaftServer = b.checkRaftServer
	cfg.Broken = func(id metadata.BrokerID, incarnation [16]byte, reason string) {
		if store := b.member.Load(); store != nil {
			store.Suspect(id, incarnation, reason)
		}
	}
	cfg.Version = b.cfg.Version
	cfg.Logger = b.logger.With("part", "peer")
	cfg.Registerer = b.registry
	peers, err := peer.New(cfg)
	if err != nil {
		return errors.Join(fmt.Errorf("open the listener for other brokers: %w", err), cfg.Listener.Close())
	}
	b.peers = peers
	return nil
}

// ReloadTLS reads the certificates of all listeners again, now; they are also read when their files change. Connections
// that exist stay. With an error the old certificates of that listener are still used. It may be called once Ready.
func (b *Broker) ReloadTLS() error {
	err := b.transport.ReloadTLS()
	if b.peers != nil {
		err = errors.Join(err, b.peers.ReloadTLS())
	}
	return err
}

func (b *Broker) closePeers(ctx context.Context) error {
	if b.peers == nil {
		return nil
	}
	err := b.peers.Close(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil // calls under way were cut off: their callers try again elsewhere
	}
	return err
}

// setIdentity sets who this process says it is on connections between brokers.
func (b *Broker) setIdentity(cluster string, node metadata.BrokerID) {
	id := peer.Identity{ClusterID: cluster, Node: node, Incarnation: b.incarnation}
	if b.dir != nil {
		id.Directory = b.dir.ID()
	}
	b.identity.Store(&id)
}

// peerAddress says where a broker is reached: by the metadata, else by gossip.
func (b *Broker) peerAddress(id metadata.BrokerID) string {
	if store := b.metadataStore.Load(); store != nil {
		if found := store.Image().Broker(id); found != nil && found.PeerAddress != "" {
			return found.PeerAddress
		}
	}
	if b.gossip != nil {
		for _, n := range b.neighbours() {
			if n.node == id && n.cluster != "" {
				return n.address
			}
		}
	}
	return ""
}

// raftAddress says where the Raft server of a broker with that directory is now: by gossip, else by the configuration.
func (b *Broker) raftAddress(id metadata.BrokerID, dir metadata.DirectoryID) string {
	if id == b.nodeID && dir == b.dir.ID() {
		return b.peers.Advertised()
	}
	if address := b.gossipAddress(id, dir); address != "" {
		return address
	}
	if store := b.metadataStore.Load(); store != nil {
		for _, server := range store.Servers() {
			if server.ID == id && server.Directory == dir {
				return server.Address
			}
		}
	}
	return ""
}

func (b *Broker) gossipAddress(id metadata.BrokerID, dir metadata.DirectoryID) string {
	for _, n := range b.neighbours() {
		if n.directory == dir && n.node == id {
			return n.address
		}
	}
	return ""
}

// admitPeer refuses a broker that was removed from the cluster and came back (M14).
func (b *Broker) admitPeer(from peer.From) error {
	store := b.metadataStore.Load()
	if store == nil || from.ClusterID == "" || !store.Image().Removed(from.Directory) {
		return nil
	}
	return removedError(from.Node)
}

func removedError(id metadata.BrokerID) error {
	return &metadata.Error{
		Kind: metadata.ErrRemoved,
		What: fmt.Sprintf("broker %d was removed from the cluster", id),
		Why:  "an operator removed it, or gave its place to another with --replace; its data directory can't come back",
		Fix:  "start it with an empty data directory: it then joins as a new broker",
	}
}

// checkRaftServer keeps Raft from talking to a process that stands at the address of another server (M14).
func (b *Broker) checkRaftServer(address string, node metadata.BrokerID, dir metadata.DirectoryID) error {
	store := b.metadataStore.Load()
	if store == nil {
		return nil
	}
	for _, server := range store.Servers() {
		if server.Address == address && (server.ID != node || server.Directory != dir) && b.gossipAddress(node, dir) != address {
			return &metadata.Error{
				Kind: metadata.ErrUnknownBroker,
				What: fmt.Sprintf("broker %d is not at %s", server.ID, address),
				Why:  fmt.Sprintf("broker %d is there, with another data directory", node),
				Fix:  "none is needed if a broker has just moved; else give each broker an address of its own",
			}
		}
	}
	return nil
}

// openGossip opens the gossip port and starts to look for others.
func (b *Broker) openGossip(context.Context) error {
	if b.peers == nil {
		return nil
	}
	p := b.cfg.Peers
	self := b.gossipMeta()
	meta, err := self.encode()
	if err != nil {
		return fmt.Errorf("open gossip: %w", err)
	}
	host, _, err := net.SplitHostPort(b.peers.Advertised())
	if err != nil {
		return fmt.Errorf("open gossip: %w", err)
	}
	cfg := membership.Config{
		Name: directoryIDText(b.dir.ID()), Bind: p.GossipBind, Advertise: p.GossipAdvertise, Keys: p.GossipKeys,
		Meta: meta, Join: b.cfg.Join, Admit: b.admitMember, Logger: b.logger.With("part", "gossip"),
	}
	if bound, _, err := net.SplitHostPort(cfg.Bind); err == nil && cfg.Advertise == "" && everywhere(bound) {
		cfg.Advertise = host
	}
	gossip, err := membership.Open(cfg)
	if err != nil {
		if _, ok := errors.AsType[*net.OpError](err); ok {
			return PortError("millrace.gossip.listener", p.GossipBind, err)
		}
		return fmt.Errorf("open gossip: %w", err)
	}
	b.gossip = gossip
	state := b.granted
	candidate := candidate{
		directory: b.dir.ID(), gossip: gossip.Self().Addr, address: b.peers.Advertised(), node: b.cfg.NodeID, expect: self.expect, joining: self.joining,
	}
	core := newFormation(candidate, state, randomID, newClusterID)
	if b.meta != nil {
		core.over, core.cluster = true, b.meta.clusterID
	}
	b.forming = newForming(b, core)
	b.forming.serve()
	b.watching.Go(b.watchGossip)
	return nil
}

func (b *Broker) closeGossip(ctx context.Context) error {
	if b.gossip == nil {
		return nil
	}
	var leave error
	if b.failure() == nil {
		leave = b.gossip.Leave(ctx)
	}
	b.endLife()
	b.forming.close()
	err := b.gossip.Close()
	b.watching.Wait()
	if leave != nil {
		b.logger.Debug("gossip was not told of the stop", "error", leave)
	}
	return err
}

// gossipMeta is what this broker says of itself now.
func (b *Broker) gossipMeta() gossipMeta {
	id := b.identity.Load()
	m := gossipMeta{
		cluster: id.ClusterID, node: id.Node, directory: b.dir.ID(), incarnation: b.incarnation,
		expect: b.cfg.BootstrapExpect, address: b.peers.Advertised(), member: b.member.Load() != nil,
	}
	if m.node < 0 {
		m.node = b.cfg.NodeID
	}
	// A broker whose directory has metadata of a cluster that it does not know the id of yet takes no part in forming one.
	m.joining = m.expect < 2 || b.granted.Joined != nil || b.hasRaft && !b.granted.Decided || b.cfg.Replace >= 0
	return m
}

// tellGossip tells the others what has changed about this broker.
func (b *Broker) tellGossip() error {
	if b.gossip == nil {
		return nil
	}
	m := b.gossipMeta()
	meta, err := m.encode()
	if err != nil {
		return err
	}
	return b.gossip.UpdateMeta(meta)
}

// admitMember keeps brokers of other clusters, and what is no broker, out of gossip.
func (b *Broker) admitMember(m membership.Member) error {
	n, err := readNeighbour(m)
	if err != nil {
		return fmt.Errorf("%s: %w", m.Addr, err)
	}
	own := b.identity.Load().ClusterID
	if own == "" || n.cluster == "" || n.cluster == own {
		return nil
	}
	b.foreign.Store(&foreignPeer{cluster: n.cluster, gossip: n.gossip})
	return &metadata.Error{
		Kind: metadata.ErrClusterMismatch,
		What: fmt.Sprintf("%s is of cluster %s, this broker of cluster %s", n.gossip, n.cluster, own),
		Why:  "brokers of two clusters met in gossip",
		Fix:  "check --join (millrace.join) of both",
	}
}

// watchGossip turns what gossip says into what it is good for: a new view for the formation, a hint for the controller.
func (b *Broker) watchGossip() {
	for e := range b.gossip.Events() {
		select {
		case b.seen <- struct{}{}:
		default:
		}
		n, err := readNeighbour(e.Member)
		if err != nil {
			continue
		}
		switch e.Kind {
		case membership.Clash:
			b.watching.Go(func() { b.clash(n) })
		case membership.Fail, membership.Leave:
			b.logger.Info("broker gone from gossip", "node", n.node, "address", n.gossip, "how", e.Kind.String())
			if store := b.member.Load(); store != nil && n.node >= 0 {
				store.Suspect(n.node, n.incarnation, "gossip: "+e.Kind.String())
			}
		case membership.Join:
			b.logger.Info("broker seen in gossip", "node", n.node, "address", n.gossip)
		}
	}
}

// clash settles that two processes use one data directory or its copy: the newcomer ends (M13). The other one is asked
// first, for it may be this broker's own past, not yet noticed to be dead.
func (b *Broker) clash(other neighbour) {
	ctx, cancel := context.WithTimeout(context.Background(), formationCall)
	defer cancel()
	_, err := b.peers.Call(ctx, other.address, methodFate, []byte("{}"))
	if !errors.Is(err, metadata.ErrDuplicateBroker) {
		return // nobody, or somebody else, is there
	}
	mine := b.member.Load() != nil
	if mine && !other.member || mine == other.member && lessID(b.incarnation, other.incarnation) {
		b.logger.Error("another process runs on a copy of this broker's data directory", "address", other.address)
		return
	}
	b.fail("the start", b.cloned(other.address))
}

func (b *Broker) cloned(address string) error {
	return dataError(fmt.Sprintf("the data directory %s is a copy of one in use", b.cfg.DataDir),
		fmt.Sprintf("the process at %s has a directory with the same id", address),
		"stop one of the two for good; a new broker starts with an empty --data")
}

func lessID(a, b [16]byte) bool { return string(a[:]) < string(b[:]) }

// moved is asked before Raft starts when its configuration has this broker at another address: if a process with this
// broker's directory answers there, this one is the copy (M13).
func (b *Broker) moved(from string) error {
	ctx, cancel := context.WithTimeout(context.Background(), formationCall)
	defer cancel()
	if _, _, err := net.SplitHostPort(from); err != nil {
		return nil // "local", or gone: no address
	}
	if _, err := b.peers.Call(ctx, from, methodFate, []byte("{}")); errors.Is(err, metadata.ErrDuplicateBroker) {
		return b.cloned(from)
	}
	return nil
}

// enter makes this broker's server part of the quorum where it is not yet, or not at its present address. Entries arrive
// once it is.
func (b *Broker) enterQuorum(ctx context.Context) error {
	if b.peers == nil {
		return nil
	}
	self := metadata.Server{ID: b.nodeID, Directory: b.dir.ID(), Address: b.peers.Advertised()}
	if b.bootstrap != nil {
		return b.electFirst(ctx)
	}
	known := false
	for _, server := range b.store.Servers() {
		if server == self {
			return nil
		}
		known = known || server.ID == self.ID && server.Directory == self.Directory
	}
	if known {
		// It is reached by the address in gossip; the configuration follows when the quorum works again.
		b.watching.Go(func() { b.changeAddress(self) })
		return nil
	}
	if !b.entering {
		return nil // formed with the cluster: the first leader has it on its list
	}
	return b.untilDone(ctx, "waiting to be added to the metadata quorum", func(ctx context.Context, address string) error {
		return callJSON(ctx, b.peers, address, methodEnter, self, nil)
	})
}

// changeAddress tells the quorum this broker's present address, until it knows.
func (b *Broker) changeAddress(self metadata.Server) {
	for b.life.Err() == nil {
		ctx, cancel := context.WithTimeout(b.life, 2*formationCall)
		err := b.store.AddServer(ctx, self)
		cancel()
		if err == nil {
			b.logger.Info("the metadata quorum knows this broker's new address", "address", self.Address)
			return
		}
		b.logger.Warn("the metadata quorum does not know this broker's new address yet", "address", self.Address, "error", err)
		select {
		case <-time.After(formationCall):
		case <-b.life.Done():
		}
	}
}

// electFirst lets this broker, which has bootstrapped the cluster, lead it as soon as the others have opened their
// stores; they ask for the outcome of the proposal, which they hear as soon as it is decided.
func (b *Broker) electFirst(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, firstElectionWait)
	defer cancel()
	for {
		open := 0
		for _, m := range b.bootstrap {
			if m.Directory == b.dir.ID() {
				open++
				continue
			}
			var ready bool
			bounded, cancel := context.WithTimeout(ctx, formationCall)
			err := callJSON(bounded, b.peers, m.Address, methodOpened, struct{}{}, &ready)
			cancel()
			if err == nil && ready {
				open++
			}
		}
		if 2*open > len(b.bootstrap) {
			b.store.Elect()
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return nil // the election timeout has long held one
		}
	}
}

// firstElectionWait bounds how long electFirst waits.
const firstElectionWait = 2 * time.Second
