package transport

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

// TestMetrics: names, labels and values; and they leave the registry with the server, so that another can take its place.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		s := startServer(t, handlerFunc(func(r *Request) {
			r.Conn.SetSoftware("franz-go", "1.2.3")
			r.ReplyThrottled(Message(respond("ok")), 1500e6)
		}), func(cfg *Config) { cfg.Registerer = reg })
		c, other := s.dial(), s.dial()
		request := metadataFrame(1, "x")
		go c.send(request)
		c.expect("1 ok")
		go func() { _, _ = other.Write(prefix(1)) }()
		other.ends()
		s.dial()
		synctest.Wait()
		want := fmt.Sprintf(`
			# HELP millrace_connections Open connections.
			# TYPE millrace_connections gauge
			millrace_connections{listener="MEM",software="franz-go",version="1.2.3"} 1
			millrace_connections{listener="MEM",software="unknown",version="unknown"} 1
			# HELP millrace_throttle_seconds_total Time for which sockets were not read because of quotas.
			# TYPE millrace_throttle_seconds_total counter
			millrace_throttle_seconds_total 1.5
			# HELP millrace_network_bytes_total Bytes read from and written to clients, TLS overhead excluded.
			# TYPE millrace_network_bytes_total counter
			millrace_network_bytes_total{direction="in",listener="MEM"} %d
			millrace_network_bytes_total{direction="out",listener="MEM"} %d
			# HELP millrace_request_memory_bytes Memory of requests being read or in work.
			# TYPE millrace_request_memory_bytes gauge
			millrace_request_memory_bytes{budget="brokers"} 0
			millrace_request_memory_bytes{budget="clients"} 0
		`, len(request)+len(prefix(1)), len(appendMessage(nil, 1, respond("ok"))))
		require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(want),
			"millrace_connections", "millrace_throttle_seconds_total", "millrace_network_bytes_total", "millrace_request_memory_bytes"))
		problems, err := testutil.GatherAndLint(reg)
		require.NoError(t, err)
		require.Empty(t, problems)
		names := map[string]bool{}
		families, err := reg.Gather()
		require.NoError(t, err)
		for _, f := range families {
			names[f.GetName()] = true
			if f.GetName() == "millrace_connections_rejected_total" {
				for _, m := range f.GetMetric() {
					if m.GetLabel()[1].GetValue() == "request_size" {
						require.EqualValues(t, 1, m.GetCounter().GetValue())
					}
				}
			}
		}
		require.Len(t, names, 8)

		cfg := Default()
		cfg.Logger, cfg.Registerer = discardLogger, reg
		cfg.Listeners = []ListenerConfig{{Name: "MEM", Protocol: Plaintext, Listener: newMemListener()}}
		_, err = New(cfg, handlerFunc(answering))
		require.Error(t, err, "two servers in one registry")
		s.stop()
		families, err = reg.Gather()
		require.NoError(t, err)
		require.Empty(t, families)
	})
}

// TestSoftwareLabelsAreCapped is S6: clients choose the label values, so there is a bound to their number.
func TestSoftwareLabelsAreCapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, handlerFunc(func(r *Request) {
			r.Conn.SetSoftware("evil", fmt.Sprint(r.CorrelationID))
			answering(r)
		}), nil)
		c := s.dial()
		for i := range int32(1000) {
			go c.send(metadataFrame(i, "x"))
			c.receive()
		}
		name, version := s.conns()[0].Software()
		require.Equal(t, "evil 999", name+" "+version)
		require.Len(t, s.metrics.connections.known, maxSoftwareLabels)
		require.Equal(t, map[connectionLabels]int{{"MEM", softwareLabel{"other", "other"}}: 1}, s.metrics.connections.counts)
	})
}

// TestConnValues: values of a connection are replaced by key.
func TestConnValues(t *testing.T) {
	type key string
	c := &Conn{}
	require.Nil(t, c.Value(key("a")))
	c.SetValue(key("a"), 1)
	c.SetValue(key("b"), 2)
	c.SetValue(key("a"), 3)
	require.Equal(t, 3, c.Value(key("a")))
	require.Equal(t, 2, c.Value(key("b")))
	require.Nil(t, c.Value("a"))
}
