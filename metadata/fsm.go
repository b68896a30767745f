package metadata

import (
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// command is one change of the state. Each kind lives in a file command_*.go with its fields, encoding and effect.
type command interface {
	kind() pb.CommandType
	message() proto.Message
	// apply makes the change or refuses it. It must look at nothing but the command, the draft and at; it must check
	// before it writes, so that a refused command has no effect; and it must be a compare-and-set or recognize its own
	// repetition (M11). The error is one of the sentinels, and like the value it is the same on every broker. A fatal
	// error stops the broker.
	apply(d *draft, at position) (any, error)
}

// position is where in the Raft log a command stands.
type position struct{ index, term uint64 }

// decodeCommand is the dispatch: every command type this binary knows.
func decodeCommand(kind pb.CommandType, body []byte) (command, error) {
	switch kind {
	case pb.CommandType_COMMAND_INIT_CLUSTER:
		return decodeInitCluster(body)
	case pb.CommandType_COMMAND_REGISTER_BROKER:
		return decodeRegisterBroker(body)
	case pb.CommandType_COMMAND_CREATE_TOPIC:
		return decodeCreateTopic(body)
	case pb.CommandType_COMMAND_DELETE_TOPIC:
		return decodeDeleteTopic(body)
	case pb.CommandType_COMMAND_CREATE_PARTITIONS:
		return decodeCreatePartitions(body)
	case pb.CommandType_COMMAND_ALTER_CONFIGS:
		return decodeAlterConfigs(body)
	case pb.CommandType_COMMAND_ALLOCATE_PRODUCER_IDS:
		return decodeAllocateProducerIDs(body)
	case pb.CommandType_COMMAND_ALTER_PARTITION:
		return decodeAlterPartition(body)
	case pb.CommandType_COMMAND_ASSIGN_BROKER_ID:
		return decodeAssignBrokerID(body)
	case pb.CommandType_COMMAND_ALTER_BROKER:
		return decodeAlterBroker(body)
	case pb.CommandType_COMMAND_ALTER_PARTITIONS:
		return decodeAlterPartitions(body)
	case pb.CommandType_COMMAND_ELECT_LEADERS:
		return decodeElectLeaders(body)
	case pb.CommandType_COMMAND_REASSIGN_PARTITION:
		return decodeReassignPartition(body)
	case pb.CommandType_COMMAND_UNREGISTER_BROKER:
		return decodeUnregisterBroker(body)
	case pb.CommandType_COMMAND_SET_FEATURE_LEVEL:
		return decodeSetFeatureLevel(body)
	case pb.CommandType_COMMAND_PRUNE_TOMBSTONES:
		return decodePruneTombstones(body)
	case pb.CommandType_COMMAND_ALTER_BALANCE:
		return decodeAlterBalance(body)
	case pb.CommandType_COMMAND_CHANGE_GROUP:
		return decodeChangeGroup(body)
	case pb.CommandType_COMMAND_COMMIT_OFFSETS:
		return decodeCommitOffsets(body)
	case pb.CommandType_COMMAND_DELETE_OFFSETS:
		return decodeDeleteOffsets(body)
	case pb.CommandType_COMMAND_EXPIRE_OFFSETS:
		return decodeExpireOffsets(body)
	case pb.CommandType_COMMAND_TRANSACT:
		return decodeTransact(body)
	case pb.CommandType_COMMAND_CHAIN_PART:
		return decodeChainPart(body)
	}
	return nil, fmt.Errorf("unknown command type %d: %w", kind, errNewerVersion)
}

// result is what one command of an entry led to.
type result struct {
	value any
	err   error
}

// fatalError is an apply error after which this broker's state can't be trusted to equal the others' any more.
type fatalError struct{ error }

func (e fatalError) Unwrap() error { return e.error }

// fsm applies committed entries. Raft calls it from one goroutine; only a snapshot's Persist runs beside it, on a state
// that nobody changes any more (M3).
//
// An entry that this binary does not understand, or that is damaged, stops the broker (M2): skipping it would let this
// broker's state drift from the others'. From then on nothing is applied, published or snapshotted.
type fsm struct {
	st     *state
	index  uint64 // of the last entry with commands that is part of st
	failed error

	// committed is called with the position of each batch's last entry before it is applied. May be nil.
	committed func(index, term uint64)
	// published is called after st changed, with all of a batch at once, before the proposers hear of it (M12).
	published func(st *state, index uint64)
	// persisted is called after a snapshot was written. May be nil.
	persisted func()
	// restored is called after a snapshot that another broker sent has taken the place of the state. May be nil.
	restored func(index uint64)
	// failure is called once, see Config.OnFailure.
	failure func(error)
	// hurry ends the rests of who writes or reads a snapshot; nil = there are none.
	hurry <-chan struct{}
}

// Apply applies one entry. Raft uses ApplyBatch instead; tests that replay a log use this.
func (f *fsm) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch applies consecutive entries and publishes the outcome once. The answer to an entry is a []result, one for
// each of its commands, or an error if the FSM has failed.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	out := make([]any, len(logs))
	if f.committed != nil {
		f.committed(logs[len(logs)-1].Index, logs[len(logs)-1].Term)
	}
	var d *draft
	index := f.index
	for i, l := range logs {
		if l.Type != raft.LogCommand {
			continue
		}
		if f.failed == nil {
			if d == nil {
				d = newDraft(f.st)
			}
			results, err := applyEntry(d, l)
			if err == nil {
				out[i] = results
				index = l.Index
				continue
			}
			f.failed = fmt.Errorf("apply raft entry %d of term %d: %w", l.Index, l.Term, err)
			f.failure(f.failed)
		}
		out[i] = fmt.Errorf("%w: %w", ErrFailed, f.failed)
	}
	if f.failed != nil || d == nil {
		return out
	}
	f.st, f.index = d.publish(), index
	f.published(f.st, f.index)
	return out
}

// applyEntry applies the commands of one entry, in order. An error means that the entry can't be understood.
func applyEntry(d *draft, l *raft.Log) ([]result, error) {
	commands, err := decodeEntry(l.Data)
	if err != nil {
		return nil, fmt.Errorf("decode entry: %w", err)
	}
	at := position{index: l.Index, term: l.Term}
	results := make([]result, len(commands))
	for i, c := range commands {
		value, err := applyCommand(d, c, at)
		if fatal, ok := errors.AsType[fatalError](err); ok {
			return nil, fmt.Errorf("command %d of the entry: %w", i, fatal.error)
		}
		results[i] = result{value: value, err: err}
	}
	return results, nil
}

func applyCommand(d *draft, c envelope, at position) (any, error) {
	var cmd command
	var err error
	if c.kind == pb.CommandType_COMMAND_COMMIT_OFFSETS { // there are very many of them
		r := commitReaders.Get().(*commitReader)
		defer r.done()
		cmd, err = r.read(c.body)
	} else {
		cmd, err = decodeCommand(c.kind, c.body)
	}
	if err != nil {
		return nil, fatalError{err}
	}
	if c.term != at.term {
		// Decided by a controller of another term, on a state that may have been an older one (M9).
		return nil, ErrNotController
	}
	return cmd.apply(d, at)
}

// Snapshot captures the present state; it costs nothing, for a published state never changes.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	if f.failed != nil {
		return nil, fmt.Errorf("%w: %w", ErrFailed, f.failed)
	}
	return &fsmSnapshot{st: f.st, index: f.index, persisted: f.persisted, pacer: f.pacer(snapshotWriteParts)}, nil
}

// pacer paces what runs beside the rest of a broker.
func (f *fsm) pacer(parts int) *Pacer {
	if f.hurry == nil {
		return nil
	}
	return NewPacer(parts, f.hurry)
}

// Restore replaces the state by a snapshot's. The new state is built and checked aside; after the swap nothing can fail
// (M5). A snapshot that only a newer version can read stops the broker, like such an entry (M2).
//
// One that ends before the present state is refused (I13). A leader sends none to a follower that is further; but one that it has
// given up, and sent anew, may lie in the socket of a process that stood still, and be read after the other and what
// followed it. Raft, which does not look, would go back, and tell everybody of an older state.
func (f *fsm) Restore(r io.ReadCloser) error {
	defer r.Close()
	if f.failed != nil {
		return fmt.Errorf("%w: %w", ErrFailed, f.failed)
	}
	st, index, err := readPacedSnapshot(r, f.pacer(snapshotReadParts))
	if errors.Is(err, errNewerVersion) {
		f.failed = fmt.Errorf("restore a snapshot from the leader: %w", err)
		f.failure(f.failed)
	}
	if err != nil {
		return err
	}
	if index < f.index {
		return fmt.Errorf("%w: it ends at entry %d, entry %d is applied", errOlderSnapshot, index, f.index)
	}
	f.st, f.index = st, index
	f.published(st, index)
	if f.restored != nil {
		f.restored(index)
	}
	return nil
}

// errOlderSnapshot refuses a snapshot that would take the state back. Raft stays as it was.
var errOlderSnapshot = errors.New("an older snapshot than the present state")

type fsmSnapshot struct {
	st        *state
	index     uint64
	persisted func()
	pacer     *Pacer
}

// Persist writes the snapshot. The sink is closed only when everything is in it; otherwise it is cancelled.
func (s *fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	if err := writePacedSnapshot(sink, s.st, s.index, s.pacer); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return err
	}
	if s.persisted != nil {
		s.persisted()
	}
	return nil
}

// Release is called when the snapshot is no longer needed.
func (s *fsmSnapshot) Release() {}
