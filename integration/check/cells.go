package check

import (
	"maps"
	"slices"
	"strings"
)

// How the value of a cell is known.
const (
	cellAcked uint8 = 1 << iota
	cellPolled
	cellReread
	cellDumped
	cellCommitted // read at the end by a reader of committed records
)

func cellSource(flags uint8) string {
	var out []string
	for i, name := range []string{"acknowledged", "polled", "read at the end", "in a file", "read at the end as committed"} {
		if flags&(1<<i) != 0 {
			out = append(out, name)
		}
	}
	return strings.Join(out, ", ")
}

// cell is one offset of a partition; no flags: nothing is known of it.
type cell struct {
	value int64
	flags uint8
}

// denseCells bounds the slice; a broken broker may answer with any offset.
const denseCells = 1 << 24

// cells holds the offsets of one partition.
type cells struct {
	dense  []cell
	sparse map[int64]*cell
}

// at returns the cell of an offset, valid until the next call; nil for a negative one.
func (c *cells) at(offset int64) *cell {
	switch {
	case offset < 0:
		return nil
	case offset < int64(len(c.dense)):
		return &c.dense[offset]
	case offset < denseCells && offset < 2*int64(len(c.dense))+4096:
		c.dense = slices.Grow(c.dense, int(offset)+1-len(c.dense))[:offset+1]
		c.adopt()
		return &c.dense[offset]
	}
	found := c.sparse[offset]
	if found == nil {
		if c.sparse == nil {
			c.sparse = map[int64]*cell{}
		}
		found = new(cell)
		c.sparse[offset] = found
	}
	return found
}

// adopt moves what the slice now reaches out of the map.
func (c *cells) adopt() {
	for offset, cell := range c.sparse {
		if offset < int64(len(c.dense)) {
			c.dense[offset] = *cell
			delete(c.sparse, offset)
		}
	}
}

// each visits the known cells in the order of their offsets.
func (c *cells) each(visit func(offset int64, cell *cell)) {
	c.between(0, 1<<62, func(offset int64, cell *cell) bool {
		visit(offset, cell)
		return true
	})
}

// between visits the known cells of [from, to) in order, until visit says false.
func (c *cells) between(from, to int64, visit func(offset int64, cell *cell) bool) {
	for i := max(from, 0); i < min(to, int64(len(c.dense))); i++ {
		if c.dense[i].flags != 0 && !visit(i, &c.dense[i]) {
			return
		}
	}
	if len(c.sparse) == 0 {
		return
	}
	for _, offset := range slices.Sorted(maps.Keys(c.sparse)) {
		if offset >= from && offset < to && !visit(offset, c.sparse[offset]) {
			return
		}
	}
}
