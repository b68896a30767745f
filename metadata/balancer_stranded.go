package metadata

import (
	"fmt"
	"slices"
	"strings"
)

// strandedPartitions collects partitions whose replicas on a broker have nowhere to go, by broker and reason.
type strandedPartitions struct {
	groups []strandedGroup // in the order in which they came up
}

type strandedGroup struct {
	broker     BrokerID
	why        string // "3 replicas and only 2 other brokers can take replicas"
	partitions []TopicPartition
}

func (s *strandedPartitions) add(broker BrokerID, why string, tp TopicPartition) {
	i := slices.IndexFunc(s.groups, func(g strandedGroup) bool { return g.broker == broker && g.why == why })
	if i < 0 {
		i = len(s.groups)
		s.groups = append(s.groups, strandedGroup{broker: broker, why: why})
	}
	s.groups[i].partitions = append(s.groups[i].partitions, tp)
}

// sentence says of the group's partitions what is the matter with them.
func (g *strandedGroup) sentence() string {
	verb := "have"
	if len(g.partitions) == 1 {
		verb = "has"
	}
	return fmt.Sprintf("%s %s %s", listPartitions(g.partitions), verb, g.why)
}

func (s *strandedPartitions) sentences() (out []string) {
	for i := range s.groups {
		out = append(out, fmt.Sprintf("broker %d can't be emptied: %s", s.groups[i].broker, s.groups[i].sentence()))
	}
	return out
}

// maxListedPartitions bounds how many partitions a sentence names.
const maxListedPartitions = 5

func listPartitions(list []TopicPartition) string {
	var names []string
	for i, tp := range list {
		if i == maxListedPartitions {
			names = append(names, fmt.Sprintf("and %d more", len(list)-i))
			break
		}
		names = append(names, tp.String())
	}
	return strings.Join(names, ", ")
}

// CheckDecommission reports why the replicas of a broker can't all be moved to others, nil if they can. The error is an
// *Error of kind ErrPolicyViolation that names partitions and the mend, or ErrUnknownBroker.
func (im *Image) CheckDecommission(id BrokerID) error {
	if im.Broker(id) == nil {
		return ErrUnknownBroker
	}
	v := newBalancerView(im, func(*Broker) bool { return false }, 0)
	b := &v.brokers[v.at[id]]
	b.takes, b.drops = false, "broker is to go"
	for i := range v.brokers {
		if v.brokers[i].id != id {
			v.brokers[i].drops = "" // others are another question
		}
	}
	var stranded strandedPartitions
	p := newPlanner(v, 0)
	topics := make(map[string]int)
	total := 0
	for _, i := range p.on[v.at[id]] {
		part := &v.partitions[i]
		switch {
		case part.leaderless:
			stranded.add(id, "no live copy that could be copied", part.TopicPartition)
		case p.best(i, id) < 0 && !part.moving:
			stranded.add(id, p.noRoom(i, id), part.TopicPartition)
			topics[part.Topic] = len(part.replicas)
		default:
			continue
		}
		total++
	}
	if total == 0 {
		return nil
	}
	e := &Error{
		Kind: ErrPolicyViolation,
		What: fmt.Sprintf("broker %d cannot be decommissioned: %s nowhere to go", id, partitionsHave(total)),
		Fix:  "start the brokers that hold the other copies",
	}
	var why []string
	for i := range stranded.groups {
		why = append(why, stranded.groups[i].sentence())
	}
	e.Why = strings.Join(why, "; ")
	if len(topics) > 0 {
		names := make([]string, 0, len(topics))
		fewest := 0
		for name, n := range topics {
			names = append(names, name)
			fewest = max(fewest, n)
		}
		slices.Sort(names)
		if len(names) > maxListedPartitions {
			names = append(names[:maxListedPartitions], "…")
		}
		e.Fix = fmt.Sprintf("millrace start … --join HOST   on a new machine, or   millrace topic alter %s --replicas %d", strings.Join(names, " "), fewest-1)
		if fewest == 1 {
			e.Fix = "millrace start … --join HOST   on a new machine"
		}
	}
	return e
}

func partitionsHave(n int) string {
	if n == 1 {
		return "1 partition has"
	}
	return fmt.Sprintf("%d partitions have", n)
}
