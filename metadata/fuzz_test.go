package metadata

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// No bytes of a Raft entry make the FSM panic; what it applies leaves a consistent state, which survives a snapshot; what
// it does not understand stops it without a trace.
func FuzzEntry(f *testing.F) {
	seeds := newTestFSM(f)
	for _, e := range workload(seeds, 60) {
		f.Add(e.Data)
	}
	f.Add(seeds.entry(&alterPartition{leader: 1, leaderBrokerEpoch: 1, topic: TopicID{1}, isr: []ISRMember{{1, 1}}}).Data)
	f.Add([]byte{})
	groups := newTestFSM(f)
	for _, e := range groupWorkload(groups, 60) {
		f.Add(e.Data)
	}
	transactions := newTestFSM(f)
	for _, e := range transactionWorkload(transactions, 60) {
		f.Add(e.Data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		fsm := transactionsFSM(t)
		fsm.ongoing("tx-1", 1, "group-1")
		require.NoError(t, fsm.step("tx-1", offsetsOf(fsm.st.transaction("tx-1"), "group-1", 7)).err)
		fsm.must(&commitOffsets{broker: 1, epoch: 1, coordinatorEpoch: fsm.st.coordinatorEpoch, lane: 1, sequence: 1, commits: []OffsetCommit{
			{Group: "group-1", Generation: -1, Offsets: []OffsetEntry{{TopicID{1}, 0, 4, -1, ""}}},
		}})
		before := stateHash(fsm.st, fsm.index)
		fsm.next++
		fsm.Apply(&raft.Log{Index: fsm.next, Term: testTerm, Type: raft.LogCommand, Data: data})
		checkState(t, fsm.st)
		if len(fsm.failures) > 0 {
			require.Equal(t, before, stateHash(fsm.st, fsm.index))
			return
		}
		encoded := snapshotBytes(t, fsm.st, fsm.index)
		st, index, err := readSnapshot(bytes.NewReader(encoded))
		require.NoError(t, err)
		require.Equal(t, encoded, snapshotBytes(t, st, index))
	})
}

// No bytes make the snapshot reader panic or take more memory than a few times their number; what it accepts is a
// consistent state with the same snapshot. The checksums are made right first, or no mutation would get behind them.
func FuzzSnapshot(f *testing.F) {
	fsm := newTestFSM(f)
	for i, e := range workload(fsm, 80) {
		fsm.Apply(e)
		if i%20 == 0 {
			f.Add(snapshotBytes(f, fsm.st, fsm.index), true)
		}
	}
	f.Add(snapshotBytes(f, newState(), 0), false)
	groups := newTestFSM(f)
	groupWorkload(groups, 120)
	f.Add(snapshotBytes(f, groups.st, groups.index), true)
	transactions := newTestFSM(f)
	transactionWorkload(transactions, 120)
	f.Add(snapshotBytes(f, transactions.st, transactions.index), true)
	f.Fuzz(func(t *testing.T, data []byte, mend bool) {
		if mend {
			data = withChecksums(data)
		}
		st, index, err := readSnapshot(bytes.NewReader(data))
		if err != nil {
			return
		}
		checkState(t, st)
		encoded := snapshotBytes(t, st, index)
		again, at, err := readSnapshot(bytes.NewReader(encoded))
		require.NoError(t, err)
		require.Equal(t, index, at)
		require.Equal(t, encoded, snapshotBytes(t, again, at))
	})
}

// Encoding is canonical: a command that was decoded encodes to something that decodes to the same.
func FuzzCommand(f *testing.F) {
	fsm := newTestFSM(f)
	for _, e := range workload(fsm, 60) {
		f.Add(e.Data, uint8(3))
	}
	groups, transactions := newTestFSM(f), newTestFSM(f)
	for _, e := range append(groupWorkload(groups, 60), transactionWorkload(transactions, 60)...) {
		var entry pb.Entry
		require.NoError(f, proto.Unmarshal(e.Data, &entry))
		for _, c := range entry.Commands {
			f.Add(c.Body, uint8(c.Type))
		}
	}
	for kind := range uint8(31) {
		f.Add([]byte{}, kind)
	}
	f.Fuzz(func(t *testing.T, body []byte, kind uint8) {
		c, err := decodeCommand(pb.CommandType(kind), body)
		if err != nil {
			return
		}
		again, err := proto.MarshalOptions{Deterministic: true}.Marshal(c.message())
		require.NoError(t, err)
		back, err := decodeCommand(c.kind(), again)
		require.NoError(t, err)
		require.Equal(t, c, back)
	})
}

// withChecksums sets the checksum of every record that data seems to have.
func withChecksums(data []byte) []byte {
	data = bytes.Clone(data)
	for at := len(snapshotMagic); at+8 <= len(data); {
		n := int(binary.LittleEndian.Uint32(data[at:]))
		if n > len(data)-at-8 {
			break
		}
		binary.LittleEndian.PutUint32(data[at+4:], crc32.Checksum(data[at+8:at+8+n], castagnoli))
		at += 8 + n
	}
	return data
}
