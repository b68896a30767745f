package log

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDurableEnd: the durable end is the end of the offsets that are all done from the beginning, whatever the order
// and overlap of the intervals (W4), and complete tells exactly when it moves.
func TestDurableEnd(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 5))
		start := rng.Int64N(5)
		var d durable
		d.reset(start)
		done := make([]bool, 80)
		want := start
		for range 40 {
			from := rng.Int64N(70)
			to := from + rng.Int64N(10)
			for i := from; i < to; i++ {
				done[i] = true
			}
			before := want
			for done[want] {
				want++
			}
			require.Equal(t, want > before, d.complete(from, to), "seed %d", seed)
			require.Equal(t, want, d.end, "seed %d", seed)
			last := d.end
			for _, in := range d.done {
				require.Greater(t, in.from, last, "seed %d: intervals touch", seed)
				require.Greater(t, in.to, in.from)
				last = in.to
			}
		}
		d.reset(3)
		require.Empty(t, d.done)
		require.True(t, d.complete(0, 4))
	}
}
