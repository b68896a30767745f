package metadata

import (
	"encoding/json"
	"errors"
	"fmt"
)

// EncodeError returns an error, not nil, in the form in which errors travel between brokers; DecodeError makes it an
// error again: the same text, the same matches of this package's sentinels and of *Error.
func EncodeError(err error) []byte {
	b, encoding := json.Marshal(newWireError(err))
	if encoding != nil {
		panic(fmt.Sprintf("metadata: encode an error: %v", encoding)) // it is made of strings
	}
	return b
}

// DecodeError reads what EncodeError wrote. What can't be read is an error too.
func DecodeError(b []byte) error {
	var w *wireError
	if err := json.Unmarshal(b, &w); err != nil {
		return fmt.Errorf("an error of another broker that can't be read: %w", err)
	}
	if w == nil {
		return errors.New("an error of another broker that says nothing")
	}
	return w.err()
}
