package group

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

// past is what the last step of a core told of comings, goings and refusals, as a history remembers it.
func past(acts []Action, hs *histories, now Instant) {
	for i := range acts {
		switch acts[i].Kind {
		case ActionCame, ActionWent, ActionRefused, ActionGeneration:
			hs.note("g", now, &acts[i])
		}
	}
}

// Every way to come and to go is told with its reason: who diagnoses a loop has nothing else to go by.
func TestHistoryTellsEveryGoing(t *testing.T) {
	for name, c := range map[string]struct {
		then   func(b *classicBench)
		who    string
		reason Reason
	}{
		"leave": {func(b *classicBench) {
			b.step(&Leave{LeaveRequest: &LeaveRequest{Group: "g", Address: "10.0.0.7:5", Members: []LeavingMember{{Member: "a", Reason: "consumer poll timeout has expired."}}}, Waiter: "l"})
		}, "a", ReasonLeave},
		"silence": {func(b *classicBench) { b.pass(11*time.Second, "b") }, "a", ReasonSession},
		"late": {func(b *classicBench) {
			b.join("b", "b", says("other"))
			b.pass(40*time.Second, "a")
		}, "a", ReasonLate},
		"seek": {func(b *classicBench) {
			b.step(&Seek{GroupSeek: &metadata.GroupSeek{}, Force: true, Waiter: "s"})
		}, "a", ReasonForced},
	} {
		t.Run(name, func(t *testing.T) {
			var hs histories
			b := newClassicBench(t)
			b.told = func(acts []Action) { past(acts, &hs, b.now.At) }
			b.join("a", "")
			b.join("b", "")
			b.join("a", "a")
			b.pass(time.Second)
			b.sync("a", "a", b.core.generation())
			b.sync("b", "b", b.core.generation())
			require.Equal(t, StateStable, b.core.classic.state)
			c.then(b)
			h := hs.of("g", b.now.At)
			var went []Coming
			for _, x := range h.Comings {
				if x.Reason != "" && x.Member == c.who {
					went = append(went, x)
				}
			}
			require.Len(t, went, 1, "%+v", h)
			require.Equal(t, c.reason, went[0].Reason)
			require.Equal(t, "c", went[0].ClientID)
			require.Positive(t, h.Generations)
			if c.reason == ReasonLeave {
				require.Equal(t, [2]string{"10.0.0.7:5", "consumer poll timeout has expired."}, [2]string{went[0].Address, went[0].Note})
			}
		})
	}
}

// A static member that comes back went for that, and who is refused for its assignors is remembered once, with how often.
func TestHistoryTellsRefusals(t *testing.T) {
	var hs histories
	b := newClassicBench(t)
	b.told = func(acts []Action) { past(acts, &hs, b.now.At) }
	b.join("a", "", instance("i"))
	b.sync("a", b.joins["a"].Member, 1)
	b.join("b", "", instance("i"))
	for range 3 {
		b.join("c", "", func(r *JoinRequest) { r.Protocols[0].Name, r.ClientID = "other", "new" })
	}
	h := hs.of("g", b.now.At)
	require.Equal(t, ReasonStatic, h.Comings[1].Reason)
	require.Equal(t, "i", h.Comings[1].Instance)
	require.Len(t, h.Refusals, 1)
	r := h.Refusals[0]
	require.ErrorIs(t, r.Err, ErrInconsistentProtocol)
	require.Equal(t, 3, r.Times)
	require.Equal(t, "new", r.ClientID)
	require.Equal(t, []string{"other"}, r.Protocols)
}

// The same for consumer groups (KIP-848).
func TestHistoryTellsConsumers(t *testing.T) {
	var hs histories
	b := newConsumerBench(t)
	b.told = func(acts []Action) { past(acts, &hs, b.now.At) }
	b.beat(joinRequest("m1", "a"))
	b.beat(joinRequest("m2", "a"))
	b.beat(ConsumerHeartbeatRequest{Member: "m1", Epoch: -1, Address: "10.0.0.7:5"})
	b.beat(ConsumerHeartbeatRequest{Member: "m3", HasAssignor: true, Assignor: "none", ClientID: "odd", RebalanceTimeout: time.Minute, HasTopics: true, Topics: []string{"a"}, HasOwned: true})
	b.now.At += Instant(time.Minute)
	b.step(&Tick{})
	h := hs.of("g", b.now.At)
	require.Len(t, h.Comings, 4)
	require.Equal(t, [2]any{"m2", ReasonSession}, [2]any{h.Comings[0].Member, h.Comings[0].Reason})
	require.Equal(t, [3]any{"m1", ReasonLeave, "10.0.0.7:5"}, [3]any{h.Comings[1].Member, h.Comings[1].Reason, h.Comings[1].Address})
	require.Len(t, h.Refusals, 1)
	require.ErrorIs(t, h.Refusals[0].Err, ErrUnsupportedAssignor)
}

// A client that leaves and comes back by the same connection has not been restarted, one that comes by another may have.
func TestHistoryChurn(t *testing.T) {
	var h History
	ago := 10 * time.Minute
	add := func(c Coming) {
		c.Ago = ago
		ago -= 10 * time.Second
		h.Comings = append([]Coming{c}, h.Comings...)
	}
	for i := range 3 {
		slow := Coming{Member: fmt.Sprint("slow-", i), ClientID: "slow", ClientHost: "/10.0.0.7", Address: "10.0.0.7:1"}
		add(slow)
		restarted := Coming{Member: fmt.Sprint("new-", i), ClientID: "new", ClientHost: "/10.0.0.8", Address: fmt.Sprint("10.0.0.8:", i)}
		add(restarted)
		slow.Reason, restarted.Reason = ReasonLeave, ReasonSession
		restarted.Address = ""
		add(slow)
		if i < 2 {
			add(restarted)
		}
	}
	add(Coming{Member: "java", ClientID: "java", Reason: ReasonLeave, Note: "consumer poll timeout has expired.", Address: "10.0.0.9:1"})
	add(Coming{Member: "java", ClientID: "java", Address: "10.0.0.9:1"})
	add(Coming{Member: "sought", ClientID: "sought", Reason: ReasonForced})
	churn := h.Churn()
	require.Len(t, churn, 4)
	require.Equal(t, Churn{
		ClientID: "slow", ClientHost: "/10.0.0.7", Member: "slow-2", Came: 3, Went: 3, Reasons: []ChurnReason{{ReasonLeave, 3}}, Returns: 2, Away: 20 * time.Second,
	}, churn[0])
	require.Equal(t, [4]any{"new", 3, 2, 0}, [4]any{churn[1].ClientID, churn[1].Came, churn[1].Went, churn[1].Returns})
	require.Equal(t, [4]any{"java", 1, 0, 10 * time.Second}, [4]any{churn[2].ClientID, churn[2].Polls, churn[2].Returns, churn[2].Away})
	require.Equal(t, [2]any{"sought", 0}, [2]any{churn[3].ClientID, churn[3].Went})
}

// Whatever clients do, what is remembered is bounded: in one group, in all, and in each text.
func TestHistoryIsBounded(t *testing.T) {
	var hs histories
	long := string(make([]byte, 100_000))
	who := &metadata.GroupMember{ID: "m", ClientID: "c"}
	for i := range 3 * historyComings {
		hs.note("busy", Instant(i), &Action{Kind: ActionGeneration})
		hs.note("busy", Instant(i), &Action{Kind: ActionWent, Who: who, Reason: ReasonLeave, Note: long})
		hs.note("busy", Instant(i), &Action{Kind: ActionRefused, Who: &metadata.GroupMember{ClientID: fmt.Sprint(i)}, Err: ErrInconsistentProtocol})
	}
	busy := hs.groups["busy"]
	require.Len(t, busy.began, historyGenerations)
	require.Len(t, busy.comings, historyComings)
	require.Len(t, busy.refusals, historyRefusals)
	require.Less(t, len(busy.comings[0].Note), 300)

	for i := range historyGroups + 10 {
		hs.note(fmt.Sprint("g", i), Instant(1000+i), &Action{Kind: ActionGeneration})
		require.LessOrEqual(t, len(hs.groups), historyGroups)
	}
	require.NotContains(t, hs.groups, "busy", "the quiet ones go first")
	require.Contains(t, hs.groups, fmt.Sprint("g", historyGroups+9))
	for i := range 1000 {
		for range historyComings {
			hs.note(fmt.Sprint("g", i), Instant(1_000_000+i), &Action{Kind: ActionCame, Who: who})
		}
		hs.note(fmt.Sprint("g", i), Instant(1_000_000+i), &Action{Kind: ActionRefused, Who: who, Err: ErrGroupFull})
	}
	all := 0
	for _, h := range hs.groups {
		all += len(h.comings) + len(h.refusals)
	}
	require.Equal(t, all, hs.all)
	require.LessOrEqual(t, all, historyAll)

	// I23: what is kept of a text is bounded, too, and is no part of a longer one.
	hs = histories{}
	texts := func(texts ...string) {
		for _, s := range texts {
			require.LessOrEqual(t, len(s), historyText+len("…"))
		}
	}
	for i := range 10 {
		loud := &metadata.GroupMember{ID: long, InstanceID: long, ClientID: long + fmt.Sprint(i), ServerAssignor: long}
		hs.note("loud", 1, &Action{Kind: ActionCame, Who: loud, Address: long})
		hs.note("loud", 1, &Action{Kind: ActionRefused, Who: loud, Err: fmt.Errorf("%w: %s", ErrUnsupportedAssignor, long)})
		hs.note(long+fmt.Sprint(i), 1, &Action{Kind: ActionRefused, Who: who, Err: ErrInvalidSession})
	}
	require.Equal(t, 1, len(hs.groups), "nobody gives a group such a name")
	loud := hs.of("loud", 1)
	for _, c := range loud.Comings {
		texts(c.Member, c.Instance, c.ClientID, c.ClientHost, c.Address, c.Note)
	}
	for _, r := range loud.Refusals {
		texts(append(r.Protocols, r.Member, r.Instance, r.ClientID, r.ClientHost, r.Err.Error())...)
	}
	require.Zero(t, hs.of("g999", 1_000_999+historySpan), "what is older than ten minutes is not told")
	require.Zero(t, hs.of("nowhere", 0))
}
