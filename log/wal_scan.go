package log

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"sort"
	"strconv"

	"github.com/millrace/millrace/log/vfs"
)

// walRef is a record found by scanWAL: where its batches are, and all else about it.
type walRef struct {
	walRecord
	// file is the number of the WAL file, offset the position of the batches in it, length their size. data is nil.
	file   int
	offset int64
	length int
	// frame is the sequence number of its frame.
	frame uint64
}

// walFileInfo is what scanWAL found out about one file.
type walFileInfo struct {
	number int
	size   int64
	header walHeader
	// headerOK says that block 0 could be read.
	headerOK bool
	// live says that the file holds, or may hold, records that are needed: it must not be written to.
	live bool
}

// walScan is the outcome of reading the write-ahead log at a start (wal.md 4, steps 2 and 3).
type walScan struct {
	files []walFileInfo
	// oldest is the largest oldest generation named anywhere: by the checkpoint or a header.
	oldest uint64
	// newest is the largest generation seen; a new one begins above it and above oldest.
	newest uint64
	// nextSequence is above every sequence number seen.
	nextSequence    uint64
	frames, records int
	bytesRead       int64
	mutants         mutant
	// damage lists what can not come from a torn tail. The records found are good all the same, but nothing proves
	// that they are all: the directory's replicas are unclean (I12).
	damage []string
}

// scanWAL reads the headers of all files in dir, then the frames of all live generations in order, and calls visit for
// each record. It reads from the device, not from a cache that a failed sync left wrong (W17). It writes nothing.
func scanWAL(fsys vfs.FS, dir string, blockBytes int, cp checkpoint, visit func(walRef) error) (walScan, error) {
	var s walScan
	err := s.read(fsys, dir, blockBytes, cp, visit)
	return s, err
}

// read is scanWAL into s, whose mutants may be set.
func (s *walScan) read(fsys vfs.FS, dir string, blockBytes int, cp checkpoint, visit func(walRef) error) error {
	s.oldest = cp.oldest
	entries, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		entries, err = nil, nil
	}
	if err != nil {
		return fmt.Errorf("list write-ahead log %s: %w", dir, err)
	}
	for _, e := range entries {
		number, err := strconv.Atoi(e.Name)
		if err != nil || e.Dir || number < 0 || strconv.Itoa(number) != e.Name {
			continue
		}
		info := walFileInfo{number: number, size: e.Size}
		if err := s.readHeader(fsys, dir, &info); err != nil {
			return err
		}
		s.files = append(s.files, info)
	}
	sort.Slice(s.files, func(i, j int) bool { return s.files[i].number < s.files[j].number })
	var live []*walFileInfo
	for i := range s.files {
		f := &s.files[i]
		if f.headerOK {
			s.oldest = max(s.oldest, f.header.oldest)
			s.newest = max(s.newest, f.header.generation)
		}
	}
	for i := range s.files {
		f := &s.files[i]
		switch {
		case !f.headerOK:
			if err := s.searchHeadless(fsys, dir, blockBytes, f); err != nil {
				return err
			}
		case f.header.generation >= s.oldest:
			f.live = true
			live = append(live, f)
		default:
			// Retired: its frames speak of what is in synced segments. But sequence numbers go on above its first.
			s.nextSequence = max(s.nextSequence, f.header.firstSequence)
		}
	}
	sort.Slice(live, func(i, j int) bool { return live[i].header.generation < live[j].header.generation })
	if cp.live && len(live) == 0 {
		s.damaged("no generation from %d on is there", s.oldest)
	}
	for i, f := range live {
		switch {
		case i == 0 && f.header.generation > s.oldest && s.oldest > 0:
			s.damaged("generations %d to %d are missing", s.oldest, f.header.generation-1)
		case i > 0 && f.header.generation == live[i-1].header.generation:
			s.damaged("generation %d is there twice", f.header.generation)
		case i > 0 && f.header.generation != live[i-1].header.generation+1:
			s.damaged("generations %d to %d are missing", live[i-1].header.generation+1, f.header.generation-1)
		case i > 0 && f.header.firstSequence != s.nextSequence:
			s.damaged("generation %d begins with frame %d instead of %d", f.header.generation, f.header.firstSequence, s.nextSequence)
		}
		if err := s.readFrames(fsys, dir, f, visit); err != nil {
			return err
		}
	}
	return nil
}

func (s *walScan) damaged(format string, args ...any) {
	s.damage = append(s.damage, fmt.Sprintf(format, args...))
}

func walFileName(dir string, number int) string { return vfs.Join(dir, strconv.Itoa(number)) }

func (s *walScan) readHeader(fsys vfs.FS, dir string, info *walFileInfo) error {
	r, err := s.open(fsys, dir, info.number)
	if err != nil {
		return err
	}
	defer r.file.Close()
	// The size in a directory listing may be older than the file.
	info.size = r.size
	b, err := r.bytes(0, walHeaderBytes, walHeaderBytes)
	if err != nil {
		return err
	}
	info.header, err = decodeWALHeader(b)
	info.headerOK = err == nil
	return nil
}

// readFrames reads the frames of one generation up to the first that does not fit, and looks behind it for one that
// does: frames are written one at a time, so behind a torn one there can be nothing (wal.md 4 step 3).
func (s *walScan) readFrames(fsys vfs.FS, dir string, info *walFileInfo, visit func(walRef) error) error {
	r, err := s.open(fsys, dir, info.number)
	if err != nil {
		return err
	}
	defer r.file.Close()
	block := int64(info.header.blockBytes)
	sequence := info.header.firstSequence
	off := block
	for {
		body, records, err := r.frame(off, &info.header, sequence)
		if err != nil {
			return err
		}
		if body == nil {
			break
		}
		frameBytes := alignUp(int64(walFrameHeadBytes+len(body)), info.header.blockBytes)
		at := off + walFrameHeadBytes
		for rest, i := body, 0; i < records; i++ {
			rec, next, err := decodeWALRecord(rest)
			if err != nil {
				// The checksum fits, so this is what was written: a bug of this or another release, not rot.
				s.damaged("frame %d of generation %d: %v", sequence, info.header.generation, err)
				break
			}
			ref := walRef{walRecord: rec, file: info.number, offset: at + walRecordHeadBytes, length: len(rec.data), frame: sequence}
			ref.data = nil
			at += int64(len(rest) - len(next))
			rest = next
			s.records++
			if err := visit(ref); err != nil {
				return err
			}
		}
		s.frames++
		sequence++
		off += frameBytes
	}
	s.nextSequence = max(s.nextSequence, sequence)
	// The unreadable frame's own head may be torn too, so the search begins behind its first block.
	for off += block; off+block <= r.size; off += block {
		b, err := r.bytes(off, walFrameHeadBytes, walWindowBytes)
		if err != nil {
			return err
		}
		h, ok := decodeWALFrameHead(b)
		if ok && h.generation == info.header.generation && h.nonce == info.header.nonce && h.sequence > sequence {
			s.damaged("generation %d has frame %d behind an unreadable frame %d", h.generation, h.sequence, sequence)
			s.nextSequence = max(s.nextSequence, h.sequence+1)
			break
		}
	}
	return nil
}

// searchHeadless looks into a file without a readable header. After a crash while a header was written over a retired
// file it holds old frames at most; a frame of a live generation means that a header was lost.
func (s *walScan) searchHeadless(fsys vfs.FS, dir string, blockBytes int, info *walFileInfo) error {
	r, err := s.open(fsys, dir, info.number)
	if err != nil {
		return err
	}
	defer r.file.Close()
	for off := int64(blockBytes); off+int64(blockBytes) <= r.size; off += int64(blockBytes) {
		b, err := r.bytes(off, walFrameHeadBytes, walWindowBytes)
		if err != nil {
			return err
		}
		h, ok := decodeWALFrameHead(b)
		if !ok {
			continue
		}
		body, _, err := r.frame(off, &walHeader{blockBytes: blockBytes, generation: h.generation, nonce: h.nonce}, h.sequence)
		if err != nil {
			return err
		}
		if body == nil {
			continue
		}
		s.nextSequence = max(s.nextSequence, h.sequence+1)
		if h.generation >= s.oldest {
			s.damaged("file %d has no header, but frame %d of generation %d", info.number, h.sequence, h.generation)
			s.newest = max(s.newest, h.generation)
			info.live = true
			return nil
		}
	}
	return nil
}

// walWindowBytes is how much of a file is read at once.
const walWindowBytes = 256 << 10

// walReader reads a WAL file through one window.
type walReader struct {
	file  vfs.File
	name  string
	size  int64
	scan  *walScan // counts the bytes
	buf   []byte   // bytes [start, start+len(buf)) of the file
	start int64
}

func (s *walScan) open(fsys vfs.FS, dir string, number int) (*walReader, error) {
	name := walFileName(dir, number)
	f, err := fsys.OpenRead(name)
	if err != nil {
		return nil, fmt.Errorf("open write-ahead log file %s: %w", name, err)
	}
	size, err := f.Size()
	if err == nil && !s.mutants.has(mutantCachedRecovery) {
		err = f.DropCache()
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open write-ahead log file %s: %w", name, err)
	}
	return &walReader{file: f, name: name, size: size, scan: s}, nil
}

// bytes returns up to n bytes from off: fewer only at the end of the file. They are valid until the next call. If they
// have to be read, at least window bytes are.
func (r *walReader) bytes(off int64, n, window int) ([]byte, error) {
	if from := off - r.start; from >= 0 && from+int64(n) <= int64(len(r.buf)) {
		return r.buf[from : from+int64(n)], nil
	}
	want := int(min(int64(max(n, window)), max(r.size-off, 0)))
	if cap(r.buf) < want {
		r.buf = make([]byte, want)
	}
	m, err := r.file.ReadAt(r.buf[:want], off)
	r.scan.bytesRead += int64(m)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read write-ahead log file %s at %d: %w", r.name, off, err)
	}
	r.start, r.buf = off, r.buf[:m]
	return r.buf[:min(n, m)], nil
}

// frame returns the records of the frame at off as bytes and their number, nil if there is none that is whole and has
// this generation, nonce and sequence number (W9).
func (r *walReader) frame(off int64, header *walHeader, sequence uint64) (body []byte, records int, err error) {
	b, err := r.bytes(off, walFrameHeadBytes, walWindowBytes)
	if err != nil {
		return nil, 0, err
	}
	h, ok := decodeWALFrameHead(b)
	fits := h.generation == header.generation && h.nonce == header.nonce && h.sequence == sequence
	if !ok || !fits && !r.scan.mutants.has(mutantAnyFrame) {
		return nil, 0, nil
	}
	total := walFrameHeadBytes + h.bodyBytes
	if h.bodyBytes == 0 || off+alignUp(int64(total), header.blockBytes) > r.size {
		return nil, 0, nil
	}
	if b, err = r.bytes(off, total, walWindowBytes); err != nil {
		return nil, 0, err
	}
	if len(b) < total || crc32.Checksum(b[8:], castagnoli) != h.crc {
		return nil, 0, nil
	}
	return b[walFrameHeadBytes:], h.records, nil
}
