package metadata

import (
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// decodeByProtobuf is decodeCommitOffsets by the generated messages.
func decodeByProtobuf(body []byte) (*commitOffsets, error) {
	var m pb.CommitOffsets
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	c := &commitOffsets{broker: BrokerID(m.Broker), epoch: m.BrokerEpoch, coordinatorEpoch: m.CoordinatorEpoch, lane: m.Lane, sequence: m.Sequence}
	for _, from := range m.Commits {
		c.commits = append(c.commits, OffsetCommit{})
		if err := c.commits[len(c.commits)-1].decode(from); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// sameAsProtobuf compares what both ways make of bytes.
func sameAsProtobuf(t require.TestingT, body []byte) {
	want, wantErr := decodeByProtobuf(body)
	got, err := decodeCommitOffsets(body)
	require.Equal(t, wantErr == nil, err == nil, "protobuf: %v, here: %v", wantErr, err)
	if err == nil {
		require.Equal(t, want, got)
	}
}

func drawCommit(t *rapid.T) OffsetCommit {
	text := rapid.StringN(0, 12, -1)
	c := OffsetCommit{
		Group: rapid.StringN(1, 20, -1).Draw(t, "group"), Member: text.Draw(t, "member"), Instance: text.Draw(t, "instance"),
		Generation: rapid.Int32().Draw(t, "generation"), Time: rapid.Int64().Draw(t, "time"), ExpiresAt: rapid.Int64().Draw(t, "expires"),
	}
	for range rapid.IntRange(0, 200).Draw(t, "offsets") {
		o := OffsetEntry{TopicID: TopicID{rapid.Byte().Draw(t, "topic") % 3}, Partition: rapid.Int32Min(0).Draw(t, "partition"), Offset: rapid.Int64().Draw(t, "offset"), LeaderEpoch: -1}
		if rapid.Bool().Draw(t, "has epoch") {
			o.LeaderEpoch = rapid.Int32().Draw(t, "epoch")
		}
		if rapid.IntRange(0, 3).Draw(t, "has text") == 0 {
			o.Metadata = text.Draw(t, "text")
		}
		c.Offsets = append(c.Offsets, o)
	}
	return c
}

// Commits are written as protobuf would write them and read as it would read them: brokers of other versions do so.
func TestCommitsAreProtobuf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &commitOffsets{broker: 7, epoch: rapid.Int64().Draw(t, "epoch"), coordinatorEpoch: -3, lane: 1, sequence: rapid.Uint64().Draw(t, "sequence")}
		body, err := encodeBody(nil, c)
		require.NoError(t, err)
		for range rapid.IntRange(0, 3).Draw(t, "commits") {
			commit := drawCommit(t)
			c.commits = append(c.commits, commit)
			want, err := proto.MarshalOptions{Deterministic: true}.Marshal(commit.message())
			require.NoError(t, err)
			got, err := commit.append(nil)
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.LessOrEqual(t, len(got), 64*commit.maxSize())
			body = append(body, prefix(got, 0, commitField)...)
		}
		decoded, err := decodeCommitOffsets(body)
		require.NoError(t, err)
		require.Equal(t, c, decoded)
		sameAsProtobuf(t, body)
		if n := len(body); n > 0 { // and when they are damaged
			body[rapid.IntRange(0, n-1).Draw(t, "where")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
			sameAsProtobuf(t, body[:rapid.IntRange(0, n).Draw(t, "length")])
			sameAsProtobuf(t, body)
		}
	})
}

// A text that is not UTF-8 is refused when it is written, as protobuf does: other brokers could not read the entry.
func TestCommitOfNoText(t *testing.T) {
	for _, c := range []OffsetCommit{
		{Group: "\xff"}, {Group: "g", Member: "a\x80"}, {Group: "g", Instance: "\xc0\x80"}, {Group: "g", Offsets: []OffsetEntry{{Metadata: "\xff"}}},
	} {
		_, err := proto.Marshal(c.message())
		require.Error(t, err)
		_, err = c.append(nil)
		require.ErrorIs(t, err, errNotUTF8)
	}
}

// What Apply keeps of a commit is no part of the batch, which would stay in memory for as long as the group does.
func TestCommitsKeepNothingOfTheirBatch(t *testing.T) {
	f := groupsFSM(t)
	by, epoch := f.by("group-1")
	commit := OffsetCommit{Group: "group-1", Generation: -1, Time: 1, Offsets: []OffsetEntry{{TopicID{1}, 0, 4, -1, strings.Repeat("text", 9)}}}
	body, err := encodeBody(nil, &commitOffsets{broker: by, epoch: epoch, coordinatorEpoch: f.st.coordinatorEpoch, lane: 1, sequence: 1, commits: []OffsetCommit{commit}})
	require.NoError(t, err)
	decoded, err := decodeCommitOffsets(body)
	require.NoError(t, err)
	c := decoded.(*commitOffsets)
	from := uintptr(unsafe.Pointer(unsafe.StringData(c.commits[0].Group)))
	d := newDraft(f.st)
	out, err := c.apply(d, position{index: f.next + 1, term: testTerm})
	require.NoError(t, err)
	require.Equal(t, []commitOutcome{{}}, out)
	st := d.publish()
	kept := map[string]string{"record": st.group("group-1").Name}
	for name, of := range st.offsets.all() {
		if name == "group-1" {
			kept["key"] = name
			for _, o := range of.all() {
				kept["text"] = o.Metadata
			}
		}
	}
	for name := range st.groups.all() {
		if name == "group-1" {
			kept["key of the record"] = name
		}
	}
	require.Len(t, kept, 4)
	for what, s := range kept {
		at := uintptr(unsafe.Pointer(unsafe.StringData(s)))
		require.False(t, at >= from-uintptr(len(body)) && at < from+uintptr(len(body)), "%s is a part of the batch", what)
	}
}

// No bytes of a batch are read otherwise than by protobuf.
func FuzzCommitOffsets(f *testing.F) {
	for n := range 4 {
		c := &commitOffsets{broker: 1, epoch: 2, coordinatorEpoch: 3, lane: 1, sequence: 4}
		for i := range n {
			c.commits = append(c.commits, OffsetCommit{Group: fmt.Sprintf("g%d", i), Member: "m", Generation: 3, Time: 5, Offsets: entriesFor(TopicID{1}, n*i, 3)})
		}
		body, err := encodeBody(nil, c)
		require.NoError(f, err)
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) { sameAsProtobuf(t, body) })
}

// A batch of 50 commits of one partition each, read as it is and by the generated messages.
func BenchmarkReadCommits(b *testing.B) {
	body, err := encodeBody(nil, &commitOffsets{broker: 1, epoch: 2, coordinatorEpoch: 3, lane: 1, sequence: 4})
	require.NoError(b, err)
	for i := range 50 {
		c := OffsetCommit{Group: fmt.Sprintf("group-%04d", i), Member: "member-9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d", Generation: 3, Time: 1_780_000_000_000, Offsets: entriesFor(TopicID{1}, 1, 1<<20)}
		part, err := c.append(nil)
		require.NoError(b, err)
		body = append(body, prefix(part, 0, commitField)...)
	}
	b.Run("here", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := decodeCommitOffsets(body); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("protobuf", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := decodeByProtobuf(body); err != nil {
				b.Fatal(err)
			}
		}
	})
}
