package metadata

import (
	"fmt"
	"slices"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// replicaSet is where the replicas of one partition are: broker and log directory of each, the preferred leader first.
type replicaSet struct {
	replicas    []BrokerID
	directories []DirectoryID // parallel to replicas
}

// placementEncoder builds the columns of a pb.Placement. Directories are written once and named by index: with three
// replicas a partition then takes some ten bytes instead of sixty.
type placementEncoder struct {
	m     pb.Placement
	known []DirectoryID          // as in m, for as long as looking through it beats a map
	index map[DirectoryID]uint32 // all of them, once there are more than fewDirectories
}

const fewDirectories = 16

// grow makes room for that many more partitions and replicas.
func (e *placementEncoder) grow(partitions, replicas int) {
	e.m.ReplicaCounts = slices.Grow(e.m.ReplicaCounts, partitions)
	e.m.Replicas = slices.Grow(e.m.Replicas, replicas)
	e.m.ReplicaDirectories = slices.Grow(e.m.ReplicaDirectories, replicas)
}

func (e *placementEncoder) add(replicas []BrokerID, directories []DirectoryID) {
	e.m.ReplicaCounts = append(e.m.ReplicaCounts, uint32(len(replicas)))
	for i, r := range replicas {
		e.m.Replicas = append(e.m.Replicas, int32(r))
		e.m.ReplicaDirectories = append(e.m.ReplicaDirectories, e.directory(directories[i]))
	}
}

// directory returns the index of a directory id, which it adds if it is new.
func (e *placementEncoder) directory(dir DirectoryID) uint32 {
	if e.index == nil {
		if i := slices.Index(e.known, dir); i >= 0 {
			return uint32(i)
		}
	} else if i, ok := e.index[dir]; ok {
		return i
	}
	n := uint32(len(e.m.Directories))
	e.m.Directories = append(e.m.Directories, slices.Clone(dir[:]))
	switch {
	case n < fewDirectories:
		e.known = append(e.known, dir)
	case n == fewDirectories:
		e.index = make(map[DirectoryID]uint32)
		for i, d := range e.known {
			e.index[d] = uint32(i)
		}
		e.index[dir] = n
	default:
		e.index[dir] = n
	}
	return n
}

func encodePlacement(sets []replicaSet) *pb.Placement {
	var e placementEncoder
	replicas := 0
	for _, s := range sets {
		replicas += len(s.replicas)
	}
	e.grow(len(sets), replicas)
	for _, s := range sets {
		e.add(s.replicas, s.directories)
	}
	return &e.m
}

// decodePlacement reads a Placement and checks that its columns fit each other, that there is at least one partition, and
// that each has distinct replicas, at least one. The slices of all partitions share two arrays.
func decodePlacement(m *pb.Placement) ([]replicaSet, error) {
	if m == nil || len(m.ReplicaCounts) == 0 {
		return nil, fmt.Errorf("placement of no partitions")
	}
	if len(m.Replicas) != len(m.ReplicaDirectories) {
		return nil, fmt.Errorf("placement with %d replicas and %d directories", len(m.Replicas), len(m.ReplicaDirectories))
	}
	dirs := make([]DirectoryID, len(m.Directories))
	for i, b := range m.Directories {
		id, err := bytes16(b, "directory id")
		if err != nil {
			return nil, err
		}
		dirs[i] = id
	}
	replicas := make([]BrokerID, len(m.Replicas))
	directories := make([]DirectoryID, len(m.Replicas))
	for i, r := range m.Replicas {
		if r < 0 {
			return nil, fmt.Errorf("placement on broker %d", r)
		}
		replicas[i] = BrokerID(r)
		n := m.ReplicaDirectories[i]
		if int64(n) >= int64(len(dirs)) {
			return nil, fmt.Errorf("placement in directory %d of %d", n, len(dirs))
		}
		directories[i] = dirs[n]
	}
	sets := make([]replicaSet, len(m.ReplicaCounts))
	at := 0
	for i, n := range m.ReplicaCounts {
		if n == 0 || int64(n) > int64(len(replicas)-at) {
			return nil, fmt.Errorf("placement of partition %d with %d of the %d replicas that are left", i, n, len(replicas)-at)
		}
		end := at + int(n)
		sets[i] = replicaSet{replicas[at:end:end], directories[at:end:end]}
		if hasDuplicates(sets[i].replicas) {
			return nil, fmt.Errorf("placement of partition %d twice on one broker: %v", i, sets[i].replicas)
		}
		at = end
	}
	if at != len(replicas) {
		return nil, fmt.Errorf("placement with %d replicas of no partition", len(replicas)-at)
	}
	return sets, nil
}

// hasDuplicates reports whether an id is in ids twice. Replica lists are short, so comparing pairs beats a map.
func hasDuplicates(ids []BrokerID) bool {
	for i, id := range ids {
		if slices.Contains(ids[:i], id) {
			return true
		}
	}
	return false
}

// newPartitions makes the partitions of a placement: every replica whose broker can use it is in the ISR and the first of
// them leads, a welcome one before any other. It refuses with ErrStale what is not true any more at this place in the log:
// an unknown broker or directory, or nobody who could lead.
func (d *draft) newPartitions(sets []replicaSet) ([]*Partition, error) {
	partitions := make([]*Partition, len(sets))
	for i, set := range sets {
		for j, id := range set.replicas {
			if b := d.st.broker(id); b == nil || !slices.Contains(b.Directories, set.directories[j]) {
				return nil, ErrStale
			}
		}
		r := revision{Partition: Partition{Leader: NoBroker, Replicas: set.replicas, Directories: set.directories, UncleanEpoch: -1}, d: d}
		r.ISR = make([]BrokerID, 0, len(set.replicas))
		for j, id := range set.replicas {
			if r.usable(j) && !d.st.broker(id).Leaving {
				r.ISR = append(r.ISR, id)
			}
		}
		if r.Leader = r.pick(r.ISR); r.Leader == NoBroker {
			return nil, ErrStale
		}
		if len(r.ISR) == len(set.replicas) {
			r.ISR = set.replicas // equal, and immutable: share
		}
		r.LastLeader = r.Leader
		p := r.Partition
		partitions[i] = &p
	}
	return partitions, nil
}
