package txn

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

// bench drives one core over the real FSM; whatever it proposes is applied at once, unless the test says otherwise.
type bench struct {
	t     *testing.T
	fsm   *metadata.Replica
	epoch int64
	core  *Core
	now   Time
	// fail, if not nil, is the outcome that the core hears of its next change; lose: and the change is not made.
	fail error
	lose bool
	ids  int64
	last int64
}

const benchHold = Instant(time.Second)

// benchAnswer is what a request was answered.
type benchAnswer struct {
	done bool
	pair pair
	err  error
}

func newCoreBench(t *testing.T) *bench {
	b := &bench{t: t, fsm: metadata.NewReplica(), now: Time{At: Instant(time.Hour), Wall: 1_000_000}}
	var err error
	b.epoch, err = b.fsm.Register(metadata.Registration{
		ID: 0, Incarnation: [16]byte{1}, Directories: []metadata.DirectoryID{{1}}, Version: "test",
		Listeners:       []metadata.Listener{{Name: "PLAINTEXT", Host: "localhost", Port: 9092, Protocol: "PLAINTEXT"}},
		MinFeatureLevel: metadata.MinFeatureLevel, MaxFeatureLevel: metadata.MaxFeatureLevel, TailsProven: true,
	}, false)
	require.NoError(t, err)
	require.NoError(t, b.fsm.CreateTopic("t", metadata.TopicID{1}, nil, [][]metadata.BrokerID{{0}, {0}}))
	first, n, err := b.fsm.AllocateProducerIDs()
	require.NoError(t, err)
	b.ids, b.last = first, first+int64(n)
	b.restart(false)
	return b
}

// restart gives the id to a new core, as after a move.
func (b *bench) restart(taken bool) {
	b.core = NewCore("x")
	b.perform(b.core.Step(b.now, &Seen{Transaction: b.record(), Taken: taken}))
}

func (b *bench) record() *metadata.Transaction { return b.fsm.Image().Transaction("x") }

// see shows the core the present record, as every event does in the driver.
func (b *bench) see() { b.perform(b.core.Step(b.now, &Seen{Transaction: b.record()})) }

func (b *bench) step(ev Event) {
	if b.core.Record() != b.record() {
		b.see()
	}
	b.perform(b.core.Step(b.now, ev))
}

func (b *bench) perform(acts []Action) {
	for _, a := range append([]Action(nil), acts...) {
		switch a.Kind {
		case ActionPropose:
			fail, lose := b.fail, b.lose
			b.fail, b.lose = nil, false
			var err error
			if !lose {
				_, err = b.fsm.ChangeTransaction(0, b.epoch, a.Change)
			}
			if fail != nil {
				err = fail
			}
			b.step(&Changed{Seq: a.Seq, Err: err})
		case ActionAllocate:
			b.ids++
			b.step(&Allocated{Seq: a.Seq, ProducerID: b.ids - 1})
		case ActionAdd:
			*a.Add.Waiter.(*benchAnswer) = benchAnswer{done: true, err: b.fsm.AddToTransaction(0, b.epoch, a.Addition)}
		case ActionInit:
			*a.Waiter.(*benchAnswer) = benchAnswer{true, pair{a.Init.ProducerID, a.Init.ProducerEpoch}, a.Init.Err}
		case ActionEnd:
			*a.Waiter.(*benchAnswer) = benchAnswer{true, pair{a.End.ProducerID, a.End.ProducerEpoch}, a.End.Err}
		case ActionAnswer:
			*a.Waiter.(*benchAnswer) = benchAnswer{done: true, err: a.Err}
		}
	}
}

func (b *bench) request() (request, *benchAnswer) {
	a := new(benchAnswer)
	return request{Waiter: a, Until: b.now.At + benchHold}, a
}

func (b *bench) ask(ev Event) *benchAnswer {
	r, a := b.request()
	*requestOf(ev) = r
	b.step(ev)
	return a
}

func (b *bench) init(p pair) *benchAnswer {
	return b.ask(&Init{InitRequest: InitRequest{ID: "x", Timeout: time.Minute, ProducerID: p.id, ProducerEpoch: p.epoch}})
}

func (b *bench) add(p pair, partitions ...int32) *benchAnswer {
	return b.ask(&Add{ProducerID: p.id, ProducerEpoch: p.epoch, Partitions: []metadata.TopicPartitions{{TopicID: metadata.TopicID{1}, Partitions: partitions}}})
}

func (b *bench) end(version int8, p pair, commit bool) *benchAnswer {
	return b.ask(&End{EndRequest: EndRequest{ID: "x", ProducerID: p.id, ProducerEpoch: p.epoch, Commit: commit, Version: version}})
}

// enlist is what the leader of a partition does for the second protocol; the core is not told.
func (b *bench) enlist(p pair) {
	b.t.Helper()
	require.NoError(b.t, b.fsm.AddToTransaction(0, b.epoch, metadata.TransactionAddition{
		ID: "x", ProducerID: p.id, ProducerEpoch: p.epoch, Version: 2, Time: b.now.Wall,
		Partitions: []metadata.TopicPartitions{{TopicID: metadata.TopicID{1}, Partitions: []int32{0}}},
	}))
}

// mark has all markers written, and reported.
func (b *bench) mark() {
	b.t.Helper()
	t := b.record()
	require.True(b.t, t.State.Prepared(), t.State.String())
	require.NoError(b.t, b.fsm.MarkersWritten(0, b.epoch, []metadata.WrittenMarker{{ProducerID: t.MarkerProducerID, Epoch: t.MarkerEpoch, Number: t.Number, Partitions: t.Partitions}}))
	b.see()
}

func (b *bench) pass(d time.Duration) {
	b.now.At += Instant(d)
	b.now.Wall += d.Milliseconds()
	if b.core.Deadline() <= b.now.At {
		b.step(&Tick{RetryMax: Instant(10 * time.Second)})
	}
}

func (b *bench) ok(a *benchAnswer, want pair) pair {
	b.t.Helper()
	require.True(b.t, a.done, "not answered")
	require.NoError(b.t, a.err)
	require.Equal(b.t, want, a.pair)
	return a.pair
}

func (b *bench) refused(a *benchAnswer, want error) {
	b.t.Helper()
	require.True(b.t, a.done, "not answered")
	require.ErrorIs(b.t, a.err, want)
}

// begun returns a bench with a producer.
func begun(t *testing.T) (*bench, pair) {
	b := newCoreBench(t)
	a := b.init(noPair)
	return b, b.ok(a, pair{b.ids - 1, 0})
}

// InitProducerId: a new id gets epoch 0, whoever starts anew the next epoch; who says what it has gets the next epoch for the
// present pair, the present pair for the one before it, and is fenced with any other (KIP-360).
func TestInitProducerID(t *testing.T) {
	b, p := begun(t)
	p1 := b.ok(b.init(noPair), pair{p.id, 1})
	b.refused(b.init(p), metadata.ErrProducerFenced) // somebody else has started anew
	p2 := b.ok(b.init(p1), pair{p.id, 2})
	b.ok(b.init(p1), p2) // the answer was lost
	b.ok(b.init(p1), p2)
	b.refused(b.init(p), metadata.ErrProducerFenced)
	b.refused(b.init(pair{p.id + 100, 0}), metadata.ErrProducerFenced)
	b.ok(b.init(noPair), pair{p.id, 3})
	b.refused(b.init(p2), metadata.ErrProducerFenced)
	b.refused(b.init(p1), metadata.ErrProducerFenced)
	require.True(t, b.core.Idle())
}

// An id that was forgotten takes a producer that remembers it for a new one.
func TestInitProducerIDUnknown(t *testing.T) {
	b := newCoreBench(t)
	a := b.init(pair{77, 5})
	b.ok(a, pair{b.ids - 1, 0})
}

// P11: who starts anew while a transaction is open has it aborted first, waits for its markers, and has fenced its
// predecessor for good.
func TestInitFencesOpenTransaction(t *testing.T) {
	b, p := begun(t)
	require.NoError(t, b.add(p, 0, 1).err)
	a := b.init(noPair)
	require.False(t, a.done)
	r := b.record()
	require.Equal(t, metadata.TransactionPrepareAbort, r.State)
	require.Equal(t, pair{p.id, 1}, pair{r.MarkerProducerID, r.MarkerEpoch}, "the markers fence")
	b.refused(b.end(1, p, true), metadata.ErrProducerFenced)
	b.refused(b.end(2, p, true), metadata.ErrProducerFenced)
	b.refused(b.add(p, 0), metadata.ErrProducerFenced)
	b.mark()
	b.ok(a, pair{p.id, 2}) // not 1, which is nobody's
	b.refused(b.end(2, p, false), metadata.ErrProducerFenced)
	b.refused(b.init(p), metadata.ErrProducerFenced)
}

// A producer that recovers itself from an error gets one epoch for the abort and for itself (KAFKA-19367), and one that is
// late does not abort what its successor has open.
func TestInitRecoversOpenTransaction(t *testing.T) {
	b, p := begun(t)
	require.NoError(t, b.add(p, 0).err)
	a := b.init(p)
	require.False(t, a.done)
	b.mark()
	next := b.ok(a, pair{p.id, 1})
	b.ok(b.init(p), next)
	require.NoError(t, b.add(next, 0).err)
	b.refused(b.init(p), metadata.ErrProducerFenced)
	require.Equal(t, metadata.TransactionOngoing, b.record().State)
}

// The answer waits a bounded time; whoever asks again finds it done.
func TestInitWaitsNotForEver(t *testing.T) {
	b, p := begun(t)
	require.NoError(t, b.add(p, 0).err)
	a := b.init(noPair)
	b.pass(time.Duration(benchHold))
	b.refused(a, metadata.ErrConcurrentTransactions)
	require.True(t, b.core.Idle(), "the markers need no core")
	b.mark()
	b.ok(b.init(noPair), pair{p.id, 2})
}

// EndTxn of the first protocol: the pair stays; the same end again succeeds, the other one does not, nor either of nothing
// (P8, P9).
func TestEndFirstProtocol(t *testing.T) {
	b, p := begun(t)
	b.refused(b.end(1, p, true), metadata.ErrInvalidTransactionState)
	b.refused(b.end(1, p, false), metadata.ErrInvalidTransactionState)
	b.refused(b.end(1, pair{p.id, 1}, true), metadata.ErrProducerFenced)
	b.refused(b.end(1, pair{p.id + 1, 0}, true), metadata.ErrInvalidProducerIDMapping)
	for _, commit := range []bool{true, false} {
		require.NoError(t, b.add(p, 0).err)
		b.ok(b.end(1, p, commit), p)
		require.True(t, b.record().State.Prepared(), "before any marker")
		for range 2 {
			b.ok(b.end(1, p, commit), p)
			b.refused(b.end(1, p, !commit), metadata.ErrInvalidTransactionState)
			if b.record().State.Prepared() {
				b.mark()
			}
		}
	}
}

// EndTxn of the second protocol, as the table in Kafka's coordinator has it: with the pair that the last end gave the present
// transaction is ended, with the one before it that end is asked for again (KIP-890).
func TestEndSecondProtocol(t *testing.T) {
	b, p := begun(t)
	b.refused(b.end(2, p, true), metadata.ErrInvalidTransactionState)
	p = b.ok(b.end(2, p, false), pair{p.id, 1}) // of nothing: allowed, and an epoch
	for _, commit := range []bool{true, false} {
		b.enlist(p) // which the coordinator may not have seen
		next := b.ok(b.end(2, p, commit), pair{p.id, p.epoch + 1})
		r := b.record()
		require.Equal(t, next, pair{r.MarkerProducerID, r.MarkerEpoch}, "the markers fence what comes late (P7)")
		for range 2 {
			b.ok(b.end(2, p, commit), next)
			b.refused(b.end(2, p, !commit), metadata.ErrInvalidTransactionState)
			if b.record().State.Prepared() {
				b.mark()
			}
		}
		b.refused(b.end(2, next, true), metadata.ErrInvalidTransactionState)
		b.refused(b.end(2, pair{p.id, p.epoch + 2}, commit), metadata.ErrProducerFenced)
		p = b.ok(b.end(2, next, false), pair{p.id, next.epoch + 1})
		b.ok(b.end(2, next, false), p)
	}
	given := b.ok(b.init(p), pair{p.id, p.epoch + 1})
	b.refused(b.end(2, p, false), metadata.ErrProducerFenced) // the present pair came from InitProducerId
	b.enlist(given)
	b.refused(b.end(2, p, true), metadata.ErrProducerFenced)
}

// Trap 29: what comes while the markers of the last transaction are being written waits for them, a moment.
func TestRequestsWaitForMarkers(t *testing.T) {
	b, p := begun(t)
	require.NoError(t, b.add(p, 0).err)
	b.ok(b.end(1, p, true), p)
	a := b.add(p, 1)
	require.False(t, a.done)
	b.mark()
	require.True(t, a.done)
	require.NoError(t, a.err)
	require.Equal(t, metadata.TransactionOngoing, b.record().State)

	b.ok(b.end(1, p, true), p)
	a = b.add(p, 1)
	b.pass(time.Duration(benchHold))
	b.refused(a, metadata.ErrConcurrentTransactions)
	var answers []*benchAnswer
	for range heldMax + 1 {
		answers = append(answers, b.add(p, 1))
	}
	b.refused(answers[heldMax], metadata.ErrConcurrentTransactions)
	require.False(t, answers[heldMax-1].done)

	b.mark()
	next := b.ok(b.end(2, p, true), pair{p.id, 1})
	a = b.end(2, next, false) // the producer is ahead of its markers
	require.False(t, a.done)
	b.mark()
	b.ok(a, pair{p.id, 2})
}

// P6: the last epoch is never given away; the id after it begins with 0, by InitProducerId, by an end, by a time-out.
func TestEpochsEnd(t *testing.T) {
	old := func(t *testing.T) (*bench, pair) {
		b, p := begun(t)
		r := b.record()
		_, err := b.fsm.ChangeTransaction(0, b.epoch, metadata.TransactionChange{
			ID: "x", Revision: r.Revision, State: metadata.TransactionEmpty, ProducerID: p.id, ProducerEpoch: epochLast - 1,
			LastProducerID: -1, LastProducerEpoch: -1, MarkerProducerID: -1, MarkerEpoch: -1, Timeout: time.Minute, Version: 1,
		})
		require.NoError(t, err)
		return b, b.ok(b.init(noPair), pair{p.id, epochLast})
	}
	t.Run("init", func(t *testing.T) {
		b, p := old(t)
		a := b.init(p)
		next := b.ok(a, pair{b.ids - 1, 0})
		b.ok(b.init(p), next)
		b.ok(b.init(noPair), pair{next.id, 1})
		b.refused(b.init(p), metadata.ErrProducerFenced)
	})
	t.Run("fence", func(t *testing.T) {
		b, p := old(t)
		require.NoError(t, b.add(p, 0).err)
		a := b.init(noPair)
		require.Equal(t, int16(epochLast+1), b.record().MarkerEpoch)
		b.mark()
		b.ok(a, pair{b.ids - 1, 1})
	})
	t.Run("end", func(t *testing.T) {
		b, p := old(t)
		b.enlist(p)
		a := b.end(2, p, true)
		next := b.ok(a, pair{b.ids - 1, 0})
		require.Equal(t, pair{p.id, epochLast + 1}, pair{b.record().MarkerProducerID, b.record().MarkerEpoch})
		b.ok(b.end(2, p, true), next)
		b.mark()
		b.ok(b.end(2, p, true), next)
		b.refused(b.end(2, p, false), metadata.ErrInvalidTransactionState)
		b.enlist(next)
	})
	t.Run("end whose answer is lost", func(t *testing.T) {
		b, p := old(t)
		b.enlist(p)
		b.see()
		b.fail = metadata.ErrTimeout
		b.refused(b.end(2, p, true), ErrUnavailable)
		made := present(b.record())
		b.ok(b.end(2, p, true), made)
	})
	t.Run("time-out", func(t *testing.T) {
		b, p := old(t)
		b.enlist(p)
		b.see()
		b.pass(time.Minute)
		b.mark()
		a := b.end(2, p, false)
		b.ok(a, pair{b.ids - 1, 0})
	})
}

// A transaction ends when its time is over. Its producer is fenced by an epoch that is nobody's, and may ask for it: by
// EndTxn of the second protocol, if it wanted to abort, or by InitProducerId (KIP-588).
func TestTimeout(t *testing.T) {
	b, p := begun(t)
	require.NoError(t, b.add(p, 0).err)
	b.see()
	b.pass(time.Minute - time.Millisecond)
	require.Equal(t, metadata.TransactionOngoing, b.record().State)
	b.pass(time.Millisecond)
	require.Equal(t, metadata.TransactionPrepareAbort, b.record().State)
	b.refused(b.end(1, p, true), metadata.ErrProducerFenced)
	b.refused(b.end(1, p, false), metadata.ErrProducerFenced)
	b.refused(b.end(2, p, true), metadata.ErrInvalidTransactionState)
	b.mark()
	next := b.ok(b.end(2, p, false), pair{p.id, 1})
	b.ok(b.init(p), next)
	require.True(t, b.core.Idle())
}

// A transaction's time is not begun again when it grows, or when its coordinator moves; a wall clock that is wrong does not
// make it longer (I22).
func TestTimeoutOverMoves(t *testing.T) {
	b, p := begun(t)
	require.NoError(t, b.add(p, 0).err)
	b.see()
	b.pass(30 * time.Second)
	require.NoError(t, b.add(p, 1).err)
	b.see()
	at := b.now.At + Instant(30*time.Second)
	require.Equal(t, at, b.core.Deadline())
	b.restart(true)
	require.Equal(t, at, b.core.Deadline(), "by the time stamp")
	b.restart(false)
	require.Equal(t, b.now.At+Instant(time.Minute), b.core.Deadline(), "it has just begun, whatever its time stamp says")
	b.now.Wall -= time.Hour.Milliseconds()
	b.restart(true)
	require.Equal(t, b.now.At+Instant(time.Minute), b.core.Deadline())
	b.now.Wall += 2 * time.Hour.Milliseconds()
	b.restart(true)
	require.Equal(t, b.now.At, b.core.Deadline())
}

// An abort that can't be made is tried again, ever less often, until it is.
func TestTimeoutIsTriedAgain(t *testing.T) {
	b, p := begun(t)
	require.NoError(t, b.add(p, 0).err)
	b.see()
	pause := Instant(0)
	for range 8 {
		b.now.At = b.core.Deadline()
		b.fail, b.lose = metadata.ErrBusy, true
		b.step(&Tick{RetryMax: Instant(10 * time.Second)})
		require.Equal(t, metadata.TransactionOngoing, b.record().State)
		next := b.core.Deadline() - b.now.At
		require.GreaterOrEqual(t, next, pause)
		require.LessOrEqual(t, next, Instant(10*time.Second))
		pause = next
	}
	require.Equal(t, Instant(10*time.Second), pause)
	b.pass(time.Duration(pause))
	require.Equal(t, metadata.TransactionPrepareAbort, b.record().State)
	require.True(t, b.core.Idle())
}

// P10: a commit and an abort race; whichever is committed first wins, and the other is told so.
func TestCommitRacesAbort(t *testing.T) {
	b, p := begun(t)
	require.NoError(t, b.add(p, 0).err)
	b.see()
	// Another coordinator, or this one before its answer was lost, has decided; this core has yet to see it.
	other := NewCore("x")
	other.Step(b.now, &Seen{Transaction: b.record()})
	r, _ := b.request()
	acts := other.Step(b.now, &End{r, EndRequest{ID: "x", ProducerID: p.id, ProducerEpoch: p.epoch, Commit: true, Version: 1}})
	_, err := b.fsm.ChangeTransaction(0, b.epoch, acts[0].Change)
	require.NoError(t, err)
	r, a := b.request()
	b.perform(b.core.Step(b.now, &Abort{request: r})) // decided on what was
	b.refused(a, metadata.ErrInvalidTransactionState)
	require.Equal(t, metadata.TransactionPrepareCommit, b.record().State)
	b.ok(b.end(1, p, true), p)
}

// An administrator's abort (KIP-664).
func TestAbortByOrder(t *testing.T) {
	b := newCoreBench(t)
	b.refused(b.ask(&Abort{}), metadata.ErrTransactionNotFound)
	a := b.init(noPair)
	p := b.ok(a, pair{b.ids - 1, 0})
	b.refused(b.ask(&Abort{}), metadata.ErrInvalidTransactionState)
	require.NoError(t, b.add(p, 0).err)
	a = b.ask(&Abort{})
	require.True(t, a.done)
	require.NoError(t, a.err)
	require.NoError(t, b.ask(&Abort{}).err, "it is on its way")
	b.mark()
	b.refused(b.add(p, 0), metadata.ErrProducerFenced)
	require.NoError(t, b.add(pair{p.id, 1}, 0).err)
	b.ok(b.end(1, pair{p.id, 1}, true), pair{p.id, 1})
	b.refused(b.ask(&Abort{}), metadata.ErrInvalidTransactionState)
}

// M11: a change whose outcome is unknown is found out about by the request that is made again.
func TestOutcomeUnknown(t *testing.T) {
	for _, lose := range []bool{false, true} {
		for _, version := range []int8{1, 2} {
			b, p := begun(t)
			require.NoError(t, b.add(p, 0).err)
			b.see()
			b.fail, b.lose = metadata.ErrTimeout, lose
			b.refused(b.end(version, p, true), ErrUnavailable)
			want := p
			if version == 2 {
				want.epoch++
			}
			b.ok(b.end(version, p, true), want)
			require.Equal(t, metadata.TransactionPrepareCommit, b.record().State)
		}
	}
}

// G5: a broker that coordinates no more tells all that wait, and forgets.
func TestLetGo(t *testing.T) {
	b, p := begun(t)
	require.NoError(t, b.add(p, 0).err)
	a := b.init(noPair)
	b.step(&LetGo{Err: ErrNotCoordinator})
	b.refused(a, ErrNotCoordinator)
	require.True(t, b.core.Idle())
	r, c := b.request()
	b.perform(b.core.Step(b.now, &Init{r, InitRequest{ID: "x", Timeout: time.Minute, ProducerID: -1}}))
	b.refused(c, ErrUnavailable)
}
