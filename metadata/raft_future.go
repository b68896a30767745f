package metadata

import (
	"reflect"

	"github.com/hashicorp/raft"
)

// endingWith is a future of raft's that nobody has waited for yet, which has an answer, raft.ErrRaftShutdown, also once over
// is closed. Raft by itself forgets some when it shuts down: questions that its main goroutine had not taken, and entries
// that were committed and waited for the goroutine that applies them. Who waits for one would do so for ever, and Close for
// him. The field is there for that, raft only does not fill it in; nobody but the waiter reads it.
//
// There is no way to it without reflection, and none around it: a future has Error, which waits, and nothing else, so that a
// goroutine which waits in the caller's place would be left behind for each question that is forgotten.
// TestFuturesEnd fails with a version of raft in which the field is gone, or does something else.
func endingWith[F raft.Future](f F, over chan struct{}) F {
	if v := reflect.Indirect(reflect.ValueOf(f)); v.Kind() == reflect.Struct {
		if field := v.FieldByName("ShutdownCh"); field.IsValid() && field.CanSet() && field.Type() == reflect.TypeOf(over) {
			field.Set(reflect.ValueOf(over))
		}
	}
	return f
}
