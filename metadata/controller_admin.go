package metadata

import (
	"cmp"
	"context"
	"errors"
)

// AssignBrokerID gives the broker with that (first) log directory its id: the one it had before, else want, else, with
// want -1, one that no broker ever had. With replace it takes over the id want of a broker that is dead for good.
//
// Errors: ErrDuplicateBroker when want belongs to another directory, ErrRemoved when the directory's broker was removed
// from the cluster (M14), ErrInvalidRequest.
func (s *Store) AssignBrokerID(ctx context.Context, dir DirectoryID, want BrokerID, replace bool) (BrokerID, error) {
	id, err := call(ctx, s, &opAssignBrokerID, assignBrokerIDArgs{dir, want, replace})
	if err != nil {
		return NoBroker, err
	}
	return id, nil
}

func (s *Store) assignBrokerID(ctx context.Context, a assignBrokerIDArgs) (BrokerID, error) {
	return NoBroker, errors.ErrUnsupported
}

// ElectLeaders elects leaders of the partitions given, of all with nil, and returns what came of each; with nil only those
// where something was done or should have been.
func (s *Store) ElectLeaders(ctx context.Context, kind ElectionKind, partitions []TopicPartition) []ElectionResult {
	results, err := call(ctx, s, &opElectLeaders, electLeadersArgs{kind, partitions})
	if err != nil {
		results = make([]ElectionResult, len(partitions))
		for i, tp := range partitions {
			results[i] = ElectionResult{TopicPartition: tp, Leader: NoBroker, Err: err}
		}
	}
	return results
}

func (s *Store) electLeaders(ctx context.Context, kind ElectionKind, partitions []TopicPartition) []ElectionResult {
	return nil
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
	return make([]error, len(moves))
}

// SetMaintenance takes a broker's leaderships away and keeps them away, until it is switched off.
//
// Errors: ErrUnknownBroker, and those of every operation (see CreateTopics).
func (s *Store) SetMaintenance(ctx context.Context, id BrokerID, on bool) error {
	_, err := call(ctx, s, &opSetMaintenance, switchArgs{id, on})
	return err
}

func (s *Store) setMaintenance(ctx context.Context, a switchArgs) (none, error) {
	return none{}, errors.ErrUnsupported
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
	return none{}, errors.ErrUnsupported
}

// UnregisterBroker forgets a broker that holds no replica and is fenced, or is being decommissioned. Neither its id nor
// its directories can come back (M14).
//
// Errors: ErrUnknownBroker, ErrPolicyViolation (it lives, or still has replicas), and those of every operation (see
// CreateTopics).
func (s *Store) UnregisterBroker(ctx context.Context, id BrokerID) error {
	_, err := call(ctx, s, &opUnregisterBroker, id)
	return err
}

func (s *Store) unregisterBroker(ctx context.Context, id BrokerID) (none, error) {
	return none{}, errors.ErrUnsupported
}

// UpdateFeatureLevel raises the feature level, once every registered broker supports it (D17).
//
// Errors: ErrInvalidFeatureLevel, and those of every operation (see CreateTopics).
func (s *Store) UpdateFeatureLevel(ctx context.Context, level uint32) error {
	_, err := call(ctx, s, &opUpdateFeatureLevel, level)
	return err
}

func (s *Store) updateFeatureLevel(ctx context.Context, level uint32) (none, error) {
	return none{}, errors.ErrUnsupported
}
