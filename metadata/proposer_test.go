package metadata

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// fakeRaft takes entries and answers when told to.
type fakeRaft struct {
	mu      sync.Mutex
	entries []*fakeFuture
}

type fakeFuture struct {
	raft.ApplyFuture
	data     []byte
	commands []*pb.Command
	done     chan struct{}
	response any
	err      error
}

func (f *fakeFuture) Error() error  { <-f.done; return f.err }
func (f *fakeFuture) Response() any { return f.response }

// commit answers with the body of each command as its value.
func (f *fakeFuture) commit() {
	var results []result
	for _, c := range f.commands {
		results = append(results, result{value: string(c.Body)})
	}
	f.response = results
	close(f.done)
}

func (f *fakeFuture) refuse(err error) { f.err = err; close(f.done) }

func (r *fakeRaft) Apply(data []byte, _ time.Duration) raft.ApplyFuture {
	var e pb.Entry
	if err := proto.Unmarshal(data, &e); err != nil {
		panic(err)
	}
	f := &fakeFuture{data: data, commands: e.Commands, done: make(chan struct{})}
	r.mu.Lock()
	r.entries = append(r.entries, f)
	r.mu.Unlock()
	return f
}

// flying returns the entries so far.
func (r *fakeRaft) flying() []*fakeFuture {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.entries
}

// testProposer runs a proposer over a fakeRaft in a bubble.
func testProposer(t *testing.T, body func(t *testing.T, p *proposer, r *fakeRaft)) {
	synctest.Test(t, func(t *testing.T) {
		r := &fakeRaft{}
		p := newProposer(r, newMetrics())
		var wg sync.WaitGroup
		wg.Go(p.gather)
		wg.Go(p.settle)
		body(t, p, r)
		close(p.stop)
		for _, f := range r.entries {
			select {
			case <-f.done:
			default:
				f.refuse(raft.ErrRaftShutdown)
			}
		}
		wg.Wait()
	})
}

func testProposal(body string) *proposal {
	return newProposal(appendCommand(nil, 1, testTerm, []byte(body)))
}

// send submits commands with these bodies and returns their proposals.
func send(t *testing.T, p *proposer, l lane, bodies ...string) []*proposal {
	var out []*proposal
	for _, b := range bodies {
		pr := testProposal(b)
		require.NoError(t, p.submit(t.Context(), l, pr))
		out = append(out, pr)
	}
	return out
}

func numbered(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return out
}

func bodies(f *fakeFuture) []string {
	var out []string
	for _, c := range f.commands {
		out = append(out, string(c.Body))
	}
	return out
}

// A lone command does not wait for company; two entries are in flight at most; what comes meanwhile shares the next one,
// in order, and everybody gets its own answer.
func TestProposerCoalesces(t *testing.T) {
	testProposer(t, func(t *testing.T, p *proposer, r *fakeRaft) {
		first := send(t, p, metadataLane, "first")
		require.Len(t, r.flying(), 1, "no linger")
		second := send(t, p, metadataLane, "second")
		require.Len(t, r.flying(), 2)
		rest := send(t, p, metadataLane, numbered("c", 1500)...)
		require.Len(t, r.flying(), 2, "two in flight")
		r.entries[0].commit()
		require.Len(t, r.flying(), 3)
		require.Equal(t, numbered("c", 1500)[:1000], bodies(r.entries[2]))
		r.entries[1].commit()
		require.Equal(t, numbered("c", 1500)[1000:], bodies(r.flying()[3]))
		r.entries[3].commit() // settled in order, whatever the order of the commits
		synctest.Wait()
		require.Empty(t, rest[1200].done)
		r.entries[2].commit()
		for i, pr := range append(append(first, second...), rest...) {
			v, err := p.wait(t.Context(), pr)
			require.NoError(t, err)
			require.Equal(t, append([]string{"first", "second"}, numbered("c", 1500)...)[i], v)
		}
	})
}

// M20: an entry is at most 256 KiB, and uses at least half of that when more is waiting.
func TestProposerBoundsEntries(t *testing.T) {
	testProposer(t, func(t *testing.T, p *proposer, r *fakeRaft) {
		big := func(n int) []string {
			out := make([]string, n)
			for i := range out {
				out[i] = string(make([]byte, 1+(i*7919)%maxPartBytes))
			}
			return out
		}
		send(t, p, metadataLane, "a")
		r.flying()
		send(t, p, metadataLane, "b")
		r.flying()
		sent := send(t, p, metadataLane, big(500)...)
		got := 0
		for i := 0; i < len(r.flying()); i++ {
			f := r.entries[i]
			require.LessOrEqual(t, len(f.data), maxEntryBytes)
			f.commit()
			got += len(f.commands)
			if i > 1 && got < 502 {
				require.Greater(t, len(f.data), maxEntryBytes/2)
			}
		}
		require.Equal(t, 502, got)
		for _, pr := range sent {
			require.Len(t, pr.done, 1)
		}
	})
}

// Metadata overtakes offsets, however many of those wait; a tenth of an entry is open to offsets, so that they are not
// starved either.
func TestProposerLanes(t *testing.T) {
	testProposer(t, func(t *testing.T, p *proposer, r *fakeRaft) {
		send(t, p, offsetsLane, "x")
		r.flying()
		send(t, p, offsetsLane, "y")
		r.flying()
		send(t, p, offsetsLane, numbered("offset", 1900)...)
		send(t, p, metadataLane, "isr1", "isr2")
		r.entries[0].commit()
		third := r.flying()[2]
		require.Equal(t, append([]string{"isr1", "isr2"}, numbered("offset", 998)...), bodies(third))
		send(t, p, metadataLane, numbered("m", 1200)...)
		r.entries[1].commit()
		fourth := bodies(r.flying()[3])
		require.Equal(t, numbered("m", 900), fourth[:900])
		require.Equal(t, "offset998", fourth[900])
		require.Equal(t, "offset1097", fourth[999])
	})
}

// M11: a proposal whose caller gives up in time is never proposed, and the answer says so; one that is on its way has an
// unknown outcome.
func TestProposerGivesUp(t *testing.T) {
	testProposer(t, func(t *testing.T, p *proposer, r *fakeRaft) {
		flying := send(t, p, metadataLane, "flying")[0]
		r.flying()
		send(t, p, metadataLane, "second")
		r.flying()
		queued := send(t, p, metadataLane, "queued")[0]
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := p.wait(ctx, flying)
		requireMend(t, err, ErrTimeout, "may still be made")
		require.NotErrorIs(t, err, ErrBusy)
		_, err = p.wait(ctx, queued)
		requireMend(t, err, ErrBusy, "nothing was changed")
		require.NotErrorIs(t, err, ErrTimeout)
		last := send(t, p, metadataLane, "last")[0]
		r.entries[0].commit()
		require.Equal(t, []string{"last"}, bodies(r.flying()[2]), "the withdrawn one is not in it")
		r.entries[1].commit()
		r.entries[2].commit()
		r.flying()
		v, err := p.wait(ctx, last)
		require.NoError(t, err, "ctx has ended too; an outcome that is there counts more")
		require.Equal(t, "last", v)
		v, err = p.wait(ctx, flying)
		require.NoError(t, err, "the outcome came after all")
		require.Equal(t, "flying", v)

		// A full lane holds its callers back, until they give up.
		send(t, p, metadataLane, "a")
		r.flying()
		send(t, p, metadataLane, "b")
		r.flying()
		send(t, p, metadataLane, numbered("full", laneCapacity)...)
		full, cancelFull := context.WithTimeout(t.Context(), time.Second)
		defer cancelFull()
		require.ErrorIs(t, p.submit(full, metadataLane, testProposal("too much")), ErrBusy)
	})
}

// An entry in which all proposals were withdrawn is not proposed, and its place in flight is free again.
func TestProposerAllWithdrawn(t *testing.T) {
	testProposer(t, func(t *testing.T, p *proposer, r *fakeRaft) {
		send(t, p, metadataLane, "a")
		r.flying()
		send(t, p, metadataLane, "b")
		r.flying()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, pr := range send(t, p, metadataLane, numbered("gone", 10)...) {
			_, err := p.wait(ended, pr)
			require.ErrorIs(t, err, ErrBusy)
		}
		r.entries[0].commit()
		require.Len(t, r.flying(), 2)
		r.entries[1].commit()
		require.Len(t, r.flying(), 2)
		send(t, p, metadataLane, "c")
		require.Equal(t, []string{"c"}, bodies(r.flying()[2]))
		send(t, p, metadataLane, "d")
		require.Len(t, r.flying(), 4, "two in flight again")
	})
}

// M11: which errors of Raft are definite.
func TestProposerErrors(t *testing.T) {
	for err, want := range map[error]error{
		raft.ErrNotLeader:                    ErrNotController,
		raft.ErrLeadershipTransferInProgress: ErrNotController,
		raft.ErrEnqueueTimeout:               ErrBusy,
		raft.ErrLeadershipLost:               ErrTimeout,
		raft.ErrRaftShutdown:                 ErrTimeout,
		raft.ErrAbortedByRestore:             ErrTimeout,
		errTestIO:                            ErrTimeout,
	} {
		testProposer(t, func(t *testing.T, p *proposer, r *fakeRaft) {
			sent := send(t, p, metadataLane, "a")
			r.flying()[0].refuse(err)
			_, got := p.wait(t.Context(), sent[0])
			require.ErrorIs(t, got, want, "%v", err)
			for _, other := range []error{ErrNotController, ErrBusy, ErrTimeout} {
				if other != want {
					require.NotErrorIs(t, got, other)
				}
			}
		})
	}
	// Committed, but the FSM stopped: the others may have applied it.
	testProposer(t, func(t *testing.T, p *proposer, r *fakeRaft) {
		sent := send(t, p, metadataLane, "a")
		f := r.flying()[0]
		f.response = fmt.Errorf("%w: test", ErrFailed)
		close(f.done)
		_, err := p.wait(t.Context(), sent[0])
		require.ErrorIs(t, err, ErrTimeout)
		require.ErrorIs(t, err, ErrFailed)
	})
}

// Close: what was on its way is unknown, what was queued is not proposed, and nothing more is taken.
func TestProposerStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &fakeRaft{}
		p := newProposer(r, newMetrics())
		var wg sync.WaitGroup
		wg.Go(p.gather)
		wg.Go(p.settle)
		a := send(t, p, metadataLane, "a")[0]
		r.flying()
		send(t, p, metadataLane, "b")
		r.flying()
		queued := send(t, p, metadataLane, "queued")[0]
		close(p.stop)
		_, err := p.wait(t.Context(), a)
		require.ErrorIs(t, err, ErrTimeout)
		_, err = p.wait(t.Context(), queued)
		require.ErrorIs(t, err, ErrClosed)
		require.NotErrorIs(t, err, ErrTimeout)
		require.ErrorIs(t, p.submit(t.Context(), metadataLane, testProposal("late")), ErrClosed)
		for _, f := range r.entries {
			f.refuse(raft.ErrRaftShutdown)
		}
		wg.Wait()
		require.Len(t, r.entries, 2)
	})
}

// D4: few offset commits go at once, as many as there may be in flight; after many the next wait a while for others, and metadata
// waits for none of them and takes them along.
func TestManyOffsetsShareEntries(t *testing.T) {
	submit := func(t *testing.T, p *proposer, l lane, size int) {
		t.Helper()
		data, err := proto.Marshal(&pb.Command{Body: make([]byte, size)})
		require.NoError(t, err)
		require.NoError(t, p.submit(t.Context(), l, newProposal(data)))
		synctest.Wait()
	}
	testProposer(t, func(t *testing.T, p *proposer, r *fakeRaft) {
		begun := time.Now()
		for i := range 50 { // each is answered before the next comes
			submit(t, p, offsetsLane, 200)
			require.Len(t, r.flying(), i+1)
			r.flying()[i].commit()
			synctest.Wait()
		}
		require.Zero(t, time.Since(begun))

		submit(t, p, offsetsLane, manyOffsetBytes)
		r.flying()[50].commit()
		for range 20 {
			submit(t, p, offsetsLane, 100)
		}
		require.Len(t, r.flying(), 51, "they wait, though nothing is in flight")
		time.Sleep(offsetsSpacing - time.Nanosecond)
		require.Len(t, r.flying(), 51)
		time.Sleep(time.Nanosecond)
		require.Len(t, r.flying(), 52)
		require.Len(t, r.entries[51].commands, 20)
		r.entries[51].commit()

		time.Sleep(offsetsSpacing)
		submit(t, p, offsetsLane, manyOffsetBytes)
		r.flying()[52].commit()
		submit(t, p, offsetsLane, 100)
		require.Len(t, r.flying(), 53)
		submit(t, p, metadataLane, 100)
		require.Len(t, r.flying(), 54)
		require.Len(t, r.entries[53].commands, 2, "metadata does not wait, and takes along what does")
		r.entries[53].commit()

		time.Sleep(offsetsSpacing)
		submit(t, p, offsetsLane, manyOffsetBytes)
		r.flying()[54].commit()
		submit(t, p, transactionsLane, manyOffsetBytes)
		require.Len(t, r.flying(), 56, "nor do transactions")
		r.entries[55].commit()
		submit(t, p, transactionsLane, 100)
		require.Len(t, r.flying(), 57, "of which many don't count")
		r.entries[56].commit()
	})
}
