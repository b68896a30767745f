package txn

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/metadata"
)

// simClient is one instance of a producer. Several may go under one id: a new one fences those before it, which do not know
// and go on.
type simClient struct {
	n       int
	id      string
	version int8
	pair    pair
	// do is the request under way, made again until it has an answer of use; nil: the next is to be chosen.
	do          func(*sim)
	waiting     bool
	seq         int // of requests; an answer to an older one is dropped
	since       Instant
	pausedUntil Instant

	txn       *simTxn // nil: none is open
	left      int     // what is still to be done in it
	added     [simPartitions]bool
	grouped   bool
	sequences [simPartitions]int32
	renew     bool // what was sent may have arrived or not: the sequences begin anew with the next epoch
	dead      bool
	retired   bool
	commits   int
}

// simTxn is a transaction as its producer sees it.
type simTxn struct {
	client    *simClient
	records   []*simRecord
	committed bool // what was asked for
	told      bool // that it is so
}

type simRecord struct {
	txn       *simTxn
	member    Membership
	partition int32
	sequence  int32
	acked     bool
}

// simCall is a request that a broker works on. It is the Waiter of its event.
type simCall struct {
	client *simClient // nil: an administrator's
	seq    int
	node   *simNode
	done   bool
	since  Instant
	fn     func(error, pair)
}

func (c *simClient) String() string { return fmt.Sprintf("producer %d of %s", c.n, c.id) }

func (s *sim) newClient(id string) *simClient {
	s.instances++
	return &simClient{n: s.instances, id: id, version: int8(1 + s.rng.IntN(2)), pair: noPair, renew: true}
}

// act lets a producer do what it would do next.
func (c *simClient) act(s *sim) {
	switch {
	case c.retired || s.now < c.pausedUntil:
		return
	case c.dead:
		if s.rng.IntN(4) == 0 {
			*c = *s.newClient(c.id)
		}
		return
	case c.waiting && s.now-c.since < Instant(4*time.Second):
		return
	case c.waiting:
		c.waiting = false
		c.seq++ // it asks again
	case !s.quiet && s.rng.IntN(150) == 0:
		c.dead = true
		s.tracef("%v dies", c)
		return
	}
	if c.do == nil {
		c.choose(s)
	}
	if c.do != nil {
		c.do(s)
	}
}

// choose picks what comes next.
func (c *simClient) choose(s *sim) {
	switch {
	case c.pair == noPair || c.renew && c.txn == nil:
		c.do = c.init
	case c.txn == nil:
		if s.quiet && c.commits > 0 && s.oracle.healing {
			return
		}
		c.txn = &simTxn{client: c}
		s.oracle.txns = append(s.oracle.txns, c.txn)
		c.left, c.added, c.grouped = 1+s.rng.IntN(4), [simPartitions]bool{}, false
	case c.left > 0:
		c.left--
		if s.rng.IntN(4) == 0 {
			c.do = c.offsets(s)
			return
		}
		c.do = c.send(s)
	default:
		c.finish(s.quiet || s.rng.IntN(3) > 0)
	}
}

// again reports whether a request is to be repeated after an error.
func again(err error) bool {
	for _, x := range []error{metadata.ErrConcurrentTransactions, ErrNotCoordinator, ErrUnavailable, errSimNotLeader} {
		if errors.Is(err, x) {
			return true
		}
	}
	return false
}

func (c *simClient) init(s *sim) {
	ev := &Init{InitRequest: InitRequest{ID: c.id, Timeout: simTimeout, ProducerID: c.pair.id, ProducerEpoch: c.pair.epoch}}
	c.ask(s, ev, func(err error, p pair) {
		switch {
		case err == nil:
			c.do, c.renew = nil, false
			s.given(c, p)
		case !again(err):
			c.dead = true
		}
	})
}

// send produces a batch, after its partition was added if that is needed.
func (c *simClient) send(s *sim) func(*sim) {
	partition := int32(s.rng.IntN(simPartitions))
	var r *simRecord
	return func(s *sim) {
		if c.version == 1 && !c.added[partition] {
			ev := &Add{ProducerID: c.pair.id, ProducerEpoch: c.pair.epoch, Partitions: []metadata.TopicPartitions{{TopicID: simTopicID, Partitions: []int32{partition}}}}
			c.ask(s, ev, func(err error, _ pair) {
				c.added[partition] = err == nil
				c.failed(s, err)
			})
			return
		}
		if r == nil {
			r = &simRecord{txn: c.txn, member: Membership{c.id, c.pair.id, c.pair.epoch}, partition: partition, sequence: c.sequences[partition]}
			c.sequences[partition]++
			c.txn.records = append(c.txn.records, r)
		}
		n := s.nodes[s.rng.IntN(len(s.nodes))]
		if p := s.fsm.Image().Topic("t").Partitions[partition]; p.Leader >= 0 && s.rng.IntN(10) > 0 {
			n = s.nodes[p.Leader]
		}
		call := c.call(s, n, func(err error, _ pair) {
			r.acked = err == nil
			if err == nil {
				c.do = nil
			}
			c.failed(s, err)
		})
		s.send(func() {
			if n.up {
				s.produce(n, r, func(err error) { s.answered(call, err, noPair) })
			}
		})
	}
}

// offsets commits an offset with the transaction.
func (c *simClient) offsets(s *sim) func(*sim) {
	s.oracle.lastOffset++
	value := s.oracle.lastOffset
	return func(s *sim) {
		if c.version == 1 && !c.grouped {
			ev := &Add{ProducerID: c.pair.id, ProducerEpoch: c.pair.epoch, Groups: []string{simGroup}}
			c.ask(s, ev, func(err error, _ pair) {
				c.grouped = err == nil
				c.failed(s, err)
			})
			return
		}
		by, _ := s.fsm.Image().Coordinator(metadata.GroupCoordinator, simGroup)
		if by < 0 {
			return
		}
		n := s.nodes[by]
		call := c.call(s, n, func(err error, _ pair) {
			if err == nil {
				c.do = nil
			}
			c.failed(s, err)
		})
		commit := metadata.TransactionOffsets{
			TransactionalID: c.id, ProducerID: c.pair.id, ProducerEpoch: c.pair.epoch, Implicit: c.version == 2,
			OffsetCommit: metadata.OffsetCommit{Group: simGroup, Generation: -1, Time: s.wall(), Offsets: []metadata.OffsetEntry{
				{TopicID: simTopicID, Partition: int32(slices.Index(simIDs, c.id)), Offset: value, LeaderEpoch: -1},
			}},
		}
		s.send(func() {
			if !n.up {
				return
			}
			commit := s.fsm.Numbered(commit)
			s.propose(n, c.id, func(at metadata.ReplicaBatch) error {
				_, err := s.fsm.CommitTransactionOffsetsAt(at, commit)
				if err == nil {
					s.oracle.pending[s.fsm.Image().Transaction(commit.TransactionalID).Number] = value
				}
				return err
			}, func(err error) { s.answered(call, fromMetadata(err), noPair) })
		})
	}
}

// failed decides what to do about an error in a transaction.
func (c *simClient) failed(s *sim, err error) {
	switch {
	case err == nil || again(err):
	case errors.Is(err, metadata.ErrProducerFenced), errors.Is(err, metadata.ErrInvalidProducerIDMapping):
		c.dead = true
	case s.rng.IntN(4) == 0:
		c.dead = true
	case s.rng.IntN(4) == 0:
		c.txn, c.renew, c.do = nil, true, nil // it asks for another epoch with what it has (KIP-360)
	default:
		c.renew = c.version == 1
		c.finish(false)
	}
}

// finish ends the transaction.
func (c *simClient) finish(commit bool) {
	t := c.txn
	t.committed = commit
	c.do = func(s *sim) {
		ev := &End{EndRequest: EndRequest{ID: c.id, ProducerID: c.pair.id, ProducerEpoch: c.pair.epoch, Commit: commit, Version: c.version}}
		c.ask(s, ev, func(err error, p pair) {
			switch {
			case err == nil:
				s.tracef("%v has ended: commit=%v, goes on with %v", c, commit, p)
				t.told, c.txn, c.do = true, nil, nil
				if c.version == 2 {
					s.given(c, p)
				}
				if commit {
					s.commits++
					c.commits++
				} else {
					s.aborts++
				}
			case again(err):
			case s.rng.IntN(2) == 0:
				c.dead = true
			default:
				c.txn, c.renew, c.do = nil, true, nil
			}
		})
	}
}

// call begins a request to a broker.
func (c *simClient) call(s *sim, n *simNode, fn func(error, pair)) *simCall {
	c.waiting, c.since = true, s.now
	c.seq++
	return &simCall{client: c, seq: c.seq, node: n, since: s.now, fn: fn}
}

// ask sends a request to the coordinator, or to who is not.
func (c *simClient) ask(s *sim, ev Event, fn func(error, pair)) {
	n := s.nodes[s.rng.IntN(len(s.nodes))]
	if by, _ := s.fsm.Image().Coordinator(metadata.TransactionCoordinator, c.id); by >= 0 && s.rng.IntN(10) > 0 {
		n = s.nodes[by]
	}
	s.ask(c.call(s, n, fn), n, c.id, ev)
}

func (s *sim) ask(call *simCall, n *simNode, id string, ev Event) {
	if call == nil {
		call = &simCall{node: n, since: s.now, fn: func(error, pair) {}}
	}
	s.send(func() {
		if !n.up {
			return
		}
		r := requestOf(ev)
		r.Waiter, r.Until = call, s.now+s.hold
		s.calls = append(s.calls, call)
		s.step(n, id, ev)
	})
}

// callOf returns the call of a request, nil for other events.
func callOf(ev Event) *simCall {
	switch ev.(type) {
	case *Init, *Add, *End, *Abort:
		return requestOf(ev).Waiter.(*simCall)
	}
	return nil
}

// answered sends an answer on its way to the client.
func (s *sim) answered(call *simCall, err error, p pair) {
	if call.done {
		s.failf("a request was answered twice")
	}
	call.done = true
	s.calls = slices.DeleteFunc(s.calls, func(c *simCall) bool { return c == call })
	s.send(func() {
		if c := call.client; c != nil && c.seq == call.seq && c.waiting {
			c.waiting = false
			call.fn(err, p)
		}
	})
}
