package group

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A commit of a member that speaks KIP-848 is never answered with ErrRebalanceInProgress, which is an answer to classic members:
// not while the group reconciles, not while its changes are on their way, and not while classic members come and go and the group
// changes its protocol with them. Neither is a commit of a classic member, as long as the group is a consumer group; that one
// learns from its heartbeats that it has to join again.
func TestCommitsOfConsumerGroups(t *testing.T) {
	seen := map[error]int{}
	older := 0 // commits of classic members in a generation that is over
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 7))
		b := newConsumerBench(t)
		b.settings.InitialRebalanceDelay = 0
		epochs := map[string]int32{}
		generation, classic := int32(0), ""
		commit := func(id string, epoch int32) {
			modern := b.core.consumer
			err := b.core.Step(b.now, &Commit{&CommitRequest{Group: "g", Member: id, Generation: epoch}})[0].Err
			if modern == nil {
				return
			}
			require.NotErrorIs(t, err, ErrRebalanceInProgress, "seed %d, member %s", seed, id)
			seen[err]++
			m := modern.members[id]
			if m == nil {
				return
			}
			if epoch <= m.record.MemberEpoch {
				require.NoError(t, err, "an epoch that it has had: Apply says whether the partitions are its own (KIP-1251)")
			}
			future := b.core.Step(b.now, &Commit{&CommitRequest{Group: "g", Member: id, Generation: m.record.MemberEpoch + 1}})[0].Err
			none := b.core.Step(b.now, &Commit{&CommitRequest{Group: "g", Member: id, Generation: -1}})[0].Err
			if m.classical() {
				older += int(min(1, m.record.MemberEpoch-epoch))
				require.ErrorIs(t, future, ErrIllegalGeneration)
				require.ErrorIs(t, none, ErrIllegalGeneration)
			} else {
				require.ErrorIs(t, future, ErrStaleMemberEpoch)
				require.ErrorIs(t, none, ErrUnknownMember)
			}
		}
		for range 60 {
			b.now.At += Instant(time.Second)
			id := string(rune('m' + r.IntN(3)))
			switch r.IntN(8) {
			case 0, 1:
				w := b.send(joinRequest(id, "a"))
				if res, ok := b.got[w]; ok && res.Err == nil {
					epochs[id] = res.Epoch
				}
			case 2:
				if epochs[id] > 0 {
					w := b.send(ConsumerHeartbeatRequest{Member: id, Epoch: epochs[id], RebalanceTimeout: -1, HasOwned: r.IntN(2) == 0})
					if res, ok := b.got[w]; ok && res.Err == nil {
						epochs[id] = res.Epoch
					}
				}
			case 3:
				if epochs[id] > 0 && r.IntN(2) == 0 {
					b.send(ConsumerHeartbeatRequest{Member: id, Epoch: -1})
					delete(epochs, id)
				}
			case 4:
				if res := b.join(classic); res != nil && res.Err == nil {
					classic, generation = res.Member, res.Generation
				}
			case 5:
				b.hold = !b.hold
				if !b.hold {
					b.commit()
				}
			default:
				b.topics.set("a", 1, 4+int32(r.IntN(3)))
			}
			b.step(&Tick{})
			for id, epoch := range epochs {
				commit(id, epoch)
			}
			if classic != "" {
				commit(classic, generation)
			}
		}
	}
	require.Positive(t, seen[nil])
	require.Positive(t, seen[ErrUnknownMember])
	require.Positive(t, older)
}
