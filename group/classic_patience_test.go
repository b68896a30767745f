package group

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// seldom is a client as kafkajs is: it beats its heart every wait, joins again when it is told to, and begins anew when it
// is not known any more.
type seldom struct {
	name    string
	id      string
	wait    time.Duration
	next    Instant // when it beats its heart; meaningless while it waits for a join
	joining bool
	renewed int // how often it had to take a new id
}

func (s *seldom) session(r *JoinRequest) {
	r.SessionTimeout, r.RebalanceTimeout = 9*time.Second, 5*time.Second
}

func (s *seldom) join(b *classicBench) {
	s.joining = true
	b.join(s.name, s.id, s.session)
}

// turn does what is due at b.now.
func (s *seldom) turn(b *classicBench) {
	if s.joining {
		r, ok := b.joins[s.name]
		if !ok {
			return
		}
		s.joining, s.id = false, r.Member
		if r.Err != nil {
			s.begin(b)
			return
		}
		b.sync(s.name, s.id, r.Generation)
		s.next = b.now.At + Instant(s.wait)
		return
	}
	if b.now.At < s.next {
		return
	}
	s.next = b.now.At + Instant(s.wait)
	switch err := b.beat(s.id); err {
	case nil:
	case ErrUnknownMember, ErrIllegalGeneration:
		s.begin(b)
	default:
		s.join(b)
	}
}

func (s *seldom) begin(b *classicBench) {
	s.id = ""
	s.renewed++
	s.join(b)
}

// A client that looks at its group as seldom as its rebalance timeout is long is not put out by every rebalance: two of
// them would put each other out for as long as both live (seen with kafkajs, whose fetches wait 5 s).
func TestMembersThatCouldNotKnowAreWaitedFor(t *testing.T) {
	for _, late := range []time.Duration{0, 10 * time.Millisecond, time.Second, 2500 * time.Millisecond} {
		t.Run(fmt.Sprint(late), func(t *testing.T) {
			b := newClassicBench(t)
			clients := []*seldom{{name: "a", wait: 5*time.Second + late}, {name: "b", wait: 5*time.Second + late}}
			clients[0].join(b)
			clients[0].turn(b)
			clients[1].join(b) // the moment after the other has begun to wait
			for range 3_000 {
				b.now.At += Instant(10 * time.Millisecond)
				if b.core.Deadline() <= b.now.At {
					b.step(&Tick{})
				}
				for _, c := range clients {
					c.turn(b)
				}
			}
			require.Len(t, b.record().Members, 2)
			require.Zero(t, clients[0].renewed+clients[1].renewed, "members were put out")
			require.EqualValues(t, 2, b.record().Generation)
		})
	}
}

// The patience with late members ends: one that was told and does not come is removed at the rebalance timeout, one that
// says nothing a little later, for those who have joined wait for an answer.
func TestPatienceWithLateMembersEnds(t *testing.T) {
	for _, tc := range []struct {
		name         string
		told         time.Duration // when a says something after the rebalance has begun, < 0 for never
		after, until time.Duration // when it is removed
	}{
		{"told at once", 0, 30 * time.Second, 30 * time.Second},
		{"told just before the end", 29500 * time.Millisecond, 30500 * time.Millisecond, 30500 * time.Millisecond},
		{"told after the end", 31500 * time.Millisecond, 32500 * time.Millisecond, 32500 * time.Millisecond},
		{"told at the last moment", 32900 * time.Millisecond, 33 * time.Second, 33 * time.Second},
		{"silent", -1, 33 * time.Second, 33 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newClassicBench(t)
			b.two(func(r *JoinRequest) { r.SessionTimeout = 45 * time.Second })
			began := b.now.At
			b.join("b", "b", says("new"))
			require.True(t, b.waits("b"))
			for b.waits("b") {
				b.now.At += Instant(100 * time.Millisecond)
				if tc.told >= 0 && b.now.At >= began+Instant(tc.told) && b.core.member("a") != nil {
					require.ErrorIs(t, b.beat("a"), ErrRebalanceInProgress) // it beats its heart from then on, and does not join
				}
				if b.core.Deadline() <= b.now.At {
					b.step(&Tick{})
				}
				require.Less(t, b.now.At, began+Instant(time.Minute))
			}
			took := time.Duration(b.now.At - began)
			require.GreaterOrEqual(t, took, tc.after)
			require.LessOrEqual(t, took, tc.until+200*time.Millisecond)
			require.Len(t, b.record().Members, 1)
		})
	}
}

// A member that waits in its first join, and whose connection ends, holds nobody up; it may come back with the id that it
// was handed. One that the group knows keeps its place for its session.
func TestJoinOfClosedConnection(t *testing.T) {
	b := newClassicBench(t)
	b.two()
	generation := b.record().Generation
	id := b.join("c", "", handshake).Member
	events := map[string]*Join{}
	join := func(name, id string) {
		r := &JoinRequest{
			Group: "g", Member: id, ClientID: "c", SessionTimeout: 10 * time.Second, RebalanceTimeout: 30 * time.Second,
			ProtocolType: "test", Protocols: []Protocol{{Name: "p", Metadata: []byte("m")}}, RequireKnownMember: true,
		}
		delete(b.joins, name)
		events[name] = &Join{JoinRequest: r, Waiter: name, NewID: name, Settings: &b.settings}
		b.step(events[name])
	}
	join("c", id)
	require.Equal(t, StatePreparing, b.core.classic.state)
	b.step(&Disconnected{events["c"]})
	require.Nil(t, b.core.member(id))
	b.join("a", "a")
	b.join("b", "b")
	b.pass(2 * time.Second)
	require.NoError(t, b.joins["a"].Err)
	require.Equal(t, generation+1, b.record().Generation)
	require.Len(t, b.record().Members, 2, "the two that are there")
	b.step(&Disconnected{events["c"]}) // told again, of what is over
	require.Len(t, b.core.classic.members, 2)

	b.pass(2*time.Second, "a", "b")
	join("c", id) // it was not gone for good
	require.True(t, b.waits("c"))
	join("a", "a")
	b.step(&Disconnected{events["a"]})
	require.Equal(t, 1, b.core.classic.joining)
	b.join("b", "b")
	b.pass(9 * time.Second)
	require.True(t, b.waits("b"), "a has its session to come back in")
	join("a", "a")
	b.pass(2 * time.Second)
	require.NoError(t, b.joins["b"].Err)
	require.Len(t, b.record().Members, 3)
}
