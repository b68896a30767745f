package metadata

import "slices"

// lastGeneration remembers a deleted group. Immutable.
type lastGeneration struct {
	Generation int32
	// DeletedAt is the coordinator's clock, in unix milliseconds.
	DeletedAt int64
}

// commitSequence is the number of the last batch of offset commits that was applied of one broker's lane. Batches of a lane
// are proposed one after the other; one that arrives behind a later one, because it was held up on its way after its broker
// had given it up, must not overwrite what the later one committed. Immutable.
type commitSequence struct {
	Broker   BrokerID
	Epoch    int64 // broker epoch: a new process begins at 1 again
	Lane     uint32
	Sequence uint64
}

func (st *state) group(name string) *Group {
	g, _ := st.groups.get(name)
	return g
}

func (st *state) lastGeneration(name string) int32 {
	if g := st.group(name); g != nil {
		return g.Generation
	}
	last, _ := st.lastGenerations.get(name)
	return last.Generation
}

// findCoordinators works out which brokers coordinate, see Image.Coordinator.
func (st *state) findCoordinators() []BrokerID {
	var fit, unfenced []BrokerID
	for _, b := range st.brokers {
		if b.Fenced {
			continue
		}
		unfenced = append(unfenced, b.ID)
		if !b.Leaving && !b.Draining && !b.Removing {
			fit = append(fit, b.ID)
		}
	}
	if len(fit) > 0 {
		return fit
	}
	return unfenced
}

// brokersChanged is called after each change of a broker, with what the broker was and is; nil = not there.
func (d *draft) brokersChanged(old, b *Broker) {
	coordinators := d.st.findCoordinators()
	same := slices.Equal(coordinators, d.st.coordinators)
	if same && old != nil && b != nil && old.Epoch != b.Epoch && slices.Contains(coordinators, b.ID) {
		same = false
	}
	if same {
		return
	}
	d.st.coordinators = coordinators
	if d.st.featureLevel >= GroupsFeatureLevel {
		d.st.coordinatorEpoch++
	}
}

// coordinates says whether a broker's registration coordinates the group in this state. It is the fence in front of every
// command of a coordinator (G5).
func (d *draft) coordinates(id BrokerID, epoch int64, group string) error {
	if d.st.featureLevel < GroupsFeatureLevel {
		return ErrInvalidFeatureLevel
	}
	b := d.st.broker(id)
	if b == nil || b.Epoch != epoch || rendezvous(d.st.coordinators, GroupCoordinator, group) != id {
		return ErrNotCoordinator
	}
	return nil
}

// putGroup stores g, which must be new, under the next revision.
func (d *draft) putGroup(g *Group) {
	d.st.groupRevision++
	g.Revision = d.st.groupRevision
	d.st.groups = d.st.groups.set(d.edit, g.Name, g)
}

// createGroup is putGroup of a group that is not there.
func (d *draft) createGroup(g *Group) {
	d.putGroup(g)
	d.st.lastGenerations = d.st.lastGenerations.delete(d.edit, g.Name)
}

// removeGroup takes a group and its offsets out, the pending ones too, and keeps its generation.
func (d *draft) removeGroup(g *Group, time int64) {
	d.dropAllOffsets(g.Name)
	d.dropAllPending(g.Name)
	d.st.groupRevision++
	d.st.groups = d.st.groups.delete(d.edit, g.Name)
	if g.Generation > 0 {
		d.st.lastGenerations = d.st.lastGenerations.set(d.edit, g.Name, lastGeneration{Generation: g.Generation, DeletedAt: time})
	}
}

// interrupt marks the groups with members that a broker has coordinated among those brokers, for it is dead. It returns how
// many.
func (d *draft) interrupt(id BrokerID, among []BrokerID) int {
	var of []*Group // collected first: changing a tree ends the walk over it
	d.st.groups.all()(func(name string, g *Group) bool {
		if len(g.Members) > 0 && !g.Interrupted && rendezvous(among, GroupCoordinator, name) == id {
			of = append(of, g)
		}
		return true
	})
	for _, g := range of {
		marked := *g
		marked.Interrupted = true
		d.putGroup(&marked)
	}
	return len(of)
}

// nextSequence takes note of a batch of commits, or reports false if it comes too late.
func (d *draft) nextSequence(next commitSequence) bool {
	i, found := slices.BinarySearchFunc(d.st.commitSequences, next, compareCommitSequences)
	sequences := slices.Clone(d.st.commitSequences)
	if !found {
		d.st.commitSequences = slices.Insert(sequences, i, next)
		return true
	}
	if old := sequences[i]; old.Epoch > next.Epoch || old.Epoch == next.Epoch && old.Sequence >= next.Sequence {
		return false
	}
	sequences[i] = next
	d.st.commitSequences = sequences
	return true
}
