package metadata

// The changes that a group's coordinator makes. They are answered by callback, exactly once, from any goroutine, also when
// the Store closes; they never block but for a moment.
//
// The errors of all of them, beside their own: ErrNotCoordinator when this broker does not coordinate the group where the
// change would be applied, ErrBusy and ErrNotController when it was not proposed in time, ErrInvalidFeatureLevel while the
// cluster's feature level has no groups yet, ErrClosed, ErrFailed. They are definite: nothing was changed. ErrTimeout is
// not (M11).

// ChangeGroup proposes a change of a group, and calls done once it is applied here: Image shows it then.
//
// Errors: ErrStale when the group has another revision, is there though it should not, or has had a later generation;
// ErrGroupNotEmpty (Delete with members), ErrInvalidRequest (a change that contradicts itself), and those above.
func (s *Store) ChangeGroup(change GroupChange, done func(revision uint64, err error)) {
	done(0, ErrBusy)
}

// DeleteGroup deletes a group without members and its offsets, whatever its revision. time is the coordinator's clock in
// unix milliseconds.
//
// Errors: ErrGroupNotFound, ErrGroupNotEmpty, and those above.
func (s *Store) DeleteGroup(group string, time int64, done func(err error)) {
	done(ErrBusy)
}

// CommitOffsets commits offsets and calls done once they are applied here, with an error of each entry, nil if none has
// one, or an error of the whole. Commits of one group are applied in the order of the calls. Commits of a group that has
// no record make one.
//
// Errors of the whole: ErrGroupNotFound (a generation of a group that is not there), ErrUnknownMember (also of a commit from
// outside while there are members), ErrFencedInstance, ErrIllegalGeneration, ErrStaleMemberEpoch, ErrInvalidRequest, and
// those above. Errors of an entry: ErrUnknownTopicID, ErrUnknownPartition.
func (s *Store) CommitOffsets(commit OffsetCommit, done func(entries []error, err error)) {
	done(nil, ErrBusy)
}

// DeleteOffsets deletes committed offsets; those that are not there are no error.
//
// Errors: ErrGroupNotFound, ErrStale (another revision), and those above.
func (s *Store) DeleteOffsets(deletion OffsetDeletion, done func(err error)) {
	done(ErrBusy)
}
