package group

import (
	"slices"

	"github.com/millrace/millrace/metadata"
)

// assignUniform gives all members as many partitions as it can, to within one of each other where their subscriptions
// allow it, and moves as few as it must: what a member had it keeps as long as nobody has to have it instead.
//
// Where members subscribe to different topics a member may not take all there is. Then partitions move along chains: from
// a member that has two more than another one, directly or by way of members in between, until no such chain is left. What
// is left is as even as any assignment can be: no member could give to one that has two less.
func assignUniform(in AssignorInput) [][]metadata.TopicPartitions {
	if len(in.Members) == 0 {
		return nil
	}
	u := &uniform{in: in, load: make([]int, len(in.Members)), owner: make([][]int, len(in.Topics)), count: make([][]int32, len(in.Members))}
	u.keep()
	alike := u.trim()
	u.deal()
	if !alike {
		u.even()
	}
	return u.targets()
}

// uniform is an assignment in the making.
type uniform struct {
	in    AssignorInput
	load  []int   // by member
	owner [][]int // by topic and partition: the member, -1 for nobody
	// count is how many partitions of each topic that it subscribes to a member has, parallel to its Topics.
	count [][]int32
	// subscribers are the members of each topic.
	subscribers [][]int
}

// keep lets members have what they had, as far as it still exists and they still want it.
func (u *uniform) keep() {
	u.subscribers = make([][]int, len(u.in.Topics))
	for t := range u.in.Topics {
		u.owner[t] = make([]int, u.in.Topics[t].Partitions)
		for p := range u.owner[t] {
			u.owner[t][p] = -1
		}
	}
	for m, member := range u.in.Members {
		u.count[m] = make([]int32, len(member.Topics))
		for _, t := range member.Topics {
			u.subscribers[t] = append(u.subscribers[t], m)
		}
		for _, had := range member.Target {
			t, ok := slices.BinarySearchFunc(u.in.Topics, had.TopicID, func(a AssignorTopic, id metadata.TopicID) int { return compareTopicIDs(a.ID, id) })
			if !ok || !slices.Contains(member.Topics, t) {
				continue
			}
			for _, p := range had.Partitions {
				if int(p) < len(u.owner[t]) && u.owner[t][p] < 0 {
					u.give(t, int(p), m)
				}
			}
		}
	}
}

// give makes a member the owner of a partition, in place of whoever is.
func (u *uniform) give(t, p, m int) {
	if u.owner[t][p] >= 0 {
		u.take(t, p)
	}
	u.owner[t][p] = m
	u.load[m]++
	u.count[m][u.place(m, t)]++
}

// take makes a partition nobody's.
func (u *uniform) take(t, p int) {
	m := u.owner[t][p]
	u.load[m]--
	u.count[m][u.place(m, t)]--
	u.owner[t][p] = -1
}

// place is where a topic stands among those that a member subscribes to.
func (u *uniform) place(m, t int) int {
	i, _ := slices.BinarySearch(u.in.Members[m].Topics, t)
	return i
}

// deal gives what nobody has to those who have least. Topics that few subscribe to come first: who may have them has less
// choice.
func (u *uniform) deal() {
	topics := make([]int, len(u.in.Topics))
	for t := range topics {
		topics[t] = t
	}
	slices.SortStableFunc(topics, func(a, b int) int { return len(u.subscribers[a]) - len(u.subscribers[b]) })
	for _, t := range topics {
		if len(u.subscribers[t]) == 0 {
			continue
		}
		heap := newLeastLoaded(u, u.subscribers[t])
		for p, owner := range u.owner[t] {
			if owner < 0 {
				u.give(t, p, heap.least())
				heap.loaded()
			}
		}
	}
}

// trim takes from members what is above their share if all subscribe to the same topics, and reports whether they do: most
// groups are like that, and then nothing is left to do along chains. Who has most may keep one more, where it does not divide evenly.
func (u *uniform) trim() bool {
	topics := u.in.Members[0].Topics
	total := 0
	for _, m := range u.in.Members {
		if !slices.Equal(m.Topics, topics) {
			return false
		}
	}
	for _, t := range topics {
		total += len(u.owner[t])
	}
	n := len(u.in.Members)
	excess := make([]int, n)
	for place, m := range u.byLoad() {
		share := total / n
		if place < total%n {
			share++
		}
		excess[m] = u.load[m] - share
	}
	for i := len(topics) - 1; i >= 0; i-- {
		t := topics[i]
		for p := len(u.owner[t]) - 1; p >= 0; p-- {
			if m := u.owner[t][p]; m >= 0 && excess[m] > 0 {
				excess[m]--
				u.take(t, p)
			}
		}
	}
	return true
}

// byLoad returns the members, the most loaded first.
func (u *uniform) byLoad() []int {
	members := make([]int, len(u.load))
	for m := range members {
		members[m] = m
	}
	slices.SortStableFunc(members, func(a, b int) int { return u.load[b] - u.load[a] })
	return members
}

// even moves partitions along chains, one at a time, from whoever has most, until nobody has two more than somebody it
// could give to.
func (u *uniform) even() {
	for {
		moved := false
		dead := make([]bool, len(u.load)) // from here no chain leads far enough down
		for _, m := range u.byLoad() {
			way := u.chain(m, dead)
			for _, s := range way { // the last step first: each member in between has as many as before
				p := len(u.owner[s.topic]) - 1
				for u.owner[s.topic][p] != s.from {
					p--
				}
				u.give(s.topic, p, s.to)
			}
			if moved = way != nil; moved {
				break
			}
		}
		if !moved {
			return
		}
	}
}

// step is a partition's way to the next member of a chain.
type step struct{ from, topic, to int }

const unseen = -2

// chain finds the shortest way from a member down to the least loaded one that it leads to, if that has at least two
// less; the last step comes first. Members from which no chain leads down are marked dead for those with no more.
func (u *uniform) chain(m int, dead []bool) (way []step) {
	if dead[m] {
		return nil
	}
	came := make([]step, len(u.load))
	for i := range came {
		came[i].from = unseen
	}
	came[m].from = -1
	queue := []int{m}
	end := m
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for i, t := range u.in.Members[at].Topics {
			if u.count[at][i] == 0 {
				continue
			}
			for _, to := range u.subscribers[t] {
				if came[to].from != unseen || dead[to] {
					continue
				}
				came[to] = step{at, t, to}
				queue = append(queue, to)
				if u.load[to] < u.load[end] {
					end = to
				}
			}
		}
	}
	if u.load[end] > u.load[m]-2 {
		for seen := range came {
			dead[seen] = dead[seen] || came[seen].from != unseen
		}
		return nil
	}
	for s := came[end]; s.from >= 0; s = came[s.from] {
		way = append(way, s)
	}
	return way
}

func (u *uniform) targets() [][]metadata.TopicPartitions {
	targets := make([]target, len(u.in.Members))
	for t := range u.owner {
		for p, m := range u.owner[t] {
			if m >= 0 {
				targets[m].add(u.in.Topics[t].ID, int32(p))
			}
		}
	}
	return targetsOf(targets)
}

// leastLoaded is a heap of members by load, then order.
type leastLoaded struct {
	u       *uniform
	members []int
}

func newLeastLoaded(u *uniform, members []int) *leastLoaded {
	h := &leastLoaded{u: u, members: slices.Clone(members)}
	for i := len(members)/2 - 1; i >= 0; i-- {
		h.sink(i)
	}
	return h
}

func (h *leastLoaded) least() int { return h.members[0] }

// loaded puts the first member in its place after it was given something.
func (h *leastLoaded) loaded() { h.sink(0) }

func (h *leastLoaded) less(a, b int) bool {
	x, y := h.members[a], h.members[b]
	if lx, ly := h.u.load[x], h.u.load[y]; lx != ly {
		return lx < ly
	}
	return x < y
}

func (h *leastLoaded) sink(i int) {
	for {
		least := i
		for _, child := range []int{2*i + 1, 2*i + 2} {
			if child < len(h.members) && h.less(child, least) {
				least = child
			}
		}
		if least == i {
			return
		}
		h.members[i], h.members[least] = h.members[least], h.members[i]
		i = least
	}
}
