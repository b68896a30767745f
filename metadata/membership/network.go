package membership

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// packetMax is the longest UDP packet that is read. Ours have at most memberlist's 1,400 bytes; one that is longer is
	// not ours.
	packetMax = 4096
	// receiveBuffer is what the kernel may hold of packets that wait.
	receiveBuffer = 2 << 20
	// maxStreams bounds the connections that are open from outside at a time. Each lives streamTimeout at most.
	maxStreams = 64
	// bindAttempts is how often a free port is looked for that TCP and UDP can both have.
	bindAttempts = 10
	// acceptPause is how long accepting rests after an error, such as too many open files.
	acceptPause = 50 * time.Millisecond
)

// network is one port, TCP and UDP.
type network struct {
	logger    *slog.Logger
	encrypted bool
	tcp       *net.TCPListener
	udp       *net.UDPConn
	packets   chan *memberlist.Packet
	streams   chan net.Conn
	slots     chan struct{} // one token per open connection from outside
	stop      chan struct{}
	stopping  sync.Once
	running   sync.WaitGroup
}

// listen opens the port. encrypted says that every packet is, so that none can be looked into.
func listen(bind string, logger *slog.Logger, encrypted bool) (*network, error) {
	n := &network{
		logger: logger, encrypted: encrypted,
		packets: make(chan *memberlist.Packet), streams: make(chan net.Conn), slots: make(chan struct{}, maxStreams), stop: make(chan struct{}),
	}
	address, err := net.ResolveTCPAddr("tcp", bind)
	if err != nil {
		return nil, fmt.Errorf("read the gossip address %q: %w", bind, err)
	}
	for attempt := 1; ; attempt++ {
		if n.tcp, err = net.ListenTCP("tcp", address); err != nil {
			return nil, fmt.Errorf("listen for gossip on %s: %w", bind, err)
		}
		port := n.tcp.Addr().(*net.TCPAddr).Port
		n.udp, err = net.ListenUDP("udp", &net.UDPAddr{IP: address.IP, Port: port, Zone: address.Zone})
		if err == nil {
			break
		}
		n.tcp.Close()
		if address.Port != 0 || attempt == bindAttempts || !errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("listen for gossip on %s: %w", bind, err)
		}
	}
	// Less is no failure: a packet that does not fit is a packet lost, and gossip lives with those.
	_ = n.udp.SetReadBuffer(receiveBuffer)
	n.running.Go(n.accept)
	n.running.Go(n.receive)
	return n, nil
}

// FinalAdvertiseAddr returns the configured address, else the bound one. Bound to all addresses, it is the one of the
// interface that leads out.
func (n *network) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	bound := n.tcp.Addr().(*net.TCPAddr)
	if ip != "" {
		parsed := net.ParseIP(ip)
		if parsed == nil {
			return nil, 0, fmt.Errorf("advertised gossip address %q is no IP address", ip)
		}
		if four := parsed.To4(); four != nil {
			parsed = four
		}
		return parsed, port, nil
	}
	host := bound.IP
	if host.IsUnspecified() {
		host = outwardIP()
	}
	if four := host.To4(); four != nil {
		host = four
	}
	return host, bound.Port, nil
}

// outwardIP is the address that this machine would send from. Connecting a UDP socket sends nothing.
func outwardIP() net.IP {
	for _, target := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		conn, err := net.Dial("udp", target)
		if err != nil {
			continue
		}
		local, ok := conn.LocalAddr().(*net.UDPAddr)
		conn.Close()
		if ok && !local.IP.IsUnspecified() {
			return local.IP
		}
	}
	return net.IPv4(127, 0, 0, 1)
}

func (n *network) WriteTo(b []byte, address string) (time.Time, error) {
	to, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return time.Time{}, err
	}
	_, err = n.udp.WriteTo(b, to)
	return time.Now(), err
}

func (n *network) WriteToAddress(b []byte, to memberlist.Address) (time.Time, error) {
	return n.WriteTo(b, to.Addr)
}

func (n *network) DialTimeout(address string, timeout time.Duration) (net.Conn, error) {
	return net.DialTimeout("tcp", address, timeout)
}

func (n *network) DialAddressTimeout(to memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return n.DialTimeout(to.Addr, timeout)
}

func (n *network) PacketCh() <-chan *memberlist.Packet { return n.packets }

func (n *network) StreamCh() <-chan net.Conn { return n.streams }

// Shutdown closes the port and waits for its readers.
func (n *network) Shutdown() error {
	n.stopping.Do(func() { close(n.stop) })
	err := errors.Join(n.tcp.Close(), n.udp.Close())
	n.running.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (n *network) accept() {
	for {
		select {
		case n.slots <- struct{}{}:
		case <-n.stop:
			return
		}
		conn, err := n.tcp.AcceptTCP()
		if err != nil {
			<-n.slots
			if !n.pause(err) {
				return
			}
			continue
		}
		select {
		case n.streams <- &stream{TCPConn: conn, release: sync.OnceFunc(func() { <-n.slots })}:
		case <-n.stop:
			conn.Close()
			return
		}
	}
}

// stream gives its slot back when it is closed. memberlist puts a deadline on it before it reads.
type stream struct {
	*net.TCPConn
	release func()
}

func (s *stream) Close() error {
	s.release()
	return s.TCPConn.Close()
}

// pause rests after an error of the port, and reports whether to go on.
func (n *network) pause(err error) bool {
	select {
	case <-n.stop:
		return false
	default:
	}
	if errors.Is(err, net.ErrClosed) {
		return false
	}
	n.logger.Warn("gossip port", "error", err)
	select {
	case <-time.After(acceptPause):
		return true
	case <-n.stop:
		return false
	}
}

func (n *network) receive() {
	buf := make([]byte, packetMax+1)
	for {
		size, from, err := n.udp.ReadFrom(buf)
		if err != nil {
			if !n.pause(err) {
				return
			}
			continue
		}
		now := time.Now()
		if size == 0 || size > packetMax || !n.encrypted && !plausible(buf[:size]) {
			continue
		}
		packet := &memberlist.Packet{Buf: append([]byte(nil), buf[:size]...), From: from, Timestamp: now}
		select {
		case n.packets <- packet:
		case <-n.stop:
			return
		}
	}
}

// Types of memberlist's messages that decide whether a packet is looked at (its net.go).
const (
	compoundMessage = 7
	compressMessage = 9
	crcMessage      = 12
	labelMessage    = 244
)

// plausible says whether an unencrypted packet can be from one of us. We never compress and put compound messages only at
// the top; a stranger's packet could otherwise unfold into gigabytes, level by level.
func plausible(b []byte) bool {
	if len(b) > 5 && b[0] == crcMessage {
		b = b[5:]
	}
	if b[0] != compoundMessage {
		return single(b[0])
	}
	if len(b) < 2 {
		return false
	}
	count := int(b[1])
	rest := b[2:]
	if len(rest) < 2*count {
		return false
	}
	lengths, parts := rest[:2*count], rest[2*count:]
	for i := range count {
		size := int(lengths[2*i])<<8 | int(lengths[2*i+1])
		if size == 0 || size > len(parts) || parts[0] == compoundMessage || !single(parts[0]) {
			return false
		}
		parts = parts[size:]
	}
	return true
}

// single says whether a message of this type may stand alone or in a compound one.
func single(kind byte) bool {
	return kind != compressMessage && kind != crcMessage && kind != labelMessage
}
