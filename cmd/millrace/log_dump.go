package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
)

// dumpLine is one line of log dump --format json: one batch, entry or file.
type dumpLine struct {
	File     string                     `json:"file" doc:"path"`
	Kind     string                     `json:"kind" doc:"segment, offset-index, time-index, transaction-index, producer-snapshot, leader-epochs, partition-metadata, state, checkpoint, write-ahead-log"`
	Batch    *log.BatchInfo             `json:"batch,omitempty" doc:"a record batch of a segment"`
	Records  []dumpRecord               `json:"records,omitempty" doc:"with --deep or --data: the batch's records"`
	Offset   *log.OffsetIndexEntry      `json:"offset_entry,omitempty" doc:"an entry of an offset index"`
	Time     *log.TimeIndexEntry        `json:"time_entry,omitempty" doc:"an entry of a time index"`
	Aborted  *log.AbortedIndexEntry     `json:"aborted_entry,omitempty" doc:"an entry of an index of aborted transactions"`
	Producer *log.SnapshotEntry         `json:"producer,omitempty" doc:"a producer of a snapshot"`
	Epoch    *log.EpochEntry            `json:"epoch,omitempty" doc:"a leader epoch"`
	Metadata *log.PartitionMetadataInfo `json:"metadata,omitempty" doc:"the partition's topic id"`
	State    *log.StateInfo             `json:"state,omitempty" doc:"the partition's state file"`
	Points   *log.CheckpointInfo        `json:"checkpoint,omitempty" doc:"the recovery points"`
	WAL      *log.WALFileInfo           `json:"wal,omitempty" doc:"a file of the write-ahead log"`
}

type dumpRecord struct {
	Offset      int64    `json:"offset" doc:"offset"`
	Timestamp   int64    `json:"timestamp" doc:"milliseconds since 1970"`
	KeySize     int      `json:"key_size" doc:"bytes, -1 for null"`
	ValueSize   int      `json:"value_size" doc:"bytes, -1 for null"`
	Sequence    int32    `json:"sequence" doc:"the producer's number, -1 without one"`
	HeaderKeys  []string `json:"header_keys,omitempty" doc:"names of the headers"`
	Record      *rawJSON `json:"record,omitempty" doc:"with --data: the record as consume -f json prints it"`
	description *record.Record
}

// rawJSON is a document that is encoded already.
type rawJSON []byte

// MarshalJSON returns the document.
func (r rawJSON) MarshalJSON() ([]byte, error) { return r, nil }

func logDumpCommand() *cli.Command {
	return &cli.Command{
		Name:      "dump",
		Usage:     "print what is in files of a data directory, as Kafka's DumpLogSegments does",
		ArgsUsage: "FILE…",
		Description: "Files may be segments (.log), indexes (.index, .timeindex, .txnindex), producer snapshots, leader epochs, partition metadata, state and\n" +
			"checkpoint files, files of the write-ahead log, or directories of partitions. Nothing is written; the broker may run meanwhile.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "data", Usage: "keys, values and headers of each record"},
			&cli.BoolFlag{Name: "deep", Usage: "a line for each record"},
		},
		Action: runLogDump,
	}
}

func runLogDump(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]dumpLine{}) {
		return nil
	}
	if !c.Args().Present() {
		f := usageError("no file was named", "millrace log dump DATA/orders-0/00000000000000000000.log")
		f.why = "the command needs files of a data directory"
		return f
	}
	var files []string
	for _, name := range c.Args().Slice() {
		more, err := dumpFiles(name)
		if err != nil {
			f := usageError("cannot read "+name, "name a file of a data directory, or the directory of a partition")
			f.why, f.cause = reasonOf(err), err
			return f
		}
		files = append(files, more...)
	}
	d := &dumper{env: e, out: bufio.NewWriterSize(e.stdout, 64<<10), data: c.Bool("data"), deep: c.Bool("deep") || c.Bool("data")}
	var b batch
	for _, file := range files {
		err := d.file(file)
		if flushErr := d.out.Flush(); flushErr != nil {
			return writeError(flushErr)
		}
		if err != nil {
			b.fail(dumpFailure(file, err))
			continue
		}
		b.done++
	}
	return b.finish(e)
}

// reasonOf is the innermost text of a file error, without the path that is named already.
func reasonOf(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

func dumpFailure(file string, err error) *failure {
	f := &failure{code: exitFailed, what: "cannot read " + file, why: oneLine(err.Error()), fix: "name a file of a data directory", cause: err}
	switch {
	case errors.Is(err, log.ErrCorrupt):
		f.what = file + " is damaged"
		f.fix = "millrace log verify DIR   says how far the damage goes; recovery at start cuts what was never acknowledged"
	case errors.Is(err, errUnknownKind):
		f.what = file + " is no file of a log directory that can be dumped"
		f.why = "its name is not one of those that a broker gives"
	}
	return f
}

// dumpFiles returns the file, or the known files of a directory in the order of their names.
func dumpFiles(name string) ([]string, error) {
	info, err := os.Stat(name)
	if err != nil || !info.IsDir() {
		return []string{name}, err
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, entry := range entries {
		if file := filepath.Join(name, entry.Name()); !entry.IsDir() && log.KindOf(file) != log.FileUnknown {
			files = append(files, file)
		}
	}
	if len(files) == 0 {
		return nil, errors.New("it is a directory without files of a log")
	}
	return files, nil
}

var errUnknownKind = errors.New("unknown kind of file")

// dumper prints files, as lines of text or of JSON.
type dumper struct {
	*env
	out        *bufio.Writer
	data, deep bool
}

func (d *dumper) json() bool { return d.format == "json" || d.format == "yaml" }

func (d *dumper) line(l dumpLine) error {
	if err := writeJSONLine(d.out, l); err != nil {
		return writeError(err)
	}
	return nil
}

func (d *dumper) printf(format string, args ...any) { fmt.Fprintf(d.out, format, args...) }

func (d *dumper) file(name string) error {
	kind := log.KindOf(name)
	if !d.json() {
		d.printf("Dumping %s\n", name)
	}
	fsys := vfs.OS()
	l := dumpLine{File: name, Kind: string(kind)}
	switch kind {
	case log.FileSegment:
		return d.segment(fsys, name)
	case log.FileOffsetIndex:
		entries, err := log.InspectOffsetIndex(fsys, name)
		for i := range entries {
			l.Offset = &entries[i]
			d.entry(l, "offset: %d position: %d\n", entries[i].Offset, entries[i].Position)
		}
		return err
	case log.FileTimeIndex:
		entries, err := log.InspectTimeIndex(fsys, name)
		for i := range entries {
			l.Time = &entries[i]
			d.entry(l, "timestamp: %d offset: %d\n", entries[i].Timestamp, entries[i].Offset)
		}
		return err
	case log.FileAbortedIndex:
		entries, err := log.InspectAbortedIndex(fsys, name)
		for i := range entries {
			a := &entries[i]
			l.Aborted = a
			d.entry(l, "version: 0 producerId: %d firstOffset: %d lastOffset: %d lastStableOffset: %d\n", a.ProducerID, a.FirstOffset, a.LastOffset, a.LastStableOffset)
		}
		return err
	case log.FileProducerSnapshot:
		_, producers, err := log.InspectSnapshot(fsys, name)
		for i := range producers {
			p := &producers[i]
			l.Producer = p
			d.entry(l, "producerId: %d producerEpoch: %d coordinatorEpoch: %d currentTxnFirstOffset: %d lastTimestamp: %d lastSequence: %d lastOffset: %d batches: %d\n",
				p.ProducerID, p.ProducerEpoch, p.CoordinatorEpoch, p.CurrentTxnFirstOffset, p.LastTimestamp, p.LastSequence, p.LastOffset, len(p.Batches))
		}
		return err
	case log.FileLeaderEpochs:
		entries, err := log.InspectEpochs(fsys, name)
		for i := range entries {
			l.Epoch = &entries[i]
			d.entry(l, "leaderEpoch: %d startOffset: %d\n", entries[i].LeaderEpoch, entries[i].StartOffset)
		}
		return err
	case log.FilePartitionMetadata:
		info, err := log.InspectPartitionMetadata(fsys, name)
		if err == nil {
			l.Metadata = &info
			d.entry(l, "topicId: %s\n", info.TopicID)
		}
		return err
	case log.FileState:
		info, err := log.InspectState(fsys, name)
		if err == nil {
			l.State = &info
			d.entry(l, "topic: %s partition: %d topicId: %s logId: %s startOffset: %d recoveryPoint: %d cut: %d sealedSegments: %d\n",
				info.Topic, info.Partition, info.TopicID, info.LogID, info.StartOffset, info.RecoveryPoint, info.Cut, len(info.Sealed))
		}
		return err
	case log.FileCheckpoint:
		info, err := log.InspectCheckpoint(fsys, name)
		if err == nil {
			l.Points = &info
			d.entry(l, "oldestGeneration: %d live: %t partitions: %d\n", info.OldestGeneration, info.Live, len(info.RecoveryPoints))
			if !d.json() {
				d.recoveryPoints(info)
			}
		}
		return err
	case log.FileWAL:
		info, err := log.InspectWALFile(fsys, name)
		if errors.Is(err, log.ErrCorrupt) && info.Generation == 0 {
			// A recycled file has no header until it is used again; verify tells a lost header from that.
			d.entry(l, "no header: the file is free\n")
			return nil
		}
		if err == nil {
			l.WAL = &info
			d.entry(l, "generation: %d oldestGeneration: %d blockBytes: %d size: %d frames: %d\n", info.Generation, info.OldestGeneration, info.BlockBytes, info.SizeBytes, len(info.Frames))
			if !d.json() {
				d.frames(info)
			}
		}
		return err
	}
	return errUnknownKind
}

func (d *dumper) recoveryPoints(info log.CheckpointInfo) {
	ids := make([]string, 0, len(info.RecoveryPoints))
	for id := range info.RecoveryPoints {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		d.printf("logId: %s recoveryPoint: %d\n", id, info.RecoveryPoints[id])
	}
}

func (d *dumper) frames(info log.WALFileInfo) {
	for _, f := range info.Frames {
		d.printf("frame: %d position: %d size: %d records: %d\n", f.Sequence, f.Position, f.SizeBytes, len(f.Records))
		if !d.deep {
			continue
		}
		for _, r := range f.Records {
			d.printf("| logId: %s baseOffset: %d nextOffset: %d segment: %d position: %d durableEnd: %d size: %d\n",
				r.LogID, r.BaseOffset, r.NextOffset, r.SegmentBase, r.SegmentPosition, r.DurableEnd, r.SizeBytes)
		}
	}
}

// entry prints one entry in either form. A failed write shows at the next flush.
func (d *dumper) entry(l dumpLine, format string, args ...any) {
	if d.json() {
		_ = d.line(l)
		return
	}
	d.printf(format, args...)
}

// segment prints a segment's batches, and with deep their records.
func (d *dumper) segment(fsys vfs.FS, name string) error {
	first := true
	_, err := log.InspectSegment(fsys, name, func(b log.BatchInfo) error {
		if first && !d.json() {
			if base, err := strconv.ParseInt(strings.TrimSuffix(filepath.Base(name), ".log"), 10, 64); err == nil {
				d.printf("Log starting offset: %d\n", base)
			}
		}
		first = false
		var records []dumpRecord
		var broken error
		if d.deep && b.CRCValid {
			records, broken = d.records(b)
		}
		if d.json() {
			return d.line(dumpLine{File: name, Kind: string(log.FileSegment), Batch: &b, Records: records})
		}
		codec := b.Codec
		if codec == record.CodecNone.String() {
			codec = "none" // as DumpLogSegments says
		}
		d.printf("baseOffset: %d lastOffset: %d count: %d baseSequence: %d lastSequence: %d producerId: %d producerEpoch: %d partitionLeaderEpoch: %d isTransactional: %t isControl: %t position: %d %s: %d size: %d magic: %d compresscodec: %s crc: %d isvalid: %t\n",
			b.BaseOffset, b.LastOffset, b.Count, b.BaseSequence, b.LastSequence, b.ProducerID, b.ProducerEpoch, b.LeaderEpoch, b.Transactional, b.Control,
			b.Position, b.TimestampType, b.MaxTimestamp, b.SizeBytes, b.Magic, codec, b.CRC, b.CRCValid)
		for _, r := range records {
			d.printf("| offset: %d %s: %d keySize: %d valueSize: %d sequence: %d headerKeys: [%s]", r.Offset, b.TimestampType, r.Timestamp, r.KeySize, r.ValueSize, r.Sequence, strings.Join(r.HeaderKeys, ","))
			if b.Marker != "" {
				d.printf(" endTxnMarker: %s coordinatorEpoch: %d", strings.ToUpper(b.Marker), *b.CoordinatorEpoch)
			} else if b.Control {
				d.printf(" controlType: UNKNOWN")
			}
			if b.Control {
				d.printf("\n")
				continue
			}
			if d.data && r.description.Key != nil {
				d.printf(" key: %s", r.description.Key)
			}
			if d.data && r.description.Value != nil {
				d.printf(" payload: %s", r.description.Value)
			}
			d.printf("\n")
		}
		return broken
	})
	return err
}

// records decodes the records of a batch.
func (d *dumper) records(b log.BatchInfo) ([]dumpRecord, error) {
	var out []dumpRecord
	err := b.Batch.Each(0, func(r record.Record) error {
		line := dumpRecord{
			Offset: b.BaseOffset + int64(r.OffsetDelta), Timestamp: b.BaseTimestamp + r.TimestampDelta, KeySize: sizeOf(r.Key), ValueSize: sizeOf(r.Value), Sequence: -1,
		}
		if b.ProducerID >= 0 && b.BaseSequence >= 0 {
			line.Sequence = int32((int64(b.BaseSequence) + int64(r.OffsetDelta)) & (1<<31 - 1))
		}
		for _, h := range r.Headers {
			line.HeaderKeys = append(line.HeaderKeys, string(h.Key))
		}
		if d.data {
			kept := record.Record{Key: slices.Clone(r.Key), Value: slices.Clone(r.Value)}
			line.description = &kept
			if d.json() {
				full := kgo.Record{Offset: line.Offset, Timestamp: time.UnixMilli(line.Timestamp), Key: r.Key, Value: r.Value}
				for _, h := range r.Headers {
					full.Headers = append(full.Headers, kgo.RecordHeader{Key: string(h.Key), Value: h.Value})
				}
				raw := rawJSON(strings.TrimSuffix(string(appendRecordJSON(nil, &full, false)), "\n"))
				line.Record = &raw
			}
		}
		out = append(out, line)
		return nil
	})
	return out, err
}
