package group

import (
	"errors"
	"time"

	"github.com/millrace/millrace/metadata"
)

var (
	// ErrUnsupportedAssignor: the member asks for a server-side assignor that there is not.
	ErrUnsupportedAssignor = errors.New("unsupported assignor")
	// ErrInvalidRegex: the member subscribes by an expression that is none.
	ErrInvalidRegex = errors.New("invalid regular expression")
)

// ConsumerHeartbeatRequest is ConsumerGroupHeartbeat (KIP-848): join, heartbeat and leave in one. The coordinator keeps its
// slices.
type ConsumerHeartbeatRequest struct {
	Group string
	// Member is made by the client since version 1; "" before, when it joins.
	Member string
	// Epoch is that of the member as it knows it; 0 when it joins, -1 when it leaves, -2 when it leaves and, being static,
	// will be back within its session.
	Epoch int32
	// Instance is "" for a dynamic member. Rack is "" where it is not said.
	Instance, Rack       string
	ClientID, ClientHost string
	// Address is as in JoinRequest.
	Address string
	// RebalanceTimeout is how long the member may take to give up partitions; negative: as before.
	RebalanceTimeout time.Duration
	// Topics and Regex are what it subscribes to, as before if HasTopics and HasRegex say no. A Regex of "" is none.
	HasTopics, HasRegex bool
	Topics              []string
	Regex               string
	// Assignor is the one it asks for, "" for the group's, as before if HasAssignor says no.
	HasAssignor bool
	Assignor    string
	// Owned are the partitions that it has now, in any order; as before if HasOwned says no.
	HasOwned bool
	Owned    []metadata.TopicPartitions
}

// ConsumerHeartbeatResult answers ConsumerGroupHeartbeat.
type ConsumerHeartbeatResult struct {
	Err    error
	Member string
	Epoch  int32
	// HeartbeatInterval is when the next heartbeat is due.
	HeartbeatInterval time.Duration
	// Assignment is what the member may have, if HasAssignment; else that has not changed. It belongs to the coordinator.
	HasAssignment bool
	Assignment    []metadata.TopicPartitions
}

// ConsumerDescription is what ConsumerGroupDescribe tells of a consumer group.
type ConsumerDescription struct {
	Group                  string
	State                  State
	Epoch, AssignmentEpoch int32
	Assignor               string
	Members                []ConsumerDescribedMember // by id
	// Since is how long the group has been in State, Reason why its epoch grew last; for people.
	Since  time.Duration
	Reason string
}

// ConsumerDescribedMember is one member of a ConsumerDescription. Its slices belong to the coordinator.
type ConsumerDescribedMember struct {
	ID, Instance, Rack   string
	ClientID, ClientHost string
	Epoch                int32
	Topics               []string
	Regex                string
	// Assigned is what it may have, Revoking what it has yet to give up, Target what it is to have in the end.
	Assigned, Revoking, Target []metadata.TopicPartitions
	LastSeen                   time.Duration
	// Classic: it speaks the classic protocol (live migration).
	Classic bool
}

// ConsumerHeartbeat is ConsumerGroupHeartbeat, answered by [ActionConsumer].
type ConsumerHeartbeat struct {
	*ConsumerHeartbeatRequest
	Waiter Waiter
	// NewID is the id of a member that comes without one.
	NewID    string
	Settings *Settings
	Topics   Topics
}

func (*ConsumerHeartbeat) event() {}

// ConsumerPulse is a ConsumerGroupHeartbeat that says nothing but that a member is there, in its epoch (see
// [ConsumerHeartbeatRequest.says]). It is answered in the same step, in place, if that is all there is to say to it: no Action comes of
// it, and nothing of it is kept. Otherwise the step does nothing, and the request has to come again as a ConsumerHeartbeat.
type ConsumerPulse struct {
	Request  *ConsumerHeartbeatRequest
	Settings *Settings
	Topics   Topics

	// Answered says that Result is the answer.
	Answered bool
	Result   ConsumerHeartbeatResult
}

func (*ConsumerPulse) event() {}

// says reports whether a request says more than that its member is there.
func (r *ConsumerHeartbeatRequest) says() bool {
	return r.Epoch <= 0 || r.Member == "" || r.RebalanceTimeout >= 0 || r.HasTopics || r.HasRegex || r.HasAssignor || r.HasOwned || r.Rack != ""
}
