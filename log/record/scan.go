package record

import (
	"fmt"
	"io"
	"runtime"
	"sync"
)

const (
	scanBytes     = 64 << 10 // first size of a scanner's window
	scanKeepBytes = 1 << 20  // larger windows go to the garbage collector, not to the pool
)

// scanner walks the records of one batch. For an uncompressed batch the window
// is the payload itself; otherwise it is a pooled buffer through which the
// decompressed bytes stream, as large as the largest record and never larger
// than twice the bytes that really came out of the decompressor (N5).
type scanner struct {
	buf  []byte // the window; unread bytes are buf[r:w]
	r, w int
	src  io.Reader // decompressor; nil if buf holds everything there is

	produced int       // bytes taken from src
	limit    int       // produced may not exceed it
	tee      io.Writer // gets what src produced; nil = nobody

	index, count int32 // records read and announced
	baseOffset   int64 // for messages

	own     []byte // pooled buffer for the window
	dec     decompressor
	codec   Codec
	headers []RecordHeader // scratch of Each
	f       fields         // scratch
}

var scanners = sync.Pool{New: func() any { return new(scanner) }}

// openScanner prepares a walk over b; the caller must close it. limit ≤ 0 is
// DefaultDecompressedLimit.
func openScanner(b Batch, limit int, tee io.Writer) (*scanner, error) {
	codec := b.Codec()
	if !codec.Valid() {
		return nil, fmt.Errorf("read record batch at offset %d: %w: %d", b.BaseOffset(), ErrUnsupportedCodec, codec)
	}
	if limit <= 0 {
		limit = DefaultDecompressedLimit
	}
	s := scanners.Get().(*scanner)
	s.limit, s.tee, s.count, s.baseOffset = limit, tee, b.Count(), b.BaseOffset()
	payload := b.Payload()
	if codec == CodecNone || len(payload) == 0 {
		s.buf, s.w = payload, len(payload)
		if tee != nil {
			if _, err := tee.Write(payload); err != nil {
				s.close()
				return nil, err
			}
		}
		return s, nil
	}
	if s.own == nil {
		s.own = make([]byte, scanBytes)
	}
	s.buf, s.codec = s.own, codec
	s.dec = decompressors[codec].Get().(decompressor)
	if err := s.dec.open(payload, limit); err != nil {
		err = s.fail(err)
		s.close()
		return nil, err
	}
	s.src = s.dec
	return s, nil
}

// close returns everything to the pools. Slices of records are invalid afterwards.
func (s *scanner) close() {
	if s.dec != nil {
		s.dec.release()
		decompressors[s.codec].Put(s.dec)
		s.own = s.buf
	}
	own, headers := s.own, s.headers
	if cap(own) > scanKeepBytes {
		own = nil
	}
	if cap(headers) > 1024 {
		headers = nil
	}
	clear(headers)
	*s = scanner{own: own, headers: headers[:0]}
	scanners.Put(s)
}

// next decodes the next record into s.f. It returns false after the last one,
// when nothing may follow it.
func (s *scanner) next() (bool, error) {
	if s.index >= s.count {
		return false, s.end()
	}
	length, n := readVarint(s.buf[s.r:s.w])
	for n == 0 { // the window ends inside the length
		if err := s.more(s.w - s.r + 1); err != nil {
			return false, err
		}
		length, n = readVarint(s.buf[s.r:s.w])
	}
	if n < 0 || length < minRecordBytes-1 {
		return false, s.corrupt("bad record length")
	}
	if need := n + int(length); s.w-s.r < need {
		if err := s.more(need); err != nil {
			return false, err
		}
	}
	start := s.r + n
	s.r = start + int(length)
	if what := s.f.decode(s.buf[start:s.r:s.r]); what != "" {
		return false, s.corrupt(what)
	}
	s.index++
	return true, nil
}

// end checks that nothing follows the last record.
func (s *scanner) end() error {
	if s.r == s.w && s.src != nil {
		switch err := s.fill(); err {
		case nil:
		case io.EOF:
			return nil
		default:
			return err
		}
	}
	if s.r != s.w {
		return s.corrupt("bytes after the last record")
	}
	return nil
}

// more makes at least n unread bytes available in the window.
func (s *scanner) more(n int) error {
	if s.src == nil {
		return s.corrupt("records end inside a record")
	}
	for s.w-s.r < n {
		switch err := s.fill(); err {
		case nil:
		case io.EOF:
			return s.corrupt("records end inside a record")
		default:
			return err
		}
	}
	return nil
}

// fill reads at least one more byte from the decompressor into the window, or
// returns io.EOF.
func (s *scanner) fill() error {
	if s.r > 0 {
		s.w = copy(s.buf, s.buf[s.r:s.w])
		s.r = 0
	}
	if s.w == len(s.buf) {
		// All of the window is one unfinished record, and all of it has
		// really been produced: doubling follows the data, not its claims.
		bigger := make([]byte, len(s.buf)+min(len(s.buf), s.limit-s.produced+1))
		copy(bigger, s.buf)
		s.buf = bigger
	}
	for empty := 0; ; empty++ {
		room := s.buf[s.w:]
		if left := s.limit - s.produced; len(room) > left {
			room = room[:left+1] // one byte more shows that there is more
		}
		n, err := s.src.Read(room)
		s.produced += n
		if s.produced > s.limit {
			return fmt.Errorf("decompress record batch at offset %d with %s: %w: more than %d bytes", s.baseOffset, s.codec, ErrDecompressedTooLarge, s.limit)
		}
		if n > 0 {
			if s.tee != nil {
				if _, err := s.tee.Write(s.buf[s.w : s.w+n]); err != nil {
					return err
				}
			}
			s.w += n
			return nil // an error comes again with the next read
		}
		switch {
		case err == io.EOF:
			return io.EOF
		case err != nil:
			return s.fail(err)
		case empty == 100:
			return s.fail(io.ErrNoProgress)
		}
	}
}

// fail gives an error of a decompressor its class.
func (s *scanner) fail(err error) error {
	class := ErrCorrupt
	if s.dec.tooLarge(err) {
		class = ErrDecompressedTooLarge
	}
	return fmt.Errorf("decompress record batch at offset %d with %s: %w: %w", s.baseOffset, s.codec, class, err)
}

func (s *scanner) corrupt(what string) error {
	return fmt.Errorf("read record %d of the batch at offset %d: %w: %s", s.index, s.baseOffset, ErrCorrupt, what)
}

// decodeSlots bounds how many compressed batches are open at once in functions
// that a client can make many connections run, Validate and the searches. Each
// open batch may hold a decompressor's window of up to 8 MiB, so without it a
// thousand connections would hold gigabytes (I23). More slots than processors
// would add memory but no speed. Each is not bounded: its callback may call
// into this package again.
var decodeSlots = make(chan struct{}, runtime.GOMAXPROCS(0)+2)

func acquireSlot(b Batch) bool {
	if b.Codec() == CodecNone {
		return false
	}
	decodeSlots <- struct{}{}
	return true
}

func releaseSlot(held bool) {
	if held {
		<-decodeSlots
	}
}

// Each calls fn for each record of b in order, decompressing on the way; it
// stops at the first error and returns it, fn's own errors unwrapped. The
// slices in the record are valid only during the call.
//
// A compressed batch may produce at most limitBytes bytes (≤ 0 means
// DefaultDecompressedLimit), else the error is ErrDecompressedTooLarge; records
// before the limit have been passed to fn. Errors of the bytes are ErrCorrupt
// or ErrUnsupportedCodec. A record count of 0 is fine (compaction leaves such
// batches). The checksum is not looked at.
func (b Batch) Each(limitBytes int, fn func(Record) error) error {
	s, err := openScanner(b, limitBytes, nil)
	if err != nil {
		return err
	}
	defer s.close()
	for {
		ok, err := s.next()
		if !ok {
			return err
		}
		f := &s.f
		r := Record{
			Attributes:     f.attributes,
			TimestampDelta: f.timestampDelta,
			OffsetDelta:    f.offsetDelta,
			Key:            f.key,
			Value:          f.value,
		}
		if f.headerCount > 0 {
			s.headers = f.appendHeaders(s.headers[:0])
			r.Headers = s.headers
		}
		if err := fn(r); err != nil {
			return err
		}
	}
}
