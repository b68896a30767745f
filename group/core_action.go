package group

import "github.com/millrace/millrace/metadata"

// ActionKind says what the driver has to do.
type ActionKind uint8

// Actions. Each names the fields of [Action] it sets.
const (
	// ActionPropose: propose Change and answer with [Changed], once, with the same Seq.
	ActionPropose ActionKind = iota + 1
	// ActionReload: answer with [Loaded] once the metadata is at least as new as the refusal that led to this.
	ActionReload
	// ActionJoin: answer Waiter with Join.
	ActionJoin
	// ActionSync: answer Waiter with Sync.
	ActionSync
	// ActionLeave: answer Waiter with Errs, or Err for all.
	ActionLeave
	// ActionAnswer: answer Waiter, or in want of one the event itself, with Err.
	ActionAnswer
	// ActionRebalance: a rebalance begins for Reason; to be counted and logged.
	ActionRebalance
	// ActionGeneration: a new generation stands; to be logged.
	ActionGeneration
	// ActionConsumer: answer Waiter with Consumer.
	ActionConsumer
	// ActionCame: Who is a member now that was none, from Address; to be remembered for people.
	ActionCame
	// ActionWent: Who is a member no more for Reason, as it said itself in Note, from Address; to be remembered for people.
	ActionWent
	// ActionRefused: Who was not let in, for Err; to be remembered for people.
	ActionRefused
)

var actionNames = [...]string{
	ActionPropose: "propose", ActionReload: "reload", ActionJoin: "join", ActionSync: "sync", ActionLeave: "leave",
	ActionAnswer: "answer", ActionRebalance: "rebalance", ActionGeneration: "generation", ActionConsumer: "consumer",
	ActionCame: "came", ActionWent: "went", ActionRefused: "refused",
}

// String returns the name of the action.
func (k ActionKind) String() string { return actionNames[k] }

// Action is one thing to do, in the order of the list that [Core.Step] returns.
type Action struct {
	Kind     ActionKind
	Waiter   Waiter
	Seq      uint64
	Change   metadata.GroupChange
	Join     JoinResult
	Sync     SyncResult
	Consumer ConsumerHeartbeatResult
	Errs     []error
	Err      error
	Reason   Reason
	Member   string // ActionRebalance: who is the reason, "" for nobody in particular
	// ActionGeneration: the generation and the number of its members.
	Generation int32
	Members    int
	// ActionCame and ActionWent. Address is where the request came from that says so, "" if none does.
	Who           *metadata.GroupMember
	Note, Address string
}

// Reason is why a group rebalances; the label of millrace_group_rebalances_total.
type Reason string

// Reasons.
const (
	ReasonJoin        Reason = "member-joined"
	ReasonLeave       Reason = "member-left"
	ReasonSession     Reason = "session-timeout"
	ReasonMetadata    Reason = "member-changed"
	ReasonLeader      Reason = "leader-rejoined"
	ReasonSync        Reason = "sync-timeout"
	ReasonStatic      Reason = "static-member-replaced"
	ReasonCoordinator Reason = "coordinator-failed"
	ReasonRevoke      Reason = "revocation-timeout"
	ReasonTopics      Reason = "topics-changed"
	ReasonForced      Reason = "forced"
)

// Reasons why a member goes that begin no rebalance themselves: there is one already.
const (
	ReasonLate         Reason = "rebalance-timeout" // it did not join again in time
	ReasonDisconnected Reason = "connection-ended"  // in its first join
)

// Reasons lists them all.
var Reasons = []Reason{
	ReasonJoin, ReasonLeave, ReasonSession, ReasonMetadata, ReasonLeader, ReasonSync, ReasonStatic, ReasonCoordinator, ReasonForced, ReasonRevoke, ReasonTopics,
}
