package replication

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log/vfs"
)

// Topics come and go while they are produced to, read, waited for and trimmed: no race, no answer missing, nothing left
// over.
func TestChurn(t *testing.T) {
	t.Run("memory", func(t *testing.T) { churn(t, newBroker(t)) })
	t.Run("memory, write-ahead log", func(t *testing.T) { churn(t, newBrokerOn(t, vfs.NewMem(1), "data", true)) })
	t.Run("disk", func(t *testing.T) { churn(t, newBrokerOn(t, vfs.OS(), t.TempDir(), false)) })
	t.Run("disk, write-ahead log", func(t *testing.T) { churn(t, newBrokerOn(t, vfs.OS(), t.TempDir(), true)) })
}

func churn(t *testing.T, b *broker) {
	stop := make(chan struct{})
	var users sync.WaitGroup
	for user := range 4 {
		users.Go(func() {
			for i := user; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				p, err := b.m.Partition(fmt.Sprint("t", i%3), 0)
				if err != nil {
					continue
				}
				r := newResult()
				p.Append(AppendRequest{Records: batch("x"), Acks: int16(i%3) - 1, Timeout: time.Second, CurrentLeaderEpoch: -1, Waiter: r})
				w, woken := waiter(1)
				p.Park(w, NewReadRequest(p.StartOffset(), 1000))
				res := p.Read(NewReadRequest(p.StartOffset(), 1000))
				res.Slice.Release()
				if i%7 == 0 {
					_, err := p.DeleteRecords(b.ctx(), -1, -1)
					if err != nil && !errors.Is(err, ErrNotLeader) && !errors.Is(err, ErrTimeout) && !errors.Is(err, ErrStorage) {
						t.Errorf("delete records: %v", err)
					}
				}
				got := r.wait(t)
				if err := got.Err; err != nil && !errors.Is(err, ErrNotLeader) && !errors.Is(err, ErrTimeout) {
					t.Errorf("append: %v", err)
				}
				if got.Err == nil && i%3 == 0 {
					<-woken // acks=all: so it is readable, or was trimmed, or the partition is gone
				}
				w.Cancel()
			}
		})
	}
	for round := range 3 {
		for i := range 3 {
			b.create(fmt.Sprint("t", i), 1, map[string]string{"millrace.flush.ack": fmt.Sprint(round%2 == 0)})
		}
		p := b.partition("t1", 0)
		eventually(t, "the users have come by", func() bool { return p.HighWatermark() > 10 })
		for i := range 3 {
			b.delete(fmt.Sprint("t", i))
		}
		b.await()
	}
	close(stop)
	users.Wait()
	for range b.m.Partitions() {
		t.Error("a partition is left")
	}
	require.Empty(t, b.failed)
}
