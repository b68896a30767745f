package metadata

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

const (
	// returnSettle is how long a broker that came back must have been unfenced before it gets its leaders back.
	returnSettle = 2 * time.Second
	// smallInterval is how often the controller looks for leaders that should move: back to a broker that has caught up, or
	// away from one in maintenance.
	smallInterval = time.Second
	// drainLimit bounds how long an election of preferred leaders waits for the present ones to hand over in good order, and
	// drainTogether is how many partitions do so at a time.
	drainLimit    = 500 * time.Millisecond
	drainTogether = 200
	// pruneInterval is how often it looks for tombstones that may go.
	pruneInterval = time.Minute
)

// periodic is when the controller did its periodic work last, in one lead.
type periodic struct {
	began, small, balance, unclean, prune time.Time
	// settings are those of the Image with a version one below of; merging them ten times a second is most of what a controller
	// at rest would do. The Image itself is not kept: long after the lead it would hold what all others have let go.
	settings leaderBalance
	of       uint64
}

func due(last *time.Time, interval time.Duration, began, now time.Time) bool {
	if last.IsZero() {
		*last = began
	}
	if now.Sub(*last) < interval {
		return false
	}
	*last = now
	return true
}

// periodicWork does what is due.
func (s *Store) periodicWork(l *lead, work *periodic, now time.Time) {
	if im := s.Image(); im.Version()+1 != work.of {
		work.settings, work.of = balanceSettings(s.effectiveConfig(im)), im.Version()+1
	}
	c := work.settings
	small, balance := due(&work.small, smallInterval, work.began, now), due(&work.balance, c.interval, work.began, now)
	unclean, prune := due(&work.unclean, c.unclean, work.began, now), due(&work.prune, pruneInterval, work.began, now)
	if !small && !balance && !unclean && !prune {
		return
	}
	ctx, cancel := context.WithTimeout(s.lifetime, fenceTimeout)
	defer cancel()
	if small {
		s.giveBack(ctx, l, now)
		s.drainFurther(ctx, l)
		s.finishDecommissions(ctx)
	}
	if balance && c.enabled {
		s.balanceLeaders(ctx, l, c.percent)
	}
	if unclean {
		s.electByConfig(ctx)
	}
	if prune {
		s.prune(ctx, l)
	}
}

// leaderBalance are the settings of Kafka's names.
type leaderBalance struct {
	enabled  bool          // auto.leader.rebalance.enable
	interval time.Duration // leader.imbalance.check.interval.seconds
	percent  int           // leader.imbalance.per.broker.percentage
	unclean  time.Duration // unclean.leader.election.interval.ms
}

func balanceSettings(effective map[string]string) leaderBalance {
	c := leaderBalance{enabled: effective["auto.leader.rebalance.enable"] != "false", interval: 300 * time.Second, percent: 10, unclean: 300 * time.Second}
	if n, err := strconv.Atoi(effective["leader.imbalance.check.interval.seconds"]); err == nil && n > 0 {
		c.interval = time.Duration(n) * time.Second
	}
	if n, err := strconv.Atoi(effective["unclean.leader.election.interval.ms"]); err == nil && n > 0 {
		c.unclean = time.Duration(n) * time.Millisecond
	}
	if n, err := strconv.Atoi(effective["leader.imbalance.per.broker.percentage"]); err == nil && n >= 0 {
		c.percent = n
	}
	return c
}

// preferredElections returns the elections that would give leaders to the brokers for which want reports true: of
// partitions that prefer the broker, are led by another, and have it in their ISR. missing counts, for each broker, the
// partitions that have a replica on it and not in the ISR.
func (im *Image) preferredElections(want func(b *Broker) bool) (elections map[BrokerID][]election, preferring, missing map[BrokerID]int) {
	elections, preferring, missing = make(map[BrokerID][]election), make(map[BrokerID]int), make(map[BrokerID]int)
	d := &draft{st: *im.st}
	wanted := make(map[BrokerID]bool)
	for _, b := range im.Brokers() {
		wanted[b.ID] = want(b)
	}
	for t := range im.Topics() {
		for i, p := range t.Partitions {
			for _, id := range p.Replicas {
				if wanted[id] && !slices.Contains(p.ISR, id) {
					missing[id]++
				}
			}
			first := p.Replicas[0]
			if !wanted[first] {
				continue
			}
			preferring[first]++
			if p.Leader == first || !slices.Contains(p.ISR, first) {
				continue
			}
			if r := d.revise(t, i, partitionPolicy{}); r.usable(0) && r.welcome(0) {
				elections[first] = append(elections[first], election{topicIDPartition: topicIDPartition{t.ID, int32(i)}})
			}
		}
	}
	return elections, preferring, missing
}

// balanceLeaders elects preferred leaders of brokers that lead too few of the partitions which prefer them.
func (s *Store) balanceLeaders(ctx context.Context, l *lead, percent int) {
	elections, preferring, _ := s.Image().preferredElections(func(b *Broker) bool { return !b.Fenced })
	var all []election
	for id, of := range elections {
		if len(of)*100 > percent*preferring[id] {
			all = append(all, of...)
		}
	}
	s.electPreferred(ctx, l, all, "leaders are uneven")
}

// giveBack elects preferred leaders of brokers that came back and are in every ISR again.
func (s *Store) giveBack(ctx context.Context, l *lead, now time.Time) {
	im := s.Image()
	back := l.sessions.returning(im.Brokers(), returnSettle, now)
	if len(back) == 0 {
		return
	}
	if !balanceSettings(s.effectiveConfig(im)).enabled {
		return
	}
	elections, _, missing := im.preferredElections(func(b *Broker) bool { return slices.Contains(back, b) })
	var all []election
	for _, b := range back {
		if missing[b.ID] > 0 || b.Draining || b.Leaving {
			continue
		}
		all = append(all, elections[b.ID]...)
		l.sessions.given(b.ID)
	}
	s.electPreferred(ctx, l, all, "a broker is back")
}

func (s *Store) electPreferred(ctx context.Context, l *lead, elections []election, why string) {
	if len(elections) == 0 {
		return
	}
	if s.cfg.Drain == nil {
		s.movePreferred(ctx, l, elections, why)
		return
	}
	// Drains wait for other brokers, and who watches sessions must not.
	if s.moving.CompareAndSwap(false, true) {
		s.running.Go(func() {
			defer s.moving.Store(false)
			ctx, cancel := context.WithTimeout(s.lifetime, forwardLimit)
			defer cancel()
			s.movePreferred(ctx, l, elections, why)
		})
	}
}

// movePreferred carries preferred elections out, some at a time: the leaders of those hold their producers back meanwhile.
func (s *Store) movePreferred(ctx context.Context, l *lead, elections []election, why string) {
	moved := 0
	for some := range slices.Chunk(elections, drainTogether) {
		s.drainLeaders(ctx, s.Image(), some)
		for _, e := range s.runElections(ctx, l, Preferred, some) {
			if e.err == nil {
				moved++
			}
		}
	}
	s.logger.Info("preferred leaders elected", "why", why, "partitions", moved, "of", len(elections))
}

// drainLeaders asks the present leaders of partitions that are about to get their preferred ones to let those catch up, so
// that no request is cut off between its append and its acknowledgement. It waits drainLimit at most: an election after it
// is safe in any case.
func (s *Store) drainLeaders(ctx context.Context, im *Image, elections []election) {
	if s.cfg.Drain == nil {
		return
	}
	ask := make(map[BrokerID][]TopicPartition)
	for _, e := range elections {
		t := im.TopicByID(e.topic)
		if t == nil || int(e.partition) >= len(t.Partitions) {
			continue
		}
		p := t.Partitions[e.partition]
		if p.Leader == NoBroker || p.Leader == p.Replicas[0] || !slices.Contains(p.ISR, p.Replicas[0]) {
			continue // there will be no election
		}
		ask[p.Leader] = append(ask[p.Leader], TopicPartition{Topic: t.Name, Partition: e.partition})
	}
	ctx, cancel := context.WithTimeout(ctx, drainLimit)
	defer cancel()
	var asking sync.WaitGroup
	for id, partitions := range ask {
		b := im.Broker(id)
		if b == nil || b.Fenced {
			continue
		}
		asking.Go(func() {
			if err := s.cfg.Drain(ctx, b, partitions); err != nil {
				s.logger.Info("leaders move although followers have not caught up", "leader", id, "partitions", len(partitions), "error", err)
			}
		})
	}
	asking.Wait()
}

// drainFurther moves leaders away from brokers in maintenance that could not move before.
func (s *Store) drainFurther(ctx context.Context, l *lead) {
	im := s.Image()
	for _, b := range im.Brokers() {
		if !b.Draining || b.Fenced || im.movable(b.ID) == 0 {
			continue
		}
		c := &alterBroker{broker: b.ID, epoch: b.Epoch, draining: pb.Switch_SWITCH_ON, policy: s.policy(im)}
		if value, err := s.proposeIn(ctx, l.term, c); err == nil {
			s.logBroker(b, c, value.(failover))
		}
	}
}

// electByConfig elects uncleanly where a topic's unclean.leader.election.enable is a standing order to.
func (s *Store) electByConfig(ctx context.Context) {
	im := s.Image()
	effective := s.effectiveConfig(im)
	var open []TopicPartition
	for t := range im.Topics() {
		for i, p := range t.Partitions {
			if p.Leader != NoBroker {
				continue
			}
			if settings, err := ResolveTopicSettings(effective, t.Configs); err == nil && settings.UncleanLeaderElection {
				open = append(open, TopicPartition{Topic: t.Name, Partition: int32(i)})
			}
		}
	}
	if len(open) > 0 {
		s.electLeaders(ctx, Unclean, open)
	}
}

// prune drops tombstones that no broker needs any more.
func (s *Store) prune(ctx context.Context, l *lead) {
	im := s.Image()
	through, ok := l.sessions.applied(im.Brokers())
	if !ok || im.st.tombstones.len() == 0 {
		return
	}
	old := false
	for _, stone := range im.st.tombstones.all() {
		if old = stone.Index <= through; old {
			break
		}
	}
	if !old {
		return
	}
	if n, err := s.proposeIn(ctx, l.term, &pruneTombstones{through: through}); err == nil {
		s.logger.Info("tombstones of deleted topics dropped", "count", n)
	}
}
