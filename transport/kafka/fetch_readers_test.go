package kafka

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/replication"
)

func partZero(id byte) replication.TopicIDPartition {
	return replication.TopicIDPartition{TopicID: [16]byte{id}}
}

// A client that asks for the same offset again is told from one that goes on, over connections too, and from another program of
// the same id and host that reads elsewhere.
func TestReadersTellStandingFromMoving(t *testing.T) {
	h := &Handlers{}
	now := time.Now().Add(-3 * time.Minute)
	key := readerKey{partZero(1), "c", "/10.0.0.7"}
	note := func(conn uint64, offset int64, served int) {
		h.readers.noteLocked(key, readerPlace{conn: conn, offset: offset, since: now, seen: now, asked: 1, served: served, maxBytes: 100})
	}
	note(1, 5, 1)
	for i := range 10 { // restarted each time
		now = now.Add(10 * time.Second)
		note(uint64(10+i), 7, 1)
		note(2, int64(100+i), 1) // another group's
	}
	got := h.Readers(partZero(1), "c", "/10.0.0.7")
	at := map[int64]FetchReader{}
	for _, r := range got {
		at[r.Offset] = r
	}
	require.Equal(t, [2]int{10, 10}, [2]int{at[7].Asked, at[7].Served})
	require.InDelta(t, 170, at[7].Since.Seconds(), 5)
	require.InDelta(t, 80, at[7].Seen.Seconds(), 5)
	require.Equal(t, 1, at[109].Asked)
	require.Less(t, len(got), readerConns+1)
	require.Empty(t, h.Readers(partZero(1), "other", "/10.0.0.7"))
	require.Empty(t, h.Readers(partZero(2), "c", "/10.0.0.7"))
}

// What clients can have a broker remember is bounded, and the latest is what is remembered.
func TestReadersAreBounded(t *testing.T) {
	h := &Handlers{}
	now := time.Now()
	for i := range 5 * readersKept {
		now = now.Add(time.Millisecond)
		h.readers.noteLocked(readerKey{partZero(1), fmt.Sprint(i), ""}, readerPlace{conn: uint64(i), seen: now})
		h.readers.noteLocked(readerKey{partZero(1), "0", ""}, readerPlace{conn: uint64(i), offset: int64(i), seen: now})
		require.LessOrEqual(t, len(h.readers.young), readersKept)
		require.LessOrEqual(t, len(h.readers.old), readersKept)
	}
	require.Len(t, h.Readers(partZero(1), "0", ""), readerConns)
	require.NotEmpty(t, h.Readers(partZero(1), fmt.Sprint(5*readersKept-1), ""))
	require.Empty(t, h.Readers(partZero(1), "1", ""))
	require.Len(t, readerClient(strings.Repeat("é", 10_000)), readerName)

	// Nor does what is kept of a long id keep all of it, when it is noted again either: a map takes over the new key.
	long := strings.Repeat("c", 10_000)
	for range 2 {
		h.readers.noteLocked(readerKey{partZero(2), readerClient(long), ""}, readerPlace{conn: 1, seen: now})
	}
	for key := range h.readers.young {
		if key.part == partZero(2) {
			require.NotSame(t, unsafe.StringData(long), unsafe.StringData(key.client))
		}
	}
}

// A client of very many partitions is looked at in parts, and each partition has its turn.
func TestReadersWindow(t *testing.T) {
	for _, n := range []int{0, 1, readersLooked, readersLooked + 1, 3*readersLooked + 7} {
		seen := map[int]int{}
		looks := max(1, (n+readersLooked-1)/readersLooked)
		for look := range looks {
			was := len(seen)
			for i := range window(n, look) {
				seen[i]++
			}
			require.LessOrEqual(t, len(seen)-was, readersLooked)
		}
		require.Len(t, seen, n)
		for i, times := range seen {
			require.Equal(t, 1, times, "%d of %d", i, n)
		}
	}
}

// The fetches of a real connection are looked at: in a session or not, served, waiting at the end, and refused; and no more often
// than every two seconds.
func TestReadersOfFetches(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	topic := b.topic(t, 1)
	b.dial(t).produce(topic, 0, batch(3))
	part := replication.TopicIDPartition{TopicID: topic.ID}
	for name, c := range map[string]struct {
		version, offset int64
		epoch           int32
		want            FetchReader
	}{
		"by name":    {11, 1, -1, FetchReader{Offset: 1, Asked: 1, Served: 1}},
		"in session": {17, 0, 0, FetchReader{Offset: 0, Asked: 1, Served: 1}},
		"at the end": {17, 3, -1, FetchReader{Offset: 3, Asked: 1}},
		"refused":    {17, 99, -1, FetchReader{Offset: 99, Asked: 1, Error: "OFFSET_OUT_OF_RANGE"}},
	} {
		t.Run(name, func(t *testing.T) {
			b.handlers.readers.mu.Lock()
			b.handlers.readers.young, b.handlers.readers.old = nil, nil
			b.handlers.readers.mu.Unlock()
			reader := b.dial(t)
			req := fetchRequest(int16(c.version), fetched{topic, 0, c.offset})
			req.SessionEpoch, req.MaxWaitMillis = c.epoch, 10
			for range 5 {
				ask[*kmsg.FetchResponse](reader, req)
			}
			got := b.handlers.Readers(part, "tester", "/127.0.0.1")
			require.Len(t, got, 1)
			r := got[0]
			require.Positive(t, r.MaxBytes)
			r.MaxBytes, r.Since, r.Seen = 0, 0, 0
			require.Equal(t, c.want, r)
		})
	}
}
