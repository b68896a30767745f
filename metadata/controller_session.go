package metadata

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

const (
	// probeTimeout is how long a suspected broker has to answer (dataplane.md 11).
	probeTimeout = 150 * time.Millisecond
	// watchInterval is how often the controller looks at sessions while one of them is about to end, watchRest how often
	// while none is: see sessions.rest.
	watchInterval = 100 * time.Millisecond
	watchRest     = time.Second
	// fenceTimeout bounds the proposals of the controller's own.
	fenceTimeout = 2 * time.Second
)

// alive asks the process behind a registration whether it lives. A silent one is asked twice: a process that lacks only CPU
// time for a moment should not be fenced for it.
func (s *Store) alive(ctx context.Context, b *Broker) bool {
	if s.cfg.Probe == nil {
		return false
	}
	for range 2 {
		probe, cancel := context.WithTimeout(ctx, probeTimeout)
		begun := time.Now()
		err := s.cfg.Probe(probe, b)
		timedOut := time.Since(begun) > probeTimeout*9/10
		cancel()
		if err == nil || !timedOut {
			return err == nil
		}
	}
	return false
}

// Heartbeat tells the controller that a broker lives and how far it is. It takes a caught-up broker out of its fence, and
// with Shutdown relieves it of its leaderships.
//
// Errors: ErrStaleBrokerEpoch when another registration has taken the broker's place, ErrUnknownBroker, and those of every
// operation (see CreateTopics).
func (s *Store) Heartbeat(ctx context.Context, h Heartbeat) (HeartbeatReply, error) {
	if err := s.diskError(); err != nil {
		return HeartbeatReply{}, err // what it can't write it can't apply: others must take its place
	}
	return call(ctx, s, &opHeartbeat, h)
}

func (s *Store) heartbeat(ctx context.Context, h Heartbeat) (HeartbeatReply, error) {
	l, err := s.controller()
	if err != nil {
		return HeartbeatReply{}, err
	}
	im := s.Image()
	b, err := registration(im, h.Broker, h.Epoch)
	if err != nil {
		return HeartbeatReply{}, err
	}
	mayReturn := l.sessions.heard(b, h.Applied, time.Now())
	c := &alterBroker{broker: b.ID, epoch: b.Epoch, policy: s.policy(im)}
	for _, dir := range h.Offline {
		if slices.Contains(b.Directories, dir) && !slices.Contains(b.Offline, dir) {
			c.offline = append(c.offline, dir)
		}
	}
	if b.Fenced && h.Applied >= b.fencedIndex && mayReturn && !b.Leaving && !h.Shutdown {
		c.fenced, c.fencedIndex = pb.Switch_SWITCH_OFF, b.fencedIndex
	}
	waits := ""
	if h.Shutdown {
		if !b.Leaving || im.movable(b.ID) > 0 {
			c.leaving = pb.Switch_SWITCH_ON
		}
	}
	if len(c.offline) > 0 || c.fenced != pb.Switch_SWITCH_UNCHANGED || c.leaving != pb.Switch_SWITCH_UNCHANGED {
		value, err := s.proposeIn(ctx, l.term, c)
		if err != nil && !errors.Is(err, ErrStale) { // stale: fenced anew meanwhile
			return HeartbeatReply{}, fmt.Errorf("heartbeat of broker %d: %w", b.ID, err)
		}
		if err == nil {
			s.logBroker(b, c, value.(failover))
			if c.fenced == pb.Switch_SWITCH_OFF {
				l.sessions.unfencedNow(b, time.Now())
			}
		}
		im = s.Image()
		if b, err = registration(im, h.Broker, h.Epoch); err != nil {
			return HeartbeatReply{}, err
		}
	}
	if h.Shutdown {
		waits = im.waitsFor(b.ID)
	}
	// A controller that stood still while another was elected would give itself a lease, and serve reads under it from partitions that
	// others lead by then (R16).
	if err := s.proveLead(l); err != nil {
		return HeartbeatReply{}, err
	}
	return HeartbeatReply{Fenced: b.Fenced, MayStop: h.Shutdown && waits == "", Waiting: waits, Lease: s.cfg.SessionTimeout}, nil
}

// registration returns the broker, if that is its present registration.
func registration(im *Image, id BrokerID, epoch int64) (*Broker, error) {
	b := im.Broker(id)
	if b == nil {
		return nil, unknownBroker(id)
	}
	if b.Epoch != epoch {
		return nil, &Error{
			Kind: ErrStaleBrokerEpoch,
			What: fmt.Sprintf("broker %d is registered with epoch %d, not %d", id, b.Epoch, epoch),
			Why:  "another process has registered under this id since",
			Fix:  "stop one of the two; give each broker its own node.id and data directory",
		}
	}
	return b, nil
}

func unknownBroker(id BrokerID) error {
	return &Error{
		Kind: ErrUnknownBroker,
		What: fmt.Sprintf("there is no broker %d", id),
		Why:  "it never registered, or was removed",
		Fix:  "list the brokers to see which there are",
	}
}

// logBroker logs what became of a broker and its partitions.
func (s *Store) logBroker(b *Broker, c *alterBroker, out failover) {
	did := ""
	for _, sw := range []struct {
		to      pb.Switch
		on, off string
	}{
		{c.fenced, "broker fenced", "broker unfenced"},
		{c.leaving, "broker is leaving", "broker stays"},
		{c.draining, "broker in maintenance", "maintenance of the broker ended"},
		{c.removing, "broker is being decommissioned", "decommission of the broker taken back"},
	} {
		switch {
		case sw.to == pb.Switch_SWITCH_ON:
			did = sw.on
		case sw.to == pb.Switch_SWITCH_OFF:
			did = sw.off
		}
	}
	if len(c.offline) > 0 {
		did = "log directories of the broker are offline"
	}
	s.logger.Info(did, "broker", b.ID, "epoch", b.Epoch, "leaders moved", out.Moved, "leaderless", out.Leaderless, "ISRs shrunk", out.Shrunk)
	s.audit(out)
}

// audit logs elections that may have lost records (R15, I12).
func (s *Store) audit(out failover) {
	for _, tp := range out.Unclean {
		if t := s.Image().Topic(tp.Topic); t != nil && int(tp.Partition) < len(t.Partitions) {
			p := t.Partitions[tp.Partition]
			s.logger.Warn("audit: leader elected outside ISR and ELR, acknowledged records may be lost",
				"topic", tp.Topic, "partition", tp.Partition, "leader", p.Leader, "leader epoch", p.LeaderEpoch)
		}
	}
}

// movable counts the partitions that a broker leads and another member of their ISR could lead.
func (im *Image) movable(id BrokerID) (n int) {
	d := &draft{st: *im.st}
	for t := range im.Topics() {
		for i, p := range t.Partitions {
			if p.Leader != id {
				continue
			}
			r := d.revise(t, i, partitionPolicy{})
			if next := r.pick(without(p.ISR, id)); next != NoBroker && r.welcome(slices.Index(p.Replicas, next)) {
				n++
			}
		}
	}
	return n
}

// Movable counts the partitions that a broker leads and another could lead at once.
func (im *Image) Movable(id BrokerID) int { return im.movable(id) }

// waitsFor says why a broker in controlled shutdown should not stop yet: it leads partitions that another live replica
// could lead once it has caught up. "" when there is none.
func (im *Image) waitsFor(id BrokerID) string {
	d := &draft{st: *im.st}
	n, example := 0, ""
	for t := range im.Topics() {
		for i, p := range t.Partitions {
			if p.Leader != id {
				continue
			}
			if r := d.revise(t, i, partitionPolicy{}); r.pick(without(p.Replicas, id)) != NoBroker {
				if n++; n == 1 {
					example = TopicPartition{Topic: t.Name, Partition: int32(i)}.String()
				}
			}
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d partition(s) that broker %d leads wait for another replica to catch up, among them %s", n, id, example)
}

// Suspect tells the controller that a broker's process seems to be dead, or out of reach. It may be called on any broker
// and as often as there is reason; it returns at once. The controller asks the process itself, and fences the broker if
// that does not answer (D5). The suspicion is told until a controller has heard it, or the broker is fenced or registers
// anew, or a session has passed.
func (s *Store) Suspect(id BrokerID, incarnation [16]byte, reason string) {
	s.suspicions.Lock()
	s.suspicions.m[id] = suspicion{suspectArgs{id, incarnation, reason}, time.Now()}
	s.suspicions.Unlock()
	select {
	case s.suspicions.wake <- struct{}{}:
	default:
	}
}

// suspicion is one that no controller has heard yet.
type suspicion struct {
	suspectArgs
	since time.Time
}

const (
	// suspicionAttempt bounds one attempt to tell the controller, which may be the one that is dead.
	suspicionAttempt = 400 * time.Millisecond
	// suspicionPause is the pause between two.
	suspicionPause = 50 * time.Millisecond
)

// tellSuspicions tells the controller of suspicions, until the Store is closed.
func (s *Store) tellSuspicions() {
	for {
		select {
		case <-s.suspicions.wake:
		case <-s.stop:
			return
		}
		for {
			open := s.openSuspicions()
			if len(open) == 0 {
				break
			}
			for _, sp := range open {
				ctx, cancel := context.WithTimeout(s.lifetime, suspicionAttempt)
				_, err := call(ctx, s, &opSuspect, sp.suspectArgs)
				cancel()
				if err == nil {
					s.dropSuspicion(sp)
				}
			}
			select {
			case <-time.After(suspicionPause):
			case <-s.stop:
				return
			}
		}
	}
}

// openSuspicions returns those that still say something, and forgets the others.
func (s *Store) openSuspicions() (open []suspicion) {
	s.suspicions.Lock()
	defer s.suspicions.Unlock()
	im := s.Image()
	for id, sp := range s.suspicions.m {
		b := im.Broker(id)
		if b == nil || b.Fenced || b.Incarnation != sp.Incarnation || time.Since(sp.since) > s.cfg.SessionTimeout {
			delete(s.suspicions.m, id)
			continue
		}
		open = append(open, sp)
	}
	return open
}

func (s *Store) dropSuspicion(sp suspicion) {
	s.suspicions.Lock()
	defer s.suspicions.Unlock()
	if s.suspicions.m[sp.Broker] == sp { // else there is a newer one
		delete(s.suspicions.m, sp.Broker)
	}
}

// suspect asks the suspected process itself and fences its broker if it does not answer. The caller may go away meanwhile.
func (s *Store) suspect(ctx context.Context, a suspectArgs) (none, error) {
	l, err := s.controller()
	if err != nil {
		return none{}, err
	}
	b := s.Image().Broker(a.Broker)
	if b == nil || b.Fenced || b.Incarnation != a.Incarnation || s.cfg.Probe == nil {
		return none{}, nil // it is about another process, or nobody can tell
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fenceTimeout)
	defer cancel()
	return none{}, s.ask(ctx, l, b, a.Reason)
}

// ask probes a broker and fences it if it does not answer. One probe of a broker is under way at a time.
func (s *Store) ask(ctx context.Context, l *lead, b *Broker, reason string) error {
	for {
		underWay := l.sessions.begin(b, time.Now())
		if underWay == nil {
			break
		}
		select {
		case <-underWay: // it may have answered before there was this reason
		case <-ctx.Done():
			return notProposed(ctx)
		}
		if now := s.Image().Broker(b.ID); now == nil || now.Fenced || now.Epoch != b.Epoch {
			return nil
		}
	}
	if s.alive(ctx, b) {
		l.sessions.end(b, true, time.Now())
		s.logger.Debug("suspected broker answers", "broker", b.ID, "reason", reason)
		return nil
	}
	err := s.fence(ctx, l, b, reason)
	l.sessions.end(b, false, time.Now())
	return err
}

// fence fences a broker's present registration.
func (s *Store) fence(ctx context.Context, l *lead, b *Broker, reason string) error {
	c := &alterBroker{broker: b.ID, epoch: b.Epoch, fenced: pb.Switch_SWITCH_ON, policy: s.policy(s.Image())}
	value, err := s.proposeIn(ctx, l.term, c)
	if errors.Is(err, ErrStaleBrokerEpoch) || errors.Is(err, ErrUnknownBroker) {
		return nil // it has registered anew, or is gone
	}
	if err != nil {
		return fmt.Errorf("fence broker %d: %w", b.ID, err)
	}
	l.sessions.fencedNow(b, time.Now())
	s.logger.Warn("broker lost", "broker", b.ID, "epoch", b.Epoch, "reason", reason)
	s.logBroker(b, c, value.(failover))
	return nil
}

// control does the controller's periodic work while this broker is the controller, until the Store is closed.
func (s *Store) control() {
	pause := watchInterval
	timer := time.NewTimer(pause)
	defer timer.Stop()
	last := time.Now()
	var of *lead
	var work periodic
	for {
		select {
		case <-timer.C:
		case <-s.stop:
			return
		}
		now := time.Now()
		gap, late := now.Sub(last), now.Sub(last.Add(pause))
		last = now
		l := s.lead.Load()
		if l == nil {
			// A lead begins with whole sessions, so there is time to notice it.
			pause = s.watchPause()
			timer.Reset(pause)
			continue
		}
		if l != of {
			of, work = l, periodic{began: now}
		}
		if late > 10*watchInterval {
			// This process stood still. So did what it heard of others.
			l.sessions.extend(gap)
		}
		s.watchSessions(l, now)
		s.periodicWork(l, &work, now)
		pause = l.sessions.rest(s.Image().Brokers(), time.Now(), s.watchPause())
		timer.Reset(pause)
	}
}

// watchPause is the longest pause between two looks: short beside every time that sessions are held to.
func (s *Store) watchPause() time.Duration {
	return max(watchInterval, min(watchRest, s.cfg.SessionTimeout/9, s.cfg.HeartbeatInterval/2))
}

// watchSessions fences brokers that were silent for a session, and asks those that should have been heard from.
func (s *Store) watchSessions(l *lead, now time.Time) {
	silent, ask := l.sessions.overdue(s.Image().Brokers(), now)
	if len(silent) == 0 && len(ask) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(s.lifetime, fenceTimeout)
	defer cancel()
	for _, b := range silent {
		if b.ID == s.cfg.NodeID {
			continue // a controller that can commit is no zombie; its own heartbeat loop is another matter
		}
		if err := s.fence(ctx, l, b, "no heartbeat for "+s.cfg.SessionTimeout.String()); err != nil {
			s.logger.Warn("silent broker not fenced yet", "broker", b.ID, "error", err)
		}
	}
	for _, b := range ask {
		if err := s.ask(ctx, l, b, "no heartbeat since it was suspected"); err != nil {
			s.logger.Warn("suspected broker not fenced yet", "broker", b.ID, "error", err)
		}
	}
}

// policy resolves the configs that Apply goes by.
func (s *Store) policy(im *Image) partitionPolicy {
	settings, err := ResolveTopicSettings(s.effectiveConfig(im), nil)
	if err != nil {
		settings.FlushAck = true // an invalid value elsewhere must not make promises smaller
	}
	return partitionPolicy{minInsync: settings.MinInsyncReplicas, flushLazily: !settings.FlushAck}
}
