package peer

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/transport"
)

// connect connects to the address, with TLS if that is configured.
func (p *Peers) connect(ctx context.Context, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("connect to %q: %w: %w", address, ErrUnreachable, err)
	}
	conn, err := p.cfg.Dial(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	if p.tls == nil {
		return conn, nil
	}
	t := tls.Client(conn, p.tls.Config(host, p.cfg.TLS.AnyName))
	if err := t.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		var plain tls.RecordHeaderError
		if errors.As(err, &plain) {
			err = &metadata.Error{
				Kind: ErrRefused, What: fmt.Sprintf("%s does not speak TLS", address), Why: "TLS between brokers is on here and off there",
				Fix: "switch it on at all brokers, or at none",
			}
		} else if cert := transport.RefusedCertificate(err); cert != "" {
			err = &metadata.Error{
				Kind: ErrRefused, What: fmt.Sprintf("the certificate of %s is not trusted here: %s", address, cert), Why: err.Error(),
				Fix: "give all brokers certificates of one authority, for the names that they advertise; ssl.truststore.location names the authorities",
			}
		}
		return nil, fmt.Errorf("%w: TLS with %s: %w", ErrUnreachable, address, err)
	}
	return t, nil
}

func (p *Peers) ownHello(what purpose) hello {
	return hello{Protocol: helloProtocol, Purpose: what, identityText: textOf(p.cfg.Identity()), Address: p.advertised, Version: p.cfg.Version}
}

// open connects, says hello on a connection for requests and reads the answer, all until ctx ends. want is nil when it
// matters not who answers.
func (p *Peers) open(ctx context.Context, address string, what purpose, want *metadata.BrokerID) (net.Conn, Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.DialTimeout)
	defer cancel()
	conn, err := p.connect(ctx, address)
	if err != nil {
		return nil, Identity{}, err
	}
	id, err := p.greetRequests(ctx, conn, address, what, want)
	if err != nil {
		_ = conn.Close()
		return nil, Identity{}, err
	}
	return conn, id, nil
}

func (p *Peers) greetRequests(ctx context.Context, conn net.Conn, address string, what purpose, want *metadata.BrokerID) (Identity, error) {
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return Identity{}, fmt.Errorf("hello to %s: %w: %w", address, ErrUnreachable, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	frame := appendRequest(nil, keyHello, 0, encode(p.ownHello(what)))
	if _, err := conn.Write(frame); err != nil {
		return Identity{}, fmt.Errorf("hello to %s: %w: %w", address, ErrUnreachable, err)
	}
	body, err := readSmallFrame(conn, maxHelloBytes)
	if err != nil {
		return Identity{}, p.noHello(address, err)
	}
	if len(body) < 4 {
		return Identity{}, p.noHello(address, io.ErrUnexpectedEOF)
	}
	id, err := p.greeted(body[4:], address, want)
	if err != nil {
		return id, err
	}
	if !stop() {
		return id, fmt.Errorf("hello to %s: %w: %w", address, ErrUnreachable, context.Cause(ctx))
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return id, fmt.Errorf("hello to %s: %w: %w", address, ErrUnreachable, err)
	}
	return id, nil
}

// greeted judges the answer to our hello. The other end has judged us; whose it is only we know.
func (p *Peers) greeted(reply []byte, address string, want *metadata.BrokerID) (Identity, error) {
	id, err := decodeReply(reply)
	if err != nil {
		return id, fmt.Errorf("%s: %w: %w", address, ErrRefused, err)
	}
	own := p.cfg.Identity()
	if id.ClusterID != "" && own.ClusterID != "" && id.ClusterID != own.ClusterID {
		return id, fmt.Errorf("%s: %w: %w", address, ErrRefused, &metadata.Error{
			Kind: metadata.ErrClusterMismatch, What: fmt.Sprintf("%s is of cluster %q, this broker of cluster %q", id.name(), id.ClusterID, own.ClusterID),
			Why: "the address leads to a broker of another cluster", Fix: "check --join (millrace.join) and the advertised addresses of the brokers",
		})
	}
	if want != nil && id.Node != *want {
		return id, fmt.Errorf("%s: %w: %w", address, ErrRefused, &metadata.Error{
			Kind: metadata.ErrUnknownBroker, What: fmt.Sprintf("at the address of broker %d there is %s", *want, id.name()),
			Why: "broker addresses were exchanged, or the metadata here is old", Fix: "none is needed if a broker has just moved; else check the advertised addresses",
		})
	}
	return id, nil
}

// noHello explains a connection that ended, or fell silent, where the answer to our hello should be.
func (p *Peers) noHello(address string, err error) error {
	if alert, ok := errors.AsType[*net.OpError](err); ok && alert.Op == "remote error" && p.tls != nil { // with TLS 1.3 it comes only now
		return fmt.Errorf("no hello from %s: %w: %w", address, ErrUnreachable, &metadata.Error{
			Kind: ErrRefused, What: fmt.Sprintf("%s refused this broker's certificate, %s", address, p.cfg.TLS.CertFile), Why: alert.Error(),
			Fix: "give all brokers certificates of one authority; ssl.truststore.location at the other broker names those it trusts",
		})
	}
	hint := ""
	if p.tls == nil && (errors.Is(err, io.EOF) || strings.Contains(err.Error(), "reset") || strings.Contains(err.Error(), "frame of")) {
		hint = " (is TLS between brokers on there, or is it another service's port?)"
	}
	return fmt.Errorf("no hello from %s%s: %w: %w", address, hint, ErrUnreachable, err)
}

// Probe says whether the process that is registered as b lives and answers, on a connection of its own and in one round
// trip: nil if so. The controller asks before it fences a broker (D5).
func (p *Peers) Probe(ctx context.Context, b *metadata.Broker) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.ProbeTimeout)
	defer cancel()
	p.metrics.probes.Add(1)
	address := p.cfg.Address(b.ID)
	if address == "" {
		return fmt.Errorf("probe broker %d: %w: its address is not known", b.ID, ErrUnreachable)
	}
	conn, id, err := p.open(ctx, address, forProbe, &b.ID)
	if err != nil {
		return fmt.Errorf("probe broker %d: %w", b.ID, err)
	}
	_ = conn.Close()
	if id.Incarnation != b.Incarnation {
		return fmt.Errorf("probe broker %d: %w: another process answers at %s, started since or a second one", b.ID, ErrRefused, address)
	}
	return nil
}

// appendRequest appends a whole request frame with header v1 and no client id.
func appendRequest(b []byte, key int16, correlationID int32, body ...[]byte) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(key))
	b = append(b, 0, 0) // version 0
	b = binary.BigEndian.AppendUint32(b, uint32(correlationID))
	b = append(b, 0xff, 0xff) // no client id
	for _, part := range body {
		b = append(b, part...)
	}
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start-4))
	return b
}

// backoff spaces attempts to connect: 10 ms after the first failure, doubled up to a second, each with some chance in it,
// so that brokers which lost the same one don't come back in step.
type backoff struct {
	mu    sync.Mutex
	fails int
	until time.Time
}

const (
	minBackoff = 10 * time.Millisecond
	maxBackoff = time.Second
)

// wait waits until the next attempt is due.
func (b *backoff) wait(ctx context.Context) error {
	b.mu.Lock()
	d := time.Until(b.until)
	b.mu.Unlock()
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// note takes in how an attempt ended.
func (b *backoff) note(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		b.fails, b.until = 0, time.Time{}
		return
	}
	d := min(minBackoff<<min(b.fails, 10), maxBackoff)
	b.fails++
	b.until = time.Now().Add(d/2 + rand.N(d))
}
