package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/integration/check"
)

// groupSpec is a group of the workload: its members read all topics, commit behind what they were given, and come and go.
type groupSpec struct {
	name     string
	consumer bool // the consumer protocol (KIP-848), else the classic one
	eager    bool // of the classic protocol: all is given up before each rebalance
	members  int
	static   int // how many of them have an instance id
	// least and most bound how long a member stays. Half of those that go die without a word.
	least, most time.Duration
	session     time.Duration
	topics      []string // what they read; nil: all that producers write to
	committed   bool     // they read committed records only, and commit in transactions
}

// read are the topics that the members read.
func (g groupSpec) read() []string {
	if g.topics != nil {
		return g.topics
	}
	return topics
}

// The groups of most scenarios. Their sessions are short, so that a member that died is not missed for long.
var usualGroups = []groupSpec{
	{name: "billing", members: 3, static: 1, least: 4 * time.Second, most: 20 * time.Second, session: 10 * time.Second},
	{name: "audit", consumer: true, members: 3, static: 1, least: 4 * time.Second, most: 20 * time.Second, session: 10 * time.Second},
}

// groupSettings are those of the brokers that go with the sessions above.
func groupSettings(session time.Duration) []string {
	return []string{
		"group.initial.rebalance.delay.ms=300", "group.consumer.heartbeat.interval.ms=1000", fmt.Sprintf("group.consumer.session.timeout.ms=%d", session.Milliseconds()),
	}
}

// groupSet are the settings of the brokers that groups need.
func (r *run) groupSet() []string {
	if len(r.groups) == 0 {
		return nil
	}
	return append(groupSettings(r.groups[0].session), "millrace.group.failover="+failoverModes[r.seed%2])
}

// failoverModes are the two settings of millrace.group.failover; the seed chooses.
var failoverModes = []string{"rebalance", "resume"}

const (
	commitTimeout  = 5 * time.Second
	offsetsPause   = 300 * time.Millisecond
	pollRecords    = 100
	idlePoll       = 500 * time.Millisecond
	commitOneInSix = 6 // of six polls one is not committed behind
)

// startGroups starts the members of the groups, and for each group one that asks for its offsets.
func (r *run) startGroups() {
	r.grouping, r.stopGrouping = context.WithCancel(context.Background())
	for _, g := range r.groups {
		for i := range g.members {
			r.members.Go(func() { r.memberLives(g, i) })
		}
		r.readers.Go(func() { r.watchOffsets(g) })
	}
}

func (r *run) endGroups() {
	if r.stopGrouping != nil {
		r.stopGrouping()
	}
	r.members.Wait()
}

// memberLives is the place of one member: one process after another. Once nothing is sent any more they stay.
func (r *run) memberLives(g groupSpec, place int) {
	random := rand.New(rand.NewPCG(r.seed, uint64(place)<<16|uint64(len(g.name))))
	for r.grouping.Err() == nil {
		stay := g.least + time.Duration(random.Int64N(int64(g.most-g.least)))
		life, end := context.WithCancel(r.grouping)
		ending := time.AfterFunc(stay, func() {
			if r.sending.Err() == nil {
				end()
			}
		})
		r.memberLife(life, g, place, random)
		ending.Stop()
		end()
		r.settled(r.grouping, time.Duration(random.Int64N(int64(3*time.Second))))
	}
}

// member is one process in a group.
type member struct {
	r       *run
	spec    groupSpec
	name    string // instance id, "" for none
	process int
	mu      sync.Mutex
	held    map[string]bool // what it has, by key
	asked   map[string]bool // of that, what it does not know the offset of yet
	marks   map[string]map[int32]kgo.EpochOffset
	asks    asks
}

// asks counts the OffsetCommit requests of a client.
type asks struct{ n atomic.Int64 }

// OnBrokerWrite implements [kgo.HookBrokerWrite].
func (a *asks) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	if key == keyOffsetCommit {
		a.n.Add(1)
	}
}

func (r *run) member(g groupSpec, name string) *member {
	return &member{r: r, spec: g, name: name, process: r.newProcess(), held: map[string]bool{}, asked: map[string]bool{}, marks: map[string]map[int32]kgo.EpochOffset{}}
}

// memberLife is one process in a place of the group.
func (r *run) memberLife(ctx context.Context, g groupSpec, place int, random *rand.Rand) {
	var name string
	if place < g.static {
		name = fmt.Sprintf("%s-%d", g.name, place)
	}
	m := r.member(g, name)
	var line plug
	opts := []kgo.Opt{
		kgo.SeedBrokers(r.cluster.Seeds()...), kgo.ConsumerGroup(g.name), kgo.ConsumeTopics(topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(), kgo.SessionTimeout(g.session), kgo.HeartbeatInterval(time.Second), kgo.RebalanceTimeout(15 * time.Second),
		kgo.MetadataMinAge(200 * time.Millisecond), kgo.FetchMaxWait(300 * time.Millisecond), kgo.RequestTimeoutOverhead(r.requestPatience()), kgo.Dialer(line.dial),
		kgo.RetryBackoffFn(func(tries int) time.Duration { return time.Duration(min(tries, 5)) * 50 * time.Millisecond }),
		kgo.OnPartitionsAssigned(m.assigned), kgo.OnPartitionsRevoked(m.released), kgo.OnPartitionsLost(m.released), kgo.AdjustFetchOffsetsFn(m.found),
		kgo.WithHooks(&m.asks),
	}
	if name != "" {
		opts = append(opts, kgo.InstanceID(name))
	}
	if g.consumer {
		opts = append(opts, kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()))
	} else if g.eager {
		opts = append(opts, kgo.Balancers(kgo.StickyBalancer()))
	} else {
		opts = append(opts, kgo.Balancers(kgo.CooperativeStickyBalancer()))
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		r.fail("a member of %s: %v", g.name, err)
		return
	}
	for ctx.Err() == nil {
		poll, cancel := context.WithTimeout(ctx, idlePoll)
		fetches := cl.PollRecords(poll, pollRecords)
		cancel()
		m.take(fetches)
		if ctx.Err() == nil && (fetches.Empty() || random.IntN(commitOneInSix) > 0) {
			m.commit(cl)
		}
		cl.AllowRebalance()
	}
	if r.grouping.Err() == nil && random.IntN(2) == 0 {
		line.pull()
	}
	cl.CloseAllowingRebalance()
	m.ended()
}

// assigned is called with what is new, in each generation.
func (m *member) assigned(_ context.Context, cl *kgo.Client, added map[string][]int32) {
	who, generation := cl.GroupMetadata()
	if m.name != "" {
		who = m.name
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	fresh := map[string]bool{}
	each(added, func(key string, _ string, _ int32) { fresh[key], m.held[key] = true, true })
	for key := range m.held {
		if m.spec.committed && !fresh[key] {
			continue // a transactional session does not tell of everything that it gives up
		}
		m.r.history.Log(check.Op{F: check.Claim, Type: check.OK, Process: m.process, Group: m.spec.name, Key: key, Epoch: generation, Text: who})
		if fresh[key] {
			m.asked[key] = true
			m.r.history.Log(check.Op{F: check.FetchOffset, Type: check.Invoke, Process: m.process, Group: m.spec.name, Key: key})
		}
	}
}

// released is called with what is revoked or lost.
func (m *member) released(_ context.Context, cl *kgo.Client, lost map[string][]int32) {
	_, generation := cl.GroupMetadata()
	m.mu.Lock()
	defer m.mu.Unlock()
	each(lost, func(key, topic string, p int32) {
		m.unasked(key)
		delete(m.held, key)
		delete(m.marks[topic], p)
		m.r.history.Log(check.Op{F: check.Release, Type: check.OK, Process: m.process, Group: m.spec.name, Key: key, Epoch: generation})
	})
}

// unasked ends a question for an offset whose answer does not matter any more.
func (m *member) unasked(key string) {
	if m.asked[key] {
		delete(m.asked, key)
		m.r.history.Log(check.Op{F: check.FetchOffset, Type: check.Info, Process: m.process, Group: m.spec.name, Key: key})
	}
}

// ended notes the end of the process.
func (m *member) ended() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range maps.Clone(m.asked) {
		m.unasked(key)
	}
}

// found is called with the committed offsets at which the member will begin.
func (m *member) found(_ context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for topic, of := range offsets {
		for p, o := range of {
			key := check.Key(topic, p)
			if !m.asked[key] {
				continue
			}
			delete(m.asked, key)
			m.r.history.Log(check.Op{F: check.FetchOffset, Type: check.OK, Process: m.process, Group: m.spec.name, Key: key, Offset: max(o.EpochOffset().Offset, -1)})
		}
	}
	return offsets, nil
}

// take notes what a poll returned, and how far it may be committed.
func (m *member) take(fetches kgo.Fetches) {
	fetches.EachError(func(topic string, partition int32, err error) {
		var loss *kgo.ErrDataLoss
		if errors.As(err, &loss) {
			m.r.fail("member %d of %s was told of data loss in %s: %v", m.process, m.spec.name, check.Key(topic, partition), err)
		}
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if len(p.Records) == 0 {
			return
		}
		o := recordsOp(check.Op{F: check.Take, Type: check.OK, Process: m.process, Group: m.spec.name, Key: check.Key(p.Topic, p.Partition)}, p.Records)
		if m.spec.committed {
			o.Text = check.ReadCommitted
		}
		m.r.history.Log(o)
		last := p.Records[len(p.Records)-1]
		if m.marks[p.Topic] == nil {
			m.marks[p.Topic] = map[int32]kgo.EpochOffset{}
		}
		m.marks[p.Topic][p.Partition] = kgo.EpochOffset{Epoch: last.LeaderEpoch, Offset: last.Offset + 1}
	})
}

// commit commits behind all that was taken.
func (m *member) commit(cl *kgo.Client) {
	m.mu.Lock()
	marks := map[string]map[int32]kgo.EpochOffset{}
	_, generation := cl.GroupMetadata()
	for topic, of := range m.marks {
		if len(of) == 0 {
			continue
		}
		marks[topic] = maps.Clone(of)
		for p, at := range of {
			m.r.history.Log(check.Op{F: check.Commit, Type: check.Invoke, Process: m.process, Group: m.spec.name, Key: check.Key(topic, p), Offset: at.Offset, Epoch: generation})
		}
	}
	m.mu.Unlock()
	if len(marks) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	before := m.asks.n.Load()
	cl.CommitOffsetsSync(ctx, marks, func(_ *kgo.Client, req *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		codes := map[string]int16{}
		if err == nil {
			for _, t := range resp.Topics {
				for _, p := range t.Partitions {
					codes[check.Key(t.Topic, p.Partition)] = p.ErrorCode
				}
			}
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		for topic, of := range marks {
			for p, at := range of {
				key := check.Key(topic, p)
				o := check.Op{F: check.Commit, Type: check.OK, Process: m.process, Group: m.spec.name, Key: key, Offset: at.Offset, Epoch: req.Generation}
				if code, answered := codes[key]; err != nil || !answered || code != 0 {
					// Of several attempts only the last one's answer is known.
					o.Type, o.Error = check.Info, fmt.Sprintf("%v %d", err, code)
				} else if m.marks[topic][p] == at {
					delete(m.marks[topic], p)
				}
				m.r.history.Log(o)
				if o.Type == check.OK && m.asks.n.Load()-before > 1 {
					// It was asked for again, and what was held of it counts when it arrives: while its member is the owner in the
					// same generation, no broker can tell it from a new one.
					o.Type, o.Process = check.Invoke, m.r.newProcess()
					m.r.history.Log(o)
				}
			}
		}
	})
}

// each visits partitions as kgo has them.
func each(partitions map[string][]int32, visit func(key, topic string, p int32)) {
	for topic, of := range partitions {
		for _, p := range of {
			visit(check.Key(topic, p), topic, p)
		}
	}
}
