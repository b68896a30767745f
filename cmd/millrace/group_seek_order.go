package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/transport/console"
)

// 2026-11-30: by which way seek goes. A group without members takes offsets from outside by the Kafka protocol, and refuses them
// in the step that applies them once it has some: the admin API is not needed for what the Kafka API can do. Putting members out
// and setting offsets in one step is something that it can't: --force asks for it by the admin API, and where that can't be
// reached - it answers on the broker's own machine only - it does what every tool can, removes the members and sets the
// offsets, until nobody has come back between the two. What we gave up: there a group with many members may take several
// rounds, and the file to come back with has the offsets from before the first.

// order has the group's coordinator put out the members and set the offsets in one step, by the admin API of any broker, which
// also says what was committed until then. It reports false if no admin API can be reached, or the one that is there does not
// know the order: then nothing was done.
func (s *seek) order(e *env, c *cli.Context, b *batch) (done bool, err error) {
	a, err := e.openAdmin(c)
	if err != nil {
		return false, err
	}
	order := console.GroupSeekOrder{Force: true}
	var planned []*soughtPartition
	for i := range s.out {
		p := &s.out[i]
		if !p.changes() {
			continue
		}
		o := console.GroupOffset{Topic: p.Topic, Partition: p.Partition, Offset: p.Offset, Metadata: p.metadata}
		if p.leaderEpoch >= 0 {
			o.LeaderEpoch = &p.leaderEpoch
		}
		order.Offsets, planned = append(order.Offsets, o), append(planned, p)
	}
	var did console.GroupSought
	err = a.do(c.Context, http.MethodPost, "/v1/groups/"+url.PathEscape(s.group)+"/offsets", order, &did)
	if f, ok := errors.AsType[*failure](err); ok {
		var dial *net.OpError
		older := strings.HasPrefix(f.what, "the admin API has no ")
		if errors.As(f.cause, &dial) && dial.Op == "dial" || f.code == exitUnauthorised || older {
			return false, nil
		}
	}
	if err != nil {
		return false, err
	}
	if len(did.Prior) != len(planned) {
		return false, fmt.Errorf("the broker answers for %d partitions instead of %d", len(did.Prior), len(planned))
	}
	for i, p := range planned {
		p.before, p.Prior, p.Status = &did.Prior[i], did.Prior[i].Offset, "OK"
		b.done++
	}
	return true, nil
}
