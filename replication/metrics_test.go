package replication

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

func TestMetricNames(t *testing.T) {
	reg := prometheus.NewRegistry()
	b := newBroker(t, func(c *Config) { c.Registerer = reg })
	b.create("orders", 2, nil)
	p := b.partition("orders", 0)
	produce(t, p, "a", "b")
	readValues(t, p, 0)
	p.Rejected(17)
	families, err := reg.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
		for _, m := range f.Metric {
			switch {
			case m.Counter != nil:
				got[f.GetName()] += m.Counter.GetValue()
			case m.Gauge != nil:
				got[f.GetName()] += m.Gauge.GetValue()
			}
		}
	}
	require.Equal(t, strings.Fields(`
		kafka_cluster_partition_atminisr kafka_cluster_partition_underminisr
		kafka_log_log_logendoffset kafka_log_log_logstartoffset kafka_log_log_size
		kafka_server_brokertopicmetrics_bytesin_total kafka_server_brokertopicmetrics_bytesout_total kafka_server_brokertopicmetrics_bytesrejected_total
		kafka_server_brokertopicmetrics_failedfetchrequests_total kafka_server_brokertopicmetrics_failedproducerequests_total kafka_server_brokertopicmetrics_messagesin_total
		kafka_server_brokertopicmetrics_reassignmentbytesin_total
		kafka_server_brokertopicmetrics_replicationbytesin_total kafka_server_brokertopicmetrics_replicationbytesout_total
		kafka_server_brokertopicmetrics_totalfetchrequests_total kafka_server_brokertopicmetrics_totalproducerequests_total
		kafka_server_replicafetchermanager_maxlag
		kafka_server_replicamanager_atminisrpartitioncount kafka_server_replicamanager_isrexpands_total
		kafka_server_replicamanager_isrshrinks_total kafka_server_replicamanager_leadercount kafka_server_replicamanager_offlinereplicacount
		kafka_server_replicamanager_partitioncount kafka_server_replicamanager_underminisrpartitioncount kafka_server_replicamanager_underreplicatedpartitions
		kafka_topic_partition_current_offset kafka_topic_partition_in_sync_replica kafka_topic_partition_leader kafka_topic_partition_leader_is_preferred
		kafka_topic_partition_oldest_offset kafka_topic_partition_replicas kafka_topic_partition_under_replicated_partition kafka_topic_partitions
		millrace_hw_lag_seconds millrace_replicas_renewed_total`), names)
	size := float64(len(batch("a", "b")))
	for name, want := range map[string]float64{
		"messagesin": 2, "bytesin": size, "bytesout": size, "bytesrejected": 17, "totalproducerequests": 2, "failedproducerequests": 1, "totalfetchrequests": 2, "failedfetchrequests": 0,
	} {
		require.Equal(t, want, got["kafka_server_brokertopicmetrics_"+name+"_total"], name)
	}
	require.Equal(t, 2.0, got["kafka_server_replicamanager_leadercount"])
	require.Equal(t, 2.0, got["kafka_topic_partition_current_offset"])
	require.Equal(t, 2.0, got["kafka_topic_partitions"])
	require.Equal(t, 2.0, got["kafka_cluster_partition_atminisr"])
}
