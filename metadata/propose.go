package metadata

import (
	"context"
	"fmt"
)

// proposeIn proposes a command decided on in the given term, and returns its outcome once it is applied here (M12).
func (s *Store) proposeIn(ctx context.Context, term uint64, c command) (any, error) {
	r := s.proposeAll(ctx, term, []command{c})
	return r[0].value, r[0].err
}

// proposeAll proposes commands together, so that they share entries, and waits for all outcomes.
func (s *Store) proposeAll(ctx context.Context, term uint64, commands []command) []result {
	results := make([]result, len(commands))
	last := make([]*proposal, len(commands))
	for i, c := range commands {
		last[i], results[i].err = s.submit(ctx, term, c)
	}
	for i, pr := range last {
		if pr != nil {
			results[i].value, results[i].err = s.proposer.wait(ctx, pr)
		}
	}
	return results
}

// submit queues a command, or the parts of one that is too large for an entry, and returns the proposal that brings the
// outcome. With an error nothing will be applied.
func (s *Store) submit(ctx context.Context, term uint64, c command) (*proposal, error) {
	data, err := encodeCommand(c, term)
	if err != nil {
		return nil, err
	}
	return s.submitEncoded(ctx, metadataLane, term, data)
}

// submitEncoded is submit of what encodeCommand returned.
func (s *Store) submitEncoded(ctx context.Context, l lane, term uint64, data []byte) (*proposal, error) {
	if len(data) <= maxPartBytes {
		pr := newProposal(data)
		return pr, s.proposer.submit(ctx, l, pr)
	}
	if len(data) > maxChainBytes {
		return nil, &Error{
			Kind: ErrPolicyViolation,
			What: fmt.Sprintf("the change takes %d bytes of metadata", len(data)),
			Why:  fmt.Sprintf("one change may take at most %d bytes", maxChainBytes),
			Fix:  "ask for less in one request",
		}
	}
	parts := (len(data) + maxPartBytes - 1) / maxPartBytes
	id := requestID(s.newID())
	// One chain after the other: the state holds few unfinished ones, and a lane keeps the order, so that the parts of no
	// other of this controller come between.
	s.chaining.Lock()
	defer s.chaining.Unlock()
	var pr *proposal
	for i := range parts {
		piece := data[i*maxPartBytes : min((i+1)*maxPartBytes, len(data))]
		part, err := encodeCommand(&chainPart{chain: id, part: uint32(i), parts: uint32(parts), data: piece}, term)
		if err != nil {
			return nil, err
		}
		pr = newProposal(part)
		// Without its last part a chain has no effect, so an error here is as definite as that of a single command.
		if err := s.proposer.submit(ctx, l, pr); err != nil {
			return nil, err
		}
	}
	return pr, nil
}
