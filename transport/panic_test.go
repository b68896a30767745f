package transport

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// badResponse can't be encoded.
type badResponse struct{ kmsg.Response }

func (badResponse) AppendTo([]byte) []byte { panic("encoder broken") }

// TestPanicIsolation is N9: a panic in a handler, in a function it left behind or in an encoder closes its connection only, with the
// stack in the log, and everything of the connection is released.
func TestPanicIsolation(t *testing.T) {
	f := func(want string, handle func(*Request)) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			var parked *Request
			s := startServer(t, handlerFunc(func(r *Request) {
				switch r.CorrelationID {
				case 1:
					parked = r
				case 2:
					handle(r)
				default:
					answering(r)
				}
			}), nil)
			c, other := s.dial(), s.dial()
			go other.send(metadataFrame(7, "x"))
			other.expect("7 ok")
			go func() { _, _ = c.Write(append(metadataFrame(1, "x"), metadataFrame(2, "x")...)) }()
			synctest.Wait()
			if parked.Context().Err() == nil {
				parked.ReplyNothing()
			}
			require.Empty(t, c.ends())
			require.ErrorContains(t, cause(parked), want)
			require.Equal(t, 1, s.logs.count("panic in a request handler"))
			require.NotZero(t, s.logs.count("panic_test.go"), "the stack")
			go other.send(metadataFrame(8, "x"))
			other.expect("8 ok")
			synctest.Wait()
			require.Len(t, s.conns(), 1)
		})
	}
	f("handler broken", func(*Request) { panic("handler broken") })
	f("nil pointer", func(*Request) { var r *Request; r.Key = 1 })
	f("goroutine broken", func(r *Request) { r.Go(func() { panic("goroutine broken") }) })
	f("function broken", func(r *Request) { r.ReplyFunc(func() Response { panic("function broken") }) })
	f("encoder broken", func(r *Request) {
		done := make(chan struct{})
		go func() { defer close(done); r.Reply(Message(badResponse{respond("")})) }() // as the committer answers
		<-done
	})
	f("encoder broken", func(r *Request) {
		r.ReplyFunc(func() Response { return Message(badResponse{respond("")}) })
	})
}

// TestWithin: names of functions, as the runtime gives them.
func TestWithin(t *testing.T) {
	f := func(function, path string, want bool) {
		t.Helper()
		require.Equal(t, want, within(function, path))
	}
	f("example.com/m/log.(*Log).Append", "example.com/m/log", true)
	f("example.com/m/log/record.Next", "example.com/m/log", true)
	f("example.com/m/logs.Next", "example.com/m/log", false)
	f("example.com/m/lo.Next", "example.com/m/log", false)
	require.Equal(t, "github.com/millrace/millrace/log/record", recordPath)
}
