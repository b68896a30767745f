package membership

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// memberlist logs text with its level in front, and most of what it calls an error is a stranger's bytes. What it says is
// passed on at most as a warning, and no more than logBurst lines a second: whoever floods the port must not flood the
// log.
const logBurst = 5

// memberlistHandler turns memberlist's lines into records of the next handler.
type memberlistHandler struct {
	next  slog.Handler
	quiet *atomic.Bool // the port is closed: what fails now has a reason
	mu    struct {
		sync.Mutex
		second  time.Time // the start of the present second
		lines   int       // passed on in it
		dropped int       // since the last that was passed on
	}
}

func (h *memberlistHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h *memberlistHandler) Handle(ctx context.Context, r slog.Record) error {
	level, text := slog.LevelWarn, r.Message
	for prefix, l := range map[string]slog.Level{
		"[DEBUG] ": slog.LevelDebug - 4, "[INFO] ": slog.LevelDebug, "[WARN] ": slog.LevelDebug, "[ERR] ": slog.LevelWarn, "[ERROR] ": slog.LevelWarn,
	} {
		if rest, ok := strings.CutPrefix(text, prefix); ok {
			level, text = l, rest
			break
		}
	}
	text = strings.TrimPrefix(text, "memberlist: ")
	if !h.next.Enabled(ctx, level) || h.quiet.Load() {
		return nil
	}
	dropped, ok := h.pass(r.Time)
	if !ok {
		return nil
	}
	out := slog.NewRecord(r.Time, level, "gossip", r.PC)
	out.AddAttrs(slog.String("detail", printable(text)))
	if dropped > 0 {
		out.AddAttrs(slog.Int("dropped", dropped))
	}
	return h.next.Handle(ctx, out)
}

// pass says whether a line may be logged now, and how many were not before it.
func (h *memberlistHandler) pass(now time.Time) (dropped int, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Sub(h.mu.second) >= time.Second || now.Before(h.mu.second) {
		h.mu.second, h.mu.lines = now, 0
	}
	if h.mu.lines == logBurst {
		h.mu.dropped++
		return 0, false
	}
	h.mu.lines++
	dropped, h.mu.dropped = h.mu.dropped, 0
	return dropped, true
}

// printable keeps a stranger's bytes from drawing on a terminal, and a line short.
func printable(text string) string {
	const longest = 400
	if len(text) > longest {
		text = text[:longest] + "…"
	}
	quoted := fmt.Sprintf("%q", text)
	return quoted[1 : len(quoted)-1]
}

func (h *memberlistHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &memberlistHandler{next: h.next.WithAttrs(attrs), quiet: h.quiet}
}

func (h *memberlistHandler) WithGroup(name string) slog.Handler {
	return &memberlistHandler{next: h.next.WithGroup(name), quiet: h.quiet}
}
