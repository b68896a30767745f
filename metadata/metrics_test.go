package metadata

import (
	"bytes"
	"log/slog"
	"slices"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// The series of one store, which goes with it: three stores can live in one process.
func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	cfg := testConfig(t, t.TempDir())
	cfg.Registerer = registry
	s := openStore(t, cfg)
	register(t, s, 1, 1)
	require.NoError(t, s.raft.Snapshot().Error())
	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += "/" + l.GetValue()
			}
			switch {
			case m.Gauge != nil:
				values[name] = m.Gauge.GetValue()
			case m.Counter != nil:
				values[name] = m.Counter.GetValue()
			case m.Histogram != nil:
				values[name] = float64(m.Histogram.GetSampleCount())
			}
		}
	}
	require.Equal(t, []string{
		"millrace_offset_commit_batch",
		"millrace_offset_commits_total",
		"millrace_raft_applied_index",
		"millrace_raft_commands_total",
		"millrace_raft_commit_duration_seconds",
		"millrace_raft_commit_index",
		"millrace_raft_entry_commands",
		"millrace_raft_last_contact_seconds",
		"millrace_raft_proposed_bytes_total",
		"millrace_raft_snapshot_age_seconds",
		"millrace_raft_state",
		"millrace_raft_term",
		"millrace_rebalance_moves",
		"millrace_rebalance_plans_total",
	}, names)
	require.True(t, slices.IsSorted(names))
	require.Equal(t, 1.0, values["millrace_raft_state/leader"])
	require.Equal(t, 0.0, values["millrace_raft_state/follower"])
	require.Equal(t, 2.0, values["millrace_raft_commands_total"], "cluster id and registration")
	require.Equal(t, 2.0, values["millrace_raft_commit_duration_seconds"])
	require.Equal(t, values["millrace_raft_commit_index"], values["millrace_raft_applied_index"])
	require.Equal(t, 0.0, values["millrace_raft_last_contact_seconds"])
	_, err = Open(Config{})
	require.Error(t, err)
	require.NoError(t, s.Close())
	families, err = registry.Gather()
	require.NoError(t, err)
	require.Empty(t, families, "taken back")

	s, err = Open(cfg) // and the age of the snapshot is known after a restart
	require.NoError(t, err)
	require.NotZero(t, s.metrics.snapshot.Load())
	require.NoError(t, s.Close())
}

// Raft's messages go to slog: its routine at Debug, trouble as it is, formatted arguments resolved.
func TestRaftLogger(t *testing.T) {
	var out bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	l := newRaftLogger(logger)
	l.Trace("no")
	l.Debug("no")
	l.Info("elected", "term", 3)
	l.Warn("slow", "servers", hclog.Fmt("%d of %d", 2, 3))
	l.With("peer", "x").Named("y").ResetNamed("z").Error("broken")
	l.Log(hclog.Warn, "w")
	l.Log(hclog.Error, "e")
	l.Log(hclog.Info, "i")
	l.Log(hclog.Debug, "no")
	require.Equal(t, `level=DEBUG msg="raft: elected" term=3
level=WARN msg="raft: slow" servers="2 of 3"
level=ERROR msg="raft: broken" peer=x
level=WARN msg="raft: w"
level=ERROR msg="raft: e"
level=DEBUG msg="raft: i"
`, out.String())
	require.True(t, l.IsInfo() && l.IsWarn() && l.IsError() && !l.IsDebug() && !l.IsTrace())
	quiet := newRaftLogger(discard())
	require.False(t, quiet.IsInfo())
	quiet.Error("nobody hears it")
}

// A lone broker's transport reaches nobody.
func TestLoopback(t *testing.T) {
	l := newLoopback("local")
	require.ErrorIs(t, l.AppendEntries("", "", nil, nil), errAlone)
	require.ErrorIs(t, l.RequestVote("", "", nil, nil), errAlone)
	require.ErrorIs(t, l.RequestPreVote("", "", nil, nil), errAlone)
	require.ErrorIs(t, l.InstallSnapshot("", "", nil, nil, nil), errAlone)
	require.ErrorIs(t, l.TimeoutNow("", "", nil, nil), errAlone)
	_, err := l.AppendEntriesPipeline("", "")
	require.Error(t, err)
	require.Equal(t, l.addr, l.DecodePeer(l.EncodePeer("", l.LocalAddr())))
}
