package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/millrace/millrace/integration/check"
	"github.com/millrace/millrace/integration/cluster"
)

// byName makes a client whose raw requests about groups name topics.
func (r *run) byName() (*kgo.Client, error) {
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(9, 8)
	return kgo.NewClient(kgo.SeedBrokers(r.cluster.Seeds()...), kgo.MaxVersions(versions), kgo.MetadataMinAge(200*time.Millisecond), kgo.DialTimeout(3*time.Second),
		kgo.RequestTimeoutOverhead(5*time.Second), kgo.RetryTimeout(5*time.Second))
}

// watchOffsets asks for the committed offsets of a group again and again, and for who coordinates it.
func (r *run) watchOffsets(g groupSpec) {
	cl, err := r.byName()
	if err != nil {
		r.fail("a watcher of %s: %v", g.name, err)
		return
	}
	defer cl.Close()
	process := r.newProcess()
	for i := 0; ; i++ {
		select {
		case <-r.reading.Done():
			return
		case <-time.After(offsetsPause):
		}
		if _, err := r.offsets(r.reading, cl, process, g); err != nil && r.reading.Err() == nil {
			process = r.newProcess()
		}
		if i%4 == 0 {
			if n := r.findCoordinator(r.reading, cl, g.name); n != nil {
				r.coordinators.Store(g.name, n)
			}
		}
	}
}

// offsets asks once, by key; what has no offset has -1.
func (r *run) offsets(ctx context.Context, cl *kgo.Client, process int, g groupSpec) (map[string]int64, error) {
	group := g.name
	ctx, cancel := context.WithTimeout(ctx, 8*time.Second)
	defer cancel()
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group, req.RequireStable = group, true
	ask := kmsg.NewOffsetFetchRequestGroup()
	ask.Group = group
	open := map[string]bool{}
	for _, topic := range g.read() {
		t := kmsg.NewOffsetFetchRequestGroupTopic()
		t.Topic = topic
		for p := range int32(r.perTopic) {
			t.Partitions = append(t.Partitions, p)
			open[check.Key(topic, p)] = true
			r.history.Log(check.Op{F: check.FetchOffset, Type: check.Invoke, Process: process, Group: group, Key: check.Key(topic, p)})
		}
		ask.Topics = append(ask.Topics, t)
	}
	req.Groups = append(req.Groups, ask)
	out := map[string]int64{}
	resp, err := req.RequestWith(ctx, cl)
	if err == nil && (len(resp.Groups) != 1 || resp.Groups[0].ErrorCode != 0) {
		err = fmt.Errorf("fetch offsets of %s: an answer for %d groups, error %v", group, len(resp.Groups), resp.Groups)
	}
	if err == nil {
		for _, t := range resp.Groups[0].Topics {
			for _, p := range t.Partitions {
				key := check.Key(t.Topic, p.Partition)
				if !open[key] || p.ErrorCode != 0 {
					continue
				}
				delete(open, key)
				out[key] = p.Offset
				r.history.Log(check.Op{F: check.FetchOffset, Type: check.OK, Process: process, Group: group, Key: key, Offset: p.Offset})
			}
		}
	}
	for key := range open {
		r.history.Log(check.Op{F: check.FetchOffset, Type: check.Info, Process: process, Group: group, Key: key})
	}
	if err == nil && len(open) > 0 {
		err = fmt.Errorf("fetch offsets of %s: %d partitions without an answer", group, len(open))
	}
	return out, err
}

// findCoordinator returns the node that coordinates a group, nil if that is not known.
func (r *run) findCoordinator(ctx context.Context, cl *kgo.Client, group string) *cluster.Node {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorKey, req.CoordinatorKeys = group, []string{group}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil || len(resp.Coordinators) != 1 || resp.Coordinators[0].ErrorCode != 0 {
		return nil
	}
	return r.node(resp.Coordinators[0].Host, resp.Coordinators[0].Port)
}

// coordinator is the node that coordinates some group of the workload, as far as is known.
func (r *run) coordinator() *cluster.Node {
	if len(r.groups) > 0 {
		if n, ok := r.coordinators.Load(r.groups[r.random.IntN(len(r.groups))].name); ok {
			return n.(*cluster.Node)
		}
	}
	return r.anybody()
}

// drainGroups waits until each group has committed behind the last record of every partition that it can read: at least
// once, nothing is left out (I18).
func (r *run) drainGroups(ctx context.Context, groups ...groupSpec) {
	if len(groups) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, r.drainPatience())
	defer cancel()
	cl, err := r.byName()
	if err != nil {
		r.fail("ask for offsets: %v", err)
		return
	}
	defer cl.Close()
	began := time.Now()
	for _, g := range groups {
		process, last := r.newProcess(), r.lastRead
		if g.committed {
			last = r.lastCommitted
		}
		for {
			behind := map[string]string{}
			now, err := r.offsets(ctx, cl, process, g)
			if err != nil {
				process = r.newProcess()
			}
			for key, end := range last {
				if at, known := now[key]; g.reads(key) && (!known || at < end) {
					behind[key] = fmt.Sprintf("%d of %d", at, end)
				}
			}
			if err == nil && len(behind) == 0 {
				break
			}
			if !r.settled(ctx, 200*time.Millisecond) {
				r.fail("group %s did not commit everything in %s: %v %v", g.name, r.drainPatience(), behind, err)
				break
			}
		}
	}
	r.remark("%d groups have committed everything %s after the reading", len(groups), time.Since(began).Round(10*time.Millisecond))
}

// reads says whether the members of a group read a partition.
func (g groupSpec) reads(key string) bool {
	return slices.ContainsFunc(g.read(), func(topic string) bool { return strings.HasPrefix(key, topic+"/") })
}

// plug is the network of one client, which can be pulled out: its connections break, and it gets no others.
type plug struct {
	mu     sync.Mutex
	pulled bool
	conns  []net.Conn
}

func (p *plug) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: 3 * time.Second}
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pulled {
		_ = c.Close()
		return nil, fmt.Errorf("dial %s: %w", address, net.ErrClosed)
	}
	p.conns = append(p.conns, c)
	return c, nil
}

func (p *plug) pull() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pulled = true
	for _, c := range p.conns {
		_ = c.Close()
	}
}
