package replication

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log/vfs"
)

// I1, I2: what a producer was told, and what a consumer was shown, is there after a power cut at any moment: at its
// offset, once, and each producer's records without a gap.
func TestAcknowledgedSurvivesPowerCut(t *testing.T) {
	for seed := range uint64(24) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			mem := vfs.NewMem(seed)
			opts := []benchOption{withFS(mem, "data")}
			if seed%2 == 0 {
				opts = append(opts, withWAL)
			}
			b := newBench(t, opts...)
			type ack struct {
				value  string
				offset int64
			}
			var mu sync.Mutex
			var acked []ack
			stop := make(chan struct{})
			enough := make(chan struct{})
			target := 20 + rng.IntN(200)
			var wg sync.WaitGroup
			for g := range 4 {
				wg.Go(func() {
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						default:
						}
						v := fmt.Sprintf("%d:%d", g, i)
						res := b.append([]int16{-1, 1}[i%2], v).wait(t)
						if res.Err != nil {
							t.Errorf("append %s: %v", v, res.Err)
							return
						}
						mu.Lock()
						acked = append(acked, ack{v, res.BaseOffset})
						if len(acked) == target {
							close(enough)
						}
						mu.Unlock()
					}
				})
			}
			<-enough
			shown := b.read(0)
			mu.Lock()
			promised := append([]ack(nil), acked...)
			mu.Unlock()
			after := mem.CrashClone([]vfs.CrashMode{vfs.CrashLose, vfs.CrashKeep, vfs.CrashMixed}[seed%3])
			close(stop)
			wg.Wait()

			again := newBench(t, append([]benchOption{withFS(after, "data")}, opts[1:]...)...)
			got := again.read(0)
			require.GreaterOrEqual(t, len(got), len(shown))
			require.Equal(t, shown, got[:len(shown)], "what a consumer has seen")
			for _, a := range promised {
				require.Less(t, a.offset, int64(len(got)))
				require.Equal(t, a.value, got[a.offset])
			}
			next := map[string]int{}
			for _, v := range got {
				var g, i int
				_, err := fmt.Sscanf(v, "%d:%d", &g, &i)
				require.NoError(t, err)
				require.Equal(t, next[fmt.Sprint(g)], i, "producer %d, in order and once", g)
				next[fmt.Sprint(g)]++
			}
			require.Equal(t, int64(len(got)), again.p.HighWatermark(), "the high watermark follows from what is on disk")
			require.Equal(t, int64(len(got)), again.produce("more").BaseOffset)
		})
	}
}
