package peer

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/metadata"
)

// Errors of this package.
var (
	// ErrUnreachable: the request was not sent, so nothing has happened at the other end. It is a metadata.ErrNotSent.
	ErrUnreachable = fmt.Errorf("broker cannot be reached: %w", metadata.ErrNotSent)
	// ErrRefused: the other end does not want this connection; the error says why. It is an ErrUnreachable.
	ErrRefused = fmt.Errorf("it refused the connection: %w", ErrUnreachable)
	// ErrBroken: the connection ended, or time did, before the answer was here. The other end may have done what it was
	// asked for, so it is a metadata.ErrTimeout.
	ErrBroken = fmt.Errorf("no answer from the broker: %w", metadata.ErrTimeout)
	// ErrUnknownMethod: the other end has no receiver for the method of a call. It is a metadata.ErrInvalidRequest.
	ErrUnknownMethod = fmt.Errorf("unknown method: %w", metadata.ErrInvalidRequest)
	// ErrTooLarge: a body beyond Config.MaxBodyBytes. Nothing was sent. It is a metadata.ErrInvalidRequest.
	ErrTooLarge = fmt.Errorf("body is too large: %w", metadata.ErrInvalidRequest)
	// ErrClosed: Close was called.
	ErrClosed = errors.New("peer: closed")
)
