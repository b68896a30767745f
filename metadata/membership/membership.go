package membership

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// MetaMaxBytes is the longest Meta.
const MetaMaxBytes = memberlist.MetaMaxSize - 1

// The pace of gossip: a dead member is noticed in about a second, among three members or twenty, and a loaded machine
// throws nobody out. LAN settings would take seven (dataplane.md 11).
const (
	probeInterval      = 200 * time.Millisecond
	probeTimeout       = 150 * time.Millisecond
	suspicionMult      = 3
	suspicionMaxMult   = 3
	retransmitMult     = 6                      // a few of what is sent go to the source itself, in answers: 12 messages reach nine others
	gossipInterval     = 200 * time.Millisecond // and news at hasteInterval
	pushPullInterval   = 3 * time.Second
	streamTimeout      = 3 * time.Second
	gossipToTheDead    = 30 * time.Second
	deadNameReclaim    = time.Millisecond
	updateBroadcast    = 200 * time.Millisecond
	defaultLeaveWait   = time.Second
	defaultGossipPort  = 9094
	metaFlagLeaving    = 1
	metaFlagPositionIn = 0
)

// Config says how to open a Membership.
type Config struct {
	// Name is this member's, unique among all of them: two processes that claim one name clash.
	Name string
	// Bind is the address to listen on, host:port, TCP and UDP; port 0 takes a free one.
	Bind string
	// Advertise is the address that others are told, host or host:port. "" is the bound address. A name is resolved once.
	Advertise string
	// Keys encrypt and authenticate all gossip: the first encrypts, each decrypts. None = plain. See ParseKeys.
	Keys [][]byte
	// Meta is what this member says of itself at first, at most MetaMaxBytes.
	Meta []byte
	// Join are addresses to find others at, host or host:port (port 9094). They are tried until somebody answers there,
	// and again whenever nobody does any more. This member's own address may be among them.
	Join []string
	// Admit says whether a member may be known here; an error keeps it out, and everything it says of others too. It is
	// called with locks held and must not block or call the Membership. Nil admits everyone.
	Admit func(Member) error
	// Logger gets this package's and memberlist's messages. Nil = none.
	Logger *slog.Logger
	// Transport replaces the network; Bind is then not used. For tests.
	Transport memberlist.Transport
}

// Member is one process that takes part in gossip.
type Member struct {
	Name string
	// Addr is where it gossips.
	Addr netip.AddrPort
	// Meta is what it says of itself; the receiver must not change it.
	Meta []byte
}

// Membership is this process's part in gossip. All methods may be called from any goroutine.
type Membership struct {
	cfg    Config
	logger *slog.Logger
	list   *memberlist.Memberlist
	known  members
	events *events
	seeds  *seeds

	meta struct {
		sync.Mutex
		bytes []byte // with the leading byte of flags
	}
	news     chan struct{} // holds one token while there is news to tell
	quiet    atomic.Bool
	updating sync.Mutex // one UpdateMeta at a time, so that the last one told is the last one set
	stop     context.CancelFunc
	running  sync.WaitGroup
	closing  sync.Once
	closed   error
}

// Open opens the port and starts to look for others. Errors of the port match syscall.EADDRINUSE and the like.
func Open(cfg Config) (_ *Membership, err error) {
	if cfg.Name == "" || len(cfg.Name) > 128 {
		return nil, fmt.Errorf("membership config: the name %q is empty or longer than 128 bytes", cfg.Name)
	}
	if len(cfg.Meta) > MetaMaxBytes {
		return nil, fmt.Errorf("membership config: meta has %d bytes, at most %d fit", len(cfg.Meta), MetaMaxBytes)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	m := &Membership{cfg: cfg, logger: cfg.Logger, events: newEvents(), news: make(chan struct{}, 1)}
	m.meta.bytes = append([]byte{0}, cfg.Meta...)

	transport := cfg.Transport
	if transport == nil {
		n, err := listen(cfg.Bind, cfg.Logger, len(cfg.Keys) > 0)
		if err != nil {
			return nil, err
		}
		transport = n
	}
	advertise, err := advertised(cfg.Advertise, transport)
	if err != nil {
		return nil, errors.Join(err, transport.Shutdown())
	}
	mc := memberlist.DefaultLANConfig()
	mc.Name = cfg.Name
	mc.Transport = heeding{transport, m.hurry}
	mc.BindPort = defaultGossipPort // only read for members of ancient protocols, which have no port
	if advertise.IsValid() {
		mc.AdvertiseAddr, mc.AdvertisePort = advertise.Addr().String(), int(advertise.Port())
	}
	mc.ProbeInterval, mc.ProbeTimeout = probeInterval, probeTimeout
	mc.SuspicionMult, mc.SuspicionMaxTimeoutMult = suspicionMult, suspicionMaxMult
	mc.RetransmitMult = retransmitMult
	mc.GossipInterval, mc.GossipToTheDeadTime = gossipInterval, gossipToTheDead
	mc.PushPullInterval = pushPullInterval
	mc.TCPTimeout = streamTimeout
	mc.DeadNodeReclaimTime = deadNameReclaim
	mc.EnableCompression = false // see plausible
	mc.LogOutput = nil
	// The logger type that memberlist wants, without naming its package.
	mc.Logger = slog.NewLogLogger(&memberlistHandler{next: cfg.Logger.Handler(), quiet: &m.quiet}, slog.LevelWarn)
	mc.DelegateProtocolMin, mc.DelegateProtocolMax, mc.DelegateProtocolVersion = 1, 1, 1
	d := &delegate{m: m}
	mc.Delegate, mc.Events, mc.Conflict, mc.Alive, mc.Merge = d, d, d, d, d
	if len(cfg.Keys) > 0 {
		ring, err := memberlist.NewKeyring(cfg.Keys, cfg.Keys[0])
		if err != nil {
			return nil, errors.Join(fmt.Errorf("use the gossip key: %w", err), transport.Shutdown())
		}
		mc.Keyring = ring
	}
	if m.list, err = memberlist.Create(mc); err != nil {
		return nil, errors.Join(fmt.Errorf("start gossip: %w", err), transport.Shutdown())
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.stop = cancel
	m.seeds = newSeeds(m, cfg.Join)
	m.running.Go(func() { m.events.deliver(ctx) })
	m.running.Go(func() { m.spread(ctx) })
	m.running.Go(func() { m.seeds.run(ctx) })
	return m, nil
}

// advertised resolves what others are told. The zero AddrPort leaves it to the transport.
func advertised(address string, transport memberlist.Transport) (netip.AddrPort, error) {
	if address == "" {
		return netip.AddrPort{}, nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		host, port = strings.Trim(address, "[]"), "0"
	}
	if port == "0" {
		_, bound, err := transport.FinalAdvertiseAddr("", 0)
		if err != nil {
			return netip.AddrPort{}, fmt.Errorf("find the gossip port: %w", err)
		}
		port = fmt.Sprint(bound)
	}
	ctx, cancel := context.WithTimeout(context.Background(), resolveTimeout)
	defer cancel()
	all, err := resolve(ctx, net.JoinHostPort(host, port))
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("resolve the advertised address of gossip: %w", err)
	}
	for _, a := range all {
		if a.Addr().Is4() {
			return a, nil
		}
	}
	return all[0], nil
}

// Events delivers what happens to other members. It is closed by Close.
func (m *Membership) Events() <-chan Event { return m.events.c }

// Self returns this member as others see it.
func (m *Membership) Self() Member { return m.known.own() }

// Members returns the other members that are alive, by name.
func (m *Membership) Members() []Member { return m.known.list() }

// Seeds returns how the addresses of Config.Join stand, in their order.
func (m *Membership) Seeds() []Seed { return m.seeds.list() }

// Retry tries absent seeds now instead of at their next turn.
func (m *Membership) Retry() { m.seeds.wake() }

// UpdateMeta replaces what this member says of itself and tells the others. It waits a moment for the first of them to be
// told; the rest follow by gossip.
func (m *Membership) UpdateMeta(meta []byte) error {
	if len(meta) > MetaMaxBytes {
		return fmt.Errorf("gossip meta has %d bytes, at most %d fit", len(meta), MetaMaxBytes)
	}
	m.updating.Lock()
	defer m.updating.Unlock()
	m.meta.Lock()
	m.meta.bytes = append([]byte{m.meta.bytes[metaFlagPositionIn]}, meta...)
	m.meta.Unlock()
	m.update()
	return nil
}

// update re-announces this member. Its only error is that nobody was told in time, and then gossip goes on telling.
func (m *Membership) update() { _ = m.list.UpdateNode(updateBroadcast) }

// Leave tells the others that this member goes on purpose, until ctx ends or somebody was told. Close follows.
func (m *Membership) Leave(ctx context.Context) error {
	m.updating.Lock()
	defer m.updating.Unlock()
	m.meta.Lock()
	m.meta.bytes = slices.Clone(m.meta.bytes)
	m.meta.bytes[metaFlagPositionIn] |= metaFlagLeaving
	m.meta.Unlock()
	m.update()
	wait := defaultLeaveWait
	if deadline, ok := ctx.Deadline(); ok {
		wait = max(min(wait, time.Until(deadline)), time.Millisecond)
	}
	if err := m.list.Leave(wait); err != nil {
		return fmt.Errorf("leave gossip: %w", err)
	}
	return nil
}

// Close closes the port. The others notice the silence, unless Leave told them.
func (m *Membership) Close() error {
	m.closing.Do(func() {
		m.stop()
		m.quiet.Store(true)
		m.closed = m.list.Shutdown()
		m.running.Wait()
	})
	return m.closed
}

var _ io.Closer = (*Membership)(nil)
