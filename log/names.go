package log

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// Names in a log directory.
const (
	lockName       = "millrace.lock"
	directoryName  = "millrace.directory"
	cleanName      = "millrace.clean"
	checkpointName = "millrace.checkpoint"
	ballastName    = "millrace.ballast"
	walName        = "wal"
)

// Names in the directory of a partition.
const (
	stateName    = "millrace.state"
	metadataName = "partition.metadata"
	epochsName   = "leader-epoch-checkpoint"

	logSuffix       = ".log"
	indexSuffix     = ".index"
	timeIndexSuffix = ".timeindex"
	snapshotSuffix  = ".snapshot"
	txnIndexSuffix  = ".txnindex"

	deleteSuffix = "-delete"
	straySuffix  = "-stray"
	tmpSuffix    = ".tmp"
)

// maxNameBytes is the longest name of a directory entry on the file systems in use.
const maxNameBytes = 255

// offsetFileName names a file of a segment or snapshot as Kafka does.
func offsetFileName(offset int64, suffix string) string {
	return fmt.Sprintf("%020d%s", offset, suffix)
}

// parseOffsetFileName splits "00000000000000000042.log"; ok only for names that offsetFileName makes.
func parseOffsetFileName(name string) (offset int64, suffix string, ok bool) {
	if len(name) < 21 || name[20] != '.' {
		return 0, "", false
	}
	for i := range 20 {
		if name[i] < '0' || name[i] > '9' {
			return 0, "", false
		}
	}
	offset, err := strconv.ParseInt(name[:20], 10, 64)
	if err != nil {
		return 0, "", false
	}
	return offset, name[20:], true
}

// partitionDirName names the directory of a partition.
func partitionDirName(topic string, partition int32) string {
	return topic + "-" + strconv.FormatInt(int64(partition), 10)
}

// parsePartitionDirName splits the name of a live partition's directory.
func parsePartitionDirName(name string) (topic string, partition int32, ok bool) {
	i := strings.LastIndexByte(name, '-')
	if i <= 0 || strings.HasSuffix(name, deleteSuffix) || strings.HasSuffix(name, straySuffix) {
		return "", 0, false
	}
	p, err := strconv.ParseInt(name[i+1:], 10, 32)
	if err != nil || p < 0 || strconv.FormatInt(p, 10) != name[i+1:] {
		return "", 0, false
	}
	return name[:i], int32(p), true
}

// retiredDirName names a partition's directory that is being deleted or was set aside: unique by its log id, so that
// the topic's name may be used again at once (W18). Long names are cut to fit.
func retiredDirName(topic string, partition int32, logID uint64, suffix string) string {
	tail := fmt.Sprintf("-%d.%016x%s", partition, logID, suffix)
	return topic[:min(len(topic), maxNameBytes-len(tail))] + tail
}

// topicIDString is Kafka's form of a UUID.
func topicIDString(id [16]byte) string { return base64.RawURLEncoding.EncodeToString(id[:]) }

// encodePartitionMetadata returns the content of partition.metadata.
func encodePartitionMetadata(id [16]byte) []byte {
	return []byte("version: 0\ntopic_id: " + topicIDString(id) + "\n")
}

// decodePartitionMetadata reads the topic id from the content of partition.metadata.
func decodePartitionMetadata(b []byte) (id [16]byte, err error) {
	version := ""
	text := ""
	for line := range strings.Lines(string(b)) {
		key, value, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ": ")
		switch {
		case !ok:
			return id, fmt.Errorf("%w: line %q of %s", ErrCorrupt, line, metadataName)
		case key == "version":
			version = value
		case key == "topic_id":
			text = value
		}
	}
	if version != "0" {
		return id, fmt.Errorf("%w: version %q of %s", ErrCorrupt, version, metadataName)
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(raw) != len(id) {
		return id, fmt.Errorf("%w: topic id %q in %s", ErrCorrupt, text, metadataName)
	}
	return [16]byte(raw), nil
}

// idString is how directory ids appear in messages.
func idString(id [16]byte) string { return hex.EncodeToString(id[:]) }
