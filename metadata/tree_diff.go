package metadata

// change is one difference between two versions of a tree: the value before, the value after, and which of them exist.
type change[V any] struct {
	before, after       V
	hadBefore, hasAfter bool
}

// diffTrees yields the differences between two versions of one tree by ascending key. Subtrees that both share are
// skipped without being entered, so the cost is linear in the number of changes (times the depth), whatever the size.
func diffTrees[K any, V comparable](before, after tree[K, V], yield func(K, change[V]) bool) {
	cmp := after.cmp
	if cmp == nil {
		cmp = before.cmp
	}
	a, b := newCursor(before.root), newCursor(after.root)
	for a.valid() && b.valid() {
		if skipShared(&a, &b) {
			continue
		}
		ka, kb := a.key(), b.key()
		switch c := cmp(ka, kb); {
		case c < 0:
			if !yield(ka, change[V]{before: a.val(), hadBefore: true}) {
				return
			}
			a.next()
		case c > 0:
			if !yield(kb, change[V]{after: b.val(), hasAfter: true}) {
				return
			}
			b.next()
		default:
			if va, vb := a.val(), b.val(); va != vb && !yield(kb, change[V]{va, vb, true, true}) {
				return
			}
			a.next()
			b.next()
		}
	}
	for ; a.valid(); a.next() {
		if !yield(a.key(), change[V]{before: a.val(), hadBefore: true}) {
			return
		}
	}
	for ; b.valid(); b.next() {
		if !yield(b.key(), change[V]{after: b.val(), hasAfter: true}) {
			return
		}
	}
}

// skipShared looks for the highest node that both cursors stand at the very beginning of, and moves both past it.
func skipShared[K, V any](a, b *cursor[K, V]) bool {
	bottomA, bottomB := a.beginning(), b.beginning()
	for i := bottomA; i < len(a.path); i++ {
		for j := bottomB; j < len(b.path); j++ {
			if a.path[i].node == b.path[j].node {
				a.leave(i)
				b.leave(j)
				return true
			}
		}
	}
	return false
}

// cursor walks a tree entry by entry. path leads from the root to the present leaf; a finished cursor has none.
type cursor[K, V any] struct {
	path []step[K, V]
}

type step[K, V any] struct {
	node *treeNode[K, V]
	at   int
}

func newCursor[K, V any](root *treeNode[K, V]) cursor[K, V] {
	var c cursor[K, V]
	if root != nil {
		c.path = make([]step[K, V], 0, 8)
		c.descend(root)
	}
	return c
}

func (c *cursor[K, V]) valid() bool { return len(c.path) > 0 }

func (c *cursor[K, V]) key() K { s := c.path[len(c.path)-1]; return s.node.keys[s.at] }

func (c *cursor[K, V]) val() V { s := c.path[len(c.path)-1]; return s.node.vals[s.at] }

// descend pushes n and the way to its first entry.
func (c *cursor[K, V]) descend(n *treeNode[K, V]) {
	for {
		c.path = append(c.path, step[K, V]{node: n})
		if n.kids == nil {
			return
		}
		n = n.kids[0]
	}
}

func (c *cursor[K, V]) next() {
	leaf := &c.path[len(c.path)-1]
	leaf.at++
	if leaf.at == len(leaf.node.keys) {
		c.leave(len(c.path) - 1)
	}
}

// leave pops the path down to, and including, position i and goes on behind that node.
func (c *cursor[K, V]) leave(i int) {
	c.path = c.path[:i]
	for len(c.path) > 0 {
		s := &c.path[len(c.path)-1]
		s.at++
		if s.at < len(s.node.kids) {
			c.descend(s.node.kids[s.at])
			return
		}
		c.path = c.path[:len(c.path)-1]
	}
}

// beginning returns the position of the highest node on the path of which the cursor is at the first entry, or len(path)
// if it is in the middle of a leaf.
func (c *cursor[K, V]) beginning() int {
	i := len(c.path)
	for i > 0 && c.path[i-1].at == 0 {
		i--
	}
	return i
}

// diffTopics yields changed topics as Image.ChangedTopics promises.
func diffTopics(before, after tree[string, *Topic], yield func(old, new *Topic) bool) {
	diffTrees(before, after, func(_ string, c change[*Topic]) bool {
		if c.hadBefore && c.hasAfter && c.before.ID != c.after.ID {
			return yield(c.before, nil) && yield(nil, c.after)
		}
		return yield(c.before, c.after)
	})
}
