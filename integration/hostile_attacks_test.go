package integration

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// An attack is what one kind of bad client does until ctx ends. It counts the
// answers that were right for such a client, and those that were not.
type attack struct {
	name string
	// conns is how many connections it keeps at a time.
	conns int
	// once is the life of one connection; it is begun anew until the attack ends.
	// It calls ready when the connection is where it hurts.
	once func(ctx context.Context, conn net.Conn, ready func()) error
	// held says that connections of this kind only stay open or full: a broker that
	// closes one has done nothing wrong, and none needs to be answered.
	held bool
}

// errWrongAnswer is a broker's answer that a bad client should not have got.
var errWrongAnswer = errors.New("wrong answer")

// hostileDialer gives bad clients another address than the good one has, as if
// they were on a machine of their own: on Linux all of 127/8 is loopback.
var hostileDialer = net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}

// bulkTopic is what attacks read: see fillBulk.
const bulkTopic = "bulk"

var attacks = []attack{
	{name: "half-frames", conns: 500, once: sendHalfAFrame, held: true},
	{name: "http", conns: 16, once: func(ctx context.Context, conn net.Conn, ready func()) error {
		return foreign(conn, ready, []byte("GET /metrics HTTP/1.1\r\nHost: broker\r\nUser-Agent: curl/8\r\n\r\n"))
	}},
	{name: "tls", conns: 16, once: func(ctx context.Context, conn net.Conn, ready func()) error {
		return foreign(conn, ready, []byte{0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03})
	}},
	{name: "versions", conns: 16, once: unknownVersions},
	{name: "never-reads", conns: 200, once: neverRead, held: true},
	{name: "sockets", conns: 5000, once: holdSocket, held: true},
	{name: "fetch-all", conns: 200, once: fetchAll},
}

func attackNamed(name string) (attack, error) {
	for _, a := range attacks {
		if a.name == name {
			return a, nil
		}
	}
	return attack{}, fmt.Errorf("no attack is named %s", name)
}

// attackReport is what an attack saw.
type attackReport struct {
	Right, Wrong int64
	Ready        int64  // connections that were where they hurt
	Bytes        int64  // received
	Example      string // of what was wrong
}

// run keeps the attack up until ctx ends. ready is called once, when half of the
// connections are where they hurt.
func (a attack) run(ctx context.Context, addr string, ready func()) attackReport {
	var report attackReport
	var example atomic.Value
	var right, wrong, readied, bytes atomic.Int64
	var all sync.WaitGroup
	half := sync.OnceFunc(ready)
	for range a.conns {
		all.Go(func() {
			first := sync.OnceFunc(func() {
				if readied.Add(1) >= int64(a.conns+1)/2 {
					half()
				}
			})
			for ctx.Err() == nil {
				conn, err := hostileDialer.DialContext(ctx, "tcp", addr)
				if err != nil {
					pause(ctx, 10*time.Millisecond) // a limit of connections is a right answer; to hammer it is another attack
					continue
				}
				stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
				err = a.once(ctx, countingConn{conn, &bytes}, first)
				stop()
				_ = conn.Close()
				switch {
				case ctx.Err() != nil:
				case errors.Is(err, errWrongAnswer):
					wrong.Add(1)
					example.Store(err.Error())
				case err == nil:
					right.Add(1)
				default:
					pause(ctx, 10*time.Millisecond)
				}
			}
		})
	}
	all.Wait()
	report.Right, report.Wrong, report.Ready, report.Bytes = right.Load(), wrong.Load(), readied.Load(), bytes.Load()
	report.Example, _ = example.Load().(string)
	return report
}

// pause waits, so that an attack that is refused does not spin on its own CPU.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

type countingConn struct {
	net.Conn
	n *atomic.Int64
}

func (c countingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// request formats one request.
func request(req kmsg.Request, version int16, correlation int32) []byte {
	req.SetVersion(version)
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("hostile")).AppendRequest(nil, req, correlation)
}

// sendHalfAFrame announces a Produce request of 1 MiB, sends half of it, and waits
// to be thrown out.
func sendHalfAFrame(_ context.Context, conn net.Conn, ready func()) error {
	frame := make([]byte, 512<<10)
	binary.BigEndian.PutUint32(frame, 1<<20)
	binary.BigEndian.PutUint16(frame[6:], 9)
	_ = conn.SetWriteDeadline(time.Now().Add(2 * time.Second))
	_, err := conn.Write(frame)
	ready() // the broker need not have read all of it
	if err != nil && !os.IsTimeout(err) {
		return err
	}
	_, err = io.Copy(io.Discard, conn)
	return err
}

// foreign speaks another protocol: the broker closes without a word.
func foreign(conn net.Conn, ready func(), hello []byte) error {
	if _, err := conn.Write(hello); err != nil {
		return err
	}
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	switch n, err := io.Copy(io.Discard, conn); {
	case n > 0:
		return fmt.Errorf("%w: %d bytes to %.12q", errWrongAnswer, n, hello)
	case os.IsTimeout(err):
		return fmt.Errorf("%w: %.12q is not disconnected", errWrongAnswer, hello)
	}
	ready()
	return nil
}

// unknownVersions asks for a version of ApiVersions from the future, which is
// answered in the layout of version 0, and then for an API that nobody has, for
// which the broker closes the connection.
func unknownVersions(_ context.Context, conn net.Conn, ready func()) error {
	frame := request(kmsg.NewPtrApiVersionsRequest(), 3, 77)
	binary.BigEndian.PutUint16(frame[6:], 99)
	if _, err := conn.Write(frame); err != nil {
		return err
	}
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	body, err := readResponse(conn, &kmsg.ApiVersionsRequest{Version: 0})
	if err != nil {
		return err
	}
	resp := kmsg.NewPtrApiVersionsResponse()
	if err := resp.ReadFrom(body); err != nil || resp.ErrorCode != 35 || len(resp.ApiKeys) != 1 {
		return fmt.Errorf("%w: ApiVersions 99 is answered by code %d with %d keys, %v", errWrongAnswer, resp.ErrorCode, len(resp.ApiKeys), err)
	}
	binary.BigEndian.PutUint16(frame[4:], 999)
	if _, err := conn.Write(frame); err != nil {
		return err
	}
	switch n, err := io.Copy(io.Discard, conn); {
	case n > 0:
		return fmt.Errorf("%w: %d bytes to API key 999", errWrongAnswer, n)
	case os.IsTimeout(err):
		return fmt.Errorf("%w: API key 999 is not disconnected", errWrongAnswer)
	}
	ready()
	return nil
}

// bulkFetch asks for as much as there may be, from the start of the bulk topic.
func bulkFetch(correlation int32, offset int64) []byte {
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.MaxWaitMillis, req.MinBytes, req.MaxBytes = -1, 500, 1, 50<<20
	topic := kmsg.NewFetchRequestTopic()
	topic.Topic = bulkTopic
	part := kmsg.NewFetchRequestTopicPartition()
	part.FetchOffset, part.PartitionMaxBytes, part.CurrentLeaderEpoch = offset, 50<<20, -1
	topic.Partitions = append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	return request(req, 11, correlation)
}

// neverRead asks for all of the bulk topic and for all metadata, over and over,
// and never reads an answer.
func neverRead(_ context.Context, conn net.Conn, ready func()) error {
	all := kmsg.NewPtrMetadataRequest()
	for i := int32(0); ; i++ {
		batch := bulkFetch(2*i, 0)
		for range 500 { // one write of this kind costs the attacker as much as many small ones would not
			batch = append(batch, request(all, 9, 2*i+1)...)
		}
		_ = conn.SetWriteDeadline(time.Now().Add(2 * time.Second))
		if _, err := conn.Write(batch); err != nil && !os.IsTimeout(err) {
			return err
		} else if err != nil || i == 8 {
			ready()
			_ = conn.SetWriteDeadline(time.Time{})
			_, err = conn.Write(batch) // stands until the broker closes
			if err != nil {
				return err
			}
		}
	}
}

// holdSocket keeps a connection open: every other one never says a word, the rest
// ask for the versions once.
func holdSocket(ctx context.Context, conn net.Conn, ready func()) error {
	if conn.LocalAddr().(*net.TCPAddr).Port%2 == 0 {
		if _, err := conn.Write(request(kmsg.NewPtrApiVersionsRequest(), 3, 1)); err != nil {
			return err
		}
	}
	ready()
	_, err := io.Copy(io.Discard, conn)
	return err
}

// fetchAll reads the bulk topic from its start to its end as fast as it comes.
func fetchAll(_ context.Context, conn net.Conn, ready func()) error {
	buf := make([]byte, 64<<10)
	for i := int32(0); ; i++ {
		if _, err := conn.Write(bulkFetch(i, 0)); err != nil {
			return err
		}
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.ReadFull(conn, buf[:8]); err != nil {
			if os.IsTimeout(err) {
				return fmt.Errorf("%w: no answer to a fetch", errWrongAnswer)
			}
			return err
		}
		ready()
		left, got := int(binary.BigEndian.Uint32(buf))-4, int32(binary.BigEndian.Uint32(buf[4:]))
		if got != i {
			return fmt.Errorf("%w: correlation id %d, not %d", errWrongAnswer, got, i)
		}
		for left > 0 {
			_ = conn.SetReadDeadline(time.Now().Add(patience))
			n, err := conn.Read(buf[:min(len(buf), left)])
			left -= n
			if err != nil {
				if os.IsTimeout(err) {
					return fmt.Errorf("%w: an answer to a fetch that stops", errWrongAnswer)
				}
				return err
			}
		}
	}
}
