package console

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

const (
	// returnsMost is how often a client may come back by its connection: once and again it may have subscribed to something else.
	returnsMost = 1
)

// cooperative is what all clients call the assignor that leaves members their partitions during a rebalance.
const cooperative = "cooperative-sticky"

// refused finds who wants to join and is not let in.
func (x *groupExamination) refused() {
	well := true
	for i := range x.r.Refused {
		f := &x.r.Refused[i]
		who := "a client without an id"
		if f.ClientID != "" {
			who = "client " + f.ClientID
		}
		if f.Instance != "" {
			who += " (group.instance.id " + f.Instance + ")"
		}
		who += " at " + cmp.Or(f.Host, "an unknown host")
		what := fmt.Sprintf("%s was not let into group %s, %s in the last ten minutes, the last time %s ago", who, x.r.Group, times(f.Times), millis(f.AgoMS))
		var why, fix string
		switch f.Reason {
		case RefusedProtocol:
			why, fix = x.noCommonProtocol(f)
		case RefusedInstance:
			why = "another process has group.instance.id " + f.Instance
			if m := x.instance(f.Instance); m != nil {
				why += fmt.Sprintf(": member %s at %s", member(m.ID, m.ClientID), cmp.Or(m.Host, "an unknown host"))
			}
			fix = "give each process a group.instance.id of its own, one that it keeps when it is restarted"
		case RefusedAssignor:
			why = "it asks for the assignor " + strings.Join(f.Offered, ", ") + ", which the brokers do not have"
			fix = "set group.remote.assignor of that client to uniform or range; millrace cluster config get group.consumer.assignors   shows what there is"
		case RefusedFull:
			why = fmt.Sprintf("the group has as many members as it may have, %d", len(x.r.Members))
			fix = "stop some, or raise the limit: millrace cluster config set group.max.size=N   (group.consumer.max.size for the consumer protocol)"
		case RefusedSession:
			why = "its session.timeout.ms is outside what the brokers allow"
			fix = "millrace cluster config get group.min.session.timeout.ms group.max.session.timeout.ms   shows the bounds"
		default:
			why = "it speaks the consumer protocol (KIP-848), and the group is one that cannot change over to it"
			fix = "set group.protocol=classic for that client, or see millrace cluster config get group.consumer.migration.policy"
		}
		if why == "" {
			continue // it would be let in now
		}
		well = false
		x.add("refused", what, why, fix)
	}
	if well && len(x.r.Members) > 0 {
		x.pass("nobody was refused")
	}
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// noCommonProtocol says why a client has no assignor in common with the members; "" if it has one with those that are there now.
func (x *groupExamination) noCommonProtocol(f *GroupRefusal) (why, fix string) {
	if len(x.r.Members) == 0 {
		return "", ""
	}
	if x.r.ProtocolType != "consumer" {
		return fmt.Sprintf("the members are no consumers: their protocol is %q", x.r.ProtocolType), "two programs use one name: give that client another group.id"
	}
	common := commonProtocols(x.r.Members)
	if slices.ContainsFunc(f.Offered, func(p string) bool { return slices.Contains(common, p) }) {
		return "", ""
	}
	if len(f.Offered) == 0 {
		return "it offers no assignor", "two programs use one name: give that client another group.id"
	}
	offers := "it offers " + strings.Join(f.Offered, ", ")
	if len(common) > 0 {
		why = fmt.Sprintf("%s; what all members offer is %s", offers, strings.Join(common, ", "))
	} else {
		why = fmt.Sprintf("%s, which not all members do", offers)
	}
	fix = "set the same partition.assignment.strategy for all of them"
	if slices.Contains(f.Offered, cooperative) != slices.Contains(common, cooperative) {
		why += ": eager and cooperative consumers cannot be mixed"
		fix += fmt.Sprintf("; to change a running group, restart all with both (%s,%s) first, then with the new one alone", cooperative, eagerOf(f.Offered, common))
	}
	return why, fix
}

// eagerOf returns the name of an assignor that is not cooperative.
func eagerOf(lists ...[]string) string {
	for _, l := range lists {
		for _, p := range l {
			if p != cooperative {
				return p
			}
		}
	}
	return "range"
}

// commonProtocols are those that all members offer.
func commonProtocols(members []GroupMember) []string {
	common := slices.Clone(members[0].Offered)
	for i := range members[1:] {
		common = slices.DeleteFunc(common, func(p string) bool { return !slices.Contains(members[1+i].Offered, p) })
	}
	return common
}

func (x *groupExamination) instance(id string) *GroupMember {
	for i := range x.r.Members {
		if x.r.Members[i].Instance == id {
			return &x.r.Members[i]
		}
	}
	return nil
}

// mixed finds a change of assignor that was begun and not finished.
func (x *groupExamination) mixed() {
	if x.r.Type != "classic" || x.r.ProtocolType != "consumer" || x.r.State != "Stable" || len(x.r.Members) < 2 {
		return
	}
	by := map[string][]string{}
	eager := false
	for i := range x.r.Members {
		m := &x.r.Members[i]
		if len(m.Offered) == 0 {
			return // not known
		}
		list := strings.Join(m.Offered, ",")
		by[list] = append(by[list], member(m.ID, m.ClientID))
		eager = eager || !slices.Contains(m.Offered, cooperative)
	}
	if len(by) == 1 {
		x.pass("one list of assignors")
		return
	}
	if x.r.SinceMS < x.mixedMS {
		x.pass("members with different assignors, as in a roll")
		return
	}
	var lists []string
	for list, who := range by {
		lists = append(lists, fmt.Sprintf("%s: %s", list, fewOf(who)))
	}
	slices.Sort(lists)
	fix := "set the same partition.assignment.strategy for all members, and restart those that have another one"
	if eager && x.r.Protocol != cooperative && slices.ContainsFunc(x.r.Members, func(m GroupMember) bool { return slices.Contains(m.Offered, cooperative) }) {
		fix += fmt.Sprintf("; every rebalance stops all of them until each offers %s", cooperative)
	}
	x.add("mixed_assignors", fmt.Sprintf("the members of group %s have offered different assignors for %s", x.r.Group, millis(x.r.SinceMS)),
		fmt.Sprintf("%s; %s is in use, as what all have in common: a member without it would not be let in", strings.Join(lists, "; "), x.r.Protocol), fix)
}

// absent finds static members that are gone: what they are to read waits for them.
func (x *groupExamination) absent() {
	static, well := false, true
	for i := range x.r.Members {
		m := &x.r.Members[i]
		if m.Instance == "" {
			continue
		}
		static = true
		silent := !m.Joined && m.SessionMS > 0 && m.SeenMS > min(x.goneMS, m.SessionMS/silentShare)
		if !m.Away && !silent {
			continue
		}
		well = false
		x.gone[m.ID] = true
		var records int64
		var waits []string
		for j := range x.r.Partitions {
			if p := &x.r.Partitions[j]; p.Member == m.ID {
				records += max(p.Lag, 0)
				waits = append(waits, name(p))
			}
		}
		what := fmt.Sprintf("static member %s, %s at %s, has not been heard from for %s", m.Instance, member(m.ID, m.ClientID), cmp.Or(m.Host, "an unknown host"), millis(m.SeenMS))
		why := "its process is gone or hangs. "
		if m.Away {
			what = fmt.Sprintf("static member %s, %s at %s, left %s ago and said that it would be back", m.Instance, member(m.ID, m.ClientID), cmp.Or(m.Host, "an unknown host"), millis(m.SeenMS))
			why = ""
		}
		left := fmt.Sprintf("for another %s, until its session ends", millis(max(m.SessionMS-m.SeenMS, 0)))
		switch len(waits) {
		case 0:
			why += "Its place is kept " + left
		default:
			why += fmt.Sprintf("Nobody else gets what it is to read, %s with %d records that wait, %s", fewOf(waits), records, left)
		}
		x.add("static_member_gone", what, why,
			fmt.Sprintf("start it again with group.instance.id=%s: it goes on at once; or   millrace group kick %s %s   gives what it had to the others now", word(m.Instance), x.group, word(m.Instance)))
	}
	if static && well {
		x.pass("static members present")
	}
}

// reasonWords say a reason of GroupChurn.
var reasonWords = map[string]string{
	"member-left": "left", "session-timeout": "silent for its session timeout", "rebalance-timeout": "did not join again in time", "sync-timeout": "joined and never asked for its share",
	"revocation-timeout": "did not give up partitions in time", "static-member-replaced": "another process came with its group.instance.id", "connection-ended": "connection ended while it joined",
}

// tells says of a client how often it came and went, and why.
func (c *GroupChurn) tells() string {
	s := c.named() + " came " + times(c.Came) + " and went " + times(c.Went)
	var why []string
	for _, r := range c.Reasons {
		why = append(why, fmt.Sprintf("%s %d", cmp.Or(reasonWords[r.Reason], r.Reason), r.Times))
	}
	if len(why) > 0 {
		s += " (" + strings.Join(why, ", ") + ")"
	}
	switch {
	case c.Polls > 0:
		s += fmt.Sprintf(", %s because it had not polled", times(c.Polls))
	case c.Returns > 0:
		s += fmt.Sprintf(", and came back %s by the same connection: its process lives", times(c.Returns))
	}
	if c.AwayMS > 0 {
		s += fmt.Sprintf(", away for %s each time", millis(c.AwayMS))
	}
	return s
}

// named is who a client is.
func (c *GroupChurn) named() string {
	who := "client " + c.ClientID
	if c.ClientID == "" {
		who = "member " + c.Member
	}
	if c.Instance != "" {
		who += " (group.instance.id " + c.Instance + ")"
	}
	return who + " at " + cmp.Or(c.Host, "an unknown host")
}

// advice says what to do about a client that comes and goes.
func (x *groupExamination) advice(c *GroupChurn) string {
	most := ""
	if len(c.Reasons) > 0 {
		most = c.Reasons[0].Reason
	}
	switch {
	case c.Polls > 0 || c.Returns > returnsMost:
		limit := ""
		for i := range x.r.Members {
			if m := &x.r.Members[i]; m.ClientID == c.ClientID && m.Host == c.Host && m.RebalanceMS > 0 {
				limit = ", " + millis(m.RebalanceMS) + " now"
				break
			}
		}
		return fmt.Sprintf("%s: its work on one poll takes longer than it may: raise max.poll.interval.ms%s, or lower max.poll.records", c.named(), limit)
	case most == "session-timeout":
		return fmt.Sprintf("%s: look why its heartbeats stop, a pause of its process or of its machine; a larger session.timeout.ms bears longer ones", c.named())
	case most == "static-member-replaced":
		return fmt.Sprintf("see whether two processes use group.instance.id %s, or one that is restarted again and again", c.Instance)
	case c.Instance == "":
		return fmt.Sprintf("%s: look at its log for why it ends; a group.instance.id spares the others a rebalance for each restart", c.named())
	}
	return fmt.Sprintf("%s: look at its log for why it ends", c.named())
}

// polls finds clients that are put out, or go by themselves, because their program does not poll. There need not be many
// rebalances of that: the default of the interval is five minutes.
func (x *groupExamination) polls() {
	if x.r.Rebalances >= loopRebalances {
		return // loop says it
	}
	well := true
	for i := range x.r.Churn {
		c := &x.r.Churn[i]
		if c.Polls == 0 && c.Returns <= returnsMost {
			continue
		}
		well = false
		why := "each time the group rebalances twice, and what it had read and not committed is read again by another member"
		if c.Polls == 0 {
			why = "clients leave by themselves when nobody polls for max.poll.interval.ms, and join again with the next poll; " + why
		}
		x.add("poll_timeout", c.tells()+", in the last ten minutes", why, x.advice(c))
	}
	if well && len(x.r.Members) > 0 {
		x.pass("every member polls in time")
	}
}
