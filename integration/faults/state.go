package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/millrace/millrace/integration/check"
	"github.com/millrace/millrace/integration/cluster"
)

// statePatience bounds how long the brokers may take to have applied the same metadata once nobody changes it.
const statePatience = 30 * time.Second

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
