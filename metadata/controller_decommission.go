package metadata

import (
	"context"
	"errors"
)

// finishDecommissions removes brokers that are to go and have no replica left, so that nobody has to watch the moves for
// it. One that the quorum can't do without yet is tried again the next time; when, is what the operator is told who asks
// for the removal.
func (s *Store) finishDecommissions(ctx context.Context) {
	im := s.Image()
	for _, b := range im.Brokers() {
		if !b.Removing || im.st.hosts(b.ID) || s.missedVote(b.ID) != "" {
			continue
		}
		switch _, err := s.unregisterBroker(ctx, b.ID); {
		case err == nil:
			s.logger.Info("decommission finished: the broker's process can be stopped, and its data removed", "broker", b.ID)
		case !errors.Is(err, ErrPolicyViolation) && !errors.Is(err, ErrUnknownBroker): // else it was taken back, or is done
			s.logger.Warn("decommissioned broker not removed yet", "broker", b.ID, "error", err)
		}
	}
}
