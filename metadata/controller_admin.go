package metadata

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
)

// AssignBrokerID gives the broker with that (first) log directory its id: the one it had before, else want, else, with
// want -1, one that no broker ever had. With replace it takes over the id want of a broker that is dead for good.
//
// Errors: ErrDuplicateBroker when want belongs to another directory, or with replace to a process that lives, ErrRemoved
// when the directory's broker was removed from the cluster (M14), ErrInvalidRequest.
func (s *Store) AssignBrokerID(ctx context.Context, dir DirectoryID, want BrokerID, replace bool) (BrokerID, error) {
	id, err := call(ctx, s, &opAssignBrokerID, assignBrokerIDArgs{dir, want, replace})
	if err != nil {
		return NoBroker, err
	}
	return id, nil
}

func (s *Store) assignBrokerID(ctx context.Context, a assignBrokerIDArgs) (id BrokerID, err error) {
	if a.Directory == (DirectoryID{}) || a.Want < NoBroker || a.Replace && a.Want < 0 {
		return NoBroker, &Error{
			Kind: ErrInvalidRequest,
			What: fmt.Sprintf("no broker id can be given out (want %d)", a.Want),
			Why:  "the directory has no id, or the id asked for is negative, or none is named to be replaced",
			Fix:  "name the id of the broker to replace, or none",
		}
	}
	s.carryOut(ctx, []plan{{
		decide: func(im *Image) (command, error) {
			c := &assignBrokerID{directory: a.Directory, want: a.Want, replace: a.Replace}
			if known := im.st.identity(a.Directory); known != nil && !known.Removed && known.Broker == a.Want {
				return c, nil // a repetition
			}
			if b := im.Broker(a.Want); a.Replace && b != nil {
				if c.expectedEpoch = b.Epoch; s.alive(ctx, b) {
					return nil, &Error{
						Kind: ErrDuplicateBroker,
						What: fmt.Sprintf("broker %d can't be replaced", b.ID),
						Why:  "its process is alive at " + b.PeerAddress,
						Fix:  "stop it first, or start this one without --replace to get an id of its own",
					}
				}
			}
			return c, nil
		},
		done: func(value any, e error) {
			if err = e; err == nil {
				id = value.(BrokerID)
			}
		},
	}})
	switch {
	case err == nil:
		s.logger.Info("broker id assigned", "broker", id, "directory", fmt.Sprintf("%x", a.Directory), "replaced", a.Replace)
		return id, nil
	case err == ErrRemoved:
		err = removedDirectory(a.Want)
	case err == ErrDuplicateBroker:
		err = s.taken(a)
	}
	return NoBroker, fmt.Errorf("assign a broker id: %w", err)
}

// taken says why want can't be given to a directory.
func (s *Store) taken(a assignBrokerIDArgs) error {
	im := s.Image()
	if id := im.st.identity(a.Directory); id != nil && id.Broker != a.Want {
		return &Error{
			Kind: ErrDuplicateBroker,
			What: fmt.Sprintf("this broker can't be broker %d", a.Want),
			Why:  fmt.Sprintf("its log directory belongs to broker %d", id.Broker),
			Fix:  fmt.Sprintf("start it with node.id=%d or without node.id, or with an empty directory", id.Broker),
		}
	}
	where := ""
	if b := im.Broker(a.Want); b != nil && b.PeerAddress != "" {
		where = ", last seen at " + b.PeerAddress
	}
	return &Error{
		Kind: ErrDuplicateBroker,
		What: fmt.Sprintf("broker id %d is taken", a.Want),
		Why:  "it belongs to a broker with another log directory" + where,
		Fix:  fmt.Sprintf("start without node.id to get a free one; if broker %d has lost its disk, start with --replace %d", a.Want, a.Want),
	}
}

// AlterReassignments starts, changes and cancels the moves of partitions' replicas (KIP-455), and returns an error or nil
// for each, in their order. A move is complete when all replicas that it adds are in the ISR.
//
// Errors: ErrUnknownTopic, ErrUnknownPartition, ErrInvalidAssignment, ErrNoReassignment (nothing to cancel),
// ErrDuplicateResource, and those of every operation (see CreateTopics).
func (s *Store) AlterReassignments(ctx context.Context, moves []Reassignment) []error {
	results, err := call(ctx, s, &opAlterReassignments, moves)
	return failedItems(results, len(moves), cmp.Or(err, ErrTimeout))
}

func (s *Store) alterReassignments(ctx context.Context, moves []Reassignment) []error {
	results := make([]error, len(moves))
	count := make(map[TopicPartition]int)
	for _, m := range moves {
		count[m.TopicPartition]++
	}
	var round *Image
	var places *placement
	var plans []plan
	for i, m := range moves {
		plans = append(plans, plan{
			decide: func(im *Image) (command, error) {
				if round != im {
					round, places = im, newPlacement(im, 0)
				}
				if count[m.TopicPartition] > 1 {
					return nil, duplicate("partition " + m.TopicPartition.String())
				}
				return s.decideReassignment(im, places, m)
			},
			done: func(value any, err error) {
				if p, ok := value.(Partition); ok && err == nil {
					s.logger.Info("reassignment", "topic", m.TopicPartition.Topic, "partition", m.TopicPartition.Partition,
						"replicas", fmt.Sprint(p.Replicas), "adding", fmt.Sprint(p.Adding), "removing", fmt.Sprint(p.Removing))
				}
				results[i] = reassignmentError(m, err)
			},
		})
	}
	s.carryOut(ctx, plans)
	return results
}

func (s *Store) decideReassignment(im *Image, places *placement, m Reassignment) (command, error) {
	t, err := findPartition(im, m.TopicPartition)
	if err != nil {
		return nil, err
	}
	p := t.Partitions[m.TopicPartition.Partition]
	c := &reassignPartition{
		topicIDPartition: topicIDPartition{t.ID, m.TopicPartition.Partition}, partitionEpoch: p.PartitionEpoch, policy: s.policy(im),
	}
	if m.Replicas == nil {
		if !p.Reassigning() {
			return nil, reassignmentError(m, ErrNoReassignment)
		}
		return c, nil
	}
	sets, err := places.assign(im, t.Name, int(m.TopicPartition.Partition), [][]BrokerID{m.Replicas}, 0)
	if err != nil {
		return nil, err
	}
	for _, id := range m.Replicas {
		if b := im.Broker(id); b.Removing && !slices.Contains(p.Replicas, id) {
			return nil, &Error{
				Kind: ErrInvalidAssignment,
				What: fmt.Sprintf("partition %s can't be moved to broker %d", m.TopicPartition, id),
				Why:  "that broker is being decommissioned",
				Fix:  "name another broker, or take the decommission back first",
			}
		}
	}
	c.target = sets[0]
	return c, nil
}

func reassignmentError(m Reassignment, err error) error {
	switch err {
	case ErrNoReassignment:
		return &Error{
			Kind: ErrNoReassignment,
			What: fmt.Sprintf("there is no reassignment of partition %s to cancel", m.TopicPartition),
			Why:  "its replicas are not being moved, or no longer",
			Fix:  "list the reassignments to see which are under way",
		}
	case ErrInvalidAssignment:
		return &Error{
			Kind: ErrInvalidAssignment,
			What: fmt.Sprintf("the reassignment of partition %s can't be changed to %v", m.TopicPartition, m.Replicas),
			Why:  "none of the replicas that would stay has all of its records",
			Fix:  "wait for the present reassignment, or name a replica that is in the ISR",
		}
	case ErrUnknownTopicID:
		return unknownTopic(m.TopicPartition.Topic)
	}
	return err
}

// findPartition returns the topic of a partition that exists.
func findPartition(im *Image, tp TopicPartition) (*Topic, error) {
	t := im.Topic(tp.Topic)
	if t == nil {
		return nil, unknownTopic(tp.Topic)
	}
	if tp.Partition < 0 || int(tp.Partition) >= len(t.Partitions) {
		return nil, &Error{
			Kind: ErrUnknownPartition,
			What: fmt.Sprintf("there is no partition %d of topic %s", tp.Partition, tp.Topic),
			Why:  fmt.Sprintf("it has %d, counted from 0", len(t.Partitions)),
			Fix:  "describe the topic to see its partitions",
		}
	}
	return t, nil
}

// SetMaintenance takes a broker's leaderships away and keeps them away, until it is switched off.
//
// Errors: ErrUnknownBroker, and those of every operation (see CreateTopics).
func (s *Store) SetMaintenance(ctx context.Context, id BrokerID, on bool) error {
	_, err := call(ctx, s, &opSetMaintenance, switchArgs{id, on})
	return err
}

func (s *Store) setMaintenance(ctx context.Context, a switchArgs) (none, error) {
	return none{}, s.switchBroker(ctx, a.Broker, alterBroker{draining: switchOf(a.On)})
}

// Decommission marks a broker as one that is to go, or takes that back. The balancer then moves its replicas away, and
// UnregisterBroker ends it.
//
// Errors: ErrUnknownBroker, and those of every operation (see CreateTopics).
func (s *Store) Decommission(ctx context.Context, id BrokerID, on bool) error {
	_, err := call(ctx, s, &opDecommission, switchArgs{id, on})
	return err
}

func (s *Store) decommission(ctx context.Context, a switchArgs) (none, error) {
	return none{}, s.switchBroker(ctx, a.Broker, alterBroker{removing: switchOf(a.On)})
}

// switchBroker makes a change to whatever registration a broker has.
func (s *Store) switchBroker(ctx context.Context, id BrokerID, change alterBroker) error {
	for attempt := 1; ; attempt++ {
		l, err := s.controller()
		if err != nil {
			return err
		}
		im := s.Image()
		b := im.Broker(id)
		if b == nil {
			return unknownBroker(id)
		}
		change.broker, change.epoch, change.policy = id, b.Epoch, s.policy(im)
		value, err := s.proposeIn(ctx, l.term, &change)
		if errors.Is(err, ErrStaleBrokerEpoch) && attempt < maxAttempts {
			continue // it has registered anew meanwhile
		}
		if err != nil {
			return fmt.Errorf("change broker %d: %w", id, err)
		}
		s.logBroker(b, &change, value.(failover))
		return nil
	}
}

// UnregisterBroker forgets a broker that holds no replica and is fenced, or is being decommissioned. Neither its id nor
// its directories can come back (M14).
//
// Errors: ErrUnknownBroker, ErrPolicyViolation (it lives, still has replicas, or the quorum can't do without its vote), and
// those of every operation (see CreateTopics).
func (s *Store) UnregisterBroker(ctx context.Context, id BrokerID) error {
	_, err := call(ctx, s, &opUnregisterBroker, id)
	return err
}

func (s *Store) unregisterBroker(ctx context.Context, id BrokerID) (_ none, err error) {
	refused := func(why, fix string) error {
		return &Error{Kind: ErrPolicyViolation, What: fmt.Sprintf("broker %d can't be removed", id), Why: why, Fix: fix}
	}
	hosts := refused("partitions still have replicas on it", "decommission it first and wait until its replicas are moved away")
	s.carryOut(ctx, []plan{{
		decide: func(im *Image) (command, error) {
			b := im.Broker(id)
			switch {
			case b == nil:
				return nil, unknownBroker(id)
			case !b.Fenced && !b.Removing:
				return nil, refused("it lives and serves", "decommission it first, or stop it")
			case im.st.hosts(id):
				return nil, hosts
			}
			if missing := s.missedVote(id); missing != "" {
				return nil, refused(missing, "bring the other voters back first, or wait until another broker votes in its place: millrace cluster quorum peers")
			}
			return &unregisterBroker{broker: id, epoch: b.Epoch}, nil
		},
		done: func(_ any, e error) {
			switch err = e; err {
			case nil:
				s.logger.Info("broker removed", "broker", id)
			case ErrPolicyViolation:
				err = hosts // got one after decide, or was taken back
			case ErrUnknownBroker:
				err = unknownBroker(id)
			}
		},
	}})
	return none{}, err
}

// UpdateFeatureLevel raises the feature level, once every registered broker supports it (D17).
//
// Errors: ErrInvalidFeatureLevel, and those of every operation (see CreateTopics).
func (s *Store) UpdateFeatureLevel(ctx context.Context, level uint32) error {
	_, err := call(ctx, s, &opUpdateFeatureLevel, level)
	return err
}

// CheckFeatureLevel says why the feature level can't become level, as far as this Image tells: nil if it can, or already
// is level. The controller checks again, with what it knows itself.
//
// Errors: ErrInvalidFeatureLevel.
func (im *Image) CheckFeatureLevel(level uint32) error {
	if present := im.FeatureLevel(); level < present {
		return featureLevelRefused(level, fmt.Sprintf("it is %d, and what was written at that level can't be read at a lower one", present), "keep it")
	}
	for _, b := range im.Brokers() {
		if level < b.MinFeatureLevel || level > b.MaxFeatureLevel {
			return featureLevelRefused(level, fmt.Sprintf("broker %d (version %s) supports the levels %d to %d", b.ID, b.Version, b.MinFeatureLevel, b.MaxFeatureLevel),
				"upgrade that broker first, or remove it if it is gone for good")
		}
	}
	return nil
}

func featureLevelRefused(level uint32, why, fix string) error {
	return &Error{Kind: ErrInvalidFeatureLevel, What: fmt.Sprintf("the feature level can't be changed to %d", level), Why: why, Fix: fix}
}

func (s *Store) updateFeatureLevel(ctx context.Context, level uint32) (_ none, err error) {
	s.carryOut(ctx, []plan{{
		decide: func(im *Image) (command, error) {
			if err := im.CheckFeatureLevel(level); err != nil {
				return nil, err
			}
			if level > MaxFeatureLevel {
				return nil, featureLevelRefused(level, fmt.Sprintf("the controller supports the levels up to %d", MaxFeatureLevel), "upgrade the brokers first")
			}
			return &setFeatureLevel{expected: im.FeatureLevel(), level: level}, nil
		},
		done: func(_ any, e error) {
			switch err = e; err {
			case nil:
				s.logger.Info("feature level", "level", level)
			case ErrInvalidFeatureLevel:
				err = featureLevelRefused(level, "a broker that does not support it has registered meanwhile", "upgrade that broker first")
			}
		},
	}})
	return none{}, err
}
