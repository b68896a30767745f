package replication

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFollowersReplicate: acks=all is answered once all in-sync followers have synced the record, whose logs are then
// the leader's (I2, I5), and the followers hear of the high watermark without another record.
func TestFollowersReplicate(t *testing.T) {
	for _, wal := range []bool{false, true} {
		t.Run(fmt.Sprintf("wal=%v", wal), func(t *testing.T) {
			c := newCluster(t, 3, wal)
			c.create("orders", 4, nil)
			for i := range 40 {
				res := produce(t, c.leader("orders", i%4), fmt.Sprint("v", i))
				require.Equal(t, int64(i/4), res.BaseOffset)
			}
			for part := range 4 {
				for _, n := range c.nodes {
					p := c.replica(n.id, "orders", part)
					require.Equal(t, int64(10), p.log.DurableEnd())
					eventually(t, "the follower knows the high watermark", func() bool { return p.HighWatermark() == 10 })
				}
			}
		})
	}
}
