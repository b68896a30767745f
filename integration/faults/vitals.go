package main

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/integration/cluster"
)

// What a broker may hold above the base after the faults, when no client is there any more (I20). The base is that of a
// new cluster without clients, so the room is for what a used one rightly has: connections between brokers in both
// directions, the goroutines of a Raft leader, caches and buffers that are kept.
const (
	vitalsPatience   = 60 * time.Second // I20 allows 30 s; the machine may be busy
	roomGoroutines   = 40
	roomSockets      = 16
	roomResidentMiB  = 192
	vitalsAskTimeout = 20 * time.Second // of all brokers, one after the other
)

// vitals measures all brokers; the greatest of each figure counts.
func (r *run) vitals(ctx context.Context) (most cluster.Vitals, err error) {
	ctx, cancel := context.WithTimeout(ctx, vitalsAskTimeout)
	defer cancel()
	for _, n := range r.cluster.Nodes {
		v, err := n.Vitals(ctx)
		if err != nil {
			return most, err
		}
		most.Goroutines, most.Sockets = max(most.Goroutines, v.Goroutines), max(most.Sockets, v.Sockets)
		most.Deleted, most.ResidentBytes = max(most.Deleted, v.Deleted), max(most.ResidentBytes, v.ResidentBytes)
	}
	return most, nil
}

// backAtBase waits until no broker holds more than when it was new. The clients must be gone.
func (r *run) backAtBase(ctx context.Context, base cluster.Vitals) {
	ctx, cancel := context.WithTimeout(ctx, vitalsPatience)
	defer cancel()
	began := time.Now()
	for {
		now, err := r.vitals(ctx)
		if err == nil {
			err = grown(base, now)
		}
		if err == nil {
			r.remark("at base after %s: %s, at the start %s", time.Since(began).Round(10*time.Millisecond), vitalsText(now), vitalsText(base))
			return
		}
		select {
		case <-ctx.Done():
			r.fail("not back at the base %s after the end of the clients: %v", vitalsPatience, err)
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// grown says what of a broker has grown beyond its room.
func grown(base, now cluster.Vitals) error {
	for _, v := range []struct {
		what            string
		base, now, room int
	}{
		{"goroutines", base.Goroutines, now.Goroutines, roomGoroutines},
		{"sockets", base.Sockets, now.Sockets, roomSockets},
		{"descriptors of deleted files", base.Deleted, now.Deleted, 0},
		{"MiB of memory", int(base.ResidentBytes >> 20), int(now.ResidentBytes >> 20), roomResidentMiB},
	} {
		if v.now > v.base+v.room {
			return fmt.Errorf("%d %s, %d at the start", v.now, v.what, v.base)
		}
	}
	return nil
}

func vitalsText(v cluster.Vitals) string {
	return fmt.Sprintf("%d goroutines, %d sockets, %d MiB", v.Goroutines, v.Sockets, v.ResidentBytes>>20)
}
