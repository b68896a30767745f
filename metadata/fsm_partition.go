package metadata

import (
	"slices"
	"strconv"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// This file holds what happens to a partition when its replicas' brokers change: who is in the ISR, who is eligible though
// not in it, and who leads.
//
//	ISR   has every committed record, and what is committed waits for it
//	ELR   has every committed record: it left the ISR when that was, or became, smaller than min.insync.replicas, and
//	      since then nothing can have been committed (KIP-966)
//
// A broker that is fenced is in no ISR.

// partitionPolicy holds the defaults of topic configs that Apply goes by, as the proposer resolved them (M1).
type partitionPolicy struct {
	minInsync   int  // min.insync.replicas; 0 = it goes by the number of replicas
	flushLazily bool // millrace.flush.ack=false
}

func (pp partitionPolicy) message() *pb.PartitionPolicy {
	return &pb.PartitionPolicy{MinInsync: uint32(pp.minInsync), FlushLazily: pp.flushLazily}
}

func decodePolicy(m *pb.PartitionPolicy) partitionPolicy {
	return partitionPolicy{minInsync: int(min(m.GetMinInsync(), 1<<20)), flushLazily: m.GetFlushLazily()}
}

// minISR is TopicSettings.MinISR for a partition of the topic with that many replicas.
func (pp partitionPolicy) minISR(t *Topic, replicas int) int {
	s := TopicSettings{MinInsyncReplicas: pp.minInsync}
	if n, err := strconv.Atoi(t.Configs["min.insync.replicas"]); err == nil && n > 0 {
		s.MinInsyncReplicas = n
	}
	return s.MinISR(replicas)
}

// flushes reports whether an acknowledged record of the topic is on disk.
func (pp partitionPolicy) flushes(t *Topic) bool {
	if v, ok := t.Configs["millrace.flush.ack"]; ok {
		return v == "true"
	}
	return !pp.flushLazily
}

// failover counts what a command did to partitions, for the log of the controller.
type failover struct {
	Moved      int // got another leader
	Leaderless int // lost theirs and have none now
	Shrunk     int // lost a member of their ISR
	// Interrupted counts groups whose coordinator was lost with the broker.
	Interrupted int
	// Unclean names the partitions whose leader was elected outside ISR and ELR: committed records may be gone (R15, I12).
	Unclean []TopicPartition
}

// revision is the next version of a partition in the making. Its methods change ISR, ELR, Leader and replicas; commit works
// out the epochs.
type revision struct {
	Partition
	d      *draft
	topic  *Topic
	index  int
	old    *Partition
	policy partitionPolicy
	// renew begins a new leader epoch although the leader may be the same: its process is another one (R14), or what it
	// knows of its followers must be forgotten (R24).
	renew bool
	// unclean is set by an election outside ISR and ELR.
	unclean bool
}

func (d *draft) revise(t *Topic, i int, pp partitionPolicy) *revision {
	return &revision{Partition: *t.Partitions[i], d: d, topic: t, index: i, old: t.Partitions[i], policy: pp}
}

// commit stores the partition if it has changed, with its epochs, and returns the present version of its topic.
func (r *revision) commit(out *failover) *Topic {
	p := &r.Partition
	if p.Leader != r.old.Leader || r.unclean {
		r.renew = true
	}
	if p.Leader != NoBroker {
		p.LastLeader = p.Leader
	}
	if !r.renew && p.LastLeader == r.old.LastLeader && slices.Equal(p.ISR, r.old.ISR) && slices.Equal(p.ELR, r.old.ELR) &&
		slices.Equal(p.Replicas, r.old.Replicas) && slices.Equal(p.Directories, r.old.Directories) &&
		slices.Equal(p.Adding, r.old.Adding) && slices.Equal(p.Removing, r.old.Removing) {
		return r.topic
	}
	if r.renew {
		p.LeaderEpoch++
	}
	if r.unclean {
		p.UncleanEpoch = p.LeaderEpoch
		out.Unclean = append(out.Unclean, TopicPartition{Topic: r.topic.Name, Partition: int32(r.index)})
	}
	p.PartitionEpoch++
	switch {
	case p.Leader == r.old.Leader:
	case p.Leader == NoBroker:
		out.Leaderless++
	default:
		out.Moved++
	}
	if len(p.ISR) < len(r.old.ISR) {
		out.Shrunk++
	}
	stored := r.Partition // the revision itself may go
	r.topic = r.d.ownTopic(r.topic.Name)
	r.topic.Partitions[r.index] = &stored
	return r.topic
}

// usable reports whether the replica at position i is on a registered, unfenced broker and in a directory that it can use.
func (r *revision) usable(i int) bool {
	b := r.d.st.broker(r.Replicas[i])
	return b != nil && !b.Fenced && slices.Contains(b.Directories, r.Directories[i]) && !slices.Contains(b.Offline, r.Directories[i])
}

// welcome reports whether the replica at position i, which is usable, is one that should lead.
func (r *revision) welcome(i int) bool {
	b := r.d.st.broker(r.Replicas[i])
	return !b.Draining && !b.Leaving && !slices.Contains(r.Removing, b.ID)
}

// pick returns the first of the replicas, in their order, that is in set and usable, a welcome one before any other;
// NoBroker if there is none.
func (r *revision) pick(set []BrokerID) BrokerID {
	found := NoBroker
	for i, id := range r.Replicas {
		if !slices.Contains(set, id) || !r.usable(i) {
			continue
		}
		if r.welcome(i) {
			return id
		}
		if found == NoBroker {
			found = id
		}
	}
	return found
}

// elect gives the partition the leader that it should have now. The present one stays if it can and is welcome, or if
// nobody better is in the ISR. Else one of the ISR follows it, or when the ISR is empty one of the ELR, or when that is
// empty too the last known leader (I12), whose election is unclean: it may lack records that were committed.
func (r *revision) elect() {
	next := r.pick(r.ISR)
	if at := slices.Index(r.Replicas, r.Leader); at >= 0 && slices.Contains(r.ISR, r.Leader) && r.usable(at) {
		// next is usable too; it is better only if it is welcome and the present leader is asked to go.
		if b := r.d.st.broker(r.Leader); !b.Draining && !b.Leaving || !r.welcome(slices.Index(r.Replicas, next)) {
			return
		}
	}
	if next == NoBroker && len(r.ISR) == 0 {
		if next = r.pick(r.ELR); next != NoBroker {
			r.ISR, r.ELR = []BrokerID{next}, without(r.ELR, next)
			r.trimELR()
		} else if len(r.ELR) == 0 && r.LastLeader != NoBroker {
			if next = r.pick([]BrokerID{r.LastLeader}); next != NoBroker {
				r.ISR, r.unclean = []BrokerID{next}, true
			}
		}
	}
	r.Leader = next
}

// shrink takes id out of the ISR. One that keeps all committed records stays eligible if the ISR is too small now.
func (r *revision) shrink(id BrokerID, keepsRecords bool) {
	if slices.Contains(r.ISR, id) {
		r.ISR = without(r.ISR, id)
		if keepsRecords {
			r.ELR = append(slices.Clone(r.ELR), id)
		}
	}
	if !keepsRecords {
		r.ELR = without(r.ELR, id)
	}
	r.trimELR()
}

// trimELR empties the ELR if the ISR is large enough to commit records.
func (r *revision) trimELR() {
	if len(r.ISR) >= r.policy.minISR(r.topic, len(r.Replicas)) {
		r.ELR = nil
	}
}

// setISR makes isr the ISR, and those who left it eligible, if it is too small.
func (r *revision) setISR(isr []BrokerID) {
	var elr []BrokerID
	for _, id := range r.Replicas {
		if (slices.Contains(r.ELR, id) || slices.Contains(r.ISR, id)) && !slices.Contains(isr, id) {
			elr = append(elr, id)
		}
	}
	r.ISR, r.ELR = isr, elr
	r.trimELR()
}

// completeReassignment ends the move of the replicas if all that it adds are in the ISR, and one that stays can lead.
func (r *revision) completeReassignment() {
	if !r.Reassigning() {
		return
	}
	for _, id := range r.Adding {
		if !slices.Contains(r.ISR, id) {
			return
		}
	}
	if r.pick(minus(r.ISR, r.Removing)) == NoBroker {
		return
	}
	gone := r.Removing
	r.Adding, r.Removing = nil, nil
	r.drop(gone)
}

// drop takes replicas away.
func (r *revision) drop(gone []BrokerID) {
	if len(gone) > 0 {
		keep := replicaSet{}
		for i, id := range r.Replicas {
			if !slices.Contains(gone, id) {
				keep.replicas = append(keep.replicas, id)
				keep.directories = append(keep.directories, r.Directories[i])
			}
		}
		r.Replicas, r.Directories = keep.replicas, keep.directories
		r.ISR, r.ELR = minus(r.ISR, gone), minus(r.ELR, gone)
		r.trimELR()
		if slices.Contains(gone, r.LastLeader) {
			r.LastLeader = NoBroker
		}
		if slices.Contains(gone, r.Leader) {
			r.Leader = NoBroker
		}
		r.renew = true
	}
	r.elect()
}

// replicasOf revises every partition with a replica on broker id, which is at position at. out counts what became of them.
func (d *draft) replicasOf(id BrokerID, pp partitionPolicy, out *failover, change func(r *revision, at int)) {
	var touched []*Topic // collected first: changing a tree ends the walk over it
	d.st.eachTopic(func(t *Topic) bool {
		if slices.ContainsFunc(t.Partitions, func(p *Partition) bool { return slices.Contains(p.Replicas, id) }) {
			touched = append(touched, t)
		}
		return true
	})
	r := new(revision)
	for _, t := range touched {
		for i := range t.Partitions {
			at := slices.Index(t.Partitions[i].Replicas, id)
			if at < 0 {
				continue
			}
			*r = revision{Partition: *t.Partitions[i], d: d, topic: t, index: i, old: t.Partitions[i], policy: pp}
			change(r, at)
			t = r.commit(out)
		}
	}
}

// without returns ids without id, as a new slice; nil when nothing is left.
func without(ids []BrokerID, id BrokerID) []BrokerID {
	var out []BrokerID
	for _, other := range ids {
		if other != id {
			out = append(out, other)
		}
	}
	return out
}

// minus returns ids without those in gone, as a new slice; nil when nothing is left.
func minus(ids, gone []BrokerID) []BrokerID {
	var out []BrokerID
	for _, id := range ids {
		if !slices.Contains(gone, id) {
			out = append(out, id)
		}
	}
	return out
}
