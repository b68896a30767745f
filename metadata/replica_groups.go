package metadata

// What coordinators do to a Replica. The broker's id and epoch are the caller's to fill in, so that a simulation can have
// zombies; errors are those of Store's methods of the same names, without those of the way to the controller.

// ChangeGroup applies a change of a group, with its Broker and BrokerEpoch.
func (r *Replica) ChangeGroup(change GroupChange) (revision uint64, err error) {
	v, err := r.do(newChangeGroup(&change))
	if err != nil {
		return 0, err
	}
	if did, ok := v.(sought); ok {
		if change.Seek.Prior != nil {
			change.Seek.Prior(did.prior)
		}
		return did.revision, nil
	}
	return v.(uint64), nil
}

// CommitOffsets applies a commit that a broker's registration proposes, in a batch of its own, and returns the errors of
// its entries, nil if none has one.
func (r *Replica) CommitOffsets(broker BrokerID, epoch int64, commit OffsetCommit) ([]error, error) {
	r.sequence++
	v, err := r.do(&commitOffsets{
		broker: broker, epoch: epoch, coordinatorEpoch: r.fsm.st.coordinatorEpoch, sequence: r.sequence, commits: []OffsetCommit{commit},
	})
	if err != nil {
		return nil, err
	}
	out := v.([]commitOutcome)[0]
	return out.entries, out.err
}

// DeleteOffsets deletes offsets as a broker's registration proposes.
func (r *Replica) DeleteOffsets(broker BrokerID, epoch int64, deletion OffsetDeletion) error {
	_, err := r.do(&deleteOffsets{
		broker: broker, epoch: epoch, group: deletion.Group, revision: deletion.Revision, partitions: deletion.Partitions,
	})
	return err
}

// ExpireOffsets drops what is too old at a time, in unix milliseconds, of the groups that a broker coordinates, as Store
// does by itself.
func (r *Replica) ExpireOffsets(broker BrokerID, epoch int64, now, retentionMillis int64) error {
	for _, c := range r.Image().expirations(broker, now, retentionMillis, nil) {
		c.broker, c.epoch = broker, epoch
		if _, err := r.do(c); err != nil {
			return err
		}
	}
	return nil
}
