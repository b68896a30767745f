package metadata

import (
	"errors"
	"maps"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// alterConfigs changes the configs of a topic, or of a broker or all brokers. The proposer has worked out the new values
// from the configs at expectedVersion, so that appending to a list needs no list semantics here.
type alterConfigs struct {
	topic           TopicID  // zero = broker configs
	broker          BrokerID // NoBroker = the default of all; NoBroker also with topic
	expectedVersion uint64
	set             map[string]string
	delete          []string // ascending
}

func (c *alterConfigs) kind() pb.CommandType { return pb.CommandType_COMMAND_ALTER_CONFIGS }

func (c *alterConfigs) message() proto.Message {
	m := &pb.AlterConfigs{
		BrokerId:        int32(c.broker),
		ExpectedVersion: c.expectedVersion,
		Set:             encodeConfigs(c.set),
		Delete:          c.delete,
	}
	if !c.topic.IsZero() {
		m.TopicId = c.topic[:]
	}
	return m
}

func decodeAlterConfigs(body []byte) (command, error) {
	var m pb.AlterConfigs
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	c := &alterConfigs{broker: BrokerID(m.BrokerId), expectedVersion: m.ExpectedVersion, delete: m.Delete}
	var err error
	if len(m.TopicId) > 0 {
		if c.topic, err = bytes16(m.TopicId, "topic id"); err != nil {
			return nil, err
		}
	}
	if c.broker < NoBroker {
		return nil, errors.New("alter configs: broker id below -1")
	}
	if c.set, err = decodeConfigs(m.Set); err != nil {
		return nil, err
	}
	return c, nil
}

// apply returns true.
func (c *alterConfigs) apply(d *draft, at position) (any, error) {
	if !c.topic.IsZero() {
		t := d.st.topicByID(c.topic)
		if t == nil {
			return nil, ErrUnknownTopicID
		}
		if t.configVersion != c.expectedVersion {
			return nil, ErrStale
		}
		changed := *t // shares the partitions with the old version, whoever owns them
		changed.Configs = c.change(t.Configs)
		changed.configVersion = at.index
		d.putTopic(&changed, d.owned[t])
		if n, ok := c.minInsync(); ok {
			d.forgetELR(&changed, n)
		}
		return true, nil
	}
	if c.broker != NoBroker && d.st.broker(c.broker) == nil {
		return nil, ErrUnknownBroker
	}
	var values map[string]string
	var version uint64
	if old := d.st.brokerConfigs(c.broker); old != nil {
		values, version = old.Values, old.Version
	}
	if version != c.expectedVersion {
		return nil, ErrStale
	}
	d.putConfigs(&brokerConfigs{ID: c.broker, Version: at.index, Values: c.change(values)})
	if n, ok := c.minInsync(); ok {
		var inherit []*Topic // collected first: changing a tree ends the walk over it
		d.st.eachTopic(func(t *Topic) bool {
			if _, own := t.Configs[minInsyncKey]; !own {
				inherit = append(inherit, t)
			}
			return true
		})
		for _, t := range inherit {
			d.forgetELR(t, n)
		}
	}
	return true, nil
}

const minInsyncKey = "min.insync.replicas"

// minInsync reports whether the command changes min.insync.replicas, and to what: to 1, the least it can be, when the
// value is taken away and another one, unknown here, takes its place.
func (c *alterConfigs) minInsync() (n int, ok bool) {
	if v, set := c.set[minInsyncKey]; set {
		if n, err := strconv.Atoi(v); err == nil && n > 0 {
			return n, true
		}
		return 1, true
	}
	return 1, slices.Contains(c.delete, minInsyncKey)
}

// forgetELR empties the ELRs of a topic's partitions whose ISR is large enough to commit records once min.insync.replicas
// is n: the eligible replicas will lack those records, and the leader commits none before (KIP-966). To forget one too many
// costs no record; the partition then has one candidate less if its whole ISR is lost.
func (d *draft) forgetELR(t *Topic, n int) {
	var out failover
	for i := range t.Partitions {
		if p := t.Partitions[i]; len(p.ELR) == 0 || len(p.ISR) < min(n, len(p.Replicas)) || len(p.ISR) == 0 {
			continue
		}
		r := d.revise(t, i, partitionPolicy{})
		r.ELR = nil
		t = r.commit(&out)
	}
}

// change returns the values after the command, as a new map; nil when none is left.
func (c *alterConfigs) change(values map[string]string) map[string]string {
	next := make(map[string]string, len(values)+len(c.set))
	maps.Copy(next, values)
	for _, k := range c.delete {
		delete(next, k)
	}
	maps.Copy(next, c.set)
	if len(next) == 0 {
		return nil
	}
	return next
}
