package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/transport/console"
)

// A member commits in a tight loop while an administrator puts the group back again and again. After each the group goes on from where
// it was put, no commit of the generation before counts, and what the order says was there before is exactly what was.
func TestSeekOfBusyGroup(t *testing.T) {
	//lint:ignore SA1029 it is the key that the library looks for
	modern := context.WithValue(context.Background(), "opt_in_kafka_next_gen_balancer_beta", true)
	for name, protocol := range map[string][]kgo.Opt{
		"eager": {kgo.Balancers(kgo.RangeBalancer())},
		// franz-go keeps its partitions, and where it is in them, when it learns from a commit that it is no member any more.
		"cooperative": {kgo.Balancers(kgo.CooperativeStickyBalancer())},
		"KIP-848":     {kgo.WithContext(modern)},
	} {
		t.Run(name, func(t *testing.T) {
			seekBusyGroup(t, 50, protocol)
		})
	}
}

func seekBusyGroup(t *testing.T, rounds int, protocol []kgo.Opt) {
	const topic, group, records = "orders", "billing", 500
	c := testConfig(t.TempDir())
	c.Static = map[string]string{"group.initial.rebalance.delay.ms": "0", "group.consumer.heartbeat.interval.ms": "50", "group.consumer.min.heartbeat.interval.ms": "50"}
	b := startBroker(t, c)
	admin := client(t, b)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	adm := kadm.NewClient(admin)
	_, err := adm.CreateTopic(ctx, 1, 1, nil, topic)
	require.NoError(t, err)
	for i := range records {
		admin.Produce(ctx, &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, "%d", i)}, nil)
	}
	require.NoError(t, admin.Flush(ctx))

	// A member that is put out waits once or twice before it joins again, and by default twice as long each time, up to 5 s, for as long
	// as none of its sessions has ended well: by luck 12 rounds took between 3 s and 100 s.
	soon := func(int) time.Duration { return 50 * time.Millisecond }
	member := client(t, b, append(protocol, kgo.RetryBackoffFn(soon), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.HeartbeatInterval(20*time.Millisecond), kgo.FetchMaxWait(20*time.Millisecond))...)
	polled := make(chan int64, 100_000) // first offsets of polls
	var work sync.WaitGroup
	defer work.Wait()
	polling, stop := context.WithCancel(ctx)
	defer stop()
	work.Go(func() {
		for polling.Err() == nil {
			fetches := member.PollRecords(polling, 3)
			if fetches.NumRecords() > 0 {
				polled <- fetches.Records()[0].Offset
			}
		}
	})
	work.Go(func() {
		for polling.Err() == nil {
			if o := member.UncommittedOffsets(); len(o) > 0 {
				member.CommitOffsetsSync(polling, o, nil)
			}
		}
	})
	committed := func() int64 {
		got, err := adm.FetchOffsets(ctx, group)
		require.NoError(t, err)
		if o, ok := got.Lookup(topic, 0); ok && o.Err == nil {
			return o.At
		}
		return -1
	}
	awaitPoll := func(want int64) {
		for {
			select {
			case first := <-polled:
				if first == want {
					return
				}
			case <-ctx.Done():
				t.Fatalf("the group never came to offset %d", want)
			}
		}
	}
	seek := func(to int64) console.GroupSought {
		body, err := json.Marshal(console.GroupSeekOrder{Force: true, Offsets: []console.GroupOffset{{Topic: topic, Offset: &to}}})
		require.NoError(t, err)
		once := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := once.Post("http://"+b.Addrs()["HTTP"].String()+"/v1/groups/"+group+"/offsets", "application/json", bytes.NewReader(body))
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.StatusCode, "%s", text)
		var did console.GroupSought
		require.NoError(t, json.Unmarshal(text, &did))
		require.Len(t, did.Prior, 1)
		return did
	}
	awaitPoll(0)
	for committed() < 0 {
		require.NoError(t, ctx.Err())
	}
	for i := range rounds {
		to := int64(records - 1 - i*7) // never where it would be by itself
		did := seek(to)
		if at := committed(); at != -1 {
			// Only who has begun at the new offset has committed since.
			require.True(t, at == to || at > to && at <= records, "committed %d after a seek to %d", at, to)
		}
		require.NotNil(t, did.Prior[0].Offset)
		awaitPoll(to)
	}
	stop()
	work.Wait()

	// Without members and without force it is the same order; what was before comes back as it was.
	member.Close()
	before := seek(3)
	require.Equal(t, int64(3), committed())
	again := seek(*before.Prior[0].Offset)
	require.Equal(t, int64(3), *again.Prior[0].Offset)
	require.Equal(t, *before.Prior[0].Offset, committed())
}
