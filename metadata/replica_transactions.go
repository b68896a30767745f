package metadata

// What coordinators of transactions and of groups, and leaders of partitions, do to a Replica. As in replica_groups.go the
// broker's id and epoch are the caller's to fill in, and errors are those of Store's methods of the same names.

// AllocateProducerIDs gives out a block of producer ids.
func (r *Replica) AllocateProducerIDs() (first int64, count int, err error) {
	v, err := r.do(&allocateProducerIDs{expectedNext: r.fsm.st.nextProducerID, count: producerIDBlock})
	if err != nil {
		return 0, 0, err
	}
	return v.(int64), producerIDBlock, nil
}

// DeleteTopic deletes a topic.
func (r *Replica) DeleteTopic(id TopicID) error {
	_, err := r.do(&deleteTopic{id: id, request: requestID(id)})
	return err
}

// ReplicaBatch is the place of one step among those of a broker. A simulation that holds a step up takes its place when the
// broker sends it, and applies it there later: ErrStale from a place says that a later one of the same lane was applied, or
// that coordinators have changed, since it was taken. A Store answers a step that it has not given up with ErrStale never: it
// takes another place if coordinators have changed.
type ReplicaBatch struct {
	broker           BrokerID
	epoch            int64
	coordinatorEpoch int32
	lane             uint32
	sequence         uint64
}

// Place takes a place for a step of a transactional id (or for a report of markers, with any key).
func (r *Replica) Place(broker BrokerID, epoch int64, id string) ReplicaBatch {
	r.sequence++
	return ReplicaBatch{broker, epoch, r.fsm.st.coordinatorEpoch, transactionLaneOf(id), r.sequence}
}

// ChangeTransaction applies a change of a transactional id that a broker's registration proposes.
func (r *Replica) ChangeTransaction(broker BrokerID, epoch int64, change TransactionChange) (revision uint64, err error) {
	return r.ChangeTransactionAt(r.Place(broker, epoch, change.ID), change)
}

// ChangeTransactionAt is ChangeTransaction of a step that was sent earlier.
func (r *Replica) ChangeTransactionAt(at ReplicaBatch, change TransactionChange) (revision uint64, err error) {
	out := r.step(at, &change)
	return out.revision, out.err
}

// AddToTransaction applies an addition that a broker's registration proposes.
func (r *Replica) AddToTransaction(broker BrokerID, epoch int64, addition TransactionAddition) error {
	return r.AddToTransactionAt(r.Place(broker, epoch, addition.ID), addition)
}

// AddToTransactionAt is AddToTransaction of a step that was sent earlier.
func (r *Replica) AddToTransactionAt(at ReplicaBatch, addition TransactionAddition) error {
	return r.step(at, &addition).err
}

// CommitTransactionOffsets applies offsets that a broker's registration proposes, unless Implicit with the transaction that
// the Replica shows now.
func (r *Replica) CommitTransactionOffsets(broker BrokerID, epoch int64, commit TransactionOffsets) ([]error, error) {
	return r.CommitTransactionOffsetsAt(r.Place(broker, epoch, commit.TransactionalID), r.Numbered(commit))
}

// Numbered returns a commit that names the transaction that the Replica shows now, as Store does before it sends one.
func (r *Replica) Numbered(commit TransactionOffsets) TransactionOffsets {
	if t := r.fsm.st.transaction(commit.TransactionalID); t != nil && !commit.Implicit {
		commit.number = t.Number
	}
	return commit
}

// CommitTransactionOffsetsAt is CommitTransactionOffsets of a step that was Numbered and sent earlier. ErrStale says too that
// its transaction has ended, and that the group is in the next one.
func (r *Replica) CommitTransactionOffsetsAt(at ReplicaBatch, commit TransactionOffsets) ([]error, error) {
	out := r.step(at, &commit)
	return out.entries, out.err
}

// MarkersWritten applies a report that a broker's registration makes.
func (r *Replica) MarkersWritten(broker BrokerID, epoch int64, markers []WrittenMarker) error {
	return r.MarkersWrittenAt(r.Place(broker, epoch, "markers"), markers)
}

// MarkersWrittenAt is MarkersWritten of a report that was sent earlier.
func (r *Replica) MarkersWrittenAt(at ReplicaBatch, markers []WrittenMarker) error {
	return r.step(at, writtenMarkers(markers)).err
}

// step applies one step in a batch of its own.
func (r *Replica) step(at ReplicaBatch, step transactionStep) stepOutcome {
	v, err := r.do(&transact{
		broker: at.broker, epoch: at.epoch, coordinatorEpoch: at.coordinatorEpoch, lane: at.lane, sequence: at.sequence, steps: []transactionStep{step},
	})
	if err != nil {
		return stepOutcome{err: err}
	}
	return v.([]stepOutcome)[0]
}
