package replication

import (
	"cmp"
	"slices"

	"github.com/millrace/millrace/metadata"
)

// markerCore is what is left to do about the transactions that are decided: which markers are to be appended here, which are
// on their way into a log, which to be reported. It has no goroutine, clock, lock or I/O; markers.go drives it.
//
// At most one marker of a decision and a partition is on its way into the log, and one that is in the log is not appended
// again, only reported again. What the metadata does not list any more is forgotten.
type markerCore struct {
	decisions []*decision // by number
	// ready are to be appended now, written to be reported now; waiting are those of both kinds that have failed and are
	// tried again at their time.
	ready, written, waiting []*marker
}

// decision is a prepared transaction with markers to be written here.
type decision struct {
	id               string
	number           uint64 // of the transaction
	producerID       int64  // this and what follows is what its markers carry
	epoch            int16
	commit           bool
	coordinatorEpoch int32
	version          int8
	markers          []*marker // by topic id and partition
}

// markerState is where a marker is on its way.
type markerState uint8

const (
	markerDue       markerState = iota + 1 // to be appended
	markerAppending                        // its outcome is awaited
	markerWritten                          // it is committed in the log, to be reported
	markerReporting                        // the answer is awaited
	markerOver                             // reported, or not wanted any more; an answer that is awaited means nothing
)

// marker is one of a decision, in one partition.
type marker struct {
	of          *decision
	topic       metadata.TopicID
	partition   int32
	led         bool  // by this broker; else only an outcome is awaited, or to be reported
	leaderEpoch int32 // in which it does
	state       markerState
	// failures counts attempts since the last that went well; the next is made at retryAt. since is when it was first wanted.
	failures       int
	retryAt, since Instant
}

const (
	markerRetryMin = Instant(2e6)   // 2 ms: the log of a leader that was just elected is about to be ready
	markerRetryMax = Instant(500e6) // 500 ms
)

// ledBy says in which leader epoch this broker leads a partition, if it does.
type ledBy func(metadata.TopicID, int32) (leaderEpoch int32, ok bool)

func (c *markerCore) find(number uint64) (int, bool) {
	return slices.BinarySearchFunc(c.decisions, number, func(d *decision, number uint64) int { return cmp.Compare(d.number, number) })
}

// decided brings what is to be done for a prepared transaction up to date: with its partitions that have no marker yet, and
// with who leads them.
func (c *markerCore) decided(now Instant, t *metadata.Transaction, led ledBy) {
	i, found := c.find(t.Number)
	if !found {
		c.decisions = slices.Insert(c.decisions, i, &decision{
			id: t.ID, number: t.Number, producerID: t.MarkerProducerID, epoch: t.MarkerEpoch,
			commit: t.State == metadata.TransactionPrepareCommit, coordinatorEpoch: t.CoordinatorEpoch, version: t.Version,
		})
	}
	d := c.decisions[i]
	old := d.markers // in the order of the partitions, as t has them
	d.markers = nil
	for _, topic := range t.Partitions {
		for _, p := range topic.Partitions {
			for len(old) > 0 && old[0].before(topic.TopicID, p) {
				old[0].state = markerOver
				old = old[1:]
			}
			var m *marker
			if len(old) > 0 && old[0].topic == topic.TopicID && old[0].partition == p {
				m, old = old[0], old[1:]
			}
			epoch, ok := led(topic.TopicID, p)
			switch {
			case m == nil && !ok:
				continue
			case m == nil:
				m = &marker{of: d, topic: topic.TopicID, partition: p, state: markerDue, since: now}
				c.ready = append(c.ready, m)
			case m.state == markerDue && !ok:
				m.state = markerOver
				continue
			case m.state == markerDue && m.leaderEpoch != epoch:
				m.retryAt = now // what has failed, failed in another epoch
			}
			m.led, m.leaderEpoch = ok, epoch
			d.markers = append(d.markers, m)
		}
	}
	for _, m := range old {
		m.state = markerOver
	}
	c.drop(d)
}

// before reports whether a marker comes before that of a partition.
func (m *marker) before(topic metadata.TopicID, partition int32) bool {
	return cmp.Or(slices.Compare(m.topic[:], topic[:]), cmp.Compare(m.partition, partition)) < 0
}

// over forgets a transaction that is not prepared any more.
func (c *markerCore) over(number uint64) {
	i, found := c.find(number)
	if !found {
		return
	}
	for _, m := range c.decisions[i].markers {
		m.state = markerOver
	}
	c.decisions = slices.Delete(c.decisions, i, i+1)
}

// drop forgets a decision of which nothing is to be done here.
func (c *markerCore) drop(d *decision) {
	if len(d.markers) > 0 {
		return
	}
	if i, found := c.find(d.number); found {
		c.decisions = slices.Delete(c.decisions, i, i+1)
	}
}

// due returns the markers to append and those to report, which are on their way then.
func (c *markerCore) due(now Instant) (toAppend, toReport []*marker) {
	kept := c.waiting[:0]
	for _, m := range c.waiting {
		switch {
		case m.state == markerOver:
		case m.retryAt > now:
			kept = append(kept, m)
		case m.state == markerDue:
			c.ready = append(c.ready, m)
		default:
			c.written = append(c.written, m)
		}
	}
	clear(c.waiting[len(kept):])
	c.waiting = kept
	for _, m := range c.ready {
		if m.state == markerDue {
			m.state = markerAppending
			toAppend = append(toAppend, m)
		}
	}
	for _, m := range c.written {
		if m.state == markerWritten {
			m.state = markerReporting
			toReport = append(toReport, m)
		}
	}
	clear(c.ready)
	clear(c.written)
	c.ready, c.written = c.ready[:0], c.written[:0]
	return toAppend, toReport
}

// appended takes the outcome of an append: whether the marker is committed in the log, or certainly nothing was appended that
// could still be committed, but by this leader in this epoch.
func (c *markerCore) appended(now Instant, m *marker, ok bool) {
	switch {
	case m.state != markerAppending:
	case ok:
		m.state, m.failures = markerWritten, 0
		c.written = append(c.written, m)
	case !m.led:
		c.remove(m)
	default:
		m.state = markerDue
		c.later(now, m)
	}
}

// remove forgets one marker.
func (c *markerCore) remove(m *marker) {
	m.state = markerOver
	d := m.of
	d.markers = slices.DeleteFunc(d.markers, func(o *marker) bool { return o == m })
	c.drop(d)
}

// reported takes the answer to a report.
func (c *markerCore) reported(now Instant, ms []*marker, ok bool) {
	for _, m := range ms {
		switch {
		case m.state != markerReporting:
		case !ok:
			m.state = markerWritten
			c.later(now, m)
		default:
			c.remove(m)
		}
	}
}

func (c *markerCore) later(now Instant, m *marker) {
	m.retryAt = now + min(markerRetryMax, markerRetryMin<<min(m.failures, 10))
	m.failures++
	c.waiting = append(c.waiting, m)
}

// deadline is when due has something new to say by itself, Never if not.
func (c *markerCore) deadline() Instant {
	at := Never
	for _, m := range c.waiting {
		at = min(at, m.retryAt)
	}
	return at
}

// idle reports that there is nothing to do or to wait for.
func (c *markerCore) idle() bool { return len(c.decisions) == 0 }
