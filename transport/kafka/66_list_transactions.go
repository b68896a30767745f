package kafka

import (
	"fmt"
	"regexp"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/group/txn"
	"github.com/millrace/millrace/metadata"
)

// ListTransactions (key 66), versions 0 to 2 (KIP-664).
//
//	v1    only those that have been open for so long (KIP-994)
//	v2    only ids that a regular expression matches as a whole (KIP-1152)
//
// It lists what this broker coordinates. States that there are not are told back, and match
// nothing; with none of the others asked for, nothing is listed.

// otherTransactionStates are states that Kafka has and we do not: they exist in one
// coordinator's memory only.
var otherTransactionStates = map[string]bool{"Dead": true, "PrepareEpochFence": true}

// maxTransactionPattern bounds the regular expression that a client may have compiled.
const maxTransactionPattern = 1000

func (h *Handlers) listTransactions(c *call, req *kmsg.ListTransactionsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ListTransactionsResponse)
	filter := txn.Filter{ProducerIDs: req.ProducerIDFilters}
	for _, name := range req.StateFilters {
		if s, ok := transactionState(name); ok {
			filter.States = append(filter.States, s)
		} else if !otherTransactionStates[name] {
			resp.UnknownStateFilters = append(resp.UnknownStateFilters, name)
		}
	}
	if req.Version >= 1 && req.DurationFilterMillis >= 0 {
		filter.LongerThan = time.Duration(min(req.DurationFilterMillis, maxRetention)) * time.Millisecond
	}
	if req.Version >= 2 && text(req.TransactionalIDPattern) != "" {
		pattern, err := compilePattern(*req.TransactionalIDPattern)
		if err != nil {
			resp.ErrorCode = c.error(codeInvalidRegularExpression)
			return resp
		}
		filter.Match = pattern.MatchString
	}
	var found []*metadata.Transaction
	var err error
	if len(filter.States) > 0 || len(req.StateFilters) == 0 {
		found, err = h.cfg.Transactions.List(filter)
	}
	resp.ErrorCode = c.groupCode(err)
	for _, t := range found {
		rs := kmsg.NewListTransactionsResponseTransactionState()
		rs.TransactionalID, rs.ProducerID, rs.TransactionState = t.ID, t.ProducerID, t.State.String()
		resp.TransactionStates = append(resp.TransactionStates, rs)
	}
	return resp
}

// compilePattern compiles an expression that must match the whole of an id.
func compilePattern(pattern string) (*regexp.Regexp, error) {
	if len(pattern) > maxTransactionPattern {
		return nil, fmt.Errorf("a regular expression of %d bytes, at most %d are taken", len(pattern), maxTransactionPattern)
	}
	if _, err := regexp.Compile(pattern); err != nil { // by itself: a pattern must not close our group
		return nil, err
	}
	return regexp.Compile(`\A(?:` + pattern + `)\z`)
}
