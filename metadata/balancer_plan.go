package metadata

import "time"

// MoveState is how far a move of the balancer is.
type MoveState string

// The states of a move. Waiting moves are planned and held back by the throttle of moves at a time; the last three are
// final.
const (
	MoveWaiting   MoveState = "waiting"
	MoveMoving    MoveState = "moving"
	MoveDone      MoveState = "done"
	MoveFailed    MoveState = "failed"
	MoveCancelled MoveState = "cancelled"
)

// BalancerMove takes one replica of a partition from one broker to another.
type BalancerMove struct {
	TopicPartition
	// From loses its replica and To gets one; NoBroker when there is none: a replica is only added, or only removed.
	From, To BrokerID
	// Replicas is the partition's assignment once the move is done; the first is the preferred leader.
	Replicas []BrokerID
	// Reason is a sentence that says why, for people: "broker 4 joined and has 0 of 93 replicas". Never empty.
	Reason string
	State  MoveState
	// Trouble says why a move waits longer than it should, or failed; else "".
	Trouble string
	// BytesMoved of BytesTotal are on To, both -1 while not known here.
	BytesMoved, BytesTotal int64
	// BytesPerSecond is how fast To gets them at the moment, -1 while not known.
	BytesPerSecond int64
	// Began is zero while waiting; Ended is zero until the state is final.
	Began, Ended time.Time
}

// BalancerPlan is what the balancer would do, or does.
type BalancerPlan struct {
	// ID names the plan: moves of one plan have it in common across controllers. "" when there is nothing to do.
	ID string
	// Trigger says in words what asked for it: "broker 4 joined", "ordered by hand"; "" when nothing did.
	Trigger string
	// Moves are in the order in which they are begun.
	Moves []BalancerMove
	// Cannot says what the balancer would like to do and cannot, each with its reason.
	Cannot []string
	// ThrottleBytesPerSecond bounds what each broker sends and receives for moves.
	ThrottleBytesPerSecond int64
	// Spread is the smallest and largest number of replicas that a broker has now, and has once all is done.
	Spread, SpreadAfter [2]int
}

// BalancerStatus is what the balancer does.
type BalancerStatus struct {
	// Mode is millrace.balancer.mode: off, node-change, continuous.
	Mode string
	// Running is true while moves are under way or wait.
	Running bool
	// BytesRemaining are still to be copied, by moves under way and by those that wait; -1 while not known.
	BytesRemaining int64
	// ETA is how long that takes at the present rate, -1 while not known.
	ETA time.Duration
	BalancerPlan
}
