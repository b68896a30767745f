package replication

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/metadata"
)

// reconcileLoop makes the partitions follow the metadata. It is the only writer of the table.
func (m *Manager) reconcileLoop(ctx context.Context) {
	w := m.cfg.Store.Watch()
	defer w.Close()
	retry := time.NewTicker(m.cfg.RetryInterval)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-m.failed:
			m.fail(err)
		case <-w.C():
			if img := m.cfg.Store.Image(); m.applied != nil && img.DiffersInOffsets(m.applied) {
				m.applied = img // nothing of ours
				m.advanceVersion(img.Version())
			} else {
				m.reconcile(img)
			}
		case key := <-m.renewals:
			if m.applied != nil {
				m.renew(key)
			}
		case <-retry.C:
			if len(m.retry) > 0 {
				m.reconcileAgain()
			}
		}
	}
}

// reconcile acts on an image: on all of it the first time, on what has changed later.
func (m *Manager) reconcile(img *metadata.Image) {
	self := img.Broker(m.cfg.BrokerID)
	if self == nil || self.Incarnation != m.cfg.Incarnation {
		if m.applied != nil {
			err := fmt.Errorf("broker %d: %w", m.cfg.BrokerID, errSuperseded)
			if self == nil {
				err = &metadata.Error{
					Kind: metadata.ErrRemoved, What: fmt.Sprintf("broker %d is no longer part of the cluster", m.cfg.BrokerID), Why: "it was decommissioned, and the cluster has forgotten it",
					Fix: "nothing is to be mended; to use this machine again, start a broker with an empty data directory",
				}
			}
			m.fail(err)
		}
		// M16: what this image says about us was said to an earlier process. It may have promised what this one's disk
		// no longer holds.
		return
	}
	m.brokerEpoch.Store(self.Epoch)
	old := m.applied
	next := m.table.Load().clone()
	round := &round{m: m, img: img, next: next}
	if old == nil {
		if !m.cfg.Dir.TailsProven() {
			m.disown(m.lifetime)
			img = m.cfg.Store.Image()
			round.img = img
		}
		round.adopt()
	}
	config := m.cfg.BrokerConfig()
	if old != nil && (!maps.Equal(config, m.brokerConfig) || !slices.Equal(img.Brokers(), old.Brokers())) {
		// What all topics inherit, or who all the peers are, has changed.
		m.brokerConfig = config
		for t := range img.Topics() {
			if pl := next.byID[t.ID]; pl != nil {
				round.refresh(pl, t)
			}
		}
	}
	m.brokerConfig = config
	moved := rateOf(config, balancerThrottledRate)
	m.throttle.leader.setRates(rateOf(config, leaderThrottledRate), moved)
	m.throttle.follower.setRates(rateOf(config, followerThrottledRate), moved)
	for before, after := range img.ChangedTopics(old) {
		if before != nil && (after == nil || after.ID != before.ID) {
			round.drop(before.ID)
		}
		if after != nil {
			round.place(after)
		}
	}
	round.finish()
	m.applied, m.marks = img, nil
	m.advanceVersion(img.Version())
	if n := len(round.started); n > 0 {
		m.logger.Info("partitions opened", "count", n, "offline", len(m.retry))
	}
	if old == nil {
		close(m.ready)
	}
}

// reconcileAgain tries once more what could not be opened or created.
func (m *Manager) reconcileAgain() {
	round := &round{m: m, img: m.applied, next: m.table.Load().clone()}
	again := map[metadata.TopicID]struct{}{}
	for k := range m.retry {
		again[k.TopicID] = struct{}{}
	}
	clear(m.retry)
	for id := range again {
		if t := m.applied.TopicByID(id); t != nil {
			round.place(t)
		}
	}
	round.finish()
}

func (m *Manager) advanceVersion(to uint64) {
	m.version.Lock()
	defer m.version.Unlock()
	if to > m.version.at {
		m.version.at = to
		close(m.version.changed)
		m.version.changed = make(chan struct{})
	}
}

// round is the work on one image: what takes I/O is collected and done by a few workers at once.
type round struct {
	m    *Manager
	img  *metadata.Image
	next *table
	jobs []func()
	// deleted, aside and created are done before and after the jobs, each all at once, because the log directory lets them
	// share their syncs.
	deleted, aside []*Partition
	created        []newPartitionLog
	// started are the partitions to tell the metadata once they are in the table.
	started []startedPartition
	mu      sync.Mutex // guards what jobs write: partitions, created, started
}

// newPartitionLog is a partition whose log is to be created.
type newPartitionLog struct {
	pl     *placement
	id     int32
	record *metadata.Partition
}

type startedPartition struct {
	p     *Partition
	delta *MetadataDelta
}

// adopt looks at every log found on disk. What the metadata does not know is kept aside, never deleted (L12, I16); a
// name that does not fit the id is of another topic (L21).
func (r *round) adopt() {
	m := r.m
	for _, l := range m.cfg.Dir.Logs() {
		id := metadata.TopicID(l.TopicID())
		t := r.img.TopicByID(id)
		logger := m.logger.With("topic", l.Topic(), "topic_id", id.String(), "partition", l.Partition())
		switch {
		case t == nil && r.img.Tombstone(id):
			r.job(func() {
				logger.Info("partition deleted", "reason", "its topic was deleted while this broker was away")
				if err := m.cfg.Dir.Delete(l); err != nil {
					logger.Error("partition not deleted", "err", err)
				}
			})
		case t == nil:
			r.setAside(l, "the metadata does not know the topic id")
		case t.Name != l.Topic():
			r.setAside(l, fmt.Sprintf("the topic with this id is called %s", t.Name))
		case int(l.Partition()) >= len(t.Partitions) || !slices.Contains(t.Partitions[l.Partition()].Replicas, m.cfg.BrokerID):
			r.setAside(l, "the partition is not assigned to this broker")
		}
	}
	r.run() // a name must be free before a topic that now bears it is created
}

func (r *round) setAside(l *log.Log, reason string) {
	m := r.m
	r.job(func() {
		m.logger.Warn("partition set aside", "topic", l.Topic(), "topic_id", metadata.TopicID(l.TopicID()).String(), "partition", l.Partition(), "reason", reason)
		if err := m.cfg.Dir.SetAside(l); err != nil {
			m.logger.Error("partition not set aside", "topic", l.Topic(), "partition", l.Partition(), "err", err)
		}
	})
}

// drop ends the partitions of a topic that is no longer in the metadata.
func (r *round) drop(id metadata.TopicID) {
	pl := r.next.byID[id]
	if pl == nil {
		return
	}
	r.next.remove(pl)
	for _, p := range pl.partitions {
		if p != nil {
			r.remove(p, r.img.Tombstone(id), "its topic was deleted")
		}
	}
	for i := range pl.offline {
		delete(r.m.retry, TopicIDPartition{id, i})
	}
}

// remove ends a partition and deletes its log if the deletion is committed, else keeps it aside.
func (r *round) remove(p *Partition, committed bool, reason string) {
	p.remove(ErrDeleted)
	if committed {
		p.logger().Debug("partition is deleted", "topic_id", p.topic.id.String(), "reason", reason)
		r.deleted = append(r.deleted, p)
		return
	}
	p.logger().Warn("partition set aside", "topic_id", p.topic.id.String(), "reason", reason)
	r.aside = append(r.aside, p)
}

// removeAll deletes, or keeps aside, the logs of partitions that were removed.
func (r *round) removeAll() {
	logs := make([]*log.Log, len(r.deleted))
	for i, p := range r.deleted {
		logs[i] = p.log
	}
	errs := r.m.cfg.Dir.DeleteAll(logs)
	for _, p := range r.aside {
		errs = append(errs, r.m.cfg.Dir.SetAside(p.log))
	}
	for i, p := range append(r.deleted, r.aside...) {
		if errs[i] != nil {
			p.logger().Error("partition not removed from the log directory", "err", errs[i])
		}
	}
	r.deleted, r.aside = nil, nil
}

// place makes this broker's part of a topic as the metadata has it.
func (r *round) place(t *metadata.Topic) {
	m := r.m
	old := r.next.byID[t.ID]
	if other := r.next.byName[t.Name]; other != nil && other.id != t.ID {
		r.drop(other.id)
	}
	local := slices.ContainsFunc(t.Partitions, func(p *metadata.Partition) bool { return slices.Contains(p.Replicas, m.cfg.BrokerID) })
	if old == nil && !local {
		return
	}
	pl := &placement{partitions: make([]*Partition, len(t.Partitions)), offline: map[int32]error{}}
	if old != nil {
		pl.topicState = old.topicState
		copy(pl.partitions, old.partitions)
	} else {
		pl.topicState = &topicState{name: t.Name, id: t.ID, metrics: new(topicMetrics)}
	}
	settings := r.settings(pl, t)
	pl.topicState.throttled.Store(throttledOf(t.Configs, movedOf(r.img, t)))
	for i := range t.Partitions {
		id, rec := int32(i), t.Partitions[i]
		p := pl.partitions[i]
		switch {
		case !slices.Contains(rec.Replicas, m.cfg.BrokerID):
			if p != nil {
				pl.partitions[i] = nil
				r.remove(p, true, "the partition was assigned to other brokers")
			}
		case p != nil:
			if settings != nil {
				p.configure(logSettings(settings), m.cfg.policy(settings, len(rec.Replicas)))
			}
			p.setMoving(rec)
			p.apply(r.delta(rec))
		default:
			r.job(func() { r.open(pl, id, rec) })
		}
	}
	r.next.put(pl)
}

// refresh tells the partitions of a topic what they inherit, and who their peers are.
func (r *round) refresh(pl *placement, t *metadata.Topic) {
	settings := r.settings(pl, t)
	for i, p := range pl.partitions {
		if p == nil || i >= len(t.Partitions) {
			continue
		}
		rec := t.Partitions[i]
		if settings != nil {
			p.configure(logSettings(settings), r.m.cfg.policy(settings, len(rec.Replicas)))
		}
		if len(rec.Replicas) > 1 {
			p.apply(r.delta(rec))
		}
	}
}

// settings resolves the topic's settings; nil when they have not changed.
func (r *round) settings(pl *placement, t *metadata.Topic) *metadata.TopicSettings {
	s, err := metadata.ResolveTopicSettings(r.m.brokerConfig, t.Configs)
	if err != nil {
		// The controller checked them when they were set: an older binary's value, or the broker's own file. The topic
		// goes on with what it has.
		r.m.logger.Error("topic configuration not usable", "topic", t.Name, "err", err)
		if pl.topicState.settings.Load() != nil {
			return nil
		}
		if s, err = metadata.ResolveTopicSettings(nil, nil); err != nil {
			panic(fmt.Sprintf("the default topic settings do not resolve: %v", err))
		}
	}
	if old := pl.topicState.settings.Load(); old != nil && *old == s {
		return nil
	}
	pl.topicState.settings.Store(&s)
	return &s
}

// open opens the log of a partition and makes the partition of it; a log that is not there is created later.
func (r *round) open(pl *placement, id int32, rec *metadata.Partition) {
	m := r.m
	l, found := m.cfg.Dir.Lookup(pl.id, id)
	if !found {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.created = append(r.created, newPartitionLog{pl, id, rec})
		return
	}
	l.Configure(logSettings(pl.topicState.settings.Load()))
	r.start(newPartitionLog{pl, id, rec}, l, m.marks[TopicIDPartition{pl.id, id}]) // nil after the first round: a log that appears later is new
}

// start makes the partition of an open log.
func (r *round) start(n newPartitionLog, l *log.Log, highWatermark int64) {
	m := r.m
	restart := Restart{Clean: m.cfg.Dir.CleanStart(), Policy: m.cfg.policy(n.pl.topicState.settings.Load(), len(n.record.Replicas)), HighWatermark: highWatermark}
	restart.StartOffset, restart.DurableEnd, restart.EndOffset, restart.LastEpoch = l.StartOffset(), l.DurableEnd(), l.EndOffset(), l.LastEpoch()
	p := newPartition(m, n.pl.topicState, n.id, l, restart)
	p.setMoving(n.record)
	r.mu.Lock()
	defer r.mu.Unlock()
	n.pl.partitions[n.id] = p
	r.started = append(r.started, startedPartition{p, r.delta(n.record)})
}

// create makes the logs that are not there, and the partitions of them.
func (r *round) create() {
	m := r.m
	wanted := make([]log.NewLog, len(r.created))
	for i, n := range r.created {
		wanted[i] = log.NewLog{Topic: n.pl.name, TopicID: n.pl.id, Partition: n.id, Settings: logSettings(n.pl.topicState.settings.Load())}
	}
	for i, c := range m.cfg.Dir.CreateAll(wanted) {
		n := r.created[i]
		l, err := c.Log, c.Err
		key := TopicIDPartition{n.pl.id, n.id}
		if errors.Is(err, log.ErrExists) && m.offlineReplica(key, n.record) {
			w := &wanted[i]
			l, err = m.cfg.Dir.Create(w.Topic, w.TopicID, w.Partition, w.StartOffset, w.Settings)
		}
		if err == nil {
			r.start(n, l, 0)
			continue
		}
		for _, o := range m.cfg.Dir.Offline() {
			if o.TopicID == n.pl.id && o.Partition == n.id {
				err = o.Err // it exists, and cannot be served: say why
			}
		}
		err = fmt.Errorf("open partition %s-%d: %w: %w", n.pl.name, n.id, ErrOffline, err)
		m.logger.Error("partition is offline", "topic", n.pl.name, "partition", n.id, "err", err)
		n.pl.offline[n.id] = err
		m.retry[key] = struct{}{}
		if errors.Is(err, log.ErrPoisoned) {
			m.storageFailed(fmt.Errorf("%w: %w", ErrStorage, err))
		}
	}
	r.created = nil
}

// delta is the partition's record as the core takes it.
func (r *round) delta(rec *metadata.Partition) *MetadataDelta {
	d := &MetadataDelta{
		Leader: rec.Leader, LeaderEpoch: rec.LeaderEpoch, PartitionEpoch: rec.PartitionEpoch, ISR: rec.ISR, ELR: rec.ELR, UncleanEpoch: rec.UncleanEpoch,
	}
	for _, id := range rec.Replicas {
		peer := Peer{ID: id, BrokerEpoch: -1, Fenced: true}
		if b := r.img.Broker(id); b != nil {
			peer.BrokerEpoch, peer.Fenced = b.Epoch, b.Fenced
		}
		d.Replicas = append(d.Replicas, peer)
	}
	return d
}

func (r *round) job(fn func()) { r.jobs = append(r.jobs, fn) }

// run does the collected jobs, Workers at a time, between removals and creations: a name is free before a topic that now
// bears it is created.
func (r *round) run() {
	if len(r.deleted)+len(r.aside) > 0 {
		r.removeAll()
	}
	r.work()
	if len(r.created) > 0 {
		r.create()
	}
}

func (r *round) work() {
	jobs := r.jobs
	r.jobs = nil
	if len(jobs) == 0 {
		return
	}
	work := make(chan func())
	var wg sync.WaitGroup
	for range min(r.m.cfg.Workers, len(jobs)) {
		wg.Go(func() {
			for fn := range work {
				fn()
			}
		})
	}
	for _, fn := range jobs {
		work <- fn
	}
	close(work)
	wg.Wait()
}

// finish does the jobs, lets the new partitions lead, and publishes the table: who finds a partition there finds it
// ready.
func (r *round) finish() {
	r.run()
	for _, s := range r.started {
		s.p.apply(s.delta)
	}
	r.m.table.Store(r.next)
	r.m.partitionsChanged()
}
