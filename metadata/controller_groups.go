package metadata

import (
	"context"
	"errors"
	"fmt"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// groupProposals are commands of a coordinator on their way to the controller: all that waited there (D4). The controller
// proposes them as they are; whether they count is for Apply to say.
type groupProposals struct {
	Commands []groupProposal `json:"commands"`
}

// groupProposal is one encoded command without its term.
type groupProposal struct {
	Kind pb.CommandType `json:"kind"`
	Body []byte         `json:"body"`
}

// groupAnswers are what became of groupProposals, in their order.
type groupAnswers struct {
	// Version is that of an Image in which the outcome can be seen.
	Version uint64        `json:"version"`
	Answers []groupAnswer `json:"answers"`
}

// groupAnswer is what became of one command.
type groupAnswer struct {
	Err      *wireError `json:"error,omitempty"`
	Revision uint64     `json:"revision,omitempty"` // of changeGroup
	// Revisions are those of the steps of a batch.
	Revisions []uint64 `json:"revisions,omitempty"`
	// Refused are the commits or steps of a batch, and their offsets, that were refused; most of the time there are none.
	Refused []refusedCommit `json:"refused,omitempty"`
	Expired *expired        `json:"expired,omitempty"`
	// Prior are the offsets before the seek of a changeGroup.
	Prior []CommittedOffset `json:"prior,omitempty"`
}

// refusedCommit is an error in a batch of commits or steps.
type refusedCommit struct {
	Commit int    `json:"commit"`
	Entry  int    `json:"entry"` // -1 = the whole commit, or step
	Kind   string `json:"kind"`  // as in sentinelNames
}

// common makes the call be tried again when no command was proposed.
func (a groupAnswers) common() error {
	return commonError(len(a.Answers), func(i int) error { return a.Answers[i].Err.err() })
}

// proposeGroups proposes what a coordinator sends.
func (s *Store) proposeGroups(ctx context.Context, a groupProposals) (out groupAnswers, err error) {
	l, err := s.controller()
	if err != nil {
		return out, err
	}
	if err := s.groupsReady(); err != nil {
		return out, err
	}
	out.Answers = make([]groupAnswer, len(a.Commands))
	waiting := make([]*proposal, len(a.Commands))
	for i, c := range a.Commands {
		lane, err := s.checkProposal(c)
		if err == nil {
			waiting[i], err = s.submitEncoded(ctx, lane, l.term, appendCommand(make([]byte, 0, len(c.Body)+32), c.Kind, l.term, c.Body))
		}
		out.Answers[i].Err = newWireError(err)
	}
	for i, pr := range waiting {
		if pr == nil || out.Answers[i].Err != nil {
			continue
		}
		value, err := s.proposer.wait(ctx, pr)
		out.Answers[i] = newGroupAnswer(value, err)
	}
	out.Version = s.Image().Version()
	return out, nil
}

// groupsReady refuses groups while the cluster is at an older feature level.
func (s *Store) groupsReady() error {
	level := s.Image().FeatureLevel()
	if level >= GroupsFeatureLevel {
		return nil
	}
	return &Error{
		Kind: ErrInvalidFeatureLevel,
		What: "there are no groups and committed offsets in this cluster yet",
		Why:  fmt.Sprintf("its feature level is %d; they came with level %d", level, GroupsFeatureLevel),
		Fix:  fmt.Sprintf("when all brokers are upgraded, raise the feature level to %d", GroupsFeatureLevel),
	}
}

// checkProposal makes sure that a command is one of those that a coordinator may send, and that it can be read: an entry
// that can't would stop every broker. It returns the lane for it.
func (s *Store) checkProposal(c groupProposal) (lane, error) {
	l := metadataLane
	switch c.Kind {
	case pb.CommandType_COMMAND_CHANGE_GROUP, pb.CommandType_COMMAND_DELETE_OFFSETS:
	case pb.CommandType_COMMAND_COMMIT_OFFSETS:
		if err := s.room(); err != nil {
			return offsetsLane, err
		}
		r := commitReaders.Get().(*commitReader)
		defer r.done()
		_, err := r.read(c.Body)
		return offsetsLane, unreadable(err)
	case pb.CommandType_COMMAND_EXPIRE_OFFSETS:
		l = offsetsLane
		if err := s.room(); err != nil {
			return l, err
		}
	case pb.CommandType_COMMAND_TRANSACT:
		return transactionsLane, s.checkTransact(c.Body)
	default:
		return l, fmt.Errorf("%w: a coordinator can't propose %v", ErrInvalidRequest, c.Kind)
	}
	_, err := decodeCommand(c.Kind, c.Body)
	return l, unreadable(err)
}

// unreadable is the refusal of what can't be read; nil of nil.
func unreadable(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: read a command of a coordinator: %w", ErrInvalidRequest, err)
}

// checkTransact is checkProposal of a batch of steps. With a full disk transactions can still be ended.
func (s *Store) checkTransact(body []byte) error {
	if err := s.transactionsReady(); err != nil {
		return err // an older broker would stop at the command (M2)
	}
	c, err := decodeTransact(body)
	if err != nil {
		return fmt.Errorf("%w: read steps of transactions: %w", ErrInvalidRequest, err)
	}
	for _, step := range c.(*transact).steps {
		switch step.(type) {
		case *TransactionAddition, *TransactionOffsets:
			if err := s.room(); err != nil {
				return err
			}
		}
	}
	return nil
}

func newGroupAnswer(value any, err error) (a groupAnswer) {
	a.Err = newWireError(err)
	switch value := value.(type) {
	case uint64:
		a.Revision = value
	case sought:
		a.Revision, a.Prior = value.revision, value.prior
	case expired:
		a.Expired = &value
	case []commitOutcome:
		for i, out := range value {
			a.refuse(i, out.err, out.entries)
		}
	case []stepOutcome:
		a.Revisions = make([]uint64, len(value))
		for i, out := range value {
			a.Revisions[i] = out.revision
			a.refuse(i, out.err, out.entries)
		}
	}
	return a
}

func (a *groupAnswer) refuse(commit int, err error, entries []error) {
	if err != nil {
		a.Refused = append(a.Refused, refusedCommit{commit, -1, sentinelName(err)})
	}
	for i, err := range entries {
		if err != nil {
			a.Refused = append(a.Refused, refusedCommit{commit, i, sentinelName(err)})
		}
	}
}

// steps returns what became of items, which were sent as the commits or steps of one batch.
func (a *groupAnswer) steps(items []*outboxItem) []stepOutcome {
	outcomes := make([]stepOutcome, len(items))
	for i := range min(len(items), len(a.Revisions)) {
		outcomes[i].revision = a.Revisions[i]
	}
	for _, r := range a.Refused {
		switch {
		case r.Commit < 0 || r.Commit >= len(items) || r.Entry >= items[r.Commit].entries:
		case r.Entry < 0:
			outcomes[r.Commit].err = sentinelOf(r.Kind)
		default:
			if outcomes[r.Commit].entries == nil {
				outcomes[r.Commit].entries = make([]error, items[r.Commit].entries)
			}
			outcomes[r.Commit].entries[r.Entry] = sentinelOf(r.Kind)
		}
	}
	return outcomes
}

// sentinelName returns the name under which a sentinel that Apply returned travels.
func sentinelName(err error) string {
	for name, sentinel := range sentinelNames {
		if errors.Is(err, sentinel) {
			return name
		}
	}
	return "failed"
}

// sentinelOf is the reverse; of a name that this binary does not know it is an error that matches none.
func sentinelOf(name string) error {
	if err, ok := sentinelNames[name]; ok {
		return err
	}
	return fmt.Errorf("refused: %s", quoteShort(name))
}
