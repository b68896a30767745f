package txn

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/millrace/millrace/metadata"
)

// timers orders the deadlines of all transactional ids.
type timers struct {
	mu   sync.Mutex
	heap entryHeap
	wake chan struct{} // holds a signal when the first deadline has come nearer
}

type entryHeap []*entry

func (h entryHeap) Len() int           { return len(h) }
func (h entryHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h entryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *entryHeap) Push(x any) {
	e := x.(*entry)
	e.index = len(*h)
	*h = append(*h, e)
}
func (h *entryHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.index = -1
	return e
}

func (t *timers) set(e *entry, at Instant) {
	t.mu.Lock()
	e.at = at
	if e.index >= 0 {
		heap.Fix(&t.heap, e.index)
	} else {
		heap.Push(&t.heap, e)
	}
	first := e.index == 0
	t.mu.Unlock()
	if first {
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
}

func (t *timers) remove(e *entry) {
	t.mu.Lock()
	if e.index >= 0 {
		heap.Remove(&t.heap, e.index)
	}
	t.mu.Unlock()
}

// pop returns an entry whose deadline has come, or nil and when the next comes.
func (t *timers) pop(now Instant) (*entry, Instant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case len(t.heap) == 0:
		return nil, Never
	case t.heap[0].at > now:
		return nil, t.heap[0].at
	}
	return heap.Pop(&t.heap).(*entry), 0
}

// beatInterval is how often the time keeper looks at the clock, whatever the deadlines are.
const beatInterval = Instant(time.Second)

// keepTime ends transactions and waits when their deadlines come, and looks for ids that nobody uses.
func (c *Coordinator) keepTime(ctx context.Context) {
	timer := time.NewTimer(time.Duration(beatInterval))
	defer timer.Stop()
	expired := c.now()
	for {
		now := c.now()
		c.fire(now)
		if interval := Instant(c.cfg.Settings().ExpirationInterval); interval > 0 && now-expired >= interval {
			expired = now
			c.expire()
		}
		_, next := c.timers.pop(-1)
		timer.Reset(time.Duration(max(0, min(next-c.now(), beatInterval))))
		select {
		case <-timer.C:
		case <-c.timers.wake:
		case <-c.stop:
			return
		case <-ctx.Done():
			return
		}
	}
}

// fire lets the time pass for the ids whose deadlines have come.
func (c *Coordinator) fire(now Instant) {
	for {
		e, _ := c.timers.pop(now)
		if e == nil {
			return
		}
		e.mu.Lock()
		e.mu.due = Never
		e.mu.Unlock()
		c.with(e, &Tick{RetryMax: Instant(c.cfg.Settings().AbortInterval)})
	}
}

// expireMax bounds how many ids are forgotten at once; the rest has to wait for the next time.
const expireMax = 10_000

// expire forgets ids that nothing has happened to for a long time (P10). The revision says that nothing does meanwhile.
func (c *Coordinator) expire() {
	im, now, after := c.cfg.Store.Image(), c.cfg.Wall().UnixMilli(), c.cfg.Settings().IDExpiration.Milliseconds()
	if !c.registered(im) || after <= 0 {
		return
	}
	n := 0
	for t := range im.Transactions() {
		if n >= expireMax {
			break
		}
		if t.State.Active() || now-t.UpdatedAt < after {
			continue
		}
		if _, mine := c.mine(im, t.ID); !mine {
			continue
		}
		n++
		c.cfg.Store.ChangeTransaction(forget(t, now), func(_ uint64, err error) {
			if err == nil {
				c.logger.Info("transactional id forgotten", "transactionalId", t.ID, "producerId", t.ProducerID, "idle", millis(now-t.UpdatedAt))
			}
		})
	}
}

// forget is the change that takes an id out.
func forget(t *metadata.Transaction, now int64) metadata.TransactionChange {
	return metadata.TransactionChange{
		ID: t.ID, Revision: t.Revision, State: t.State, ProducerID: t.ProducerID, ProducerEpoch: t.ProducerEpoch,
		LastProducerID: t.LastProducerID, LastProducerEpoch: t.LastProducerEpoch, MarkerProducerID: -1, MarkerEpoch: -1,
		Timeout: t.Timeout, Version: t.Version, UpdatedAt: now, Delete: true,
	}
}
