package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// keeper starts programs again whenever they end, until it is closed.
type keeper struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	kept   []*program
	mu     sync.Mutex
	err    error
}

// keep starts programs and keeps them running.
func keep(ctx context.Context, programs ...*program) *keeper {
	k := &keeper{kept: programs}
	ctx, k.cancel = context.WithCancel(ctx)
	for _, p := range programs {
		k.wg.Go(func() {
			for ctx.Err() == nil {
				if err := p.start(); err != nil {
					k.mu.Lock()
					k.err = err
					k.mu.Unlock()
					return
				}
				select {
				case <-p.ended():
				case <-ctx.Done():
					return
				}
				pause(ctx, 500*time.Millisecond)
			}
		})
	}
	return k
}

// failure says which program could not be started.
func (k *keeper) failure() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

// close asks the programs to end, and ends those that do not within patience.
func (k *keeper) close(patience time.Duration) (late []error) {
	k.cancel()
	k.wg.Wait()
	errs := make([]error, len(k.kept))
	var wg sync.WaitGroup
	for i, p := range k.kept {
		wg.Go(func() { errs[i] = p.stop(patience) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			late = append(late, err)
		}
	}
	return late
}

// Bounds of a death: how long a broker stays away, and how long one waits until its replicas are in step again before the next one may go.
const (
	awayAtLeast = time.Second
	awayAtMost  = 4 * time.Second
	untilInStep = 3 * time.Minute
)

// deaths kills the brokers one after the other, and one of the programs after each, for as long as ctx lasts. The last broker is back when it
// returns; the programs come back by themselves.
func (s *system) deaths(ctx, all context.Context, random *rand.Rand, victims []*program) (brokersKilled, programsKilled int, err error) {
	first := random.IntN(len(s.brokers))
	for i := 0; ctx.Err() == nil; i++ {
		step, cancel := context.WithTimeout(all, untilInStep)
		err := s.healthy(step)
		cancel()
		if err != nil {
			return brokersKilled, programsKilled, fmt.Errorf("before a broker may be killed: %w", err)
		}
		pause(ctx, time.Duration(random.Int64N(int64(2*time.Second))))
		if ctx.Err() != nil {
			break
		}
		b := s.brokers[(first+i)%len(s.brokers)]
		if err := errors.Join(s.dead()...); err != nil {
			return brokersKilled, programsKilled, err
		}
		say("kill -9 of %s", b.name())
		if err := b.Kill(); err != nil {
			return brokersKilled, programsKilled, err
		}
		brokersKilled++
		away := awayAtLeast + time.Duration(random.Int64N(int64(awayAtMost-awayAtLeast)))
		pause(all, away/2)
		if len(victims) > 0 && ctx.Err() == nil {
			p := victims[i%len(victims)]
			say("kill -9 of %s", p.name)
			if err := p.kill(); err != nil {
				return brokersKilled, programsKilled, err
			}
			programsKilled++
		}
		pause(all, away/2)
		if err := b.Start(); err != nil {
			return brokersKilled, programsKilled, err
		}
	}
	step, cancel := context.WithTimeout(all, untilInStep)
	defer cancel()
	if err := s.healthy(step); err != nil {
		return brokersKilled, programsKilled, fmt.Errorf("after the last broker was killed: %w", err)
	}
	return brokersKilled, programsKilled, nil
}
