package broker

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

// scrapedGroups is a broker that coordinates groups with offsets, and the leaders it asks.
type scrapedGroups struct {
	groupMetrics
	replica *metadata.Replica
	epoch   int64
	asked   []placeQuestion
	silent  func(placeQuestion) bool // leaders that don't answer
}

func newScrapedGroups(t *testing.T) *scrapedGroups {
	s := &scrapedGroups{replica: metadata.NewReplica(), silent: func(placeQuestion) bool { return false }}
	var err error
	s.epoch, err = s.replica.Register(metadata.Registration{
		ID: 1, Incarnation: [16]byte{1}, Directories: []metadata.DirectoryID{{1}},
		Listeners: []metadata.Listener{{Name: "PLAINTEXT", Host: "127.0.0.1", Port: 9092, Protocol: "PLAINTEXT"}},
	}, false)
	require.NoError(t, err)
	s.self, s.image = 1, s.replica.Image
	// Partition p has the records p to p+100.
	s.read = func(_ context.Context, asked []placeQuestion) []place {
		s.asked = append(s.asked, asked...)
		places := make([]place, len(asked))
		for i, q := range asked {
			places[i] = place{Start: int64(q.Partition), End: int64(q.Partition) + 100, First: -1}
			if s.silent(q) {
				places[i] = place{First: -1, Error: "no answer"}
			}
		}
		return places
	}
	return s
}

func (s *scrapedGroups) topic(t *testing.T, name string, id byte, partitions int) metadata.TopicID {
	assignments := make([][]metadata.BrokerID, partitions)
	for i := range assignments {
		assignments[i] = []metadata.BrokerID{1}
	}
	require.NoError(t, s.replica.CreateTopic(name, metadata.TopicID{id}, nil, assignments))
	return metadata.TopicID{id}
}

func (s *scrapedGroups) commit(t *testing.T, group string, topic metadata.TopicID, partitions int, offset int64) {
	c := metadata.OffsetCommit{Group: group, Generation: -1, Time: 1}
	for p := range partitions {
		c.Offsets = append(c.Offsets, metadata.OffsetEntry{TopicID: topic, Partition: int32(p), Offset: offset, LeaderEpoch: -1})
	}
	refused, err := s.replica.CommitOffsets(1, s.epoch, c)
	require.NoError(t, err)
	require.Nil(t, refused)
}

// scrape returns the values of all series, by name and labels.
func (s *scrapedGroups) scrape(t *testing.T) map[string]float64 {
	s.asked = nil
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(&s.groupMetrics))
	families, err := registry.Gather()
	require.NoError(t, err)
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetValue())
			}
			out[strings.TrimPrefix(f.GetName(), "kafka_consumergroup_")+" "+strings.Join(labels, " ")] = m.Gauge.GetValue()
		}
	}
	return out
}

// Few offsets have series of their own, and each leader is asked what waits behind each.
func TestGroupMetricsOfFewOffsets(t *testing.T) {
	s := newScrapedGroups(t)
	orders := s.topic(t, "orders", 1, 2)
	s.commit(t, "billing", orders, 2, 10)
	s.silent = func(q placeQuestion) bool { return q.Partition == 1 }
	require.Equal(t, map[string]float64{
		"members billing":                 0,
		"current_offset billing 0 orders": 10, "current_offset billing 1 orders": 10,
		"lag billing 0 orders": 90, "lag_seconds billing 0 orders": 0,
		"current_offset_sum billing orders": 20, "lag_sum billing orders": 90,
	}, s.scrape(t))
	require.Equal(t, []placeQuestion{{orders, 0, 10}, {orders, 1, 10}}, s.asked)
}

// Many offsets have sums only, which are right, and however many groups there are, the leaders are asked once about each
// partition.
func TestGroupMetricsOfManyOffsets(t *testing.T) {
	s := newScrapedGroups(t)
	orders, parcels := s.topic(t, "orders", 1, 100), s.topic(t, "parcels", 2, 50)
	s.topic(t, "unread", 3, 10)
	const groups = 40
	for g := range groups {
		s.commit(t, fmt.Sprintf("group-%d", g), orders, 40, int64(g))
		s.commit(t, fmt.Sprintf("group-%d", g), parcels, 20, 30)
	}
	s.silent = func(q placeQuestion) bool { return q.Topic == parcels || q.Partition == 39 }
	got := s.scrape(t)
	require.Len(t, got, groups*4, "members, sums of offsets in two topics, sums of lag in one, of each group")
	for g := range groups {
		lag := 0
		for p := range 39 {
			lag += p + 100 - max(g, p)
		}
		require.Equal(t, float64(lag), got[fmt.Sprintf("lag_sum group-%d orders", g)])
		require.Equal(t, float64(40*g), got[fmt.Sprintf("current_offset_sum group-%d orders", g)])
		require.Equal(t, float64(20*30), got[fmt.Sprintf("current_offset_sum group-%d parcels", g)])
	}
	require.Len(t, s.asked, 60)
	seen := map[placeQuestion]bool{}
	for _, q := range s.asked {
		require.False(t, seen[q])
		seen[q] = true
	}
}

// A broker without a lease says nothing of groups that are another's by now, and no broker of groups of another's.
func TestGroupMetricsAreTheCoordinators(t *testing.T) {
	s := newScrapedGroups(t)
	s.commit(t, "billing", s.topic(t, "orders", 1, 1), 1, 0)
	require.NotEmpty(t, s.scrape(t))
	s.self = 2
	require.Empty(t, s.scrape(t))
	s.self, s.image = 1, func() *metadata.Image { return nil }
	require.Empty(t, s.scrape(t))
}
