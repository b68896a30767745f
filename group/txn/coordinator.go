package txn

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/group/drive"
	"github.com/millrace/millrace/metadata"
)

// Store is what a Coordinator needs of *metadata.Store.
type Store interface {
	Image() *metadata.Image
	Watch() *metadata.Watcher
	ChangeTransaction(change metadata.TransactionChange, done func(revision uint64, err error))
	AddToTransaction(addition metadata.TransactionAddition, done func(err error))
}

// Config is what a Coordinator is made with.
type Config struct {
	Broker metadata.BrokerID
	// Incarnation is that of this process's registration: nothing is coordinated before the metadata shows it (M16).
	Incarnation [16]byte
	Store       Store
	// ProducerIDs returns a producer id that nobody has or had (P5). It may block until ctx ends.
	ProducerIDs func(ctx context.Context) (int64, error)
	// Leased reports whether the broker's lease towards the controller holds; without it nothing is answered. Nil: always.
	Leased func() bool
	// Settings returns the present settings; it is called for every request. Nil: the defaults.
	Settings func() Settings
	// Wall is the wall clock for time stamps; nil: time.Now.
	Wall   func() time.Time
	Logger *slog.Logger // nil: nothing is logged
}

// Coordinator coordinates the transactional ids that the committed metadata gives to this broker. All methods may be called
// from any goroutine. Callbacks are called exactly once, from any goroutine, with no lock held, possibly before the method
// returns; they must not block.
type Coordinator struct {
	cfg     Config
	logger  *slog.Logger
	metrics *metrics
	started time.Time

	table  *drive.Table[*entry]
	timers *drive.Deadlines[*entry, Instant]
	life   *drive.Life
	// followed is the coordinator epoch whose open transactions are all in hand: one that is seen for the first time in it
	// has just begun.
	followed atomic.Int32
	// seen is the metadata acted upon last; of the goroutine in Run.
	seen *metadata.Image
	// lifetime ends with Close; it bounds the search for producer ids.
	lifetime context.Context
	end      context.CancelFunc
}

// entry is one transactional id at work.
type entry struct {
	drive.Slot // of its deadline
	id         string
	mu         struct {
		sync.Mutex
		core *Core
		// gone: no longer in the table; who waited for the lock has to look again.
		gone bool
		// epoch is the coordinator epoch in which the core was loaded last, -1: never, or let go since.
		epoch int32
		// due is the deadline that the timers know, Never if none.
		due Instant
	}
}

// New returns a Coordinator. It answers once Run is called and the metadata shows this broker's registration.
func New(cfg Config) (*Coordinator, error) {
	if cfg.Store == nil || cfg.ProducerIDs == nil {
		return nil, errors.New("txn: Store and ProducerIDs are needed")
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
	c := &Coordinator{cfg: cfg, logger: cfg.Logger, started: time.Now(), life: drive.NewLife(), timers: drive.NewDeadlines[*entry, Instant]()}
	c.followed.Store(-1)
	c.lifetime, c.end = context.WithCancel(context.Background())
	c.table = drive.NewTable(newEntry)
	c.metrics = newMetrics(c)
	return c, nil
}

// Run takes over and lets go of transactional ids as the metadata says, ends transactions whose time is over and forgets
// ids that nobody uses, until ctx ends or Close is called. It runs one goroutine beside the caller's, and one for each
// producer id that is being fetched.
func (c *Coordinator) Run(ctx context.Context) error {
	c.life.Run(ctx, c.cfg.Store.Watch, c.follow, c.keepTime)
	return nil
}

// Close answers everything that waits with ErrNotCoordinator and waits until Run has returned. It may be called more than
// once.
func (c *Coordinator) Close() error {
	c.end()
	if c.life.Close() {
		c.each(func(e *entry) { c.with(e, nil) })
	}
	return nil
}

func (c *Coordinator) now() Instant { return Instant(time.Since(c.started)) }

func (c *Coordinator) time() Time {
	return Time{At: c.now(), Wall: c.cfg.Wall().UnixMilli()}
}

// registered reports whether the metadata shows this process's registration, in a cluster that has transactions. An earlier
// life of this broker coordinated before that, if at all (M16).
func (c *Coordinator) registered(im *metadata.Image) bool {
	b := im.Broker(c.cfg.Broker)
	return b != nil && b.Incarnation == c.cfg.Incarnation && im.FeatureLevel() >= metadata.TransactionsFeatureLevel && !c.life.Closed()
}

// mine reports whether this broker coordinates an id in an Image, and the coordinator epoch.
func (c *Coordinator) mine(im *metadata.Image, id string) (epoch int32, ok bool) {
	if !c.registered(im) {
		return 0, false
	}
	b, epoch := im.Coordinator(metadata.TransactionCoordinator, id)
	return epoch, b == c.cfg.Broker
}

// Coordinates reports whether this broker coordinates a transactional id, by what it knows.
func (c *Coordinator) Coordinates(id string) bool {
	_, err := c.check(id)
	return err == nil
}

// check says whether this broker may answer for an id, with the Image that says so.
func (c *Coordinator) check(id string) (*metadata.Image, error) {
	if id == "" {
		return nil, ErrInvalidRequest
	}
	im := c.cfg.Store.Image()
	if _, ok := c.mine(im, id); !ok || !c.cfg.Leased() {
		return nil, ErrNotCoordinator
	}
	return im, nil
}

// newEntry is what the table makes of a name.
func newEntry(id string) *entry {
	e := &entry{id: id}
	e.mu.core, e.mu.epoch, e.mu.due = NewCore(id), -1, Never
	return e
}

// lookup returns the entry of an id, with create a new one if there is none.
func (c *Coordinator) lookup(id string, create bool) *entry {
	if create {
		return c.table.GetOrCreate(id)
	}
	return c.table.Get(id)
}

// each calls fn with every entry; entries that come meanwhile may be left out.
func (c *Coordinator) each(fn func(*entry)) { c.table.Each(fn) }

// step gives an event to the core of an id.
func (c *Coordinator) step(id string, ev Event) {
	for !c.with(c.lookup(id, true), ev) {
		continue // the entry went away meanwhile
	}
}

// with brings an entry up to the present metadata and then gives the event to its core, which refuses it unless this broker
// coordinates the id; a nil event only does the first. It reports false if the entry is gone.
func (c *Coordinator) with(e *entry, ev Event) bool {
	e.mu.Lock()
	if e.mu.gone {
		e.mu.Unlock()
		return false
	}
	now := c.time()
	acts := c.presentLocked(e, now)
	if ev != nil {
		acts = append(acts, e.mu.core.Step(now, ev)...)
	}
	c.settleLocked(e)
	e.mu.Unlock()
	c.perform(e, acts)
	return true
}

// presentLocked brings an entry up to the present metadata. The Image is read under the lock: no entry ever goes by one that
// is older than what it has acted upon (I13).
func (c *Coordinator) presentLocked(e *entry, now Time) (acts []Action) {
	im := c.cfg.Store.Image()
	epoch, mine := c.mine(im, e.id)
	core := e.mu.core
	if !mine {
		e.mu.epoch = -1
		return append(acts, core.Step(now, &LetGo{Err: ErrNotCoordinator})...)
	}
	t := im.Transaction(e.id)
	if epoch == e.mu.epoch && t == core.Record() {
		return nil
	}
	taken := e.mu.epoch == -1 && c.followed.Load() != epoch
	e.mu.epoch = epoch
	return append(acts, core.Step(now, &Seen{Transaction: t, Taken: taken})...)
}

// settleLocked forgets an entry that has nothing to remember, and else sees to its next deadline.
func (c *Coordinator) settleLocked(e *entry) {
	if e.mu.core.Idle() {
		e.mu.gone = true
		c.table.Delete(e.id, e)
		c.timers.Remove(e)
		return
	}
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
			c.cfg.Store.ChangeTransaction(a.Change, func(_ uint64, err error) { c.with(e, &Changed{Seq: seq, Err: err}) })
		case ActionAllocate:
			seq := a.Seq
			c.allocate(func(id int64, err error) { c.with(e, &Allocated{Seq: seq, ProducerID: id, Err: err}) })
		case ActionAdd:
			c.addTo(a.Add, a.Addition)
		case ActionInit:
			a.Waiter.(func(InitResult))(a.Init)
		case ActionEnd:
			a.Waiter.(func(EndResult))(a.End)
		case ActionAnswer:
			a.Waiter.(func(error))(a.Err)
		case ActionEnded:
			c.metrics.ended(a.Reason)
			if a.Reason != ReasonCommit && a.Reason != ReasonAbort {
				c.logger.Warn("transaction aborted", "transactionalId", e.id, "reason", string(a.Reason))
			}
		case ActionReload:
			c.reload(e)
		}
	}
}

// addTo proposes an addition. One that met the markers of the transaction before goes back to the core to wait.
func (c *Coordinator) addTo(ev *Add, addition metadata.TransactionAddition) {
	c.cfg.Store.AddToTransaction(addition, func(err error) {
		if errors.Is(err, metadata.ErrConcurrentTransactions) {
			if ev.attempts++; ev.attempts <= attemptsMax {
				c.step(addition.ID, ev)
				return
			}
		}
		ev.Waiter.(func(error))(fromMetadata(err))
	})
}

// allocateTimeout bounds the search for a producer id: the request that needs it waits.
const allocateTimeout = 5 * time.Second

func (c *Coordinator) allocate(done func(int64, error)) {
	go func() {
		ctx, cancel := context.WithTimeout(c.lifetime, allocateTimeout)
		defer cancel()
		id, err := c.cfg.ProducerIDs(ctx)
		if err != nil && ctx.Err() != nil {
			err = ErrUnavailable
		}
		done(id, err)
	}()
}

// reload gives a core the present record whatever epoch it was loaded in.
func (c *Coordinator) reload(e *entry) {
	e.mu.Lock()
	e.mu.epoch = -1
	e.mu.Unlock()
	c.with(e, nil)
}
