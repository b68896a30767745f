package broker

import (
	"fmt"
	"time"
)

// live says why the process should be restarted: a log directory that failed. It is empty during recovery.
func (b *Broker) live() []string {
	if err := b.failure(); err != nil {
		return []string{err.Error()}
	}
	return nil
}

// readiness says why clients should not be sent here: it is starting or stopping, has failed, or is fenced. Replicas
// that are out of sync, or a partition that is offline, are no reason: to take the broker away would make it worse.
func (b *Broker) readiness() []string {
	reasons := b.live()
	if phase := b.Phase(); phase != "" {
		return append(reasons, phase)
	}
	if me := b.store.Image().Broker(b.nodeID); me == nil || me.Fenced {
		reasons = append(reasons, fmt.Sprintf("broker %d is fenced", b.nodeID))
	}
	if hung := b.store.DiskHang(); hung > 0 {
		reasons = append(reasons, fmt.Sprintf("the disk of the metadata log has not come back with a write for %v", hung.Round(time.Second)))
	}
	return reasons
}
