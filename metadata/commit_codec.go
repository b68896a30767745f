package metadata

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// The commands of offset commits are written and read here by hand, as protobuf would: each commit is written once, and read
// four times, by the controller and in Apply of three brokers, ten thousand times a second. With the generated messages, and
// the walk over them that looks for unknown fields (M2), a reading takes twice as long, and nine allocations a commit. A
// test compares the two, and a fuzz target.

// errNotUTF8 is what protobuf says of a text that is none.
var errNotUTF8 = errors.New("text with invalid UTF-8")

// maxSize is about the most that append appends, and prefix before it.
func (c *OffsetCommit) maxSize() int {
	n := 48 + len(c.Group) + len(c.Member) + len(c.Instance) + 48*len(c.Offsets)
	for i := range c.Offsets {
		n += len(c.Offsets[i].Metadata)
	}
	return n
}

// append appends the encoding of message(). A text that is not UTF-8 is an error.
func (c *OffsetCommit) append(b []byte) ([]byte, error) {
	if !utf8.ValidString(c.Group) || !utf8.ValidString(c.Member) || !utf8.ValidString(c.Instance) {
		return b, errNotUTF8
	}
	b = appendText(b, 1, c.Group)
	b = appendText(b, 2, c.Member)
	b = appendText(b, 3, c.Instance)
	b = appendNumber(b, 4, protowire.EncodeZigZag(int64(c.Generation)))
	b = appendNumber(b, 5, uint64(c.Time))
	b = appendNumber(b, 6, uint64(c.ExpiresAt))
	from := len(b)
	b, err := appendOffsets(b, c.Offsets)
	return prefix(b, from, 7), err
}

// appendOffsets appends what offsetEncoder makes of offsets, encoded.
func appendOffsets(b []byte, offsets []OffsetEntry) ([]byte, error) {
	if len(offsets) == 0 {
		return b, nil
	}
	begins := func(i int) bool { return i == 0 || offsets[i].TopicID != offsets[i-1].TopicID }
	epochs, texts := false, false
	from := len(b)
	for i := range offsets {
		o := &offsets[i]
		if begins(i) {
			b = append(b, o.TopicID[:]...)
		}
		epochs = epochs || o.LeaderEpoch != -1
		texts = texts || o.Metadata != ""
		if !utf8.ValidString(o.Metadata) {
			return b, errNotUTF8
		}
	}
	b = prefix(b, from, 1)
	from = len(b)
	for i, count := 0, 0; i < len(offsets); i++ {
		if count++; i+1 == len(offsets) || begins(i+1) {
			b = protowire.AppendVarint(b, uint64(count))
			count = 0
		}
	}
	b = prefix(b, from, 2)
	from = len(b)
	for i := range offsets {
		b = protowire.AppendVarint(b, uint64(uint32(offsets[i].Partition)))
	}
	b = prefix(b, from, 3)
	from = len(b)
	for i := range offsets {
		b = protowire.AppendVarint(b, uint64(offsets[i].Offset))
	}
	b = prefix(b, from, 4)
	if epochs {
		from = len(b)
		for i := range offsets {
			b = protowire.AppendVarint(b, protowire.EncodeZigZag(int64(offsets[i].LeaderEpoch)))
		}
		b = prefix(b, from, 5)
	}
	if texts {
		for i := range offsets {
			b = protowire.AppendTag(b, 6, protowire.BytesType)
			b = protowire.AppendString(b, offsets[i].Metadata)
		}
	}
	return b, nil
}

func appendText(b []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}

func appendNumber(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

// prefix puts the tag and the length of a field in front of its value, which begins at from.
func prefix(b []byte, from int, field protowire.Number) []byte {
	n := len(b) - from
	head := protowire.SizeTag(field) + protowire.SizeVarint(uint64(n))
	for range head {
		b = append(b, 0)
	}
	copy(b[from+head:], b[from:from+n])
	protowire.AppendVarint(protowire.AppendTag(b[:from], field, protowire.BytesType), uint64(n))
	return b
}

// fields reads the fields of a message, which lies in b from at to end.
type fields struct {
	b       []byte
	at, end int
	field   protowire.Number
	typ     protowire.Type
}

// next begins with the next field; false at the end.
func (f *fields) next() (bool, error) {
	if f.at == f.end {
		return false, nil
	}
	if b := f.b[f.at]; b < 0x80 && b >= 1<<3 { // most of the time
		f.at++
		f.field, f.typ = protowire.Number(b>>3), protowire.Type(b&7)
		return true, nil
	}
	field, typ, n := protowire.ConsumeTag(f.b[f.at:f.end])
	if n < 0 {
		return false, protowire.ParseError(n)
	}
	f.at += n
	f.field, f.typ = field, typ
	return true, nil
}

// is reports whether the field is that of a number and a type.
func (f *fields) is(field protowire.Number, typ protowire.Type) bool {
	return f.field == field && f.typ == typ
}

func (f *fields) number() (uint64, error) {
	if f.at < f.end && f.b[f.at] < 0x80 {
		f.at++
		return uint64(f.b[f.at-1]), nil
	}
	v, n := protowire.ConsumeVarint(f.b[f.at:f.end])
	if n < 0 {
		return 0, protowire.ParseError(n)
	}
	f.at += n
	return v, nil
}

// inner returns the bytes of a field as where they lie.
func (f *fields) inner() (fields, error) {
	n, err := f.number()
	if err != nil {
		return fields{}, err
	}
	if n > uint64(f.end-f.at) {
		return fields{}, io.ErrUnexpectedEOF
	}
	f.at += int(n)
	return fields{b: f.b, at: f.at - int(n), end: f.at}, nil
}

// text returns a text as a part of whole, which is a copy of b.
func (f *fields) text(whole string) (string, error) {
	in, err := f.inner()
	if err != nil {
		return "", err
	}
	s := whole[in.at:in.end]
	if !utf8.ValidString(s) {
		return "", errNotUTF8
	}
	return s, nil
}

// unknown passes over a field that this binary does not know, by its number or its type, and refuses it if it is whole (M2).
func (f *fields) unknown(of string) error {
	if n := protowire.ConsumeFieldValue(f.field, f.typ, f.b[f.at:f.end]); n < 0 {
		return protowire.ParseError(n)
	}
	return fmt.Errorf("unknown field of %s: %w", of, errNewerVersion)
}

// column appends the numbers of a repeated field, packed or not.
func column[T any](f *fields, to []T, of func(uint64) T) ([]T, error) {
	if f.typ == protowire.VarintType {
		v, err := f.number()
		return append(to, of(v)), err
	}
	in, err := f.inner()
	for err == nil && in.at < in.end {
		var v uint64
		v, err = in.number()
		to = append(to, of(v))
	}
	return to, err
}

func toUint32(v uint64) uint32 { return uint32(v) }
func toInt64(v uint64) int64   { return int64(v) }
func toSint32(v uint64) int32  { return int32(protowire.DecodeZigZag(v & math.MaxUint32)) }

// commitReader reads batches of commits, one after the other.
type commitReader struct {
	c       commitOffsets
	whole   string           // what is read: texts are parts of it
	columns pb.OffsetColumns // of the commit that is read
	entries []OffsetEntry    // of all commits so far; each has its part
}

// commitReaders are those that nobody uses.
var commitReaders = sync.Pool{New: func() any { return new(commitReader) }}

// maxKeptCommits bounds the commits of a batch for which a reader keeps the memory.
const maxKeptCommits = 1 << 10

// done gives a reader back. What it has read is good until then.
func (r *commitReader) done() {
	if cap(r.c.commits) > maxKeptCommits || cap(r.entries) > maxKeptCommits || len(r.whole) > maxKeptCommits*100 {
		return
	}
	commitReaders.Put(r)
}

// decodeCommitOffsets reads a command. Its texts are parts of one copy of all of the body: of one that is kept for longer than
// the command, a copy must be made.
func decodeCommitOffsets(body []byte) (command, error) { return new(commitReader).read(body) }

// read is decodeCommitOffsets for as long as the reader is not used again, or given back.
func (r *commitReader) read(body []byte) (command, error) {
	n := 0 // commits
	for f := (fields{b: body, end: len(body)}); ; {
		more, err := f.next()
		if err != nil {
			return nil, err
		}
		if !more {
			break
		}
		if f.is(commitField, protowire.BytesType) {
			if _, err := f.inner(); err != nil {
				return nil, err
			}
			n++
			continue
		}
		skip := protowire.ConsumeFieldValue(f.field, f.typ, f.b[f.at:])
		if skip < 0 {
			return nil, protowire.ParseError(skip)
		}
		f.at += skip
	}
	r.whole = string(body)
	r.entries = slices.Grow(r.entries[:0], n)
	c := &r.c
	*c = commitOffsets{commits: slices.Grow(c.commits[:0], n)}
	for f := (fields{b: body, end: len(body)}); ; {
		more, err := f.next()
		switch {
		case err != nil:
			return nil, err
		case !more:
			return c, nil
		case f.is(commitField, protowire.BytesType):
			var in fields
			if in, err = f.inner(); err == nil {
				c.commits = append(c.commits, OffsetCommit{})
				err = r.commit(&in, &c.commits[len(c.commits)-1])
			}
		case f.typ == protowire.VarintType && f.field <= 5:
			var v uint64
			v, err = f.number()
			switch f.field {
			case 1:
				c.broker = BrokerID(int32(v))
			case 2:
				c.epoch = int64(v)
			case 3:
				c.coordinatorEpoch = int32(v)
			case 4:
				c.lane = uint32(v)
			case 5:
				c.sequence = v
			}
		default:
			err = f.unknown("CommitOffsets")
		}
		if err != nil {
			return nil, err
		}
	}
}

// commit reads one commit.
func (r *commitReader) commit(f *fields, c *OffsetCommit) error {
	m := &r.columns
	m.TopicIds, m.Counts, m.Partitions, m.Offsets, m.LeaderEpochs, m.Metadata = nil, m.Counts[:0], m.Partitions[:0], m.Offsets[:0], m.LeaderEpochs[:0], m.Metadata[:0]
	m.CommittedAt, m.ExpiresAt = m.CommittedAt[:0], m.ExpiresAt[:0]
	for {
		more, err := f.next()
		if err != nil {
			return err
		}
		if !more {
			break
		}
		switch {
		case f.is(1, protowire.BytesType):
			c.Group, err = f.text(r.whole)
		case f.is(2, protowire.BytesType):
			c.Member, err = f.text(r.whole)
		case f.is(3, protowire.BytesType):
			c.Instance, err = f.text(r.whole)
		case f.typ == protowire.VarintType && f.field >= 4 && f.field <= 6:
			var v uint64
			v, err = f.number()
			switch f.field {
			case 4:
				c.Generation = toSint32(v)
			case 5:
				c.Time = int64(v)
			case 6:
				c.ExpiresAt = int64(v)
			}
		case f.is(7, protowire.BytesType):
			var in fields
			if in, err = f.inner(); err == nil {
				err = r.offsets(&in)
			}
		default:
			err = f.unknown("GroupCommit")
		}
		if err != nil {
			return err
		}
	}
	if c.Group == "" {
		return errors.New("offset commit of no group")
	}
	if len(m.CommittedAt) > 0 || len(m.ExpiresAt) > 0 {
		return errors.New("offset commit with columns of a snapshot")
	}
	from := len(r.entries)
	err := decodeOffsets(m, func(int) {}, func(tp TopicIDPartition, o CommittedOffset) error {
		r.entries = append(r.entries, OffsetEntry{tp.TopicID, tp.Partition, o.Offset, o.LeaderEpoch, o.Metadata})
		return nil
	})
	if err != nil {
		return fmt.Errorf("offsets of group %s: %w", quoteShort(c.Group), err)
	}
	if to := len(r.entries); to > from {
		c.Offsets = r.entries[from:to:to]
	}
	return nil
}

// offsets reads the columns of a commit.
func (r *commitReader) offsets(f *fields) error {
	m := &r.columns
	for {
		more, err := f.next()
		if err != nil || !more {
			return err
		}
		numbers := f.typ == protowire.VarintType || f.typ == protowire.BytesType
		switch {
		case f.is(1, protowire.BytesType):
			var in fields
			if in, err = f.inner(); err == nil {
				m.TopicIds = in.b[in.at:in.end]
			}
		case f.field == 2 && numbers:
			m.Counts, err = column(f, m.Counts, toUint32)
		case f.field == 3 && numbers:
			m.Partitions, err = column(f, m.Partitions, toUint32)
		case f.field == 4 && numbers:
			m.Offsets, err = column(f, m.Offsets, toInt64)
		case f.field == 5 && numbers:
			m.LeaderEpochs, err = column(f, m.LeaderEpochs, toSint32)
		case f.is(6, protowire.BytesType):
			var text string
			text, err = f.text(r.whole)
			m.Metadata = append(m.Metadata, text)
		case f.field == 7 && numbers:
			m.CommittedAt, err = column(f, m.CommittedAt, toInt64)
		case f.field == 8 && numbers:
			m.ExpiresAt, err = column(f, m.ExpiresAt, toInt64)
		default:
			err = f.unknown("OffsetColumns")
		}
		if err != nil {
			return err
		}
	}
}
