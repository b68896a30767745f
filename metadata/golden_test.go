package metadata

import (
	"bytes"
	"encoding/binary"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

var updateGolden = flag.Bool("update", false, "write the golden files of this package anew, those of the newest feature level")

// newestGolden are the golden files that -update writes. Those of older levels are what older builds wrote, and stay.
const newestGolden = "v3"

// What an earlier build wrote to disk, a Raft log and the snapshot of the same state, is read by this one, means the same
// and is written in the same bytes. A failure here means that the format has changed: old files must stay readable, and
// what is new needs a feature level (D17) and a golden file of its own. Only then run with -update.
func TestGoldenFormats(t *testing.T) {
	st := checkGolden(t, "v1", func(f *testFSM) []*raft.Log {
		entries := workload(f, 40)
		entries = append(entries, f.entry(&createTopic{id: TopicID{200}, name: "isr", sets: []replicaSet{on(1, 2, 3)}},
			&alterConfigs{topic: TopicID{200}, broker: NoBroker, expectedVersion: f.next + 1, set: map[string]string{"retention.ms": "1"}, delete: []string{"x"}}))
		for _, e := range entries {
			f.Apply(e)
		}
		lead := f.st.topic("isr").Partitions[0]
		e := f.entry(&alterPartition{leader: 1, leaderBrokerEpoch: f.st.broker(1).Epoch, topic: TopicID{200}, leaderEpoch: lead.LeaderEpoch,
			partitionEpoch: lead.PartitionEpoch, isr: []ISRMember{{1, -1}}, elr: []BrokerID{3}}, &chainPart{chain: requestID{1}, parts: 2, data: []byte("part")})
		f.Apply(e)
		return append(entries, e)
	})
	require.Equal(t, []BrokerID{3}, st.topic("isr").Partitions[0].ELR)
	require.Equal(t, map[string]string{"retention.ms": "1"}, st.topic("isr").Configs)
	require.Len(t, st.chains, 1)
}

// The same of feature level 2: groups and committed offsets.
func TestGoldenFormatsOfGroups(t *testing.T) {
	st := checkGolden(t, "v2", func(f *testFSM) []*raft.Log { return groupWorkload(f, 200) })
	require.Equal(t, GroupsFeatureLevel, st.featureLevel)
	require.Positive(t, st.groups.len())
	require.Positive(t, st.offsetCount)
	require.Positive(t, st.lastGenerations.len())
	require.NotEmpty(t, st.commitSequences)
	require.Positive(t, st.coordinatorEpoch)
}

// The same of feature level 3: transactions and pending offsets.
func TestGoldenFormatsOfTransactions(t *testing.T) {
	st := checkGolden(t, "v3", func(f *testFSM) []*raft.Log { return transactionWorkload(f, 400) })
	require.Equal(t, TransactionsFeatureLevel, st.featureLevel)
	states := map[TransactionState]bool{}
	for _, x := range st.transactions.all() {
		states[x.State] = true
	}
	require.Len(t, states, 6, "transactions of every state: %v", states)
	require.Positive(t, st.pending.len())
	superseded := false
	for _, of := range st.pending.all() {
		for _, pending := range of.producers.all() {
			for _, o := range pending.offsets.all() {
				superseded = superseded || o.superseded
			}
		}
	}
	require.True(t, superseded)
	require.Positive(t, st.transactionRevision)
}

// checkGolden compares with the golden files of a version. With -update it writes the newest first, from entries that f has
// applied.
func checkGolden(t *testing.T, version string, entriesOf func(f *testFSM) []*raft.Log) *state {
	entriesFile, snapshotFile := filepath.Join("testdata", "entries-"+version+".golden"), filepath.Join("testdata", "snapshot-"+version+".golden")
	if *updateGolden && version == newestGolden {
		f := newTestFSM(t)
		var out []byte
		for _, e := range entriesOf(f) {
			out = binary.BigEndian.AppendUint32(out, uint32(len(e.Data)))
			out = append(out, e.Data...)
		}
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(entriesFile, out, 0o644))
		require.NoError(t, os.WriteFile(snapshotFile, snapshotBytes(t, f.st, f.index), 0o644))
	}
	entries, err := os.ReadFile(entriesFile)
	require.NoError(t, err)
	golden, err := os.ReadFile(snapshotFile)
	require.NoError(t, err)
	f := newTestFSM(t)
	for len(entries) > 0 {
		n := binary.BigEndian.Uint32(entries)
		f.next++
		results, ok := f.Apply(&raft.Log{Index: f.next, Term: testTerm, Type: raft.LogCommand, Data: entries[4 : 4+n]}).([]result)
		require.True(t, ok, "entry %d: %v", f.next, f.failed)
		require.NotEmpty(t, results)
		entries = entries[4+n:]
	}
	checkState(t, f.st)
	require.True(t, bytes.Equal(golden, snapshotBytes(t, f.st, f.index)), "the entries lead to another state, or it is written differently")
	st, index, err := readSnapshot(bytes.NewReader(golden))
	require.NoError(t, err)
	require.True(t, bytes.Equal(golden, snapshotBytes(t, st, index)))
	return st
}
