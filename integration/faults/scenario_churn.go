package main

import (
	"context"
	"fmt"
	"time"
)

// churningGroups are 64 members, static and dynamic, of both protocols.
var churningGroups = []groupSpec{
	{name: "billing", members: 24, static: 12, least: 3 * time.Second, most: 40 * time.Second, session: 15 * time.Second},
	{name: "audit", consumer: true, members: 24, static: 12, least: 3 * time.Second, most: 40 * time.Second, session: 15 * time.Second},
	{name: "shipping", eager: true, members: 16, static: 4, least: 3 * time.Second, most: 40 * time.Second, session: 15 * time.Second},
}

// roundChurn pauses a broker for less than the sessions of the members, and for longer than gossip believes it alive.
func roundChurn(ctx context.Context, r *run) error {
	defer r.breathe(ctx)
	n, why := r.victim()
	return r.fault(ctx, n.Index, fmt.Sprintf("SIGSTOP of %snode %d for 8 s", why, n.Index), n.Pause, 8*time.Second, n.Resume)
}
