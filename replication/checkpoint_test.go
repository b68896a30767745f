package replication

import (
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/log/vfs"
	"github.com/millrace/millrace/metadata"
)

// refusingFS has no space for new directories while it refuses.
type refusingFS struct {
	vfs.FS
	refuse atomic.Bool
}

func (f *refusingFS) Mkdir(name string) error {
	if f.refuse.Load() {
		return vfs.ErrNoSpace
	}
	return f.FS.Mkdir(name)
}

func TestCheckpointRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := map[TopicIDPartition]int64{}
		var entries []checkpointEntry
		for i := range rapid.IntRange(0, 5).Draw(t, "topics") {
			id := metadata.TopicID{byte(i + 1), 7}
			for p := range rapid.Int32Range(0, 4).Draw(t, "partitions") {
				hw := rapid.Int64Range(0, 1<<62).Draw(t, "high watermark")
				want[TopicIDPartition{id, p}] = hw
				// Two topics may bear one name, one after the other: the id tells them apart.
				entries = append(entries, checkpointEntry{TopicIDPartition{id, p}, "topic." + strconv.Itoa(i/2), hw})
			}
		}
		got, err := decodeCheckpoint(encodeCheckpoint(entries))
		if err != nil {
			t.Fatal(err)
		}
		require.Equal(t, want, got)
	})
}

// L5: whatever happened to the file, it is either what was written or ignored.
func TestCheckpointDamage(t *testing.T) {
	good := encodeCheckpoint([]checkpointEntry{{TopicIDPartition{metadata.TopicID{1}, 0}, "orders", 1234}, {TopicIDPartition{metadata.TopicID{2}, 3}, "pay", 7}})
	for i := range good {
		for bit := range 8 {
			bad := append([]byte(nil), good...)
			bad[i] ^= 1 << bit
			_, err := decodeCheckpoint(bad)
			require.Error(t, err, "byte %d, bit %d", i, bit)
		}
		_, err := decodeCheckpoint(good[:i])
		require.Error(t, err, "cut at %d", i)
	}
	_, err := decodeCheckpoint(append(good, "orders 0 5\n"...))
	require.Error(t, err)
}

// The file is in the form Kafka reads: a version, a count, that many lines of topic, partition, offset.
func TestCheckpointIsKafkas(t *testing.T) {
	lines := strings.Split(strings.TrimSuffix(string(encodeCheckpoint([]checkpointEntry{{TopicIDPartition{metadata.TopicID{1}, 0}, "orders", 1234}, {TopicIDPartition{metadata.TopicID{1}, 1}, "orders", 0}})), "\n"), "\n")
	require.Equal(t, "0", lines[0])
	n, err := strconv.Atoi(lines[1])
	require.NoError(t, err)
	require.Len(t, lines[2:], n)
	for _, line := range lines[2:] {
		f := strings.Split(line, " ")
		require.Len(t, f, 3)
		_, err := strconv.ParseInt(f[1], 10, 32)
		require.NoError(t, err)
		_, err = strconv.ParseInt(f[2], 10, 64)
		require.NoError(t, err)
	}
	require.Contains(t, lines, "orders 0 1234")
}

func FuzzCheckpoint(f *testing.F) {
	f.Add(encodeCheckpoint([]checkpointEntry{{TopicIDPartition{metadata.TopicID{1}, 0}, "orders", 1234}}))
	f.Add([]byte("0\n0\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if marks, err := decodeCheckpoint(b); err == nil && len(marks) > len(b) {
			t.Fatal("more marks than bytes")
		}
	})
}
