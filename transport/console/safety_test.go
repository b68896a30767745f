package console

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

type brokers = []metadata.BrokerID

// Stopping a broker is safe when every partition keeps a leader and enough in sync for acks=all, and the quorum its
// majority.
func TestSafeToStop(t *testing.T) {
	check := func(name string, id metadata.BrokerID, q QuorumStatus, change func(b []*metadata.Broker, orders, pay *metadata.Topic), want ...string) {
		t.Helper()
		im := threeBrokers(func(b []*metadata.Broker, orders, pay *metadata.Topic) {
			if change != nil {
				change(b, orders, pay)
			}
		})
		minISR := func(t *metadata.Topic) int { return map[string]int{"orders": 2, "pay": 1}[t.Name] }
		got := stopReasons(im, id, minISR, &q)
		if len(want) == 0 {
			require.Empty(t, got, name)
			return
		}
		require.Equal(t, want, got, name)
	}
	all := threeVoters()
	check("all is well", 1, all, nil)
	check("all is well", 3, all, nil)
	check("the only replica", 2, all, nil, "pay-0 would have no leader: broker 2 is its only replica in sync")
	check("one is out already", 1, all, func(_ []*metadata.Broker, o, _ *metadata.Topic) { o.Partitions[1].ISR = brokers{2, 1} }, "orders-1 would have 1 in sync, acks=all needs 2")
	check("the one that is out may be stopped", 3, all, func(_ []*metadata.Broker, o, _ *metadata.Topic) { o.Partitions[1].ISR = brokers{2, 1} })
	check("the one that is out is needed", 3, all, func(_ []*metadata.Broker, o, _ *metadata.Topic) { o.Partitions[1].ISR = brokers{2} },
		"orders-1 has 1 in sync, acks=all needs 2, and broker 3 is catching up")
	check("another is leaving", 1, all, func(b []*metadata.Broker, o, _ *metadata.Topic) {
		b[1].Leaving = true
		o.Partitions = o.Partitions[:1]
	}, "orders-0 would have 1 in sync, acks=all needs 2")
	check("an offline partition may need it", 1, all, func(_ []*metadata.Broker, o, _ *metadata.Topic) {
		p := o.Partitions[0]
		p.Leader, p.ISR, p.ELR = metadata.NoBroker, nil, brokers{1}
	}, "orders-0 has no leader, and broker 1 may be the one to bring it back")
	check("an offline partition may need its last leader", 1, all, func(_ []*metadata.Broker, o, _ *metadata.Topic) {
		p := o.Partitions[0]
		p.Leader, p.ISR, p.LastLeader = metadata.NoBroker, nil, 1
	}, "orders-0 has no leader, and broker 1 may be the one to bring it back")
	sick := threeVoters()
	sick.Servers[2].Healthy = false // broker 2
	check("the majority", 1, sick, nil, "the quorum would have 1 of 3 voters, and needs 2")
	check("the sick one may go", 2, sick, func(_ []*metadata.Broker, _, pay *metadata.Topic) {
		*pay.Partitions[0] = metadata.Partition{Leader: 1, Replicas: brokers{1}, ISR: brokers{1}}
	})
	none := threeVoters()
	none.Leader = -1
	check("no leader", 3, none, nil, "the quorum has no leader: nobody can take over")
	observer := threeVoters()
	observer.Servers[0].Voter = false // broker 3
	check("a non-voter", 3, observer, nil)
	check("a voter of two", 1, observer, nil, "the quorum would have 1 of 2 voters, and needs 2")
	check("nobody", 9, all, nil, "there is no broker 9")
}

// /safe-to-stop names 20 offenders at most, of this broker or another.
func TestSafeToStopAnswer(t *testing.T) {
	im := threeBrokers(func(_ []*metadata.Broker, _, pay *metadata.Topic) {
		for range 29 {
			pay.Partitions = append(pay.Partitions, pay.Partitions[0])
		}
	})
	s, _ := testServer(t, im)
	require.Equal(t, Health{Check: "safe-to-stop", Status: "ok", Reasons: []string{}}, ask[Health](t, s, 200, "GET /safe-to-stop?format=json"))
	h := ask[Health](t, s, 503, "GET /safe-to-stop?format=json&broker=2")
	require.Len(t, h.Reasons, maxReasons)
	require.Equal(t, 30, h.Total)
	require.Equal(t, h, ask[Health](t, s, 200, "GET /v1/brokers/2/safe-to-stop"))
	require.Contains(t, ask[Health](t, s, 503, "GET /safe-to-stop?format=json&broker=x").Reasons[0], "not a broker id")
	require.Contains(t, ask[Health](t, s, 503, "GET /safe-to-stop?format=json&broker=7").Reasons[0], "no broker 7")
}

// ux.md 2: a decommission that could never end is refused, with the partitions, the reason and both mends; nothing is
// ordered.
func TestDecommissionStranded(t *testing.T) {
	im := threeBrokers(func(_ []*metadata.Broker, orders, pay *metadata.Topic) {
		*pay.Partitions[0] = *orders.Partitions[0]
		orders.Partitions = orders.Partitions[1:]
	})
	s, f := testServer(t, im)
	e := refused(t, s, 409, "POST /v1/brokers/2/decommission")
	require.Equal(t, ErrorLines{
		What: "broker 2 cannot be decommissioned: 3 partitions have nowhere to go",
		Why:  "orders-0, orders-1, pay-0 have 3 replicas and only 2 other brokers are alive",
		Fix:  "millrace start … --join HOST   on a new machine, or   millrace topic alter orders pay --replicas 2",
	}, e)
	require.Empty(t, f.orders)
	d := ask[Decommission](t, s, 200, "GET /v1/brokers/2/decommission")
	require.Equal(t, []string{"orders-0", "orders-1", "pay-0"}, d.Stranded)
	require.True(t, d.Voter)

	// One replica fewer, and it is ordered; and taken back.
	s, f = testServer(t, threeBrokers(func(b []*metadata.Broker, orders, _ *metadata.Topic) {
		for i, p := range orders.Partitions {
			p.Replicas, p.ISR = p.Replicas[:2], p.ISR[:2]
			p.Leader = p.Replicas[0]
			_ = i
		}
		b[1].Removing = true
	}))
	d = ask[Decommission](t, s, 200, "POST /v1/brokers/2/decommission")
	require.Equal(t, 3, d.Replicas)
	require.False(t, d.Done)
	ask[Decommission](t, s, 200, "POST /v1/brokers/2/recommission")
	require.Equal(t, []string{"remove 2", "keep 2"}, f.orders)

	// A broker that may take no replicas is no place to go.
	for what, change := range map[string]func(b *metadata.Broker){
		"fenced": func(b *metadata.Broker) { b.Fenced = true }, "draining": func(b *metadata.Broker) { b.Draining = true },
		"removing": func(b *metadata.Broker) { b.Removing = true }, "leaving": func(b *metadata.Broker) { b.Leaving = true },
	} {
		im := threeBrokers(func(b []*metadata.Broker, orders, _ *metadata.Topic) {
			orders.Partitions = orders.Partitions[:1]
			orders.Partitions[0].Replicas, orders.Partitions[0].ISR = brokers{1, 2}, brokers{1, 2}
			change(b[2])
		})
		stuck, others := stranded(im, 2)
		require.Equal(t, 1, others, what)
		require.Len(t, stuck, 1, what)
		require.Equal(t, "orders-0", stuck[0].String())
	}
}

// A broker is forgotten only when it has nothing left and is gone or going; it leaves the quorum first (M15: by order).
func TestForgetBroker(t *testing.T) {
	s, f := testServer(t, nil)
	require.Contains(t, refused(t, s, 409, "DELETE /v1/brokers/2").Why, "4 replicas")
	empty := func(change func(b *metadata.Broker)) *metadata.Image {
		return threeBrokers(func(b []*metadata.Broker, orders, pay *metadata.Topic) {
			orders.Partitions = []*metadata.Partition{{Leader: 1, Replicas: brokers{1, 3}, ISR: brokers{1, 3}}}
			pay.Partitions = []*metadata.Partition{{Leader: 1, Replicas: brokers{1}, ISR: brokers{1}}}
			change(b[1])
		})
	}
	f.image = empty(func(*metadata.Broker) {})
	require.Contains(t, refused(t, s, 409, "DELETE /v1/brokers/2").Why, "it runs")
	require.Empty(t, f.orders)
	f.image = empty(func(b *metadata.Broker) { b.Removing = true })
	require.True(t, ask[Decommission](t, s, 200, "GET /v1/brokers/2/decommission").Done)
	require.True(t, ask[Done](t, s, 200, "DELETE /v1/brokers/2").Done)
	f.quorum.Servers = f.quorum.Servers[:2] // an earlier try got as far as this
	require.True(t, ask[Done](t, s, 200, "DELETE /v1/brokers/2").Done)
	require.Equal(t, []string{"forget 2", "drop 2", "forget 2"}, f.orders)
}

// The quorum is changed by order, and never into one that could not commit anything.
func TestQuorumOrders(t *testing.T) {
	s, f := testServer(t, nil)
	ask[QuorumStatus](t, s, 200, "POST /v1/quorum/transfer", `{"broker":2}`)
	ask[QuorumStatus](t, s, 200, "POST /v1/quorum/transfer", `{"broker":1}`) // leads already
	ask[QuorumStatus](t, s, 200, "POST /v1/quorum/voters", `{"broker":3}`)
	ask[QuorumStatus](t, s, 200, "DELETE /v1/quorum/voters/3")
	require.Equal(t, []string{"transfer 2", "add 3", "drop 3"}, f.orders)
	f.orders = nil
	f.quorum.Servers[2].Healthy = false // broker 2
	require.Contains(t, refused(t, s, 409, "DELETE /v1/quorum/voters/3").Why, "of the 2 voters that would be left 1 are there, and 2 are needed")
	ask[QuorumStatus](t, s, 200, "DELETE /v1/quorum/voters/2")
	f.quorum.Servers[0].Voter = false // broker 3
	require.Contains(t, refused(t, s, 409, "POST /v1/quorum/transfer", `{"broker":3}`).Why, "no voter")
	f.quorum.Servers = f.quorum.Servers[1:2]
	require.Contains(t, refused(t, s, 409, "DELETE /v1/quorum/voters/1").Why, "only voter")
	require.Contains(t, refused(t, s, 409, "DELETE /v1/quorum/voters/3").Why, "not in it")
	require.Equal(t, []string{"drop 2"}, f.orders)
	f.image = threeBrokers(func(b []*metadata.Broker, _, _ *metadata.Topic) { b[2].Fenced = true })
	require.Contains(t, refused(t, s, 409, "POST /v1/quorum/voters", `{"broker":3}`).Why, "fenced")
}

// Maintenance is done when nothing is led that another could lead; what nobody else can lead is said apart.
func TestMaintenanceProgress(t *testing.T) {
	im := threeBrokers(func(b []*metadata.Broker, orders, _ *metadata.Topic) { b[1].Draining = true })
	require.Equal(t, Maintenance{Broker: 2, Enabled: true, Leaders: 2, Stuck: 1}, maintenance(im, 2))
	im = threeBrokers(func(b []*metadata.Broker, orders, _ *metadata.Topic) {
		b[1].Draining = true
		orders.Partitions[1].Leader = 3
	})
	require.Equal(t, Maintenance{Broker: 2, Enabled: true, Leaders: 1, Stuck: 1, Done: true}, maintenance(im, 2))
	s, f := testServer(t, im)
	ask[Maintenance](t, s, 200, "PUT /v1/brokers/2/maintenance")
	ask[Maintenance](t, s, 200, "DELETE /v1/brokers/2/maintenance")
	require.Equal(t, []string{"drain 2", "undrain 2"}, f.orders)
	require.Equal(t, "[]", fmt.Sprint(stopReasons(im, 1, func(*metadata.Topic) int { return 1 }, nil)))
}
