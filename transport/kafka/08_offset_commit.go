package kafka

import (
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/group"
	"github.com/millrace/millrace/metadata"
)

// OffsetCommit (key 8), versions 1 to 10.
//
//	v1    a time for each offset, which is not used: retention counts from the
//	      moment the group became empty (G11)
//	v2    retention for all offsets, up to v4: how long they are kept at least; -1 is
//	      the broker's
//	v3    throttle time
//	v6    leader epoch of the last record, stored and returned (KIP-320, G13)
//	v7    static members (KIP-345)
//	v8    flexible
//	v9    members of consumer groups: the generation is their epoch (KIP-848); a
//	      group that does not exist is 69, before it was 22
//	v10   topics by id alone, 100 for one that is unknown (KIP-848)
//
// The answer comes after the offsets were committed by the quorum and applied here.
// Topics and partitions that do not exist are refused alone, with 3, and the others
// are stored. Nothing is stored when the group refuses.

// maxRetention bounds what a client can ask, in milliseconds: a hundred years.
const maxRetention = 100 * 365 * 24 * 3600 * 1000

// commitSlot says which error an offset of the request gets: its own, or that of an
// offset which was handed to the coordinator.
type commitSlot struct {
	err error
	at  int // index among those handed on, if err is nil
}

func (h *Handlers) offsetCommit(c *call, req *kmsg.OffsetCommitRequest) {
	image := h.cfg.Store.Image()
	r := group.CommitRequest{Group: req.Group, Member: req.MemberID, Instance: text(req.InstanceID), Generation: req.Generation}
	if req.Version >= 2 && req.Version <= 4 && req.RetentionTimeMillis > 0 {
		r.Retention = time.Duration(min(req.RetentionTimeMillis, maxRetention)) * time.Millisecond
	}
	var slots []commitSlot
	for i := range req.Topics {
		topic := &req.Topics[i]
		t, missing := findTopic(image, req.Version >= 10, topic.Topic, topic.TopicID)
		for j := range topic.Partitions {
			p := &topic.Partitions[j]
			at, err := group.TopicIDPartition{}, missing
			if err == nil {
				at, err = findPartition(t, p.Partition)
			}
			if err == nil && p.Offset < 0 {
				err = errNegativeOffset
			}
			slots = append(slots, commitSlot{err, len(r.Offsets)})
			if err != nil {
				continue
			}
			epoch := int32(-1)
			if req.Version >= 6 {
				epoch = p.LeaderEpoch
			}
			r.Offsets = append(r.Offsets, group.OffsetEntry{TopicID: at.TopicID, Partition: at.Partition, Offset: p.Offset, LeaderEpoch: epoch, Metadata: text(p.Metadata)})
		}
	}
	g := h.groupCalls.begin(c, nil)
	// Also with nothing to store: the group may refuse the member.
	h.cfg.Groups.Commit(r, func(errs []error, err error) {
		g.answerDirect(func(c *call) kmsg.Response { return commitAnswer(c, req, slots, errs, err) })
	})
}

func commitAnswer(c *call, req *kmsg.OffsetCommitRequest, slots []commitSlot, errs []error, all error) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.OffsetCommitResponse)
	resp.Topics = make([]kmsg.OffsetCommitResponseTopic, 0, len(req.Topics))
	at := 0
	for i := range req.Topics {
		topic := &req.Topics[i]
		rt := kmsg.NewOffsetCommitResponseTopic()
		rt.Topic, rt.TopicID = topic.Topic, topic.TopicID
		rt.Partitions = make([]kmsg.OffsetCommitResponseTopicPartition, 0, len(topic.Partitions))
		for j := range topic.Partitions {
			rp := kmsg.NewOffsetCommitResponseTopicPartition()
			rp.Partition = topic.Partitions[j].Partition
			err := all
			if s := slots[at]; err == nil {
				if err = s.err; err == nil {
					err = errs[s.at]
				}
			}
			rp.ErrorCode = c.error(commitCode(req, err))
			rt.Partitions = append(rt.Partitions, rp)
			at++
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

// commitCode maps an error of a commit to what clients of a version know.
func commitCode(req *kmsg.OffsetCommitRequest, err error) int16 {
	switch {
	case errors.Is(err, group.ErrGroupNotFound) && req.Version < 9:
		return codeIllegalGeneration
	case errors.Is(err, group.ErrStaleMemberEpoch) && req.Version < 9:
		return codeUnsupportedVersion
	case errors.Is(err, metadata.ErrUnknownTopicID) && req.Version < 10: // deleted meanwhile: clients know it by its name
		return codeUnknownTopicOrPartition
	}
	return groupCode(err)
}
