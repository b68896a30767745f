package group

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/metadata"
)

// Store is what a Coordinator needs of *metadata.Store.
type Store interface {
	Image() *metadata.Image
	Watch() *metadata.Watcher
}

// Settings are the parts of the broker's config that may change live.
type Settings struct {
	MinSessionTimeout, MaxSessionTimeout time.Duration // bounds of classic members' session timeouts, inclusive
	InitialRebalanceDelay                time.Duration // how long an empty group waits for further members
	MaxSize                              int           // most members of a group
	OffsetMetadataMaxBytes               int           // largest text stored with an offset
	// ResumeAfterFailure is millrace.group.failover=resume: a group whose coordinator died goes on in its generation.
	ResumeAfterFailure bool
}

// DefaultSettings are those of a broker that says nothing.
func DefaultSettings() Settings {
	return Settings{
		MinSessionTimeout: 6 * time.Second, MaxSessionTimeout: 30 * time.Minute,
		InitialRebalanceDelay: 3 * time.Second, MaxSize: 1<<31 - 1, OffsetMetadataMaxBytes: 4096,
	}
}

// Config is what a Coordinator is made with.
type Config struct {
	Broker metadata.BrokerID
	// Incarnation is that of this process's registration: nothing is coordinated before the metadata shows it (M16).
	Incarnation [16]byte
	Store       Store
	// Leased reports whether the broker's lease towards the controller holds; without it nothing is answered. Nil: always.
	Leased func() bool
	// Settings returns the present settings; it is called often and must be cheap. Nil: the defaults.
	Settings func() Settings
	// Wall is the wall clock for time stamps; nil: time.Now.
	Wall   func() time.Time
	Logger *slog.Logger // nil: nothing is logged
}

// Coordinator coordinates the groups that the committed metadata gives to this broker. All methods may be called from any
// goroutine. Callbacks are called exactly once, from any goroutine, with no lock held, possibly before the method
// returns; they must not block.
type Coordinator struct{ cfg Config }

// New returns a Coordinator that coordinates nothing until Run is called.
func New(cfg Config) (*Coordinator, error) { return &Coordinator{cfg: cfg}, nil }

var errNotYet = errors.New("not built yet")

// Run coordinates until ctx ends or Close is called.
func (c *Coordinator) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Close answers everything that waits with ErrNotCoordinator and ends Run.
func (c *Coordinator) Close() error { return nil }

// Collector returns the metrics of this Coordinator.
func (c *Coordinator) Collector() prometheus.Collector { return prometheus.NewRegistry() }

// Join is JoinGroup; it may wait for minutes.
func (c *Coordinator) Join(r JoinRequest, done func(JoinResult)) {
	done(JoinResult{Err: errNotYet, Generation: -1})
}

// Sync is SyncGroup; it may wait for minutes.
func (c *Coordinator) Sync(r SyncRequest, done func(SyncResult)) { done(SyncResult{Err: errNotYet}) }

// Heartbeat is Heartbeat.
func (c *Coordinator) Heartbeat(r HeartbeatRequest) error { return errNotYet }

// Leave is LeaveGroup: one error or nil for each member, or an error for all.
func (c *Coordinator) Leave(r LeaveRequest, done func([]error, error)) { done(nil, errNotYet) }

// Commit is OffsetCommit: one error or nil for each offset, or an error for all. Offsets that are acknowledged are
// committed, survive any failover and are seen by every later Fetch at whoever coordinates then.
func (c *Coordinator) Commit(r CommitRequest, done func([]error, error)) { done(nil, errNotYet) }

// Fetch is OffsetFetch. A group that does not exist has no offsets, which is no error.
func (c *Coordinator) Fetch(r FetchRequest) ([]FetchedOffset, error) { return nil, errNotYet }

// Describe is DescribeGroups for one group; ErrGroupNotFound if there is none.
func (c *Coordinator) Describe(group string) (Description, error) { return Description{}, errNotYet }

// List returns the groups that this broker coordinates, by name; those without members too.
func (c *Coordinator) List() ([]Listing, error) { return nil, errNotYet }

// Delete deletes groups without members, with their offsets: one error or nil for each.
func (c *Coordinator) Delete(groups []string, done func([]error)) { done(make([]error, len(groups))) }

// DeleteOffsets is OffsetDelete: one error or nil for each partition, or an error for all.
func (c *Coordinator) DeleteOffsets(group string, partitions []TopicIDPartition, done func([]error, error)) {
	done(nil, errNotYet)
}
