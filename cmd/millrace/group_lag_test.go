package main

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
)

// batchHeader is a batch of records from base to last, with the times of its first and last, and n bytes of records.
func batchHeader(base, last, first, newest int64, n int) []byte {
	b := make([]byte, 61+n)
	binary.BigEndian.PutUint64(b, uint64(base))
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	b[16] = 2
	binary.BigEndian.PutUint32(b[23:], uint32(last-base))
	binary.BigEndian.PutUint64(b[27:], uint64(first))
	binary.BigEndian.PutUint64(b[35:], uint64(newest))
	return b
}

// One read answers for all offsets that lie in it: each gets the time of its own batch, the last one's too of which only the header
// was sent; what lies behind is asked for anew.
func TestBatchTime(t *testing.T) {
	b := append(batchHeader(10, 14, 1000, 1400, 30), batchHeader(15, 15, 2000, 2000, 7)...)
	b = append(b, batchHeader(20, 24, 3000, 3400, 100)...)[:len(b)+61+5]
	for offset, want := range map[int64]int64{9: 1000, 10: 1000, 11: 1400, 14: 1400, 15: 2000, 16: 3000, 20: 3000, 24: 3400} {
		got, ok := batchTime(b, offset)
		require.True(t, ok, "offset %d", offset)
		require.Equal(t, want, got.UnixMilli(), "offset %d", offset)
	}
	for _, b := range [][]byte{nil, b[:60], append(b[:0:0], make([]byte, 200)...)} {
		_, ok := batchTime(b, 10)
		require.False(t, ok)
	}
	_, ok := batchTime(b, 25)
	require.False(t, ok)
}

// By size a record is left alone for as long as the log takes to grow by what is missing behind its segment, at the rate of the last
// ten minutes; what is not known is not guessed.
func TestLogSizesLeft(t *testing.T) {
	at := topicPartition{"orders", 0}
	var s logSizes
	s.add("orders", "1000000", "100000")
	s.add("kept", "-1", "100000")
	require.Len(t, s.limits, 1)
	s.bytes = map[topicPartition]int64{at: 500_000} // 5,000 records of 100 bytes
	s.earlier = listed(at, 4000)                    // 1,000 of them in ten minutes: 100,000 bytes
	for offset, minutes := range map[int64]int64{0: 60, 999: 60, 1000: 70, 4999: 100} {
		ms, ok := s.left(at, 0, offset, 5000)
		require.True(t, ok)
		require.Equal(t, time.Duration(minutes)*time.Minute, time.Duration(ms)*time.Millisecond, "offset %d", offset)
	}
	s.bytes[at] = 1_200_000
	ms, ok := s.left(at, 0, 0, 5000)
	require.True(t, ok)
	require.Zero(t, ms)
	s.bytes[at] = 500_000
	s.earlier = listed(at, 5000) // nothing has come
	_, ok = s.left(at, 0, 0, 5000)
	require.False(t, ok)
	_, ok = s.left(topicPartition{"orders", 1}, 0, 0, 5000)
	require.False(t, ok)
	_, ok = s.left(topicPartition{"kept", 0}, 0, 0, 5000)
	require.False(t, ok)
}

func listed(at topicPartition, offset int64) kadm.ListedOffsets {
	return kadm.ListedOffsets{at.topic: {at.partition: {Topic: at.topic, Partition: at.partition, Offset: offset}}}
}
