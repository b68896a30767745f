package transport

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// TestPipelining is N7: a parked fetch, a produce that waits for its acknowledgement, one with acks=0 and metadata requests on one
// connection are handled in order, at once, and answered in order although the answers come backwards.
func TestPipelining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var handled []string
		parked := map[string]*Request{}
		s := startServer(t, handlerFunc(func(r *Request) {
			text := metadataText(r)
			handled = append(handled, text)
			switch text {
			case "fetch", "produce":
				parked[text] = r
			case "acks=0":
				r.ReplyNothing()
			default:
				r.Reply(Message(respond(text)))
			}
		}), nil)
		c := s.dial()
		go c.send(metadataFrame(1, "first"), metadataFrame(2, "fetch"), metadataFrame(3, "acks=0"), metadataFrame(4, "produce"), metadataFrame(5, "metadata"))
		id, text := c.receiveText()
		require.Equal(t, "1 first", fmt.Sprint(id, " ", text))
		synctest.Wait()
		require.Equal(t, []string{"first", "fetch", "acks=0", "produce", "metadata"}, handled, "a parked request must not block the handling of later ones")

		parked["produce"].Reply(Message(respond("produced")))
		synctest.Wait()
		c.nothing()
		parked["fetch"].Reply(Message(respond("fetched")))
		for _, want := range []string{"2 fetched", "4 produced", "5 metadata"} {
			id, text := c.receiveText()
			require.Equal(t, want, fmt.Sprint(id, " ", text))
		}
		synctest.Wait()
		c.nothing()
	})
}
