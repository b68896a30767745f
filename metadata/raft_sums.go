package metadata

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"
)

// What Raft writes, and its stores keep without a checksum, gets one here: a flipped bit in the term would let this broker vote
// twice (I19), one in a snapshot's note give it another quorum. Entries have theirs in package raftlog.

// errRot is matched by what has a checksum that does not fit.
var errRot = errors.New("checksum does not fit")

// sumBytes is the length of a CRC-32C.
const sumBytes = 4

// entrySum is the checksum that earlier versions kept in an entry's Extensions, which nobody else used.
func entrySum(e *raft.Log) []byte {
	var head [17]byte
	binary.BigEndian.PutUint64(head[0:], e.Index)
	binary.BigEndian.PutUint64(head[8:], e.Term)
	head[16] = byte(e.Type)
	return binary.BigEndian.AppendUint32(nil, crc32.Update(crc32.Checksum(head[:], castagnoli), castagnoli, e.Data))
}

// summedStable keeps the checksum of a number behind it; eight bytes alone are of an earlier version. Other values need
// none: a vote for somebody unknown is no vote, and another server's name is refused.
type summedStable struct{ raft.StableStore }

func numberSum(key, number []byte) []byte {
	return binary.BigEndian.AppendUint32(nil, crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, number))
}

func (s summedStable) SetUint64(key []byte, val uint64) error {
	number := binary.BigEndian.AppendUint64(nil, val)
	return s.Set(key, append(number, numberSum(key, number)...))
}

func (s summedStable) GetUint64(key []byte) (uint64, error) {
	val, err := s.Get(key)
	if err != nil {
		return 0, err
	}
	if len(val) != 8 && (len(val) != 8+sumBytes || !bytes.Equal(val[8:], numberSum(key, val[:8]))) {
		return 0, fmt.Errorf("raft state %s: %w", key, errRot)
	}
	return binary.BigEndian.Uint64(val), nil
}

// summedSnapshots writes what Raft notes beside a snapshot, which has no checksum, into the snapshot too, which has one:
//
//	8 bytes   magic "MILLRSN" and the version 1
//	4 bytes   length n, little-endian
//	n bytes   JSON: a snapshotNote
//
// in front of the state. A snapshot without, of an earlier version, is believed.
type summedSnapshots struct {
	raft.SnapshotStore
	dir string // of the snapshots' folders
}

const (
	snapshotNoteMagic = "MILLRSN\x01"
	snapshotNoteLimit = 1 << 20
)

type snapshotNote struct {
	ID                 string
	Index, Term        uint64
	Configuration      raft.Configuration
	ConfigurationIndex uint64
}

func (s summedSnapshots) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration, configurationIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, configuration, configurationIndex, trans)
	if err != nil {
		return nil, err
	}
	note, err := json.Marshal(snapshotNote{sink.ID(), index, term, configuration, configurationIndex})
	if err == nil {
		head := binary.LittleEndian.AppendUint32([]byte(snapshotNoteMagic), uint32(len(note)))
		_, err = sink.Write(append(head, note...))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create snapshot %s: %w", sink.ID(), err), sink.Cancel())
	}
	return sink, nil
}

// List leaves out those whose own name for themselves is not that of their folder.
func (s summedSnapshots) List() ([]*raft.SnapshotMeta, error) {
	metas, err := s.SnapshotStore.List()
	var out []*raft.SnapshotMeta
	for _, m := range metas {
		if info, err := os.Stat(filepath.Join(s.dir, m.ID)); err == nil && info.IsDir() && filepath.Base(m.ID) == m.ID {
			out = append(out, m)
		}
	}
	return out, err
}

func (s summedSnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, r, err := s.SnapshotStore.Open(id)
	if err != nil {
		return nil, nil, err
	}
	head := make([]byte, len(snapshotNoteMagic)+4)
	n, err := io.ReadFull(r, head)
	name := len(snapshotNoteMagic) - 1
	if err == nil && string(head[:name]) == snapshotNoteMagic[:name] && head[name] > snapshotNoteMagic[name] {
		return nil, nil, errors.Join(fmt.Errorf("snapshot %s: a note of version %d: %w", id, head[name], errNewerVersion), r.Close())
	}
	if err != nil || string(head[:len(snapshotNoteMagic)]) != snapshotNoteMagic {
		return meta, &prefixed{io.MultiReader(bytes.NewReader(head[:n]), r), r}, nil
	}
	length := binary.LittleEndian.Uint32(head[len(snapshotNoteMagic):])
	if length > snapshotNoteLimit {
		return nil, nil, errors.Join(fmt.Errorf("snapshot %s: a note of %d bytes", id, length), r.Close())
	}
	text := make([]byte, length)
	if _, err = io.ReadFull(r, text); err == nil {
		var now []byte
		if now, err = json.Marshal(snapshotNote{meta.ID, meta.Index, meta.Term, meta.Configuration, meta.ConfigurationIndex}); err == nil && !bytes.Equal(now, text) {
			err = errRot
		}
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("snapshot %s: its meta.json: %w", id, err), r.Close())
	}
	own := *meta
	own.Size -= int64(len(head) + len(text))
	return &own, r, nil
}

// prefixed reads what was read already first.
type prefixed struct {
	io.Reader
	io.Closer
}
