package group

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
)

// Join is JoinGroup. It may wait as long as the members' rebalance timeouts are. The caller calls gone if nobody waits for
// the answer any more, at any time and from any goroutine.
func (c *Coordinator) Join(r JoinRequest, done func(JoinResult)) (gone func()) {
	s := c.cfg.Settings()
	name := r.Instance
	if name == "" {
		name = r.ClientID
	}
	ev := &Join{JoinRequest: &r, Waiter: done, NewID: newMemberID(name), Settings: &s, Topics: c.topics.at(c.cfg.Store.Image())}
	if err := c.step(r.Group, ev); err != nil {
		done(JoinResult{Err: err, Member: r.Member, Generation: -1})
	}
	return func() {
		if e := c.lookup(r.Group, false); e != nil {
			c.with(e, &Disconnected{ev})
		}
	}
}

// newMemberID returns an id that nobody has or will have: client ids are what their owners left at the default (G9). It is
// short enough for a string of the protocol.
func newMemberID(name string) string {
	if most := 1<<15 - 1 - len("-00112233-4455-6677-8899-aabbccddeeff"); len(name) > most {
		name = strings.ToValidUTF8(name[:most], "")
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%s-%x-%x-%x-%x-%x", name, b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// Sync is SyncGroup. It may wait as long as the leader's session is.
func (c *Coordinator) Sync(r SyncRequest, done func(SyncResult)) {
	if err := c.step(r.Group, &Sync{SyncRequest: &r, Waiter: done, Topics: c.topics.at(c.cfg.Store.Image())}); err != nil {
		done(SyncResult{Err: err})
	}
}

// Heartbeat is Heartbeat. A coordinator that is still loading the group lets the member be. Nothing of r is kept: its strings may
// be somebody's memory.
func (c *Coordinator) Heartbeat(r HeartbeatRequest) error {
	ev := heartbeats.Get().(*Heartbeat)
	*ev.HeartbeatRequest = r
	err := c.beat(ev)
	*ev.HeartbeatRequest = HeartbeatRequest{}
	heartbeats.Put(ev)
	if errors.Is(err, ErrCoordinatorLoading) {
		return nil
	}
	return err
}

// heartbeats are events to be used again: cores do not keep them.
var heartbeats = sync.Pool{New: func() any { return &Heartbeat{new(HeartbeatRequest)} }}

// beat is step for a heartbeat. Of a group that is at work no name is kept.
func (c *Coordinator) beat(ev *Heartbeat) error {
	if e := c.lookup(ev.Group, false); e != nil && c.cfg.Leased() {
		if err, ok := c.with(e, ev); ok {
			return err
		}
	}
	return c.step(strings.Clone(ev.Group), ev)
}

// Leave is LeaveGroup: one error or nil for each member, or an error for all.
func (c *Coordinator) Leave(r LeaveRequest, done func([]error, error)) {
	if err := c.step(r.Group, &Leave{LeaveRequest: &r, Waiter: done}); err != nil {
		done(nil, err)
	}
}

// Delete deletes groups without members, with their offsets: one error or nil for each.
func (c *Coordinator) Delete(groups []string, done func([]error)) {
	gather(groups, done, func(group string, done func(error)) {
		answer := func(err error) { done(fromMetadata(err)) }
		if err := c.step(group, &Delete{Waiter: answer}); err != nil {
			answer(err)
		}
	})
}
