package metadata

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// The changes that a group's coordinator makes. They are answered by callback, exactly once, from any goroutine, also when
// the Store closes; neither they nor the callbacks may block for more than a moment. Arguments are encoded before the call
// returns and may then be used again.
//
// The errors of all of them, beside their own: ErrNotCoordinator when this broker does not coordinate the group where the
// change would be applied, ErrBusy and ErrNotController when it was not proposed in time, ErrInvalidFeatureLevel while the
// cluster's feature level has no groups yet, ErrPolicyViolation when it is too large, ErrClosed, ErrFailed. They are
// definite: nothing was changed. ErrTimeout is not (M11).

// ChangeGroup proposes a change of a group, and calls done once it is applied here: Image shows it then.
//
// Errors: ErrStale when the group has another revision, is there though it should not, or has had a later generation;
// ErrGroupNotFound and ErrGroupNotEmpty of a deletion, ErrUnknownTopicID and ErrUnknownPartition of a seek, ErrInvalidRequest
// of a change that contradicts itself, and those above.
func (s *Store) ChangeGroup(change GroupChange, done func(revision uint64, err error)) {
	if err := s.coordinates(change.Group); err != nil {
		done(0, err)
		return
	}
	if err := change.check(); err != nil {
		done(0, err)
		return
	}
	var prior func([]CommittedOffset)
	if change.Seek != nil {
		if err := s.maySeek(); err != nil {
			done(0, err)
			return
		}
		prior = change.Seek.Prior
	}
	if s.Image().FeatureLevel() < TransactionsFeatureLevel {
		change.PutOutAt = 0 // an older broker does not know it (M2)
	}
	change.Broker, change.BrokerEpoch = s.self()
	s.outbox.change(change.Group, newChangeGroup(&change), prior, func(revision uint64, _ []error, err error) { done(revision, err) })
}

// maySeek refuses a seek that an older broker could not apply (M2), or for which there is no room on the disk.
func (s *Store) maySeek() error {
	if level := s.Image().FeatureLevel(); level < TransactionsFeatureLevel {
		return &Error{
			Kind: ErrInvalidFeatureLevel,
			What: "offsets of a group with members can't be set in this cluster yet",
			Why:  fmt.Sprintf("its feature level is %d; that came with level %d", level, TransactionsFeatureLevel),
			Fix:  "millrace cluster upgrade finalize   when all brokers are upgraded, or stop the members first",
		}
	}
	return s.room()
}

// DeleteGroup deletes a group without members and its offsets, whatever its revision. at is the coordinator's clock.
//
// Errors: ErrGroupNotFound, ErrGroupNotEmpty, and those above.
func (s *Store) DeleteGroup(group string, at time.Time, done func(err error)) {
	s.deleteGroup(group, at, 1, done)
}

func (s *Store) deleteGroup(group string, at time.Time, attempt int, done func(err error)) {
	if err := s.coordinates(group); err != nil {
		done(err)
		return
	}
	g := s.Image().Group(group)
	switch {
	case g == nil:
		done(ErrGroupNotFound)
		return
	case len(g.Members) > 0:
		done(ErrGroupNotEmpty)
		return
	}
	s.ChangeGroup(GroupChange{Group: group, Revision: g.Revision, Type: g.Type, Delete: true, Time: at.UnixMilli()}, func(_ uint64, err error) {
		if errors.Is(err, ErrStale) && attempt < maxAttempts {
			s.deleteGroup(group, at, attempt+1, done)
			return
		}
		done(err)
	})
}

// CommitOffsets commits offsets and calls done once they are applied here, with the errors of the entries, nil if none has
// one, or an error of the whole. Commits of one group are applied in the order of the calls. A commit to a group that has
// no record makes one.
//
// Errors of the whole: ErrGroupNotFound (a generation of a group that is not there), ErrUnknownMember (also of a commit from
// outside while there are members), ErrFencedInstance, ErrIllegalGeneration, ErrStaleMemberEpoch, and those above. Errors
// of an entry: ErrUnknownTopicID, ErrUnknownPartition, ErrInvalidRequest (a negative offset).
func (s *Store) CommitOffsets(commit OffsetCommit, done func(entries []error, err error)) {
	if err := s.coordinates(commit.Group); err != nil {
		done(nil, err)
		return
	}
	if commit.Group == "" { // the controller would refuse the whole batch for it
		done(nil, fmt.Errorf("%w: offset commit of no group", ErrInvalidRequest))
		return
	}
	if slices.ContainsFunc(commit.Offsets, func(o OffsetEntry) bool { return o.Partition < 0 }) {
		withoutUnknown(commit.Offsets, done, func(good []OffsetEntry, done func([]error, error)) {
			commit.Offsets = good
			s.outbox.commit(commit, done)
		})
		return
	}
	s.outbox.commit(commit, done)
}

// withoutUnknown commits all entries but those that can't even be encoded.
func withoutUnknown(offsets []OffsetEntry, done func([]error, error), commit func([]OffsetEntry, func([]error, error))) {
	all := make([]error, len(offsets))
	var good []OffsetEntry
	var of []int
	for i, o := range offsets {
		if o.Partition < 0 {
			all[i] = ErrUnknownPartition
			continue
		}
		good = append(good, o)
		of = append(of, i)
	}
	commit(good, func(entries []error, err error) {
		if err != nil {
			done(nil, err)
			return
		}
		for i, err := range entries {
			all[of[i]] = err
		}
		done(all, nil)
	})
}

// DeleteOffsets deletes committed offsets; those that are not there are no error.
//
// Errors: ErrGroupNotFound, ErrStale (another revision), and those above.
func (s *Store) DeleteOffsets(deletion OffsetDeletion, done func(err error)) {
	if err := s.coordinates(deletion.Group); err != nil {
		done(err)
		return
	}
	id, epoch := s.self()
	partitions := slices.DeleteFunc(slices.Clone(deletion.Partitions), func(tp TopicIDPartition) bool { return tp.Partition < 0 })
	c := &deleteOffsets{broker: id, epoch: epoch, group: deletion.Group, revision: deletion.Revision, partitions: partitions}
	s.outbox.change(deletion.Group, c, nil, func(_ uint64, _ []error, err error) { done(err) })
}

// coordinates refuses what would be refused in Apply, as far as this broker can tell.
func (s *Store) coordinates(group string) error {
	if err := s.groupsReady(); err != nil {
		return err
	}
	id, _ := s.Image().Coordinator(GroupCoordinator, group)
	if id == s.cfg.NodeID {
		return nil
	}
	e := &Error{
		Kind: ErrNotCoordinator,
		What: fmt.Sprintf("broker %d does not coordinate group %s", s.cfg.NodeID, quoteShort(group)),
		Why:  fmt.Sprintf("broker %d does", id),
		Fix:  "ask for the coordinator and try again there",
	}
	if id == NoBroker {
		e.Why = "no broker is fit to at the moment"
	}
	return e
}

// encodeBody appends the encoding of a command without its envelope.
func encodeBody(b []byte, c command) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, c.message())
	if err != nil {
		return nil, unencodable(c.kind().String(), err)
	}
	return b, nil
}

// unencodable is the refusal of what has text that is no text.
func unencodable(what string, err error) error {
	return fmt.Errorf("%w: encode %s: %w", ErrInvalidRequest, what, err)
}

// change queues a command about one group. prior may be nil, see outboxItem.
func (o *outbox) change(group string, c command, prior func([]CommittedOffset), done func(uint64, []error, error)) {
	body, err := encodeBody(nil, c)
	if err == nil && len(body) > maxChangeBytes {
		err = &Error{
			Kind: ErrPolicyViolation,
			What: fmt.Sprintf("the change of group %s takes %d bytes", quoteShort(group), len(body)),
			Why:  fmt.Sprintf("one change may take at most %d bytes", maxChangeBytes),
			Fix:  "let the members send less metadata, or use fewer members",
		}
	}
	if err != nil {
		done(0, nil, err)
		return
	}
	o.order.change(laneOf(o.changes[:], group), group, &outboxItem{kind: c.kind(), body: body, deadline: time.Now().Add(outboxTimeout), prior: prior, done: done})
}

// commitPartBytes is how much of one commit goes into an item, about: a commit of very many partitions is sent in parts,
// which may be applied one without the other.
const commitPartBytes = batchBytes / 4

// commit queues a commit.
func (o *outbox) commit(c OffsetCommit, done func([]error, error)) {
	parts := o.commitParts(&c)
	if len(parts) == 1 {
		o.putCommit(&c, done)
		return
	}
	join := &commitJoin{entries: make([]error, len(c.Offsets)), left: len(parts), done: done}
	at := 0
	for _, entries := range parts {
		part, from := c, at
		part.Offsets = entries
		at += len(entries)
		o.putCommit(&part, func(refused []error, err error) { join.part(from, len(entries), refused, err) })
	}
}

// commitParts cuts the offsets of a commit.
func (o *outbox) commitParts(c *OffsetCommit) (parts [][]OffsetEntry) {
	from, size := 0, 0
	for i := range c.Offsets {
		size += 40 + len(c.Offsets[i].Metadata)
		if size > commitPartBytes && i > from {
			parts = append(parts, c.Offsets[from:i:i])
			from, size = i, 40+len(c.Offsets[i].Metadata)
		}
	}
	return append(parts, c.Offsets[from:])
}

func (o *outbox) putCommit(c *OffsetCommit, done func([]error, error)) {
	body, err := c.append(make([]byte, 0, c.maxSize()))
	if err != nil {
		err = unencodable("a commit of group "+quoteShort(c.Group), err)
	} else if len(body) > batchBytes-16 {
		err = &Error{
			Kind: ErrPolicyViolation,
			What: fmt.Sprintf("an offset of group %s takes %d bytes", quoteShort(c.Group), len(body)),
			Why:  fmt.Sprintf("one may take at most %d with its metadata", batchBytes-16),
			Fix:  "commit less metadata",
		}
	}
	if err != nil {
		done(nil, err)
		return
	}
	body = prefix(body, 0, commitField)
	o.order.commit(laneOf(o.offsets[:], c.Group), c.Group, &outboxItem{
		kind: pb.CommandType_COMMAND_COMMIT_OFFSETS, body: body, entries: len(c.Offsets), deadline: time.Now().Add(outboxTimeout),
		done: func(_ uint64, refused []error, err error) { done(refused, err) },
	}, laneOf(o.changes[:], c.Group))
}

// commitJoin puts the outcomes of a commit's parts together.
type commitJoin struct {
	mu      sync.Mutex
	entries []error
	refused bool
	left    int
	failed  int   // parts
	err     error // of the last failed part
	parts   int
	done    func([]error, error)
}

func (j *commitJoin) part(from, n int, refused []error, err error) {
	j.mu.Lock()
	j.parts++
	switch {
	case err != nil:
		j.failed++
		j.err, j.refused = err, true
		for i := range n {
			j.entries[from+i] = err
		}
	case refused != nil:
		j.refused = true
		copy(j.entries[from:from+n], refused)
	}
	j.left--
	last := j.left == 0
	j.mu.Unlock()
	switch {
	case !last:
	case j.failed == j.parts:
		j.done(nil, j.err)
	case j.refused:
		j.done(j.entries, nil)
	default:
		j.done(nil, nil)
	}
}
