package group

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Churn is how often one client came and went. A client is who has the same client id, host and instance id: members get new
// ids each time.
type Churn struct {
	ClientID, ClientHost, Instance string
	// Member is the last of its member ids.
	Member     string
	Came, Went int
	// Reasons are why it went, and how often, the most frequent first.
	Reasons []ChurnReason
	// Polls is how often it went because its program did not poll: it said so, or did not join again in time.
	Polls int
	// Returns is how often it left and came back by the same connection, so that its process has not ended in between: clients that
	// give no reason do so when nobody has polled for max.poll.interval.ms, and when a program changes what it subscribes to.
	Returns int
	// Away is for how long it was gone, on the average of the times it came back; 0 if it has not.
	Away time.Duration
}

// ChurnReason is a Reason with how often it was one.
type ChurnReason struct {
	Reason Reason
	Times  int
}

// Churn adds a history up by clients, those that went most often first. Who was put out by an administrator's seek has not gone
// by itself and does not count.
func (h *History) Churn() []Churn {
	type state struct {
		Churn
		reasons map[Reason]int
		gone    []Coming // not back yet
		backs   int
		away    time.Duration
	}
	type identity struct{ client, host, instance string }
	of := map[identity]*state{}
	for _, c := range slices.Backward(h.Comings) { // the earliest first
		id := identity{c.ClientID, c.ClientHost, c.Instance}
		s := of[id]
		if s == nil {
			s = &state{reasons: map[Reason]int{}}
			s.ClientID, s.ClientHost, s.Instance = id.client, id.host, id.instance
			of[id] = s
		}
		s.Member = c.Member
		switch c.Reason {
		case "":
			s.Came++
			if len(s.gone) == 0 {
				break
			}
			// Of several members with one client id, that which went by the same connection is back, else the first that went.
			i := max(slices.IndexFunc(s.gone, func(g Coming) bool { return g.Address != "" && g.Address == c.Address }), 0)
			from := s.gone[i]
			s.gone = slices.Delete(s.gone, i, i+1)
			s.backs++
			s.away += from.Ago - c.Ago
			if from.Reason == ReasonLeave && !saysPoll(from.Note) && from.Address != "" && from.Address == c.Address {
				s.Returns++
			}
		case ReasonForced:
		default:
			s.Went++
			s.reasons[c.Reason]++
			s.gone = append(s.gone, c)
			if c.Reason == ReasonLate || saysPoll(c.Note) {
				s.Polls++
			}
		}
	}
	out := make([]Churn, 0, len(of))
	for _, s := range of {
		for r, n := range s.reasons {
			s.Reasons = append(s.Reasons, ChurnReason{r, n})
		}
		slices.SortFunc(s.Reasons, func(a, b ChurnReason) int {
			return cmp.Or(cmp.Compare(b.Times, a.Times), cmp.Compare(a.Reason, b.Reason))
		})
		if s.backs > 0 {
			s.Away = s.away / time.Duration(s.backs)
		}
		out = append(out, s.Churn)
	}
	slices.SortFunc(out, func(a, b Churn) int {
		return cmp.Or(cmp.Compare(b.Went, a.Went), cmp.Compare(b.Came, a.Came), cmp.Compare(a.ClientID, b.ClientID), cmp.Compare(a.ClientHost, b.ClientHost), cmp.Compare(a.Instance, b.Instance))
	})
	return out
}

// saysPoll reports whether a member says itself that it leaves because nobody polled: Apache Kafka's consumer does.
func saysPoll(note string) bool { return strings.Contains(note, "poll timeout") }
