package group

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/metadata"
)

// simClient is one consumer process, or what is left of it.
type simClient struct {
	n        int
	kind     clientKind
	instance string
	id       string
	node     *simNode // the coordinator it believes in; nil: it has to ask

	state       clientState
	generation  int32
	leader      bool
	skip        bool
	roster      []JoinedMember
	version     byte // of what it says of itself
	owned       []int32
	owning      int32 // the generation in which it owns them
	joining     *Join // sent last
	pausedUntil Instant
	heard       Instant // last heartbeat it sent

	seq     int
	waiting bool
	sent    Instant
	kindOf  string
	fenced  bool // another client has its instance id: it ends
	left    bool
}

type clientKind uint8

const (
	clientDynamic    clientKind = iota
	clientOld                   // before JoinGroup v4: no id first
	clientStatic                // JoinGroup v5 to v8
	clientStaticSkip            // v9
	clientLooper                // repeats the handshake and never joins
	clientLazy                  // joins and now and then does not sync
	clientKinds
)

type clientState uint8

const (
	clientOutside clientState = iota
	clientJoined
	clientStable
)

func (s *sim) newClient() *simClient {
	s.ids++
	c := &simClient{n: s.ids, kind: clientKind(s.rng.IntN(int(clientKinds)))}
	if c.kind == clientStatic || c.kind == clientStaticSkip {
		c.instance = fmt.Sprintf("i%d", s.rng.IntN(3))
		for _, o := range s.clients {
			if o.instance == c.instance {
				o.fenced = o.fenced || s.rng.IntN(2) == 0 // or both live, which a person has to mend
			}
		}
		for _, o := range s.clients {
			if o.instance == c.instance && !o.fenced {
				c.instance = fmt.Sprintf("j%d", c.n)
			}
		}
	}
	return c
}

func (c *simClient) lost() { c.owned, c.generation = nil, -1 }

// outside has the client join anew.
func (c *simClient) outside() { c.state = clientOutside }

// act does the next thing a client does.
func (c *simClient) act(s *sim) {
	if s.now < c.pausedUntil || c.left {
		return
	}
	if c.waiting {
		patience := 5 * Instant(time.Second)
		if c.kindOf == "join" {
			patience = simRebalance + patience
		}
		if s.now-c.sent < patience {
			return
		}
		c.waiting = false // lost on its way
		c.seq++
		c.hangUp(s)
		c.node = nil
	}
	if c.fenced {
		// The process that was replaced: it goes on for a while, as a zombie does.
		if s.quiet || s.rng.IntN(10) == 0 {
			c.left = true
		}
		if c.state != clientStable {
			return
		}
	}
	if !s.quiet && s.rng.IntN(80) == 0 {
		c.restart(s)
		return
	}
	if c.node == nil {
		c.find(s)
		return
	}
	switch c.state {
	case clientOutside:
		c.join(s)
	case clientJoined:
		if c.kind == clientLazy && !s.quiet && s.rng.IntN(4) > 0 {
			return
		}
		c.sync(s)
	case clientStable:
		c.work(s)
	}
}

// restart is a crash of the client and its return as a new process: under the same instance id if it is a static one.
func (c *simClient) restart(s *sim) {
	s.tracef("client %d restarts", c.n)
	c.hangUp(s)
	c.id, c.node, c.state, c.waiting = "", nil, clientOutside, false
	c.seq++
	c.lost()
}

// hangUp ends the connection, which the coordinator may notice: if it does, nobody waits there in a join any more.
func (c *simClient) hangUp(s *sim) {
	n, ev := c.node, c.joining
	c.joining = nil
	if n == nil || ev == nil {
		return
	}
	life := n.incarnation
	s.send(func() {
		if !n.up || n.incarnation != life {
			return
		}
		s.step(n, &Disconnected{ev})
		if n.core.change == nil && slices.ContainsFunc(n.core.classic.members, func(m *member) bool { return m.join == ev }) {
			s.failf("N2: a join of client %d waits, whose connection has ended", c.n)
		}
	})
}

// find asks some broker who coordinates.
func (c *simClient) find(s *sim) {
	n := s.nodes[s.rng.IntN(len(s.nodes))]
	if !n.up {
		return
	}
	if id, _ := s.images[n.applied].Coordinator(metadata.GroupCoordinator, simGroup); id >= 0 {
		c.node = s.nodes[id]
	}
}

// request sends something to the coordinator. handle runs there; it answers by itself unless it returns an error.
func (c *simClient) request(s *sim, kind string, handle func(n *simNode, call *simCall) error, failed func(error)) {
	c.seq++
	c.waiting, c.sent, c.kindOf = true, s.now, kind
	call := &simCall{client: c, seq: c.seq, node: c.node}
	n := c.node
	send := s.send
	late := kind == "sync" && !s.quiet && s.rng.IntN(10) == 0 // a connection that stands still for long
	if late {
		send = s.slow
	}
	send(func() {
		reply := func(err error) {
			s.send(func() {
				if c.seq == call.seq && c.waiting {
					c.waiting = false
					failed(err)
				}
			})
		}
		if !n.up {
			reply(ErrNotCoordinator)
			return
		}
		call.since = s.now
		n.waiters[call] = true
		s.deaf = late
		defer func() { s.deaf = false }()
		if err := handle(n, call); err != nil && !call.done {
			call.done = true
			delete(n.waiters, call)
			reply(err)
		}
	})
}

func (c *simClient) join(s *sim) {
	s.ids++
	r := &JoinRequest{
		Group: simGroup, Member: c.id, Instance: c.instance, ClientID: "c", SessionTimeout: time.Duration(simSession), RebalanceTimeout: time.Duration(simRebalance),
		ProtocolType: "sim", Protocols: []Protocol{{Name: "a", Metadata: []byte{byte(c.n), c.version}}, {Name: fmt.Sprint("b", c.n%2), Metadata: nil}},
		RequireKnownMember: c.kind != clientOld, CanSkipAssignment: c.kind == clientStaticSkip,
	}
	if c.n%3 == 0 {
		slices.Reverse(r.Protocols)
	}
	name := fmt.Sprintf("m%d-%d", c.n, s.ids)
	settings := s.settings
	ev := &Join{JoinRequest: r, NewID: name, Settings: &settings}
	c.joining = ev
	c.request(s, "join", func(n *simNode, call *simCall) error {
		s.heard(n, r.Member)
		ev.Waiter = call
		err, ok := s.step(n, ev)
		if !ok {
			return ErrNotCoordinator
		}
		return err
	}, func(err error) { c.failed(s, err) })
}

func (c *simClient) joined(s *sim, r JoinResult) {
	if c.kind != clientLooper {
		s.tracef("client %d: joined: %s gen %d leader %s: %v", c.n, r.Member, r.Generation, r.Leader, r.Err)
	}
	if errors.Is(r.Err, ErrMemberIDRequired) {
		if c.kind != clientLooper {
			c.id = r.Member
		}
		return
	}
	if r.Err != nil {
		c.failed(s, r.Err)
		return
	}
	c.owned = nil
	c.id, c.generation, c.leader, c.skip, c.roster = r.Member, r.Generation, r.Leader == r.Member, r.SkipAssignment, r.Members
	c.state = clientJoined
}

func (c *simClient) sync(s *sim) {
	r := &SyncRequest{Group: simGroup, Member: c.id, Instance: c.instance, Generation: c.generation, HasProtocolType: true, ProtocolType: "sim"}
	if c.leader && !c.skip {
		shares := make([][]byte, len(c.roster))
		for p := range simPartitions {
			i := (p + s.rng.IntN(2)*int(c.generation)) % len(c.roster)
			shares[i] = append(shares[i], byte(p))
		}
		for i, m := range c.roster {
			r.Assignments = append(r.Assignments, Assignment{Member: m.ID, Bytes: shares[i]})
		}
	}
	c.request(s, "sync", func(n *simNode, call *simCall) error {
		s.heard(n, r.Member)
		call.sync = r
		err, ok := s.step(n, &Sync{SyncRequest: r, Waiter: call})
		if !ok {
			return ErrNotCoordinator
		}
		return err
	}, func(err error) { c.failed(s, err) })
}

func (c *simClient) synced(s *sim, r SyncResult, n *simNode) {
	if r.Err != nil {
		c.failed(s, r.Err)
		return
	}
	c.state, c.owned, c.owning, c.heard = clientStable, nil, c.generation, s.now
	for _, p := range r.Assignment {
		c.owned = append(c.owned, int32(p))
	}
	s.tracef("client %d: %s owns %v in gen %d", c.n, c.id, c.owned, c.generation)
	s.checkOwned(c)
	s.checkFetch(c, n)
}

// failed goes on after an error as clients do.
func (c *simClient) failed(s *sim, err error) {
	s.tracef("client %d: %s %s gen %d: %v", c.n, c.id, c.kindOf, c.generation, err)
	switch {
	case errors.Is(err, ErrNotCoordinator), errors.Is(err, ErrCoordinatorLoading), errors.Is(err, metadata.ErrTimeout):
		c.node = nil
		if c.kindOf == "join" || c.kindOf == "sync" {
			c.outside()
		}
	case errors.Is(err, ErrRebalanceInProgress):
		c.outside()
	case errors.Is(err, ErrIllegalGeneration):
		c.lost()
		c.outside()
	case errors.Is(err, ErrUnknownMember), errors.Is(err, ErrGroupNotFound):
		c.lost()
		c.id = ""
		c.outside()
	case errors.Is(err, ErrFencedInstance):
		c.lost()
		c.id = ""
		c.outside()
		if !s.quiet {
			return
		}
		for _, o := range s.clients {
			if o != c && o.instance == c.instance && !o.fenced {
				c.fenced = true
			}
		}
	default:
		s.failf("client %d: unexpected error: %v", c.n, err)
	}
}

// work is what a member does in a stable group.
func (c *simClient) work(s *sim) {
	pick := s.rng.IntN(12)
	switch {
	case s.now-c.heard > Instant(time.Second) || pick < 4:
		c.heard = s.now
		r := &HeartbeatRequest{Group: simGroup, Member: c.id, Instance: c.instance, Generation: c.generation}
		c.request(s, "heartbeat", func(n *simNode, call *simCall) error {
			s.heard(n, r.Member)
			err, ok := s.step(n, &Heartbeat{r})
			if !ok {
				return ErrNotCoordinator
			}
			if err != nil {
				return err
			}
			s.answered(n, call, func(*simClient) {})
			return nil
		}, func(err error) { c.failed(s, err) })
	case pick < 10 && len(c.owned) > 0 && (!s.quiet || pick == 9):
		c.commit(s)
	case pick == 10 && !s.quiet && s.rng.IntN(4) == 0:
		c.version++ // it subscribes to something else
		c.outside()
	case pick == 11 && !s.quiet && s.rng.IntN(4) == 0 && c.instance == "":
		c.leave(s)
	}
}

func (c *simClient) leave(s *sim) {
	s.tracef("client %d: %s leaves", c.n, c.id)
	id := c.id
	r := &LeaveRequest{Group: simGroup, Members: []LeavingMember{{Member: id}}}
	c.request(s, "leave", func(n *simNode, call *simCall) error {
		s.oracle.left[id] = true
		err, ok := s.step(n, &Leave{LeaveRequest: r, Waiter: call})
		if !ok {
			return ErrNotCoordinator
		}
		return err
	}, func(error) {})
	c.restart(s)
}

func (c *simClient) commit(s *sim) {
	p := c.owned[s.rng.IntN(len(c.owned))]
	s.ids++
	commit := metadata.OffsetCommit{
		Group: simGroup, Member: c.id, Instance: c.instance, Generation: c.owning, Time: s.wall(),
		Offsets: []metadata.OffsetEntry{{TopicID: simTopicID, Partition: p, Offset: int64(s.ids), LeaderEpoch: -1}},
	}
	identity := c.identity()
	c.request(s, "commit", func(n *simNode, call *simCall) error {
		s.heard(n, commit.Member)
		call.commit = commit
		err, ok := s.step(n, &Commit{&CommitRequest{Group: simGroup, Member: commit.Member, Instance: commit.Instance, Generation: commit.Generation}})
		if !ok {
			return ErrNotCoordinator
		}
		if err != nil {
			return err
		}
		life := n.incarnation
		lost := !s.quiet && s.rng.IntN(20) == 0
		s.sure(func() {
			sent := commit
			if s.mutant.commit != nil {
				s.mutant.commit(s, &sent)
			}
			entries, err := s.fsm.CommitOffsets(n.id, n.epochOf(life, s), sent)
			index := s.committed(n)
			call.applied = index
			if err == nil && errors.Join(entries...) == nil {
				s.checkCommit(commit, identity)
			}
			if lost {
				err = metadata.ErrTimeout
			}
			if n.up && n.incarnation == life {
				n.results = append(n.results, simResult{index: index, err: err, entries: entries, commit: call})
			}
		})
		return nil
	}, func(err error) { c.committed(s, &simCall{client: c, commit: commit}, err) })
}

// epochOf is the broker epoch of the life in which a proposal was made.
func (n *simNode) epochOf(life int, s *sim) int64 {
	if life == n.incarnation {
		return n.epoch
	}
	return -1 // whatever it was, it is not the present one
}

func (c *simClient) committed(s *sim, call *simCall, err error) {
	if err != nil {
		if errors.Is(err, ErrRebalanceInProgress) && c.state == clientStable {
			c.outside()
			return
		}
		c.failed(s, err)
		return
	}
	s.commits++
	o := call.commit.Offsets[0]
	if call.applied < s.oracle.reset[o.Partition] {
		return // told late: it has been set to another one since, or has expired
	}
	s.oracle.acked[o.Partition] = simAck{offset: o.Offset, generation: call.commit.Generation}
}

// identity is who a member is across restarts.
func (c *simClient) identity() string {
	if c.instance != "" {
		return c.instance
	}
	return c.id
}
