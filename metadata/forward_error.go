package metadata

import (
	"encoding/json"
	"errors"
)

// sentinelNames are the names under which sentinels travel between brokers. A name never changes.
var sentinelNames = map[string]error{
	"topic_exists":               ErrTopicExists,
	"unknown_topic":              ErrUnknownTopic,
	"unknown_topic_id":           ErrUnknownTopicID,
	"unknown_partition":          ErrUnknownPartition,
	"unknown_broker":             ErrUnknownBroker,
	"invalid_topic":              ErrInvalidTopic,
	"invalid_partitions":         ErrInvalidPartitions,
	"invalid_replication_factor": ErrInvalidReplicationFactor,
	"invalid_assignment":         ErrInvalidAssignment,
	"invalid_config":             ErrInvalidConfig,
	"invalid_request":            ErrInvalidRequest,
	"duplicate_resource":         ErrDuplicateResource,
	"policy_violation":           ErrPolicyViolation,
	"not_controller":             ErrNotController,
	"stale":                      ErrStale,
	"stale_broker_epoch":         ErrStaleBrokerEpoch,
	"fenced_leader_epoch":        ErrFencedLeaderEpoch,
	"ineligible_replica":         ErrIneligibleReplica,
	"duplicate_broker":           ErrDuplicateBroker,
	"timeout":                    ErrTimeout,
	"busy":                       ErrBusy,
	"closed":                     ErrClosed,
	"cluster_mismatch":           ErrClusterMismatch,
	"corrupt":                    ErrCorrupt,
	"failed":                     ErrFailed,
	"removed":                    ErrRemoved,
	"election_not_needed":        ErrElectionNotNeeded,
	"preferred_leader_unfit":     ErrPreferredLeaderUnfit,
	"no_eligible_leader":         ErrNoEligibleLeader,
	"no_reassignment":            ErrNoReassignment,
	"invalid_feature_level":      ErrInvalidFeatureLevel,
	"not_coordinator":            ErrNotCoordinator,
	"group_not_found":            ErrGroupNotFound,
	"group_not_empty":            ErrGroupNotEmpty,
	"unknown_member":             ErrUnknownMember,
	"fenced_instance":            ErrFencedInstance,
	"illegal_generation":         ErrIllegalGeneration,
	"stale_member_epoch":         ErrStaleMemberEpoch,
	"producer_fenced":            ErrProducerFenced,
	"invalid_producer_epoch":     ErrInvalidProducerEpoch,
	"invalid_producer_mapping":   ErrInvalidProducerIDMapping,
	"invalid_transaction_state":  ErrInvalidTransactionState,
	"concurrent_transactions":    ErrConcurrentTransactions,
	"transaction_not_found":      ErrTransactionNotFound,
	"not_sent":                   ErrNotSent,
}

// wireError is an error on its way from the controller: its text, the sentinels it matches, and the parts of an *Error.
type wireError struct {
	Text  string   `json:"text"`
	Kinds []string `json:"kinds,omitempty"`
	What  string   `json:"what,omitempty"`
	Why   string   `json:"why,omitempty"`
	Fix   string   `json:"fix,omitempty"`
}

func newWireError(err error) *wireError {
	if err == nil {
		return nil
	}
	w := &wireError{Text: err.Error()}
	if e, ok := errors.AsType[*Error](err); ok {
		w.What, w.Why, w.Fix = e.What, e.Why, e.Fix
	}
	for name, sentinel := range sentinelNames {
		if errors.Is(err, sentinel) {
			w.Kinds = append(w.Kinds, name)
		}
	}
	return w
}

// err returns the error as it was: the same text, the same matches of sentinels and of *Error. A nil wireError is no error.
// A kind that this binary does not know is left out.
func (w *wireError) err() error {
	if w == nil {
		return nil
	}
	var kinds []error
	for _, name := range w.Kinds {
		if sentinel, ok := sentinelNames[name]; ok {
			kinds = append(kinds, sentinel)
		}
	}
	f := &forwardedError{text: w.Text, inner: kinds}
	if w.What == "" && w.Why == "" && w.Fix == "" {
		return f
	}
	e := &Error{What: w.What, Why: w.Why, Fix: w.Fix}
	if len(kinds) > 0 {
		e.Kind = kinds[0]
	}
	if len(kinds) <= 1 && e.Error() == w.Text {
		return e
	}
	f.inner = append([]error{e}, kinds...)
	return f
}

// forwardedError is an error that another broker returned.
type forwardedError struct {
	text  string
	inner []error
}

func (e *forwardedError) Error() string   { return e.text }
func (e *forwardedError) Unwrap() []error { return e.inner }

// errorList is a list of errors, some of them nil, that travels as JSON.
type errorList []error

func (l errorList) MarshalJSON() ([]byte, error) {
	out := make([]*wireError, len(l))
	for i, err := range l {
		out[i] = newWireError(err)
	}
	return json.Marshal(out)
}

func (l *errorList) UnmarshalJSON(b []byte) error {
	var in []*wireError
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	*l = make(errorList, len(in))
	for i, w := range in {
		(*l)[i] = w.err()
	}
	return nil
}

func (l errorList) common() error { return commonError(len(l), func(i int) error { return l[i] }) }

// commonError returns the first of n errors if all of them match ErrNotController.
func commonError(n int, at func(i int) error) error {
	for i := range n {
		if !errors.Is(at(i), ErrNotController) {
			return nil
		}
	}
	if n == 0 {
		return nil
	}
	return at(0)
}
