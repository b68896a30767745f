package check

import (
	"maps"
	"slices"
)

// replica is one copy of a partition, as its files have it.
type replica struct {
	node    int
	batches []Batch
}

// dump takes in a part of a replica's files. Records above what clients were shown may differ between replicas.
func (c *checker) dump(o *Op) {
	p := c.partition(o.Key)
	r := p.copies[o.Node]
	if r == nil {
		r = &replica{node: o.Node}
		p.copies[o.Node] = r
	}
	r.batches = append(r.batches, o.Batches...)
	o.records(func(offset, value int64) {
		if offset < p.committed {
			c.place(p, offset, value, cellDumped)
		}
	})
}

// replicas compares the copies of a partition below its committed end (I5, R21): each has every batch, with the same
// bounds, epoch and bytes, but those below its own start.
func (c *checker) replicas(p *partition) {
	nodes := slices.Sorted(maps.Keys(p.copies))
	var model *replica // the one that begins first
	for _, n := range nodes {
		r := p.copies[n]
		for i := 1; i < len(r.batches); i++ {
			if r.batches[i].Base <= r.batches[i-1].Last {
				c.report.add(ReplicaDiff, p.key, "node %d: a batch from %d on behind one up to %d", n, r.batches[i].Base, r.batches[i-1].Last)
			}
		}
		if len(r.batches) > 0 && (model == nil || r.batches[0].Base < model.batches[0].Base) {
			model = r
		}
	}
	for _, n := range nodes {
		r := p.copies[n]
		end := int64(0)
		if len(r.batches) > 0 {
			end = r.batches[len(r.batches)-1].Last + 1
		}
		if end < p.committed {
			c.report.add(ReplicaDiff, p.key, "node %d ends at %d, below the committed end %d", n, end, p.committed)
		}
		if r == model || len(r.batches) == 0 {
			continue
		}
		c.compare(p, model, r)
	}
}

func (c *checker) compare(p *partition, a, b *replica) {
	i, _ := slices.BinarySearchFunc(a.batches, b.batches[0].Base, func(x Batch, base int64) int { return int(x.Base - base) })
	j := 0
	for ; i < len(a.batches) && j < len(b.batches); i, j = i+1, j+1 {
		x, y := a.batches[i], b.batches[j]
		if min(x.Base, y.Base) >= p.committed {
			return
		}
		if x != y {
			c.report.add(ReplicaDiff, p.key, "node %d has the batch %d–%d of epoch %d (crc %08x), node %d the batch %d–%d of epoch %d (crc %08x), committed up to %d",
				a.node, x.Base, x.Last, x.Epoch, x.CRC, b.node, y.Base, y.Last, y.Epoch, y.CRC, p.committed)
			return
		}
	}
}
