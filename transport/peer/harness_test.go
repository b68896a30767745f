package peer

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

// testDeadline bounds every wait of a test that is not about time.
const testDeadline = 20 * time.Second

// testPeer is one broker's end in this process.
type testPeer struct {
	*Peers
	t   testing.TB
	log *logBuffer

	mu struct {
		sync.Mutex
		id     Identity
		broken []metadata.BrokerID
		others map[metadata.BrokerID]*testPeer
	}
}

// logBuffer gathers log lines.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// count is how often the text was logged.
func (l *logBuffer) count(text string) int { return bytes.Count([]byte(l.String()), []byte(text)) }

func identity(cluster string, node int) Identity {
	id := Identity{ClusterID: cluster, Node: metadata.BrokerID(node)}
	id.Directory[0], id.Incarnation[0] = byte(node+1), byte(node+101)
	return id
}

// start starts a broker's end; edit may change its configuration.
func start(t testing.TB, id Identity, edit ...func(*Config)) *testPeer {
	t.Helper()
	p := &testPeer{t: t, log: &logBuffer{}}
	p.mu.id = id
	p.mu.others = map[metadata.BrokerID]*testPeer{}
	cfg := Default()
	cfg.Bind = "127.0.0.1:0"
	cfg.Version = "1.2.3"
	cfg.Logger = slog.New(slog.NewTextHandler(p.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	cfg.Identity = func() Identity {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.mu.id
	}
	cfg.Address = func(id metadata.BrokerID) string {
		p.mu.Lock()
		defer p.mu.Unlock()
		if other := p.mu.others[id]; other != nil {
			return other.Advertised()
		}
		return ""
	}
	cfg.Broken = func(id metadata.BrokerID, _ [16]byte, _ string) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.mu.broken = append(p.mu.broken, id)
	}
	for _, e := range edit {
		e(&cfg)
	}
	var err error
	p.Peers, err = New(cfg)
	require.NoError(t, err)
	t.Cleanup(p.stop)
	return p
}

func (p *testPeer) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), testDeadline)
	defer cancel()
	require.NoError(p.t, p.Peers.Close(ctx))
}

// knows makes the others' addresses known.
func (p *testPeer) knows(others ...*testPeer) *testPeer {
	for _, o := range others {
		id := o.cfg.Identity().Node
		p.mu.Lock()
		p.mu.others[id] = o
		p.mu.Unlock()
	}
	return p
}

func (p *testPeer) become(id Identity) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.id = id
}

func (p *testPeer) suspects(id metadata.BrokerID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.mu.broken {
		if b == id {
			return true
		}
	}
	return false
}

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testDeadline)
	t.Cleanup(cancel)
	return ctx
}
