package metadata

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

const (
	// changeLanes and offsetLanes are how many calls with changes of groups, and with their offsets, may be in flight (D4). A
	// group always takes the same lane, and a lane has one call in flight, so that what is proposed for one group is applied
	// in its order. A second lane of offsets would halve its batches for nothing: the calls of both would wait for the same
	// entry.
	changeLanes = 2
	offsetLanes = 1
	// transactionLanes are those of transactions, and firstTransactionLane is the number of the first: the numbers of all lanes
	// whose batches are counted are different.
	transactionLanes     = 2
	firstTransactionLane = 16
	// outboxBytes bounds what waits in a lane; beyond it callers are told to try again.
	outboxBytes = 8 << 20
	// outboxTimeout is how long a change may wait and be under way, as Kafka's offsets.commit.timeout.ms.
	outboxTimeout = 5 * time.Second
	// changesPerCall and changeBytesPerCall bound one call with changes of groups.
	changesPerCall     = maxEntryCommands
	changeBytesPerCall = 1 << 20
	// maxChangeBytes bounds one change of a group, so that it fits into a call in any encoding.
	maxChangeBytes = 8 << 20
	// batchBytes bounds one batch of offset commits, so that two of them, of different brokers, fill an entry.
	batchBytes = maxPartBytes - 64
)

// outbox is where coordinators leave what they propose. There is no linger: a lane that is idle sends a lone change at
// once, one that is busy sends all that has come meanwhile, in one call.
type outbox struct {
	s            *Store
	changes      [changeLanes]outboxLane
	offsets      [offsetLanes]outboxLane
	transactions [transactionLanes]outboxLane
	order        outboxOrder
}

// outboxItem is one command, or one commit or step of a batch.
type outboxItem struct {
	kind pb.CommandType
	// body is the encoded command, or the encoded commit or step as a field of a batch.
	body     []byte
	entries  int // of a commit
	deadline time.Time
	// prior, if not nil, gets the offsets before a seek, before done gets its success.
	prior func([]CommittedOffset)
	// done gets the outcome, exactly once. refused are the errors of a commit's entries.
	done func(revision uint64, refused []error, err error)
}

// outboxLane is a queue with one call in flight.
type outboxLane struct {
	number   uint32
	wake     chan struct{}
	sequence uint64 // of batches of commits; used by the lane's goroutine

	mu      sync.Mutex
	waiting []*outboxItem
	bytes   int // of waiting, and of what is held on its way here (outboxOrder)
	closed  bool
}

func newOutbox(s *Store) *outbox {
	o := &outbox{s: s}
	o.order.groups = make(map[string]*groupOrder)
	for i := range changeLanes {
		o.changes[i] = outboxLane{number: uint32(i), wake: make(chan struct{}, 1)}
	}
	for i := range offsetLanes {
		o.offsets[i] = outboxLane{number: uint32(i), wake: make(chan struct{}, 1)}
	}
	for i := range transactionLanes {
		o.transactions[i] = outboxLane{number: uint32(firstTransactionLane + i), wake: make(chan struct{}, 1)}
	}
	return o
}

func (o *outbox) start() {
	for i := range changeLanes {
		o.s.running.Go(func() { o.run(&o.changes[i], o.sendChanges) })
	}
	for i := range offsetLanes {
		o.s.running.Go(func() { o.run(&o.offsets[i], o.sendCommits) })
	}
	for i := range transactionLanes {
		o.s.running.Go(func() { o.run(&o.transactions[i], o.sendTransactions) })
	}
}

// laneOf returns the lane of a group.
func laneOf(lanes []outboxLane, group string) *outboxLane {
	if len(lanes) == 1 {
		return &lanes[0]
	}
	return &lanes[mix(hashKey(GroupCoordinator, group))%uint64(len(lanes))]
}

// put queues an item, or returns a definite error, with which the item is the caller's to answer.
func (l *outboxLane) put(item *outboxItem) error {
	if err := l.reserve(item); err != nil {
		return err
	}
	return l.putReserved(item)
}

// reserve counts an item that will be put later, or returns an error as put does.
func (l *outboxLane) reserve(item *outboxItem) error {
	l.mu.Lock()
	full, closed := l.bytes > outboxBytes, l.closed
	if !full && !closed {
		l.bytes += len(item.body)
	}
	l.mu.Unlock()
	switch {
	case closed:
		return ErrClosed
	case full:
		return &Error{
			Kind: ErrBusy,
			What: "too many changes of groups or transactions wait for the metadata quorum",
			Why:  fmt.Sprintf("there are more than %d bytes of them on this broker", outboxBytes),
			Fix:  "try again in a moment; nothing was changed",
		}
	}
	return nil
}

// putReserved queues an item that is counted. It fails only once the lane is closed, and as put does.
func (l *outboxLane) putReserved(item *outboxItem) error {
	l.mu.Lock()
	closed := l.closed
	if !closed {
		l.waiting = append(l.waiting, item)
	}
	l.mu.Unlock()
	if closed {
		return ErrClosed
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return nil
}

// take removes from the queue what goes into one call.
func (l *outboxLane) take(maxItems, maxBytes int) []*outboxItem {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, bytes := 0, 0
	for n < len(l.waiting) && n < maxItems && (n == 0 || bytes+len(l.waiting[n].body) <= maxBytes) {
		bytes += len(l.waiting[n].body)
		n++
	}
	taken := l.waiting[:n:n]
	l.waiting = l.waiting[n:]
	if len(l.waiting) == 0 {
		l.waiting = nil // so that what was taken is let go
	}
	l.bytes -= bytes
	return taken
}

// run serves a lane until the Store is closed. send makes one call and reports whether there was anything to send.
func (o *outbox) run(l *outboxLane, send func(*outboxLane) bool) {
	defer func() {
		l.mu.Lock()
		left := l.waiting
		l.waiting, l.bytes, l.closed = nil, 0, true
		l.mu.Unlock()
		for _, item := range left {
			item.done(0, nil, ErrClosed)
		}
	}()
	for {
		select {
		case <-l.wake:
		case <-o.s.stop:
			return
		}
		for send(l) {
			if o.s.over() {
				return
			}
			// Who was just answered may have the next change ready: let it come before the next call takes what waits.
			runtime.Gosched()
		}
	}
}

// call carries proposals to the controller and back.
func (o *outbox) call(deadline time.Time, proposals []groupProposal) (groupAnswers, error) {
	ctx, cancel := context.WithDeadline(o.s.lifetime, deadline)
	defer cancel()
	out, err := call(ctx, o.s, &opProposeGroups, groupProposals{proposals})
	if err == nil && len(out.Answers) != len(proposals) {
		err = fmt.Errorf("%w: %d answers to %d proposals", ErrTimeout, len(out.Answers), len(proposals))
	}
	return out, err
}

// fresh returns the items that may still be sent, and refuses those that have waited too long.
func fresh(items []*outboxItem, now time.Time) []*outboxItem {
	kept := items[:0]
	for _, item := range items {
		if item.deadline.After(now) {
			kept = append(kept, item)
			continue
		}
		item.done(0, nil, &Error{
			Kind: ErrBusy,
			What: "the change was not proposed in time",
			Why:  fmt.Sprintf("for %v the metadata quorum took nothing, or too little", outboxTimeout),
			Fix:  "try again; nothing was changed",
		})
	}
	return kept
}

// sendChanges sends the changes of groups that wait.
func (o *outbox) sendChanges(l *outboxLane) bool {
	items := l.take(changesPerCall, changeBytesPerCall)
	if len(items) == 0 {
		return false
	}
	now := time.Now()
	if items = fresh(items, now); len(items) == 0 {
		return true
	}
	proposals := make([]groupProposal, len(items))
	for i, item := range items {
		proposals[i] = groupProposal{item.kind, item.body}
	}
	answers, err := o.call(now.Add(outboxTimeout), proposals)
	if err != nil {
		for _, item := range items {
			item.done(0, nil, err)
		}
		return true
	}
	o.s.whenApplied(answers.Version, func(landed bool) {
		for i, item := range items {
			a := answers.Answers[i]
			err := a.Err.err()
			switch {
			case err != nil:
			case !landed:
				err = unseen()
			case item.prior != nil:
				item.prior(a.Prior)
			}
			item.done(a.Revision, nil, err)
		}
	})
	return true
}

// unseen is the answer to a change that is committed, and that this broker has not applied: it closes, or is cut off from
// the quorum, and could not show it to who reads it here.
func unseen() error {
	return &Error{
		Kind: ErrTimeout,
		What: "the change was made, and can't be seen on this broker yet",
		Why:  "it is behind the other brokers, cut off from them, or about to stop",
		Fix:  "ask for the coordinator and look there",
	}
}

// sendCommits sends the offset commits that wait, as one batch.
func (o *outbox) sendCommits(l *outboxLane) bool {
	items := l.take(1<<20, batchBytes)
	if len(items) == 0 {
		return false
	}
	now := time.Now()
	if items = fresh(items, now); len(items) == 0 {
		return true
	}
	o.s.metrics.commitBatch(len(items))
	answers, err := o.sendBatch(l, now.Add(outboxTimeout), pb.CommandType_COMMAND_COMMIT_OFFSETS, func(broker BrokerID, epoch int64, coordinatorEpoch int32) []byte {
		return batchBody(&commitOffsets{broker: broker, epoch: epoch, coordinatorEpoch: coordinatorEpoch, lane: l.number, sequence: l.sequence}, items)
	})
	if err != nil {
		for _, item := range items {
			item.done(0, nil, err)
		}
		return true
	}
	o.answer(items, answers)
	return true
}

// answer tells those who wait what became of their commits or steps. A refusal too waits for the state in which it was made:
// its reason can be seen here then.
func (o *outbox) answer(items []*outboxItem, answers groupAnswers) {
	outcomes := answers.Answers[0].steps(items)
	o.s.whenApplied(answers.Version, func(landed bool) {
		for i, item := range items {
			if landed || outcomes[i].err != nil {
				item.done(outcomes[i].revision, outcomes[i].entries, outcomes[i].err)
			} else {
				item.done(0, nil, unseen())
			}
		}
	})
}

// sendBatch sends a batch of a lane under the next number, again when a broker has come or gone meanwhile.
func (o *outbox) sendBatch(l *outboxLane, deadline time.Time, kind pb.CommandType, body func(broker BrokerID, epoch int64, coordinatorEpoch int32) []byte) (groupAnswers, error) {
	l.sequence++
	for {
		id, epoch := o.s.self()
		_, coordinatorEpoch := o.s.Image().Coordinator(GroupCoordinator, "")
		answers, err := o.call(deadline, []groupProposal{{kind, body(id, epoch, coordinatorEpoch)}})
		if err == nil {
			err = answers.Answers[0].Err.err()
		}
		if errors.Is(err, ErrStale) && o.moved(deadline, answers.Version, coordinatorEpoch) {
			continue // most groups and transactional ids are where they were
		}
		if errors.Is(err, ErrStale) {
			err = ErrNotCoordinator // this process is not the one that is registered any more
		}
		return answers, err
	}
}

// moved waits until this broker has applied a version, and reports whether the coordinator epoch is another one there.
func (o *outbox) moved(deadline time.Time, version uint64, epoch int32) bool {
	ctx, cancel := context.WithDeadline(o.s.lifetime, deadline)
	defer cancel()
	o.s.waitVersion(ctx, version)
	_, now := o.s.Image().Coordinator(GroupCoordinator, "")
	return now != epoch && ctx.Err() == nil
}

// batchBody encodes a batch whose commits or steps are encoded already.
func batchBody(c command, items []*outboxItem) []byte {
	size := 64
	for _, item := range items {
		size += len(item.body)
	}
	body, err := encodeBody(make([]byte, 0, size), c)
	if err != nil {
		panic(fmt.Sprintf("metadata: encode a batch: %v", err)) // it is made of numbers
	}
	for _, item := range items {
		body = append(body, item.body...)
	}
	return body
}

// commitField and stepField are the field numbers of a commit and of a step in their batches.
const (
	commitField protowire.Number = 6
	stepField   protowire.Number = 6
)

// self returns this broker and its present registration; an epoch of -1, which none has, before there is one.
func (s *Store) self() (BrokerID, int64) {
	if epoch := s.registered.Load(); epoch != 0 {
		return s.cfg.NodeID, epoch
	}
	if b := s.Image().Broker(s.cfg.NodeID); b != nil {
		return b.ID, b.Epoch
	}
	return s.cfg.NodeID, -1
}
