package kafka

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/transport"
)

// maxCreations bounds the topics that are being created on demand at the same
// time. Further ones wait for the client to ask again, which it does.
const maxCreations = 64

// topicCreator creates topics that clients ask for before anyone made them
// (auto.create.topics.enable), each once however many clients ask.
type topicCreator struct {
	h  *Handlers
	mu struct {
		sync.Mutex
		underway map[string]struct{}
	}
}

func (t *topicCreator) init(h *Handlers) {
	t.h = h
	t.mu.underway = map[string]struct{}{}
}

// create starts the creation of a topic and returns at once.
func (t *topicCreator) create(name string, req *transport.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, already := t.mu.underway[name]; already || len(t.mu.underway) >= maxCreations || t.h.ctx.Err() != nil {
		return
	}
	t.mu.underway[name] = struct{}{}
	logger := t.h.logger.With("topic", name, "client", req.ClientID, "address", req.Conn.RemoteAddr())
	t.h.work.Go(func() {
		t.run(name, logger)
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.mu.underway, name)
	})
}

func (t *topicCreator) run(name string, logger *slog.Logger) {
	ctx, cancel := context.WithTimeout(t.h.ctx, t.h.cfg.AdminTimeout)
	defer cancel()
	result := t.h.cfg.Store.CreateTopics(ctx, []metadata.NewTopic{{Name: name, Partitions: -1, ReplicationFactor: -1}}, false)[0]
	switch {
	case result.Err == nil:
		logger.Info("created a topic because a client asked for it", "partitions", result.Partitions, "replication", result.ReplicationFactor)
	case errors.Is(result.Err, metadata.ErrTopicExists): // somebody was faster
	default:
		logger.Warn("could not create the topic that a client asked for", "error", result.Err)
	}
}

// stop waits out a create under way in another goroutine; after it, none starts.
// The handlers' context has ended.
func (t *topicCreator) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
}

// validTopicName reports whether a topic may have this name: 1 to 249 of
// letters, digits, dot, underscore and dash, and not "." or "..".
func validTopicName(name string) bool {
	if name == "" || len(name) > maxTopicName || name == "." || name == ".." {
		return false
	}
	for i := range len(name) {
		switch b := name[i]; {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9', b == '.', b == '_', b == '-':
		default:
			return false
		}
	}
	return true
}
