package transport

import (
	"fmt"
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"
)

// modulePath is the import path above this package, and ownPath this package's. The package at recordPath has no state: what it does with a
// client's bytes concerns that client only (I23).
var (
	ownPath    = reflect.TypeFor[Server]().PkgPath()
	modulePath = strings.TrimSuffix(ownPath, "transport")
	recordPath = modulePath + "log/record"
)

// guard runs fn. If it panics, the connection is closed and the panic logged, and guard returns false: but only when the panic stayed in
// package transport and those below it in the tree, in log/record, or outside of the module. A panic that passed through another package of
// ours (log, replication, metadata …) may have left half a change in state that others share; such a one goes on and ends the
// process (N9).
func (c *Conn) guard(what string, fn func()) (ok bool) {
	defer func() {
		if ok {
			return
		}
		if through := panicOrigin(); through != "" {
			// Without recover: the runtime prints the panic. Its stack ends at a servant's coroutine, so this is the place for it.
			c.log().Error("panic below transport: the process ends", "what", what, "in", through, "stack", string(debug.Stack()))
			return
		}
		if v := recover(); v != nil {
			c.log().Error("panic in a request handler: connection closed", "what", what, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			c.kill(fmt.Errorf("panic in %s: %v", what, v))
		}
	}()
	fn()
	return true
}

// panicOrigin looks at the frames between a panic and the innermost guard, and returns the first function that belongs to a package of
// the module outside of transport, or "".
func panicOrigin() string {
	pcs := make([]uintptr, 256)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	panicking := false // frames above runtime.gopanic are those of the deferred call
	for {
		f, more := frames.Next()
		switch {
		case f.Function == "runtime.gopanic":
			panicking = true
		case strings.HasPrefix(f.Function, ownPath+".(*Conn).guard") && panicking && !strings.Contains(f.Function, ".func"):
			return ""
		case panicking && within(f.Function, strings.TrimSuffix(modulePath, "/")) && !within(f.Function, ownPath) && !within(f.Function, recordPath):
			return f.Function
		}
		if !more {
			return ""
		}
	}
}

// within reports whether a function belongs to the package at path, or to one below it in the tree.
func within(function, path string) bool {
	rest, ok := strings.CutPrefix(function, path)
	return ok && (rest[0] == '.' || rest[0] == '/')
}
