package group

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/millrace/millrace/group/drive"
	"github.com/millrace/millrace/metadata"
)

// Store is what a Coordinator needs of *metadata.Store.
type Store interface {
	Image() *metadata.Image
	Watch() *metadata.Watcher
	ChangeGroup(change metadata.GroupChange, done func(revision uint64, err error))
	CommitOffsets(commit metadata.OffsetCommit, done func(entries []error, err error))
	CommitTransactionOffsets(commit metadata.TransactionOffsets, done func(entries []error, err error))
	DeleteOffsets(deletion metadata.OffsetDeletion, done func(err error))
}

// Config is what a Coordinator is made with.
type Config struct {
	Broker metadata.BrokerID
	// Incarnation is that of this process's registration: nothing is coordinated before the metadata shows it (M16).
	Incarnation [16]byte
	Store       Store
	// Leased reports whether the broker's lease towards the controller holds; without it nothing is answered. Nil: always.
	Leased func() bool
	// Settings returns the present settings; it is called for every join. Nil: the defaults.
	Settings func() Settings
	// Wall is the wall clock for time stamps; nil: time.Now.
	Wall   func() time.Time
	Logger *slog.Logger // nil: nothing is logged
}

// Coordinator coordinates the groups that the committed metadata gives to this broker. All methods may be called from any
// goroutine. Callbacks are called exactly once, from any goroutine, with no lock held, possibly before the method
// returns; they must not block.
type Coordinator struct {
	cfg     Config
	logger  *slog.Logger
	metrics *metrics
	started time.Time

	table  *drive.Table[*entry]
	timers *drive.Deadlines[*entry, Instant]
	past   histories
	life   *drive.Life
	topics topicViews
	// coordinatorEpoch is that of the metadata acted upon last; of the goroutine in Run.
	coordinatorEpoch int32
}

// entry is one group at work.
type entry struct {
	drive.Slot // of its deadline
	name       string
	mu         struct {
		sync.Mutex
		core *Core
		// gone: no longer in the table; who waited for the lock has to look again.
		gone bool
		// epoch is the coordinator epoch in which the core was loaded last, -1: never, or let go since.
		epoch int32
		// due is the deadline that the timers know, Never if none.
		due Instant
		// landed, if somebody waits for it, is closed once no change of the group is on its way.
		landed chan struct{}
	}
}

// New returns a Coordinator. It answers once Run is called and the metadata shows this broker's registration.
func New(cfg Config) (*Coordinator, error) {
	if cfg.Store == nil {
		return nil, errors.New("group: no metadata store")
	}
	if cfg.Leased == nil {
		cfg.Leased = func() bool { return true }
	}
	if cfg.Settings == nil {
		cfg.Settings = DefaultSettings
	}
	if cfg.Wall == nil {
		cfg.Wall = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Coordinator{cfg: cfg, logger: cfg.Logger, started: time.Now(), life: drive.NewLife(), timers: drive.NewDeadlines[*entry, Instant](), coordinatorEpoch: -1}
	c.table = drive.NewTable(newEntry)
	c.metrics = newMetrics(c)
	return c, nil
}

// Run takes over and lets go of groups as the metadata says, and ends sessions that were silent for too long, until ctx
// ends or Close is called. It runs one goroutine beside the caller's.
func (c *Coordinator) Run(ctx context.Context) error {
	c.life.Run(ctx, c.cfg.Store.Watch, c.follow, c.keepTime)
	return nil
}

// Close answers everything that waits with ErrNotCoordinator and waits until Run has returned. It may be called more than
// once.
func (c *Coordinator) Close() error {
	if c.life.Close() {
		c.each(func(e *entry) { c.with(e, nil) })
	}
	return nil
}

func (c *Coordinator) now() Instant { return Instant(time.Since(c.started)) }

func (c *Coordinator) time() Time {
	return Time{At: c.now(), Wall: c.cfg.Wall().UnixMilli()}
}

// mine reports whether this broker coordinates the group in an Image, and the coordinator epoch.
func (c *Coordinator) mine(im *metadata.Image, group string) (epoch int32, ok bool) {
	b := im.Broker(c.cfg.Broker)
	if c.life.Closed() || b == nil || b.Incarnation != c.cfg.Incarnation || im.FeatureLevel() < metadata.GroupsFeatureLevel {
		return 0, false // an earlier life of this broker coordinated there, if at all (M16)
	}
	id, epoch := im.Coordinator(metadata.GroupCoordinator, group)
	return epoch, id == c.cfg.Broker
}

// check says whether this broker may answer for a group, with the Image that says so.
func (c *Coordinator) check(group string) (*metadata.Image, error) {
	if group == "" {
		return nil, ErrInvalidGroup
	}
	im := c.cfg.Store.Image()
	if _, ok := c.mine(im, group); !ok || !c.cfg.Leased() {
		return nil, ErrNotCoordinator
	}
	return im, nil
}

// newEntry is what the table makes of a name.
func newEntry(name string) *entry {
	e := &entry{name: name}
	e.mu.core, e.mu.epoch, e.mu.due = NewCore(name), -1, Never
	return e
}

// lookup returns the entry of a group, with create a new one if there is none.
func (c *Coordinator) lookup(group string, create bool) *entry {
	if create {
		return c.table.GetOrCreate(group)
	}
	return c.table.Get(group)
}

// each calls fn with every entry; entries that come meanwhile may be left out.
func (c *Coordinator) each(fn func(*entry)) { c.table.Each(fn) }

// step gives an event to the core of a group, if this broker may speak for it. The error is why it may not, or that of an
// answer that belongs to the event itself.
func (c *Coordinator) step(group string, ev Event) error {
	if group == "" {
		return ErrInvalidGroup
	}
	if !c.cfg.Leased() {
		return ErrNotCoordinator
	}
	for {
		if err, ok := c.with(c.lookup(group, true), ev); ok {
			return err
		}
	}
}

// with brings an entry up to the present metadata and then, if this broker coordinates the group, gives the event to its
// core; a nil event only does the first. It reports false if the entry is gone.
func (c *Coordinator) with(e *entry, ev Event) (err error, ok bool) {
	e.mu.Lock()
	if e.mu.gone {
		e.mu.Unlock()
		return nil, false
	}
	list := actionLists.Get().(*[]Action)
	acts := *list
	// The Image is read under the lock: no entry ever goes by one that is older than what it has acted upon (I13).
	im := c.cfg.Store.Image()
	epoch, mine := c.mine(im, e.name)
	now := c.time()
	switch {
	case !mine:
		err = ErrNotCoordinator
		acts = e.mu.core.AppendStep(acts, now, &LetGo{Err: ErrNotCoordinator})
		e.mu.epoch = -1
	case epoch != e.mu.epoch:
		acts = e.mu.core.AppendStep(acts, now, c.loaded(im, e.name))
		e.mu.epoch = epoch
	}
	if mine && ev != nil {
		kept := len(acts)
		acts = e.mu.core.AppendStep(acts, now, ev)
		for i := kept; i < len(acts); i++ {
			if a := &acts[i]; a.Kind == ActionAnswer && a.Waiter == nil {
				err = a.Err
				continue
			}
			if kept != i {
				acts[kept] = acts[i]
			}
			kept++
		}
		clear(acts[kept:])
		acts = acts[:kept]
	}
	c.settleLocked(e)
	e.mu.Unlock()
	c.perform(e, acts)
	if clear(acts); cap(acts) <= maxListedActions {
		*list = acts[:0]
		actionLists.Put(list)
	}
	return err, true
}

// maxListedActions is how long a list may be to be used again: that of a generation of hundreds of members is left to the
// garbage collector.
const maxListedActions = 64

// actionLists hold the lists that steps are written to.
var actionLists = sync.Pool{New: func() any { return new([]Action) }}

func (c *Coordinator) loaded(im *metadata.Image, group string) *Loaded {
	return &Loaded{Group: im.Group(group), LastGeneration: im.LastGeneration(group), Resume: c.cfg.Settings().ResumeAfterFailure, Topics: c.topics.at(im)}
}

// settleLocked forgets an entry that has nothing to remember, and else sees to its next deadline.
func (c *Coordinator) settleLocked(e *entry) {
	if e.mu.landed != nil && !e.mu.core.Changing() {
		close(e.mu.landed)
		e.mu.landed = nil
	}
	if e.mu.core.Idle() {
		e.mu.gone = true
		c.table.Delete(e.name, e)
		c.timers.Remove(e)
		return
	}
	// A deadline that has moved away is found out when the old one comes: heartbeats do not touch the timers.
	if at := e.mu.core.Deadline(); at < e.mu.due {
		e.mu.due = at
		c.timers.Set(e, at)
	}
}

// perform carries out what a core has decided. It holds no lock.
func (c *Coordinator) perform(e *entry, acts []Action) {
	for i := range acts {
		switch a := &acts[i]; a.Kind {
		case ActionPropose:
			seq := a.Seq
			c.cfg.Store.ChangeGroup(a.Change, func(revision uint64, err error) { c.changed(e, seq, revision, err) })
		case ActionReload:
			c.reload(e)
		case ActionJoin:
			a.Waiter.(func(JoinResult))(a.Join)
		case ActionSync:
			a.Waiter.(func(SyncResult))(a.Sync)
		case ActionConsumer:
			a.Waiter.(func(ConsumerHeartbeatResult))(a.Consumer)
		case ActionLeave:
			a.Waiter.(func([]error, error))(a.Errs, a.Err)
		case ActionAnswer:
			a.Waiter.(func(error))(a.Err)
		case ActionRebalance:
			c.metrics.rebalanced(a.Reason)
			c.logger.Info("group rebalances", "group", e.name, "reason", string(a.Reason), "member", a.Member)
		case ActionGeneration:
			c.past.note(e.name, c.now(), a)
			c.logger.Info("group has a new generation", "group", e.name, "generation", a.Generation, "members", a.Members)
		case ActionCame, ActionWent, ActionRefused:
			c.past.note(e.name, c.now(), a)
		}
	}
}

// changed takes the outcome of a proposal. If the record has changed again since, whatever did so decides.
func (c *Coordinator) changed(e *entry, seq uint64, revision uint64, err error) {
	g := c.cfg.Store.Image().Group(e.name)
	if err == nil && g != nil && g.Revision != revision {
		c.reload(e)
		return
	}
	if err != nil && !errors.Is(err, metadata.ErrStale) {
		c.logger.Warn("group could not be changed", "group", e.name, "error", err)
	}
	c.with(e, &Changed{Seq: seq, Group: g, Err: err})
}

// reload gives a core the present record whatever epoch it was loaded in.
func (c *Coordinator) reload(e *entry) {
	e.mu.Lock()
	e.mu.epoch = -1
	e.mu.Unlock()
	c.with(e, nil)
}
