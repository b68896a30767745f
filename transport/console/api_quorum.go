package console

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/metadata"
)

// QuorumOrder names the broker that an order about the quorum is for.
type QuorumOrder struct {
	Broker int32 `json:"broker" doc:"broker id"`
}

func getQuorum(c *call) (any, error) {
	q, err := c.Quorum.Quorum(c.ctx)
	if err != nil {
		return nil, err
	}
	return tidyQuorum(q), nil
}

func tidyQuorum(q QuorumStatus) QuorumStatus {
	if q.Servers == nil {
		q.Servers = []QuorumServer{}
	}
	q.Servers = slices.Clone(q.Servers)
	slices.SortFunc(q.Servers, func(a, b QuorumServer) int { return int(a.Broker) - int(b.Broker) })
	return q
}

// quorumBroker reads the body and finds the broker that it names.
func (c *call) quorumBroker() (*metadata.Broker, error) {
	order := QuorumOrder{Broker: -1}
	if err := c.read(&order); err != nil {
		return nil, err
	}
	b := c.image().Broker(metadata.BrokerID(order.Broker))
	if b == nil {
		return nil, unknownBroker(c.image(), metadata.BrokerID(order.Broker))
	}
	return b, nil
}

func postVoter(c *call) (any, error) {
	b, err := c.quorumBroker()
	if err != nil {
		return nil, err
	}
	if b.Fenced {
		return nil, &metadata.Error{Kind: metadata.ErrPolicyViolation, What: fmt.Sprintf("broker %d cannot become a voter", b.ID), Why: "it is fenced: a voter that is not there brings the quorum nearer to a standstill", Fix: "start it, then try again"}
	}
	if err := c.Quorum.AddServer(c.ctx, b.ID); err != nil {
		return nil, err
	}
	return getQuorum(c)
}

// deleteVoter refuses to take a healthy voter away when those that are left would be no majority of those that are left:
// nothing could be committed any more.
func deleteVoter(c *call) (any, error) {
	b, err := c.broker()
	if err != nil {
		return nil, err
	}
	q, err := c.Quorum.Quorum(c.ctx)
	if err != nil {
		return nil, err
	}
	voters, healthy, found := 0, 0, false
	for _, s := range q.Servers {
		switch {
		case s.Broker == int32(b.ID):
			found = true
		case s.Voter:
			voters++
			if s.Healthy {
				healthy++
			}
		}
	}
	refuse := func(why, fix string) error {
		return &metadata.Error{Kind: metadata.ErrPolicyViolation, What: fmt.Sprintf("broker %d cannot be taken out of the quorum", b.ID), Why: why, Fix: fix}
	}
	switch {
	case !found:
		return nil, refuse("it is not in it", "millrace cluster quorum peers   shows who is")
	case voters == 0:
		return nil, refuse("it is the only voter", "add another voter first: millrace cluster quorum add-voter ID")
	case healthy < voters/2+1:
		return nil, refuse(fmt.Sprintf("of the %d voters that would be left %d are there, and %d are needed", voters, healthy, voters/2+1), "bring the others back first")
	}
	if err := c.Quorum.RemoveServer(c.ctx, b.ID); err != nil {
		return nil, err
	}
	return getQuorum(c)
}

func postTransfer(c *call) (any, error) {
	b, err := c.quorumBroker()
	if err != nil {
		return nil, err
	}
	q, err := c.Quorum.Quorum(c.ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(q.Servers, func(s QuorumServer) bool { return s.Broker == int32(b.ID) })
	if i < 0 || !q.Servers[i].Voter {
		return nil, &metadata.Error{Kind: metadata.ErrPolicyViolation, What: fmt.Sprintf("broker %d cannot lead the quorum", b.ID), Why: "it is no voter", Fix: fmt.Sprintf("millrace cluster quorum add-voter %d   makes it one", b.ID)}
	}
	if q.Leader == int32(b.ID) {
		return tidyQuorum(q), nil
	}
	if err := c.Quorum.TransferLeadership(c.ctx, b.ID); err != nil {
		return nil, err
	}
	return getQuorum(c)
}
