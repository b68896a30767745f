package log

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"slices"
	"sort"
	"strconv"

	"github.com/millrace/millrace/log/record"
)

// epochStart says that leaderEpoch begins at start: the first offset that may carry it, which is the end of the log at
// the election (R4).
type epochStart struct {
	leaderEpoch int32
	start       int64
}

// epochs is the leader-epoch cache of a log, rising in both columns. It is what truncation is decided by (KIP-101,
// KIP-279), so a missing entry is worse than a missing index: it is rebuilt from the batches whenever the file can not
// be trusted (L7). Guarded by Log.mu.
type epochs struct {
	list []epochStart
	// changed counts the changes, written the value of changed that is in the file.
	changed, written uint64
}

// last returns the last epoch, -1 if there is none.
func (e *epochs) last() int32 {
	if len(e.list) == 0 {
		return -1
	}
	return e.list[len(e.list)-1].leaderEpoch
}

// assign notes that leaderEpoch begins at start, unless it or a later one has begun. An entry that got no record
// (same start) is replaced: no batch can carry it any more.
func (e *epochs) assign(leaderEpoch int32, start int64) bool {
	if leaderEpoch <= e.last() {
		return false
	}
	// Readers may hold the list: replace, never change.
	n := len(e.list)
	for n > 0 && e.list[n-1].start >= start {
		n--
	}
	e.list = append(slices.Clip(e.list[:n:n]), epochStart{leaderEpoch, start})
	e.changed++
	return true
}

// truncateEnd removes the epochs that begin at or behind end (R5), also if no record goes.
func (e *epochs) truncateEnd(end int64) {
	n := len(e.list)
	for n > 0 && e.list[n-1].start >= end {
		n--
	}
	if n < len(e.list) {
		e.list = slices.Clip(e.list[:n:n])
		e.changed++
	}
}

// truncateStart removes the epochs that ended before start and lets the one that holds start begin there.
func (e *epochs) truncateStart(start int64) {
	n := 0
	for n+1 < len(e.list) && e.list[n+1].start <= start {
		n++
	}
	if len(e.list) == 0 || n == 0 && e.list[0].start >= start {
		return
	}
	list := slices.Clone(e.list[n:])
	list[0].start = max(list[0].start, start)
	e.list = list
	e.changed++
}

// end returns the largest epoch ≤ leaderEpoch and the offset behind its last record, end being that of the log; (-1,
// -1) if there is none (KIP-279).
func (e *epochs) end(leaderEpoch int32, end int64) (int32, int64) {
	i := sort.Search(len(e.list), func(i int) bool { return e.list[i].leaderEpoch > leaderEpoch })
	if i == 0 {
		return -1, -1
	}
	if i < len(e.list) {
		end = e.list[i].start
	}
	return e.list[i-1].leaderEpoch, end
}

// at returns the epoch of the record at offset, -1 if unknown.
func (e *epochs) at(offset int64) int32 {
	i := sort.Search(len(e.list), func(i int) bool { return e.list[i].start > offset })
	if i == 0 {
		return -1
	}
	return e.list[i-1].leaderEpoch
}

// epochsSum begins the last line of the file, behind what Kafka's format has: the CRC-32C of all lines above it. A file
// without it, of an earlier version or of Kafka's, is believed as it is.
const epochsSum = "#crc32c "

// fits checks the leader epoch of a batch against the cache: like the base offset, it is covered by no checksum, and a
// follower takes it over (L9). What begins before the cache does cannot be judged.
func fits(list []epochStart, h *record.Header) error {
	if known := (&epochs{list: list}).at(h.BaseOffset); known >= 0 && known != h.LeaderEpoch {
		return fmt.Errorf("%w: the batch at offset %d has leader epoch %d, the log has %d there", ErrCorrupt, h.BaseOffset, h.LeaderEpoch, known)
	}
	return nil
}

// encodeEpochs writes Kafka's leader-epoch-checkpoint: a version 0, the number of entries, then an epoch and its start
// per line; and our checksum, for one flipped bit of a digit makes another epoch (L7, I19).
func encodeEpochs(list []epochStart) []byte {
	b := strconv.AppendInt([]byte("0\n"), int64(len(list)), 10)
	b = append(b, '\n')
	for _, e := range list {
		b = strconv.AppendInt(b, int64(e.leaderEpoch), 10)
		b = append(b, ' ')
		b = strconv.AppendInt(b, e.start, 10)
		b = append(b, '\n')
	}
	return append(strconv.AppendUint(append(b, epochsSum...), uint64(crc32.Checksum(b, castagnoli)), 10), '\n')
}

// decodeEpochs reads a leader-epoch-checkpoint. Errors match ErrCorrupt: the file is rebuilt.
func decodeEpochs(b []byte) ([]epochStart, error) {
	bad := func(format string, args ...any) ([]epochStart, error) {
		return nil, fmt.Errorf("%w: %s: %s", ErrCorrupt, epochsName, fmt.Sprintf(format, args...))
	}
	if i := bytes.LastIndex(b, []byte("\n"+epochsSum)) + 1; i > 0 {
		sum, err := strconv.ParseUint(string(bytes.TrimSuffix(b[i+len(epochsSum):], []byte("\n"))), 10, 32)
		if err != nil || uint32(sum) != crc32.Checksum(b[:i], castagnoli) {
			return bad("the checksum does not fit")
		}
		b = b[:i]
	}
	lines := bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte("\n"))
	if len(lines) < 2 || string(lines[0]) != "0" {
		return bad("no version 0")
	}
	count, err := strconv.Atoi(string(lines[1]))
	if err != nil || count != len(lines)-2 {
		return bad("%q entries in %d lines", lines[1], len(lines)-2)
	}
	list := make([]epochStart, 0, count)
	for _, line := range lines[2:] {
		f := bytes.Fields(line)
		if len(f) != 2 {
			return bad("line %q", line)
		}
		epoch, err1 := strconv.ParseInt(string(f[0]), 10, 32)
		start, err2 := strconv.ParseInt(string(f[1]), 10, 64)
		if err1 != nil || err2 != nil || epoch < 0 || start < 0 {
			return bad("line %q", line)
		}
		if n := len(list); n > 0 && (int32(epoch) <= list[n-1].leaderEpoch || start <= list[n-1].start) {
			return bad("line %q follows epoch %d from %d", line, list[n-1].leaderEpoch, list[n-1].start)
		}
		list = append(list, epochStart{int32(epoch), start})
	}
	return list, nil
}
