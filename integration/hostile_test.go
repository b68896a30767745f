package integration

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestHostileClients throws malformed bytes at a broker while a good client
// produces: the broker neither ends nor grows nor loses a record (I23, N3, N4).
func TestHostileClients(t *testing.T) {
	b := startBroker(t)
	createTopic(t, b, "good", 1)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()

	stop := make(chan struct{})
	acked := make(chan int, 1)
	good := b.client(kgo.ProducerLinger(0))
	go func() {
		n := 0
		defer func() { acked <- n }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := good.ProduceSync(ctx, &kgo.Record{Topic: "good", Value: []byte(strconv.Itoa(n))}).FirstErr(); err != nil {
				t.Errorf("the good client: %v", err)
				return
			}
			n++
		}
	}()
	before := residentKB(t, b)

	rng := rand.New(rand.NewPCG(1, 2))
	attacks := hostileFrames(rng)
	var all sync.WaitGroup
	work := make(chan []byte)
	for range 8 {
		all.Go(func() {
			for frame := range work {
				throw(t, b.Addr, frame)
			}
		})
	}
	for _, frame := range attacks {
		work <- frame
	}
	close(work)
	all.Wait()

	// A thousand connections that promise a giant frame and send nothing.
	var idle []net.Conn
	for range 1000 {
		conn, err := net.DialTimeout("tcp", b.Addr, patience)
		if err != nil {
			break // a cap on connections is a good answer too
		}
		_, _ = conn.Write([]byte{0x05, 0xff, 0xff, 0xff, 0, 0})
		idle = append(idle, conn)
	}
	after := residentKB(t, b)
	for _, conn := range idle {
		_ = conn.Close()
	}
	close(stop)
	n := <-acked
	require.Positive(t, n)
	records := readAll(ctx, t, b, "good", 0)
	require.Len(t, records, n, "records of the good client")
	t.Logf("%d hostile frames, %d silent giants, %d good records; resident %d → %d kB", len(attacks), len(idle), n, before, after)
	require.Less(t, after, before+128<<10, "kilobytes resident")
	require.Equal(t, 0, b.Stop())
}

// hostileFrames are requests of every key and version with random, cut and
// inflated bodies, and bytes that are no Kafka at all.
func hostileFrames(rng *rand.Rand) [][]byte {
	frames := [][]byte{
		{}, {0}, {0xff, 0xff, 0xff, 0xff}, {0x80, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 1, 0},
		[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), []byte("POST /x HTTP/1.1\r\n\r\n"),
		{0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03},
	}
	format := kmsg.NewRequestFormatter(kmsg.FormatterClientID("hostile"))
	for key := int16(0); key <= kmsg.MaxKey; key++ {
		for version := int16(0); ; version++ {
			req := kmsg.RequestForKey(key)
			if req == nil || version > req.MaxVersion()+1 {
				break
			}
			req.SetVersion(version)
			whole := format.AppendRequest(nil, req, 1)
			frames = append(frames, whole)
			body := whole[4:]
			// Every byte behind the header becomes noise, or huge lengths.
			for _, fill := range []byte{0x00, 0x7f, 0xff} {
				f := make([]byte, 8+len(body))
				copy(f[4:], body)
				for i := 4 + min(len(body), 17); i < len(f); i++ {
					f[i] = fill
				}
				frames = append(frames, sized(f))
			}
			for range 3 {
				f := make([]byte, 4+len(body)+rng.IntN(64))
				copy(f[4:], body)
				for i := 4 + min(len(body), 17); i < len(f); i++ {
					f[i] = byte(rng.Uint32())
				}
				frames = append(frames, sized(f))
			}
			if len(whole) > 5 {
				frames = append(frames, whole[:4+rng.IntN(len(whole)-4)]) // cut short
			}
		}
	}
	return frames
}

func sized(frame []byte) []byte {
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	return frame
}

// throw sends a frame on a connection of its own and reads until the broker
// has answered or closed.
func throw(t *testing.T, addr string, frame []byte) {
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		t.Errorf("the broker takes no connection: %v", err)
		return
	}
	defer conn.Close()
	_, _ = conn.Write(frame)
	_ = conn.(*net.TCPConn).CloseWrite() // no more from us: the broker closes when it has answered
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, conn); err != nil && os.IsTimeout(err) {
		t.Errorf("neither an answer nor a close within %v for %d bytes %.40x", patience, len(frame), frame)
	}
}

// residentKB is the resident memory of the broker.
func residentKB(t testing.TB, b *broker) int { return statusKB(t, b, "VmRSS:") }

// statusKB is a field of the broker's /proc status, in kB.
func statusKB(t testing.TB, b *broker, field string) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if kb, ok := strings.CutPrefix(line, field); ok {
			n, err := strconv.Atoi(strings.Fields(kb)[0])
			require.NoError(t, err)
			return n
		}
	}
	return 0
}
