package transport

import (
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Response is what a request is answered with: a [Message] or a [Splice]. The zero Response is invalid.
type Response struct {
	message kmsg.Response
	spliced *Spliced
}

// Message is a response that is encoded whole. Its version must be set. It is encoded before Reply returns, so its memory may be
// reused after that.
func Message(m kmsg.Response) Response { return Response{message: m} }

// Splice is a response whose large parts are read from their sources while it is being sent. The transport owns s from here on.
func Splice(s *Spliced) Response { return Response{spliced: s} }

// Spliced is a response body as a list of pieces: bytes encoded beforehand, and between them bytes which stay where they are until they are
// copied into a chunk on its way to the socket. The body's size is fixed when it is handed over; a source that then fails to deliver its
// Len costs the connection, since the size has been sent.
type Spliced struct {
	// Flexible says that the response header carries a tag section (v1): the response's version is flexible.
	Flexible bool
	// Pieces are sent in order, each its Header first.
	Pieces []Piece
	// Released, when not nil, is called once after every source was released: the Headers' memory may be reused from then on.
	Released func()
}

// Piece is a span of a spliced response.
type Piece struct {
	Header []byte // may be empty
	Body   Source // may be nil
}

// Source is a run of bytes that can be read at any place, such as a [log.Slice]. It is used by one goroutine at a time.
type Source interface {
	// Len is the number of bytes; it doesn't change.
	Len() int
	// ReadAt fills p from off on and returns an error when it can't fill it.
	ReadAt(p []byte, off int) (int, error)
	// Release is called exactly once.
	Release()
}

// FileSource is a source whose bytes lie in one run in a file, such as a [log.Slice] of a file of the operating system. A plain TCP
// connection sends a large one without copying it.
type FileSource interface {
	Source
	// FileRange returns the descriptor of the open file and the place of the source's first byte in it; ok is false when there is none.
	// The descriptor stays open, and the bytes stay as they are, until Release; the kernel may read them later still, while they wait in
	// the socket, so that they must not be overwritten in place afterwards either.
	FileRange() (fd uintptr, offset int64, ok bool)
}

// Len is the size of the response body in bytes, without the response header.
func (s *Spliced) Len() int {
	n := 0
	for i := range s.Pieces {
		n += len(s.Pieces[i].Header)
		if s.Pieces[i].Body != nil {
			n += s.Pieces[i].Body.Len()
		}
	}
	return n
}
