package metadata

import (
	"errors"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// expireOffsets drops, of groups of one coordinator, the offsets that are too old (G11) and those of deleted topics (M21),
// and the groups that have neither members nor offsets then. The time is the coordinator's.
type expireOffsets struct {
	broker    BrokerID
	epoch     int64 // of the broker's registration
	now       int64 // unix milliseconds
	retention int64 // milliseconds
	groups    []string
	revisions []uint64 // parallel: of the groups as they were looked at
	// deleted are groups of which nothing is left but their last generation, which may go too.
	deleted []string
}

// maxExpiredOffsets bounds how many offsets of one group a command drops. It is part of what Apply does, and so must stay.
const maxExpiredOffsets = 20_000

// expired is what expireOffsets did.
type expired struct{ Offsets, Groups int }

func (c *expireOffsets) kind() pb.CommandType { return pb.CommandType_COMMAND_EXPIRE_OFFSETS }

func (c *expireOffsets) message() proto.Message {
	return &pb.ExpireOffsets{
		Broker: int32(c.broker), BrokerEpoch: c.epoch, Now: c.now, Retention: c.retention,
		Groups: c.groups, Revisions: c.revisions, Deleted: c.deleted,
	}
}

func decodeExpireOffsets(body []byte) (command, error) {
	var m pb.ExpireOffsets
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	if len(m.Groups) != len(m.Revisions) {
		return nil, errors.New("expire offsets: groups and revisions differ in number")
	}
	return &expireOffsets{
		broker: BrokerID(m.Broker), epoch: m.BrokerEpoch, now: m.Now, retention: m.Retention,
		groups: m.Groups, revisions: m.Revisions, deleted: m.Deleted,
	}, nil
}

// apply returns an expired. Groups that have changed, or have another coordinator, are passed over.
func (c *expireOffsets) apply(d *draft, _ position) (any, error) {
	var out expired
	for i, name := range c.groups {
		g := d.st.group(name)
		if g == nil || g.Revision != c.revisions[i] || d.coordinates(c.broker, c.epoch, name) != nil {
			continue
		}
		gone := d.st.expiredOffsets(g, c.now, c.retention)
		d.dropOffsets(name, gone)
		out.Offsets += len(gone)
		if !d.st.hasOffsets(name) && len(g.Members) == 0 && g.expires(c.now, c.retention) {
			d.removeGroup(g, c.now)
			out.Groups++
		}
	}
	for _, name := range c.deleted {
		last, ok := d.st.lastGenerations.get(name)
		if ok && c.now-last.DeletedAt >= c.retention && d.coordinates(c.broker, c.epoch, name) == nil {
			d.st.lastGenerations = d.st.lastGenerations.delete(d.edit, name)
		}
	}
	return out, nil
}

// expires reports whether a group without members and offsets may go.
func (g *Group) expires(now, retention int64) bool { return now-g.EmptySince >= retention }

// expiredOffsets returns the offsets of a group that may go: those of topics that are no more; and if the group has no
// members, those that are older than retention, counted from their commit and from when the group lost its last member,
// whichever came later, or from the time that their commit asked for. Those for which a transaction has another one pending
// stay until it is decided. At most maxExpiredOffsets.
func (st *state) expiredOffsets(g *Group, now, retention int64) (gone []TopicIDPartition) {
	of, ok := st.offsets.get(g.Name)
	if !ok {
		return nil
	}
	var id TopicID
	exists := false
	_, pending := st.pending.get(g.Name)
	for tp, o := range of.offsets.all() {
		if tp.TopicID != id { // never zero; a topic's partitions follow each other
			id, exists = tp.TopicID, st.topicByID(tp.TopicID) != nil
		}
		old := false
		switch {
		case len(g.Members) > 0:
		case pending && exists && st.isPending(g.Name, tp):
		case o.ExpiresAt != 0:
			old = now >= max(o.ExpiresAt, g.EmptySince)
		default:
			old = now-max(o.CommittedAt, g.EmptySince) >= retention
		}
		if !exists || old {
			if gone = append(gone, tp); len(gone) == maxExpiredOffsets {
				return gone
			}
		}
	}
	return gone
}
