//go:build linux

package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// BenchmarkHostile measures what a good client keeps of its rate beside each kind
// of bad client.
//
// On one machine the bad client takes CPU from the good one by merely running, which
// is not the broker's fault and would not happen with clients on machines of their
// own. So each window with an attack is followed by one with a control: a process in
// the attacker's place that burns as much CPU as the attacker just did, and
// touches nothing. And the broker has a core to itself, the clients share another
// one: else what the broker does for the attacker would be taken from the good client
// by the machine, which no broker could help. As root, good client and attacker each
// have a CPU control group of equal weight, and the broker has 512 MiB of memory.
// What the good client lost against the control is what the broker lost to the
// attack: CPU it spent on it, memory, locks, waiting.
//
// Two good clients are measured. One sends and reads 1,000 records of 1 KiB a second,
// far below what the broker can do: it must keep its rate, and its latency tells what
// the attack cost. The other one sends and reads as much as it can and thus
// competes with the attack for the broker's CPU. Ratios are printed, medians over the
// rounds; nothing is asserted.
//
//	go test -run '^$' -bench Hostile ./integration
func BenchmarkHostile(b *testing.B) {
	for _, a := range attacks {
		for _, rate := range []int{1000, 0} {
			name := "saturating"
			if rate > 0 {
				name = "paced"
			}
			b.Run(a.name+"/"+name, func(b *testing.B) { measureHostile(b, a, rate) })
		}
	}
}

const (
	hostileWindow = 3 * time.Second
	hostileRounds = 3
	hostileMemory = 512 << 20
)

func measureHostile(b *testing.B, a attack, rate int) {
	g, why := newGroups(b)
	if why != "" {
		b.Log("no control groups: " + why)
	}
	broker := newBroker(b, "log.segment.bytes=67108864", "log.retention.bytes=268435456", "log.retention.check.interval.ms=1000", "max.connections=20000")
	broker.wrap = onCore(0, g.wrap("broker", hostileMemory))
	broker.Start()
	createTopic(b, broker, goodTopic, goodPartitions, "millrace.flush.ack", "false")
	fillBulk(b, broker)
	attackers, goods := onCore(1, g.wrap("attacker", 0)), onCore(1, g.wrap("good", 0))
	good := startParty(b, party{Role: "good", Addr: broker.Addr, Rate: rate}, goods...)

	window := func(p party) (r goodReport, cores, brokerCores float64, seen attackReport) {
		other := startParty(b, p, attackers...)
		wait(b, 2*time.Second) // past its beginning
		require.Equal(b, "begun", good.say("begin"))
		began, before, brokerBefore := time.Now(), other.cpu(), cpuOf(b, broker.cmd.Process.Pid)
		wait(b, hostileWindow)
		require.NoError(b, json.Unmarshal([]byte(good.say("report")), &r))
		cores = (other.cpu() - before).Seconds() / time.Since(began).Seconds()
		brokerCores = (cpuOf(b, broker.cmd.Process.Pid) - brokerBefore).Seconds() / time.Since(began).Seconds()
		if p.Role == "attack" {
			other.end(&seen)
		} else {
			other.end(nil)
		}
		return r, cores, brokerCores, seen
	}
	var produced, fetched, p99, controlP99, used, brokerUsed, controlBroker, rates []float64
	for range hostileRounds {
		attacked, cores, brokerCores, saw := window(party{Role: "attack", Addr: broker.Addr, Attack: a.name})
		control, burnt, without, _ := window(party{Role: "burn", Cores: cores})
		require.Empty(b, attacked.Failed)
		if os.Getenv("MILLRACE_VERBOSE") != "" {
			b.Logf("attack %+v with %.2f cores, broker %.2f; control %+v with %.2f cores, broker %.2f; %+v; resident %d MiB", attacked, cores, brokerCores, control, burnt, without, saw, residentKB(b, broker)/1024)
		}
		produced = append(produced, attacked.Produced/control.Produced)
		fetched = append(fetched, attacked.Fetched/control.Fetched)
		p99, controlP99 = append(p99, attacked.P99), append(controlP99, control.P99)
		used, brokerUsed, controlBroker = append(used, cores), append(brokerUsed, brokerCores), append(controlBroker, without)
		rates = append(rates, control.Produced)
	}
	b.ReportMetric(median(produced), "produced/control")
	b.ReportMetric(median(fetched), "fetched/control")
	b.ReportMetric(median(p99), "p99-ms")
	b.ReportMetric(median(controlP99), "control-p99-ms")
	b.ReportMetric(median(used), "attacker-cores")
	b.ReportMetric(median(brokerUsed), "broker-cores")
	b.ReportMetric(median(controlBroker), "control-broker-cores")
	b.ReportMetric(median(rates), "control-rec/s")
	b.ReportMetric(float64(peakKB(b, broker))/1024, "peak-MiB")
	b.ReportMetric(0, "ns/op")
}

// wait passes d of a measurement.
func wait(t testing.TB, d time.Duration) {
	t.Helper()
	<-time.After(d)
}

// fillBulk produces what attacks read: 64 MiB in batches of 64 KiB.
func fillBulk(t testing.TB, b *broker) {
	t.Helper()
	createTopic(t, b, bulkTopic, 1, "millrace.flush.ack", "false")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cl := b.client(kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerBatchMaxBytes(64<<10), kgo.MaxBufferedRecords(64<<10))
	defer cl.Close()
	value := bytes.Repeat([]byte("bulk"), 256)
	var failed error
	for range 64 << 10 {
		cl.Produce(ctx, &kgo.Record{Topic: bulkTopic, Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed = err
			}
		})
	}
	require.NoError(t, cl.Flush(ctx))
	require.NoError(t, failed)
}

// peakKB is the most resident memory that the broker ever had.
func peakKB(t testing.TB, b *broker) int { return statusKB(t, b, "VmHWM:") }
