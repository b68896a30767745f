package metadata

// What coordinators do to a Replica. The broker's id and epoch are the caller's to fill in, so that a simulation can have
// zombies; errors are those of Store's methods of the same names, without those of the way to the controller.

// ChangeGroup applies a change of a group, with its Broker and BrokerEpoch.
func (r *Replica) ChangeGroup(change GroupChange) (revision uint64, err error) {
	return 0, ErrBusy
}

// CommitOffsets applies a commit that a broker's registration proposes, and returns the errors of its entries, nil if none
// has one.
func (r *Replica) CommitOffsets(broker BrokerID, epoch int64, commit OffsetCommit) ([]error, error) {
	return nil, ErrBusy
}

// DeleteOffsets deletes offsets as a broker's registration proposes.
func (r *Replica) DeleteOffsets(broker BrokerID, epoch int64, deletion OffsetDeletion) error {
	return ErrBusy
}
