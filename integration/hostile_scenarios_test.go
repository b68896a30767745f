//go:build linux

package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// goodWindow is how many records the good client sends and reads beside each attack.
const goodWindow = 400

// TestHostileScenarios keeps up each kind of bad client beside a good one that sends and
// reads (N1, N3, N6, N8, I23). The broker has 512 MiB of memory: as root by its control
// group, which kills it if it takes more; else it is told so, and what it takes is read
// from /proc. Bad clients get the answers that are right for them, connections that can't
// be served are closed, every record of the good client comes back, and the rates are
// the benchmark's business (BenchmarkHostile).
func TestHostileScenarios(t *testing.T) {
	if testing.Short() {
		t.Skip("takes ten seconds")
	}
	g, why := newGroups(t)
	set := []string{"log.segment.bytes=67108864", "max.connections=20000"}
	if why != "" {
		t.Log("no limit by a control group: " + why)
		set = append(set, "millrace.memory.limit.bytes=375809638") // 70 % of 512 MiB, what it would take from the group
	}
	b := newBroker(t, set...)
	b.wrap = g.wrap("broker", hostileMemory)
	b.Start()
	createTopic(t, b, goodTopic, 1)
	fillBulk(t, b)
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	producer := b.client()
	consumer := b.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{goodTopic: {0: kgo.NewOffset().AtStart()}}))
	next := 0
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			attacker := startParty(t, party{Role: "attack", Addr: b.Addr, Attack: a.name})
			for end := next + goodWindow; next < end; {
				var records []*kgo.Record
				for i := range 20 {
					records = append(records, &kgo.Record{Topic: goodTopic, Value: fmt.Appendf(nil, "%0500d", next+i)})
				}
				require.NoError(t, producer.ProduceSync(ctx, records...).FirstErr())
				for got := 0; got < len(records); {
					fetches := consumer.PollFetches(ctx)
					require.NoError(t, fetches.Err())
					fetches.EachRecord(func(r *kgo.Record) {
						require.Equal(t, fmt.Sprintf("%0500d", next+got), string(r.Value))
						got++
					})
				}
				next += len(records)
			}
			var saw attackReport
			attacker.end(&saw)
			require.Zero(t, saw.Wrong, saw.Example)
			require.GreaterOrEqual(t, saw.Ready, int64(a.conns+1)/2, "connections that got where it hurts")
			if !a.held {
				require.Positive(t, saw.Right+saw.Bytes, "answers")
			}
			t.Logf("%+v; resident %d MiB", saw, residentKB(t, b)>>10)
		})
	}
	require.Less(t, peakKB(t, b), hostileMemory>>10, "kilobytes resident at most")
	if g != nil {
		require.Zero(t, g.killed("broker"), "the kernel had to kill")
	}
	t.Logf("at most %d MiB resident", peakKB(t, b)>>10)
	require.Equal(t, 0, b.Stop())
}
