package log

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
)

// TestKafkaFormats pins the bytes that Kafka's own tools must be able to read (design D9). The expected bytes follow
// from the formats, not from this package.
func TestKafkaFormats(t *testing.T) {
	fsys := vfs.NewMem(1)
	cfg := testConfig(mode{}, fsys)
	d := openDir(t, cfg)
	topicID := [16]byte{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0, 1, 2, 3, 4, 5, 6, 7, 0xff}
	l, err := d.Create("orders", topicID, 7, 40, Settings{SegmentBytes: 400, IndexIntervalBytes: 100})
	require.NoError(t, err)
	for i := range 6 {
		appendOne(t, l, int32(2+i/3), testBatch(2, 30, 5000+int64(i), producerFields{id: 77, epoch: 3, sequence: int32(2 * i)}))
	}
	require.NoError(t, d.Close())
	file := func(name string) []byte {
		b, err := vfs.ReadFile(fsys, "data/orders-7/"+name)
		require.NoError(t, err)
		return b
	}
	require.Equal(t, "version: 0\ntopic_id: EjRWeJq83vABAgMEBQYH_w\n", string(file("partition.metadata")))
	require.Equal(t, "0\n2\n2 40\n3 46\n#crc32c 2988472662\n", string(file("leader-epoch-checkpoint")))

	// A batch of two records of 30 bytes is 61 + 2*(1+1+1+1+1+1+1+30+1) = 137 bytes: two per segment. The second gets
	// an entry because 137 > 100 bytes lie before it.
	require.Len(t, file("00000000000000000040.log"), 2*137)
	require.Equal(t, "0000000300000089", hex.EncodeToString(file("00000000000000000040.index")), "last offset 43-40, position 137")
	require.Equal(t, "0000000000001389"+"00000003", hex.EncodeToString(file("00000000000000000040.timeindex")), "timestamp 5001, offset 43-40")

	// Version 1; the producer's last batch is sequences 6 and 7 at offsets 46 and 47.
	snapshot := file("00000000000000000048.snapshot")
	require.Equal(t, "0001", hex.EncodeToString(snapshot[:2]))
	require.Equal(t, "00000001"+
		"000000000000004d"+"0003"+"00000007"+"000000000000002f"+"00000001"+"000000000000138b"+"ffffffff"+"ffffffffffffffff",
		hex.EncodeToString(snapshot[6:10+46]))
}

// TestInspectFiles reads every file of a directory back through the functions for tools.
func TestInspectFiles(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		fsys := vfs.NewMem(1)
		d := openDir(t, testConfig(m, fsys))
		l := createLog(t, d, Settings{FlushAck: true, SegmentBytes: 1000, IndexIntervalBytes: 100})
		var batches int
		for i := range 40 {
			appendOne(t, l, int32(i/10), testBatch(1+i%3, 40, int64(1000+i), producerFields{id: int64(1 + i%2), sequence: int32(i / 2 * 10)}.loose()))
			batches++
		}
		require.NoError(t, l.Flush())
		require.NoError(t, d.Close())

		entries, err := fsys.List("data/topic-0")
		require.NoError(t, err)
		seen := map[FileKind]int{}
		visited := 0
		for _, e := range entries {
			name := "data/topic-0/" + e.Name
			kind := KindOf(name)
			seen[kind]++
			switch kind {
			case FileSegment:
				size, err := InspectSegment(fsys, name, func(b BatchInfo) error {
					require.True(t, b.CRCValid)
					visited++
					return b.Batch.Each(0, func(record.Record) error { return nil })
				})
				require.NoError(t, err)
				require.Equal(t, e.Size, size)
			case FileOffsetIndex:
				_, err = InspectOffsetIndex(fsys, name)
			case FileTimeIndex:
				_, err = InspectTimeIndex(fsys, name)
			case FileProducerSnapshot:
				_, _, err = InspectSnapshot(fsys, name)
			case FileLeaderEpochs:
				var list []EpochEntry
				list, err = InspectEpochs(fsys, name)
				require.Len(t, list, 4)
			case FilePartitionMetadata:
				_, err = InspectPartitionMetadata(fsys, name)
			case FileState:
				var s StateInfo
				s, err = InspectState(fsys, name)
				require.Equal(t, "topic", s.Topic)
				require.NotEmpty(t, s.Sealed)
			default:
				t.Fatalf("%s is of no known kind", name)
			}
			require.NoError(t, err, name)
		}
		require.Equal(t, batches, visited)
		for _, kind := range []FileKind{FileSegment, FileOffsetIndex, FileTimeIndex, FileProducerSnapshot, FileLeaderEpochs, FilePartitionMetadata, FileState} {
			require.NotZero(t, seen[kind], kind)
		}
		cp, err := InspectCheckpoint(fsys, "data/millrace.checkpoint")
		require.NoError(t, err)
		require.Len(t, cp.RecoveryPoints, 1)
		require.Equal(t, FileWAL, KindOf("data/wal/3"))

		report, err := VerifyDir(fsys, "data", nil)
		require.NoError(t, err)
		require.Empty(t, report.Findings)
		require.Len(t, report.Partitions, 1)
		p := report.Partitions[0]
		require.Empty(t, p.Findings)
		require.Equal(t, int64(batches), p.Batches)
		require.Equal(t, l.EndOffset(), p.EndOffset)
		require.True(t, report.CleanStop)
		require.Equal(t, Severity(""), report.Worst())
	})
}

// loose is an idempotent producer whose sequences the test does not keep in order: each batch begins an epoch.
func (p producerFields) loose() producerFields {
	p.epoch, p.sequence = int16(p.sequence/10), 0
	return p
}

// TestVerifyFindsDamage damages one file after the other of a closed directory: verification tells which, and how bad
// it is (I19).
func TestVerifyFindsDamage(t *testing.T) {
	build := func() *vfs.Mem {
		fsys := vfs.NewMem(1)
		d := openDir(t, testConfig(mode{}, fsys))
		l := createLog(t, d, Settings{FlushAck: true, SegmentBytes: 1000, IndexIntervalBytes: 100})
		for i := range 40 {
			appendOne(t, l, int32(i/10), testBatch(1+i%3, 40, int64(1000+i), producerFields{id: 5, sequence: int32(i * 10)}.loose()))
			d.syncer.waitAdvanced() // a snapshot at each roll
		}
		require.NoError(t, d.Close())
		return fsys
	}
	damage := func(name string, fn func([]byte) []byte) func(*vfs.Mem) {
		return func(fsys *vfs.Mem) {
			b, err := vfs.ReadFile(fsys, "data/topic-0/"+name)
			require.NoError(t, err)
			require.NotEmpty(t, b)
			require.NoError(t, vfs.ReplaceFile(fsys, "data/topic-0", name, fn(b)))
		}
	}
	flip := func(at int) func([]byte) []byte {
		return func(b []byte) []byte { b[at%len(b)] ^= 1; return b }
	}
	remove := func(name string) func(*vfs.Mem) {
		return func(fsys *vfs.Mem) { require.NoError(t, fsys.Remove("data/topic-0/"+name)) }
	}
	second := ""
	entries, err := build().List("data/topic-0")
	require.NoError(t, err)
	for _, e := range entries {
		if strings.HasSuffix(e.Name, logSuffix) && !strings.HasPrefix(e.Name, "00000000000000000000") {
			second = strings.TrimSuffix(e.Name, logSuffix)
			break
		}
	}
	for name, c := range map[string]struct {
		damage func(*vfs.Mem)
		file   string
		worst  Severity
	}{
		"bit rot in a batch":      {damage(second+logSuffix, flip(200)), second + logSuffix, SeverityError},
		"short segment":           {damage(second+logSuffix, func(b []byte) []byte { return b[:len(b)-1] }), second + logSuffix, SeverityError},
		"missing segment":         {remove(second + logSuffix), second + logSuffix, SeverityError},
		"bad state":               {damage(stateName, flip(30)), stateName, SeverityError},
		"bad index":               {damage(second+indexSuffix, flip(3)), second + indexSuffix, SeverityInfo},
		"bad time index":          {damage(second+timeIndexSuffix, flip(7)), second + timeIndexSuffix, SeverityInfo},
		"bad snapshot":            {damage(second+snapshotSuffix, flip(9)), second + snapshotSuffix, SeverityWarning},
		"wrong epochs":            {damage(epochsName, func(b []byte) []byte { return []byte("0\n1\n0 0\n") }), epochsName, SeverityWarning},
		"no epochs":               {remove(epochsName), epochsName, SeverityWarning},
		"another's metadata":      {damage(metadataName, func([]byte) []byte { return encodePartitionMetadata(testID(9)) }), metadataName, SeverityError},
		"unreadable metadata":     {damage(metadataName, flip(12)), metadataName, SeverityWarning},
		"no state":                {remove(stateName), stateName, SeverityError},
		"no damage but a rewrite": {damage(stateName, func(b []byte) []byte { return b }), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := build()
			c.damage(fsys)
			report, err := VerifyDir(fsys, "data", nil)
			require.NoError(t, err)
			require.Equal(t, c.worst, report.Worst(), "%+v", report)
			if c.file != "" {
				var files []string
				for _, f := range report.Partitions[0].Findings {
					files = append(files, f.File)
				}
				require.Contains(t, files, c.file)
			}
		})
	}
}

// TestVerifyForeignDirectory checks that a directory of Apache Kafka, which has the same files but no state, is whole.
func TestVerifyForeignDirectory(t *testing.T) {
	fsys := vfs.NewMem(1)
	d := openDir(t, testConfig(mode{}, fsys))
	l := createLog(t, d, Settings{})
	for range 10 {
		appendOne(t, l, 0, plainBatch(1, 100))
	}
	require.NoError(t, d.Close())
	name := vfs.Join("data", partitionDirName(l.Topic(), l.Partition()))
	require.NoError(t, fsys.Remove(vfs.Join(name, stateName)))

	report, err := VerifyPartition(fsys, name)
	require.NoError(t, err)
	require.Equal(t, SeverityError, (&DirReport{Partitions: []PartitionReport{report}}).Worst(), "in a directory of ours it is missed")
	require.NoError(t, fsys.Remove(vfs.Join("data", directoryName)))
	report, err = VerifyPartition(fsys, name)
	require.NoError(t, err)
	require.Equal(t, SeverityInfo, (&DirReport{Partitions: []PartitionReport{report}}).Worst(), "%+v", report)
	require.Equal(t, topicIDString(l.TopicID()), report.TopicID)
}

// TestInspectWALFile reads the frames of a write-ahead log in use.
func TestInspectWALFile(t *testing.T) {
	fsys := vfs.NewMem(1)
	d := openDir(t, testConfig(mode{wal: true}, fsys))
	l := createLog(t, d, Settings{FlushAck: true})
	for range 10 {
		a := appendOne(t, l, 0, plainBatch(1, 100))
		waitDurable(t, l, a.NextOffset)
	}
	fsys = fsys.Kill()
	entries, err := fsys.List("data/wal")
	require.NoError(t, err)
	records := 0
	for _, e := range entries {
		info, err := InspectWALFile(fsys, "data/wal/"+e.Name)
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt) // free
			continue
		}
		for _, f := range info.Frames {
			for _, r := range f.Records {
				require.Equal(t, logIDString(l.mu.logID), r.LogID)
				records++
			}
		}
	}
	require.NotZero(t, records)
	report, err := VerifyDir(fsys, "data", nil)
	require.NoError(t, err)
	require.Equal(t, records, report.WALRecords)
	require.NotEqual(t, SeverityError, report.Worst(), "%+v", report)
}
