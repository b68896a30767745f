package log

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
)

// Severity grades a finding of verification.
type Severity string

// The severities.
const (
	// SeverityInfo: nothing is wrong; a cache will be rebuilt, or a tail that was never acknowledged cut off.
	SeverityInfo Severity = "info"
	// SeverityWarning: durable records are all there, but something beside them is missing or bad.
	SeverityWarning Severity = "warning"
	// SeverityError: durable records are missing or changed.
	SeverityError Severity = "error"
)

// Finding is one thing that verification noticed.
type Finding struct {
	Severity Severity `json:"severity"`
	File     string   `json:"file"`
	Message  string   `json:"message"`
}

// PartitionReport is the outcome of verifying one partition's directory.
type PartitionReport struct {
	Directory   string    `json:"directory"`
	Topic       string    `json:"topic"`
	Partition   int32     `json:"partition"`
	TopicID     string    `json:"topic_id"`
	StartOffset int64     `json:"start_offset"`
	EndOffset   int64     `json:"end_offset"`
	Segments    int       `json:"segments"`
	Batches     int64     `json:"batches"`
	Records     int64     `json:"records"`
	Aborted     int64     `json:"aborted_transactions"`
	SizeBytes   int64     `json:"size_bytes"`
	Findings    []Finding `json:"findings"`
}

// DirReport is the outcome of verifying a log directory.
type DirReport struct {
	Directory  string            `json:"directory"`
	CleanStop  bool              `json:"clean_stop"`
	Partitions []PartitionReport `json:"partitions"`
	Strays     []string          `json:"strays"`
	WALFrames  int               `json:"wal_frames"`
	WALRecords int               `json:"wal_records"`
	Findings   []Finding         `json:"findings"`
}

// Worst returns the worst severity found, "" if there is no finding.
func (r *DirReport) Worst() Severity {
	worst := worstOf(r.Findings)
	for i := range r.Partitions {
		worst = worse(worst, worstOf(r.Partitions[i].Findings))
	}
	return worst
}

func worstOf(findings []Finding) (worst Severity) {
	for _, f := range findings {
		worst = worse(worst, f.Severity)
	}
	return worst
}

var severityRank = map[Severity]int{"": 0, SeverityInfo: 1, SeverityWarning: 2, SeverityError: 3}

func worse(a, b Severity) Severity {
	if severityRank[b] > severityRank[a] {
		return b
	}
	return a
}

// VerifyDir reads every byte of a log directory and reports what is wrong with it. Nothing is written. visit, if not
// nil, is called after each partition. The error is of the file system; what is wrong with the files is a finding.
func VerifyDir(fsys vfs.FS, dir string, visit func(PartitionReport)) (DirReport, error) {
	r := DirReport{Directory: dir}
	entries, err := fsys.List(dir)
	if err != nil {
		return r, fmt.Errorf("verify %s: %w", dir, err)
	}
	cp, err := readCheckpoint(fsys, dir)
	if errors.Is(err, ErrCorrupt) {
		r.Findings = append(r.Findings, Finding{SeverityInfo, checkpointName, err.Error()})
	} else if err != nil {
		return r, fmt.Errorf("verify %s: %w", dir, err)
	}
	if r.CleanStop, err = vfs.Exists(fsys, vfs.Join(dir, cleanName)); err != nil {
		return r, fmt.Errorf("verify %s: %w", dir, err)
	}
	// What the write-ahead log holds is not in the segments yet, as far as they are synced: a short tail is fine then.
	inWAL := make(map[uint64]int64)
	scan, err := scanWAL(fsys, vfs.Join(dir, walName), walBlockBytes, cp, func(ref walRef) error {
		inWAL[ref.logID] = max(inWAL[ref.logID], ref.next)
		return nil
	})
	if err != nil {
		return r, fmt.Errorf("verify %s: %w", dir, err)
	}
	r.WALFrames, r.WALRecords = scan.frames, scan.records
	for _, damage := range scan.damage {
		r.Findings = append(r.Findings, Finding{SeverityError, walName, damage})
	}
	ours, err := vfs.Exists(fsys, vfs.Join(dir, directoryName))
	if err != nil {
		return r, fmt.Errorf("verify %s: %w", dir, err)
	}
	foreign := !ours
	for _, e := range entries {
		if !e.Dir {
			continue
		}
		if strings.HasSuffix(e.Name, straySuffix) {
			r.Strays = append(r.Strays, e.Name)
			continue
		}
		if _, _, ok := parsePartitionDirName(e.Name); !ok {
			continue
		}
		p, err := verifyPartition(fsys, vfs.Join(dir, e.Name), cp, inWAL, foreign)
		if err != nil {
			return r, err
		}
		r.Partitions = append(r.Partitions, p)
		if visit != nil {
			visit(p)
		}
	}
	return r, nil
}

// VerifyPartition verifies the directory of one partition by itself, without the write-ahead log and the checkpoint
// beside it: it may report a tail as torn that recovery would complete.
func VerifyPartition(fsys vfs.FS, dir string) (PartitionReport, error) {
	ours, err := vfs.Exists(fsys, vfs.Join(path.Dir(dir), directoryName))
	if err != nil {
		return PartitionReport{Directory: dir}, fmt.Errorf("verify %s: %w", dir, err)
	}
	return verifyPartition(fsys, dir, checkpoint{}, nil, !ours)
}

// partitionCheck verifies one partition.
type partitionCheck struct {
	fsys   vfs.FS
	dir    string
	report PartitionReport
	state  state
	// foreign: the partition has no state file and needs none.
	foreign bool
	sizes   map[string]int64
	// floor: all below must be in the segments.
	floor  int64
	inWAL  int64
	epochs epochs
	// replay holds the producers and transactions told by the batches so far, from the start of the log.
	replay replay
	// firstBase is where the batches begin: what a transaction had before is gone.
	firstBase int64
	next      int64
}

// verifyPartition verifies one partition. foreign says that its directory is not one of ours: Apache Kafka writes the
// same files but no state file, and its absence there is no damage.
func verifyPartition(fsys vfs.FS, dir string, cp checkpoint, inWAL map[uint64]int64, foreign bool) (PartitionReport, error) {
	c := &partitionCheck{fsys: fsys, dir: dir, sizes: make(map[string]int64), replay: replay{producers: newProducers()}}
	c.report.Directory = dir
	c.report.Topic, c.report.Partition, _ = parsePartitionDirName(path.Base(dir))
	entries, err := fsys.List(dir)
	if err != nil {
		return c.report, fmt.Errorf("verify %s: %w", dir, err)
	}
	for _, e := range entries {
		if !e.Dir {
			c.sizes[e.Name] = e.Size
		}
	}
	b, err := vfs.ReadFile(fsys, vfs.Join(dir, stateName))
	if err == nil {
		c.state, err = decodeState(b)
	}
	if err != nil {
		if !absent(err) && !errors.Is(err, ErrCorrupt) {
			return c.report, fmt.Errorf("verify %s: %w", dir, err)
		}
		c.state = state{cut: -1}
		if c.foreign = foreign && absent(err); c.foreign {
			c.find(SeverityInfo, stateName, "there is none: another broker wrote this partition")
		} else {
			c.find(SeverityError, stateName, "%v", err)
		}
	}
	c.floor, c.inWAL = max(c.state.recoveryPoint, cp.recoveryPoints[c.state.logID]), inWAL[c.state.logID]
	c.report.TopicID, c.report.StartOffset = topicIDString(c.state.topicID), c.state.start
	if c.state.cut >= 0 {
		c.find(SeverityInfo, stateName, "a truncation to %d was interrupted; the next start finishes it", c.state.cut)
	}
	if err := c.metadata(); err != nil {
		return c.report, err
	}
	if err := c.segments(); err != nil {
		return c.report, err
	}
	if err := c.epochFile(); err != nil {
		return c.report, err
	}
	return c.report, nil
}

func (c *partitionCheck) find(s Severity, file, format string, args ...any) {
	c.report.Findings = append(c.report.Findings, Finding{s, file, fmt.Sprintf(format, args...)})
}

func (c *partitionCheck) metadata() error {
	info, err := InspectPartitionMetadata(c.fsys, vfs.Join(c.dir, metadataName))
	switch {
	case err == nil && c.foreign:
		c.report.TopicID = info.TopicID
	case err == nil && info.TopicID != c.report.TopicID:
		c.find(SeverityError, metadataName, "topic id %s, but %s has %s", info.TopicID, stateName, c.report.TopicID)
	case err == nil:
	case absent(err) || errors.Is(err, ErrCorrupt):
		c.find(SeverityWarning, metadataName, "%v", err)
	default:
		return fmt.Errorf("verify %s: %w", c.dir, err)
	}
	return nil
}

// segments checks all segments in order, and with each its indexes and the snapshot at its base.
func (c *partitionCheck) segments() error {
	var bases []int64
	for name := range c.sizes {
		if base, suffix, ok := parseOffsetFileName(name); ok && suffix == logSuffix {
			bases = append(bases, base)
		}
	}
	slices.Sort(bases)
	for _, g := range c.state.sealed {
		name := offsetFileName(g.base, logSuffix)
		switch size, ok := c.sizes[name]; {
		case !ok && g.next > c.state.start:
			c.find(SeverityError, name, "segment with the offsets %d to %d is missing", g.base, g.next)
		case ok && size != g.sizeBytes:
			c.find(SeverityError, name, "%d bytes, should be %d", size, g.sizeBytes)
		}
	}
	if len(bases) > 0 {
		c.next, c.firstBase = bases[0], bases[0]
		if bases[0] > c.state.start {
			c.find(SeverityError, offsetFileName(bases[0], logSuffix), "offsets from %d on are missing", c.state.start)
		}
	}
	for i, base := range bases {
		c.report.Segments++
		if base != c.next {
			s := SeverityInfo
			if base <= c.floor {
				s = SeverityError
			}
			c.find(s, offsetFileName(base, logSuffix), "begins at %d, the segment before ends at %d", base, c.next)
			c.next = base
		}
		if err := c.snapshot(base); err != nil {
			return err
		}
		if stop, err := c.segment(base, i == len(bases)-1); err != nil || stop {
			return err
		}
	}
	c.report.EndOffset = c.next
	if c.next < c.floor {
		c.find(SeverityError, "", "the log ends at %d, but was durable up to %d", c.next, c.floor)
	}
	return nil
}

// segment checks one segment; stop says that the log ends in it.
func (c *partitionCheck) segment(base int64, active bool) (stop bool, err error) {
	name := offsetFileName(base, logSuffix)
	fresh := newSegment(c.dir, base)
	type header struct{ position, last, maxTimestamp int64 }
	var headers []header
	var aborted []abortedEntry
	c.replay.aborted = func(e abortedEntry) { aborted = append(aborted, e) }
	size, err := InspectSegment(c.fsys, vfs.Join(c.dir, name), func(b BatchInfo) error {
		if !b.CRCValid {
			return fmt.Errorf("%w: batch at position %d: %w", ErrCorrupt, b.Position, b.Batch.Check())
		}
		h := b.Batch.Header()
		// Compaction leaves gaps, but never goes back.
		if b.BaseOffset < c.next && b.Position > 0 || b.BaseOffset < base {
			return fmt.Errorf("%w: batch at position %d begins at %d, expected %d", ErrCorrupt, b.Position, b.BaseOffset, c.next)
		}
		if last := c.epochs.last(); b.LeaderEpoch < last {
			return fmt.Errorf("%w: leader epoch falls from %d to %d at offset %d", ErrCorrupt, last, b.LeaderEpoch, b.BaseOffset)
		}
		c.epochs.assign(b.LeaderEpoch, b.BaseOffset)
		var marker *record.Marker
		if h.IsControl() {
			marker = controlMarker(b.Batch)
		}
		c.replay.batch(&h, marker)
		headers = append(headers, header{b.Position, b.LastOffset, b.MaxTimestamp})
		fresh.size, fresh.next = b.Position+int64(b.SizeBytes), b.LastOffset+1
		c.next = b.LastOffset + 1
		c.report.Batches++
		c.report.Records += int64(b.Count)
		return nil
	})
	c.report.SizeBytes += size
	if err != nil {
		if !errors.Is(err, ErrCorrupt) {
			return false, fmt.Errorf("verify %s: %w", c.dir, err)
		}
		switch {
		case c.next < c.floor:
			c.find(SeverityError, name, "%v", err)
		case c.inWAL > c.next:
			c.find(SeverityInfo, name, "%d bytes at the end are not whole; the write-ahead log has the records up to %d: %v", size-fresh.size, c.inWAL, err)
		default:
			c.find(SeverityInfo, name, "torn tail of %d bytes; the next start cuts it off: %v", size-fresh.size, err)
		}
		stop = c.next >= c.floor
	}
	at := func(last int64) (header, bool) {
		i, ok := slices.BinarySearchFunc(headers, last, func(h header, last int64) int { return compareInt64(h.last, last) })
		if !ok {
			return header{}, false
		}
		return headers[i], true
	}
	sound := SeverityInfo // indexes are caches
	if index := offsetFileName(base, indexSuffix); c.sizes[index] > 0 {
		entries, ierr := InspectOffsetIndex(c.fsys, vfs.Join(c.dir, index))
		if ierr != nil {
			c.find(sound, index, "%v", ierr)
		}
		for i, e := range entries {
			h, ok := at(e.Offset)
			if e.Offset >= c.next && stop {
				break
			}
			if !ok || h.position != e.Position || i > 0 && e.Offset <= entries[i-1].Offset {
				c.find(sound, index, "entry %d leads to position %d for offset %d; the index will be rebuilt", i, e.Position, e.Offset)
				break
			}
		}
	} else if !active && size > 2*DefaultSettings().IndexIntervalBytes+1<<20 {
		c.find(sound, index, "missing; it will be rebuilt")
	}
	if times := offsetFileName(base, timeIndexSuffix); c.sizes[times] > 0 {
		entries, terr := InspectTimeIndex(c.fsys, vfs.Join(c.dir, times))
		if terr != nil {
			c.find(sound, times, "%v", terr)
		}
		for i, e := range entries {
			h, ok := at(e.Offset)
			if e.Offset >= c.next && stop {
				break
			}
			if !ok || h.maxTimestamp != e.Timestamp || i > 0 && e.Timestamp <= entries[i-1].Timestamp {
				c.find(sound, times, "entry %d tells of timestamp %d at offset %d; the index will be rebuilt", i, e.Timestamp, e.Offset)
				break
			}
		}
	}
	return stop, c.abortedIndex(base, aborted)
}

// abortedIndex compares the index of aborted transactions of a segment with those that the batches tell of. Above the
// recovery point it may lack some.
func (c *partitionCheck) abortedIndex(base int64, want []abortedEntry) error {
	name := offsetFileName(base, txnIndexSuffix)
	var entries []AbortedIndexEntry
	if _, there := c.sizes[name]; there {
		var err error
		if entries, err = InspectAbortedIndex(c.fsys, vfs.Join(c.dir, name)); err != nil {
			if !errors.Is(err, ErrCorrupt) {
				return fmt.Errorf("verify %s: %w", c.dir, err)
			}
			c.find(SeverityWarning, name, "%v; it will be rebuilt", err)
		}
	}
	c.report.Aborted += int64(len(want))
	known := make(map[int64]AbortedIndexEntry, len(entries))
	for _, e := range entries {
		known[e.LastOffset] = e
	}
	for _, w := range want {
		e, ok := known[w.last]
		delete(known, w.last)
		switch {
		case !ok && w.last < c.floor || !ok && c.foreign:
			c.find(SeverityWarning, name, "lacks the transaction of producer %d from %d to %d; it will be rebuilt", w.producerID, w.first, w.last)
		case !ok:
		case e.ProducerID != w.producerID || e.FirstOffset > w.first || e.FirstOffset < w.first && e.FirstOffset >= c.firstBase:
			c.find(SeverityWarning, name, "has producer %d from %d to %d, the batches say producer %d from %d; it will be rebuilt", e.ProducerID, e.FirstOffset, w.last, w.producerID, w.first)
		}
	}
	for _, e := range entries {
		if _, left := known[e.LastOffset]; left && e.FirstOffset >= c.firstBase && e.LastOffset < c.floor {
			c.find(SeverityWarning, name, "has the transaction of producer %d from %d to %d, which the batches do not know; it will be rebuilt", e.ProducerID, e.FirstOffset, e.LastOffset)
		}
	}
	return nil
}

// snapshot compares a producer snapshot with what the batches below it tell, if all of them are still there.
func (c *partitionCheck) snapshot(offset int64) error {
	name := offsetFileName(offset, snapshotSuffix)
	if _, ok := c.sizes[name]; !ok {
		return nil
	}
	_, entries, err := InspectSnapshot(c.fsys, vfs.Join(c.dir, name))
	if errors.Is(err, ErrCorrupt) {
		c.find(SeverityWarning, name, "%v", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("verify %s: %w", c.dir, err)
	}
	for _, e := range entries {
		known, ok := c.replay.producers.byID[e.ProducerID]
		if !ok {
			continue // its batches were deleted by retention
		}
		if first := known.txnFirstOffset; first != e.CurrentTxnFirstOffset && (first < 0 || e.CurrentTxnFirstOffset >= c.firstBase || e.CurrentTxnFirstOffset < 0) {
			c.find(SeverityWarning, name, "producer %d: open transaction from offset %d, the batches say %d", e.ProducerID, e.CurrentTxnFirstOffset, first)
		}
		if known.count > 0 && (e.LastOffset != known.batches[0].lastOffset || e.LastSequence != known.batches[0].lastSequence || e.ProducerEpoch != known.epoch) {
			c.find(SeverityWarning, name, "producer %d: last sequence %d at offset %d, the batches say %d at %d", e.ProducerID,
				e.LastSequence, e.LastOffset, known.batches[0].lastSequence, known.batches[0].lastOffset)
		}
	}
	return nil
}

// epochFile compares the epoch file with the epochs of the batches.
func (c *partitionCheck) epochFile() error {
	entries, err := InspectEpochs(c.fsys, vfs.Join(c.dir, epochsName))
	if absent(err) {
		if len(c.epochs.list) > 0 && c.epochs.list[0].start < c.floor {
			c.find(SeverityWarning, epochsName, "missing; it will be rebuilt from the batches")
		}
		return nil
	}
	if errors.Is(err, ErrCorrupt) {
		c.find(SeverityWarning, epochsName, "%v", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("verify %s: %w", c.dir, err)
	}
	known := make(map[int32]int64, len(entries))
	for _, e := range entries {
		known[e.LeaderEpoch] = e.StartOffset
	}
	for _, e := range c.epochs.list {
		start, ok := known[e.leaderEpoch]
		if e.start >= c.floor || e.start < c.state.start && ok {
			continue
		}
		if !ok || start != e.start {
			c.find(SeverityWarning, epochsName, "leader epoch %d begins at offset %d, the file says %d", e.leaderEpoch, e.start, start)
		}
	}
	return nil
}
