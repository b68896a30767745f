package drive

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

type instant int64

const never = instant(1<<63 - 1)

// Of many entries whose deadlines are set, moved and taken away, those come out whose time has come, each once, the earliest
// first: as from a list that is searched.
func TestDeadlines(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	d := NewDeadlines[*thing, instant]()
	require.Equal(t, never, d.Next())
	require.Nil(t, d.Pop(never))
	due := map[*thing]instant{}
	var all []*thing
	for i := range 50 {
		all = append(all, newThing(fmt.Sprint(i)))
	}
	first := func() instant {
		at := never
		for _, x := range due {
			at = min(at, x)
		}
		return at
	}
	for range 20_000 {
		e := all[random.IntN(len(all))]
		switch random.IntN(4) {
		case 0, 1:
			due[e] = instant(random.IntN(1000))
			d.Set(e, due[e])
		case 2:
			delete(due, e)
			d.Remove(e)
		case 3:
			now := instant(random.IntN(1000))
			got, at := d.Pop(now), first()
			if at > now {
				require.Nil(t, got)
				break
			}
			require.NotNil(t, got)
			require.Equal(t, at, due[got])
			delete(due, got)
		}
		require.Equal(t, first(), d.Next())
	}
}

// Who sleeps until the first deadline is woken by one that comes earlier, and by no other.
func TestDeadlinesNearer(t *testing.T) {
	d := NewDeadlines[*thing, instant]()
	a, b := newThing("a"), newThing("b")
	woken := func() bool {
		select {
		case <-d.Nearer():
			return true
		default:
			return false
		}
	}
	require.False(t, woken())
	d.Set(a, 10)
	require.True(t, woken())
	d.Set(b, 20)
	require.False(t, woken())
	d.Set(b, 5)
	d.Set(b, 4) // one signal waits, however many there were
	require.True(t, woken())
	require.False(t, woken())
	d.Remove(b)
	require.False(t, woken())
}
