package drive

import (
	"hash/maphash"
	"sync"
)

// tableShards is how many locks the names are spread over.
const tableShards = 64

// Table has the entries at work by name. E is a pointer. Its methods may be called from any goroutine.
type Table[E comparable] struct {
	create func(name string) E
	seed   maphash.Seed
	shards [tableShards]tableShard[E]
}

type tableShard[E comparable] struct {
	mu sync.Mutex
	of map[string]E
}

// NewTable returns an empty table. create makes the entry of a name; it is called with a lock of the table held, and must not
// return nil.
func NewTable[E comparable](create func(name string) E) *Table[E] {
	t := &Table[E]{create: create, seed: maphash.MakeSeed()}
	for i := range t.shards {
		t.shards[i].of = map[string]E{}
	}
	return t
}

func (t *Table[E]) shard(name string) *tableShard[E] {
	return &t.shards[maphash.String(t.seed, name)%tableShards]
}

// Get returns the entry of a name, nil if there is none.
func (t *Table[E]) Get(name string) E {
	s := t.shard(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[name]
}

// GetOrCreate returns the entry of a name, a new one if there is none.
func (t *Table[E]) GetOrCreate(name string) E {
	s := t.shard(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.of[name]
	if !ok {
		e = t.create(name)
		s.of[name] = e
	}
	return e
}

// Delete takes an entry out. One that stands there under the same name meanwhile stays.
func (t *Table[E]) Delete(name string, e E) {
	s := t.shard(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[name] == e {
		delete(s.of, name)
	}
}

// Each calls fn with every entry, with no lock held; entries that come meanwhile may be left out, and some may be out of the
// table when it is their turn.
func (t *Table[E]) Each(fn func(E)) {
	var all []E
	for i := range t.shards {
		s := &t.shards[i]
		all = all[:0]
		s.mu.Lock()
		for _, e := range s.of {
			all = append(all, e)
		}
		s.mu.Unlock()
		for _, e := range all {
			fn(e)
		}
	}
}
