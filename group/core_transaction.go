package group

// transactionCommit says whether offsets may be proposed that are committed with a transaction (KIP-447). Who names neither
// member nor generation, as clients before that do, is fenced by its producer epoch alone, also while the group has members.
// A generation whose assignments are not known yet is no reason to refuse: the offsets are of the one before, and it is over.
func (c *Core) transactionCommit(now Time, r *CommitRequest) error {
	switch {
	case r.Generation < 0 && r.Member == "" && r.Instance == "", r.Generation < 0 && c.members() == 0:
		return nil
	case c.record == nil && c.members() == 0:
		return ErrIllegalGeneration
	case c.consumer != nil:
		return c.consumerCommit(now, r)
	}
	_, err := c.current(r.Member, r.Instance, r.Generation)
	return err
}
