package kafka

import (
	"context"
	"errors"
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
	_, already := t.mu.underway[name]
	start := !already && len(t.mu.underway) < maxCreations && t.h.ctx.Err() == nil
	if start {
		t.mu.underway[name] = struct{}{}
	}
	t.mu.Unlock()
	if !start {
		return
	}
	logger := t.h.logger.With("topic", name, "client", req.ClientID, "address", req.Conn.RemoteAddr())
	run := func() {
		defer func() {
			t.mu.Lock()
			delete(t.mu.underway, name)
			t.mu.Unlock()
		}()
		ctx, cancel := context.WithTimeout(t.h.ctx, t.h.cfg.AdminTimeout)
		defer cancel()
		result := t.h.cfg.Store.CreateTopics(ctx, []metadata.NewTopic{{Name: name, Partitions: -1, ReplicationFactor: -1}}, false)
		switch err := result[0].Err; {
		case err == nil:
			logger.Info("created a topic because a client asked for it", "partitions", result[0].Partitions, "replication", result[0].ReplicationFactor)
		case errors.Is(err, metadata.ErrTopicExists):
		default:
			logger.Warn("could not create the topic that a client asked for", "error", err)
		}
	}
	t.h.work.Go(run)
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
