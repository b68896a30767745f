package peer

import (
	"context"
	"errors"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
)

// fetcher implements replication.Fetcher.
type fetcher struct {
	p      *Peers
	broker metadata.BrokerID
}

func newFetcher(p *Peers, broker metadata.BrokerID) *fetcher {
	return &fetcher{p: p, broker: broker}
}

// Fetch implements replication.Fetcher.
func (f *fetcher) Fetch(context.Context, *replication.FollowerFetch) (*replication.FollowerAnswer, error) {
	return nil, errors.New("peer: fetching comes next")
}

// Wake implements replication.Fetcher.
func (f *fetcher) Wake() {}

// Close implements replication.Fetcher.
func (f *fetcher) Close() {}
