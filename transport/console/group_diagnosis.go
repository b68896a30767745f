package console

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// silentShare is the part of its session timeout after which a silent member is named.
	silentShare = 2
	// loopRebalances in ten minutes are a loop, and no roll of the members.
	loopRebalances = 10
	// churnSaid is how many of the clients that come and go are named.
	churnSaid = 3
	// doomedShare is the part of its life that a record that waits may have left before that is worth a word, once it has waited for
	// stuckMS.
	doomedShare = 4
	// skewFactor and skewLag say when one partition is far behind the others.
	skewFactor, skewLag = 10, 1000
)

// GroupPatience is how long a partition may have records waiting and no new commit before that is worth a word: several times the
// interval at which clients commit by themselves. A diagnosis measures in shares of it.
const GroupPatience = time.Minute

// groupLimits are how long things may last, in milliseconds, before they are worth a word.
type groupLimits struct {
	stuckMS int64 // a partition without a new commit: the patience
	heldMS  int64 // a transaction that holds a partition back: a sixth
	// rebalancingMS is a rebalance, and goneMS the silence of a static member unless half its session timeout is shorter: a half.
	rebalancingMS, goneMS int64
	mixedMS               int64 // members with different assignors: about as long as a roll of the consumers takes, ten times
}

func limitsOf(patience time.Duration) groupLimits {
	ms := patience.Milliseconds()
	return groupLimits{stuckMS: ms, heldMS: ms / 6, rebalancingMS: ms / 2, goneMS: ms / 2, mixedMS: 10 * ms}
}

// diagnoseGroup says what is wrong with a group. It judges by the report alone.
func diagnoseGroup(r GroupReport, patience time.Duration) GroupDiagnosis {
	x := &groupExamination{groupLimits: limitsOf(patience), r: &r, group: word(r.Group), findings: []Finding{}, passed: []string{}, gone: map[string]bool{}, explained: map[*GroupPartition]bool{}}
	for _, check := range []func(){x.members, x.absent, x.rebalance, x.loop, x.polls, x.refused, x.mixed, x.surplus, x.unassigned, x.overtaken, x.doomed, x.leaders, x.transactions, x.unreadable, x.stuck, x.skew} {
		check()
	}
	return GroupDiagnosis{GroupReport: r, Well: len(x.findings) == 0, Findings: x.findings, Passed: x.passed}
}

type groupExamination struct {
	groupLimits
	r *GroupReport
	// group is its name as a word of a command.
	group    string
	findings []Finding
	passed   []string
	// gone are ids of static members that are gone, of which there is a finding.
	gone map[string]bool
	// explained are partitions that do not advance, of which there is a finding.
	explained map[*GroupPartition]bool
}

func (x *groupExamination) add(subject, what, why, fix string) {
	x.findings = append(x.findings, Finding{subject, Printable(what), Printable(why), Printable(fix)})
}

func (x *groupExamination) pass(format string, args ...any) {
	x.passed = append(x.passed, fmt.Sprintf(format, args...))
}

// lag is how many records wait in all.
func (x *groupExamination) lag() (records, ms int64) {
	for i := range x.r.Partitions {
		records, ms = records+max(x.r.Partitions[i].Lag, 0), max(ms, x.r.Partitions[i].LagMS)
	}
	return records, ms
}

func (x *groupExamination) members() {
	if n := len(x.r.Members); n > 0 {
		x.pass("members %d", n)
		return
	}
	if len(x.r.Left) > 0 {
		l := &x.r.Left[0]
		x.add("no_members", "group "+x.r.Group+" has no members", fmt.Sprintf("the last one, %s, went %s ago: %s", member(l.Member, l.ClientID), millis(l.AgoMS), l.Reason), "start a consumer with group.id="+x.group)
		return
	}
	why := "nobody has joined it since its coordinator took it over"
	if records, ms := x.lag(); records > 0 {
		why += fmt.Sprintf("; %d records wait, the oldest for %s", records, millis(ms))
	}
	x.add("no_members", "group "+x.r.Group+" has no members", why, "start a consumer with group.id="+x.group+", or millrace group delete "+x.group+" if it is not needed any more")
}

func member(id, client string) string {
	if client == "" || strings.HasPrefix(id, client) {
		return id
	}
	return id + " (" + client + ")"
}

// rebalance looks for who holds up a rebalance.
func (x *groupExamination) rebalance() {
	if x.r.State != "PreparingRebalance" && x.r.State != "CompletingRebalance" && x.r.State != "Reconciling" {
		if len(x.r.Members) > 0 {
			x.pass("no rebalance for %s", millis(x.r.SinceMS))
		}
		return
	}
	if x.r.SinceMS < x.rebalancingMS {
		x.pass("a rebalance is under way, for %s", millis(x.r.SinceMS))
		return
	}
	var waits []string
	for i := range x.r.Members {
		if m := &x.r.Members[i]; !m.Joined {
			waits = append(waits, fmt.Sprintf("%s at %s", member(m.ID, m.ClientID), cmp.Or(m.Host, "an unknown host")))
		}
	}
	what := fmt.Sprintf("group %s has been in a rebalance for %s", x.r.Group, millis(x.r.SinceMS))
	switch {
	case x.r.State == "CompletingRebalance":
		x.add("rebalance_stuck", what, "its leader has not said yet who reads what", "look at the leader's process: it may hang in its assignor; it is put out when its session ends")
	case len(waits) > 0:
		x.add("rebalance_stuck", what, "it waits for "+strings.Join(waits, ", ")+" to join again",
			"look why: a consumer joins when it polls next; max.poll.interval.ms bounds how long its work on one poll may take")
	default:
		x.add("rebalance_stuck", what, "all known members have joined; a client that was given an id and never came back with it holds the group up", "wait: it is forgotten when its session ends")
	}
}

// loop finds groups that rebalance again and again.
func (x *groupExamination) loop() {
	if x.r.Rebalances < loopRebalances {
		if len(x.r.Members) > 0 {
			x.pass("generations in ten minutes %d", x.r.Rebalances)
		}
		return
	}
	why := "why it last did: " + cmp.Or(x.r.Reason, "its coordinator does not know")
	fix := "give consumers that restart a group.instance.id; raise session.timeout.ms where they are slow to answer, max.poll.interval.ms where their work takes long"
	said := 0
	for i := range x.r.Churn {
		c := &x.r.Churn[i]
		if c.Went == 0 || said == churnSaid {
			break // they are sorted
		}
		if said == 0 {
			fix = x.advice(c)
		}
		said++
		why += "; " + c.tells()
	}
	x.add("rebalance_loop", fmt.Sprintf("group %s rebalanced %d times in ten minutes", x.r.Group, x.r.Rebalances), why, fix)
}

// surplus finds members that have nothing to read.
func (x *groupExamination) surplus() {
	idle, known := 0, 0
	for i := range x.r.Members {
		if n := x.r.Members[i].Partitions; n >= 0 {
			known++
			if n == 0 {
				idle++
			}
		}
	}
	switch {
	case known == 0 || x.r.State != "Stable":
	case idle > 0:
		x.add("idle_members", fmt.Sprintf("%d of %d members have nothing to read", idle, len(x.r.Members)), "there are fewer partitions than members",
			"millrace topic add-partitions TOPIC -n N   makes more, or stop the members that are too many")
	default:
		x.pass("members %d, and each has something to read", len(x.r.Members))
	}
}

// unassigned finds partitions that nobody reads though there are members.
func (x *groupExamination) unassigned() {
	if len(x.r.Members) == 0 || x.r.State != "Stable" {
		return
	}
	var nobody []string
	wanted := map[string]bool{}
	for i := range x.r.Members {
		if x.r.Members[i].Partitions < 0 {
			return // the assignment is not known
		}
		for _, t := range x.r.Members[i].Topics {
			wanted[t] = true
		}
	}
	var forgotten []string
	for i := range x.r.Partitions {
		p := &x.r.Partitions[i]
		if p.Member != "" {
			continue
		}
		if wanted[p.Topic] {
			nobody = append(nobody, name(p))
		} else if p.Lag > 0 && !slices.Contains(forgotten, p.Topic) {
			forgotten = append(forgotten, p.Topic)
		}
	}
	if len(nobody) > 0 {
		x.add("unassigned", fmt.Sprintf("%s of group %s is read by nobody", fewOf(nobody), x.r.Group), "the members want the topic, and their assignor left it out",
			"see the assignor of the leader; a restart of any member assigns anew")
	} else {
		x.pass("every partition has a reader")
	}
	for _, t := range forgotten {
		x.add("unread_topic", fmt.Sprintf("group %s has offsets of %s, which no member reads", x.r.Group, t), "no member is subscribed to it any more", fmt.Sprintf("millrace group offset-delete %s -t %s   if that is meant", x.group, t))
	}
}

func name(p *GroupPartition) string { return fmt.Sprintf("%s-%d", p.Topic, p.Partition) }

// fewOf names up to five things.
func fewOf(names []string) string {
	if len(names) > 5 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:5], ", "), len(names)-5)
	}
	return strings.Join(names, ", ")
}

// overtaken finds offsets outside the log.
func (x *groupExamination) overtaken() {
	well := true
	for i := range x.r.Partitions {
		p := &x.r.Partitions[i]
		if p.Current < 0 || p.LogStart < 0 {
			continue
		}
		switch {
		case p.Current < p.LogStart:
			x.add("overtaken", fmt.Sprintf("%s: offset %d was deleted before it was read", name(p), p.Current), fmt.Sprintf("the log begins at %d by now: retention was faster than the group, which has lost %d records", p.LogStart, p.LogStart-p.Current),
				fmt.Sprintf("the consumers go on by their auto.offset.reset; millrace topic alter-config %s --set retention.ms=…   keeps records longer", p.Topic))
			well = false
		case p.Current > p.LogEnd && p.LogEnd >= 0:
			x.add("ahead", fmt.Sprintf("%s: offset %d lies behind the end of the log, %d", name(p), p.Current, p.LogEnd), "the offset was set by hand, or records were lost by an unclean election",
				fmt.Sprintf("millrace group seek %s --to current   brings it back into the log", x.group))
			well = false
		}
	}
	if well && len(x.r.Partitions) > 0 {
		x.pass("offsets inside retention")
	}
}

// doomed finds partitions whose retention is about to overtake the group.
func (x *groupExamination) doomed() {
	for i := range x.r.Partitions {
		p := &x.r.Partitions[i]
		if p.Lag <= 0 || p.RetentionBy == "" || p.LagMS < x.stuckMS || p.Current >= 0 && p.Current < p.LogStart || p.RetentionMS > (p.LagMS+p.RetentionMS)/doomedShare {
			continue
		}
		when, key := "in "+millis(p.RetentionMS), "retention.ms"
		if p.RetentionMS == 0 {
			when = "at any moment"
		}
		if p.RetentionBy == RetentionSize {
			key = "retention.bytes"
			if p.RetentionMS > 0 {
				when = "in about " + millis(p.RetentionMS) + ", at the present rate"
			}
		}
		x.add("retention_near", fmt.Sprintf("%s: retention deletes records %s that are not read yet", name(p), when),
			fmt.Sprintf("%d wait, the first for %s, and %s has the log's oldest segment go then", p.Lag, millis(p.LagMS), key),
			fmt.Sprintf("millrace topic alter-config %s --set %s=…   keeps records longer", p.Topic, key))
	}
}

// leaders finds partitions that cannot be read or written.
func (x *groupExamination) leaders() {
	well := true
	for i := range x.r.Partitions {
		p := &x.r.Partitions[i]
		fix := fmt.Sprintf("millrace cluster partitions list --state unwell; GET /v1/partitions/%s/%d/diagnosis says more", p.Topic, p.Partition)
		switch {
		case p.Leader < 0:
			x.add("no_leader", name(p)+" has no leader", "the brokers that may lead it are not there", fix)
			well = false
		case p.UnderMinISR:
			x.add("under_min_isr", name(p)+" refuses acks=all", "fewer of its replicas are in sync than min.insync.replicas", fix)
			well = false
		case p.Damaged:
			x.add("corrupt_log", name(p)+" cannot be read: its log is damaged", fmt.Sprintf("broker %d has the only copy that counts, and has taken it offline: %s", p.Leader, p.Trouble),
				fmt.Sprintf("stop broker %d and look with millrace log verify DIR; its files are kept. Restore them from a backup, or give them up: millrace topic delete %s", p.Leader, p.Topic))
			well = false
		case p.Trouble != "":
			x.add("unknown_end", "it is not known how far "+name(p)+" is behind", p.Trouble, "millrace cluster health")
			well = false
		}
	}
	if well && len(x.r.Partitions) > 0 {
		x.pass("leaders available")
	}
}

// held says whether the group stands where an open transaction begins. Between its offset and that there may be markers and
// aborted records, which it has passed over without a commit.
func (x *groupExamination) held(p *GroupPartition) bool {
	return p.Transaction != nil && p.Transaction.OpenMS >= x.heldMS && p.Current <= p.Stable && (p.Current == p.Stable || p.CommittedMS >= x.stuckMS)
}

// transactions finds partitions that an open transaction holds back.
func (x *groupExamination) transactions() {
	well := true
	for i := range x.r.Partitions {
		p := &x.r.Partitions[i]
		if !x.held(p) {
			continue
		}
		well = false
		t := p.Transaction
		fix := fmt.Sprintf("millrace txn abort --topic %s --partition %d --start-offset %d", p.Topic, p.Partition, t.Start)
		why := fmt.Sprintf("read-committed readers stop at last stable offset %d: ", p.Stable)
		switch {
		case t.ID == "":
			why += fmt.Sprintf("a transaction of producer %d, which no transactional id has, has been open for %s; nobody will end it", t.ProducerID, millis(t.OpenMS))
		case t.State != "Ongoing":
			why += fmt.Sprintf("transaction %q (producer %d, epoch %d) is decided, and its marker has not been written for %s", t.ID, t.ProducerID, t.Epoch, millis(t.OpenMS))
			fix = fmt.Sprintf("millrace cluster health   shows what keeps the partition's leader from writing it; millrace txn describe %s", t.ID)
		default:
			why += fmt.Sprintf("transaction %q (producer %d, epoch %d) open for %s", t.ID, t.ProducerID, t.Epoch, millis(t.OpenMS))
			if t.LeftMS > 0 {
				fix += fmt.Sprintf("      (or wait: it times out in %s)", millis(t.LeftMS))
			}
		}
		what := fmt.Sprintf("%s has not advanced for %s while %d records wait", name(p), millis(max(p.CommittedMS, 0)), p.Lag)
		if p.Current < 0 {
			what = fmt.Sprintf("%s has no offset while %d records wait", name(p), p.Lag)
		}
		x.add("open_transaction", what, why, fix)
	}
	if well && len(x.r.Partitions) > 0 {
		x.pass("no open transaction holds it back")
	}
}

// stuck finds partitions with a reader, records that wait, and no commit for long.
func (x *groupExamination) stuck() {
	if x.r.State != "Stable" {
		return
	}
	well := true
	for i := range x.r.Partitions {
		p := &x.r.Partitions[i]
		if p.Member == "" || x.gone[p.Member] || x.explained[p] || x.held(p) || !x.waits(p) || x.r.SinceMS < x.stuckMS {
			continue
		}
		well = false
		var m GroupMember
		for j := range x.r.Members {
			if x.r.Members[j].ID == p.Member {
				m = x.r.Members[j]
			}
		}
		who := fmt.Sprintf("%s at %s", member(p.Member, m.ClientID), cmp.Or(m.Host, "an unknown host"))
		switch {
		case m.SessionMS > 0 && m.SeenMS > m.SessionMS/silentShare:
			x.add("silent_member", fmt.Sprintf("%s has not advanced for %s while %d records wait", name(p), millis(max(p.CommittedMS, p.LagMS)), p.Lag),
				fmt.Sprintf("its reader, %s, has not been heard from for %s", who, millis(m.SeenMS)), fmt.Sprintf("look at that process; it is put out after %s of silence, and its partitions go to the others", millis(m.SessionMS)))
		default:
			what := fmt.Sprintf("%s has not advanced for %s while %d records wait", name(p), millis(p.CommittedMS), p.Lag)
			if p.Current < 0 {
				what = fmt.Sprintf("%s has no offset while %d records wait", name(p), p.Lag)
			}
			subject, why, fix := x.stands(p, &m, who)
			x.add(subject, what, why, fix)
		}
	}
	if well {
		x.pass("every partition with records that wait advances")
	}
}

// skew finds one partition that is far behind the others of its topic.
func (x *groupExamination) skew() {
	byTopic := map[string][]*GroupPartition{}
	for i := range x.r.Partitions {
		if p := &x.r.Partitions[i]; p.Lag >= 0 {
			byTopic[p.Topic] = append(byTopic[p.Topic], p)
		}
	}
	for _, topic := range sortedTopics(byTopic) {
		ps := byTopic[topic]
		if len(ps) < 3 {
			continue
		}
		slices.SortFunc(ps, func(a, b *GroupPartition) int { return cmp.Compare(a.Lag, b.Lag) })
		worst, median := ps[len(ps)-1], ps[len(ps)/2]
		if worst.Lag >= skewLag && worst.Lag > skewFactor*max(median.Lag, 1) {
			x.add("skew", fmt.Sprintf("%s is %d records behind, the others of %s about %d", name(worst), worst.Lag, topic, median.Lag), "more is written to it, a hot key perhaps, or its records take longer to process",
				fmt.Sprintf("millrace topic consume %s -p %d -o -100:end -f '%%k\\n' | sort | uniq -c | sort -rn   shows the keys", topic, worst.Partition))
		}
	}
}

func sortedTopics(m map[string][]*GroupPartition) []string {
	var out []string
	for t := range m {
		out = append(out, t)
	}
	slices.Sort(out)
	return out
}
