package kafka

import (
	"context"
	"net"
	"time"

	"github.com/millrace/millrace/group"
	"github.com/millrace/millrace/metadata"
)

// Groups is what the handlers ask of the group coordinator of this broker;
// *group.Coordinator is one.
type Groups interface {
	Join(r group.JoinRequest, done func(group.JoinResult)) (gone func())
	Sync(r group.SyncRequest, done func(group.SyncResult))
	Heartbeat(r group.HeartbeatRequest) error // keeps no string of r
	Leave(r group.LeaveRequest, done func([]error, error))
	Commit(r group.CommitRequest, done func([]error, error))
	CommitTransaction(r group.CommitTransactionRequest, done func([]error, error))
	Fetch(r group.FetchRequest) ([]group.FetchedOffset, error)
	// Landed waits until what was decided about a group is committed, or ctx ends.
	Landed(ctx context.Context, name string)
	Describe(name string) (group.Description, error)
	List() ([]group.Listing, error)
	Delete(groups []string, done func([]error))
	ConsumerHeartbeat(r group.ConsumerHeartbeatRequest, done func(group.ConsumerHeartbeatResult))
	// ConsumerPulse answers one that says nothing, if there is nothing to say; it keeps no string of r.
	ConsumerPulse(r group.ConsumerHeartbeatRequest) (result group.ConsumerHeartbeatResult, answered bool)
	DescribeConsumers(name string) (group.ConsumerDescription, error)
	DeleteOffsets(name string, partitions []group.TopicIDPartition, done func([]error, error))
}

// groupOperations is the bit field of the operations that exist for a group.
const groupOperations int32 = 1<<3 | 1<<6 | 1<<8 | 1<<10 | 1<<11

// landedWait bounds how long the description of groups waits for changes under way: a
// quorum that answers at all answers by then, and without one what was last
// committed is worth more than nothing.
const landedWait = 500 * time.Millisecond

// awaitLanded waits until all that clients were answered about these groups is
// committed: a leave is answered before, since clients don't wait for it, and a
// description that still has the member would contradict the answer.
func (c *call) awaitLanded(groups []string) {
	ctx, cancel := context.WithTimeout(c.h.ctx, landedWait)
	defer cancel()
	for _, name := range groups {
		c.h.cfg.Groups.Landed(ctx, name)
	}
}

// answerGroup adapts a handler that hands its request to the coordinator, which
// answers when it can. The request is the handler's own: strings are copies, and
// bytes must be copied before they are handed on.
func answerGroup[Q any, R request[Q]](f func(*Handlers, *call, R)) func(*Handlers, *call) {
	return func(h *Handlers, c *call) {
		defer c.release()
		msg := R(new(Q))
		if c.decode(msg) {
			f(h, c, msg)
		}
	}
}

// groupCode maps an error of the coordinator, and counts and returns its code.
func (c *call) groupCode(err error) int16 { return c.error(groupCode(err)) }

// clientHost is where the client of a call is, as Kafka shows it: /10.0.0.7.
func (c *call) clientHost() string {
	address := c.req.Conn.RemoteAddr().String()
	if host, _, err := net.SplitHostPort(address); err == nil {
		return "/" + host
	}
	return "/" + address
}

// clientAddress is where the connection of a call comes from, with its port.
func (c *call) clientAddress() string { return c.req.Conn.RemoteAddr().String() }

// text is the string behind a pointer, "" for null.
func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// optional is null for "".
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// findPartition resolves a partition for the coordinator, which knows topics by
// their ids alone: what is stored for one incarnation of a topic is never told to
// the next (M21).
func findPartition(topic *metadata.Topic, partition int32) (group.TopicIDPartition, error) {
	if topic == nil {
		return group.TopicIDPartition{}, metadata.ErrUnknownTopic
	}
	if partition < 0 || int(partition) >= len(topic.Partitions) {
		return group.TopicIDPartition{}, metadata.ErrUnknownPartition
	}
	return group.TopicIDPartition{TopicID: topic.ID, Partition: partition}, nil
}

// findTopic returns the topic that a request names: by id where the version has
// ids, else by name. The error is the one for each of its partitions.
func findTopic(image *metadata.Image, byID bool, name string, id [16]byte) (*metadata.Topic, error) {
	if byID {
		if t := image.TopicByID(id); t != nil {
			return t, nil
		}
		return nil, metadata.ErrUnknownTopicID
	}
	if t := image.Topic(name); t != nil {
		return t, nil
	}
	return nil, metadata.ErrUnknownTopic
}
