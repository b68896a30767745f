package console

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/metadata"
)

// Diagnosis says what is wrong with one partition and what mends it.
type Diagnosis struct {
	PartitionInfo
	Well     bool      `json:"well" doc:"whether there is nothing to say"`
	Findings []Finding `json:"findings" doc:"the worst first"`
}

// Finding is one thing that is wrong.
type Finding struct {
	// Subject is what kind of finding it is, for machines.
	Subject string `json:"subject" doc:"offline, under_min_isr, out_of_sync, move_stuck, move, not_preferred or unclean"`
	What    string `json:"what" doc:"what is wrong"`
	Why     string `json:"why" doc:"the fact that leads to it"`
	Fix     string `json:"fix" doc:"what mends it"`
}

func getDiagnosis(c *call) (any, error) {
	t, i, err := c.partition()
	if err != nil {
		return nil, err
	}
	p := t.Partitions[i]
	var leader *ReplicaState
	if p.Leader != metadata.NoBroker {
		leader, _ = c.replicaState(p.Leader, t.ID, i)
	}
	d := Diagnosis{PartitionInfo: c.partitionInfo(t, i, c.minISR(t)), Findings: diagnose(c.image(), t, i, c.minISR(t), leader, time.Now())}
	d.Well = len(d.Findings) == 0
	return d, nil
}

// diagnosis is one partition under examination.
type diagnosis struct {
	im     *metadata.Image
	name   string // topic-partition
	topic  string
	number int32
	p      *metadata.Partition
	leader *ReplicaState // nil: the leader could not be asked, or there is none
	now    time.Time
	out    []Finding
}

// diagnose says what is wrong with a partition. leader is how its leader sees it, nil when it could not be asked.
func diagnose(im *metadata.Image, t *metadata.Topic, i int32, minISR int, leader *ReplicaState, now time.Time) []Finding {
	x := &diagnosis{im: im, name: metadata.TopicPartition{Topic: t.Name, Partition: i}.String(), topic: t.Name, number: i, p: t.Partitions[i], leader: leader, now: now, out: []Finding{}}
	s := stateOf(x.p, minISR)
	if s.offline {
		x.offline()
	} else if s.underMinISR {
		x.add("under_min_isr", x.name+" refuses acks=all", fmt.Sprintf("%d of its replicas in sync, acks=all needs %d", len(x.p.ISR), minISR), "bring the replicas below back in sync")
	}
	for _, r := range x.p.Replicas {
		if !slices.Contains(x.p.ISR, r) && !slices.Contains(x.p.Adding, r) && !s.offline {
			x.outOfSync(r)
		}
	}
	if x.p.Reassigning() {
		x.move()
	}
	if x.p.UncleanEpoch >= 0 && x.p.UncleanEpoch == x.p.LeaderEpoch {
		x.add("unclean", x.name+" had an unclean election", fmt.Sprintf("leader epoch %d began with a replica that may not have had everything acknowledged", x.p.UncleanEpoch), "nothing to do; records that only the others had are lost")
	}
	if preferred := x.p.Replicas[0]; !s.offline && x.p.Leader != preferred && slices.Contains(x.p.ISR, preferred) && !x.p.Reassigning() && !x.unfit(preferred) {
		x.add("not_preferred", fmt.Sprintf("%s is led by broker %d and not by its preferred leader %d", x.name, x.p.Leader, preferred), "the leadership has moved and not gone back yet",
			fmt.Sprintf("millrace cluster partitions elect-leader %s -p %d   or wait for the next round", x.topic, x.number))
	}
	return x.out
}

func (x *diagnosis) add(subject, what, why, fix string) {
	x.out = append(x.out, Finding{subject, what, why, fix})
}

// unfit says whether a broker would not be given leaderships.
func (x *diagnosis) unfit(id metadata.BrokerID) bool {
	b := x.im.Broker(id)
	return b == nil || b.Fenced || b.Draining || b.Leaving
}

// broken says why a broker cannot take part, "" when it can.
func (x *diagnosis) broken(id metadata.BrokerID) string {
	b := x.im.Broker(id)
	switch {
	case b == nil:
		return fmt.Sprintf("broker %d is not registered", id)
	case b.Leaving:
		return fmt.Sprintf("broker %d is stopping or stopped", id)
	case b.Fenced:
		return fmt.Sprintf("broker %d is fenced: the controller has no contact with it, or it is not ready yet", id)
	}
	if i := slices.Index(x.p.Replicas, id); i >= 0 && i < len(x.p.Directories) && slices.Contains(b.Offline, x.p.Directories[i]) {
		return fmt.Sprintf("the log directory of broker %d that has it failed", id)
	}
	return ""
}

// start names where a broker is to be started, as far as the metadata knows.
func (x *diagnosis) start(ids []metadata.BrokerID) string {
	var names []string
	for _, id := range ids {
		name := id.String()
		if b := x.im.Broker(id); b != nil && len(b.Listeners) > 0 {
			name += " (" + b.Listeners[0].Host + ")"
		}
		names = append(names, name)
	}
	return "start broker " + strings.Join(names, " or ")
}

// offline explains why there is no leader, and who could be one.
func (x *diagnosis) offline() {
	candidates := append(slices.Clone(x.p.ISR), x.p.ELR...)
	if len(candidates) == 0 && x.p.LastLeader != metadata.NoBroker {
		candidates = []metadata.BrokerID{x.p.LastLeader}
	}
	unclean := fmt.Sprintf("millrace cluster partitions elect-leader %s -p %d --unclean   takes the most complete of the others, and loses what it does not have", x.topic, x.number)
	if len(candidates) == 0 {
		x.add("offline", x.name+" has no leader", "no replica is known to have everything that was acknowledged: those that had it lost their disks, or stopped without proof of what they have", unclean)
		return
	}
	var whys []string
	for _, id := range candidates {
		if why := x.broken(id); why != "" {
			whys = append(whys, why)
		}
	}
	if len(whys) < len(candidates) {
		x.add("offline", x.name+" has no leader", "a replica that may lead is there, and was not elected yet", "wait a moment; then millrace cluster quorum status   shows whether there is a controller")
		return
	}
	x.add("offline", x.name+" has no leader", "of those that have everything acknowledged, "+strings.Join(whys, ", "), x.start(candidates)+"; if it never comes back: "+unclean)
}

// follower is what the leader knows of a replica, nil when it knows nothing or could not be asked.
func (x *diagnosis) follower(id metadata.BrokerID) *FollowerState {
	if x.leader == nil {
		return nil
	}
	for i := range x.leader.Followers {
		if x.leader.Followers[i].Broker == int32(id) {
			return &x.leader.Followers[i]
		}
	}
	return nil
}

// lag says how far behind a live replica is.
func (x *diagnosis) lag(id metadata.BrokerID) string {
	f := x.follower(id)
	switch {
	case x.leader == nil:
		return fmt.Sprintf("broker %d is there and behind; its leader, broker %d, could not be asked how far", id, x.p.Leader)
	case f == nil || f.Fetched == nil:
		return fmt.Sprintf("broker %d is there, and has not asked its leader %d for anything since that leads", id, x.p.Leader)
	case f.LagRecords < 0:
		return fmt.Sprintf("broker %d last asked %s ago", id, x.ago(*f.Fetched))
	}
	return fmt.Sprintf("broker %d is %d records behind, and last asked %s ago", id, f.LagRecords, x.ago(*f.Fetched))
}

func (x *diagnosis) ago(t time.Time) string {
	d := x.now.Sub(t)
	if d < 10*time.Second {
		return max(d, 0).Round(10 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

func (x *diagnosis) outOfSync(id metadata.BrokerID) {
	what := fmt.Sprintf("broker %d is not in sync for %s", id, x.name)
	if why := x.broken(id); why != "" {
		x.add("out_of_sync", what, why, x.start([]metadata.BrokerID{id})+fmt.Sprintf("; if its disk is lost: millrace start --replace %d", id))
		return
	}
	x.add("out_of_sync", what, x.lag(id), fmt.Sprintf("wait; if it does not get nearer, see the logs of brokers %d and %d, and the throttle of replication", id, x.p.Leader))
}

// move explains a reassignment that is under way: what it waits for.
func (x *diagnosis) move() {
	what := fmt.Sprintf("%s moves to %s", x.name, idList(x.target()))
	cancel := fmt.Sprintf("millrace cluster partitions move-cancel %s -p %d   takes it back", x.topic, x.number)
	if x.p.Leader == metadata.NoBroker {
		x.add("move_stuck", what, "it stands still: there is no leader to copy from", "bring the leader back; "+cancel)
		return
	}
	missing := 0
	for _, id := range x.p.Adding {
		if slices.Contains(x.p.ISR, id) {
			continue
		}
		missing++
		if why := x.broken(id); why != "" {
			x.add("move_stuck", what, "it stands still: "+why, x.start([]metadata.BrokerID{id})+"; "+cancel)
			continue
		}
		x.add("move", what, x.lag(id), "wait; "+cancel)
	}
	if missing == 0 {
		x.add("move", what, "all new replicas are in sync; the controller takes the old ones off now", "wait a moment")
	}
}

// target is the set of replicas that the move leads to.
func (x *diagnosis) target() []metadata.BrokerID {
	return slices.DeleteFunc(slices.Clone(x.p.Replicas), func(r metadata.BrokerID) bool { return slices.Contains(x.p.Removing, r) })
}

func idList(ids []metadata.BrokerID) string {
	var out []string
	for _, id := range ids {
		out = append(out, id.String())
	}
	return strings.Join(out, ",")
}
