package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/integration/cluster"
	"github.com/millrace/millrace/integration/member"
)

// commitPause is the goal of issue 5 for commits while snapshots are taken and restored.
const commitPause = 200 * time.Millisecond

// measureOffsets stores a million offsets, and commits on while brokers take snapshots of them and one restores them: from
// its own disk, and sent by another broker.
func (b *bench) measureOffsets(ctx context.Context) (err error) {
	const partitions = 1000
	// Small enough that snapshots come by themselves while it measures, and that a broker which is away falls behind the log.
	c, err := b.open(ctx, "offsets", "millrace.metadata.snapshot.entries="+strconv.Itoa(b.snapshotEntries))
	if err != nil {
		return err
	}
	defer b.end(c, "offsets", &err)
	if err := b.topic(ctx, c, partitions, 1); err != nil {
		return err
	}
	before, err := lookAtAll(ctx, c)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := b.storeOffsets(ctx, c, b.offsets/partitions, partitions); err != nil {
		return err
	}
	took := time.Since(began)
	b.tell(fmt.Sprintf("%d offsets stored by commits of %d", b.offsets, partitions), "in %s, %.0f/s", took.Round(10*time.Millisecond), float64(b.offsets)/took.Seconds())
	// It may go without the probes' commits noticing: it coordinates none of them, and the quorum stays whole enough.
	away, err := follower(ctx, c)
	if err != nil {
		return err
	}
	p := newProbe()
	if err := p.start(ctx, c, away, 50, 10*time.Millisecond); err != nil { // 500 a second
		return err
	}
	defer p.end()
	// phase lets commits go on while something happens.
	phase := func(what string, goal bool, fn func() error) error {
		p.forget()
		was, err := snapshots(ctx, c)
		if err != nil {
			return err
		}
		if err := fn(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		now, err := snapshots(ctx, c)
		if err != nil {
			return err
		}
		taken := 0
		for i := range now {
			if now[i].After(was[i].Add(time.Second)) {
				taken++
			}
		}
		n, median, p99, worst, refused := p.look()
		got := fmt.Sprintf("p50 %s, p99 %s, longest %s of %d, refused %d; snapshots taken by %d brokers", round(median), round(p99), round(worst), n, refused, taken)
		if goal {
			b.judge("commits "+what, worst <= commitPause, "≤ 200 ms", "%s", got)
		} else {
			b.tell("commits "+what, "%s", got)
		}
		return nil
	}
	if err := phase("for 10 s", false, func() error { return pause(ctx, 10*time.Second) }); err != nil {
		return err
	}
	if err := phase("for 30 s with snapshots of all brokers", true, func() error { return pause(ctx, 30*time.Second) }); err != nil {
		return err
	}
	after, err := lookAtAll(ctx, c)
	if err != nil {
		return err
	}
	grown := int64(0)
	for i := range after {
		grown = max(grown, after[i].rss-before[i].rss)
	}
	b.tell("resident memory per offset and broker, the garbage of snapshots included", "%d bytes", grown/int64(b.offsets))
	err = phase("while a follower is killed and restores its own snapshot", true, func() error {
		if err := away.Kill(); err != nil {
			return err
		}
		started := time.Now()
		if err := away.Start(); err != nil {
			return err
		}
		if err := away.Serves(ctx, 3); err != nil {
			return err
		}
		b.tell("the follower serves again, with its offsets, after", "%s", time.Since(started).Round(10*time.Millisecond))
		return pause(ctx, 2*time.Second)
	})
	if err != nil {
		return err
	}
	return phase("while a follower that fell behind the log is sent a snapshot", true, func() error {
		if err := away.Kill(); err != nil {
			return err
		}
		if err := pause(ctx, 25*time.Second); err != nil {
			return err
		}
		at := away.LogSize()
		started := time.Now()
		if err := away.Start(); err != nil {
			return err
		}
		if err := away.Serves(ctx, 3); err != nil {
			return err
		}
		sent := "none was sent"
		if strings.Contains(away.LogFrom(at), "metadata snapshot received") {
			sent = "sent by another broker"
		}
		b.tell("it serves again after", "%s, snapshot: %s", time.Since(started).Round(10*time.Millisecond), sent)
		return pause(ctx, 2*time.Second)
	})
}

// storeOffsets commits all partitions to each of the groups, on three connections to each coordinator.
func (b *bench) storeOffsets(ctx context.Context, c *cluster.Cluster, groups, partitions int) error {
	names := make([]string, groups)
	for i := range names {
		names[i] = fmt.Sprintf("stored-%05d", i)
	}
	addrs, err := member.Coordinators(c.Nodes[0].Addr, names...)
	if err != nil {
		return err
	}
	of := map[string]chan string{}
	for i, a := range addrs {
		if of[a] == nil {
			of[a] = make(chan string, groups)
		}
		of[a] <- names[i]
	}
	errs := make(chan error, 3*len(of))
	var work sync.WaitGroup
	for addr, names := range of {
		close(names)
		for range 3 {
			work.Go(func() {
				errs <- func() error {
					conn, err := member.Dial(addr, "store")
					if err != nil {
						return err
					}
					defer conn.Close()
					for name := range names {
						if code, err := member.CommitAll(conn, name, "read", partitions, 1); err != nil || code != 0 {
							return fmt.Errorf("commit of group %s: code %d, %w", name, code, err)
						}
						if err := ctx.Err(); err != nil {
							return err
						}
					}
					return nil
				}()
			})
		}
	}
	work.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
