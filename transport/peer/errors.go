package peer

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/millrace/millrace/metadata"
)

// Errors of this package.
var (
	// ErrUnreachable: the request was not sent. Nothing has happened at the other end.
	ErrUnreachable = errors.New("broker cannot be reached")
	// ErrBroken: the connection ended, or time did, before the answer was here. The other end may have done what it was
	// asked for, so it is a metadata.ErrTimeout.
	ErrBroken = fmt.Errorf("no answer from the broker: %w", metadata.ErrTimeout)
	// ErrRefused: the other end does not want this connection; the error says why. It is an ErrUnreachable.
	ErrRefused = fmt.Errorf("%w: it refused the connection", ErrUnreachable)
	// ErrUnknownMethod: the other end has no receiver for the method of a call.
	ErrUnknownMethod = errors.New("unknown method")
	// ErrTooLarge: a body beyond Config.MaxBodyBytes. Nothing was sent.
	ErrTooLarge = errors.New("body is too large")
	// ErrClosed: Close was called.
	ErrClosed = errors.New("peer: closed")
)

// kinds are the sentinels that survive the trip: errors.Is finds them at the caller. Their texts are their names on the
// wire.
var kinds = []error{
	metadata.ErrTopicExists, metadata.ErrUnknownTopic, metadata.ErrUnknownTopicID, metadata.ErrUnknownPartition, metadata.ErrUnknownBroker,
	metadata.ErrInvalidTopic, metadata.ErrInvalidPartitions, metadata.ErrInvalidReplicationFactor, metadata.ErrInvalidAssignment,
	metadata.ErrInvalidConfig, metadata.ErrInvalidRequest, metadata.ErrDuplicateResource, metadata.ErrPolicyViolation,
	metadata.ErrNotController, metadata.ErrStale, metadata.ErrStaleBrokerEpoch, metadata.ErrFencedLeaderEpoch,
	metadata.ErrIneligibleReplica, metadata.ErrDuplicateBroker, metadata.ErrTimeout, metadata.ErrBusy, metadata.ErrClosed,
	metadata.ErrClusterMismatch, metadata.ErrCorrupt, metadata.ErrFailed,
	ErrUnknownMethod, ErrTooLarge,
}

// errorText is an error on the wire: a metadata.Error with its lines, or any other with its text.
type errorText struct {
	Kind string `json:"kind,omitempty"`
	What string `json:"what,omitempty"`
	Why  string `json:"why,omitempty"`
	Fix  string `json:"fix,omitempty"`
	Text string `json:"text,omitempty"`
}

// maxErrorText bounds each line of an error on the wire.
const maxErrorText = 4 << 10

func cut(s string) string { return s[:min(len(s), maxErrorText)] }

func errorTextOf(err error) *errorText {
	t := &errorText{}
	for _, kind := range kinds {
		if errors.Is(err, kind) {
			t.Kind = kind.Error()
			break
		}
	}
	if e, ok := errors.AsType[*metadata.Error](err); ok {
		t.What, t.Why, t.Fix = cut(e.What), cut(e.Why), cut(e.Fix)
	} else {
		t.Text = cut(err.Error())
	}
	return t
}

// err makes an error of the text again.
func (t *errorText) err() error {
	var kind error
	for _, k := range kinds {
		if k.Error() == t.Kind {
			kind = k
		}
	}
	switch {
	case t.What != "" || t.Why != "" || t.Fix != "":
		return &metadata.Error{Kind: kind, What: t.What, Why: t.Why, Fix: t.Fix}
	case kind != nil:
		return &remoteError{kind: kind, text: t.Text}
	default:
		return errors.New(t.Text)
	}
}

// remoteError is an error of another broker: its text, and the sentinel it matched there.
type remoteError struct {
	kind error
	text string
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.kind }

func decodeError(b []byte) error {
	var t errorText
	if err := json.Unmarshal(b, &t); err != nil {
		return fmt.Errorf("peer: an error that can't be read: %w", err)
	}
	return t.err()
}
