package kafka

import (
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/group"
	"github.com/millrace/millrace/metadata"
)

// OffsetFetch (key 9), versions 1 to 10.
//
//	v2    null topics ask for all; the error is the group's, before it was that of
//	      each partition
//	v3    throttle time
//	v5    the leader epoch that was stored (KIP-320, G13)
//	v6    flexible
//	v7    stable offsets only: 88 where a transaction is about to change one (KIP-447)
//	v8    many groups at once (KIP-709)
//	v9    members of consumer groups name themselves (KIP-848)
//	v10   topics by id alone, 100 for one that is unknown (KIP-848)
//
// A group or partition without an offset is answered -1 without an error, also if
// the group does not exist: consumers then begin where they are told to begin. So
// that none begins anew by mistake, a coordinator that does not know all yet
// answers 14 (G4), and none answers before it has heard from the controller how far
// the metadata is by now: one that was paused or cut off may have been followed by
// another, which has acknowledged commits since (I18).

// currentWait bounds how long an answer waits for that. Heartbeats wait behind it.
const currentWait = 2 * time.Second

func (h *Handlers) offsetFetch(c *call, req *kmsg.OffsetFetchRequest) {
	g := h.groupCalls.begin(c, nil)
	var once sync.Once
	answer := func(err error) {
		once.Do(func() {
			g.answer(func(c *call) kmsg.Response {
				if err != nil {
					return offsetsUnknown(c, req)
				}
				return h.offsetAnswer(c, req)
			})
		})
	}
	late := time.AfterFunc(currentWait, func() { answer(group.ErrCoordinatorLoading) })
	h.cfg.Store.WhenCurrent(func(err error) {
		late.Stop()
		answer(err)
	})
}

// offsetsUnknown is the answer of a coordinator that may not be the present one.
func offsetsUnknown(c *call, req *kmsg.OffsetFetchRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.OffsetFetchResponse)
	code := c.groupCode(group.ErrCoordinatorLoading)
	resp.ErrorCode = code // not there from v8 on
	if req.Version < 2 {
		for i := range req.Topics {
			rt := kmsg.NewOffsetFetchResponseTopic()
			rt.Topic = req.Topics[i].Topic
			for _, p := range req.Topics[i].Partitions {
				rp := kmsg.NewOffsetFetchResponseTopicPartition()
				rp.Partition, rp.Offset, rp.Metadata, rp.ErrorCode = p, -1, new(string), code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
	}
	for i := range req.Groups {
		rg := kmsg.NewOffsetFetchResponseGroup()
		rg.Group, rg.ErrorCode = req.Groups[i].Group, code
		resp.Groups = append(resp.Groups, rg)
	}
	return resp
}

func (h *Handlers) offsetAnswer(c *call, req *kmsg.OffsetFetchRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.OffsetFetchResponse)
	if req.Version < 8 {
		topics := make([]fetchedTopic, len(req.Topics))
		for i := range req.Topics {
			topics[i] = fetchedTopic{name: req.Topics[i].Topic, partitions: make([]fetchedPartition, len(req.Topics[i].Partitions))}
			for j, p := range req.Topics[i].Partitions {
				topics[i].partitions[j].partition = p
			}
		}
		all := req.Topics == nil && req.Version >= 2
		topics, err := h.fetchOffsets(c, group.FetchRequest{Group: req.Group, All: all, RequireStable: req.RequireStable}, topics, false)
		resp.ErrorCode = c.groupCode(err)
		for i := range topics {
			rt := kmsg.NewOffsetFetchResponseTopic()
			rt.Topic = topics[i].name
			for j := range topics[i].partitions {
				p := &topics[i].partitions[j]
				rp := kmsg.NewOffsetFetchResponseTopicPartition()
				rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata, rp.ErrorCode = p.partition, p.offset, p.leaderEpoch, &p.metadata, p.code
				if req.Version < 2 && err != nil {
					rp.ErrorCode = groupCode(err)
				}
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp
	}
	resp.Groups = make([]kmsg.OffsetFetchResponseGroup, 0, len(req.Groups))
	for i := range req.Groups {
		resp.Groups = append(resp.Groups, h.fetchGroupOffsets(c, req, &req.Groups[i]))
	}
	return resp
}

func (h *Handlers) fetchGroupOffsets(c *call, req *kmsg.OffsetFetchRequest, asked *kmsg.OffsetFetchRequestGroup) kmsg.OffsetFetchResponseGroup {
	byID := req.Version >= 10
	topics := make([]fetchedTopic, len(asked.Topics))
	for i := range asked.Topics {
		t := &asked.Topics[i]
		topics[i] = fetchedTopic{name: t.Topic, id: t.TopicID, partitions: make([]fetchedPartition, len(t.Partitions))}
		for j, p := range t.Partitions {
			topics[i].partitions[j].partition = p
		}
	}
	r := group.FetchRequest{Group: asked.Group, All: asked.Topics == nil, Member: text(asked.MemberID), MemberEpoch: asked.MemberEpoch, RequireStable: req.RequireStable}
	topics, err := h.fetchOffsets(c, r, topics, byID)
	rg := kmsg.NewOffsetFetchResponseGroup()
	rg.Group, rg.ErrorCode = asked.Group, c.groupCode(err)
	if err != nil {
		return rg
	}
	rg.Topics = make([]kmsg.OffsetFetchResponseGroupTopic, 0, len(topics))
	for i := range topics {
		rt := kmsg.NewOffsetFetchResponseGroupTopic()
		rt.Topic, rt.TopicID = topics[i].name, topics[i].id
		for j := range topics[i].partitions {
			p := &topics[i].partitions[j]
			rp := kmsg.NewOffsetFetchResponseGroupTopicPartition()
			rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata, rp.ErrorCode = p.partition, p.offset, p.leaderEpoch, &p.metadata, p.code
			rt.Partitions = append(rt.Partitions, rp)
		}
		rg.Topics = append(rg.Topics, rt)
	}
	return rg
}

// fetchedTopic is a topic of a question and of its answer.
type fetchedTopic struct {
	name       string
	id         metadata.TopicID
	partitions []fetchedPartition
}

type fetchedPartition struct {
	partition   int32
	offset      int64 // -1: none
	leaderEpoch int32 // -1: not known
	metadata    string
	code        int16
}

// fetchOffsets asks the coordinator for the offsets of one group and puts them into
// topics, which it returns; with r.All it makes the topics itself.
func (h *Handlers) fetchOffsets(c *call, r group.FetchRequest, topics []fetchedTopic, byID bool) ([]fetchedTopic, error) {
	image := h.cfg.Store.Image()
	var into []*fetchedPartition
	for i := range topics {
		t, missing := findTopic(image, byID, topics[i].name, topics[i].id)
		for j := range topics[i].partitions {
			p := &topics[i].partitions[j]
			p.offset, p.leaderEpoch = -1, -1
			if missing != nil && byID {
				p.code = c.groupCode(missing) // by name it just has no offset
			}
			if at, err := findPartition(t, p.partition); err == nil {
				r.Partitions, into = append(r.Partitions, at), append(into, p)
			}
		}
	}
	offsets, err := h.cfg.Groups.Fetch(r)
	if err != nil {
		return topics, err
	}
	if r.All {
		return allOffsets(c, image, offsets), nil
	}
	for i := range offsets {
		into[i].set(c, &offsets[i])
	}
	return topics, nil
}

func (p *fetchedPartition) set(c *call, o *group.FetchedOffset) {
	p.partition, p.code = o.Partition, c.groupCode(o.Err)
	if o.Err == nil { // an offset that is about to change is not told
		p.offset, p.leaderEpoch, p.metadata = o.Offset, o.LeaderEpoch, o.Metadata
	}
}

// allOffsets arranges offsets by topic. Those of topics that are gone died with
// them (M21).
func allOffsets(c *call, image *metadata.Image, offsets []group.FetchedOffset) []fetchedTopic {
	topics := []fetchedTopic{}
	index := map[metadata.TopicID]int{}
	for i := range offsets {
		o := &offsets[i]
		at, ok := index[o.TopicID]
		if !ok {
			t := image.TopicByID(o.TopicID)
			if t == nil {
				continue
			}
			at = len(topics)
			index[o.TopicID] = at
			topics = append(topics, fetchedTopic{name: t.Name, id: t.ID})
		}
		p := fetchedPartition{offset: -1, leaderEpoch: -1}
		p.set(c, o)
		topics[at].partitions = append(topics[at].partitions, p)
	}
	return topics
}
