package kafka

import (
	"strconv"

	"github.com/millrace/millrace/metadata"
)

// brokerSettings are the broker keys that the handlers themselves honour. None
// of them is dynamic, so they are read once.
type brokerSettings struct {
	static map[string]string

	autoCreateTopics bool
	deleteTopics     bool
	fetchMaxBytes    int
}

func (s *brokerSettings) init(cfg Config) {
	s.static = cfg.Static
	s.autoCreateTopics = s.value("auto.create.topics.enable") == "true"
	s.deleteTopics = s.value("delete.topic.enable") == "true"
	s.fetchMaxBytes = int(s.number("fetch.max.bytes"))
}

func (s *brokerSettings) sessionSlots() int {
	return int(s.number("max.incremental.fetch.session.cache.slots"))
}

// value returns what the broker was started with, or the key's default, in
// canonical form.
func (s *brokerSettings) value(name string) string {
	key, ok := metadata.LookupConfig(metadata.ConfigBroker, name)
	if !ok {
		panic("broker config " + name + " is not in the configuration table")
	}
	if v, ok := s.static[name]; ok {
		if v, err := key.Canonical(v); err == nil {
			return v
		}
	}
	return key.Default
}

// number reads a value that the configuration table has checked.
func (s *brokerSettings) number(name string) int64 {
	n, err := strconv.ParseInt(s.value(name), 10, 64)
	if err != nil {
		panic("broker config " + name + " is not a number: " + err.Error())
	}
	return n
}

// layers are the places where this broker's configs come from.
func (h *Handlers) layers(image *metadata.Image) metadata.BrokerLayers {
	return metadata.BrokerLayers{
		Static:         h.cfg.Static,
		DynamicDefault: image.BrokerConfig(metadata.NoBroker),
		Dynamic:        image.BrokerConfig(h.cfg.BrokerID),
	}
}
