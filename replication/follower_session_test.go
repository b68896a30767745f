package replication

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// I20: the leader's answer for a new replica may come before the manager's table has it. It counts: the leader waits for
// the next position, and nothing would ever be fetched again.
func TestAnswerBeforeTheTable(t *testing.T) {
	b := newBench(t, withReplicas(0, 1))
	f := &fetcher{m: b.m, broker: 1, kick: make(chan struct{}, 1)}
	f.mu.parts = map[TopicIDPartition]*Partition{}
	b.m.table.Store(newTable())
	at := fetchPoint{leaderEpoch: 5, lastEpoch: -1}
	f.want(b.p, 3, at)
	b.p.fetch.pending, b.p.fetch.sent, b.p.fetch.told, b.p.fetch.sentSeq = false, true, at, 3
	answer := &FetchedPartition{TopicID: b.p.topic.id, Records: batch("a"), HighWatermark: 1, LogEndOffset: 1, DivergingEpoch: -1}
	p, ev := f.match(answer)
	require.Same(t, b.p, p)
	require.EqualValues(t, 3, ev.Seq)

	f.want(b.p, 4, at)
	f.forget(b.p)
	p, _ = f.match(answer)
	require.Nil(t, p, "it no longer follows")
}

// I20: what comes while an answer is made, after the partition was looked at, is news for the next one.
func TestNewsWhileAnswering(t *testing.T) {
	for name, happens := range map[string]func(b *bench, sp *sessionPartition){
		"records":     func(b *bench, _ *sessionPartition) { b.append(1, "b") },
		"role":        func(b *bench, sp *sessionPartition) { sp.changed() },
		"mark":        func(b *bench, sp *sessionPartition) { sp.toldHW-- },
		"nothing new": nil,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, withReplicas(0, 1))
			b.append(1, "a").wait(t)
			s := b.m.OpenFollowerSession(1)
			defer s.Close()
			collect := func() (news []FollowerNews) {
				s.Collect(1<<20, func(n FollowerNews) {
					n.Slice.Release()
					news = append(news, n)
				})
				return news
			}
			end := b.p.log.EndOffset()
			s.Update(&FollowerFetch{BrokerEpoch: 101, Changed: []FetchPosition{{TopicID: b.p.topic.id, LeaderEpoch: 5, Offset: end, LastEpoch: 5, MaxBytes: 1 << 20}}})
			b.p.tell()
			collect()
			require.False(t, s.Ready(1), "it has been told everything")

			sp := s.mu.parts[TopicIDPartition{b.p.topic.id, 0}]
			s.mu.Lock()
			s.enqueueLocked(sp, 0, true)
			s.mu.Unlock()
			var seen FollowerNews
			b.p.bounds(&seen) // as Collect does before it is interrupted
			s.mu.Lock()
			s.mu.ready = nil
			s.mu.Unlock()
			if happens != nil {
				happens(b, sp)
			}
			sp.rest(b.p, end, &seen, false)
			require.Equal(t, happens != nil, s.Ready(1))
			news := collect()
			if name == "records" {
				require.Len(t, news, 1)
				require.Equal(t, end+1, news[0].LogEndOffset)
			}
			require.False(t, s.Ready(1))
		})
	}
}
