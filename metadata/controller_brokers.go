package metadata

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// RegisterBroker registers a broker and returns its new broker epoch. The leader epoch of every partition that it leads
// grows by one, so that nothing written under the old registration can be continued under the same epoch (R14). The
// caller must not start a replica before Image().Broker(id).Epoch is the returned one (M16); at the controller itself it
// is when RegisterBroker returns.
//
// Errors: ErrDuplicateBroker while another process of that id lives (M13), ErrInvalidRequest, ErrPolicyViolation when the
// cluster's feature level is not one the broker knows.
func (s *Store) RegisterBroker(ctx context.Context, r Registration) (epoch int64, err error) {
	epoch, err = call(ctx, s, &opRegisterBroker, r)
	if err == nil && r.ID == s.cfg.NodeID {
		s.registered.Store(epoch)
	}
	return epoch, err
}

func (s *Store) registerBroker(ctx context.Context, r Registration) (epoch int64, err error) {
	if _, err := newBroker(r); err != nil {
		return 0, err
	}
	var out registered
	s.carryOut(ctx, []plan{{
		decide: func(im *Image) (command, error) { return s.decideRegistration(ctx, im, &r) },
		done: func(value any, e error) {
			if err = e; err == nil {
				out = value.(registered)
			}
		},
	}})
	if err != nil {
		return 0, fmt.Errorf("register broker %d: %w", r.ID, registrationError(&r, err))
	}
	s.logger.Info("broker registered", "broker", r.ID, "epoch", out.Epoch, "partitions led", out.Bumped, "leaders moved", out.Moved,
		"leaderless", out.Leaderless, "ISRs shrunk", out.Shrunk)
	s.audit(out.failover)
	for _, tp := range out.Lost {
		if slices.Contains(out.Restarted, tp) {
			s.logger.Error("partition starts anew: its only replica is gone with its log directory",
				"topic", tp.Topic, "partition", tp.Partition, "broker", r.ID)
			continue
		}
		s.logger.Warn("replica must be copied anew: it is gone with its log directory",
			"topic", tp.Topic, "partition", tp.Partition, "broker", r.ID)
	}
	return out.Epoch, nil
}

func newBroker(r Registration) (*Broker, error) {
	bad := func(why string) (*Broker, error) {
		return nil, &Error{
			Kind: ErrInvalidRequest,
			What: fmt.Sprintf("broker %d can't be registered", r.ID),
			Why:  why,
			Fix:  "this is an error of the broker's software, not of its configuration",
		}
	}
	switch {
	case r.ID < 0:
		return bad("its id is negative")
	case r.Incarnation == [16]byte{}:
		return bad("it has no incarnation id")
	case len(r.Directories) == 0:
		return bad("it has no log directory")
	}
	for i, d := range r.Directories {
		if d == (DirectoryID{}) || slices.Contains(r.Directories[:i], d) {
			return bad(fmt.Sprintf("the id %x of its log directory %d is zero or there twice", d, i))
		}
	}
	if r.MinFeatureLevel == 0 && r.MaxFeatureLevel == 0 {
		r.MinFeatureLevel, r.MaxFeatureLevel = MinFeatureLevel, MaxFeatureLevel
	}
	return &Broker{
		ID:              r.ID,
		Incarnation:     r.Incarnation,
		Directories:     slices.Clone(r.Directories),
		Rack:            r.Rack,
		PeerAddress:     r.PeerAddress,
		Listeners:       slices.Clone(r.Listeners),
		Version:         r.Version,
		MinFeatureLevel: r.MinFeatureLevel,
		MaxFeatureLevel: r.MaxFeatureLevel,
	}, nil
}

func (s *Store) decideRegistration(ctx context.Context, im *Image, r *Registration) (command, error) {
	b, err := newBroker(*r)
	if err != nil {
		return nil, err
	}
	c := &registerBroker{broker: b, tailsProven: r.TailsProven, policy: s.policy(im)}
	// The only broker serves at once; one of several shows first that it has caught up.
	b.Fenced = slices.ContainsFunc(im.Brokers(), func(other *Broker) bool { return other.ID != b.ID })
	if level := im.st.featureLevel; level < b.MinFeatureLevel || level > b.MaxFeatureLevel {
		return nil, &Error{
			Kind: ErrPolicyViolation,
			What: fmt.Sprintf("broker %d knows the feature levels %d to %d", b.ID, b.MinFeatureLevel, b.MaxFeatureLevel),
			Why:  fmt.Sprintf("the cluster is at level %d", level),
			Fix:  "start it with the version the other brokers run",
		}
	}
	old := im.Broker(b.ID)
	if old == nil {
		return c, nil
	}
	c.expectedEpoch = old.Epoch
	if old.Incarnation != b.Incarnation && s.alive(ctx, old) {
		return nil, &Error{
			Kind: ErrDuplicateBroker,
			What: fmt.Sprintf("broker id %d is taken", b.ID),
			Why:  fmt.Sprintf("another process registered it and is alive (epoch %d)", old.Epoch),
			Fix:  "stop that process first, or give this one its own node.id and data directory",
		}
	}
	return c, nil
}

// AlterPartition changes ISRs on behalf of their leader. Broker epoch, leader epoch and partition epoch are compared
// inside Apply (R11). A replica that leaves an ISR which is then too small for min.insync.replicas becomes an eligible
// leader replica; once the ISR is large enough there are none (KIP-966).
//
// A broker that is not the leader, or is, may take itself out of ISR and ELR: its change names the present ISR without
// it, and compares the partition epoch (L9). ErrNoEligibleLeader if nobody else has the committed records.
//
// Errors of a change: ErrStaleBrokerEpoch, ErrUnknownTopicID, ErrUnknownPartition, ErrFencedLeaderEpoch, ErrStale (another
// partition epoch), ErrIneligibleReplica, ErrInvalidRequest. None of them is tried again here: the leader decides anew.
func (s *Store) AlterPartition(ctx context.Context, leader BrokerID, leaderBrokerEpoch int64, changes []PartitionChange) []PartitionResult {
	results, err := call(ctx, s, &opAlterPartition, alterPartitionArgs{leader, leaderBrokerEpoch, changes})
	if len(results) != len(changes) {
		results = make([]PartitionResult, len(changes))
		for i := range results {
			results[i].Err = cmp.Or(err, ErrTimeout)
		}
	}
	return results
}

func (s *Store) alterPartitions(ctx context.Context, leader BrokerID, leaderBrokerEpoch int64, changes []PartitionChange) []PartitionResult {
	results := make([]PartitionResult, len(changes))
	l, err := s.controller()
	if err != nil {
		for i := range results {
			results[i].Err = err
		}
		return results
	}
	policy := s.policy(s.Image())
	var commands []command
	for chunk := range slices.Chunk(changes, changesPerCommand) {
		commands = append(commands, &alterPartitions{leader: leader, leaderBrokerEpoch: leaderBrokerEpoch, policy: policy, changes: chunk})
	}
	for i, r := range s.proposeAll(ctx, l.term, commands) {
		altered, _ := r.value.([]alteredPartition)
		for j := range commands[i].(*alterPartitions).changes {
			at := i*changesPerCommand + j
			err := r.err
			if err == nil {
				results[at].Partition, err = altered[j].partition, altered[j].err
			}
			if err != nil {
				results[at] = PartitionResult{Err: fmt.Errorf("alter ISR of partition %d of topic id %s: %w", changes[at].Partition, changes[at].TopicID, err)}
			}
		}
	}
	return results
}

// changesPerCommand bounds the partitions of one command, so that an entry stays small (M20).
const changesPerCommand = 2000

// registrationError gives an answer of Apply, which is a bare sentinel, words.
func registrationError(r *Registration, err error) error {
	switch err {
	case ErrRemoved:
		return removedDirectory(r.ID)
	case ErrDuplicateBroker:
		return &Error{
			Kind: ErrDuplicateBroker,
			What: fmt.Sprintf("broker %d can't be registered", r.ID),
			Why:  "one of its log directories belongs to a broker with another id",
			Fix:  "start it with the node.id its directories were made with, or with empty directories",
		}
	}
	return err
}

func removedDirectory(id BrokerID) error {
	return &Error{
		Kind: ErrRemoved,
		What: fmt.Sprintf("broker %d can't come back", id),
		Why:  "it was removed from this cluster, or another one has taken its place; what is in its log directory may be older than what it acknowledged",
		Fix:  "start it with an empty directory, as a new broker",
	}
}
