package txn

import (
	"context"
	"time"

	"github.com/millrace/millrace/metadata"
)

// beatInterval is how often the time keeper looks at the clock, whatever the deadlines are.
const beatInterval = Instant(time.Second)

// keepTime ends transactions and waits when their deadlines come, and looks for ids that nobody uses.
func (c *Coordinator) keepTime(ctx context.Context) {
	timer := time.NewTimer(time.Duration(beatInterval))
	defer timer.Stop()
	expired := c.now()
	clock := metadata.NewExpiryClock(c.cfg.Wall(), time.Duration(expired))
	for {
		now := c.now()
		c.fire(now)
		trusted := clock.Trusted(c.cfg.Wall(), time.Duration(now))
		if interval := Instant(c.cfg.Settings().ExpirationInterval); interval > 0 && now-expired >= interval {
			expired = now
			if trusted {
				c.expire()
			} else {
				c.logger.Warn("wall clock jumped; no transactional ids are forgotten for a while", "now", c.cfg.Wall().UTC())
			}
		}
		timer.Reset(time.Duration(max(0, min(c.timers.Next()-c.now(), beatInterval))))
		select {
		case <-timer.C:
		case <-c.timers.Nearer():
		case <-c.life.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// fire lets the time pass for the ids whose deadlines have come.
func (c *Coordinator) fire(now Instant) {
	for {
		e := c.timers.Pop(now)
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
