package log

import (
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strconv"

	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
)

// The functions of the inspect files read a log directory without opening it: no lock, no recovery, nothing is
// written. They are what `log dump` and `log verify` print, and they are safe on a directory in use, whose tail may then
// look torn.

// FileKind says what a file of a log directory holds.
type FileKind string

// The kinds of files.
const (
	FileSegment           FileKind = "segment"
	FileOffsetIndex       FileKind = "offset-index"
	FileTimeIndex         FileKind = "time-index"
	FileAbortedIndex      FileKind = "transaction-index"
	FileProducerSnapshot  FileKind = "producer-snapshot"
	FileLeaderEpochs      FileKind = "leader-epochs"
	FilePartitionMetadata FileKind = "partition-metadata"
	FileState             FileKind = "state"
	FileCheckpoint        FileKind = "checkpoint"
	FileWAL               FileKind = "write-ahead-log"
	FileUnknown           FileKind = "unknown"
)

// KindOf tells the kind of a file by its name and that of its directory.
func KindOf(name string) FileKind {
	name = filepath.ToSlash(name)
	base := path.Base(name)
	if _, suffix, ok := parseOffsetFileName(base); ok {
		switch suffix {
		case logSuffix:
			return FileSegment
		case indexSuffix:
			return FileOffsetIndex
		case timeIndexSuffix:
			return FileTimeIndex
		case txnIndexSuffix:
			return FileAbortedIndex
		case snapshotSuffix:
			return FileProducerSnapshot
		}
	}
	switch base {
	case epochsName:
		return FileLeaderEpochs
	case metadataName:
		return FilePartitionMetadata
	case stateName:
		return FileState
	case checkpointName:
		return FileCheckpoint
	}
	if _, err := strconv.Atoi(base); err == nil && path.Base(path.Dir(name)) == walName {
		return FileWAL
	}
	return FileUnknown
}

// BatchInfo is one record batch of a segment.
type BatchInfo struct {
	Position      int64  `json:"position"`
	SizeBytes     int    `json:"size_bytes"`
	BaseOffset    int64  `json:"base_offset"`
	LastOffset    int64  `json:"last_offset"`
	Count         int32  `json:"count"`
	LeaderEpoch   int32  `json:"leader_epoch"`
	Magic         int8   `json:"magic"`
	CRC           uint32 `json:"crc"`
	CRCValid      bool   `json:"crc_valid"`
	Codec         string `json:"codec"`
	TimestampType string `json:"timestamp_type"`
	BaseTimestamp int64  `json:"base_timestamp"`
	MaxTimestamp  int64  `json:"max_timestamp"`
	ProducerID    int64  `json:"producer_id"`
	ProducerEpoch int16  `json:"producer_epoch"`
	BaseSequence  int32  `json:"base_sequence"`
	LastSequence  int32  `json:"last_sequence"`
	Transactional bool   `json:"transactional"`
	Control       bool   `json:"control"`
	// Marker is "commit" or "abort" if the batch is a transaction marker; CoordinatorEpoch is in it.
	Marker           string `json:"marker,omitempty"`
	CoordinatorEpoch *int32 `json:"coordinator_epoch,omitempty"`
	// Batch is the batch itself, for a look at its records with Batch.Each; valid only during the callback.
	Batch record.Batch `json:"-"`
}

// OffsetIndexEntry is an entry of an offset index.
type OffsetIndexEntry struct {
	// Offset is the last offset of the batch at Position.
	Offset   int64 `json:"offset"`
	Position int64 `json:"position"`
}

// TimeIndexEntry is an entry of a time index.
type TimeIndexEntry struct {
	// Timestamp is the largest in the segment up to the batch whose last offset is Offset.
	Timestamp int64 `json:"timestamp"`
	Offset    int64 `json:"offset"`
}

// AbortedIndexEntry is an entry of an index of aborted transactions.
type AbortedIndexEntry struct {
	ProducerID int64 `json:"producer_id"`
	// FirstOffset is that of the transaction's first record, LastOffset that of its marker.
	FirstOffset int64 `json:"first_offset"`
	LastOffset  int64 `json:"last_offset"`
	// LastStableOffset is the first offset of the transactions open at the marker, or the offset behind it.
	LastStableOffset int64 `json:"last_stable_offset"`
}

// SnapshotBatch is a batch remembered for a producer.
type SnapshotBatch struct {
	FirstSequence int32 `json:"first_sequence"`
	LastSequence  int32 `json:"last_sequence"`
	BaseOffset    int64 `json:"base_offset"`
	LastOffset    int64 `json:"last_offset"`
	Timestamp     int64 `json:"timestamp"`
}

// SnapshotEntry is one producer of a snapshot, its last batches newest first.
type SnapshotEntry struct {
	ProducerState
	Batches []SnapshotBatch `json:"batches"`
}

// EpochEntry is one leader epoch.
type EpochEntry struct {
	LeaderEpoch int32 `json:"leader_epoch"`
	StartOffset int64 `json:"start_offset"`
}

// SealedSegmentInfo is a closed segment as the manifest in the state file has it.
type SealedSegmentInfo struct {
	BaseOffset   int64 `json:"base_offset"`
	NextOffset   int64 `json:"next_offset"`
	SizeBytes    int64 `json:"size_bytes"`
	MaxTimestamp int64 `json:"max_timestamp"`
	// Aborted is the number of aborted transactions whose markers are in it.
	Aborted int `json:"aborted_transactions"`
}

// StateInfo is the content of a partition's millrace.state.
type StateInfo struct {
	Topic         string `json:"topic"`
	Partition     int32  `json:"partition"`
	TopicID       string `json:"topic_id"`
	LogID         string `json:"log_id"`
	StartOffset   int64  `json:"start_offset"`
	RecoveryPoint int64  `json:"recovery_point"`
	// Cut is the offset of an unfinished truncation, -1 if there is none.
	Cut    int64               `json:"cut"`
	Sealed []SealedSegmentInfo `json:"sealed_segments"`
}

// CheckpointInfo is the content of millrace.checkpoint.
type CheckpointInfo struct {
	OldestGeneration uint64           `json:"oldest_generation"`
	Live             bool             `json:"live"`
	RecoveryPoints   map[string]int64 `json:"recovery_points"` // by log id
}

// PartitionMetadataInfo is the content of partition.metadata.
type PartitionMetadataInfo struct {
	TopicID string `json:"topic_id"`
}

// InspectSegment calls visit for each batch of a segment, in order, and returns the size of the file. It stops at the
// first bytes that are no batch with an error that matches ErrCorrupt and names the position; a batch whose checksum
// does not fit is visited with CRCValid false.
func InspectSegment(fsys vfs.FS, name string, visit func(BatchInfo) error) (sizeBytes int64, err error) {
	f, err := fsys.OpenRead(name)
	if err != nil {
		return 0, fmt.Errorf("read segment %s: %w", name, err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return 0, fmt.Errorf("read segment %s: %w", name, err)
	}
	scan := batchScan{file: f, size: size, lenient: true}
	for {
		b, err := scan.next()
		if errors.Is(err, errTorn) {
			return size, fmt.Errorf("read segment %s: %w: %w", name, ErrCorrupt, err)
		}
		if err != nil {
			return size, fmt.Errorf("read segment %s: %w", name, err)
		}
		if b == nil {
			return size, nil
		}
		if err := visit(batchInfo(b, scan.pos)); err != nil {
			return size, err
		}
		scan.skip(b)
	}
}

func batchInfo(b record.Batch, position int64) BatchInfo {
	kind := "CreateTime"
	if b.TimestampType() == record.LogAppendTime {
		kind = "LogAppendTime"
	}
	info := BatchInfo{
		Position: position, SizeBytes: len(b), BaseOffset: b.BaseOffset(), LastOffset: b.LastOffset(), Count: b.Count(),
		LeaderEpoch: b.LeaderEpoch(), Magic: b.Magic(), CRC: b.CRC(), CRCValid: b.Check() == nil, Codec: b.Codec().String(),
		TimestampType: kind, BaseTimestamp: b.BaseTimestamp(), MaxTimestamp: b.MaxTimestamp(), ProducerID: b.ProducerID(),
		ProducerEpoch: b.ProducerEpoch(), BaseSequence: b.BaseSequence(), LastSequence: b.LastSequence(),
		Transactional: b.IsTransactional(), Control: b.IsControl(), Batch: b,
	}
	if !b.IsControl() || !info.CRCValid {
		return info
	}
	if m, ok := markerOf(b); ok {
		info.Marker, info.CoordinatorEpoch = "abort", &m.CoordinatorEpoch
		if m.Commit {
			info.Marker = "commit"
		}
	}
	return info
}

// InspectOffsetIndex returns the entries of an offset index, with absolute offsets.
func InspectOffsetIndex(fsys vfs.FS, name string) ([]OffsetIndexEntry, error) {
	var out []OffsetIndexEntry
	err := inspectIndex(fsys, name, offsetIndexKind, func(base int64, e indexEntry) {
		out = append(out, OffsetIndexEntry{Offset: base + e.key, Position: int64(e.value)})
	})
	return out, err
}

// InspectTimeIndex returns the entries of a time index, with absolute offsets.
func InspectTimeIndex(fsys vfs.FS, name string) ([]TimeIndexEntry, error) {
	var out []TimeIndexEntry
	err := inspectIndex(fsys, name, timeIndexKind, func(base int64, e indexEntry) {
		out = append(out, TimeIndexEntry{Timestamp: e.key, Offset: base + int64(e.value)})
	})
	return out, err
}

func inspectIndex(fsys vfs.FS, name string, kind indexKind, visit func(base int64, e indexEntry)) error {
	base, _, ok := parseOffsetFileName(path.Base(filepath.ToSlash(name)))
	if !ok {
		return fmt.Errorf("read %s %s: its name is not a base offset", kind.name, name)
	}
	b, err := vfs.ReadFile(fsys, name)
	if err != nil {
		return fmt.Errorf("read %s %s: %w", kind.name, name, err)
	}
	for ; len(b) >= kind.entryBytes; b = b[kind.entryBytes:] {
		visit(base, kind.get(b))
	}
	if len(b) > 0 {
		return fmt.Errorf("read %s %s: %w: %d bytes of an entry at the end", kind.name, name, ErrCorrupt, len(b))
	}
	return nil
}

// InspectAbortedIndex returns the entries of an index of aborted transactions.
func InspectAbortedIndex(fsys vfs.FS, name string) ([]AbortedIndexEntry, error) {
	b, err := vfs.ReadFile(fsys, name)
	if err != nil {
		return nil, fmt.Errorf("read index of aborted transactions %s: %w", name, err)
	}
	var out []AbortedIndexEntry
	for ; len(b) >= abortedEntryBytes; b = b[abortedEntryBytes:] {
		e, err := decodeAborted(b)
		if err != nil {
			return out, fmt.Errorf("read index of aborted transactions %s: %w: entry %d: %w", name, ErrCorrupt, len(out), err)
		}
		out = append(out, AbortedIndexEntry{ProducerID: e.producerID, FirstOffset: e.first, LastOffset: e.last, LastStableOffset: e.lastStable})
	}
	if len(b) > 0 {
		return out, fmt.Errorf("read index of aborted transactions %s: %w: %d bytes of an entry at the end", name, ErrCorrupt, len(b))
	}
	return out, nil
}

// InspectSnapshot returns the producers of a snapshot, sorted by id, and the offset it was taken at.
func InspectSnapshot(fsys vfs.FS, name string) (offset int64, producers []SnapshotEntry, err error) {
	offset, _, ok := parseOffsetFileName(path.Base(filepath.ToSlash(name)))
	if !ok {
		return 0, nil, fmt.Errorf("read producer snapshot %s: its name is not an offset", name)
	}
	b, err := vfs.ReadFile(fsys, name)
	if err != nil {
		return offset, nil, fmt.Errorf("read producer snapshot %s: %w", name, err)
	}
	snap, err := decodeSnapshot(b, offset, 0)
	if err != nil {
		return offset, nil, fmt.Errorf("read producer snapshot %s: %w", name, err)
	}
	p := &snap.producers
	for _, s := range p.list() {
		e := SnapshotEntry{ProducerState: s}
		known := p.byID[s.ProducerID]
		for i := range known.batches[:known.count] {
			k := &known.batches[i]
			e.Batches = append(e.Batches, SnapshotBatch{
				FirstSequence: k.firstSequence, LastSequence: k.lastSequence, BaseOffset: k.baseOffset(), LastOffset: k.lastOffset, Timestamp: k.timestamp,
			})
		}
		producers = append(producers, e)
	}
	return offset, producers, nil
}

// InspectEpochs returns the entries of a leader-epoch-checkpoint.
func InspectEpochs(fsys vfs.FS, name string) ([]EpochEntry, error) {
	b, err := vfs.ReadFile(fsys, name)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	list, err := decodeEpochs(b)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	out := make([]EpochEntry, len(list))
	for i, e := range list {
		out[i] = EpochEntry{LeaderEpoch: e.leaderEpoch, StartOffset: e.start}
	}
	return out, nil
}

// InspectPartitionMetadata returns the content of partition.metadata.
func InspectPartitionMetadata(fsys vfs.FS, name string) (PartitionMetadataInfo, error) {
	b, err := vfs.ReadFile(fsys, name)
	if err != nil {
		return PartitionMetadataInfo{}, fmt.Errorf("read %s: %w", name, err)
	}
	id, err := decodePartitionMetadata(b)
	if err != nil {
		return PartitionMetadataInfo{}, fmt.Errorf("read %s: %w", name, err)
	}
	return PartitionMetadataInfo{TopicID: topicIDString(id)}, nil
}

// InspectState returns the content of a partition's state file.
func InspectState(fsys vfs.FS, name string) (StateInfo, error) {
	b, err := vfs.ReadFile(fsys, name)
	if err != nil {
		return StateInfo{}, fmt.Errorf("read %s: %w", name, err)
	}
	s, err := decodeState(b)
	if err != nil {
		return StateInfo{}, fmt.Errorf("read %s: %w", name, err)
	}
	info := StateInfo{
		Topic: s.topic, Partition: s.partition, TopicID: topicIDString(s.topicID), LogID: logIDString(s.logID),
		StartOffset: s.start, RecoveryPoint: s.recoveryPoint, Cut: s.cut,
	}
	for _, g := range s.sealed {
		info.Sealed = append(info.Sealed, SealedSegmentInfo{BaseOffset: g.base, NextOffset: g.next, SizeBytes: g.sizeBytes, MaxTimestamp: g.maxTimestamp, Aborted: g.aborted.count})
	}
	return info, nil
}

// InspectCheckpoint returns the content of a checkpoint file.
func InspectCheckpoint(fsys vfs.FS, name string) (CheckpointInfo, error) {
	b, err := vfs.ReadFile(fsys, name)
	if err != nil {
		return CheckpointInfo{}, fmt.Errorf("read %s: %w", name, err)
	}
	c, err := decodeCheckpoint(b)
	if err != nil {
		return CheckpointInfo{}, fmt.Errorf("read %s: %w", name, err)
	}
	info := CheckpointInfo{OldestGeneration: c.oldest, Live: c.live, RecoveryPoints: make(map[string]int64, len(c.recoveryPoints))}
	for id, rp := range c.recoveryPoints {
		info.RecoveryPoints[logIDString(id)] = rp
	}
	return info, nil
}

func logIDString(id uint64) string { return fmt.Sprintf("%016x", id) }

// WALFileInfo is one file of the write-ahead log with the frames that fit its header.
type WALFileInfo struct {
	Generation       uint64         `json:"generation"`
	Nonce            string         `json:"nonce"`
	OldestGeneration uint64         `json:"oldest_generation"`
	BlockBytes       int            `json:"block_bytes"`
	SizeBytes        int64          `json:"size_bytes"`
	Frames           []WALFrameInfo `json:"frames"`
}

// WALFrameInfo is one frame: what one fdatasync made durable.
type WALFrameInfo struct {
	Sequence  uint64          `json:"sequence"`
	Position  int64           `json:"position"`
	SizeBytes int64           `json:"size_bytes"`
	Records   []WALRecordInfo `json:"records"`
}

// WALRecordInfo is a run of batches of one partition.
type WALRecordInfo struct {
	LogID           string `json:"log_id"`
	BaseOffset      int64  `json:"base_offset"`
	NextOffset      int64  `json:"next_offset"`
	SegmentBase     int64  `json:"segment_base"`
	SegmentPosition int64  `json:"segment_position"`
	DurableEnd      int64  `json:"durable_end"`
	SizeBytes       int    `json:"size_bytes"`
}

// InspectWALFile returns the header of a file of the write-ahead log and its frames, up to the first that does not fit:
// behind it may be older frames of the recycled file, which are void. An error that matches ErrCorrupt says that the
// file has no header: it is free, or its header was lost.
func InspectWALFile(fsys vfs.FS, name string) (WALFileInfo, error) {
	number, err := strconv.Atoi(path.Base(filepath.ToSlash(name)))
	if err != nil {
		return WALFileInfo{}, fmt.Errorf("read write-ahead log file %s: its name is not a number", name)
	}
	r, err := new(walScan).open(fsys, filepath.Dir(name), number)
	if err != nil {
		return WALFileInfo{}, err
	}
	defer r.file.Close()
	info := WALFileInfo{SizeBytes: r.size}
	b, err := r.bytes(0, walHeaderBytes, walHeaderBytes)
	if err != nil {
		return info, err
	}
	h, err := decodeWALHeader(b)
	if err != nil {
		return info, fmt.Errorf("read write-ahead log file %s: %w: %w", name, ErrCorrupt, err)
	}
	info.Generation, info.Nonce, info.OldestGeneration, info.BlockBytes = h.generation, hex.EncodeToString(h.nonce[:]), h.oldest, h.blockBytes
	sequence := h.firstSequence
	for off := int64(h.blockBytes); ; sequence++ {
		body, records, err := r.frame(off, &h, sequence)
		if err != nil || body == nil {
			return info, err
		}
		frame := WALFrameInfo{Sequence: sequence, Position: off, SizeBytes: alignUp(int64(walFrameHeadBytes+len(body)), h.blockBytes)}
		for range records {
			rec, rest, err := decodeWALRecord(body)
			if err != nil {
				return info, fmt.Errorf("read frame %d of write-ahead log file %s: %w: %w", sequence, name, ErrCorrupt, err)
			}
			frame.Records = append(frame.Records, WALRecordInfo{
				LogID: logIDString(rec.logID), BaseOffset: rec.base, NextOffset: rec.next, SegmentBase: rec.segmentBase,
				SegmentPosition: rec.position, DurableEnd: rec.durableEnd, SizeBytes: rec.length(),
			})
			body = rest
		}
		info.Frames = append(info.Frames, frame)
		off += frame.SizeBytes
	}
}
