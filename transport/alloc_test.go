package transport

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAllocations guards what a request costs the transport: one Request, unless it is recycled, and nothing for frames, buffers, chunks and timers. The handler here
// allocates nothing but what is said.
func TestAllocations(t *testing.T) {
	if raceBuild {
		t.Skip("pools drop things at random in race builds")
	}
	answer := respond("ok")
	records := make([]byte, 1<<20)
	file := inFile(t, memorySource{b: records})
	h := quietHandler{func(r *Request) {
		if r.Key == 1 { // two allocations: the Spliced and its pieces
			s := &Spliced{Pieces: make([]Piece, 1)}
			s.Pieces[0].Body = memorySourcePointer{&records}
			if r.Version == 2 {
				s.Pieces[0].Body = file
			}
			r.Reply(Splice(s))
			return
		}
		r.Reply(Message(answer))
		if r.Key == 12 {
			r.Recycle()
		}
	}}
	s := startServer(t, h, overTCP)
	c := s.dial()
	buf := make([]byte, 2<<20)
	f := func(name string, request []byte, answerBytes int, most float64) {
		t.Helper()
		n := testing.AllocsPerRun(200, func() {
			if _, err := c.Write(request); err != nil {
				t.Error(err)
			}
			if _, err := io.ReadFull(c.Conn, buf[:answerBytes]); err != nil {
				t.Error(err)
			}
		})
		t.Logf("%s: %.0f allocations", name, n)
		require.LessOrEqual(t, n, most, name)
	}
	small := len(appendMessage(nil, 1, answer))
	f("small request", metadataFrame(1, "x"), small, 1)
	recycled := metadataFrame(1, "x")
	recycled[5] = 12
	f("small request that is recycled", recycled, small, 0)
	f("produce of 1 MiB", produceFrame(1, -1, 1<<20), small, 1)
	fetch := metadataFrame(1, "x")
	fetch[5] = 1
	f("spliced response of 1 MiB", fetch, 8+len(records), 3)
	fetch[7] = 2
	f("spliced response of 1 MiB of a file", fetch, 8+len(records), 4)
	ten := []byte{}
	for range 10 {
		ten = append(ten, metadataFrame(1, "x")...)
	}
	f("ten pipelined requests", ten, 10*small, 10)
}

// quietHandler accepts everything without allocating.
type quietHandler struct{ handle func(*Request) }

func (quietHandler) Accept(int16, int16) (bool, bool) { return false, true }
func (h quietHandler) Handle(r *Request)              { h.handle(r) }

// memorySourcePointer is a source that fits an interface without an allocation.
type memorySourcePointer struct{ b *[]byte }

func (s memorySourcePointer) Len() int { return len(*s.b) }
func (s memorySourcePointer) ReadAt(p []byte, off int) (int, error) {
	return copy(p, (*s.b)[off:]), nil
}
func (s memorySourcePointer) Release() {}
