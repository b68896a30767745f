package group

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

// transactional gives the store a topic and a transactional id with a producer; the ids are those that transactions use.
func (x *ideal) transactional(t testing.TB, topic metadata.TopicID, id string) (producerID int64) {
	t.Helper()
	require.NoError(t, x.do(func(r *metadata.Replica) (err error) {
		if err := r.CreateTopic("t", topic, nil, [][]metadata.BrokerID{{0}, {0}, {0}}); err != nil {
			return err
		}
		if producerID, _, err = r.AllocateProducerIDs(); err != nil {
			return err
		}
		_, err = r.ChangeTransaction(0, x.epochs[0], metadata.TransactionChange{
			ID: id, ProducerID: producerID, LastProducerID: -1, LastProducerEpoch: -1, MarkerProducerID: -1, MarkerEpoch: -1, Timeout: time.Minute, Version: 2,
		})
		return err
	}))
	return producerID
}

// end decides the open transaction, with another epoch.
func (x *ideal) end(t testing.TB, id string, commit bool) {
	t.Helper()
	require.NoError(t, x.do(func(r *metadata.Replica) error {
		tx := r.Image().Transaction(id)
		ch := metadata.TransactionChange{
			ID: id, Revision: tx.Revision, State: metadata.TransactionPrepareAbort, ProducerID: tx.ProducerID, ProducerEpoch: tx.ProducerEpoch + 1,
			LastProducerID: -1, LastProducerEpoch: -1, MarkerProducerID: tx.ProducerID, MarkerEpoch: tx.ProducerEpoch + 1, Timeout: tx.Timeout, Version: 2,
		}
		if commit {
			ch.State = metadata.TransactionPrepareCommit
		}
		_, err := r.ChangeTransaction(0, x.epochs[0], ch)
		return err
	}))
}

// I8, G12: offsets that are committed with a transaction are seen by nobody before it is committed, make those who want stable
// offsets wait meanwhile, and are gone without a trace when it is aborted (protocol.md trap 23).
func TestCommitTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newIdeal(t, 1)
		topic := metadata.TopicID{9}
		pid := x.transactional(t, topic, "a")
		c := x.coordinators(t, 1, nil)[0]
		synctest.Wait()
		tp := func(p int32) TopicIDPartition { return TopicIDPartition{TopicID: topic, Partition: p} }
		commit := func(epoch int16, offset int64) error {
			var out error
			c.CommitTransaction(CommitTransactionRequest{
				CommitRequest:   CommitRequest{Group: "g", Generation: -1, Offsets: []OffsetEntry{{TopicID: topic, Partition: 0, Offset: offset, LeaderEpoch: 3}}},
				TransactionalID: "a", ProducerID: pid, ProducerEpoch: epoch, Implicit: true,
			}, func(errs []error, err error) {
				if out = err; err == nil && len(errs) > 0 {
					out = errs[0]
				}
			})
			return out
		}
		fetch := func(stable, all bool) []FetchedOffset {
			r := FetchRequest{Group: "g", RequireStable: stable, All: all}
			if !all {
				r.Partitions = []TopicIDPartition{tp(0), tp(1)}
			}
			out, err := c.Fetch(r)
			require.NoError(t, err)
			return out
		}
		none := FetchedOffset{Offset: -1, LeaderEpoch: -1}
		at := func(p int32, f FetchedOffset) FetchedOffset { f.TopicIDPartition = tp(p); return f }

		require.NoError(t, commit(0, 7))
		require.Equal(t, []FetchedOffset{at(0, none), at(1, none)}, fetch(false, false))
		require.Equal(t, []FetchedOffset{at(0, FetchedOffset{Offset: -1, LeaderEpoch: -1, Err: ErrUnstableOffset}), at(1, none)}, fetch(true, false))
		x.end(t, "a", true)
		want := at(0, FetchedOffset{Offset: 7, LeaderEpoch: 3})
		require.Equal(t, []FetchedOffset{want, at(1, none)}, fetch(true, false))

		require.ErrorIs(t, commit(0, 8), metadata.ErrProducerFenced)
		require.NoError(t, commit(1, 9))
		require.Equal(t, []FetchedOffset{want}, fetch(false, true), "what is in force")
		require.Equal(t, []FetchedOffset{at(0, FetchedOffset{Offset: -1, LeaderEpoch: -1, Err: ErrUnstableOffset})}, fetch(true, true))
		x.end(t, "a", false)
		require.Equal(t, []FetchedOffset{want}, fetch(true, true))
		require.NoError(t, c.Close())
	})
}

// G14, KIP-447: a member that names itself is fenced by its generation; a client from before that, which names nothing, by its
// producer epoch alone, also while the group has members.
func TestCommitTransactionFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newIdeal(t, 1)
		topic := metadata.TopicID{9}
		pid := x.transactional(t, topic, "a")
		c := x.coordinators(t, 1, nil)[0]
		synctest.Wait()
		commit := func(member, instance string, generation int32) error {
			var out error
			c.CommitTransaction(CommitTransactionRequest{
				CommitRequest:   CommitRequest{Group: "g", Member: member, Instance: instance, Generation: generation, Offsets: []OffsetEntry{{TopicID: topic, Offset: 1, LeaderEpoch: -1}}},
				TransactionalID: "a", ProducerID: pid, Implicit: true,
			}, func(_ []error, err error) { out = err })
			return out
		}
		require.ErrorIs(t, commit("", "", 0), ErrIllegalGeneration, "of a group that is not there")
		require.NoError(t, commit("", "", -1))
		j := join(c, "g", "")
		require.NoError(t, j.Err)
		require.NoError(t, commit("", "", -1), "before KIP-447")
		require.NoError(t, commit(j.Member, "", j.Generation), "also before the assignments are known")
		require.ErrorIs(t, commit(j.Member, "", j.Generation-1), ErrIllegalGeneration)
		require.ErrorIs(t, commit("somebody", "", j.Generation), ErrUnknownMember)
		require.ErrorIs(t, commit("", "", j.Generation), ErrUnknownMember)
		require.NoError(t, c.Close())
	})
}
