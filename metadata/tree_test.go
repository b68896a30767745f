package metadata

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// checkTree makes sure that every node of the tree is as treeNode promises.
func checkTree[K, V any](t require.TestingT, tr tree[K, V]) {
	if tr.root == nil {
		require.Zero(t, tr.n)
		return
	}
	n := 0
	depth := -1
	var walk func(node *treeNode[K, V], lo, hi *K, at int)
	walk = func(node *treeNode[K, V], lo, hi *K, at int) {
		require.NotEmpty(t, node.keys)
		require.LessOrEqual(t, len(node.keys), treeWidth)
		first := 1
		if node.kids != nil {
			first = 2 // keys[0] of an inner node is not consulted, and not kept exact
		}
		for i := first; i < len(node.keys); i++ {
			require.Negative(t, tr.cmp(node.keys[i-1], node.keys[i]), "keys ascend")
		}
		if node.kids == nil {
			require.Len(t, node.vals, len(node.keys))
			for _, k := range node.keys {
				require.True(t, lo == nil || tr.cmp(*lo, k) <= 0, "key below its separator")
				require.True(t, hi == nil || tr.cmp(k, *hi) < 0, "key above its separator")
			}
			n += len(node.keys)
			if depth == -1 {
				depth = at
			}
			require.Equal(t, depth, at, "all leaves are equally deep")
			return
		}
		require.Len(t, node.kids, len(node.keys))
		for i, kid := range node.kids {
			low, high := lo, hi
			if i > 0 {
				low = &node.keys[i]
			}
			if i+1 < len(node.keys) {
				high = &node.keys[i+1]
			}
			walk(kid, low, high, at+1)
		}
	}
	walk(tr.root, nil, nil, 0)
	require.Equal(t, tr.n, n)
}

// A tree holds what a map holds, every older version stays what it was, and the difference of any two versions is exact.
func TestTreeModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type version struct {
			tree  tree[int, int]
			model map[int]int
		}
		present := version{newTree[int, int](cmp.Compare[int]), map[int]int{}}
		versions := []version{present}
		space := rapid.IntRange(1, 3000).Draw(t, "key space")
		e := new(edit)
		for range rapid.IntRange(1, 40).Draw(t, "rounds") {
			ops := rapid.IntRange(1, 200).Draw(t, "ops")
			seed := rapid.IntRange(0, 1<<30).Draw(t, "seed")
			deletes := rapid.IntRange(0, 10).Draw(t, "deletes of 10")
			model := maps.Clone(present.model)
			for i := range ops {
				x := (seed + i*7919) * 2654435761
				k := (x >> 8) % space
				if k < 0 {
					k = -k
				}
				if i%10 < deletes {
					present.tree = present.tree.delete(e, k)
					delete(model, k)
				} else {
					present.tree = present.tree.set(e, k, x)
					model[k] = x
				}
			}
			present.model = model
			if rapid.Bool().Draw(t, "publish") {
				versions = append(versions, present)
				e = new(edit)
			}
		}
		versions = append(versions, present)
		for _, v := range versions {
			checkTree(t, v.tree)
			require.Equal(t, len(v.model), v.tree.len())
			keys := slices.Sorted(maps.Keys(v.model))
			i := 0
			for k, val := range v.tree.all() {
				require.Equal(t, keys[i], k)
				require.Equal(t, v.model[k], val)
				i++
			}
			for k, want := range v.model {
				got, ok := v.tree.get(k)
				require.True(t, ok)
				require.Equal(t, want, got)
			}
			_, ok := v.tree.get(-1)
			require.False(t, ok)
		}
		for range 4 {
			a := versions[rapid.IntRange(0, len(versions)-1).Draw(t, "a")]
			b := versions[rapid.IntRange(0, len(versions)-1).Draw(t, "b")]
			last := -1
			got := map[int]change[int]{}
			diffTrees(a.tree, b.tree, func(k int, c change[int]) bool {
				require.Greater(t, k, last, "by ascending key")
				last = k
				got[k] = c
				return true
			})
			require.Equal(t, modelDiff(a.model, b.model), got)
		}
	})
}

func modelDiff(a, b map[int]int) map[int]change[int] {
	out := map[int]change[int]{}
	for k, v := range a {
		if w, ok := b[k]; !ok {
			out[k] = change[int]{before: v, hadBefore: true}
		} else if v != w {
			out[k] = change[int]{v, w, true, true}
		}
	}
	for k, w := range b {
		if _, ok := a[k]; !ok {
			out[k] = change[int]{after: w, hasAfter: true}
		}
	}
	return out
}

// One change of a large tree copies a path, and the difference of two versions enters little more than that path,
// whatever the size.
func TestTreeCostOfOneChange(t *testing.T) {
	for _, size := range []int{1000, 100_000} {
		tr := newTree[string, int](cmp.Compare[string])
		e := new(edit)
		for i := range size {
			tr = tr.set(e, fmt.Sprintf("topic-%08d", i*7919%size), i)
		}
		checkTree(t, tr)
		key := fmt.Sprintf("topic-%08d", size/2)
		next := tr.set(new(edit), key, -1)
		require.LessOrEqual(t, newNodes(tr, next), 5, "copied nodes of %d keys", size)

		compared := 0
		counting := func(a, b string) int { compared++; return cmp.Compare(a, b) }
		tr.cmp, next.cmp = counting, counting
		var changed []string
		diffTrees(tr, next, func(k string, _ change[int]) bool { changed = append(changed, k); return true })
		require.Equal(t, []string{key}, changed)
		require.LessOrEqual(t, compared, treeWidth, "entries looked at of %d", size)
	}
}

// newNodes counts the nodes of b that a does not have.
func newNodes[K, V any](a, b tree[K, V]) int {
	had := map[*treeNode[K, V]]bool{}
	var walk func(n *treeNode[K, V], visit func(*treeNode[K, V]))
	walk = func(n *treeNode[K, V], visit func(*treeNode[K, V])) {
		visit(n)
		for _, kid := range n.kids {
			walk(kid, visit)
		}
	}
	walk(a.root, func(n *treeNode[K, V]) { had[n] = true })
	fresh := 0
	walk(b.root, func(n *treeNode[K, V]) {
		if !had[n] {
			fresh++
		}
	})
	return fresh
}

// A walk and a difference end when their consumer says so.
func TestTreeStopsEarly(t *testing.T) {
	tr := newTree[int, int](cmp.Compare[int])
	for i := range 200 {
		tr = tr.set(new(edit), i, i)
	}
	seen := 0
	for range tr.all() {
		if seen++; seen == 50 {
			break
		}
	}
	require.Equal(t, 50, seen)
	for _, pair := range [][2]tree[int, int]{{{}, tr}, {tr, {}}, {tr, tr.delete(new(edit), 0)}} {
		seen = 0
		diffTrees(pair[0], pair[1], func(int, change[int]) bool { seen++; return false })
		require.Equal(t, 1, seen)
	}
}
