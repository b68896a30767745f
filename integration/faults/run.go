package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/millrace/millrace/integration/check"
	"github.com/millrace/millrace/integration/cluster"
)

// Bounds of a run; limits, never measures.
const (
	startPatience = 2 * time.Minute
	healPatience  = 60 * time.Second // I20 allows 30 s; the machine may be busy
	drainPatience = 2 * time.Minute
	// mutantPatience takes the place of drainPatience where a rule is broken.
	mutantPatience = 10 * time.Second
)

// The topics that producers write to.
var topics = []string{"orders", "events"}

const partitionsPerTopic = 3

// run is one cluster with its workload.
type run struct {
	options
	name    string // of the scenario
	seed    uint64
	dir     string
	random  *rand.Rand // the fault driver's; the workload has its own
	cluster *cluster.Cluster
	// topics are all there are, perTopic how many partitions each has.
	topics   []string
	perTopic int
	history  *check.Writer
	epochs   epochs
	skipped  map[string]bool // faults that cannot be made here
	rotten   map[string]bool // replicas that were damaged, by rotKey
	faults   int
	mends    int // how often a broker refused to start and its mend was carried out
	numbers  atomic.Int64
	failures struct {
		sync.Mutex
		list []string
	}
	// senders are producers and admins, which end with sending; readers are the rest, which end with reading.
	senders, readers         sync.WaitGroup
	sending, reading         context.Context
	stopSending, stopReading context.CancelFunc
	// members end once their groups have committed everything.
	groups       []groupSpec
	members      sync.WaitGroup
	grouping     context.Context
	stopGrouping context.CancelFunc
	coordinators sync.Map // group → *cluster.Node
	// transactions says that there are producers and a group which use them, converters its members. impatient clients wait
	// for answers for a second only.
	transactions, impatient bool
	converters              sync.WaitGroup
	converting              context.Context
	stopConverting          context.CancelFunc
	converted               atomic.Int64 // when a converter last got records, unix ns
	// quiet are topics that nobody writes to. late has the requests that are held past the end of their transactions.
	quiet       []string
	late        *lateDeck
	latePlaying sync.WaitGroup
	stopLate    context.CancelFunc
	notes       []string // for the table
	// lastRead and lastCommitted have what is behind the last record that was read at the end at each level, by key.
	lastRead, lastCommitted map[string]int64
}

// drainPatience is how long what was sent may take to be readable, and committed by groups. A mutant need not be waited for
// that long: it may never get there.
func (r *run) drainPatience() time.Duration {
	if r.mutant != "" {
		return mutantPatience
	}
	return drainPatience
}

// newProcess gives a number that was never used in this history.
func (r *run) newProcess() int { return int(r.numbers.Add(1)) }

// fail notes what is wrong beside the findings of the checker.
func (r *run) fail(format string, args ...any) {
	r.failures.Lock()
	defer r.failures.Unlock()
	if len(r.failures.list) < 20 {
		r.failures.list = append(r.failures.list, fmt.Sprintf(format, args...))
	}
}

// logf prints a line of progress.
func (r *run) logf(format string, args ...any) {
	if r.verbose {
		fmt.Fprintf(os.Stderr, "  %s %s\n", time.Now().Format("15:04:05.000"), fmt.Sprintf(format, args...))
	}
}

// remark puts a line into the history.
func (r *run) remark(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.history.Log(check.Op{F: check.Phase, Type: check.OK, Text: text})
	r.logf("%s", text)
}

// execute is the life of a run: it returns what the checker says.
func (r *run) execute(ctx context.Context, s *scenario, length time.Duration) (report *check.Report, err error) {
	defer func() {
		if r.stopLate != nil {
			r.stopLate()
			r.latePlaying.Wait()
		}
		r.endSenders()
		r.endConverters()
		r.endGroups()
		r.endReaders()
		if e := r.closeCluster(); err == nil {
			err = e
		}
	}()
	if err := r.open(ctx, s); err != nil {
		return nil, err
	}
	base, err := r.vitals(ctx)
	if err != nil {
		return nil, err
	}
	if s.script != nil {
		r.remark("script")
		if err := s.script(ctx, r); err != nil {
			r.fail("the script: %v", err)
		}
	} else {
		r.startWorkload()
		r.remark("warm up")
		r.settled(ctx, 3*time.Second)
		r.remark("faults")
		if s.late {
			r.startLate(lateCards())
		}
		r.rounds(ctx, s, length)
		r.endLate(ctx)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	r.remark("heal")
	r.heal(ctx)
	r.remark("the last records")
	if !r.settled(ctx, 2*time.Second) {
		return nil, ctx.Err()
	}
	r.endSenders()
	r.remark("read everything")
	r.lastRead, r.lastCommitted = map[string]int64{}, map[string]int64{}
	r.awaitStable(ctx, topics...)
	r.reread(ctx, topics...)
	if r.transactions {
		r.drainGroups(ctx, convertGroup)
		r.endConverters()
		rest := r.topics[len(topics):]
		r.awaitStable(ctx, rest...)
		r.reread(ctx, rest...)
	}
	r.drainGroups(ctx, r.groups...)
	r.endGroups()
	r.endReaders()
	r.remark("compare the metadata")
	r.compareStates(ctx)
	r.backAtBase(ctx, base)
	r.remark("dump the files")
	r.dumpFiles()
	if err := r.history.Close(); err != nil {
		return nil, err
	}
	ops, err := check.ReadFile(r.history.Name())
	if err != nil {
		return nil, err
	}
	return check.Check(ops), nil
}

// rounds makes faults until the time is over.
func (r *run) rounds(ctx context.Context, s *scenario, length time.Duration) {
	until := time.Now().Add(length)
	for time.Now().Before(until) && ctx.Err() == nil {
		err := s.round(ctx, r)
		if errors.Is(err, cluster.ErrNotHere) {
			r.skip(err)
			continue
		}
		if err != nil && ctx.Err() == nil {
			r.fail("the fault driver: %v", err)
			return
		}
		if s.once {
			return
		}
	}
}

// open makes the cluster and its topics.
func (r *run) open(ctx context.Context, s *scenario) error {
	cfg := cluster.Config{
		Binary: r.binary, Dir: filepath.Join(r.dir, "brokers"), Brokers: r.brokers, MemoryMiB: r.memoryMiB, ClientProxy: s.proxy,
		Set: append(append([]string{"auto.create.topics.enable=false", "millrace.metadata.snapshot.entries=50"}, r.groupSet()...), s.set...),
	}
	if r.mutant != "" {
		cfg.Env = append(cfg.Env, "MILLRACE_MUTANT="+r.mutant)
	}
	if cluster.InSandbox() {
		cfg.Namespaces = s.links && r.brokers > 1
		if s.disks {
			cfg.DiskMiB = diskMiB
		}
	}
	var err error
	if r.history, err = check.NewWriter(filepath.Join(r.dir, "history")); err != nil {
		return err
	}
	if r.cluster, err = cluster.Open(cfg); errors.Is(err, cluster.ErrNotHere) && (cfg.Namespaces || cfg.DiskMiB > 0) {
		// Root, but no loop mounts, or no ip: the rest of the faults is worth a run.
		r.skip(err)
		cfg.Namespaces, cfg.DiskMiB = false, 0
		r.cluster, err = cluster.Open(cfg)
	}
	if err != nil {
		return err
	}
	start, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if err := r.cluster.Start(start); err != nil {
		return err
	}
	if err := r.createTopics(start); err != nil {
		return err
	}
	if err := r.healthy(start); err != nil {
		return fmt.Errorf("the new cluster: %w", err)
	}
	return nil
}

// diskMiB is the size of a broker's disk: room for its write-ahead log, ballast and some minutes of records.
const diskMiB = 768

func (r *run) createTopics(ctx context.Context) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.cluster.Seeds()...))
	if err != nil {
		return err
	}
	defer cl.Close()
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = 20_000
	for _, name := range slices.Concat(r.topics, r.quiet) {
		t := kmsg.NewCreateTopicsRequestTopic()
		t.Topic, t.NumPartitions, t.ReplicationFactor = name, int32(r.perTopic), int16(min(3, r.brokers))
		least, segment := fmt.Sprint(min(2, r.brokers)), "1048576"
		t.Configs = []kmsg.CreateTopicsRequestTopicConfig{{Name: "min.insync.replicas", Value: &least}, {Name: "segment.bytes", Value: &segment}}
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return fmt.Errorf("create the topics: %w", err)
	}
	for _, t := range resp.Topics {
		if t.ErrorCode != 0 {
			why := ""
			if t.ErrorMessage != nil {
				why = *t.ErrorMessage
			}
			return fmt.Errorf("create the topics: %s: error %d: %s", t.Topic, t.ErrorCode, why)
		}
	}
	return nil
}

// startWorkload starts every client.
func (r *run) startWorkload() {
	r.sending, r.stopSending = context.WithCancel(context.Background())
	r.reading, r.stopReading = context.WithCancel(context.Background())
	for range 2 {
		r.senders.Go(r.produceIdempotent)
	}
	for _, topic := range r.topics {
		for p := range int32(r.perTopic) {
			r.senders.Go(func() { r.producePlain(topic, p) })
		}
	}
	for range 2 {
		r.readers.Go(r.consume)
	}
	for _, n := range r.cluster.Nodes {
		r.readers.Go(func() { r.probe(n) })
	}
	for i := range 3 {
		r.senders.Go(func() { r.administer(r.seed ^ uint64(i+1)) })
	}
	r.startGroups()
	r.startTransactions()
}

// endSenders has producers and admins end, and waits until what they sent is answered; nothing when there are none.
func (r *run) endSenders() {
	if r.stopSending != nil {
		r.stopSending()
	}
	r.senders.Wait()
}

func (r *run) endReaders() {
	if r.stopReading != nil {
		r.stopReading()
	}
	r.readers.Wait()
}

func (r *run) closeCluster() error {
	if r.cluster == nil {
		return nil
	}
	return r.cluster.Close()
}

// settled lets time pass; false: the whole command was told to end.
func (r *run) settled(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// skip notes a fault that cannot be made here, once.
func (r *run) skip(err error) {
	if r.skipped == nil {
		r.skipped = map[string]bool{}
	}
	if !r.skipped[err.Error()] {
		r.skipped[err.Error()] = true
		r.remark("left out: %v", err)
	}
}

// node finds the node of a broker by its advertised port and host.
func (r *run) node(host string, port int32) *cluster.Node {
	address := fmt.Sprintf("%s:%d", host, port)
	for _, n := range r.cluster.Nodes {
		if n.Addr == address {
			return n
		}
	}
	return nil
}

// direct makes a client that speaks to one node only.
func direct(n *cluster.Node) (*kgo.Client, error) {
	// Raw requests name topics; Produce 13, OffsetCommit 10 and OffsetFetch 10 know their ids only.
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(0, 12)
	versions.SetMaxKeyVersion(8, 9)
	versions.SetMaxKeyVersion(9, 8)
	return kgo.NewClient(kgo.SeedBrokers(n.Addr), kgo.MaxVersions(versions), kgo.DialTimeout(3*time.Second), kgo.RequestTimeoutOverhead(3*time.Second), kgo.RetryTimeout(time.Second), kgo.RequestRetries(0))
}
