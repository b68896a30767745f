package replication

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/log/vfs"
	"github.com/millrace/millrace/metadata"
)

// checkpointName is Kafka's name for the file of high watermarks, in the log directory.
const checkpointName = "replication-offset-checkpoint"

// checkpointEntry is one line of the file.
type checkpointEntry struct {
	TopicIDPartition
	topic         string
	highWatermark int64
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encodeCheckpoint writes Kafka's text form, version 0:
//
//	0                        version
//	4                        number of the lines that follow
//	#<topic id> 0 0          the next lines are of the topic with this id
//	orders 0 1234            topic, partition, high watermark
//	orders 1 99
//	#crc32c 0 305419896      CRC-32C of all that stands above it
//
// The lines with # are lines of partitions to Kafka, of topics that cannot exist.
func encodeCheckpoint(entries []checkpointEntry) []byte {
	slices.SortFunc(entries, func(a, b checkpointEntry) int {
		if c := strings.Compare(a.topic, b.topic); c != 0 {
			return c
		}
		if c := bytes.Compare(a.TopicID[:], b.TopicID[:]); c != 0 {
			return c
		}
		return int(a.Partition) - int(b.Partition)
	})
	lines := 1
	var body []byte
	var id metadata.TopicID
	for i, e := range entries {
		if i == 0 || e.TopicID != id {
			id = e.TopicID
			body = append(body, '#')
			body = append(body, id.String()...)
			body = append(body, " 0 0\n"...)
			lines++
		}
		body = append(body, e.topic...)
		body = append(body, ' ')
		body = strconv.AppendInt(body, int64(e.Partition), 10)
		body = append(body, ' ')
		body = strconv.AppendInt(body, e.highWatermark, 10)
		body = append(body, '\n')
		lines++
	}
	out := append([]byte("0\n"), strconv.Itoa(lines)...)
	out = append(out, '\n')
	out = append(out, body...)
	return fmt.Appendf(out, "#crc32c 0 %d\n", crc32.Checksum(out, castagnoli))
}

var errBadCheckpoint = errors.New("not a high watermark checkpoint")

// decodeCheckpoint reads what encodeCheckpoint wrote. Anything else is an error: the file is a hint and is then ignored
// as a whole (L5).
func decodeCheckpoint(b []byte) (map[TopicIDPartition]int64, error) {
	at := bytes.LastIndex(b, []byte("#crc32c 0 "))
	if at < 0 || len(b) == 0 || b[len(b)-1] != '\n' {
		return nil, fmt.Errorf("%w: no checksum", errBadCheckpoint)
	}
	if sum := string(b[at+len("#crc32c 0 ") : len(b)-1]); sum != strconv.FormatUint(uint64(crc32.Checksum(b[:at], castagnoli)), 10) {
		return nil, fmt.Errorf("%w: checksum does not fit", errBadCheckpoint)
	}
	lines := strings.Split(string(b[:at]), "\n")
	if len(lines) < 3 || lines[0] != "0" {
		return nil, fmt.Errorf("%w: unknown version", errBadCheckpoint)
	}
	marks := make(map[TopicIDPartition]int64, len(lines))
	var id metadata.TopicID
	for _, line := range lines[2 : len(lines)-1] {
		f := strings.Split(line, " ")
		if len(f) != 3 {
			return nil, fmt.Errorf("%w: line %q", errBadCheckpoint, line)
		}
		if name, ok := strings.CutPrefix(f[0], "#"); ok {
			var err error
			if id, err = metadata.ParseTopicID(name); err != nil {
				return nil, fmt.Errorf("%w: line %q: %w", errBadCheckpoint, line, err)
			}
			continue
		}
		p, err1 := strconv.ParseInt(f[1], 10, 32)
		hw, err2 := strconv.ParseInt(f[2], 10, 64)
		if err := errors.Join(err1, err2); err != nil || p < 0 || hw < 0 {
			return nil, fmt.Errorf("%w: line %q", errBadCheckpoint, line)
		}
		marks[TopicIDPartition{id, int32(p)}] = hw
	}
	return marks, nil
}

// readCheckpoint returns the high watermarks of the last run. None at all is not an error: with one replica they follow
// from the log, with more the new leader learns them from the others' fetches (R7).
func readCheckpoint(fsys vfs.FS, dir string) (map[TopicIDPartition]int64, error) {
	b, err := vfs.ReadFile(fsys, vfs.Join(dir, checkpointName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", checkpointName, err)
	}
	return decodeCheckpoint(b)
}

// checkpoint writes the high watermarks of all partitions. Only what is durable is spoken of (L5).
func (m *Manager) checkpoint() error {
	m.checkpointing.Lock()
	defer m.checkpointing.Unlock()
	var entries []checkpointEntry
	for p := range m.Partitions() {
		entries = append(entries, checkpointEntry{TopicIDPartition{p.topic.id, p.partition}, p.topic.name, min(p.highWatermark.Load(), p.log.DurableEnd())})
	}
	b := encodeCheckpoint(entries)
	if bytes.Equal(b, m.lastCheckpoint) {
		return nil
	}
	if err := vfs.ReplaceFile(m.cfg.FS, m.cfg.Dir.Path(), checkpointName, b); err != nil {
		return fmt.Errorf("write %s: %w", checkpointName, err)
	}
	m.lastCheckpoint = b
	return nil
}
