package txn

import "github.com/millrace/millrace/metadata"

// follow acts upon the present Image: it takes over and lets go of transactional ids when a broker comes or goes, and else
// looks at those that have changed, whoever changed them.
func (c *Coordinator) follow() {
	im := c.cfg.Store.Image()
	if !c.registered(im) {
		return
	}
	_, epoch := im.Coordinator(metadata.TransactionCoordinator, "")
	if c.seen == nil || epoch != c.followed.Load() {
		c.takeOver(im)
		c.seen = im
		// Only now: an open transaction that is met first before this may be as old as its coordinator was.
		c.followed.Store(epoch)
		return
	}
	for _, t := range im.ChangedTransactions(c.seen) {
		if t == nil {
			continue // forgotten: nobody works on it, or whoever does will find out
		}
		// An open one needs its time measured; of others only those matter that somebody waits for.
		c.look(im, t)
	}
	c.seen = im
}

func (c *Coordinator) look(im *metadata.Image, t *metadata.Transaction) {
	open := t.State == metadata.TransactionOngoing
	if open {
		_, open = c.mine(im, t.ID)
	}
	for e := c.lookup(t.ID, open); e != nil && !c.with(e, nil); e = c.lookup(t.ID, open) {
		continue
	}
}

// takeOver looks at everything that this broker has in hand, and at all that is open.
func (c *Coordinator) takeOver(im *metadata.Image) {
	c.each(func(e *entry) { c.with(e, nil) })
	taken := 0
	for t := range im.ActiveTransactions() {
		if _, mine := c.mine(im, t.ID); !mine || t.State != metadata.TransactionOngoing || c.lookup(t.ID, false) != nil {
			continue
		}
		c.look(im, t)
		taken++
	}
	if taken > 0 {
		_, epoch := im.Coordinator(metadata.TransactionCoordinator, "")
		c.logger.Info("open transactions taken over", "transactions", taken, "coordinatorEpoch", epoch)
	}
}
