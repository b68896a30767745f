package metadata

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

func drawAnswer(t *rapid.T) (a groupAnswer) {
	some := rapid.IntRange(0, 2)
	a.Revision = rapid.Uint64().Draw(t, "revision")
	for range some.Draw(t, "revisions") {
		a.Revisions = append(a.Revisions, rapid.Uint64().Draw(t, "step"))
	}
	for range some.Draw(t, "refused") {
		a.Refused = append(a.Refused, refusedCommit{rapid.Int().Draw(t, "commit"), rapid.IntRange(-1, 9).Draw(t, "entry"), "stale"})
	}
	for range some.Draw(t, "prior") {
		a.Prior = append(a.Prior, CommittedOffset{Offset: rapid.Int64().Draw(t, "offset"), LeaderEpoch: -1, Metadata: "text"})
	}
	if rapid.Bool().Draw(t, "failed") {
		a.Err = newWireError(&Error{Kind: ErrBusy, What: "what", Why: "why", Fix: "fix"})
	}
	if rapid.Bool().Draw(t, "expired") {
		a.Expired = &expired{}
	}
	return a
}

// Both forms say the same; a later version's fields are passed over.
func TestProposalsInBinary(t *testing.T) {
	later := protowire.AppendString(protowire.AppendTag(nil, 15, protowire.BytesType), "of a later version")
	rapid.Check(t, func(t *rapid.T) {
		var asked groupProposals
		for range rapid.IntRange(0, 3).Draw(t, "commands") {
			asked.Commands = append(asked.Commands, groupProposal{pb.CommandType(rapid.Int32Min(0).Draw(t, "kind")), rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(t, "body")})
		}
		body := append(appendGroupProposals(nil, asked), later...)
		got, err := readGroupProposals(body)
		require.NoError(t, err)
		require.Equal(t, asked, got)

		said := groupAnswers{Version: rapid.Uint64().Draw(t, "version")}
		for range rapid.IntRange(0, 3).Draw(t, "answers") {
			said.Answers = append(said.Answers, drawAnswer(t))
		}
		answer := appendGroupAnswers(nil, said)
		heard, err := readGroupAnswers(append(answer, later...))
		require.NoError(t, err)
		require.Equal(t, said, heard)
		var inJSON groupAnswers
		text, err := json.Marshal(said)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &inJSON))
		require.Equal(t, inJSON, heard)
		clear(answer) // nothing of the bytes is kept
		require.Equal(t, said, heard)
	})
}

// No bytes of a call or an answer panic.
func FuzzProposalsInBinary(f *testing.F) {
	f.Add(appendGroupProposals(nil, groupProposals{[]groupProposal{{pb.CommandType_COMMAND_COMMIT_OFFSETS, []byte("body")}}}))
	f.Add(append([]byte{0}, appendGroupAnswers(nil, groupAnswers{7, []groupAnswer{{Revision: 3, Revisions: []uint64{1 << 60}, Refused: []refusedCommit{{1, -1, "stale"}}}}})...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, err := readGroupProposals(b); err == nil {
			again, err := readGroupProposals(appendGroupProposals(nil, a))
			require.NoError(t, err)
			require.Len(t, again.Commands, len(a.Commands))
		}
		if a, failed, err := opProposeGroups.binary.readAnswer(b); err == nil && failed == nil {
			again, err := readGroupAnswers(appendGroupAnswers(nil, a))
			require.NoError(t, err)
			require.Len(t, again.Answers, len(a.Answers))
		}
	})
}

// calledMethods notes what is called of controllers, and refuses what one of an earlier version does not know.
type calledMethods struct {
	Forwarder
	old bool

	mu      sync.Mutex
	methods []string
}

func (c *calledMethods) Forward(ctx context.Context, controller BrokerID, address, method string, body []byte) ([]byte, error) {
	c.mu.Lock()
	c.methods = append(c.methods, method)
	c.mu.Unlock()
	if c.old && method == opProposeGroups.binary.method {
		return nil, fmt.Errorf("forward: %w", &Error{Kind: ErrInvalidRequest, What: "unknown method"})
	}
	return c.Forwarder.Forward(ctx, controller, address, method, body)
}

// take returns how often each form was used.
func (c *calledMethods) take() (inBinary, inJSON int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.methods {
		switch m {
		case opProposeGroups.binary.method:
			inBinary++
		case opProposeGroups.name:
			inJSON++
		}
	}
	c.methods = nil
	return inBinary, inJSON
}

// A controller of an earlier version is sent JSON, after it has refused the other form once; its next registration is asked anew.
func TestProposalsToEarlierController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bs, id := newGroupBrokers(t)
		defer bs.close()
		at := bs.other()
		s := bs.stores[at]
		bs.await(at, "there is a topic", func(im *Image) bool { return im.Topic("orders") != nil })
		calls := &calledMethods{Forwarder: s.cfg.Forwarder, old: true}
		s.cfg.Forwarder = calls
		group := bs.groupOf(at, "g")
		next := int64(0)
		commits := func(n int) (inBinary, inJSON int) {
			for range n {
				next++
				_, err := commit(t, s, OffsetCommit{Group: group, Generation: -1, Offsets: entriesFor(id, 1, next)})
				require.NoError(t, err)
				o, _ := s.Offset(group, id, 0)
				require.Equal(t, next, o.Offset)
			}
			return calls.take()
		}
		inBinary, inJSON := commits(3)
		require.Equal(t, [2]int{1, 3}, [2]int{inBinary, inJSON})
		_, err := commit(t, s, OffsetCommit{Group: group, Member: "nobody", Generation: 5, Offsets: entriesFor(id, 1, 99)})
		require.ErrorIs(t, err, ErrUnknownMember)
		calls.take()

		// The controller is another process now, of this version.
		lead := int(s.Image().ControllerID()) - 1
		calls.mu.Lock()
		calls.old = false
		calls.mu.Unlock()
		bs.start(lead, 2)
		bs.await(at, "the controller has another epoch", func(im *Image) bool { return im.Broker(BrokerID(lead+1)).Epoch == bs.epoch(lead) })
		bs.await(at, "all serve", func(im *Image) bool { return unfenced(im) == 3 })
		group = bs.groupOf(at, "h")
		inBinary, inJSON = commits(2)
		require.Equal(t, [2]int{2, 0}, [2]int{inBinary, inJSON})
		_, err = commit(t, s, OffsetCommit{Group: group, Member: "nobody", Generation: 5, Offsets: entriesFor(id, 1, 99)})
		require.ErrorIs(t, err, ErrUnknownMember)
	})
}

// An error of the whole call, and one of the way, are in both forms what they were.
func TestBinaryCallErrors(t *testing.T) {
	b := opProposeGroups.binary
	for _, body := range [][]byte{nil, {0x80}, {5, '{'}, {2, '{', '{'}, {0, 0xff}} {
		_, _, err := b.readAnswer(body)
		require.Error(t, err, "%x", body)
	}
	s := &Store{}
	_, err := inBinary[groupProposals, groupAnswers]{&opProposeGroups}.serve(s, t.Context(), nil)
	require.ErrorIs(t, err, ErrInvalidRequest)
	_, err = inBinary[groupProposals, groupAnswers]{&opProposeGroups}.serve(s, t.Context(), []byte{1, 0xff})
	require.ErrorIs(t, err, ErrInvalidRequest)

	failing := operation[groupProposals, groupAnswers]{name: "x", binary: b, local: func(*Store, context.Context, groupProposals) (groupAnswers, error) {
		return groupAnswers{Version: 4}, &Error{Kind: ErrBusy, What: "what", Why: "why", Fix: "fix"}
	}}
	out, err := inBinary[groupProposals, groupAnswers]{&failing}.serve(s, t.Context(), b.appendCall(1000, groupProposals{}))
	require.NoError(t, err)
	_, failed, err := b.readAnswer(out)
	require.NoError(t, err)
	require.ErrorIs(t, failed, ErrBusy)
	e, ok := errors.AsType[*Error](failed)
	require.True(t, ok)
	require.Equal(t, "fix", e.Fix)
}

// What a batch of 45 commits takes on its way to the controller and back, without the network.
func BenchmarkForwardBatch(b *testing.B) {
	body := make([]byte, 45*110)
	for i := range body {
		body[i] = byte(i * 7)
	}
	asked := groupProposals{[]groupProposal{{pb.CommandType_COMMAND_COMMIT_OFFSETS, body}}}
	said := groupAnswers{Version: 1 << 20, Answers: make([]groupAnswer, 1)}
	b.Run("binary", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, err := readGroupProposals(appendGroupProposals(nil, asked))
			_, err2 := readGroupAnswers(appendGroupAnswers(nil, said))
			if err != nil || err2 != nil {
				b.Fatal(err, err2)
			}
		}
	})
	b.Run("json", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			call, err := json.Marshal(forwardedCall[groupProposals]{5000, asked})
			var c forwardedCall[groupProposals]
			err = errors.Join(err, json.Unmarshal(call, &c))
			answer, err2 := json.Marshal(forwardedAnswer[groupAnswers]{Version: 1 << 20, Result: said})
			var a forwardedAnswer[groupAnswers]
			err = errors.Join(err, err2, json.Unmarshal(answer, &a))
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}
