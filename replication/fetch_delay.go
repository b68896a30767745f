package replication

import "slices"

// delayHeap holds the partitions that wait after an error, the earliest first: a binary heap, guarded by the fetcher's
// lock.
type delayHeap struct{ items []delayedFetch }

type delayedFetch struct {
	p  *Partition
	at Instant
}

// next returns when the first is due, Never when none waits.
func (h *delayHeap) next() Instant {
	if len(h.items) == 0 {
		return Never
	}
	return h.items[0].at
}

func (h *delayHeap) push(p *Partition, at Instant) {
	h.items = append(h.items, delayedFetch{p, at})
	h.up(len(h.items) - 1)
}

// popDue takes out one that is due, nil if none is.
func (h *delayHeap) popDue(now Instant) *Partition {
	if h.next() > now {
		return nil
	}
	p := h.items[0].p
	h.removeAt(0)
	return p
}

// remove takes p out wherever it is; rare.
func (h *delayHeap) remove(p *Partition) {
	if i := slices.IndexFunc(h.items, func(d delayedFetch) bool { return d.p == p }); i >= 0 {
		h.removeAt(i)
	}
}

func (h *delayHeap) removeAt(i int) {
	last := len(h.items) - 1
	h.items[i] = h.items[last]
	h.items[last] = delayedFetch{}
	h.items = h.items[:last]
	if i < last {
		h.down(i)
		h.up(i)
	}
}

func (h *delayHeap) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if h.items[parent].at <= h.items[i].at {
			return
		}
		h.items[parent], h.items[i] = h.items[i], h.items[parent]
		i = parent
	}
}

func (h *delayHeap) down(i int) {
	for {
		least := i
		for _, child := range [...]int{2*i + 1, 2*i + 2} {
			if child < len(h.items) && h.items[child].at < h.items[least].at {
				least = child
			}
		}
		if least == i {
			return
		}
		h.items[least], h.items[i] = h.items[i], h.items[least]
		i = least
	}
}
