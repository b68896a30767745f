package metadata

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// balancerMove is a move as it is committed.
type balancerMove struct {
	Topic       TopicID
	Name        string // of the topic
	Partition   int32
	From, To    BrokerID
	Replicas    []BrokerID
	Reason      string
	State       MoveState
	Trouble     string
	BeganMillis int64 // unix, 0 = waits
	EndedMillis int64
}

// planner makes the moves of one plan. It is deterministic, and changes nothing but itself.
//
// First go the replicas of brokers that must have none any more, then those that share a rack while another has none,
// then one by one replicas of the fullest broker to the emptiest, until no two differ by more than one. None of these may
// put two replicas of a partition into one rack that were in two. Last, the preferred leaders are made even by changing
// the order of replicas, which copies nothing.
type planner struct {
	v     *balancerView
	moves []balancerMove
	// last is the index of a partition's last move, -1 none; several moves of one partition are made one after the other.
	last    []int
	cannot  []string
	limit   int
	full    bool      // the limit was reached: another plan has to follow
	count   []int     // replicas per broker, as in v.brokers
	before  []int     // count at the start
	leaders []int     // preferred leaders per broker
	topics  [][]int32 // replicas per topic and broker
	on      [][]int   // partitions with a replica there, per broker
	evenly  float64   // replicas per broker that takes, when even
}

// maxPlannedMoves bounds a plan, which is committed as a whole; what is left over is the next one's.
const maxPlannedMoves = 20_000

func newPlanner(v *balancerView, limit int) *planner {
	n := len(v.brokers)
	p := &planner{v: v, limit: limit, count: make([]int, n), leaders: make([]int, n), on: make([][]int, n), last: make([]int, len(v.partitions))}
	p.topics = make([][]int32, v.topics)
	for i := range p.topics {
		p.topics[i] = make([]int32, n)
	}
	for i := range v.partitions {
		p.last[i] = -1
		for j, id := range v.partitions[i].replicas {
			p.place(i, id, 1)
			p.lead(j, id, 1)
		}
	}
	p.before = slices.Clone(p.count)
	return p
}

// place counts a replica of a partition on a broker, or takes it off. A broker that is not registered counts nowhere.
func (p *planner) place(i int, id BrokerID, n int) {
	b, ok := p.v.at[id]
	if !ok {
		return
	}
	p.count[b] += n
	p.topics[p.v.partitions[i].topic][b] += int32(n)
	if n > 0 {
		p.on[b] = append(p.on[b], i)
	} else {
		p.on[b] = slices.DeleteFunc(p.on[b], func(j int) bool { return i == j })
	}
}

func (p *planner) lead(position int, id BrokerID, n int) {
	if b, ok := p.v.at[id]; ok && position == 0 {
		p.leaders[b] += n
	}
}

// plan makes all moves. even also makes what need not move even.
func (p *planner) plan(even bool) {
	p.empty()
	if !even {
		return
	}
	p.spreadRacks()
	p.even()
	p.evenLeaders()
}

// empty moves the replicas away that must not stay.
func (p *planner) empty() {
	var stranded strandedPartitions
	for b := range p.v.brokers {
		broker := &p.v.brokers[b]
		if broker.drops == "" {
			continue
		}
		for _, i := range slices.Clone(p.on[b]) {
			part := &p.v.partitions[i]
			switch to := p.best(i, broker.id); {
			case part.moving:
			case part.leaderless:
				stranded.add(broker.id, "no live copy that could be copied", part.TopicPartition)
			case to < 0:
				stranded.add(broker.id, p.noRoom(i, broker.id), part.TopicPartition)
			default:
				p.move(i, b, to, broker.drops)
			}
		}
	}
	p.cannot = append(p.cannot, stranded.sentences()...)
}

// noRoom says why the replica on from has nowhere to go.
func (p *planner) noRoom(i int, from BrokerID) string {
	others := 0
	for b := range p.v.brokers {
		if p.v.brokers[b].takes && p.v.brokers[b].id != from {
			others++
		}
	}
	return fmt.Sprintf("%s and only %s", plural(len(p.v.partitions[i].replicas), "replica"), othersAlive(others))
}

func othersAlive(n int) string {
	if n == 1 {
		return "1 other broker can take replicas"
	}
	return fmt.Sprintf("%d other brokers can take replicas", n)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// best returns the broker, an index, that suits best for the replica of partition i that is on from; -1 if there is none.
func (p *planner) best(i int, from BrokerID) int {
	part := &p.v.partitions[i]
	best := -1
	for b := range p.v.brokers {
		if !p.v.brokers[b].takes || slices.Contains(part.replicas, p.v.brokers[b].id) {
			continue
		}
		if best < 0 || cmp.Or(cmp.Compare(p.sharing(part, from, b), p.sharing(part, from, best)),
			cmp.Compare(p.topics[part.topic][b], p.topics[part.topic][best]), cmp.Compare(p.count[b], p.count[best])) < 0 {
			best = b
		}
	}
	return best
}

// sharing is how many replicas of a partition, the one on from not counted, are in the rack of a broker. Brokers without a
// rack share none.
func (p *planner) sharing(part *balancerPartition, from BrokerID, broker int) (n int) {
	rack := p.v.brokers[broker].rack
	if rack == "" {
		return 0
	}
	for _, id := range part.replicas {
		if b, ok := p.v.at[id]; ok && id != from && p.v.brokers[b].rack == rack {
			n++
		}
	}
	return n
}

// move plans the move of a replica between two brokers, which are indexes.
func (p *planner) move(i, from, to int, reason string) {
	if p.limit <= len(p.moves) {
		p.full = true
		return
	}
	part := &p.v.partitions[i]
	replicas := slices.Clone(part.replicas)
	at := slices.Index(replicas, p.v.brokers[from].id)
	replicas[at] = p.v.brokers[to].id
	part.replicas = replicas
	p.place(i, p.v.brokers[from].id, -1)
	p.lead(at, p.v.brokers[from].id, -1)
	p.place(i, p.v.brokers[to].id, 1)
	p.lead(at, p.v.brokers[to].id, 1)
	p.last[i] = len(p.moves)
	p.moves = append(p.moves, balancerMove{
		Topic: part.id, Name: part.Topic, Partition: part.Partition, From: p.v.brokers[from].id, To: p.v.brokers[to].id,
		Replicas: replicas, Reason: reason, State: MoveWaiting,
	})
}

// spreadRacks moves replicas that share a rack to a rack that has none of their partition.
func (p *planner) spreadRacks() {
	for i := range p.v.partitions {
		for p.spreadRack(i) {
		}
	}
}

func (p *planner) spreadRack(i int) bool {
	part := &p.v.partitions[i]
	if part.moving || part.leaderless {
		return false
	}
	from := -1
	for _, id := range part.replicas {
		b, ok := p.v.at[id]
		if ok && p.sharing(part, id, b) > 0 && (from < 0 || p.count[b] > p.count[from]) {
			from = b
		}
	}
	if from < 0 {
		return false
	}
	to := p.best(i, p.v.brokers[from].id)
	if to < 0 || p.v.brokers[to].rack == "" || p.sharing(part, p.v.brokers[from].id, to) > 0 {
		return false
	}
	n := len(p.moves)
	p.move(i, from, to, fmt.Sprintf("two replicas are in rack %s and none in rack %s", p.v.brokers[from].rack, p.v.brokers[to].rack))
	return len(p.moves) > n
}

// even moves replicas from the fullest to the emptiest brokers that take any.
func (p *planner) even() {
	var order []int
	total := 0
	for b := range p.v.brokers {
		if p.v.brokers[b].takes {
			order = append(order, b)
			total += p.count[b]
		}
	}
	if len(order) < 2 {
		return
	}
	p.evenly = float64(total) / float64(len(order))
	for !p.full && p.evenOne(order) {
	}
}

// evenOne makes one move, if one helps: of the pairs of a full and an empty broker the furthest apart that has a partition
// to move.
func (p *planner) evenOne(order []int) bool {
	slices.SortFunc(order, func(a, b int) int { return cmp.Or(cmp.Compare(p.count[a], p.count[b]), cmp.Compare(a, b)) })
	for f := len(order) - 1; f > 0; f-- {
		for _, to := range order[:f] {
			from := order[f]
			if p.count[from]-p.count[to] < 2 {
				break
			}
			if i := p.candidate(from, to); i >= 0 {
				p.move(i, from, to, p.unevenness(from, to))
				return !p.full
			}
		}
	}
	return false
}

// unevenness says how it was between two brokers when the plan was made.
func (p *planner) unevenness(from, to int) string {
	return fmt.Sprintf("broker %d has %s, broker %d has %d, and even is %s",
		p.v.brokers[to].id, plural(p.before[to], "replica"), p.v.brokers[from].id, p.before[from], strings.TrimSuffix(fmt.Sprintf("%.1f", p.evenly), ".0"))
}

// candidate returns the partition to move between two brokers, -1 if there is none: one of the topic that is spread the
// least between the two, and the first of those.
func (p *planner) candidate(from, to int) int {
	best, most := -1, int32(0)
	source, target := p.v.brokers[from].id, p.v.brokers[to].id
	for _, i := range p.on[from] {
		part := &p.v.partitions[i]
		skew := p.topics[part.topic][from] - p.topics[part.topic][to]
		if best >= 0 && (skew < most || skew == most && i > best) || part.moving || part.leaderless || slices.Contains(part.replicas, target) {
			continue
		}
		// Two moves of one partition wait for each other, and one back and forth would be for nothing.
		if p.last[i] >= 0 || p.sharing(part, source, to) > p.sharing(part, source, from) {
			continue
		}
		best, most = i, skew
	}
	return best
}

// evenLeaders changes the order of replicas until no broker has two preferred leaders more than another to which some
// could be handed on: directly, or along a chain of brokers.
func (p *planner) evenLeaders() {
	takers, total := 0, 0
	for b := range p.v.brokers {
		if p.v.brokers[b].takes {
			takers++
			total += p.leaders[b]
		}
	}
	if takers == 0 {
		return
	}
	before := slices.Clone(p.leaders)
	even := strings.TrimSuffix(fmt.Sprintf("%.1f", float64(total)/float64(takers)), ".0")
	for !p.full {
		path := p.leaderPath()
		if path == nil {
			return
		}
		for _, step := range path {
			p.reorder(step.partition, step.to, fmt.Sprintf("broker %d is to lead %s, broker %d %d, and even is %s",
				p.v.brokers[step.from].id, plural(before[step.from], "partition"), p.v.brokers[step.to].id, before[step.to], even))
		}
	}
}

// leaderStep hands the preferred leadership of a partition on.
type leaderStep struct{ partition, from, to int }

// leaderPath finds the shortest chain from a broker with the most preferred leaders to one with two fewer at least.
func (p *planner) leaderPath() []leaderStep {
	var sources []int
	for b := range p.v.brokers {
		if p.v.brokers[b].takes {
			sources = append(sources, b)
		}
	}
	slices.SortFunc(sources, func(a, b int) int { return cmp.Or(cmp.Compare(p.leaders[b], p.leaders[a]), cmp.Compare(a, b)) })
	for _, source := range sources {
		if p.leaders[source] < p.leaders[sources[len(sources)-1]]+2 {
			return nil
		}
		came := map[int]leaderStep{source: {partition: -1}}
		queue := []int{source}
		for len(queue) > 0 {
			b := queue[0]
			queue = queue[1:]
			if p.leaders[b]+2 <= p.leaders[source] {
				var path []leaderStep
				for b != source {
					path = append(path, came[b])
					b = came[b].from
				}
				slices.Reverse(path)
				return path
			}
			for _, i := range p.on[b] {
				part := &p.v.partitions[i]
				if part.moving || part.leaderless || part.replicas[0] != p.v.brokers[b].id {
					continue
				}
				for _, id := range part.replicas[1:] {
					next, ok := p.v.at[id]
					if _, seen := came[next]; !ok || seen || !p.v.brokers[next].takes {
						continue
					}
					came[next] = leaderStep{partition: i, from: b, to: next}
					queue = append(queue, next)
				}
			}
		}
	}
	return nil
}

// reorder makes a broker the preferred leader of a partition, as part of the partition's last move if it has one.
func (p *planner) reorder(i, to int, reason string) {
	part := &p.v.partitions[i]
	id := p.v.brokers[to].id
	p.lead(0, part.replicas[0], -1)
	p.lead(0, id, 1)
	replicas := slices.Clone(part.replicas)
	at := slices.Index(replicas, id)
	replicas[0], replicas[at] = replicas[at], replicas[0]
	part.replicas = replicas
	if p.last[i] >= 0 {
		p.moves[p.last[i]].Replicas = replicas
		return
	}
	if p.limit <= len(p.moves) {
		p.full = true
		return
	}
	p.last[i] = len(p.moves)
	p.moves = append(p.moves, balancerMove{
		Topic: part.id, Name: part.Topic, Partition: part.Partition, From: NoBroker, To: NoBroker,
		Replicas: replicas, Reason: reason, State: MoveWaiting,
	})
}

// uneven reports whether a broker that takes replicas has more than a tenth, and more than one, above or below what is
// even.
func (v *balancerView) uneven() bool {
	p := newPlanner(v, 0)
	low, high, total, n := 0, 0, 0, 0
	for b := range v.brokers {
		if !v.brokers[b].takes {
			continue
		}
		if c := p.count[b]; n == 0 {
			low, high = c, c
		} else {
			low, high = min(low, c), max(high, c)
		}
		total += p.count[b]
		n++
	}
	if n == 0 {
		return false
	}
	even := float64(total) / float64(n)
	allowed := max(even/10, 1)
	return float64(high)-even > allowed || even-float64(low) > allowed
}

// spread is the least and the greatest number of replicas on a broker that takes any.
func (p *planner) spread(count []int) (out [2]int) {
	first := true
	for b := range p.v.brokers {
		if !p.v.brokers[b].takes {
			continue
		}
		if first {
			out, first = [2]int{count[b], count[b]}, false
		}
		out[0], out[1] = min(out[0], count[b]), max(out[1], count[b])
	}
	return out
}
