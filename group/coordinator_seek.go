package group

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/metadata"
)

// SeekRequest sets offsets of a group by order of an administrator.
type SeekRequest struct {
	Group string
	// Force puts out the members that the group has; they join again by themselves, and go on from the new offsets. Without it
	// a group with members is refused with ErrNonEmpty.
	Force bool
	// Offsets, each partition once; an Offset of -1 takes away what is committed.
	Offsets []OffsetEntry
}

// SeekResult says what a seek has done. Prior and Members are of the moment of the seek: no commit was applied between.
type SeekResult struct {
	// Prior are the offsets that were committed until then, parallel to those of the request; -1 is none.
	Prior []FetchedOffset
	// Members is how many were put out.
	Members int
}

// Seek carries out a SeekRequest as one change: all of the offsets are set and all members put out, or nothing is done. No
// commit of a member that it put out counts afterwards, whenever it was sent (G1), and no offset of a transaction that was
// pending.
//
// Errors: ErrNonEmpty, ErrMetadataTooLarge, metadata.ErrUnknownTopicID and metadata.ErrUnknownPartition, an error that matches
// metadata.ErrInvalidFeatureLevel, and those of other requests. After ErrNotCoordinator, ErrCoordinatorLoading and
// metadata.ErrTimeout the outcome may be open: the order may be given again, which sets the same offsets.
func (c *Coordinator) Seek(r SeekRequest, done func(SeekResult, error)) {
	im, err := c.check(r.Group)
	if err != nil {
		done(SeekResult{}, err)
		return
	}
	limit := c.cfg.Settings().OffsetMetadataMaxBytes
	seen := make(map[TopicIDPartition]bool, len(r.Offsets))
	for _, o := range r.Offsets {
		tp := TopicIDPartition{TopicID: o.TopicID, Partition: o.Partition}
		switch t := im.TopicByID(o.TopicID); {
		case t == nil:
			err = metadata.ErrUnknownTopicID
		case o.Partition < 0 || int(o.Partition) >= len(t.Partitions):
			err = metadata.ErrUnknownPartition
		case len(o.Metadata) > limit:
			err = ErrMetadataTooLarge
		case o.Offset < -1 || seen[tp]:
			err = fmt.Errorf("%w: partition %d: offset %d", metadata.ErrInvalidRequest, o.Partition, o.Offset)
		}
		seen[tp] = true
	}
	if len(r.Offsets) == 0 {
		err = fmt.Errorf("%w: no partitions", metadata.ErrInvalidRequest)
	}
	if err != nil {
		done(SeekResult{}, err)
		return
	}
	var result SeekResult
	order := &metadata.GroupSeek{Offsets: slices.Clone(r.Offsets), Prior: func(prior []metadata.CommittedOffset) {
		result.Prior = make([]FetchedOffset, len(prior))
		for i, o := range prior {
			result.Prior[i] = FetchedOffset{
				TopicIDPartition: TopicIDPartition{TopicID: r.Offsets[i].TopicID, Partition: r.Offsets[i].Partition},
				Offset:           o.Offset, LeaderEpoch: o.LeaderEpoch, Metadata: o.Metadata,
			}
		}
	}}
	ev := &Seek{GroupSeek: order, Force: r.Force}
	ev.Waiter = func(err error) {
		if err == nil {
			result.Members = ev.putOut
		}
		done(result, fromMetadata(err))
	}
	if err := c.step(r.Group, ev); err != nil {
		done(SeekResult{}, err)
	}
}
