package broker

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// What an offset commit costs a broker that is alone, from the socket over Raft's log and back, beside as many others as clients are
// given; the clients reuse prepared bytes.
func BenchmarkOffsetCommits(b *testing.B) {
	for _, clients := range []int{1, 100} {
		b.Run(fmt.Sprint(clients), func(b *testing.B) {
			broker := startBroker(b, testConfig(b.TempDir()))
			admin := client(b, broker)
			_, err := kadm.NewClient(admin).CreateTopic(context.Background(), 12, 1, nil, "orders")
			require.NoError(b, err)
			addr := broker.Advertised()
			conns := make([]net.Conn, clients)
			requests := make([][]byte, clients)
			for i := range conns {
				conns[i], err = net.Dial("tcp", addr)
				require.NoError(b, err)
				defer func() { _ = conns[i].Close() }()
				req := kmsg.NewPtrOffsetCommitRequest()
				req.Version, req.Group, req.Generation = 9, fmt.Sprintf("billing-%d", i), -1
				rt := kmsg.NewOffsetCommitRequestTopic()
				rp := kmsg.NewOffsetCommitRequestTopicPartition()
				rp.Partition, rp.LeaderEpoch = int32(i%12), -1
				rt.Topic, rt.Partitions = "orders", append(rt.Partitions, rp)
				req.Topics = append(req.Topics, rt)
				requests[i] = kmsg.NewRequestFormatter(kmsg.FormatterClientID("committer")).AppendRequest(nil, req, 7)
			}
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for i, conn := range conns {
				wg.Go(func() {
					answer := make([]byte, 1<<10)
					for range (b.N + clients - 1 - i) / clients {
						if _, err := conn.Write(requests[i]); err != nil {
							b.Error(err)
							return
						}
						if _, err := io.ReadFull(conn, answer[:4]); err != nil {
							b.Error(err)
							return
						}
						if _, err := io.ReadFull(conn, answer[:binary.BigEndian.Uint32(answer)]); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
