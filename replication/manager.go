package replication

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/metadata"
)

// Manager holds the partitions of one broker and keeps them as the committed metadata says: logs created, opened,
// deleted, leaders made and unmade, settings changed.
type Manager struct {
	cfg     Config
	logger  *slog.Logger
	metrics *metrics
	clock   clock // origin of Instant
	lease   lease

	// table is written by the reconcile goroutine only.
	table atomic.Pointer[table]

	// The reconcile goroutine's own.
	applied      *metadata.Image // last image that was acted upon
	brokerConfig map[string]string
	retry        map[TopicIDPartition]struct{}
	marks        map[TopicIDPartition]int64 // high watermarks of the last run; dropped after the first round

	checkpointing  sync.Mutex // one writer of the high watermark checkpoint; taken under a partition's lock, takes none
	lastCheckpoint []byte     // bytes written last; guarded by checkpointing

	leaving atomic.Bool // a Drain holds all partitions

	ready   chan struct{} // closed after the first round
	version struct {
		sync.Mutex
		at      uint64        // image version acted upon
		changed chan struct{} // closed and replaced when at moves
	}

	failOnce sync.Once
	failed   chan error            // at most one: for the reconcile goroutine
	renewals chan TopicIDPartition // damaged replicas to make anew, for the reconcile goroutine

	brokerEpoch atomic.Int64 // of this process's registration; -1 before it is known
	lifetime    context.Context
	fetchers    fetchers
	proposals   proposals
	followers   followerSessions
	teller      teller
	chores      chores
	throttle    throttles
	markers     markerWriter

	handover struct {
		sync.Mutex
		closed bool
		queue  chan *Partition // partitions whose appenders have drained for others long enough; each at most once, see Partition.drain
	}

	cancel    context.CancelFunc
	tasks     sync.WaitGroup
	closeOnce sync.Once
	closeErr  error
}

// handoverQueue bounds the partitions waiting for the drainer; with a full queue an appender goes on itself.
const handoverQueue = 256

// Open starts a manager. It serves nothing before the metadata shows this incarnation of the broker as registered (M16)
// and the first round of opening logs is done: see [Manager.Ready].
func Open(cfg Config) (*Manager, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m := newManager(cfg)
	marks, err := readCheckpoint(cfg.FS, cfg.Dir.Path())
	if err != nil {
		m.logger.Warn("high watermark checkpoint ignored", "err", err) // L5: a hint
	}
	m.marks = marks
	if cfg.Registerer != nil {
		if err := cfg.Registerer.Register(m.metrics); err != nil {
			return nil, fmt.Errorf("register metrics of replication: %w", err)
		}
	}
	m.clock.init(bootTime)
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel, m.lifetime = cancel, ctx
	// All goroutines of the package start here and end in Close.
	m.tasks.Go(func() { m.reconcileLoop(ctx) })
	m.tasks.Go(func() { m.tickLoop(ctx) })
	m.tasks.Go(m.drainLoop)
	m.tasks.Go(func() { m.proposeLoop(ctx) })
	m.tasks.Go(func() { m.tellLoop(ctx.Done()) })
	m.tasks.Go(func() { m.choreLoop(ctx.Done()) })
	m.tasks.Go(func() { m.markerLoop(ctx) })
	return m, nil
}

// newManager makes a manager that runs nothing yet.
func newManager(cfg Config) *Manager {
	m := &Manager{
		cfg: cfg, logger: cfg.Logger.With("broker", cfg.BrokerID),
		retry: map[TopicIDPartition]struct{}{}, ready: make(chan struct{}), failed: make(chan error, 1), renewals: make(chan TopicIDPartition, 16),
	}
	m.clock.init(nil)
	m.brokerEpoch.Store(-1)
	m.version.changed = make(chan struct{})
	m.proposals.kick, m.teller.kick, m.chores.kick = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	m.markers.m, m.markers.kick = m, make(chan struct{}, 1)
	m.throttle.leader = throttle{leader: true, now: m.now}
	m.throttle.follower = throttle{now: m.now}
	m.handover.queue = make(chan *Partition, handoverQueue)
	m.table.Store(newTable())
	m.metrics = newMetrics(m)
	return m
}

// now returns the time on the monotonic clock.
func (m *Manager) now() Instant { return m.clock.now() }

// Ready waits until the metadata that shows this broker's registration has been acted upon: every partition it has to
// serve is open, or known to be offline.
func (m *Manager) Ready(ctx context.Context) error {
	select {
	case <-m.ready:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the partitions of broker %d: %w", m.cfg.BrokerID, context.Cause(ctx))
	}
}

// Await waits until the metadata of at least that image version has been acted upon, so that a topic just created can
// be produced to.
func (m *Manager) Await(ctx context.Context, version uint64) error {
	for {
		m.version.Lock()
		at, changed := m.version.at, m.version.changed
		m.version.Unlock()
		if at >= version {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for metadata version %d on broker %d: %w", version, m.cfg.BrokerID, context.Cause(ctx))
		}
	}
}

// Applied returns the version of the metadata image last acted upon.
func (m *Manager) Applied() uint64 {
	m.version.Lock()
	defer m.version.Unlock()
	return m.version.at
}

// Partition finds a partition of this broker by topic name. A partition that the metadata knows but this broker does
// not have, or not yet, is ErrNotLeader, never ErrUnknownTopicOrPartition: clients that hear the latter forget what
// they know (protocol.md trap 12).
func (m *Manager) Partition(topic string, partition int32) (*Partition, error) {
	p, err := m.table.Load().byName[topic].partition(partition)
	if p != nil || err != nil {
		return p, err
	}
	if t := m.cfg.Store.Image().Topic(topic); t == nil || partition < 0 || int(partition) >= len(t.Partitions) {
		return nil, fmt.Errorf("partition %s-%d: %w", topic, partition, ErrUnknownTopicOrPartition)
	}
	return nil, fmt.Errorf("partition %s-%d: %w", topic, partition, ErrNotLeader)
}

// PartitionByID finds a partition of this broker by topic id. An unknown id is ErrUnknownTopicID.
func (m *Manager) PartitionByID(id metadata.TopicID, partition int32) (*Partition, error) {
	p, err := m.table.Load().byID[id].partition(partition)
	if p != nil || err != nil {
		return p, err
	}
	switch t := m.cfg.Store.Image().TopicByID(id); {
	case t == nil:
		return nil, fmt.Errorf("partition %v-%d: %w", id, partition, ErrUnknownTopicID)
	case partition < 0 || int(partition) >= len(t.Partitions):
		return nil, fmt.Errorf("partition %v-%d: %w", id, partition, ErrUnknownTopicOrPartition)
	}
	return nil, fmt.Errorf("partition %v-%d: %w", id, partition, ErrNotLeader)
}

// Opening says of a partition that is not here, or not led here: whether the metadata wants this broker to lead it and
// that has yet to be acted upon, and which version of the image to Await. A client that is refused meanwhile waits much
// longer than that takes.
func (m *Manager) Opening(topic string, id metadata.TopicID, partition int32) (version uint64, opening bool) {
	img := m.cfg.Store.Image()
	t := img.Topic(topic)
	if t == nil {
		t = img.TopicByID(id)
	}
	if t == nil || partition < 0 || int(partition) >= len(t.Partitions) || t.Partitions[partition].Leader != m.cfg.BrokerID {
		return 0, false
	}
	return img.Version(), m.Applied() < img.Version()
}

// Partitions yields the open partitions of this broker, in no order.
func (m *Manager) Partitions() iter.Seq[*Partition] {
	return func(yield func(*Partition) bool) {
		for _, pl := range m.table.Load().byID {
			for _, p := range pl.partitions {
				if p != nil && !yield(p) {
					return
				}
			}
		}
	}
}

// storageFailed starts the end of the broker: the log directory is poisoned, so every partition stops answering and
// OnFailure is called (L2).
func (m *Manager) storageFailed(err error) {
	select {
	case m.failed <- err:
	default: // somebody said so before
	}
}

func (m *Manager) fail(err error) {
	m.failOnce.Do(func() {
		m.logger.Error("replication cannot go on", "err", err)
		for p := range m.Partitions() {
			p.fail(err)
		}
		m.cfg.OnFailure(err)
	})
}

// tickLoop drives the log directory and the high watermark checkpoint.
func (m *Manager) tickLoop(ctx context.Context) {
	ticker := time.NewTicker(m.cfg.TickInterval)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			m.tick(now)
			if now.Sub(last) >= m.cfg.CheckpointInterval {
				last = now
				if err := m.checkpoint(); err != nil {
					m.logger.Warn("high watermark checkpoint not written", "err", err)
				}
			}
		}
	}
}

func (m *Manager) tick(now time.Time) {
	m.cfg.Dir.Tick(now)
	if err := m.cfg.Dir.Failed(); err != nil {
		m.storageFailed(fmt.Errorf("log directory %s: %w: %w", m.cfg.Dir.Path(), ErrStorage, err))
		return
	}
	for p := range m.Partitions() {
		p.tick()
		if p.log.StartOffset() > p.seenStart.Load() {
			p.startMoved()
		}
		if err := p.log.Corrupt(); err != nil {
			if p.view.Load().role != RoleHalted {
				p.logger().Error("partition goes offline", "err", err)
				p.fail(p.corruptError(err))
			}
			m.mend(p)
		}
	}
}

// handOver gives a partition with waiting appends to the drainer; false if it cannot take it.
func (m *Manager) handOver(p *Partition) bool {
	m.handover.Lock()
	defer m.handover.Unlock()
	if m.handover.closed {
		return false
	}
	select {
	case m.handover.queue <- p:
		return true
	default:
		return false
	}
}

// drainLoop appends for partitions whose appenders have done so long enough. It goes round: a partition that still has
// appends waiting queues up again.
func (m *Manager) drainLoop() {
	for p := range m.handover.queue {
		p.drain()
	}
}

// Close stops serving: everything that waits is told ErrClosed, the high watermarks are written. The log directory
// stays open, it is the caller's to close next.
func (m *Manager) Close() error {
	m.closeOnce.Do(func() {
		m.cancel()
		m.fetchers.shut()
		m.Resume() // what a Drain held back; appended in vain at worst
		m.handover.Lock()
		m.handover.closed = true
		close(m.handover.queue)
		m.handover.Unlock()
		m.tasks.Wait()
		for p := range m.Partitions() {
			p.remove(ErrClosed)
		}
		if m.cfg.Dir.Failed() == nil {
			m.closeErr = m.checkpoint()
		}
		if m.cfg.Registerer != nil {
			m.cfg.Registerer.Unregister(m.metrics)
		}
	})
	return m.closeErr
}

// LogDir describes the log directory, for DescribeLogDirs.
type LogDir struct {
	Path string
	// TotalBytes and UsableBytes are those of the file system, -1 when it does not say.
	TotalBytes, UsableBytes int64
	// Err is set when the directory is poisoned.
	Err      error
	Replicas []LogDirReplica
}

// LogDirReplica describes one log of a directory.
type LogDirReplica struct {
	Topic     string
	TopicID   metadata.TopicID
	Partition int32
	// SizeBytes is the size of the segments.
	SizeBytes int64
	// OffsetLag is how far the log's end is behind the high watermark: 0 for a leader.
	OffsetLag int64
}

// LogDirs describes the log directories of this broker with the open partitions in them.
func (m *Manager) LogDirs() []LogDir {
	d := LogDir{Path: m.cfg.Dir.Path(), TotalBytes: -1, UsableBytes: -1}
	if err := m.cfg.Dir.Failed(); err != nil {
		d.Err = fmt.Errorf("log directory %s: %w: %w", d.Path, ErrStorage, err)
		return []LogDir{d}
	}
	if free, total, err := m.cfg.Dir.Usage(); err == nil {
		d.TotalBytes, d.UsableBytes = total, free
	}
	for p := range m.Partitions() {
		d.Replicas = append(d.Replicas, p.Describe())
	}
	return []LogDir{d}
}

// Describe returns the partition's share of its log directory.
func (p *Partition) Describe() LogDirReplica {
	hw := p.highWatermark.Load()
	return LogDirReplica{Topic: p.topic.name, TopicID: p.topic.id, Partition: p.partition, SizeBytes: p.log.SizeBytes(), OffsetLag: max(hw-p.log.EndOffset(), 0)}
}

var errSuperseded = errors.New("another process has registered under this broker id")
