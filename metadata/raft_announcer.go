package metadata

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// announcer is a transport through which a leader tells its followers at once that an entry is committed. Raft itself says
// so with its next message only, which is soon while entries follow each other, and a Config.CommitTimeout or two later when
// none does: for so long a follower that asked for a change did not see it, and what acts on the Image everywhere - a new
// leader, a new topic's partitions, the markers of a transaction - waited.
//
// What it sends is a message that Raft could have sent: AppendEntries without entries, whose previous entry is the
// committed one. It goes to followers only that have answered for that entry, beside Raft's own messages and on another
// connection; to lose it, to repeat it or to be late does no harm, and the answer is of no interest. It bears the term of
// the messages before it, so that one of a leader that is none any more is refused like all that such a leader sends.
//
// In turn it keeps back most of what Raft repeats for those who missed it: see announcedFollower.needless.
type announcer struct {
	raft.Transport

	mu        sync.Mutex
	followers map[*announcedFollower]struct{}
	// answered has, of each follower, the last message that it took before Raft began to pipeline: the first entries of a lead
	// go that way.
	answered map[raft.ServerID]answeredMessage
	// last is the last entry that was committed as far as this server, leading, knows.
	last committedEntry
}

// committedEntry names an entry of the log.
type committedEntry struct{ index, term uint64 }

// answeredMessage is what a message says of a follower that took it.
type answeredMessage struct {
	header      raft.RPCHeader
	term        uint64
	holds, told uint64 // as in announcedFollower
}

func newAnnouncer(t raft.Transport) *announcer {
	return &announcer{Transport: t, followers: make(map[*announcedFollower]struct{}), answered: make(map[raft.ServerID]answeredMessage)}
}

// AppendEntries passes on a message that Raft sends outside of a pipeline.
func (a *announcer) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	err := a.Transport.AppendEntries(id, target, args, resp)
	if args.PrevLogEntry == 0 && len(args.Entries) == 0 { // a heartbeat, or nothing at all
		if err != nil {
			a.doubt(id)
		}
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil || !resp.Success {
		delete(a.answered, id)
		return err
	}
	a.answered[id] = answeredMessage{args.RPCHeader, args.Term, args.PrevLogEntry + uint64(len(args.Entries)), args.LeaderCommitIndex}
	return nil
}

// doubt forgets what a follower has said that it heard: it may be another process now.
func (a *announcer) doubt(id raft.ServerID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for f := range a.followers {
		if f.id == id {
			f.heard.Store(0)
		}
	}
}

// committed is called with the last of the entries that are committed, by leaders and followers; who does not lead has
// nobody to tell. It does not block.
func (a *announcer) committed(index, term uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = committedEntry{index, term}
	for f := range a.followers {
		f.nudge()
	}
}

// AppendEntriesPipeline is how Raft sends entries to a follower that is up to date.
func (a *announcer) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	inner, err := a.Transport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	f := &announcedFollower{
		AppendPipeline: inner, a: a, id: id, target: target,
		answers: make(chan raft.AppendFuture), wake: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	a.mu.Lock()
	if m, ok := a.answered[id]; ok {
		// Raft begins to pipeline right after a message of the same lead was taken.
		delete(a.answered, id)
		f.first.Store(&raft.AppendEntriesRequest{RPCHeader: m.header, Term: m.term})
		f.holds.Store(m.holds)
		f.told.Store(m.told)
		f.nudge()
	}
	a.followers[f] = struct{}{}
	a.mu.Unlock()
	go f.listen()
	go f.announce()
	return f, nil
}

// RequestPreVote is the method of raft.WithPreVote, which embedding the interface hides.
func (a *announcer) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return preVote(a.Transport, id, target, args, resp)
}

// announcedFollower is a follower's pipeline with what is known of the follower.
type announcedFollower struct {
	raft.AppendPipeline
	a      *announcer
	id     raft.ServerID
	target raft.ServerAddress

	// first is the first message of this pipeline, or one before it; its term and sender are those of all.
	first atomic.Pointer[raft.AppendEntriesRequest]
	// holds is the last entry that the follower has answered for.
	holds atomic.Uint64
	// told is the highest commit index that the follower was sent, by Raft or here.
	told atomic.Uint64
	// heard is the highest commit index that the follower was told in a message that it has answered, 0 after a heartbeat that
	// failed.
	heard atomic.Uint64
	// repeated is when a message without entries was last sent. Only Raft's one sender uses it.
	repeated time.Time

	answers chan raft.AppendFuture
	wake    chan struct{}
	closing sync.Once
	closed  chan struct{}
}

// nudge has the follower told what there is to tell.
func (f *announcedFollower) nudge() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// AppendEntries passes on a message of Raft's.
func (f *announcedFollower) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	if f.first.Load() == nil {
		f.first.Store(args)
	}
	if len(args.Entries) == 0 {
		now := time.Now()
		if f.needless(args, now) {
			return needlessAppend{at: now, args: args, resp: resp}, nil
		}
		f.repeated = now
	}
	raise(&f.told, args.LeaderCommitIndex)
	return f.AppendPipeline.AppendEntries(args, resp)
}

// repeatAfter is how long nothing is repeated to a follower that has said it knows it all.
const repeatAfter = 2 * time.Second

// needless says whether a message without entries need not be sent: the follower has answered for all of the log, and for a
// message with this commit index. Raft repeats those each CommitTimeout, for a follower that did not hear of the last commit;
// at rest that was a third of what goes on between servers. They find no failure: heartbeats do, which go another way and at
// their own pace, for the follower's election timeout as for the leader's lease. Nothing is pretended to Raft, which gets no
// answer to a message that was not sent.
//
// One in repeatAfter is sent all the same, and any after a heartbeat that failed: a follower that came back as a new process
// is found by what is sent to the old one.
func (f *announcedFollower) needless(args *raft.AppendEntriesRequest, now time.Time) bool {
	return args.Term == f.first.Load().Term && f.holds.Load() >= args.PrevLogEntry && f.heard.Load() >= args.LeaderCommitIndex &&
		now.Sub(f.repeated) < repeatAfter
}

// needlessAppend is what Raft gets for a message that was not sent. It does not look at it.
type needlessAppend struct {
	at   time.Time
	args *raft.AppendEntriesRequest
	resp *raft.AppendEntriesResponse
}

func (n needlessAppend) Error() error                          { return nil }
func (n needlessAppend) Start() time.Time                      { return n.at }
func (n needlessAppend) Request() *raft.AppendEntriesRequest   { return n.args }
func (n needlessAppend) Response() *raft.AppendEntriesResponse { return n.resp }

// Consumer is where Raft gets the answers.
func (f *announcedFollower) Consumer() <-chan raft.AppendFuture { return f.answers }

// Close ends the pipeline.
func (f *announcedFollower) Close() error {
	f.closing.Do(func() {
		close(f.closed)
		f.a.mu.Lock()
		delete(f.a.followers, f)
		f.a.mu.Unlock()
	})
	return f.AppendPipeline.Close()
}

// listen notes what the answers say and hands them to Raft.
func (f *announcedFollower) listen() {
	for {
		select {
		case answer := <-f.AppendPipeline.Consumer():
			if request := answer.Request(); answer.Response().Success {
				raise(&f.holds, request.PrevLogEntry+uint64(len(request.Entries)))
				raise(&f.heard, request.LeaderCommitIndex)
				f.nudge()
			}
			select {
			case f.answers <- answer:
			case <-f.closed:
				return
			}
		case <-f.closed:
			return
		}
	}
}

// announce tells the follower of each commit that it would not hear of with a message under way.
func (f *announcedFollower) announce() {
	for {
		select {
		case <-f.wake:
		case <-f.closed:
			return
		}
		f.a.mu.Lock()
		last := f.a.last
		f.a.mu.Unlock()
		first := f.first.Load()
		if first == nil || first.Term != last.term || f.holds.Load() < last.index || f.told.Load() >= last.index {
			continue
		}
		raise(&f.told, last.index)
		request := raft.AppendEntriesRequest{
			RPCHeader: first.RPCHeader, Term: first.Term,
			PrevLogEntry: last.index, PrevLogTerm: last.term, LeaderCommitIndex: last.index,
		}
		// An error is Raft's to find with its own messages; the next of them says the same.
		resp := new(raft.AppendEntriesResponse)
		if err := f.a.Transport.AppendEntries(f.id, f.target, &request, resp); err == nil && resp.Success {
			raise(&f.heard, last.index)
		}
	}
}

// raise lets a only grow.
func raise(a *atomic.Uint64, to uint64) {
	for {
		was := a.Load()
		if to <= was || a.CompareAndSwap(was, to) {
			return
		}
	}
}
