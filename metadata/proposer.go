package metadata

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

const (
	// maxEntryCommands bounds the commands of one Raft entry.
	maxEntryCommands = 1000
	// entriesInFlight is how many entries may wait for their commit: one on its way to the disks while the next is
	// gathered. More would only make entries smaller.
	entriesInFlight = 2
	// laneCapacity bounds the commands that wait in a lane; whoever comes then waits outside. Two full entries are enough
	// to fill the next one at any time.
	laneCapacity = 2 * maxEntryCommands
	// offsetsShare of an entry's commands is open to transactions and offsets even when metadata alone would fill it, so that
	// overtaking does not become starving.
	offsetsShare = maxEntryCommands / 10
	// offsetsSpacing is for how long after an entry with many offset commits the next one is not begun for their sake, and
	// manyOffsetBytes are how many bytes of them make it that long: some ten commits of one partition. Below fewOffsetBytes
	// there is no spacing, between them one in proportion. Where commits are few they are on their way at once so; where they
	// are many more of them share an entry, each of which costs three brokers a sync and a dozen messages.
	offsetsSpacing  = 10 * time.Millisecond
	manyOffsetBytes = 1 << 10
	fewOffsetBytes  = 1 << 8
)

// lane is a queue of commands in front of the proposer. The lanes share entries; a command in an earlier lane is taken
// before all that wait in a later one, so that a storm of offset commits can't delay an ISR change.
type lane int

const (
	metadataLane     lane = iota
	transactionsLane      // steps of transactions
	offsetsLane           // committed offsets of consumer groups
	lanes
)

// proposal is one encoded command on its way.
type proposal struct {
	data  []byte // a pb.Command as a field of a pb.Entry, tag and length included
	lane  lane   // that it was submitted to
	state atomic.Int32
	done  chan result // capacity 1; gets the outcome, exactly once, unless the proposal was withdrawn
}

// States of a proposal.
const (
	proposalQueued    int32 = iota
	proposalTaken           // part of an entry: the outcome is Raft's
	proposalWithdrawn       // its caller gave up before it was taken: it will never be proposed
)

// raftApplier is what the proposer needs of *raft.Raft.
type raftApplier interface {
	Apply(data []byte, timeout time.Duration) raft.ApplyFuture
}

// proposer gathers commands into Raft entries. There is no linger: an idle proposer takes a lone command at once, a busy
// one takes what has come meanwhile, up to 1000 commands or 256 KiB. One fsync then carries all of them. Only many offset
// commits are gathered for a while, see offsetsSpacing.
//
// It has two goroutines, which Store starts and which closing stop ends: gather builds entries, settle waits for them in
// order and hands out the results.
type proposer struct {
	raft    raftApplier
	metrics *metrics

	queues  [lanes]chan *proposal
	slots   chan struct{} // one token per entry in flight
	flights chan flight
	stop    chan struct{}
	// offsetsAt is when offset commits may begin an entry again; used by gather.
	offsetsAt time.Time
}

// flight is an entry under way.
type flight struct {
	future    raft.ApplyFuture
	proposals []*proposal
	start     time.Time
}

func newProposer(r raftApplier, m *metrics) *proposer {
	p := &proposer{
		raft:    r,
		metrics: m,
		slots:   make(chan struct{}, entriesInFlight),
		flights: make(chan flight, entriesInFlight),
		stop:    make(chan struct{}),
	}
	for i := range p.queues {
		p.queues[i] = make(chan *proposal, laneCapacity)
	}
	return p
}

// encodeCommand encodes c as decided on in the given term.
func encodeCommand(c command, term uint64) ([]byte, error) {
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(c.message())
	if err != nil {
		return nil, fmt.Errorf("encode %v: %w", c.kind(), err)
	}
	return appendCommand(nil, c.kind(), term, body), nil
}

func appendCommand(b []byte, kind pb.CommandType, term uint64, body []byte) []byte {
	b = protowire.AppendTag(b, 1, protowire.VarintType)
	b = protowire.AppendVarint(b, uint64(kind))
	b = protowire.AppendTag(b, 2, protowire.VarintType)
	b = protowire.AppendVarint(b, term)
	b = protowire.AppendTag(b, 3, protowire.BytesType)
	return protowire.AppendBytes(b, body)
}

// newProposal wraps an encoded command as a field of an entry.
func newProposal(command []byte) *proposal {
	data := make([]byte, 0, len(command)+8)
	data = protowire.AppendTag(data, 1, protowire.BytesType)
	data = protowire.AppendBytes(data, command)
	return &proposal{data: data, done: make(chan result, 1)}
}

// submit queues p. An error means that p will not be proposed.
func (p *proposer) submit(ctx context.Context, l lane, pr *proposal) error {
	select {
	case <-p.stop:
		return ErrClosed
	default:
	}
	pr.lane = l
	select {
	case p.queues[l] <- pr:
		return nil
	case <-p.stop:
		return ErrClosed
	case <-ctx.Done():
		return notProposed(ctx)
	}
}

// wait returns the outcome of a submitted proposal. When ctx ends first and the proposal is still queued, it is withdrawn
// and the answer is definite; otherwise it is not (M11).
func (p *proposer) wait(ctx context.Context, pr *proposal) (any, error) {
	select {
	case r := <-pr.done:
		return r.value, r.err
	default:
	}
	select {
	case r := <-pr.done:
		return r.value, r.err
	case <-ctx.Done():
		if pr.state.CompareAndSwap(proposalQueued, proposalWithdrawn) {
			return nil, notProposed(ctx)
		}
		return nil, &Error{
			Kind: ErrTimeout,
			What: fmt.Sprintf("no answer from the metadata quorum yet: %v", context.Cause(ctx)),
			Why:  "the change is proposed and may still be made, or may not",
			Fix:  "look at the present state before trying again",
		}
	case <-p.stop:
		select { // both may have been ready
		case r := <-pr.done:
			return r.value, r.err
		default:
		}
		if pr.state.CompareAndSwap(proposalQueued, proposalWithdrawn) {
			return nil, ErrClosed
		}
		return nil, fmt.Errorf("%w: %w", ErrTimeout, ErrClosed)
	}
}

func notProposed(ctx context.Context) error {
	return &Error{
		Kind: ErrBusy,
		What: fmt.Sprintf("the change was not proposed in time: %v", context.Cause(ctx)),
		Why:  "the controller is busy, or can't write its log",
		Fix:  "try again; nothing was changed",
	}
}

// gather builds entries until stop. It waits for a free slot first, so that while entries are in flight the next one
// grows.
func (p *proposer) gather() {
	for {
		select {
		case p.slots <- struct{}{}:
		case <-p.stop:
			return
		}
		first := p.first()
		if first == nil {
			return
		}
		data, taken := p.fill(first)
		if len(taken) == 0 {
			<-p.slots
			continue
		}
		p.metrics.entry(len(taken), len(data))
		select {
		case p.flights <- flight{future: endingWith(p.raft.Apply(data, 0), p.stop), proposals: taken, start: time.Now()}:
		case <-p.stop:
			return
		}
	}
}

// first waits for a command, of the earliest lane that has one. It returns nil at stop.
func (p *proposer) first() *proposal {
	select {
	case pr := <-p.queues[metadataLane]:
		return pr
	default:
	}
	offsets := p.queues[offsetsLane]
	var due <-chan time.Time
	if wait := time.Until(p.offsetsAt); wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		offsets, due = nil, t.C
	}
	for {
		select {
		case pr := <-p.queues[metadataLane]:
			return pr
		case pr := <-p.queues[transactionsLane]:
			return pr
		case pr := <-offsets:
			return pr
		case <-due:
			offsets, due = p.queues[offsetsLane], nil
		case <-p.stop:
			return nil
		}
	}
}

// fill makes an entry of first and what waits behind it, and returns the proposals that are in it.
func (p *proposer) fill(first *proposal) (data []byte, taken []*proposal) {
	next, offsets := first, 0 // bytes of those
	defer func() {
		if share := min(offsets, manyOffsetBytes) - fewOffsetBytes; share > 0 {
			p.offsetsAt = time.Now().Add(offsetsSpacing * time.Duration(share) / (manyOffsetBytes - fewOffsetBytes))
		}
	}()
	for {
		if next.state.CompareAndSwap(proposalQueued, proposalTaken) {
			if data == nil {
				data = next.data // nobody else needs it
			} else {
				data = append(data, next.data...)
			}
			taken = append(taken, next)
			if next.lane == offsetsLane {
				offsets += len(next.data)
			}
		}
		if len(taken) == maxEntryCommands || len(data) > maxEntryBytes-maxCommandBytes {
			return data, taken
		}
		if next = p.poll(len(taken)); next == nil {
			return data, taken
		}
	}
}

// poll takes a command without waiting, for an entry that has n already; nil if none waits.
func (p *proposer) poll(n int) *proposal {
	order := [...]lane{metadataLane, transactionsLane, offsetsLane}
	if n >= maxEntryCommands-offsetsShare {
		order = [...]lane{offsetsLane, transactionsLane, metadataLane}
	}
	for _, l := range order {
		select {
		case pr := <-p.queues[l]:
			return pr
		default:
		}
	}
	return nil
}

// settle hands out the results of entries, in their order.
func (p *proposer) settle() {
	for {
		select {
		case f := <-p.flights:
			p.finish(f)
			<-p.slots
		case <-p.stop:
			return
		}
	}
}

func (p *proposer) finish(f flight) {
	err := f.future.Error()
	if err == nil {
		switch response := f.future.Response().(type) {
		case []result:
			p.metrics.committed(time.Since(f.start))
			for i, pr := range f.proposals {
				pr.done <- response[i]
			}
			return
		case error:
			// Committed, but this broker could not apply it and is about to stop.
			err = fmt.Errorf("%w: %w", ErrTimeout, response)
		}
	} else {
		err = proposalError(err)
	}
	for _, pr := range f.proposals {
		pr.done <- result{err: err}
	}
}

// proposalError says what an error of Raft means for a command: never proposed, or unknown (M11).
func proposalError(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return fmt.Errorf("%w: %w", ErrNotController, err)
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	// Leadership lost, shutdown, a failed write: the entry may be on some disk and may be committed by a later leader.
	return &Error{
		Kind: ErrTimeout,
		What: fmt.Sprintf("the outcome of the change is unknown: %v", err),
		Why:  "it was proposed, and this broker lost the lead of the quorum, or its log, before the commit was seen",
		Fix:  "look at the present state before trying again",
	}
}
