package group

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"regexp"
	"slices"

	"github.com/millrace/millrace/metadata"
)

// resolved is what the subscriptions of a group stand for.
type resolved struct {
	version uint64 // of the topics
	hash    uint64
	topics  []AssignorTopic  // ascending by id
	members map[string][]int // by member id: indexes into topics
}

// resolve finds the topics that the members subscribe to. The result is kept until the topics or a subscription change.
func (g *consumerGroup) resolve(topics Topics) *resolved {
	if g.resolved != nil && g.resolved.version == topics.Version() {
		return g.resolved
	}
	r := &resolved{version: topics.Version(), members: make(map[string][]int, len(g.members))}
	index := map[metadata.TopicID]int{}
	names := map[string]*AssignorTopic{} // nil: there is none of that name
	find := func(name string) *AssignorTopic {
		t, known := names[name]
		if !known {
			if id, partitions, ok := topics.Topic(name); ok {
				t = &AssignorTopic{ID: id, Partitions: partitions}
			}
			names[name] = t
		}
		return t
	}
	matches := map[string][]metadata.TopicID{} // by regular expression
	subscribed := map[string][]metadata.TopicID{}
	for _, m := range g.sorted() {
		id := m.record.ID
		var ids []metadata.TopicID
		for _, name := range m.record.Subscription {
			if t := find(name); t != nil {
				ids = append(ids, t.ID)
				index[t.ID] = 0
			}
		}
		if expr := m.record.SubscriptionRegex; expr != "" {
			if _, done := matches[expr]; !done {
				matches[expr] = nil
				if re := g.regexps[expr]; re != nil {
					for name := range topics.Names {
						if t := find(name); re.MatchString(name) && t != nil {
							matches[expr] = append(matches[expr], t.ID)
							index[t.ID] = 0
						}
					}
				}
			}
			ids = append(ids, matches[expr]...)
		}
		subscribed[id] = ids
	}
	for _, t := range names {
		if t != nil {
			if _, wanted := index[t.ID]; wanted {
				r.topics = append(r.topics, *t)
			}
		}
	}
	slices.SortFunc(r.topics, func(a, b AssignorTopic) int { return compareTopicIDs(a.ID, b.ID) })
	h := fnv.New64a()
	for i, t := range r.topics {
		index[t.ID] = i
		_, _ = h.Write(t.ID[:])
		_, _ = h.Write(binary.BigEndian.AppendUint32(nil, uint32(t.Partitions)))
	}
	r.hash = h.Sum64()
	for _, expr := range slices.Collect(maps.Keys(g.regexps)) {
		if _, used := matches[expr]; !used {
			delete(g.regexps, expr) // a member that names another one each time must not fill the memory (I23)
		}
	}
	for id, ids := range subscribed {
		at := make([]int, len(ids))
		for i := range ids {
			at[i] = index[ids[i]]
		}
		slices.Sort(at)
		r.members[id] = slices.Compact(at)
	}
	g.resolved = r
	return r
}

// compile reads a subscription's expression.
func compile(expr string) (*regexp.Regexp, error) {
	re, err := metadata.CompileSubscription(expr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidRegex, err)
	}
	return re, nil
}

// compile makes an expression usable.
func (g *consumerGroup) compile(expr string) error {
	if expr == "" || g.regexps[expr] != nil {
		return nil
	}
	re, err := compile(expr)
	if err != nil {
		return err
	}
	if g.regexps == nil {
		g.regexps = map[string]*regexp.Regexp{}
	}
	g.regexps[expr] = re
	return nil
}

// compileAll makes the expressions of a record usable, which were checked when they were committed.
func (g *consumerGroup) compileAll() {
	for _, m := range g.sorted() {
		_ = g.compile(m.record.SubscriptionRegex)
	}
}

// retarget computes the targets of the present group epoch.
func (g *consumerGroup) retarget(topics Topics) {
	r := g.resolve(topics)
	g.assignor = g.preferredAssignor()
	in := AssignorInput{Topics: r.topics}
	ids := slices.Collect(maps.Keys(g.members)) // sorted below
	place := func(id string) string {           // what stays the same when a static member returns
		if instance := g.members[id].record.InstanceID; instance != "" {
			return instance
		}
		return id
	}
	slices.SortFunc(ids, func(a, b string) int {
		if x, y := place(a), place(b); x != y {
			return cmp.Compare(x, y)
		}
		return cmp.Compare(a, b)
	})
	for _, id := range ids {
		in.Members = append(in.Members, AssignorMember{ID: place(id), Topics: r.members[id], Target: g.members[id].record.Target})
	}
	for i, target := range assignors[g.assignor](in) {
		if m := g.members[ids[i]]; !samePartitions(m.record.Target, target) {
			g.edit(m, func(next *metadata.GroupMember) { next.Target = target })
		}
	}
	g.assignmentEpoch, g.topicsHash, g.touched = g.epoch, r.hash, true
}

// preferredAssignor is the one that most members ask for; in doubt the earlier one in the settings.
func (g *consumerGroup) preferredAssignor() string {
	votes := map[string]int{}
	for _, m := range g.sorted() {
		votes[m.record.ServerAssignor]++
	}
	best := g.assignors[0]
	for _, name := range g.assignors[1:] {
		if votes[name] > votes[best] {
			best = name
		}
	}
	return best
}
