package txn

import "github.com/millrace/millrace/metadata"

// ActionKind is what a driver has to do.
type ActionKind uint8

// What a core asks for, with the fields of Action that matter.
const (
	ActionPropose  ActionKind = iota + 1 // Change, to be answered with Changed{Seq}
	ActionAllocate                       // a new producer id, to be answered with Allocated{Seq}
	ActionAdd                            // Addition of Add, whose outcome answers Add.Waiter; give Add back after ErrConcurrentTransactions
	ActionInit                           // Waiter, Init
	ActionEnd                            // Waiter, End
	ActionAnswer                         // Waiter, Err
	ActionEnded                          // a decision is committed: Reason
	ActionReload                         // a Seen with the present record, please
)

// Action is one thing to do.
type Action struct {
	Kind   ActionKind
	Seq    uint64
	Waiter Waiter
	Err    error

	Change   metadata.TransactionChange
	Addition metadata.TransactionAddition
	Add      *Add
	Init     InitResult
	End      EndResult
	Reason   Reason
}

// Reason is why a transaction has ended.
type Reason string

// Reasons. A producer that starts anew while the transaction of its predecessor is open has it aborted: ReasonFence.
const (
	ReasonCommit  Reason = "commit"
	ReasonAbort   Reason = "abort"
	ReasonFence   Reason = "fence"
	ReasonTimeout Reason = "timeout"
	ReasonOrder   Reason = "order"
)

// Reasons are all of them.
var Reasons = []Reason{ReasonCommit, ReasonAbort, ReasonFence, ReasonTimeout, ReasonOrder}
