package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

// DeleteTopics (key 20), versions 0 to 6.
//
//	v0-5  by name
//	v4    flexible
//	v5    error messages; may be refused by quota (89); there are no quotas yet
//	v6    by name or by id, never both
//
// delete.topic.enable=false refuses everything: 73, and 42 up to v2, whose
// clients do not know 73. A topic named twice, once by name and once by id
// included, is answered 42 and stays.

func (h *Handlers) deleteTopics(c *call, req *kmsg.DeleteTopicsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DeleteTopicsResponse)
	asked := req.Topics
	if req.Version < 6 {
		asked = make([]kmsg.DeleteTopicsRequestTopic, 0, len(req.TopicNames))
		for i := range req.TopicNames {
			topic := kmsg.NewDeleteTopicsRequestTopic()
			topic.Topic = &req.TopicNames[i]
			asked = append(asked, topic)
		}
	}
	answer := func(name *string, id metadata.TopicID, code int16, text *string) {
		rt := kmsg.NewDeleteTopicsResponseTopic()
		rt.Topic, rt.TopicID, rt.ErrorCode, rt.ErrorMessage = name, id, c.error(code), text
		resp.Topics = append(resp.Topics, rt)
	}
	if !h.settings.deleteTopics {
		code := codeTopicDeletionDisabled
		if req.Version < 3 {
			code = codeInvalidRequest
		}
		for i := range asked {
			answer(asked[i].Topic, asked[i].TopicID, code, message("delete topic\nwhy:   delete.topic.enable is false on this broker\nfix:   start the brokers with delete.topic.enable=true"))
		}
		return resp
	}

	image := h.cfg.Store.Image()
	named := map[string]int{}
	for i := range asked {
		named[deleteKey(image, &asked[i])]++
	}
	var refs []metadata.TopicRef
	for i := range asked {
		topic := &asked[i]
		byID := topic.TopicID != kafkaUUID{}
		key := deleteKey(image, topic)
		switch {
		case byID == (topic.Topic != nil):
			answer(topic.Topic, topic.TopicID, codeInvalidRequest, message("delete topic\nwhy:   it is named by both name and id, or by neither\nfix:   give one of them"))
		case named[key] == 0: // answered already
		case named[key] > 1:
			named[key] = 0
			answer(topic.Topic, topic.TopicID, codeInvalidRequest, errorMessage(duplicate("delete", "topic", key)))
		case byID:
			refs = append(refs, metadata.TopicRef{ID: topic.TopicID})
		case *topic.Topic == "":
			answer(topic.Topic, topic.TopicID, codeInvalidTopic, message("a topic name can't be empty"))
		default:
			refs = append(refs, metadata.TopicRef{Name: *topic.Topic})
		}
	}
	if len(refs) == 0 {
		return resp
	}
	ctx, cancel := c.adminContext(req.TimeoutMillis)
	defer cancel()
	results := h.cfg.Store.DeleteTopics(ctx, refs)
	h.settle(ctx, results)
	for i, result := range results {
		// What was asked for by id is answered with its name only if it
		// existed; the name of a topic is not ours to reveal otherwise.
		name, id := &result.Name, result.ID
		if refs[i].Name == "" {
			id = refs[i].ID
			if result.Name == "" {
				name = nil
			}
		} else {
			name = &refs[i].Name
		}
		answer(name, id, codeOf(result.Err), errorMessage(result.Err))
	}
	return resp
}

// deleteKey is the topic that an entry means: its name, as far as it has one.
func deleteKey(image *metadata.Image, topic *kmsg.DeleteTopicsRequestTopic) string {
	if topic.Topic != nil {
		return *topic.Topic
	}
	if t := image.TopicByID(topic.TopicID); t != nil {
		return t.Name
	}
	return metadata.TopicID(topic.TopicID).String()
}
