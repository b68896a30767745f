package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/integration/member"
)

// heartbeatInterval is that of Kafka's consumers.
const heartbeatInterval = 3 * time.Second

// measureConnections has as many connections rest on three brokers as measureGroups has members, each with a request every
// three seconds, and no group: what of a group at rest is its members' connections.
func (b *bench) measureConnections(ctx context.Context) (err error) {
	c, err := b.open(ctx, "connections")
	if err != nil {
		return err
	}
	defer b.end(c, "connections", &err)
	if err := b.topic(ctx, c, 12, 3); err != nil {
		return err
	}
	if err := pause(ctx, 5*time.Second); err != nil {
		return err
	}
	before, err := lookAtAll(ctx, c)
	if err != nil {
		return err
	}
	run, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer func() {
		stop()
		work.Wait()
	}()
	var failed sync.Once
	var broken error // the first
	of := make([]int, len(c.Nodes))
	for i := range 3 * b.groups {
		addr := c.Nodes[i%len(c.Nodes)].Addr
		of[i%len(c.Nodes)]++
		work.Go(func() {
			if err := beat(run, addr); err != nil && run.Err() == nil {
				failed.Do(func() { broken = err; stop() })
			}
		})
		if err := pause(run, time.Millisecond); err != nil { // not thousands of connections in one moment
			break
		}
	}
	after, err := b.settled(run, c, before)
	if err != nil {
		stop()
		work.Wait()
		if broken != nil {
			err = broken
		}
		return err
	}
	cores, err := b.coresUsed(run, c)
	if err != nil {
		return err
	}
	_, shares := each(before, after, of)
	b.tell(fmt.Sprintf("%v connections at rest on each: resident memory of one", of), "%s", shares)
	b.tell("CPU of each broker, a request every 3 s on each connection", "%s", percents(cores))
	return nil
}

// beat is a connection that says who it is, asks for the metadata, and then sends heartbeats of a group that is not there.
func beat(ctx context.Context, addr string) error {
	conn, err := member.Dial(addr, "rest")
	if err != nil {
		return err
	}
	defer conn.Close()
	hello := kmsg.NewPtrApiVersionsRequest()
	hello.Version, hello.ClientSoftwareName, hello.ClientSoftwareVersion = 3, "scale", "1"
	metadata := kmsg.NewPtrMetadataRequest()
	metadata.Version = 12
	heartbeat := kmsg.NewPtrHeartbeatRequest()
	heartbeat.Version, heartbeat.Group, heartbeat.MemberID = 4, "none", "nobody"
	for _, req := range []kmsg.Request{hello, metadata} {
		if _, err := conn.Do(req, patience); err != nil {
			return err
		}
	}
	for {
		if _, err := conn.Do(heartbeat, patience); err != nil {
			return err
		}
		if err := pause(ctx, heartbeatInterval); err != nil {
			return err
		}
	}
}

// each is the resident memory that of[i] more of something take on each node, in bytes for one of them where that is most, and
// as a text that says what of it is Go's heap, garbage included, stacks, and pages of the program.
func each(before, after []footprint, of []int) (worst int64, text string) {
	var heap, stacks, program int64
	for i := range after {
		if of[i] == 0 {
			continue
		}
		n := int64(of[i])
		if rss := (after[i].rss - before[i].rss) / n; rss > worst {
			worst, heap, stacks, program = rss, (after[i].heap-before[i].heap)/n, (after[i].stacks-before[i].stacks)/n, (after[i].file-before[i].file)/n
		}
	}
	return worst, fmt.Sprintf("%.1f KiB (heap %.1f, stacks %.1f, pages of the program %.1f)", float64(worst)/1024, float64(heap)/1024, float64(stacks)/1024, float64(program)/1024)
}
