package transport

import (
	"fmt"
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"
)

// modulePath is the import path above this package, and ownPath this package's.
var (
	ownPath    = reflect.TypeFor[Server]().PkgPath()
	modulePath = strings.TrimSuffix(ownPath, "transport")
)

// guard runs fn. If it panics, the connection is closed and the panic logged, and guard returns false: but only when the panic stayed in
// package transport and those below it in the tree, or outside of the module. A panic that passed through another package of
// ours (log, replication, metadata …) may have left half a change in state that others share; such a one goes on and ends the
// process (N9).
func (c *Conn) guard(what string, fn func()) (ok bool) {
	defer func() {
		if ok {
			return
		}
		if through := panicOrigin(); through != "" {
			c.log().Error("panic below transport: the process ends", "what", what, "in", through)
			return // without recover: the runtime prints the panic with its stack
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
		case panicking && strings.HasPrefix(f.Function, modulePath) && !strings.HasPrefix(f.Function, ownPath+".") &&
			!strings.HasPrefix(f.Function, ownPath+"/"):
			return f.Function
		}
		if !more {
			return ""
		}
	}
}
