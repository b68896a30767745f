package group

import (
	"errors"
	"slices"
	"sync"

	"github.com/millrace/millrace/metadata"
)

// Commit is OffsetCommit: one error or nil for each offset, or an error for all. What is acknowledged is committed, survives
// any failover and is seen by every later Fetch at whoever coordinates then.
func (c *Coordinator) Commit(r CommitRequest, done func([]error, error)) {
	if mutated(mutantUnfenced) {
		if g := c.cfg.Store.Image().Group(r.Group); g != nil && len(g.Members) > 0 {
			r.Member, r.Instance, r.Generation = g.Members[0].ID, g.Members[0].InstanceID, g.Generation
		}
	}
	if err := c.step(r.Group, &Commit{&r}); err != nil {
		done(nil, err)
		return
	}
	if mutated(mutantCommitEarly) {
		done(make([]error, len(r.Offsets)), nil)
		done = func([]error, error) {}
	}
	c.commit(&r, done)
}

// commit proposes a commit that may be proposed; Apply has the last word (G1).
func (c *Coordinator) commit(r *CommitRequest, done func([]error, error)) {
	c.propose(r, c.cfg.Store.CommitOffsets, done)
}

// propose makes the command of a commit, as far as its offsets are well formed, and has it sent.
func (c *Coordinator) propose(r *CommitRequest, send func(metadata.OffsetCommit, func([]error, error)), done func([]error, error)) {
	now := c.cfg.Wall().UnixMilli()
	commit := metadata.OffsetCommit{
		Group: r.Group, Member: r.Member, Instance: r.Instance, Generation: r.Generation, Time: now, Offsets: r.Offsets,
	}
	if r.Retention > 0 {
		commit.ExpiresAt = now + r.Retention.Milliseconds()
	}
	errs := make([]error, len(r.Offsets))
	limit := c.cfg.Settings().OffsetMetadataMaxBytes
	tooLarge := func(o OffsetEntry) bool { return len(o.Metadata) > limit }
	if slices.ContainsFunc(r.Offsets, tooLarge) {
		commit.Offsets = nil
		for i, o := range r.Offsets {
			if tooLarge(o) {
				errs[i] = ErrMetadataTooLarge
			} else {
				commit.Offsets = append(commit.Offsets, o)
			}
		}
	}
	if len(commit.Offsets) == 0 {
		done(errs, nil)
		return
	}
	send(commit, func(entries []error, err error) {
		if err != nil {
			done(nil, fromMetadata(err))
			return
		}
		next := 0
		for i := range errs {
			if errs[i] == nil && next < len(entries) {
				errs[i] = entries[next]
				next++
			}
		}
		done(errs, nil)
	})
}

// Fetch is OffsetFetch. A group that does not exist has no offsets, which is no error. A member that was put out, and that
// may not know it yet, is asked to try again: by then its heartbeat has told it to join. Java's consumer throws ErrUnknownMember
// out of poll, and takes it for no end when it comes as the answer to a heartbeat.
func (c *Coordinator) Fetch(r FetchRequest) ([]FetchedOffset, error) {
	im, err := c.check(r.Group)
	if err != nil {
		return nil, err
	}
	if g := im.Group(r.Group); g != nil && g.Type == metadata.ConsumerGroup && r.Member != "" {
		switch m := g.Member(r.Member); {
		case m == nil && c.unaware(g):
			return nil, ErrCoordinatorLoading
		case m == nil:
			return nil, ErrUnknownMember
		case r.MemberEpoch != m.MemberEpoch:
			return nil, ErrStaleMemberEpoch
		}
	}
	if r.All {
		var out []FetchedOffset
		for tp, o := range im.Offsets(r.Group) {
			f := FetchedOffset{TopicIDPartition: tp, Offset: o.Offset, LeaderEpoch: o.LeaderEpoch, Metadata: o.Metadata}
			if r.unstable(im, tp) {
				f = FetchedOffset{TopicIDPartition: tp, Offset: -1, LeaderEpoch: -1, Err: ErrUnstableOffset}
			}
			out = append(out, f)
		}
		return out, nil
	}
	out := make([]FetchedOffset, len(r.Partitions))
	for i, tp := range r.Partitions {
		out[i] = FetchedOffset{TopicIDPartition: tp, Offset: -1, LeaderEpoch: -1}
		if r.unstable(im, tp) {
			out[i].Err = ErrUnstableOffset
		} else if o, ok := im.Offset(r.Group, tp.TopicID, tp.Partition); ok {
			out[i].Offset, out[i].LeaderEpoch, out[i].Metadata = o.Offset, o.LeaderEpoch, o.Metadata
		}
	}
	return out, nil
}

// unaware reports whether members that were put out may not know it yet.
func (c *Coordinator) unaware(g *metadata.Group) bool {
	now := c.time()
	e := c.lookup(g.Name, false)
	if e == nil {
		return unawareLeft(g, now.Wall) > 0
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.core.unawareUntil > now.At
}

// unstable tells whether a transaction that is not decided yet is about to replace an offset, and whoever asks wants to wait
// for it (G12). It is no longer so once the transaction is decided, either way.
func (r *FetchRequest) unstable(im *metadata.Image, tp TopicIDPartition) bool {
	if !r.RequireStable {
		return false
	}
	_, pending := im.PendingOffset(r.Group, tp.TopicID, tp.Partition)
	return pending
}

// DeleteOffsets is OffsetDelete: one error or nil for each partition, or an error for all. Offsets of topics that members
// are subscribed to stay, by name or by a regular expression.
func (c *Coordinator) DeleteOffsets(group string, partitions []TopicIDPartition, done func([]error, error)) {
	im, err := c.check(group)
	if err != nil {
		done(nil, err)
		return
	}
	g := im.Group(group)
	if g == nil {
		done(nil, ErrGroupNotFound)
		return
	}
	reads, known := g.Subscription()
	if !known && g.ProtocolType != metadata.ConsumerProtocolType {
		done(nil, ErrNonEmpty) // nobody can tell what its members do
		return
	}
	errs := make([]error, len(partitions))
	deletion := metadata.OffsetDeletion{Group: group}
	if len(g.Members) > 0 {
		deletion.Revision = g.Revision
	}
	for i, tp := range partitions {
		switch t := im.TopicByID(tp.TopicID); {
		case t == nil || tp.Partition < 0 || int(tp.Partition) >= len(t.Partitions):
			errs[i] = metadata.ErrUnknownPartition
		case !known || reads.Has(t.Name): // of consumers that can't be understood, all counts as read, as in Kafka
			errs[i] = ErrSubscribed
		default:
			deletion.Partitions = append(deletion.Partitions, tp)
		}
	}
	if len(deletion.Partitions) == 0 {
		done(errs, nil)
		return
	}
	c.cfg.Store.DeleteOffsets(deletion, func(err error) {
		if err != nil {
			done(nil, fromMetadata(err))
			return
		}
		done(errs, nil)
	})
}

// fromMetadata gives the sentinels of package metadata that have a namesake here its name. Others are left as they are:
// ErrTimeout above all, after which the outcome is open.
func fromMetadata(err error) error {
	for _, x := range sameErrors {
		if errors.Is(err, x.theirs) {
			return x.ours
		}
	}
	return err
}

var sameErrors = []struct{ theirs, ours error }{
	{metadata.ErrNotCoordinator, ErrNotCoordinator},
	{metadata.ErrClosed, ErrNotCoordinator},
	{metadata.ErrBusy, ErrCoordinatorLoading},
	{metadata.ErrNotController, ErrCoordinatorLoading},
	{metadata.ErrStale, ErrCoordinatorLoading},
	{metadata.ErrGroupNotFound, ErrGroupNotFound},
	{metadata.ErrGroupNotEmpty, ErrNonEmpty},
	{metadata.ErrUnknownMember, ErrUnknownMember},
	{metadata.ErrFencedInstance, ErrFencedInstance},
	{metadata.ErrIllegalGeneration, ErrIllegalGeneration},
	{metadata.ErrStaleMemberEpoch, ErrStaleMemberEpoch},
}

// gather calls ask for each item and done with all the answers.
func gather[T any](items []T, done func([]error), ask func(item T, done func(error))) {
	errs := make([]error, len(items))
	var mu sync.Mutex
	open := len(items) + 1
	finish := func() {
		mu.Lock()
		open--
		last := open == 0
		mu.Unlock()
		if last {
			done(errs)
		}
	}
	for i, item := range items {
		ask(item, func(err error) {
			errs[i] = err
			finish()
		})
	}
	finish()
}
