package integration

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
)

// stormCrowd is how many join at once.
const stormCrowd = 200

// crowded has a crowd of members live, and tell where each has got to, until whole says that all are where they should be. The
// coordinator dies when the first have been answered; what was told before does not count.
func crowded[S any](ctx context.Context, r *stormRun, topic string, topicID [16]byte, whole func(map[string]S) bool, live func(ctx context.Context, m *stormMember, tell func(S))) map[string]S {
	t := r.t
	together, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex
	told := map[string]S{}
	var all [stormCrowd]*stormMember
	for i := range all {
		m := newStormMember(r, topic, topicID)
		m.answered = r.isDue
		all[i] = m
	}
	require.NoError(t, r.set.wait(ctx))
	var work sync.WaitGroup
	for _, m := range all {
		work.Go(func() {
			live(together, m, func(s S) {
				if !closed(r.death.over) {
					return // nothing is settled before
				}
				mu.Lock()
				defer mu.Unlock()
				told[m.id] = s
				if len(told) >= stormCrowd && whole(told) {
					stop()
				}
			})
		})
	}
	work.Wait()
	require.NoError(t, r.death.wait(ctx))
	return told
}

// classicCrowd: all are in one generation, each with its own assignment, after few others, and nobody is left out.
func (r *stormRun) classicCrowd(ctx context.Context) {
	var mu sync.Mutex
	generations := map[int32]bool{}
	whole := func(told map[string]int32) bool {
		in := map[int32]int{}
		for _, generation := range told {
			in[generation]++
		}
		for _, n := range in {
			if n == stormCrowd {
				return true
			}
		}
		return false
	}
	told := crowded(ctx, r, "none", [16]byte{}, whole, func(ctx context.Context, m *stormMember, tell func(int32)) {
		for ctx.Err() == nil {
			if err := m.joinAs(ctx, 20*time.Second); err != nil {
				breathe(ctx, 20*time.Millisecond)
				continue
			}
			given, err := m.sync(ctx)
			if err != nil {
				continue
			}
			if string(given) != m.id {
				r.t.Errorf("%s was given the share of %q", m.id, given)
			}
			mu.Lock()
			generations[m.generation] = true
			mu.Unlock()
			for ctx.Err() == nil {
				err := m.heartbeat(ctx)
				if err == nil {
					tell(m.generation)
				} else if putOut(err) || errors.Is(err, kerr.RebalanceInProgress) || errors.Is(err, kerr.IllegalGeneration) {
					break
				}
				breathe(ctx, 200*time.Millisecond)
			}
		}
	})
	require.NoError(r.t, ctx.Err(), "the members do not get together: %v", told)
	r.t.Logf("%d generations until all were in one", len(generations))
	require.LessOrEqual(r.t, len(generations), 12, "generations until all were in one")
}

// owners are who works on each partition.
type owners struct {
	t  *testing.T
	mu sync.Mutex
	of map[int32]*stormMember
}

// take has a member work on just those partitions, none of which another one may have that is still a member (I18).
func (o *owners) take(m *stormMember, partitions []int32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range m.owned {
		if o.of[p] == m {
			delete(o.of, p)
		}
	}
	for _, p := range partitions {
		if other := o.of[p]; other != nil && time.Since(other.heard) < stormBrokerSays {
			o.t.Errorf("partition %d is given to %s, and %s works on it", p, m.id, other.id)
		}
		o.of[p] = m
	}
	m.owned = partitions
}

// beat is a heartbeat of a member that has what it says.
func (o *owners) beat(ctx context.Context, m *stormMember) error {
	sent := time.Now()
	err := m.beat(ctx, 20*time.Second)
	if err == nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		m.heard = sent
	}
	return err
}

// share is where a member of a consumer group has got to.
type share struct {
	epoch int32
	owned []int32
}

// consumerCrowd: all come to one epoch, and each to one partition, which is nobody else's; nor was any on the way there.
func (r *stormRun) consumerCrowd(ctx context.Context) {
	topicID := r.c.topic(ctx, r.t, r.topic, stormCrowd, r.c.id)
	whole := func(told map[string]share) bool {
		epoch, owned := int32(0), map[int32]bool{}
		for _, s := range told {
			if epoch == 0 {
				epoch = s.epoch
			}
			if s.epoch != epoch || len(s.owned) != 1 || owned[s.owned[0]] {
				return false
			}
			owned[s.owned[0]] = true
		}
		return true
	}
	work := &owners{t: r.t, of: map[int32]*stormMember{}}
	told := crowded(ctx, r, r.topic, topicID, whole, func(ctx context.Context, m *stormMember, tell func(share)) {
		for ctx.Err() == nil {
			err := work.beat(ctx, m)
			switch {
			case err == nil && !slices.Equal(m.given, m.owned):
				work.take(m, m.given) // and says so at once
				continue
			case err == nil:
				tell(share{m.generation, m.owned})
			case putOut(err):
				work.take(m, nil)
				m.generation = 0
				continue
			}
			breathe(ctx, 200*time.Millisecond)
		}
	})
	require.NoError(r.t, ctx.Err(), "the members do not get together: %v", told)
	highest := int32(0)
	for _, s := range told {
		highest = max(highest, s.epoch)
	}
	r.t.Logf("epoch %d when each had its partition", highest)
	require.LessOrEqual(r.t, highest, int32(stormCrowd+10), "each that comes begins one epoch, and the death of the coordinator")
}
