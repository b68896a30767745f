package metadata

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

const (
	databaseFile = "raft.db"
	// lockWait bounds how long Open waits for another process to let go of the directory.
	lockWait = time.Second
)

// Store is this broker's copy of the cluster's metadata and its way to change it. All methods may be called from any
// goroutine.
type Store struct {
	cfg    Config
	logger *slog.Logger

	db   *raftboltdb.BoltStore
	fsm  *fsm
	raft *raft.Raft
	// halt stops Raft without waiting for it; the first call returns the future that waits. It is set once Raft runs, and
	// is apart from raft because a failure may come before Open has that.
	halt      atomic.Pointer[func() raft.Future]
	transport raft.Transport
	proposer  *proposer
	metrics   *metrics
	ballast   *ballast
	full      atomic.Bool // the disk was full, and the ballast could not be taken since

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
	allocating sync.Mutex // held during AllocateProducerIDs
	closing    sync.Once
	closed     error

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
	}
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

	if s.db, err = openDatabase(cfg.Dir); err != nil {
		return nil, err
	}
	opened = append(opened, s.db)
	snaps, err := raft.NewFileSnapshotStoreWithLogger(cfg.Dir, retainedSnapshots, newRaftLogger(cfg.Logger))
	if err != nil {
		return nil, fmt.Errorf("open metadata snapshots in %s: %w", cfg.Dir, err)
	}
	logs, stable := s.guardedStores(snaps)
	found, err := recoverState(cfg.Dir, snaps, logs, cfg.Logger)
	if err != nil {
		return nil, err
	}
	s.fsm = &fsm{st: found.st, index: found.index, published: s.publish, persisted: s.metrics.snapshotted, failure: s.fail}
	s.publishing.controller = NoBroker
	s.publish(found.st, found.index)
	s.noteSnapshots(snaps)

	s.transport = cfg.Transport
	if s.transport == nil {
		s.transport = newLoopback(raft.ServerAddress("local"))
	}
	if c, ok := s.transport.(io.Closer); ok {
		opened = append(opened, c)
	}
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
		if err := bootstrap(rc, logs, stable, snaps, s.transport); err != nil {
			return nil, fmt.Errorf("bootstrap metadata in %s: %w", cfg.Dir, err)
		}
	}
	if s.raft, err = raft.NewRaft(rc, s.fsm, logs, stable, snaps, s.transport); err != nil {
		return nil, fmt.Errorf("start raft in %s: %w", cfg.Dir, err)
	}
	halt := sync.OnceValue(s.raft.Shutdown)
	s.halt.Store(&halt)
	opened = append(opened, closeFunc(func() error { return halt().Error() }))
	select {
	case <-s.failed.c: // before halt was there
		return nil, fmt.Errorf("%w: %w", ErrFailed, s.failed.err)
	default:
	}
	if err := s.checkServer(); err != nil {
		return nil, err
	}
	if err := s.metrics.register(cfg.Registerer, s.raft); err != nil {
		return nil, fmt.Errorf("register metrics of metadata: %w", err)
	}
	s.proposer = newProposer(s.raft, s.metrics)
	s.running.Go(s.proposer.gather)
	s.running.Go(s.proposer.settle)
	s.running.Go(s.followLeadership)
	return s, nil
}

type closeFunc func() error

func (f closeFunc) Close() error { return f() }

// openDatabase opens raft.db. A damaged file can make bbolt panic while it reads the first pages; that too is an error
// here, not a crash.
func openDatabase(dir string) (db *raftboltdb.BoltStore, err error) {
	path := filepath.Join(dir, databaseFile)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create metadata directory %s: %w", dir, err)
	}
	defer func() {
		if p := recover(); p != nil {
			err = damagedDatabase(path, fmt.Errorf("%v", p))
		}
	}()
	db, err = raftboltdb.New(raftboltdb.Options{
		Path:        path,
		BoltOptions: &bbolt.Options{Timeout: lockWait, FreelistType: bbolt.FreelistMapType},
	})
	switch {
	case err == nil:
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, fmt.Errorf("open %s: %w", path, &Error{
			Kind: ErrInvalidRequest,
			What: "another process is using this metadata directory",
			Why:  "its lock was not released within " + lockWait.String(),
			Fix:  "stop the other broker, or give this one another data directory",
		})
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum), errors.Is(err, bolterrors.ErrVersionMismatch):
		return nil, damagedDatabase(path, err)
	default:
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	// The file is synced by its own writes; its name, and that of its folder, are not (L3).
	if err := errors.Join(syncDir(dir), syncDir(filepath.Dir(dir))); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

func damagedDatabase(path string, err error) error {
	return &Error{
		Kind: ErrCorrupt,
		What: fmt.Sprintf("the metadata log %s is damaged", path),
		Why:  err.Error(),
		Fix:  "put the folder back from a backup, or move it away and let this broker join the others again; it is never treated as empty",
	}
}

// guardedStores stacks what Raft writes to: cache, guard, file.
func (s *Store) guardedStores(snaps raft.SnapshotStore) (raft.LogStore, raft.StableStore) {
	g := &guard{failure: s.fail, ballast: s.ballast, noSpace: s.noSpace}
	var file raft.LogStore = s.db
	if s.cfg.wrapLogs != nil {
		file = s.cfg.wrapLogs(file)
	}
	logs := &logStore{next: file, guard: g, floor: func() (uint64, error) { return olderSnapshot(snaps) }}
	return newLogCache(logs), &stableStore{next: s.db, guard: g}
}

// olderSnapshot returns the Raft index of the older retained snapshot, 0 while there is none.
func olderSnapshot(snaps raft.SnapshotStore) (uint64, error) {
	metas, err := snaps.List() // newest first
	if err != nil || len(metas) < retainedSnapshots {
		return 0, err
	}
	return metas[retainedSnapshots-1].Index, nil
}

// bootstrap makes this server the only voter of a new cluster. A bootstrap that was cut off after its first write, the
// term, is taken up again.
func bootstrap(rc *raft.Config, logs raft.LogStore, stable raft.StableStore, snaps raft.SnapshotStore, t raft.Transport) error {
	alone := raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: rc.LocalID, Address: t.LocalAddr()}}}
	err := raft.BootstrapCluster(rc, logs, stable, snaps, t, alone)
	if !errors.Is(err, raft.ErrCantBootstrap) {
		return err
	}
	if last, err := logs.LastIndex(); err != nil || last > 0 {
		return errors.Join(err, raft.ErrCantBootstrap)
	}
	return logs.StoreLog(&raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(alone)})
}

// checkServer makes sure that the Raft log is this server's own, and, if it is alone in it, has it elected at once.
func (s *Store) checkServer() error {
	f := s.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return fmt.Errorf("read the raft configuration: %w", err)
	}
	servers := f.Configuration().Servers
	if len(servers) == 0 {
		return nil // waits to be added to a cluster
	}
	self := serverID(s.cfg.NodeID, s.cfg.DirectoryID)
	for _, server := range servers {
		if server.ID != self {
			continue
		}
		if l, ok := s.transport.(*loopback); ok && len(servers) == 1 {
			l.electNow()
		}
		return nil
	}
	return &Error{
		Kind: ErrClusterMismatch,
		What: fmt.Sprintf("the metadata in %s belongs to raft server %s, this is %s", s.cfg.Dir, servers[0].ID, self),
		Why:  "the folder was copied from another broker, or the broker's log directory was replaced and its metadata was not",
		Fix:  "start it with the log directory it was made with; a broker whose disk was lost joins anew with an empty directory",
	}
}

// Close stops Raft and closes the files. Proposals under way end with ErrTimeout or ErrClosed. It may be called more
// than once.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.lead.Store(nil)
		close(s.stop)
		close(s.proposer.stop)
		err := (*s.halt.Load())().Error() // closes the transport too, if it can be closed
		s.running.Wait()
		s.metrics.close()
		s.closed = errors.Join(err, s.db.Close())
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
		s.lead.Store(nil)
		s.failed.err = err
		close(s.failed.c)
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
