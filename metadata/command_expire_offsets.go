package metadata

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

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
	// unread, ascending by group, are the topics that no member of a group with members reads. Who reads what is for the
	// proposer to find out: the revision says that it is still so. Only since TransactionsFeatureLevel, and then still without
	// in older entries: offsets of groups with members do not expire by those.
	unread []unreadTopics
	// deleted are groups of which nothing is left but their last generation, which may go too.
	deleted []string
}

// unreadTopics are topics that no member of a group reads.
type unreadTopics struct {
	group  int       // index into groups
	topics []TopicID // ascending
}

// maxExpiredOffsets bounds how many offsets of one group a command drops. It is part of what Apply does, and so must stay.
const maxExpiredOffsets = 20_000

// expired is what expireOffsets did.
type expired struct{ Offsets, Groups int }

func (c *expireOffsets) kind() pb.CommandType { return pb.CommandType_COMMAND_EXPIRE_OFFSETS }

func (c *expireOffsets) message() proto.Message {
	m := &pb.ExpireOffsets{
		Broker: int32(c.broker), BrokerEpoch: c.epoch, Now: c.now, Retention: c.retention,
		Groups: c.groups, Revisions: c.revisions, Deleted: c.deleted,
	}
	for i := range c.unread {
		u := &pb.UnreadTopics{Group: uint32(c.unread[i].group)}
		for j := range c.unread[i].topics {
			u.Topics = append(u.Topics, c.unread[i].topics[j][:])
		}
		m.Unread = append(m.Unread, u)
	}
	return m
}

func decodeExpireOffsets(body []byte) (command, error) {
	var m pb.ExpireOffsets
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	if len(m.Groups) != len(m.Revisions) {
		return nil, errors.New("expire offsets: groups and revisions differ in number")
	}
	c := &expireOffsets{
		broker: BrokerID(m.Broker), epoch: m.BrokerEpoch, now: m.Now, retention: m.Retention,
		groups: m.Groups, revisions: m.Revisions, deleted: m.Deleted,
	}
	for _, from := range m.Unread {
		u := unreadTopics{group: int(from.Group)}
		if n := len(c.unread); u.group >= len(c.groups) || n > 0 && c.unread[n-1].group >= u.group {
			return nil, fmt.Errorf("expire offsets: unread topics of group %d of %d, out of order or of none", u.group, len(c.groups))
		}
		for _, b := range from.Topics {
			id := TopicID{}
			if copy(id[:], b); len(b) != len(id) {
				return nil, fmt.Errorf("expire offsets: topic id of %d bytes", len(b))
			}
			if n := len(u.topics); n > 0 && compareTopicIDs(u.topics[n-1], id) >= 0 {
				return nil, errors.New("expire offsets: unread topics out of order")
			}
			u.topics = append(u.topics, id)
		}
		c.unread = append(c.unread, u)
	}
	return c, nil
}

// apply returns an expired. Groups that have changed, or have another coordinator, are passed over.
func (c *expireOffsets) apply(d *draft, _ position) (any, error) {
	var out expired
	for i, name := range c.groups {
		g := d.st.group(name)
		if g == nil || g.Revision != c.revisions[i] || d.coordinates(c.broker, c.epoch, name) != nil {
			continue
		}
		gone := d.st.expiredOffsets(g, c.now, c.retention, c.unreadBy(i))
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

// unreadBy says which topics the members of a group don't read, by its place in groups; nil is none.
func (c *expireOffsets) unreadBy(group int) func(*Topic) bool {
	at, ok := slices.BinarySearchFunc(c.unread, group, func(u unreadTopics, group int) int { return cmp.Compare(u.group, group) })
	if !ok {
		return nil
	}
	return func(t *Topic) bool {
		_, named := slices.BinarySearchFunc(c.unread[at].topics, t.ID, compareTopicIDs)
		return named
	}
}

// expires reports whether a group without members and offsets may go.
func (g *Group) expires(now, retention int64) bool { return now-g.EmptySince >= retention }

// expiredOffsets returns the offsets of a group that may go: those of topics that are no more; and those that are older than
// retention. That counts from their commit and from when the group lost its last member, whichever came later, or from the
// time that their commit asked for. While a group has members, only those of the topics may go that unread, which is asked
// once for each topic and may be nil, says yes to. Those for which a transaction has another one pending stay until it is
// decided. At most maxExpiredOffsets.
func (st *state) expiredOffsets(g *Group, now, retention int64, unread func(*Topic) bool) (gone []TopicIDPartition) {
	of, ok := st.offsets.get(g.Name)
	if !ok {
		return nil
	}
	live := len(g.Members) > 0
	var topic *Topic
	var id TopicID
	asked, read := false, live
	_, pending := st.pending.get(g.Name)
	for tp, o := range of.all() {
		if tp.TopicID != id { // never zero; a topic's partitions follow each other
			id, topic = tp.TopicID, st.topicByID(tp.TopicID)
			asked, read = false, live
		}
		if topic != nil {
			if pending && st.isPending(g.Name, tp) || !o.expires(g, now, retention) {
				continue
			}
			if live && !asked { // asked last, because few offsets are old
				asked, read = true, unread == nil || !unread(topic)
			}
			if read {
				continue
			}
		}
		if gone = append(gone, tp); len(gone) == maxExpiredOffsets {
			return gone
		}
	}
	return gone
}

// expires reports whether an offset of a group is too old.
func (o *CommittedOffset) expires(g *Group, now, retention int64) bool {
	if o.ExpiresAt != 0 {
		return now >= max(o.ExpiresAt, g.EmptySince)
	}
	return now-max(o.CommittedAt, g.EmptySince) >= retention
}
