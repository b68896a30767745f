package kafka

import (
	"context"
	"sync"
)

// ProducerIDs hands out producer ids from a block that the controller gave this
// broker. The rest of a block dies with the process: an id is never given out
// twice (P5). All methods may be called from any goroutine.
type ProducerIDs struct {
	allocate func(ctx context.Context) (first int64, count int, err error)

	// refill is held while a block is asked for, so that it is asked for once.
	refill sync.Mutex

	mu struct {
		sync.Mutex
		first, after int64 // what is left of the block: first ≤ id < after
	}
}

// NewProducerIDs returns one that asks allocate for blocks.
func NewProducerIDs(allocate func(ctx context.Context) (first int64, count int, err error)) *ProducerIDs {
	return &ProducerIDs{allocate: allocate}
}

// take returns an id of the present block, or false when it is used up.
func (p *ProducerIDs) take() (int64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.first == p.mu.after {
		return 0, false
	}
	p.mu.first++
	return p.mu.first - 1, true
}

// Next returns an id, waiting for the controller when the block is used up.
func (p *ProducerIDs) Next(ctx context.Context) (int64, error) {
	for {
		if id, ok := p.take(); ok {
			return id, nil
		}
		if err := p.fill(ctx); err != nil {
			return 0, err
		}
	}
}

func (p *ProducerIDs) fill(ctx context.Context) error {
	p.refill.Lock()
	defer p.refill.Unlock()
	p.mu.Lock()
	filled := p.mu.first != p.mu.after
	p.mu.Unlock()
	if filled { // by the one we waited for
		return nil
	}
	first, count, err := p.allocate(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.first, p.mu.after = first, first+int64(count)
	return nil
}
