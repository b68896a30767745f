package console

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

// Each thing that can be wrong with a partition is named with its reason and its mend.
func TestDiagnose(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	asked := now.Add(-400 * time.Millisecond)
	check := func(name string, leader *ReplicaState, change func(b []*metadata.Broker, p *metadata.Partition), want ...Finding) {
		t.Helper()
		im := threeBrokers(func(b []*metadata.Broker, orders, _ *metadata.Topic) { change(b, orders.Partitions[0]) })
		got := diagnose(im, im.Topic("orders"), 0, 2, leader, now)
		if len(want) == 0 {
			want = []Finding{}
		}
		require.Equal(t, want, got, name)
		for _, f := range got {
			require.NotEmpty(t, f.What)
			require.NotEmpty(t, f.Why)
			require.NotEmpty(t, f.Fix)
		}
	}
	none := metadata.NoBroker
	check("well", nil, func([]*metadata.Broker, *metadata.Partition) {})
	check("dead in ISR", nil, func(b []*metadata.Broker, p *metadata.Partition) {
		b[1].Fenced = true
		p.Leader, p.ISR, p.ELR, p.LastLeader = none, brokers{2}, nil, 2
	}, Finding{"offline", "orders-0 has no leader", "of those that have everything acknowledged, broker 2 is fenced: the controller has no contact with it, or it is not ready yet",
		"start broker 2 (m2); if it never comes back: millrace cluster partitions elect-leader orders -p 0 --unclean   takes the most complete of the others, and loses what it does not have"})
	check("dead in ELR", nil, func(b []*metadata.Broker, p *metadata.Partition) {
		b[1].Leaving, b[1].Fenced, b[2].Fenced = true, true, true
		p.Leader, p.ISR, p.ELR, p.LastLeader = none, nil, brokers{2, 3}, 2
	}, Finding{"offline", "orders-0 has no leader", "of those that have everything acknowledged, broker 2 is stopping or stopped, broker 3 is fenced: the controller has no contact with it, or it is not ready yet",
		"start broker 2 (m2) or 3 (m3); if it never comes back: millrace cluster partitions elect-leader orders -p 0 --unclean   takes the most complete of the others, and loses what it does not have"})
	check("last leader", nil, func(b []*metadata.Broker, p *metadata.Partition) {
		b[2].Fenced = true
		p.Leader, p.ISR, p.ELR, p.LastLeader = none, nil, nil, 3
	}, Finding{"offline", "orders-0 has no leader", "of those that have everything acknowledged, broker 3 is fenced: the controller has no contact with it, or it is not ready yet",
		"start broker 3 (m3); if it never comes back: millrace cluster partitions elect-leader orders -p 0 --unclean   takes the most complete of the others, and loses what it does not have"})
	check("nobody", nil, func(b []*metadata.Broker, p *metadata.Partition) {
		p.Leader, p.ISR, p.ELR, p.LastLeader = none, nil, nil, none
	}, Finding{"offline", "orders-0 has no leader", "no replica is known to have everything that was acknowledged: those that had it lost their disks, or stopped without proof of what they have",
		"millrace cluster partitions elect-leader orders -p 0 --unclean   takes the most complete of the others, and loses what it does not have"})
	check("about to be elected", nil, func(b []*metadata.Broker, p *metadata.Partition) {
		p.Leader, p.ISR, p.LastLeader = none, brokers{2}, 2
	}, Finding{"offline", "orders-0 has no leader", "a replica that may lead is there, and was not elected yet", "wait a moment; then millrace cluster quorum status   shows whether there is a controller"})
	check("a failed directory", nil, func(b []*metadata.Broker, p *metadata.Partition) {
		dir := metadata.DirectoryID{7}
		p.Directories = []metadata.DirectoryID{{}, dir, {}}
		b[1].Offline = []metadata.DirectoryID{dir}
		p.ISR = brokers{1, 3}
	}, Finding{"out_of_sync", "broker 2 is not in sync for orders-0", "the log directory of broker 2 that has it failed", "start broker 2 (m2); if its disk is lost: millrace start --replace 2"})

	behind := &ReplicaState{Followers: []FollowerState{{Broker: 2, LogEndOffset: 60, LagRecords: 40, Fetched: &asked}, {Broker: 3, LagRecords: -1}}}
	check("behind, and under min ISR", behind, func(b []*metadata.Broker, p *metadata.Partition) { p.ISR = brokers{1} },
		Finding{"under_min_isr", "orders-0 refuses acks=all", "1 of its replicas in sync, acks=all needs 2", "bring the replicas below back in sync"},
		Finding{"out_of_sync", "broker 2 is not in sync for orders-0", "broker 2 is 40 records behind, and last asked 400ms ago", "wait; if it does not get nearer, see the logs of brokers 2 and 1, and the throttle of replication"},
		Finding{"out_of_sync", "broker 3 is not in sync for orders-0", "broker 3 is there, and has not asked its leader 1 for anything since that leads", "wait; if it does not get nearer, see the logs of brokers 3 and 1, and the throttle of replication"})
	check("behind, leader silent", nil, func(b []*metadata.Broker, p *metadata.Partition) { p.ISR = brokers{1, 3} },
		Finding{"out_of_sync", "broker 2 is not in sync for orders-0", "broker 2 is there and behind; its leader, broker 1, could not be asked how far", "wait; if it does not get nearer, see the logs of brokers 2 and 1, and the throttle of replication"})

	cancel := "millrace cluster partitions move-cancel orders -p 0   takes it back"
	move := func(p *metadata.Partition) {
		p.Replicas, p.ISR, p.Adding, p.Removing = brokers{1, 2, 3}, brokers{1, 2}, brokers{3}, brokers{2}
	}
	check("a move that goes on", &ReplicaState{Followers: []FollowerState{{Broker: 3, LagRecords: 5, Fetched: &asked}}}, func(b []*metadata.Broker, p *metadata.Partition) { move(p) },
		Finding{"move", "orders-0 moves to 1,3", "broker 3 is 5 records behind, and last asked 400ms ago", "wait; " + cancel})
	check("a move to a dead broker", nil, func(b []*metadata.Broker, p *metadata.Partition) { move(p); b[2].Fenced = true },
		Finding{"move_stuck", "orders-0 moves to 1,3", "it stands still: broker 3 is fenced: the controller has no contact with it, or it is not ready yet", "start broker 3 (m3); " + cancel})
	check("a move without a leader", nil, func(b []*metadata.Broker, p *metadata.Partition) {
		move(p)
		p.Leader, p.ISR, p.LastLeader = none, brokers{2}, 2
	}, Finding{"offline", "orders-0 has no leader", "a replica that may lead is there, and was not elected yet", "wait a moment; then millrace cluster quorum status   shows whether there is a controller"},
		Finding{"move_stuck", "orders-0 moves to 1,3", "it stands still: there is no leader to copy from", "bring the leader back; " + cancel})
	check("a move that is all but done", nil, func(b []*metadata.Broker, p *metadata.Partition) { move(p); p.ISR = brokers{1, 2, 3} },
		Finding{"move", "orders-0 moves to 1,3", "all new replicas are in sync; the controller takes the old ones off now", "wait a moment"})
	check("another leads", nil, func(b []*metadata.Broker, p *metadata.Partition) { p.Leader, p.LastLeader = 2, 2 },
		Finding{"not_preferred", "orders-0 is led by broker 2 and not by its preferred leader 1", "the leadership has moved and not gone back yet", "millrace cluster partitions elect-leader orders -p 0   or wait for the next round"})
	check("another leads for maintenance", nil, func(b []*metadata.Broker, p *metadata.Partition) { p.Leader, b[0].Draining = 2, true })
	check("unclean", nil, func(b []*metadata.Broker, p *metadata.Partition) { p.LeaderEpoch, p.UncleanEpoch = 5, 5 },
		Finding{"unclean", "orders-0 had an unclean election", "leader epoch 5 began with a replica that may not have had everything acknowledged", "nothing to do; records that only the others had are lost"})

	s, f := testServer(t, threeBrokers(func(b []*metadata.Broker, orders, _ *metadata.Topic) { orders.Partitions[1].ISR = brokers{2, 3} }))
	f.states[2] = *behind
	d := ask[Diagnosis](t, s, 200, "GET /v1/partitions/orders/1/diagnosis")
	require.False(t, d.Well)
	require.Contains(t, d.Findings[0].Why, "broker 1 is there, and has not asked its leader 2")
	require.True(t, ask[Diagnosis](t, s, 200, "GET /v1/partitions/orders/0/diagnosis").Well)
}
