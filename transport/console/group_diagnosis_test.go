package console

import (
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// wellGroup is a group that nothing is wrong with.
func wellGroup() GroupReport {
	return GroupReport{
		Group: "billing", State: "Stable", Type: "classic", Coordinator: 1, ProtocolType: "consumer", Protocol: "range", Generation: 4, SinceMS: 700_000, Rebalances: 1,
		Members: []GroupMember{
			{ID: "a-1", ClientID: "a", Host: "/10.0.0.7", SessionMS: 45_000, SeenMS: 900, Topics: []string{"orders"}, Offered: []string{"range"}, Partitions: 2},
			{ID: "b-1", ClientID: "b", Host: "/10.0.0.8", SessionMS: 45_000, SeenMS: 900, Topics: []string{"orders"}, Offered: []string{"range"}, Partitions: 1},
		},
		Partitions: []GroupPartition{
			{Topic: "orders", Partition: 0, Current: 10, CommittedMS: 500, LogStart: 0, LogEnd: 12, Lag: 2, LagMS: 400, RetentionMS: 600_000_000, RetentionBy: RetentionTime, Member: "a-1", Leader: 1},
			{Topic: "orders", Partition: 1, Current: 10, CommittedMS: 500, LogStart: 0, LogEnd: 10, Lag: 0, Member: "a-1", Leader: 2},
			{Topic: "orders", Partition: 2, Current: 10, CommittedMS: 500, LogStart: 0, LogEnd: 10, Lag: 0, Member: "b-1", Leader: 3},
		},
	}
}

// stand has a partition not advance for three minutes, with readers.
func stand(p *GroupPartition, readers ...GroupReader) {
	p.CommittedMS, p.LagMS, p.Readers = 190_000, 190_000, readers
}

// Every check finds what it is for, and nothing else does; each finding says why and
// what to type.
func TestDiagnoseGroup(t *testing.T) {
	d := diagnoseGroup(wellGroup(), GroupPatience)
	require.True(t, d.Well, "%v", d.Findings)
	require.NotEmpty(t, d.Passed)

	for _, c := range []struct {
		subject string
		edit    func(r *GroupReport)
		why     string // a part of it
	}{
		{"no_members", func(r *GroupReport) { r.Members, r.State = nil, "Empty" }, "2 records wait"},
		{"no_members", func(r *GroupReport) {
			r.Members, r.State = nil, "Empty"
			r.Left = []GroupDeparture{{Member: "a-1", ClientID: "a", Reason: "the consumer was closed", AgoMS: 61_000}}
		}, "a-1, went 1m1s ago: the consumer was closed"},
		{"rebalance_stuck", func(r *GroupReport) { r.State, r.SinceMS, r.Members[0].Joined = "PreparingRebalance", 40_000, true }, "it waits for b-1 at /10.0.0.8 to join again"},
		{"rebalance_stuck", func(r *GroupReport) { r.State, r.SinceMS = "CompletingRebalance", 40_000 }, "its leader has not said"},
		{"rebalance_stuck", func(r *GroupReport) {
			r.State, r.SinceMS, r.Members[0].Joined, r.Members[1].Joined = "PreparingRebalance", 40_000, true, true
		}, "never came back with it"},
		{"rebalance_loop", func(r *GroupReport) {
			r.Rebalances, r.Reason = 30, "member-left"
			r.Churn = []GroupChurn{{ClientID: "c", Host: "/10.0.0.9", Came: 13, Went: 12, Polls: 12, AwayMS: 5000, Reasons: []GroupChurnReasons{{"member-left", 12}}}}
		}, "client c at /10.0.0.9 came 13 times and went 12 times (left 12), 12 times because it had not polled, away for 5s each time"},
		{"rebalance_loop", func(r *GroupReport) {
			r.Rebalances = 30
			r.Churn = []GroupChurn{{ClientID: "c", Came: 13, Went: 12, Reasons: []GroupChurnReasons{{"session-timeout", 12}}}}
		}, "silent for its session timeout 12"},
		{"poll_timeout", func(r *GroupReport) {
			r.Churn = []GroupChurn{{ClientID: "a", Host: "/10.0.0.7", Came: 2, Went: 2, Returns: 2, AwayMS: 1000, Reasons: []GroupChurnReasons{{"member-left", 2}}}}
		}, "nobody polls for max.poll.interval.ms"},
		{"poll_timeout", func(r *GroupReport) {
			r.Churn = []GroupChurn{{ClientID: "a", Host: "/10.0.0.7", Came: 1, Went: 1, Polls: 1, Reasons: []GroupChurnReasons{{"rebalance-timeout", 1}}}}
		}, "is read again by another member"},
		{"refused", func(r *GroupReport) {
			r.Refused = []GroupRefusal{{ClientID: "new", Host: "/10.0.0.9", Offered: []string{"cooperative-sticky"}, Reason: RefusedProtocol, Times: 14, AgoMS: 3000}}
		}, "it offers cooperative-sticky; what all members offer is range: eager and cooperative consumers cannot be mixed"},
		{"refused", func(r *GroupReport) {
			r.ProtocolType, r.Members[0].Partitions, r.Members[1].Partitions, r.Partitions = "connect", -1, -1, nil
			r.Refused = []GroupRefusal{{ClientID: "new", Offered: []string{"range"}, Reason: RefusedProtocol, Times: 1}}
		}, `their protocol is "connect"`},
		{"refused", func(r *GroupReport) {
			r.Members[0].Instance = "pay-1"
			r.Refused = []GroupRefusal{{ClientID: "new", Instance: "pay-1", Reason: RefusedInstance, Times: 2}}
		}, "another process has group.instance.id pay-1: member a-1 at /10.0.0.7"},
		{"refused", func(r *GroupReport) {
			r.Refused = []GroupRefusal{{ClientID: "new", Offered: []string{"sticky"}, Reason: RefusedAssignor, Times: 2}}
		}, "the assignor sticky, which the brokers do not have"},
		{"refused", func(r *GroupReport) { r.Refused = []GroupRefusal{{ClientID: "new", Reason: RefusedFull, Times: 2}} }, "as many members as it may have, 2"},
		{"refused", func(r *GroupReport) { r.Refused = []GroupRefusal{{ClientID: "new", Reason: RefusedSession, Times: 2}} }, "session.timeout.ms is outside"},
		{"refused", func(r *GroupReport) { r.Refused = []GroupRefusal{{ClientID: "new", Reason: RefusedKind, Times: 2}} }, "cannot change over"},
		{"mixed_assignors", func(r *GroupReport) {
			r.Members[1].Offered = []string{"cooperative-sticky", "range"}
		}, "cooperative-sticky,range: b-1; range: a-1; range is in use"},
		{"static_member_gone", func(r *GroupReport) {
			r.Members[0].Instance, r.Members[0].SessionMS, r.Members[0].SeenMS = "pay-1", 1_800_000, 250_000
			r.Partitions[0].CommittedMS, r.Partitions[0].LagMS = 250_000, 250_000
		}, "Nobody else gets what it is to read, orders-0, orders-1 with 2 records that wait, for another 25m50s"},
		{"static_member_gone", func(r *GroupReport) {
			r.Members[1].Instance, r.Members[1].Away, r.Members[1].SeenMS = "pay-2", true, 4000
		}, "for another 41s, until its session ends"},
		{"idle_members", func(r *GroupReport) {
			r.Members = append(r.Members, GroupMember{ID: "c-1", Topics: []string{"orders"}, Offered: []string{"range"}})
		}, "fewer partitions than members"},
		{"unassigned", func(r *GroupReport) { r.Partitions[2].Member = "" }, "left it out"},
		{"unread_topic", func(r *GroupReport) {
			r.Partitions = append(r.Partitions, GroupPartition{Topic: "old", Lag: 7, LagMS: 1, Leader: 1, LogEnd: 7})
		}, "no member is subscribed"},
		{"overtaken", func(r *GroupReport) { r.Partitions[0].LogStart = 11 }, "lost 1 records"},
		{"retention_near", func(r *GroupReport) {
			p := &r.Partitions[0]
			p.LagMS, p.RetentionMS, p.RetentionBy = 6*3600_000, 3600_000, RetentionTime
		}, "retention.ms has"},
		{"retention_near", func(r *GroupReport) {
			p := &r.Partitions[0]
			p.LagMS, p.RetentionMS, p.RetentionBy = 6*3600_000, 2*3600_000, RetentionSize
		}, "retention.bytes has"},
		{"retention_near", func(r *GroupReport) {
			p := &r.Partitions[0]
			p.LagMS, p.RetentionMS, p.RetentionBy = 6*3600_000, 0, RetentionSize
		}, "retention.bytes has"},
		{"ahead", func(r *GroupReport) { r.Partitions[1].LogEnd = 5 }, "set by hand"},
		{"no_leader", func(r *GroupReport) { r.Partitions[1].Leader = -1 }, "not there"},
		{"under_min_isr", func(r *GroupReport) { r.Partitions[1].UnderMinISR = true }, "min.insync.replicas"},
		{"unknown_end", func(r *GroupReport) {
			p := &r.Partitions[1]
			p.Trouble, p.Lag, p.LagMS, p.LogStart, p.LogEnd = "no answer", -1, -1, -1, -1
		}, "no answer"},
		{"corrupt_log", func(r *GroupReport) {
			p := &r.Partitions[1]
			p.Trouble, p.Damaged, p.Lag, p.LagMS, p.LogStart, p.LogEnd = "the checksum is another one", true, -1, -1, -1, -1
		}, "the only copy that counts"},
		{"stuck", func(r *GroupReport) { r.Partitions[0].CommittedMS, r.Partitions[0].LagMS = 190_000, 190_000 }, "sends heartbeats and commits nothing new"},
		{"no_commits", func(r *GroupReport) {
			r.Partitions[0].Current, r.Partitions[0].CommittedMS, r.Partitions[0].LagMS = -1, -1, 190_000
		}, "has committed nothing"},
		{"corrupt_batch", func(r *GroupReport) {
			stand(&r.Partitions[0])
			r.Partitions[0].BatchTrouble = "the checksum is another one"
		}, "the batch at offset 10 is damaged in the leader's log: the checksum is another one"},
		{"poison_batch", func(r *GroupReport) {
			stand(&r.Partitions[0], GroupReader{ClientID: "a", Host: "/10.0.0.7", Offset: 10, SinceMS: 180_000, SeenMS: 3000, Asked: 80, Served: 80, MaxBytes: 1 << 20})
		}, "client a at /10.0.0.7 has asked for offset 10 again and again for 3m0s, the last time 3s ago, and is given records each time"},
		{"poison_batch", func(r *GroupReport) { // its members come and go with it
			r.State, r.SinceMS = "PreparingRebalance", 5000
			stand(&r.Partitions[0], GroupReader{ClientID: "a", Host: "/10.0.0.7", Offset: 10, SinceMS: 180_000, SeenMS: 3000, Asked: 80, Served: 80, MaxBytes: 1 << 20})
			r.Partitions[0].Member = ""
		}, "has asked for offset 10 again and again"},
		{"oversized_batch", func(r *GroupReport) {
			stand(&r.Partitions[0], GroupReader{ClientID: "a", Host: "/10.0.0.7", Offset: 10, SinceMS: 180_000, SeenMS: 3000, Asked: 80, Served: 80, MaxBytes: 1 << 20})
			r.Partitions[0].BatchBytes = 12 << 20
		}, "the batch there has 12.0 MiB, and it takes 1.0 MiB of a partition at most"},
		{"fetch_error", func(r *GroupReport) {
			stand(&r.Partitions[0], GroupReader{ClientID: "a", Host: "/10.0.0.7", Offset: 10, SinceMS: 180_000, SeenMS: 3000, Asked: 80, Error: "CORRUPT_MESSAGE"})
		}, "is answered CORRUPT_MESSAGE"},
		{"no_commits", func(r *GroupReport) {
			stand(&r.Partitions[0], GroupReader{ClientID: "a", Host: "/10.0.0.7", Offset: 12, SinceMS: 2000, SeenMS: 1000, Asked: 1, Served: 1, MaxBytes: 1 << 20})
		}, "has read up to offset 12, the last time 1s ago"},
		{"stuck", func(r *GroupReport) {
			stand(&r.Partitions[0], GroupReader{ClientID: "a", Host: "/10.0.0.7", Offset: 12, SinceMS: 185_000, SeenMS: 183_000, Asked: 1, Served: 1, MaxBytes: 1 << 20})
		}, "has asked for no records of it for 3m3s"},
		{"stuck", func(r *GroupReport) { // of another program with another id nothing follows
			stand(&r.Partitions[0], GroupReader{ClientID: "b", Host: "/10.0.0.8", Offset: 12, SinceMS: 2000, SeenMS: 1000, Asked: 1, Served: 1, MaxBytes: 1 << 20})
		}, "commits nothing new"},
		{"silent_member", func(r *GroupReport) {
			r.Partitions[0].CommittedMS, r.Partitions[0].LagMS, r.Members[0].SeenMS = 190_000, 190_000, 40_000
		}, "not been heard from for 40s"},
		{"open_transaction", func(r *GroupReport) {
			p := &r.Partitions[0]
			p.CommittedMS, p.LagMS, p.Stable = 190_000, 190_000, 10
			p.Transaction = &HeldTransaction{ID: "ledger-7", State: "Ongoing", ProducerID: 4007, Epoch: 3, Start: 10, OpenMS: 192_000, LeftMS: 708_000}
		}, `last stable offset 10: transaction "ledger-7" (producer 4007, epoch 3) open for 3m12s`},
		{"open_transaction", func(r *GroupReport) {
			p := &r.Partitions[0]
			p.CommittedMS, p.LagMS, p.Stable = 190_000, 190_000, 11
			p.Transaction = &HeldTransaction{ProducerID: 4007, Epoch: -1, Start: 11, OpenMS: 192_000}
		}, "nobody will end it"},
		{"open_transaction", func(r *GroupReport) {
			p := &r.Partitions[0]
			p.Stable, p.Transaction = 10, &HeldTransaction{ID: "ledger-7", State: "PrepareCommit", Start: 10, OpenMS: 12_000}
		}, "its marker has not been written for 12s"},
		{"skew", func(r *GroupReport) { r.Partitions[0].Lag, r.Partitions[0].LogEnd = 50_000, 50_010 }, "hot key"},
	} {
		r := wellGroup()
		c.edit(&r)
		d := diagnoseGroup(r, GroupPatience)
		require.False(t, d.Well, c.subject)
		require.Len(t, d.Findings, 1, "%s: %v", c.subject, d.Findings)
		f := d.Findings[0]
		require.Equal(t, c.subject, f.Subject)
		require.Contains(t, f.Why, c.why)
		require.NotEmpty(t, f.What)
		require.NotEmpty(t, f.Fix)
	}
}

// A transaction that the group has not come to yet, or that has just begun, is not why it stands.
func TestDiagnoseTransactionElsewhere(t *testing.T) {
	r := wellGroup()
	r.Partitions[0].Stable, r.Partitions[0].Transaction = 11, &HeldTransaction{ID: "a", State: "Ongoing", Start: 11, OpenMS: 60_000}
	r.Partitions[1].Stable, r.Partitions[1].Transaction = 10, &HeldTransaction{ID: "a", State: "Ongoing", Start: 10, OpenMS: 2_000}
	require.True(t, diagnoseGroup(r, GroupPatience).Well)
}

// Who was refused and would be let in now is no trouble any more, nor is a roll of the members from one assignor to another, a
// client that came and went once, or a static member that is just being restarted.
func TestDiagnoseWhatPasses(t *testing.T) {
	r := wellGroup()
	r.Refused = []GroupRefusal{{ClientID: "new", Offered: []string{"range"}, Reason: RefusedProtocol, Times: 14}}
	r.Churn = []GroupChurn{{ClientID: "a", Host: "/10.0.0.7", Came: 2, Went: 1, Returns: 1, Reasons: []GroupChurnReasons{{"member-left", 1}}}}
	r.SinceMS, r.Members[0].Offered = 60_000, []string{"range", "cooperative-sticky"}
	r.Members[1].Instance, r.Members[1].SeenMS = "pay-1", 12_000
	d := diagnoseGroup(r, GroupPatience)
	require.True(t, d.Well, "%v", d.Findings)
}

// A group whose members tell each other what only they understand is not judged by what is not known of it.
func TestDiagnoseForeignGroup(t *testing.T) {
	r := wellGroup()
	r.ProtocolType, r.Protocol, r.Partitions = "connect", "sessioned", nil
	for i := range r.Members {
		r.Members[i].Topics, r.Members[i].Partitions = []string{}, -1
	}
	require.True(t, diagnoseGroup(r, GroupPatience).Well)
}

// S6: what clients call themselves neither draws on the terminal of who asks, nor looks like a line of ours, nor is run by a shell
// that is given the command we name.
func TestDiagnoseHostileNames(t *testing.T) {
	const evil = "x\x1b[2J\n✔ all is well\u202e'; reboot; '"
	r := wellGroup()
	r.Group = "billing; reboot"
	for i := range r.Members {
		m := &r.Members[i]
		m.ID, m.ClientID, m.Host, m.Instance, m.Away = evil, evil, "/"+evil, evil, true
	}
	r.Left = []GroupDeparture{{Member: evil, ClientID: evil, Reason: evil}}
	r.Rebalances, r.Reason = 30, evil
	r.Churn = []GroupChurn{{ClientID: evil, Instance: evil, Host: evil, Came: 13, Went: 12, Reasons: []GroupChurnReasons{{evil, 12}}}}
	r.Refused = []GroupRefusal{{ClientID: evil, Host: evil, Instance: evil, Offered: []string{evil}, Reason: RefusedAssignor, Times: 3}}
	stand(&r.Partitions[0], GroupReader{ClientID: evil, Host: evil, Offset: 10, SinceMS: 180_000, SeenMS: 900, Asked: 90, Served: 90, MaxBytes: 1 << 20})
	empty := r
	empty.Members, empty.State = nil, "Empty"
	for _, d := range []GroupDiagnosis{diagnoseGroup(r, GroupPatience), diagnoseGroup(empty, GroupPatience)} {
		require.NotEmpty(t, d.Findings)
		for _, f := range d.Findings {
			for _, s := range []string{f.What, f.Why, f.Fix} {
				require.Equal(t, -1, strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }), "%q", s)
			}
			require.NotRegexp(t, "millrace [^']*reboot", f.Fix, f.Subject)
		}
	}
	require.Equal(t, `'a'\''b'`, word("a'b"))
	require.Equal(t, "billing-1.x", word("billing-1.x"))
	require.Equal(t, "''", word(""))
}
