package drive

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

type thing struct {
	Slot
	name string
}

func newThing(name string) *thing { return &thing{name: name} }

// A name has one entry, whoever asks for it at once; what was taken out is made anew, and is no more taken out by who had the
// one before.
func TestTable(t *testing.T) {
	table := NewTable(newThing)
	require.Nil(t, table.Get("a"))
	var all [8]*thing
	var asking sync.WaitGroup
	for i := range all {
		asking.Go(func() { all[i] = table.GetOrCreate("a") })
	}
	asking.Wait()
	for _, e := range all {
		require.Same(t, all[0], e)
	}
	require.Same(t, all[0], table.Get("a"))
	require.Equal(t, "a", all[0].name)
	require.Nil(t, table.Get("b"))

	table.Delete("a", all[0])
	require.Nil(t, table.Get("a"))
	second := table.GetOrCreate("a")
	require.NotSame(t, all[0], second)
	table.Delete("a", all[0])
	require.Same(t, second, table.Get("a"))
}

// Each sees everything, with no lock held: who is called may take entries out.
func TestTableEach(t *testing.T) {
	table := NewTable(newThing)
	const n = 1000
	for i := range n {
		table.GetOrCreate(fmt.Sprint(i))
	}
	seen := map[string]bool{}
	table.Each(func(e *thing) {
		seen[e.name] = true
		table.Delete(e.name, e)
		require.Nil(t, table.Get(e.name))
	})
	require.Len(t, seen, n)
	table.Each(func(*thing) { t.Error("one is left") })
}
