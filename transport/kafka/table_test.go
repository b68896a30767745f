package kafka

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The table as it stands, written out a second time: whoever changes a range
// changes a promise, and has to mean it (D13). Upgrading kmsg must not change it.
const goldenTable = `
 0 Produce                  0-13 (3)
 1 Fetch                    4-17
 2 ListOffsets              1-10
 3 Metadata                 0-13
 8 OffsetCommit             1-10
 9 OffsetFetch              1-10
10 FindCoordinator          0-5
11 JoinGroup                0-9
12 Heartbeat                0-4
13 LeaveGroup               0-5
14 SyncGroup                0-5
15 DescribeGroups           0-6
16 ListGroups               0-5
18 ApiVersions              0-5
19 CreateTopics             0-7
20 DeleteTopics             0-6
21 DeleteRecords            0-2
22 InitProducerId           0-5
23 OffsetForLeaderEpoch     2-4
24 AddPartitionsToTxn       0-5
25 AddOffsetsToTxn          0-4
26 EndTxn                   0-5
27 WriteTxnMarkers          1-2
28 TxnOffsetCommit          0-6
32 DescribeConfigs          0-4
33 AlterConfigs             0-2
35 DescribeLogDirs          0-4
37 CreatePartitions         0-3
42 DeleteGroups             0-2
43 ElectLeaders             0-2
44 IncrementalAlterConfigs  0-1
45 AlterPartitionReassignments 0-0
46 ListPartitionReassignments 0-0
47 OffsetDelete             0-0
55 DescribeQuorum           0-2
57 UpdateFeatures           0-2
60 DescribeCluster          0-2
61 DescribeProducers        0-0
65 DescribeTransactions     0-0
66 ListTransactions         0-2
68 ConsumerGroupHeartbeat   0-1
69 ConsumerGroupDescribe    0-1
`

func TestGoldenTable(t *testing.T) {
	var b strings.Builder
	b.WriteString("\n")
	for _, a := range table() {
		fmt.Fprintf(&b, "%2d %-24s %d-%d", a.key, a.name, a.minAdvertised, a.max)
		if a.minServed != a.minAdvertised {
			fmt.Fprintf(&b, " (%d)", a.minServed)
		}
		b.WriteString("\n")
	}
	require.Equal(t, goldenTable, b.String())
}

// The ApiVersions answer is the table.
func TestAPIVersionsIsTheTable(t *testing.T) {
	answers := newAPIVersionsAnswers(table())
	require.Len(t, answers.keys, len(table()))
	for i, a := range table() {
		k := answers.keys[i]
		require.Equal(t, [3]int16{a.key, a.minAdvertised, a.max}, [3]int16{k.ApiKey, k.MinVersion, k.MaxVersion})
	}
}

// Every version we serve is one the codec knows, with the first flexible version
// that the table says; what the codec knows beyond the table is not served.
func TestTableAgainstCodec(t *testing.T) {
	h := &Handlers{apis: table()}
	h.byKey = index(h.apis)
	for key := int16(-5); key < 200; key++ {
		req := kmsg.RequestForKey(key)
		for version := int16(-2); version < 30; version++ {
			a := h.lookup(key, version)
			flexible, ok := h.Accept(key, version)
			if key == keyAPIVersions {
				require.True(t, ok)
				require.Equal(t, version >= 3, flexible)
				continue
			}
			require.Equal(t, a != nil, ok)
			if a == nil {
				continue
			}
			require.LessOrEqual(t, version, req.MaxVersion())
			req.SetVersion(version)
			require.Equal(t, req.IsFlexible(), flexible, "%s v%d", a.name, version)
			require.Equal(t, req.IsFlexible(), req.ResponseKind().IsFlexible())
		}
	}
	for _, key := range []int16{4, 5, 6, 7, 17, 52, 58, 62, 94, maxKey, -1} {
		require.Nil(t, h.lookup(key, 0), "key %d", key)
	}
}

// protocol.md 3.2: librdkafka before 2.11 turns features off unless exact versions
// are inside our ranges. Those of transactions and SASL come with them.
func TestOldLibrdkafkaFeatures(t *testing.T) {
	ranges := map[int16]api{}
	for _, a := range table() {
		ranges[a.key] = a
	}
	for _, need := range []struct {
		feature string
		key     int16
		version int16
	}{
		{"any compression", keyProduce, 0},
		{"message format v2", keyProduce, 3},
		{"message format v2", keyFetch, 4},
		{"lz4, groups", keyFindCoordinator, 0},
		{"groups", keyJoinGroup, 0},
		{"groups", keySyncGroup, 0},
		{"groups", keyHeartbeat, 0},
		{"groups", keyLeaveGroup, 0},
		{"groups", keyOffsetCommit, 1},
		{"groups", keyOffsetCommit, 2},
		{"groups", keyOffsetFetch, 1},
		{"zstd", keyProduce, 7},
		{"zstd", keyFetch, 10},
		{"lookup by time", keyListOffsets, 1},
		{"idempotence", keyInitProducerID, 0},
	} {
		a, ok := ranges[need.key]
		require.True(t, ok, need.feature)
		require.True(t, a.minAdvertised <= need.version && need.version <= a.max, "%s needs key %d version %d", need.feature, need.key, need.version)
	}
	// Coupled sets of protocol.md 3.4: topic ids only where Metadata carries them.
	require.GreaterOrEqual(t, ranges[keyMetadata].max, int16(10))
}

func TestBadTableLinesPanic(t *testing.T) {
	for _, apis := range [][]api{
		{{key: 0, minAdvertised: 4, minServed: 3, max: 13}},
		{{key: 0, minAdvertised: 0, minServed: 14, max: 13}},
		{{key: 0, max: 1}, {key: 0, max: 1}},
		{{key: 95, max: 0}},
	} {
		require.Panics(t, func() { index(apis) }, "%+v", apis)
	}
}
