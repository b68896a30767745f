package metadata

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/hashicorp/go-hclog"
)

// raftLogger hands what Raft logs on to slog. Raft says at Info what is routine here (each election, each snapshot), so
// its levels go one down; this package logs roles and failures itself.
//
// The embedded null logger answers the few methods that Raft never calls.
type raftLogger struct {
	hclog.Logger
	logger *slog.Logger
}

// routine are messages that come with every broker that stops, starts or is behind, many times a second: gossip and the
// controller say once that a broker is gone.
var routine = []string{
	"failed to heartbeat to", "failed to appendEntries to", "failed to make requestVote RPC", "failed to make requestPreVote RPC", "failed to contact", "failed to pipeline appendEntries",
	"failed to decode incoming command", "failed to flush response", "failed to accept connection", "peer has newer term, stopping replication",
	"appendEntries rejected, sending older logs", "failed to get previous log", "unable to get address for server, using fallback address",
	"no known peers, aborting election", "heartbeat timeout reached, starting election",
}

func newRaftLogger(logger *slog.Logger) hclog.Logger {
	return &raftLogger{Logger: hclog.NewNullLogger(), logger: logger}
}

func (l *raftLogger) log(level slog.Level, msg string, args []any) {
	if level > slog.LevelDebug && slices.Contains(routine, msg) {
		level = slog.LevelDebug
	}
	if !l.logger.Enabled(context.Background(), level) {
		return
	}
	for i, a := range args {
		if f, ok := a.(hclog.Format); ok && len(f) > 0 {
			args[i] = fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
		}
	}
	l.logger.Log(context.Background(), level, "raft: "+msg, args...)
}

// Log passes a message of the given hclog level on.
func (l *raftLogger) Log(level hclog.Level, msg string, args ...any) {
	switch level {
	case hclog.Error:
		l.Error(msg, args...)
	case hclog.Warn:
		l.Warn(msg, args...)
	case hclog.Info:
		l.Info(msg, args...)
	default:
		l.Debug(msg, args...)
	}
}

func (l *raftLogger) Trace(string, ...any) {}

func (l *raftLogger) Debug(string, ...any) {}

func (l *raftLogger) Info(msg string, args ...any) { l.log(slog.LevelDebug, msg, args) }

func (l *raftLogger) Warn(msg string, args ...any) { l.log(slog.LevelWarn, msg, args) }

func (l *raftLogger) Error(msg string, args ...any) { l.log(slog.LevelError, msg, args) }

func (l *raftLogger) IsTrace() bool { return false }
func (l *raftLogger) IsDebug() bool { return false }
func (l *raftLogger) IsInfo() bool  { return l.logger.Enabled(context.Background(), slog.LevelDebug) }
func (l *raftLogger) IsWarn() bool  { return true }
func (l *raftLogger) IsError() bool { return true }

func (l *raftLogger) With(args ...any) hclog.Logger {
	return &raftLogger{Logger: l.Logger, logger: l.logger.With(args...)}
}

func (l *raftLogger) Named(string) hclog.Logger      { return l }
func (l *raftLogger) ResetNamed(string) hclog.Logger { return l }
