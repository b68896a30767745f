package transport

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// memorySource is a source of bytes in memory that counts its releases.
type memorySource struct {
	b        []byte
	released *atomic.Int64
}

func (s memorySource) Len() int                              { return len(s.b) }
func (s memorySource) ReadAt(p []byte, off int) (int, error) { return copy(p, s.b[off:]), nil }
func (s memorySource) Release() {
	if s.released != nil {
		s.released.Add(1)
	}
}

// BenchmarkSmallResponses answers small requests inline; depth is how many a client sends at once.
func BenchmarkSmallResponses(b *testing.B) {
	for _, depth := range []int{1, 32} {
		b.Run(fmt.Sprintf("pipelined=%d", depth), func(b *testing.B) {
			s := startServer(b, handlerFunc(func(r *Request) { r.Reply(Message(respond("pong"))) }), overTCP)
			c := s.dial()
			var burst []byte
			for i := range depth {
				burst = append(burst, metadataFrame(int32(i), "ping")...)
			}
			c.send(metadataFrame(0, "ping"))
			one, err := readResponse(c)
			require.NoError(b, err)
			answer := make([]byte, depth*(len(one)+4))
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				if n%depth == 0 { // b.N counts responses
					if _, err := c.Write(burst); err != nil {
						b.Fatal(err)
					}
					if _, err := io.ReadFull(c, answer); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// BenchmarkProduceFrames takes in frames of 1 MiB and 16 KiB of records.
func BenchmarkProduceFrames(b *testing.B) {
	for _, size := range []int{16 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("KiB=%d", size>>10), func(b *testing.B) {
			s := startServer(b, handlerFunc(func(r *Request) { r.Reply(Message(respond("ok"))) }), overTCP)
			c := s.dial()
			f := produceFrame(1, -1, size)
			br := bufio.NewReader(c)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Write(f); err != nil {
					b.Fatal(err)
				}
				if _, err := readResponse(br); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkSpliced sends 1 MiB responses from memory, in pieces.
func BenchmarkSpliced(b *testing.B) {
	for _, piece := range []int{16 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("pieceKiB=%d", piece>>10), func(b *testing.B) {
			records := make([]byte, piece)
			header := make([]byte, 60)
			s := startServer(b, handlerFunc(func(r *Request) {
				sp := &Spliced{Pieces: make([]Piece, (1<<20)/piece)}
				for i := range sp.Pieces {
					sp.Pieces[i] = Piece{Header: header, Body: memorySource{b: records}}
				}
				r.Reply(Splice(sp))
			}), overTCP)
			c := s.dial()
			f := metadataFrame(1, "x")
			total := int64(1<<20 + (1<<20)/piece*60 + 8)
			b.SetBytes(1 << 20)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Write(f); err != nil {
					b.Fatal(err)
				}
				if _, err := io.CopyN(discard{}, c.Conn.(*net.TCPConn), total); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// BenchmarkLateResponses answers small requests from another goroutine, as an append that waits for its followers does.
func BenchmarkLateResponses(b *testing.B) {
	for _, depth := range []int{1, 32} {
		b.Run(fmt.Sprintf("pipelined=%d", depth), func(b *testing.B) {
			late := make(chan *Request, depth)
			s := startServer(b, handlerFunc(func(r *Request) { late <- r }), overTCP)
			answer := respond("pong")
			go func() {
				for r := range late {
					r.Reply(Message(answer))
				}
			}()
			b.Cleanup(func() { close(late) })
			c := s.dial()
			var burst []byte
			for i := range depth {
				burst = append(burst, metadataFrame(int32(i), "ping")...)
			}
			answers := make([]byte, depth*len(appendMessage(nil, 0, answer)))
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				if n%depth == 0 { // b.N counts responses
					if _, err := c.Write(burst); err != nil {
						b.Fatal(err)
					}
					if _, err := io.ReadFull(c, answers); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// BenchmarkFromRest has connections that rest serve one request each: what a heartbeat costs that comes every three seconds.
func BenchmarkFromRest(b *testing.B) {
	const conns = 100
	s := startServer(b, handlerFunc(func(r *Request) { r.Reply(Message(respond("pong"))) }), overTCP)
	var clients []*testClient
	for range conns {
		clients = append(clients, s.dial())
	}
	ping := metadataFrame(1, "ping")
	answer := make([]byte, len(appendMessage(nil, 0, respond("pong"))))
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if n%conns == 0 {
			b.StopTimer()
			require.Eventually(b, func() bool { return s.resting() == conns }, 10*time.Second, 10*time.Millisecond)
			b.StartTimer()
		}
		c := clients[n%conns]
		if _, err := c.Write(ping); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, answer); err != nil {
			b.Fatal(err)
		}
	}
}
