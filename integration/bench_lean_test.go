//go:build linux

package integration

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"os/exec"
	"testing"
)

// leanEnv makes the test binary a lean server: its value is the data file.
const leanEnv = "MILLRACE_LEAN_SERVER"

// The lean protocol: a request is its length u32 and that many bytes. Those of
// leanFetchBytes ask for the MiB of the file that follows the last one; the
// answer is the MiB. All others are appended to the file; the answer is as long
// as that of a Produce.
const (
	leanFetchBytes  = 8
	leanAnswerBytes = 64
)

// inFlight bounds the requests without an answer, as replay does.
const inFlight = 64

// TestLeanServer is not a test: it is the process that startLean starts.
func TestLeanServer(t *testing.T) {
	path := os.Getenv(leanEnv)
	if path == "" {
		t.Skip("the process of a benchmark")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(l.Addr())
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if err := serveLean(conn, file); err != nil && err != io.EOF {
		t.Fatal(err)
	}
}

func serveLean(conn net.Conn, file *os.File) error {
	in := bufio.NewReaderSize(conn, 4<<10)
	table := crc32.MakeTable(crc32.Castagnoli)
	frame, chunk, answer := make([]byte, 2<<20), make([]byte, pieceBytes), make([]byte, leanAnswerBytes)
	var end, at int64
	for {
		if _, err := io.ReadFull(in, frame[:4]); err != nil {
			return err
		}
		body := frame[:binary.BigEndian.Uint32(frame)]
		if _, err := io.ReadFull(in, body); err != nil {
			return err
		}
		if len(body) == leanFetchBytes {
			if at+1<<20 > end {
				at = 0
			}
			for range 1 << 20 / pieceBytes {
				if _, err := file.ReadAt(chunk, at); err != nil {
					return err
				}
				if _, err := conn.Write(chunk); err != nil {
					return err
				}
				at += pieceBytes
			}
			continue
		}
		binary.BigEndian.PutUint32(answer, crc32.Checksum(body, table))
		for len(body) > 0 {
			n, err := file.WriteAt(body[:min(len(body), pieceBytes)], end)
			if err != nil {
				return err
			}
			body, end = body[n:], end+int64(n)
		}
		if _, err := conn.Write(answer); err != nil {
			return err
		}
	}
}

// leanServer is the client's side of a lean server.
type leanServer struct {
	cmd  *exec.Cmd
	conn net.Conn
	in   *bufio.Reader
	buf  []byte
}

func startLean(b *testing.B) *leanServer {
	s := &leanServer{cmd: exec.Command(os.Args[0], "-test.run=^TestLeanServer$"), buf: make([]byte, 1<<20)}
	s.cmd.Env = append(os.Environ(), leanEnv+"="+b.TempDir()+"/data")
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	})
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatalf("the lean server does not say where it listens: %v", err)
	}
	if s.conn, err = net.Dial("tcp", addr[:len(addr)-1]); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.conn.Close() })
	s.in = bufio.NewReaderSize(s.conn, 64<<10)
	return s
}

func (s *leanServer) cpu(b *testing.B, round func(*testing.B) int) float64 {
	return processCPU(b, s.cmd.Process.Pid, round)
}

// produce sends a round of frames of size bytes, inFlight of them ahead of the answers.
func (s *leanServer) produce(b *testing.B, size int) int {
	frame := binary.BigEndian.AppendUint32(nil, uint32(size))
	frame = append(frame, make([]byte, size)...)
	return s.exchange(b, frame, roundBytes/size, leanAnswerBytes, inFlight) * size
}

// fetch asks for a round of MiBs, fetchesAhead of them ahead of the answers.
func (s *leanServer) fetch(b *testing.B) int {
	frame := binary.BigEndian.AppendUint32(nil, leanFetchBytes)
	frame = append(frame, make([]byte, leanFetchBytes)...)
	return s.exchange(b, frame, roundMiB, 1<<20, fetchesAhead) << 20
}

func (s *leanServer) exchange(b *testing.B, request []byte, n, answerBytes, ahead int) int {
	slots := make(chan struct{}, ahead)
	sent := make(chan error, 1)
	go func() {
		for range n {
			slots <- struct{}{}
			if _, err := s.conn.Write(request); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for range n {
		if _, err := io.ReadFull(s.in, s.buf[:answerBytes]); err != nil {
			b.Fatal(err)
		}
		<-slots
	}
	if err := <-sent; err != nil {
		b.Fatal(err)
	}
	return n
}
