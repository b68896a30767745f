package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/integration/check"
	"github.com/millrace/millrace/integration/cluster"
	"github.com/millrace/millrace/transport/console"
)

// statePatience bounds how long the brokers may take to have applied the same metadata once nobody changes it.
const statePatience = 60 * time.Second

// appliedState is the answer of GET /v1/metadata.
type appliedState struct {
	Index int64  `json:"index"`
	Hash  string `json:"hash"`
}

// state asks a node what it has applied of the metadata, and notes it in the history.
func (r *run) state(ctx context.Context, n *cluster.Node) (s appliedState, err error) {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	body, err := n.Get(ctx, "/v1/metadata")
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(body, &s); err != nil {
		return s, fmt.Errorf("read the state of node %d: %w", n.Index, err)
	}
	r.history.Log(check.Op{F: check.State, Type: check.OK, Node: n.Index, Offset: s.Index, Text: s.Hash})
	return s, nil
}

// compareStates asks all nodes until they have applied the same entries. The checker compares the hashes (I14).
func (r *run) compareStates(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, statePatience)
	defer cancel()
	for {
		indexes := map[int64]bool{}
		var err error
		for _, n := range r.cluster.Nodes {
			var s appliedState
			if s, err = r.state(ctx, n); err != nil {
				break
			}
			indexes[s.Index] = true
		}
		if err == nil && len(indexes) == 1 {
			return
		}
		select {
		case <-ctx.Done():
			r.fail("the brokers did not get to the same metadata in %s: indexes %v, %v", statePatience, indexes, err)
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// quorumWhole waits until the metadata quorum has all its voters, and each of them keeps up. One that took its place anew
// votes only once it has kept up for a while: until then the loss of another one's memory may be the loss of the majority,
// which nobody promises to survive.
func (r *run) quorumWhole(ctx context.Context) error {
	why := errors.New("no broker was asked")
	for {
		for _, n := range r.cluster.Nodes {
			if n.Running() {
				why = askQuorum(ctx, n, len(r.cluster.Nodes))
				break
			}
		}
		if why == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the metadata quorum is not whole: %w", why)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func askQuorum(ctx context.Context, n *cluster.Node, brokers int) error {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	body, err := n.Get(ctx, "/v1/quorum")
	if err != nil {
		return err
	}
	var q console.QuorumStatus
	if err := json.Unmarshal(body, &q); err != nil {
		return fmt.Errorf("read the quorum of node %d: %w", n.Index, err)
	}
	voters := 0
	for _, s := range q.Servers {
		if s.Voter && s.Healthy {
			voters++
		}
	}
	if want := min(q.Size, brokers); q.Leader < 0 || voters < want {
		return fmt.Errorf("leader %d, %d of %d voters are well", q.Leader, voters, want)
	}
	return nil
}
