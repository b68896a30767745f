package proxy

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// dialPatience bounds the connection to the broker.
const dialPatience = 5 * time.Second

// lateAnswer bounds the wait for the answer to a request that was delivered late.
const lateAnswer = 5 * time.Second

// Verdict is what becomes of a frame. The zero Verdict lets it pass.
type Verdict struct {
	// Delay waits before anything else happens.
	Delay time.Duration
	// Hold waits until it is closed, after Delay.
	Hold <-chan struct{}
	// Drop loses the frame. The other side of a lost request waits for an answer that never comes.
	Drop bool
	// Cut breaks the connection, after the frame was forwarded, or lost if Drop is set.
	Cut bool
	// Late lets a request leave its connection: the client gets no answer, the frames behind it go on, and after Delay and
	// Hold the broker gets it on a connection of its own, whatever became of the client by then: what a network may do that
	// kept a packet back. It needs a listener without authentication.
	Late bool
	// LateAnswer gets what the broker answers to a late request, without its size; nil when the request or its answer was
	// lost. It must have room: nobody waits for a reader.
	LateAnswer chan<- []byte
}

// Rule looks at every frame and says what becomes of it. It is called from the connection's goroutine, and must not wait
// itself.
type Rule func(Frame) Verdict

// Proxy forwards connections to one address. All methods may be called from any goroutine.
type Proxy struct {
	listener net.Listener
	closed   chan struct{}
	running  sync.WaitGroup
	mu       struct {
		sync.Mutex
		upstream string
		rules    []*Rule
		conns    map[*link]struct{}
		accepted int
		refuse   bool
		paused   [2]chan struct{} // closed when the direction flows again; nil when it flows
	}
}

// Open listens on an address, such as 127.0.0.1:0, and forwards to upstream.
func Open(listen, upstream string) (*Proxy, error) {
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("open a proxy for %s: %w", upstream, err)
	}
	p := &Proxy{listener: listener, closed: make(chan struct{})}
	p.mu.upstream, p.mu.conns = upstream, map[*link]struct{}{}
	p.running.Go(p.accept)
	return p, nil
}

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Forward sends connections that are made from now on elsewhere.
func (p *Proxy) Forward(upstream string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.upstream = upstream
}

// Add has a rule look at the frames to come. The first rule that does not let a frame pass decides.
func (p *Proxy) Add(r Rule) (remove func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.rules = append(slices.Clone(p.mu.rules), &r)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.mu.rules = slices.DeleteFunc(slices.Clone(p.mu.rules), func(o *Rule) bool { return o == &r })
	}
}

// Pause stops the bytes of a direction, on all connections and those to come, as when the network loses every packet
// one way: both sides believe the connection to be alive. Resume lets them flow again, nothing was lost.
func (p *Proxy) Pause(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.paused[d] == nil {
		p.mu.paused[d] = make(chan struct{})
	}
}

// Resume undoes [Proxy.Pause].
func (p *Proxy) Resume(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.paused[d] != nil {
		close(p.mu.paused[d])
		p.mu.paused[d] = nil
	}
}

// Refuse closes connections as soon as they are made, from now on, or no longer.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.refuse = on
}

// Cut breaks all connections, with a reset where the system can.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.mu.conns {
		l.close()
	}
}

// Connections is the number of connections that are open now.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.conns)
}

// Close ends everything and waits for it.
func (p *Proxy) Close() error {
	err := p.listener.Close()
	close(p.closed)
	p.Cut()
	p.running.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.mu.Lock()
		refuse, upstream := p.mu.refuse, p.mu.upstream
		p.mu.accepted++
		l := &link{proxy: p, number: p.mu.accepted, upstream: upstream, client: client, over: make(chan struct{})}
		l.mu.asked = map[int32]Frame{}
		p.mu.Unlock()
		if refuse {
			reset(client)
			continue
		}
		p.running.Go(func() { p.serve(l, upstream) })
	}
}

func (p *Proxy) serve(l *link, upstream string) {
	broker, err := net.DialTimeout("tcp", upstream, dialPatience)
	if err != nil {
		reset(l.client)
		return
	}
	l.broker = broker
	p.mu.Lock()
	p.mu.conns[l] = struct{}{}
	p.mu.Unlock()
	select {
	case <-p.closed: // Close may have cut before this one was there
		l.close()
	default:
	}
	var both sync.WaitGroup
	both.Go(func() { l.pump(Request, l.client, l.broker) })
	both.Go(func() { l.pump(Answer, l.broker, l.client) })
	both.Wait()
	l.close()
	p.mu.Lock()
	delete(p.mu.conns, l)
	p.mu.Unlock()
}

// judge asks the rules.
func (p *Proxy) judge(f Frame) Verdict {
	p.mu.Lock()
	rules := p.mu.rules
	p.mu.Unlock()
	for _, r := range rules {
		if v := (*r)(f); v != (Verdict{}) {
			return v
		}
	}
	return Verdict{}
}

// late delivers a request on a connection of its own, once its verdict lets it.
func (p *Proxy) late(v Verdict, upstream string, payload []byte) {
	frame := appendFrame(nil, payload)
	p.running.Go(func() {
		answer := p.deliver(v, upstream, frame)
		if v.LateAnswer == nil {
			return
		}
		select {
		case v.LateAnswer <- answer:
		default:
		}
	})
}

// deliver waits for what a verdict waits for, and then sends a frame on a connection of its own. It returns the answer, nil if
// there is none.
func (p *Proxy) deliver(v Verdict, upstream string, frame []byte) []byte {
	timer := time.NewTimer(v.Delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.closed:
		return nil
	}
	if v.Hold != nil {
		select {
		case <-v.Hold:
		case <-p.closed:
			return nil
		}
	}
	broker, err := net.DialTimeout("tcp", upstream, dialPatience)
	if err != nil {
		return nil // it is lost after all
	}
	answered := make(chan struct{})
	defer close(answered)
	p.running.Go(func() {
		select {
		case <-p.closed:
		case <-answered:
		}
		_ = broker.Close()
	})
	if _, err := broker.Write(frame); err != nil {
		return nil
	}
	// Whoever waits for the answer is gone; it says that the broker is done with the request.
	_ = broker.SetReadDeadline(time.Now().Add(lateAnswer))
	answer, err := readFrame(bufio.NewReader(broker), nil)
	if err != nil {
		return nil
	}
	return answer
}

// link is one connection.
type link struct {
	proxy          *Proxy
	number         int
	upstream       string
	client, broker net.Conn
	over           chan struct{}
	once           sync.Once
	mu             struct {
		sync.Mutex
		asked map[int32]Frame // requests without an answer yet, by correlation id
	}
}

func (l *link) close() {
	l.once.Do(func() {
		close(l.over)
		reset(l.client)
		reset(l.broker)
	})
}

// reset closes a connection so that the other side learns of it at once.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// wait lets pass what a verdict asks to wait for; false: the connection is over.
func (l *link) wait(delay time.Duration, hold <-chan struct{}) bool {
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.over:
			return false
		}
	}
	if hold == nil {
		return true
	}
	select {
	case <-hold:
		return true
	case <-l.over:
		return false
	}
}

// flowing waits while a direction is paused.
func (l *link) flowing(d Direction) bool {
	for {
		l.proxy.mu.Lock()
		paused := l.proxy.mu.paused[d]
		l.proxy.mu.Unlock()
		if paused == nil {
			return true
		}
		if !l.wait(0, paused) {
			return false
		}
	}
}

// pump forwards one direction until either side ends.
func (l *link) pump(d Direction, from, to net.Conn) {
	defer l.close() // a half-closed Kafka connection is of no use
	in := bufio.NewReaderSize(from, 64<<10)
	first, err := in.Peek(1)
	if err != nil || !l.flowing(d) {
		return
	}
	if d == Answer {
		// What kind of connection it is shows in the client's first byte, which has arrived: a broker speaks second.
		l.mu.Lock()
		raft := l.mu.asked == nil
		l.mu.Unlock()
		if raft {
			l.bytes(d, in, to)
			return
		}
	} else if first[0] == 'R' {
		l.mu.Lock()
		l.mu.asked = nil
		l.mu.Unlock()
		l.bytes(d, in, to)
		return
	}
	var payload, out []byte
	for nth := 0; ; nth++ {
		if payload, err = readFrame(in, payload); err != nil {
			return
		}
		f := Frame{Direction: d, Conn: l.number, Nth: nth, Payload: payload, Key: -1}
		l.identify(&f)
		v := l.proxy.judge(f)
		if v.Late && d == Request {
			l.proxy.late(v, l.upstream, payload)
			continue
		}
		if !l.wait(v.Delay, v.Hold) || !l.flowing(d) {
			return
		}
		if !v.Drop {
			out = appendFrame(out[:0], payload)
			if _, err := to.Write(out); err != nil {
				return
			}
		}
		if v.Cut {
			return
		}
	}
}

// identify fills in whose frame it is.
func (l *link) identify(f *Frame) {
	if f.Direction == Request {
		f.parseRequest()
		l.mu.Lock()
		defer l.mu.Unlock()
		kept := *f
		kept.Payload = nil
		l.mu.asked[f.Correlation] = kept
		return
	}
	if len(f.Payload) < 4 {
		return
	}
	f.Correlation = int32(binary.BigEndian.Uint32(f.Payload))
	l.mu.Lock()
	defer l.mu.Unlock()
	if asked, ok := l.mu.asked[f.Correlation]; ok {
		delete(l.mu.asked, f.Correlation)
		f.Key, f.Version, f.ClientID = asked.Key, asked.Version, asked.ClientID
	}
}

// bytes forwards a stream that has no frames.
func (l *link) bytes(d Direction, in io.Reader, to io.Writer) {
	buf := make([]byte, 64<<10)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			if !l.flowing(d) {
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
