package kafka

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// gathered returns the values of one metric by its labels, as "a/b".
func (b *testBroker) gathered(t *testing.T, name string) map[string]float64 {
	t.Helper()
	families, err := b.registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			key := ""
			for _, label := range m.GetLabel() {
				key += "/" + label.GetValue()
			}
			switch {
			case m.Counter != nil:
				values[key] = m.GetCounter().GetValue()
			case m.Gauge != nil:
				values[key] = m.GetGauge().GetValue()
			default:
				values[key] = float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return values
}

// Requests, error codes, times and sessions are counted; what never happened has no
// series.
func TestMetrics(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c, topic := b.dial(t), b.topic(t, 1)
	ask[*kmsg.ProduceResponse](c, produceRequest(9, -1, produced{topic, 0, batch(1)}, produced{topic, 7, batch(1)}))
	ask[*kmsg.ProduceResponse](c, produceRequest(9, -1, produced{topic, 0, batch(1)}))
	ask[*kmsg.FetchResponse](c, sessionFetch(12, 0, 0, fetched{topic, 0, 0}))
	ask[*kmsg.FetchResponse](c, sessionFetch(12, 99, 1))
	require.Equal(t, map[string]float64{"/Produce/9": 2, "/Fetch/12": 2}, b.gathered(t, "kafka_network_requestmetrics_requests_total"))
	require.Equal(t, map[string]float64{"/UNKNOWN_TOPIC_OR_PARTITION/Produce": 1, "/FETCH_SESSION_ID_NOT_FOUND/Fetch": 1}, b.gathered(t, "kafka_network_requestmetrics_errors_total"))
	durations := b.gathered(t, "millrace_request_duration_seconds")
	require.EqualValues(t, 2, durations["/local/Produce"])
	require.EqualValues(t, 2, durations["/remote/Produce"])
	require.EqualValues(t, 2, durations["/local/Fetch"])
	require.NotContains(t, durations, "/remote/Fetch")
	require.EqualValues(t, map[string]float64{"": 1}, b.gathered(t, "kafka_server_fetchsessioncache_numincrementalfetchsessions"))
	require.EqualValues(t, map[string]float64{"": 1}, b.gathered(t, "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached"))
}
