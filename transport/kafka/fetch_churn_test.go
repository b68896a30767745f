package kafka

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/log/record"
)

// Fetches that wait, are woken, time out, are overtaken by the end of their
// connection, in sessions and without, all at once: every consumer reads every
// record once and in order, and nothing is left waiting. Calls are recycled, so
// that a wake that comes too late would hit another's request.
func TestFetchChurn(t *testing.T) {
	const records, consumers = 400, 6
	b := ownBroker(t, brokerEdit{})
	topic := b.topic(t, 2)
	var group sync.WaitGroup
	for i := range consumers {
		group.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 7))
			c := b.dial(t)
			session, epoch := noSession, finalEpoch
			for offset := 0; offset < records; {
				req := fetchRequest(11, fetched{topic, 1, int64(offset)}, fetched{topic, 0, 0})
				req.SessionID, req.SessionEpoch = session, epoch
				req.MaxWaitMillis, req.MinBytes = int32(rng.IntN(4)), int32(1+rng.IntN(300))
				if i%2 == 0 && session == noSession {
					req.SessionEpoch = initialEpoch
				}
				c.send(req)
				if rng.IntN(12) == 0 {
					_ = c.Close()
					c, session, epoch = b.dial(t), noSession, finalEpoch
					continue
				}
				resp := c.receive(req).(*kmsg.FetchResponse)
				if !assert.Zero(t, resp.ErrorCode) {
					return
				}
				if resp.SessionID != session {
					session, epoch = resp.SessionID, initialEpoch
				}
				if session != noSession {
					epoch = nextSessionEpoch(epoch)
				}
				for _, rt := range resp.Topics {
					for _, p := range rt.Partitions {
						if p.Partition != 1 {
							continue
						}
						for _, value := range values(t, p.RecordBatches) {
							if n, err := strconv.Atoi(value); !assert.NoError(t, err) || n < offset {
								continue
							} else if !assert.Equal(t, offset, n) {
								return
							}
							offset++
						}
					}
				}
			}
		})
	}
	p := b.dial(t)
	for i := range records {
		r := record.NewBuilder(record.CodecNone)
		r.Add(1_900_000_000, nil, fmt.Append(nil, i), nil)
		p.produce(topic, 1, r.Build())
	}
	group.Wait()
	require.False(t, t.Failed())
	b.awaitParked(t, 0)
	b.awaitNoBudget(t)
}
