package metadata

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/millrace/millrace/metadata/raftlog"
)

// Store is this broker's copy of the cluster's metadata and its way to change it. All methods may be called from any
// goroutine.
type Store struct {
	cfg    Config
	logger *slog.Logger

	db      *database
	entries *raftlog.Log
	fsm     *fsm
	raft    *raft.Raft
	// halt stops Raft without waiting for it; the first call returns the future that waits. It is set once Raft runs, and
	// is apart from raft because a failure may come before Open has that.
	halt      atomic.Pointer[func() raft.Future]
	transport raft.Transport
	elect     *electing  // around the transport
	witnesses *witnesses // around the transport
	disk      *diskWatch
	diskKick  chan struct{} // wakes followLeadership when the disk hangs or has come back
	pilot     *pilot
	changing  sync.Mutex    // held while the Raft configuration is changed
	moving    atomic.Bool   // leaderships are being handed over to preferred leaders
	kick      chan struct{} // wakes keepQuorum
	proofs    chan struct{} // a token for each proveLead under way
	proposer  *proposer
	chaining  sync.Mutex // held while the parts of a large command are queued
	outbox    *outbox
	landings  landings
	barriers  barriers
	logs      raft.LogStore // that Raft writes to
	metrics   *metrics
	ballast   *ballast
	full      atomic.Bool // the disk was full, and the ballast could not be taken since

	// settledGroups is that of SettledGroups, nil before.
	settledGroups atomic.Pointer[func(group string) bool]

	image   atomic.Pointer[Image]
	watch   watchers
	lead    atomic.Pointer[lead] // nil = not the controller
	stop    chan struct{}        // closed first by Close
	running sync.WaitGroup

	ready struct {
		sync.Once
		c chan struct{} // closed once Ready may return
		// err is set before c is closed when this Store can never be ready.
		err error
	}
	failed struct {
		sync.Once
		c   chan struct{} // closed after err is set
		err error
	}
	// registered is the broker epoch that RegisterBroker returned to this process last, 0 before.
	registered atomic.Int64
	// oldController is the controller that said last that it does not know a binaryForm; nil: none has.
	oldController atomic.Pointer[oldController]
	former        BrokerID   // the controller before; of followLeadership
	allocating    sync.Mutex // held during AllocateProducerIDs
	// lifetime ends when Close begins; it bounds what this Store does of its own.
	lifetime context.Context
	end      context.CancelFunc

	// suspicions are those that no controller has heard yet, by broker; wake says that there is a new one.
	suspicions struct {
		sync.Mutex
		m    map[BrokerID]suspicion
		wake chan struct{}
	}
	balancer balancer
	closing  sync.Once
	closed   error

	// publishing orders the two sources of an Image: applied entries and a changed controller.
	publishing struct {
		sync.Mutex
		st         *state
		index      uint64
		controller BrokerID
	}
	random struct {
		sync.Mutex
		*rand.Rand
	}
}

// Open opens or creates the metadata in cfg.Dir and starts Raft. It returns before a leader is known: see Ready.
//
// Errors match ErrCorrupt when the directory holds data that can't be trusted; such a directory is left as it is.
func Open(cfg Config) (_ *Store, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Store{
		cfg:     cfg,
		logger:  cfg.Logger,
		metrics: newMetrics(),
		ballast: newBallast(cfg.Dir, cfg.BallastBytes),
		stop:    make(chan struct{}),
		kick:    make(chan struct{}, 1),
		proofs:  make(chan struct{}, maxProofs),
	}
	s.lifetime, s.end = context.WithCancel(context.Background())
	s.former = NoBroker
	s.suspicions.m, s.suspicions.wake = make(map[BrokerID]suspicion), make(chan struct{}, 1)
	s.balancer.now = time.Now
	s.landings.wake = make(chan struct{}, 1)
	s.barriers.wake = make(chan struct{}, 1)
	s.ready.c = make(chan struct{})
	s.failed.c = make(chan struct{})
	s.random.Rand = cfg.Rand
	if s.random.Rand == nil {
		s.random.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	var opened []io.Closer // closed in reverse if a later step fails
	defer func() {
		if err != nil {
			for i := len(opened) - 1; i >= 0; i-- {
				opened[i].Close()
			}
		}
	}()

	inner := cfg.Transport
	if inner == nil {
		inner = newLoopback(raft.ServerAddress("local"))
	}
	s.elect = newElecting(inner)
	s.disk, s.diskKick = &diskWatch{changed: s.diskChanged}, make(chan struct{}, 1)
	s.witnesses = newWitnesses(&silenced{cutting{s.elect}, s.disk})
	announcer := newAnnouncer(s.witnesses)
	awaiting := newAwaiting(announcer, s.stop)
	s.transport = awaiting
	opened = append(opened, s.elect)

	if s.db, err = cfg.openDatabase(); err != nil {
		return nil, err
	}
	opened = append(opened, s.db)
	snaps, err := openSnapshots(cfg.Dir, cfg.Logger)
	if err != nil {
		return nil, err
	}
	if s.entries, err = cfg.openEntries(s.db); err != nil {
		return nil, err
	}
	opened = append(opened, s.entries)
	tail, err := verifyRaft(s.entries, summedStable{s.db}, snaps, cfg.Founded)
	if err != nil {
		return nil, cfg.damaged(fmt.Sprintf("the metadata log in %s is damaged", cfg.Dir), err.Error())
	}
	logs, stable := s.guardedStores(snaps)
	s.logs = logs
	found, err := recoverState(&cfg, snaps, logs)
	if err != nil {
		return nil, err
	}
	if err := dropReplacedAtStart(s.entries, found.from, tail); err != nil {
		return nil, fmt.Errorf("remove raft entries in %s that a received snapshot replaces: %w", cfg.Dir, err)
	}
	s.fsm = &fsm{st: found.st, index: found.index, published: s.publish, persisted: s.metrics.snapshotted, restored: func(index uint64) { s.restored(snaps, index) }, failure: s.fail, committed: announcer.committed, hurry: s.stop}
	s.publishing.controller = NoBroker
	s.publish(found.st, found.index)
	s.noteSnapshots(snaps)

	rc := cfg.raftConfig()
	if found.empty && !cfg.Bootstrap && cfg.Transport == nil {
		return nil, &Error{
			Kind: ErrCorrupt,
			What: fmt.Sprintf("there is no metadata in %s", cfg.Dir),
			Why:  "the broker's log directory has been used before, so its metadata existed and is gone",
			Fix:  "put the folder back from a backup; starting without it would make every topic unknown",
		}
	}
	if found.empty && cfg.Bootstrap {
		if err := bootstrap(rc, logs, stable, snaps, s.transport, cfg.BootstrapServers, cfg.QuorumSize); err != nil {
			return nil, fmt.Errorf("bootstrap metadata in %s: %w", cfg.Dir, err)
		}
	}
	self, err := s.checkServer(rc, logs, snaps, stable)
	if err != nil {
		return nil, err
	}
	if s.raft, err = raft.NewRaft(rc, s.fsm, logs, stable, snaps, s.transport); err != nil {
		return nil, fmt.Errorf("start raft in %s: %w", cfg.Dir, err)
	}
	awaiting.raft.Store(s.raft)
	halt := sync.OnceValue(s.raft.Shutdown)
	s.halt.Store(&halt)
	opened = append(opened, closeFunc(func() error { return halt().Error() }))
	select {
	case <-s.failed.c: // before halt was there
		return nil, fmt.Errorf("%w: %w", ErrFailed, s.failed.err)
	default:
	}
	if self == aloneInQuorum {
		s.Elect()
	}
	if err := s.metrics.register(cfg.Registerer, s.raft, s.rebalance); err != nil {
		return nil, fmt.Errorf("register metrics of metadata: %w", err)
	}
	s.proposer = newProposer(s.raft, s.metrics)
	s.outbox = newOutbox(s)
	s.pilot = newPilot(s)
	s.running.Go(s.proposer.gather)
	s.running.Go(s.proposer.settle)
	s.outbox.start()
	s.running.Go(s.land)
	s.running.Go(s.askBarriers)
	s.running.Go(s.expire)
	s.running.Go(s.followLeadership)
	s.running.Go(s.tellSuspicions)
	s.running.Go(s.control)
	if cfg.Balance {
		s.running.Go(s.balance)
	}
	s.running.Go(s.keepQuorum)
	return s, nil
}

type closeFunc func() error

func (f closeFunc) Close() error { return f() }

// openSnapshots opens the folder of the snapshots.
func openSnapshots(dir string, logger *slog.Logger) (raft.SnapshotStore, error) {
	snaps, err := raft.NewFileSnapshotStoreWithLogger(dir, retainedSnapshots, newRaftLogger(logger))
	if err != nil {
		return nil, fmt.Errorf("open metadata snapshots in %s: %w", dir, err)
	}
	return summedSnapshots{snaps, filepath.Join(dir, snapshotsDir)}, nil
}

// guardedStores stacks what Raft writes to: cache, guard, file.
func (s *Store) guardedStores(snaps raft.SnapshotStore) (raft.LogStore, raft.StableStore) {
	g := &guard{failure: s.fail, ballast: s.ballast, noSpace: s.noSpace, disk: s.disk, hold: s.cfg.holdWrites}
	var file raft.LogStore = s.entries
	if s.cfg.wrapLogs != nil {
		file = s.cfg.wrapLogs(file)
	}
	logs := &logStore{next: file, guard: g, floor: func() (uint64, error) { return olderSnapshot(snaps) }}
	return newLogCache(logs), &stableStore{next: summedStable{s.db}, guard: g}
}

// olderSnapshot returns the Raft index of the older retained snapshot, 0 while there is none.
func olderSnapshot(snaps raft.SnapshotStore) (uint64, error) {
	metas, err := snaps.List() // newest first
	if err != nil || len(metas) < retainedSnapshots {
		return 0, err
	}
	return metas[retainedSnapshots-1].Index, nil
}

// bootstrap makes the servers the voters of a new cluster, this server alone without any. A bootstrap that was cut off
// after its first write, the term, is taken up again.
func bootstrap(rc *raft.Config, logs raft.LogStore, stable raft.StableStore, snaps raft.SnapshotStore, t raft.Transport, servers []Server, quorumSize int) error {
	first := raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: rc.LocalID, Address: t.LocalAddr()}}}
	if len(servers) > 0 {
		servers = slices.SortedFunc(slices.Values(servers), func(a, b Server) int { return cmp.Compare(a.ID, b.ID) })
		own := slices.IndexFunc(servers, func(server Server) bool { return server.raft() == rc.LocalID })
		if own < 0 {
			return fmt.Errorf("raft server %s is not one of the cluster's", rc.LocalID)
		}
		self := servers[own] // it has the only log, so it votes
		servers = slices.Insert(slices.Delete(servers, own, own+1), 0, self)
		first.Servers = nil
		for i, server := range servers {
			suffrage := raft.Voter
			if i >= quorumSize {
				suffrage = raft.Nonvoter
			}
			first.Servers = append(first.Servers, raft.Server{Suffrage: suffrage, ID: server.raft(), Address: raft.ServerAddress(server.Address)})
		}
	}
	err := raft.BootstrapCluster(rc, logs, stable, snaps, t, first)
	if !errors.Is(err, raft.ErrCantBootstrap) {
		return err
	}
	if last, err := logs.LastIndex(); err != nil || last > 0 {
		return errors.Join(err, raft.ErrCantBootstrap)
	}
	return logs.StoreLog(&raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(first)})
}

// place is what the Raft configuration on disk says of this server.
type place uint8

const (
	notInQuorum   place = iota // waits to be added, or was removed
	oneOfQuorum                // with others
	aloneInQuorum              // the only voter
)

// serverKey is where the stable store has the id of the server it was made for.
const serverKey = "millrace-server"

// checkServer makes sure, before Raft starts, that its files are this server's own, and that no other process is it.
func (s *Store) checkServer(rc *raft.Config, logs raft.LogStore, snaps raft.SnapshotStore, stable raft.StableStore) (place, error) {
	config, err := latestConfiguration(logs, snaps)
	if err != nil {
		return 0, fmt.Errorf("read the raft configuration in %s: %w", s.cfg.Dir, err)
	}
	owner, err := stable.Get([]byte(serverKey))
	if err != nil && !isNotFound(err) {
		return 0, err
	}
	at := slices.IndexFunc(config.Servers, func(server raft.Server) bool { return server.ID == rc.LocalID })
	switch {
	case len(owner) > 0 && string(owner) != string(rc.LocalID):
		return 0, s.foreign(string(owner), rc.LocalID)
	case len(owner) == 0 && at < 0 && len(config.Servers) > 0:
		return 0, s.foreign(string(config.Servers[0].ID), rc.LocalID)
	case len(owner) == 0:
		if err := stable.Set([]byte(serverKey), []byte(rc.LocalID)); err != nil {
			return 0, err
		}
	}
	if at < 0 {
		return notInQuorum, nil
	}
	if from := config.Servers[at].Address; from != s.transport.LocalAddr() && s.cfg.Moved != nil {
		if err := s.cfg.Moved(string(from)); err != nil {
			return 0, err
		}
	}
	voters := 0
	for _, server := range config.Servers {
		if server.Suffrage == raft.Voter {
			voters++
		}
	}
	if voters == 1 && config.Servers[at].Suffrage == raft.Voter {
		return aloneInQuorum, nil
	}
	return oneOfQuorum, nil
}

func (s *Store) foreign(owner string, self raft.ServerID) error {
	return &Error{
		Kind: ErrClusterMismatch,
		What: fmt.Sprintf("the metadata in %s belongs to raft server %s, this is %s", s.cfg.Dir, owner, self),
		Why:  "the folder was copied from another broker, or the broker's log directory was replaced and its metadata was not",
		Fix:  "start it with the log directory it was made with; a broker whose disk was lost joins anew with an empty directory",
	}
}

// latestConfiguration returns the Raft configuration that Raft will start with: the last in the log, else the snapshot's.
func latestConfiguration(logs raft.LogStore, snaps raft.SnapshotStore) (raft.Configuration, error) {
	var config raft.Configuration
	metas, err := snaps.List() // newest first
	if err != nil {
		return config, err
	}
	var from uint64
	if len(metas) > 0 {
		config, from = metas[0].Configuration, metas[0].Index
	}
	first, err := logs.FirstIndex()
	if err != nil {
		return config, err
	}
	last, err := logs.LastIndex()
	if err != nil {
		return config, err
	}
	var entry raft.Log
	for i := last; i > 0 && i >= max(first, from+1); i-- {
		if err := logs.GetLog(i, &entry); err != nil {
			return config, err
		}
		if entry.Type == raft.LogConfiguration {
			return raft.DecodeConfiguration(entry.Data), nil
		}
	}
	return config, nil
}

// Elect holds an election now instead of after the election timeout. The broker that bootstraps a cluster calls it when
// the others have opened their Store; a broker alone does it by itself.
func (s *Store) Elect() { s.elect.now() }

// Close stops Raft and closes the files. Proposals under way end with ErrTimeout or ErrClosed. It may be called more
// than once.
func (s *Store) Close() error {
	s.closing.Do(func() {
		close(s.stop)
		s.dropLead()
		s.end()
		close(s.proposer.stop)
		halted := (*s.halt.Load())()
		// The transport first: a message to or from a broker that stands still may be under way for minutes, if it is a
		// snapshot, and Raft waits for it.
		err := s.elect.Close()
		err = errors.Join(halted.Error(), err)
		s.running.Wait()
		s.metrics.close()
		s.closed = errors.Join(err, s.entries.Close(), s.db.Close())
	})
	return s.closed
}

// Ready waits until a leader is known and everything committed before is applied here, and, at the leader, until the
// cluster has its id. It returns the reason why that can never happen, or ctx's error.
func (s *Store) Ready(ctx context.Context) error {
	select {
	case <-s.failed.c:
		return fmt.Errorf("%w: %w", ErrFailed, s.failed.err)
	case <-s.stop:
		return ErrClosed
	default:
	}
	select {
	case <-s.ready.c:
		return s.ready.err
	case <-s.failed.c:
		return fmt.Errorf("%w: %w", ErrFailed, s.failed.err)
	case <-s.stop:
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("wait for the metadata quorum: %w", context.Cause(ctx))
	}
}

func (s *Store) setReady(err error) {
	s.ready.Do(func() {
		s.ready.err = err
		close(s.ready.c)
	})
}

// fail takes the first failure, after which this broker may not acknowledge or apply anything more. Raft is stopped here
// and not only with the process: it would go on with elections, and panic when it can't write its term.
func (s *Store) fail(err error) {
	s.failed.Do(func() {
		s.failed.err = err
		close(s.failed.c)
		s.dropLead()
		if halt := s.halt.Load(); halt != nil {
			(*halt)()
		}
		s.logger.Error("metadata failed, the process must stop", "error", err)
		if s.cfg.OnFailure == nil {
			panic(err)
		}
		s.cfg.OnFailure(err)
	})
}

// noSpace is told that the disk was full and the ballast had to go.
func (s *Store) noSpace() {
	s.full.Store(true)
	s.logger.Error("disk full: the metadata log uses its ballast, nothing can be created until there is space again", "dir", s.cfg.Dir)
}

// Image returns the present Image, never nil.
func (s *Store) Image() *Image { return s.image.Load() }

// Watch opens a Watcher.
func (s *Store) Watch() *Watcher { return s.watch.add() }

// publish makes an applied state the present Image. The FSM calls it, in the order of the log.
func (s *Store) publish(st *state, index uint64) {
	s.publishing.Lock()
	s.publishing.st, s.publishing.index = st, index
	s.publishLocked()
	s.publishing.Unlock()
	s.watch.signal()
}

func (s *Store) publishController(id BrokerID) {
	s.publishing.Lock()
	changed := s.publishing.controller != id
	if changed {
		s.publishing.controller = id
		s.publishLocked()
	}
	s.publishing.Unlock()
	if changed {
		s.watch.signal()
	}
}

func (s *Store) publishLocked() {
	p := &s.publishing
	s.image.Store(&Image{version: p.index, controller: p.controller, st: p.st})
}

// restored is told that this broker had fallen behind the controller's log and was sent a snapshot.
func (s *Store) restored(snaps raft.SnapshotStore, index uint64) {
	s.replacedBy(snaps)
	s.logger.Info("metadata snapshot received, for this broker was behind the log", "index", index, "offsets", s.Image().OffsetCount())
}

// noteSnapshots tells the metrics when the newest snapshot was made; its id ends with the time in milliseconds.
func (s *Store) noteSnapshots(snaps raft.SnapshotStore) {
	metas, err := snaps.List()
	if err != nil || len(metas) == 0 {
		return
	}
	var term, index, ms int64
	if _, err := fmt.Sscanf(metas[0].ID, "%d-%d-%d", &term, &index, &ms); err == nil {
		s.metrics.snapshot.Store(ms * int64(time.Millisecond))
	}
}

// newID makes a random id of 16 bytes: of a topic, a request or a cluster.
func (s *Store) newID() (id [16]byte) {
	s.random.Lock()
	defer s.random.Unlock()
	for id == ([16]byte{}) { // zero means "none"
		binary.LittleEndian.PutUint64(id[:8], s.random.Uint64())
		binary.LittleEndian.PutUint64(id[8:], s.random.Uint64())
	}
	return id
}

func (s *Store) newClusterID() string {
	id := s.newID()
	return "millrace-" + base64.RawURLEncoding.EncodeToString(id[:])
}
