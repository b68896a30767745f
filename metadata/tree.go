package metadata

import "iter"

// tree is a persistent ordered map: a B+tree whose nodes are shared between versions. Changing one key copies the nodes
// on the way down to it and nothing else, so a published version stays as it is while the next one is made, and two
// versions can be compared by skipping the nodes they share (diff).
//
// The zero value is an empty map that can be read; newTree gives one that can be changed. A tree is a small value:
// methods that change it return the new version.
type tree[K, V any] struct {
	cmp  func(a, b K) int
	root *treeNode[K, V]
	n    int
}

const (
	// treeWidth bounds the entries of a node. 32 keeps a copied path near 1.5 KiB for pointer values and 100 000 keys
	// four levels deep.
	treeWidth = 32
	// treeSlack is the size under which a node is joined or evened out with a neighbour.
	treeSlack = treeWidth / 4
)

// edit marks the nodes made since the last publication: a node whose owner is the present edit is still private and may
// be written to, any other is copied first. One edit spans one batch of Raft entries, so that a batch which touches a
// node many times copies it once.
type edit struct{ _ byte }

// treeNode is a leaf (kids == nil, vals parallel to keys) or an inner node (kids parallel to keys). In an inner node
// keys[i] ≤ every key below kids[i] < keys[i+1]; keys[0] is not consulted.
type treeNode[K, V any] struct {
	owner *edit
	keys  []K
	vals  []V
	kids  []*treeNode[K, V]
}

func newTree[K, V any](cmp func(a, b K) int) tree[K, V] { return tree[K, V]{cmp: cmp} }

func (t tree[K, V]) len() int { return t.n }

// get returns the value of k.
func (t tree[K, V]) get(k K) (v V, ok bool) {
	n := t.root
	if n == nil {
		return v, false
	}
	for n.kids != nil {
		n = n.kids[n.child(t.cmp, k)]
	}
	if i, found := n.search(t.cmp, k); found {
		return n.vals[i], true
	}
	return v, false
}

// child returns which kid of an inner node k belongs to.
func (n *treeNode[K, V]) child(cmp func(a, b K) int, k K) int {
	lo, hi := 1, len(n.keys) // first index in [1, len] whose key is > k
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if cmp(n.keys[mid], k) <= 0 {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo - 1
}

// search returns where k is in a leaf, or where it belongs.
func (n *treeNode[K, V]) search(cmp func(a, b K) int, k K) (int, bool) {
	lo, hi := 0, len(n.keys)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		switch c := cmp(n.keys[mid], k); {
		case c == 0:
			return mid, true
		case c < 0:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return lo, false
}

// private returns n if e owns it, else a copy that e owns, with room for one more entry.
func (n *treeNode[K, V]) private(e *edit) *treeNode[K, V] {
	if n.owner == e {
		return n
	}
	m := &treeNode[K, V]{owner: e, keys: append(make([]K, 0, len(n.keys)+1), n.keys...)}
	if n.kids != nil {
		m.kids = append(make([]*treeNode[K, V], 0, len(n.kids)+1), n.kids...)
	} else {
		m.vals = append(make([]V, 0, len(n.vals)+1), n.vals...)
	}
	return m
}

// set returns the map with k = v.
func (t tree[K, V]) set(e *edit, k K, v V) tree[K, V] {
	t, at, _ := t.slot(e, k)
	*at = v
	return t
}

// slot returns the map with k in it, and where its value is: the zero value if k is new. What is there may be written to until
// the map is changed again, or published.
func (t tree[K, V]) slot(e *edit, k K) (next tree[K, V], at *V, added bool) {
	if t.root == nil {
		t.root = &treeNode[K, V]{owner: e, keys: []K{k}, vals: make([]V, 1)}
		t.n = 1
		return t, &t.root.vals[0], true
	}
	root, right, at, added := t.insert(e, t.root, k)
	if right != nil {
		root = &treeNode[K, V]{
			owner: e,
			keys:  []K{root.keys[0], right.keys[0]},
			kids:  []*treeNode[K, V]{root, right},
		}
	}
	t.root = root
	if added {
		t.n++
	}
	return t, at, added
}

// insert puts k into the subtree n, if it is not there, and returns its new root, the right half if it had to be split, where
// the value of k is, and whether k is new.
func (t tree[K, V]) insert(e *edit, n *treeNode[K, V], k K) (node, right *treeNode[K, V], value *V, added bool) {
	n = n.private(e)
	at := 0 // where the new entry is, if there is one
	if n.kids == nil {
		i, found := n.search(t.cmp, k)
		if found {
			return n, nil, &n.vals[i], false
		}
		var none V
		n.keys = insertAt(n.keys, i, k)
		n.vals = insertAt(n.vals, i, none)
		at, added = i, true
	} else {
		i := n.child(t.cmp, k)
		var split *treeNode[K, V]
		n.kids[i], split, value, added = t.insert(e, n.kids[i], k)
		if split != nil {
			n.keys = insertAt(n.keys, i+1, split.keys[0])
			n.kids = insertAt(n.kids, i+1, split)
			at = i + 1
		}
	}
	if len(n.keys) > treeWidth {
		middle := len(n.keys) / 2
		if at == len(n.keys)-1 {
			// Keys come in ascending order, as from a snapshot: the left half will get no more, so it is left nearly full, and a
			// leaf quite full.
			middle = len(n.keys) - treeSlack
			if n.kids == nil {
				middle = len(n.keys) - 1
			}
		}
		right = n.splitAt(e, middle)
	}
	if n.kids == nil {
		leaf := n
		if at >= len(n.keys) {
			leaf, at = right, at-len(n.keys)
		}
		value = &leaf.vals[at]
	}
	return n, right, value, added
}

// splitAt cuts the entries from i on into a new node. n must be private.
func (n *treeNode[K, V]) splitAt(e *edit, i int) *treeNode[K, V] {
	right := &treeNode[K, V]{owner: e, keys: append([]K(nil), n.keys[i:]...)}
	if n.kids != nil {
		right.kids = append([]*treeNode[K, V](nil), n.kids[i:]...)
		clear(n.kids[i:])
		n.kids = n.kids[:i]
	} else {
		right.vals = append([]V(nil), n.vals[i:]...)
		clear(n.vals[i:])
		n.vals = n.vals[:i]
	}
	clear(n.keys[i:])
	n.keys = n.keys[:i]
	return right
}

// delete returns the map without k.
func (t tree[K, V]) delete(e *edit, k K) tree[K, V] {
	if _, ok := t.get(k); !ok {
		return t // nothing is copied for a key that is not there
	}
	root := t.remove(e, t.root, k)
	for len(root.kids) == 1 {
		root = root.kids[0]
	}
	if len(root.keys) == 0 {
		root = nil
	}
	t.root = root
	t.n--
	return t
}

// remove takes k, which is there, out of the subtree n. The node it returns may be smaller than treeSlack or even empty;
// the caller evens it out.
func (t tree[K, V]) remove(e *edit, n *treeNode[K, V], k K) *treeNode[K, V] {
	n = n.private(e)
	if n.kids == nil {
		i, _ := n.search(t.cmp, k)
		n.keys = deleteAt(n.keys, i)
		n.vals = deleteAt(n.vals, i)
		return n
	}
	i := n.child(t.cmp, k)
	n.kids[i] = t.remove(e, n.kids[i], k)
	if len(n.kids[i].keys) >= treeSlack || len(n.kids) == 1 {
		return n
	}
	if i == len(n.kids)-1 {
		i--
	}
	left, right := n.kids[i].private(e), n.kids[i+1]
	if left.kids != nil {
		right = right.private(e)
		// keys[0] of an inner node is not kept exact; the separator above it is the bound that holds.
		right.keys[0] = n.keys[i+1]
	}
	left.keys = append(left.keys, right.keys...)
	left.vals = append(left.vals, right.vals...)
	left.kids = append(left.kids, right.kids...)
	n.kids[i] = left
	if len(left.keys) > treeWidth {
		right = left.splitAt(e, len(left.keys)/2)
		n.kids[i+1] = right
		n.keys[i+1] = right.keys[0]
		return n
	}
	n.keys = deleteAt(n.keys, i+1)
	n.kids = deleteAt(n.kids, i+1)
	return n
}

// all yields the entries by ascending key.
func (t tree[K, V]) all() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		if t.root != nil {
			t.root.each(yield)
		}
	}
}

func (n *treeNode[K, V]) each(yield func(K, V) bool) bool {
	for _, kid := range n.kids {
		if !kid.each(yield) {
			return false
		}
	}
	for i := range n.vals {
		if !yield(n.keys[i], n.vals[i]) {
			return false
		}
	}
	return true
}

// insertAt grows s no further than to what a node holds before it is split: most of what is in memory are leaves.
func insertAt[T any](s []T, i int, v T) []T {
	if n := len(s); n == cap(s) {
		s = append(make([]T, 0, max(min(2*n, treeWidth+1), n+1)), s...)
	}
	s = append(s, v)
	copy(s[i+1:], s[i:])
	s[i] = v
	return s
}

func deleteAt[T any](s []T, i int) []T {
	var zero T
	copy(s[i:], s[i+1:])
	s[len(s)-1] = zero
	return s[:len(s)-1]
}
