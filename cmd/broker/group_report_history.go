package broker

import (
	"errors"

	"github.com/millrace/millrace/group"
	"github.com/millrace/millrace/transport/console"
)

// tellHistory adds to a report what its group's coordinator has seen in the last ten minutes.
func tellHistory(out *console.GroupReport, h group.History) {
	out.Rebalances = h.Generations
	for i := range h.Comings {
		if c := &h.Comings[i]; c.Reason != "" {
			out.Left = append(out.Left, console.GroupDeparture{
				Member: c.Member, ClientID: c.ClientID, Instance: c.Instance, Host: c.ClientHost, Reason: departure(c), AgoMS: c.Ago.Milliseconds(),
			})
		}
	}
	for _, c := range h.Churn() {
		to := console.GroupChurn{
			ClientID: c.ClientID, Host: c.ClientHost, Instance: c.Instance, Member: c.Member, Came: c.Came, Went: c.Went,
			Reasons: []console.GroupChurnReasons{}, Polls: c.Polls, Returns: c.Returns, AwayMS: c.Away.Milliseconds(),
		}
		for _, r := range c.Reasons {
			to.Reasons = append(to.Reasons, console.GroupChurnReasons{Reason: string(r.Reason), Times: r.Times})
		}
		out.Churn = append(out.Churn, to)
	}
	for i := range h.Refusals {
		r := &h.Refusals[i]
		out.Refused = append(out.Refused, console.GroupRefusal{
			ClientID: r.ClientID, Host: r.ClientHost, Instance: r.Instance, Offered: append([]string{}, r.Protocols...), Reason: refusal(r.Err), Times: r.Times, AgoMS: r.Ago.Milliseconds(),
		})
	}
}

// departure says why a member went, in its own words if it has said some.
func departure(c *group.Coming) string {
	switch c.Reason {
	case group.ReasonLeave:
		if c.Note != "" {
			return c.Note
		}
		return "it left"
	case group.ReasonSession:
		return "nothing was heard of it for its session timeout"
	case group.ReasonLate:
		return "it did not join a rebalance within its rebalance timeout"
	case group.ReasonSync:
		return "it joined and did not ask for its share"
	case group.ReasonRevoke:
		return "it did not give up partitions within its rebalance timeout"
	case group.ReasonStatic:
		return "another process came with its group.instance.id"
	case group.ReasonDisconnected:
		return "its connection ended while it joined"
	case group.ReasonForced:
		return "group seek --force put it out"
	}
	return string(c.Reason)
}

// refusal is the console's word for why somebody was not let in.
func refusal(err error) string {
	for _, x := range []struct {
		err  error
		word string
	}{
		{group.ErrInconsistentProtocol, console.RefusedProtocol},
		{group.ErrFencedInstance, console.RefusedInstance},
		{group.ErrUnreleasedInstance, console.RefusedInstance},
		{group.ErrUnsupportedAssignor, console.RefusedAssignor},
		{group.ErrGroupFull, console.RefusedFull},
		{group.ErrInvalidSession, console.RefusedSession},
	} {
		if errors.Is(err, x.err) {
			return x.word
		}
	}
	return console.RefusedKind
}
