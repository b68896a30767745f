package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/group"
	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/transport/console"
)

// groupSeekMethod is the call between brokers that has a group's coordinator carry out a console.GroupSeekOrder.
const groupSeekMethod = "groups.seek"

// seekCall is an order on its way to the coordinator.
type seekCall struct {
	Group string                 `json:"group"`
	Order console.GroupSeekOrder `json:"order"`
}

// seekPause is how long to wait before an order is given again whose coordinator has moved, or is about to.
const seekPause = 100 * time.Millisecond

// SeekGroup implements console.Groups. An order of which nobody knows whether it was carried out is given again: it sets the
// same offsets.
func (r groupReports) SeekGroup(ctx context.Context, name string, order console.GroupSeekOrder) (console.GroupSought, error) {
	for {
		out, err := r.seekOnce(ctx, seekCall{name, order})
		if err == nil || !(errors.Is(err, metadata.ErrNotCoordinator) || errors.Is(err, metadata.ErrBusy) || errors.Is(err, metadata.ErrTimeout)) {
			return out, err
		}
		select {
		case <-time.After(seekPause):
		case <-ctx.Done():
			return out, err
		}
	}
}

func (r groupReports) seekOnce(ctx context.Context, asked seekCall) (console.GroupSought, error) {
	im := r.b.store.Image()
	id, _ := im.Coordinator(metadata.GroupCoordinator, asked.Group)
	if id == r.b.nodeID {
		return r.seek(ctx, asked)
	}
	coordinator := im.Broker(id)
	if coordinator == nil || coordinator.PeerAddress == "" || r.b.peers == nil {
		return console.GroupSought{}, noCoordinator(asked.Group)
	}
	var out console.GroupSought
	if err := callJSON(ctx, r.b.peers, coordinator.PeerAddress, groupSeekMethod, asked, &out); err != nil {
		return out, fmt.Errorf("ask broker %d, which coordinates group %s: %w", id, asked.Group, err)
	}
	return out, nil
}

// seek carries out an order about a group that this broker coordinates.
func (r groupReports) seek(ctx context.Context, asked seekCall) (console.GroupSought, error) {
	request := group.SeekRequest{Group: asked.Group, Force: asked.Order.Force}
	im := r.b.store.Image()
	for i := range asked.Order.Offsets {
		o := &asked.Order.Offsets[i]
		t := im.Topic(o.Topic)
		if t == nil || int(o.Partition) >= len(t.Partitions) {
			return console.GroupSought{}, &metadata.Error{
				Kind: metadata.ErrUnknownPartition, What: fmt.Sprintf("there is no partition %s-%d", o.Topic, o.Partition), Why: "its topic does not exist, or has fewer partitions",
				Fix: "millrace topic describe " + o.Topic + "   shows what there is; nothing was changed",
			}
		}
		to := group.OffsetEntry{TopicID: t.ID, Partition: o.Partition, Offset: -1, LeaderEpoch: -1, Metadata: o.Metadata}
		if o.Offset != nil {
			to.Offset = *o.Offset
		}
		if o.LeaderEpoch != nil {
			to.LeaderEpoch = *o.LeaderEpoch
		}
		request.Offsets = append(request.Offsets, to)
	}
	type outcome struct {
		group.SeekResult
		err error
	}
	done := make(chan outcome, 1)
	r.b.groups.Seek(request, func(result group.SeekResult, err error) { done <- outcome{result, err} })
	var did outcome
	select {
	case did = <-done:
	case <-ctx.Done():
		return console.GroupSought{}, fmt.Errorf("%w: the quorum has not answered", metadata.ErrTimeout)
	}
	if did.err != nil {
		return console.GroupSought{}, seekError(asked.Group, did.err)
	}
	out := console.GroupSought{Members: did.Members, Prior: make([]console.GroupOffset, len(did.Prior))}
	for i := range did.Prior {
		from, to := &did.Prior[i], &out.Prior[i]
		to.Topic, to.Partition = asked.Order.Offsets[i].Topic, asked.Order.Offsets[i].Partition
		if from.Offset < 0 {
			continue
		}
		to.Offset, to.Metadata = &from.Offset, from.Metadata
		if from.LeaderEpoch >= 0 {
			to.LeaderEpoch = &from.LeaderEpoch
		}
	}
	r.b.logger.Info("offsets of a group were set by order", "group", asked.Group, "partitions", len(out.Prior), "members put out", out.Members)
	return out, nil
}

// seekError says what went wrong in the words of package metadata, whose errors travel between brokers.
func seekError(name string, err error) error {
	e := &metadata.Error{Kind: metadata.ErrInvalidRequest, What: "the offsets of group " + name + " were not set", Why: err.Error()}
	switch {
	case errors.Is(err, group.ErrNonEmpty):
		e.Kind, e.Why = metadata.ErrGroupNotEmpty, "it has members, which would go on from where they are and overwrite the offsets"
		e.Fix = "stop them first, or add --force: they are put out, and join again by themselves at the new offsets"
	case errors.Is(err, group.ErrNotCoordinator), errors.Is(err, group.ErrCoordinatorLoading):
		e.Kind, e.Fix = metadata.ErrNotCoordinator, "try again in a moment"
	case errors.Is(err, group.ErrMetadataTooLarge):
		e.Fix = "use a shorter text; millrace cluster config get offset.metadata.max.bytes   shows the limit"
	case errors.Is(err, group.ErrInvalidGroup):
		e.Fix = "give the group's name"
	default:
		return err
	}
	return e
}
