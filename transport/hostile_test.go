package transport

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestHostileBytes is I23: thousands of connections send requests with bytes flipped, cut out, repeated and cut off. None crashes a handler or
// the server, none leaves memory behind, and a good client is served all the while.
func TestHostileBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, handlerFunc(func(r *Request) {
			if req := kmsg.RequestForKey(r.Key); req != nil {
				req.SetVersion(r.Version)
				_ = req.ReadFrom(r.Body)
			}
			switch r.CorrelationID & 3 {
			case 0:
				r.ReplyNothing()
			case 1:
				r.CloseConn("for the test")
			default:
				answering(r)
			}
		}), nil)
		rnd := rand.New(rand.NewPCG(23, 1))
		good := s.dial()
		for i := range 3000 {
			stream := append(metadataFrame(2, "a"), produceFrame(int32(rnd.IntN(8)), -1, rnd.IntN(9000))...)
			stream = append(stream, metadataFrame(6, "b")...)
			for range 1 + rnd.IntN(4) {
				at := rnd.IntN(len(stream))
				switch rnd.IntN(4) {
				case 0:
					stream[at] ^= byte(1 << rnd.IntN(8))
				case 1:
					binary.BigEndian.PutUint32(append(stream, 0, 0, 0)[at:], rnd.Uint32()>>rnd.IntN(32))
				case 2:
					end := min(len(stream), at+1+rnd.IntN(20))
					stream = append(stream[:at:at], stream[end:]...)
				default:
					end := min(len(stream), at+1+rnd.IntN(20))
					stream = append(stream[:end:end], stream[at:]...)
				}
			}
			c := s.dial()
			go func() { _, _ = c.Write(stream) }()
			go c.ends()
			if i%2 == 0 {
				synctest.Wait()
				_ = c.Close()
			}
			if i%100 == 0 {
				go good.send(metadataFrame(2, "x"))
				good.expect("2 ok")
			}
		}
		time.Sleep(time.Hour) // stalled ones are cut off, silent ones are idle
		synctest.Wait()
		require.Empty(t, s.conns())
		require.Zero(t, s.listeners[0].budget.inUse())
		require.Zero(t, s.logs.count("panic"))
	})
}

// FuzzRequestHeader: no bytes make the parser read outside of the frame, and what it returns is what is there.
func FuzzRequestHeader(f *testing.F) {
	f.Add(metadataFrame(1, "a")[4:], false)
	f.Add(produceFrame(1, 1, 10)[4:], true)
	f.Fuzz(func(t *testing.T, b []byte, flexible bool) {
		h, err := parseHeader(b, flexible)
		if err != nil {
			require.ErrorIs(t, err, errHeader)
			return
		}
		require.True(t, bytes.HasSuffix(b, h.body))
		require.True(t, bytes.HasPrefix(b[10:], h.clientID))
		require.LessOrEqual(t, 10+len(h.clientID)+len(h.body), len(b))
		if !flexible {
			require.Equal(t, 10+len(h.clientID)+len(h.body), len(b))
		}
	})
}
