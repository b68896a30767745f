package kafka

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

// Metadata (key 3), versions 0 to 13.
//
//	v0     an empty topic list means all topics
//	v1     null means all topics, empty means none; racks, controller
//	v2     cluster id
//	v4     the client says whether a topic may be created
//	v5     offline replicas
//	v7     leader epochs (KIP-320)
//	v8     authorized operations, on demand (KIP-430); v11 dropped the cluster's
//	v9     flexible
//	v10    topic ids in answers (KIP-516)
//	v12    topics may be asked for by id
//	v13    top-level error code, always 0 here
//
// A topic that does not exist is answered 3, and 5 while it is being created
// because of this request: 5 makes every client come back. There are no internal
// topics: offsets and transactions live in the metadata quorum (D1).
//
// The answer names a topic once, however often the request does: else a small
// request for the same large topic over and over would cost memory without
// bound (N4).

func (h *Handlers) metadata(c *call, req *kmsg.MetadataRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.MetadataResponse)
	image := h.cfg.Store.Image()
	m := metadataAnswer{h: h, c: c, req: req, resp: resp, image: image, endpoints: h.endpoints(image, c.req.Conn)}

	cluster := image.ClusterID()
	resp.ClusterID = &cluster
	resp.ControllerID = m.endpoints.controller()
	for _, ep := range m.endpoints.all() {
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host, b.Port, b.Rack = int32(ep.id), ep.host, ep.port, ep.rack
		resp.Brokers = append(resp.Brokers, b)
	}
	if req.IncludeClusterAuthorizedOperations && req.Version >= 8 && req.Version <= 10 {
		resp.AuthorizedOperations = clusterOperations
	}

	if req.Topics == nil || req.Version == 0 && len(req.Topics) == 0 {
		resp.Topics = make([]kmsg.MetadataResponseTopic, 0, image.TopicCount())
		for topic := range image.Topics() {
			m.topic(topic)
		}
		return resp
	}
	resp.Topics = make([]kmsg.MetadataResponseTopic, 0, len(req.Topics))
	seen := make(map[fetchTopic]struct{}, len(req.Topics))
	for i := range req.Topics {
		asked := &req.Topics[i]
		key := fetchTopic{id: asked.TopicID}
		if asked.Topic != nil {
			key.name = *asked.Topic
		}
		if _, twice := seen[key]; !twice {
			seen[key] = struct{}{}
			m.asked(asked)
		}
	}
	return resp
}

// metadataAnswer is one Metadata request being answered.
type metadataAnswer struct {
	h         *Handlers
	c         *call
	req       *kmsg.MetadataRequest
	resp      *kmsg.MetadataResponse
	image     *metadata.Image
	endpoints endpoints
}

// asked answers for one topic of the request.
func (m *metadataAnswer) asked(asked *kmsg.MetadataRequestTopic) {
	byID := asked.TopicID != kafkaUUID{}
	switch {
	case byID && m.req.Version >= 12:
		if topic := m.image.TopicByID(asked.TopicID); topic != nil {
			m.topic(topic)
		} else {
			m.error(nil, asked.TopicID, codeUnknownTopicID)
		}
	case byID, asked.Topic == nil:
		// Versions 10 and 11 have the fields and no meaning for them.
		m.error(asked.Topic, asked.TopicID, codeInvalidRequest)
	default:
		m.named(*asked.Topic)
	}
}

func (m *metadataAnswer) named(name string) {
	topic := m.image.Topic(name)
	switch {
	case topic != nil:
		m.topic(topic)
	case !validTopicName(name):
		m.error(&name, kafkaUUID{}, codeInvalidTopic)
	case m.h.settings.autoCreateTopics && (m.req.Version < 4 || m.req.AllowAutoTopicCreation):
		m.h.creator.create(name, m.c.req)
		m.error(&name, kafkaUUID{}, codeLeaderNotAvailable)
	default:
		m.error(&name, kafkaUUID{}, codeUnknownTopicOrPartition)
	}
}

func (m *metadataAnswer) error(name *string, id kafkaUUID, code int16) {
	rt := kmsg.NewMetadataResponseTopic()
	rt.Topic, rt.TopicID, rt.ErrorCode = name, id, m.c.error(code)
	if name != nil && m.req.IncludeTopicAuthorizedOperations && m.req.Version >= 8 {
		rt.AuthorizedOperations = topicOperations
	}
	if name == nil && m.req.Version < 12 {
		rt.Topic = new(string) // not nullable yet
	}
	m.resp.Topics = append(m.resp.Topics, rt)
}

func (m *metadataAnswer) topic(topic *metadata.Topic) {
	rt := kmsg.NewMetadataResponseTopic()
	rt.Topic, rt.TopicID = &topic.Name, topic.ID
	if m.req.IncludeTopicAuthorizedOperations && m.req.Version >= 8 {
		rt.AuthorizedOperations = topicOperations
	}
	rt.Partitions = make([]kmsg.MetadataResponseTopicPartition, len(topic.Partitions))
	for i := range topic.Partitions {
		rt.Partitions[i] = m.partition(int32(i), topic.Partitions[i])
	}
	m.resp.Topics = append(m.resp.Topics, rt)
}

func (m *metadataAnswer) partition(index int32, p *metadata.Partition) kmsg.MetadataResponseTopicPartition {
	rp := kmsg.NewMetadataResponseTopicPartition()
	rp.Partition, rp.Leader, rp.LeaderEpoch = index, int32(p.Leader), p.LeaderEpoch
	rp.Replicas, rp.ISR = int32s(p.Replicas), int32s(p.ISR)
	for i, id := range p.Replicas {
		if _, ok := m.endpoints.of(id); !ok || m.offline(p, i) {
			rp.OfflineReplicas = append(rp.OfflineReplicas, int32(id))
		}
	}
	// The leader epoch stays what it is without a leader: a client that saw
	// it go back would distrust everything it knows (trap 13).
	switch {
	case p.Leader == metadata.NoBroker:
		rp.ErrorCode = codeLeaderNotAvailable
	case !m.reachable(p.Leader):
		rp.Leader, rp.ErrorCode = int32(metadata.NoBroker), codeLeaderNotAvailable
		if b := m.image.Broker(p.Leader); b != nil && !b.Fenced && m.req.Version >= 6 {
			rp.ErrorCode = codeListenerNotFound
		}
	}
	m.c.error(rp.ErrorCode)
	return rp
}

// offline reports whether the directory of the partition's i-th replica has failed.
func (m *metadataAnswer) offline(p *metadata.Partition, i int) bool {
	b := m.image.Broker(p.Replicas[i])
	return i < len(p.Directories) && b != nil && slices.Contains(b.Offline, p.Directories[i])
}

func (m *metadataAnswer) reachable(id metadata.BrokerID) bool {
	_, ok := m.endpoints.of(id)
	return ok
}
