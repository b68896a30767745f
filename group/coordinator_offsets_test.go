package group

import (
	"encoding/binary"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

// consumerSays is what a consumer tells its classic group.
func consumerSays(topics ...string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0, 0}, uint32(len(topics)))
	for _, name := range topics {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(name))), name...)
	}
	return append(b, 0xff, 0xff, 0xff, 0xff)
}

// OffsetDelete: offsets of topics that members read stay, read by name, by a regular expression, or in words that nobody
// understands; those of other topics go, and all of a group whose members are no consumers stay.
func TestDeleteOffsetsOfReadTopics(t *testing.T) {
	x := newIdeal(t, 1)
	ids := map[string]metadata.TopicID{"orders": {1}, "bills": {2}}
	for name, id := range ids {
		require.NoError(t, x.do(func(r *metadata.Replica) error {
			return r.CreateTopic(name, id, nil, [][]metadata.BrokerID{{0}})
		}))
	}
	c := x.coordinators(t, 1, nil)[0]
	classic := metadata.GroupChange{Type: metadata.ClassicGroup, State: metadata.GroupStable, Generation: 1, ProtocolType: "consumer", Protocol: "range"}
	consumer := metadata.GroupChange{Type: metadata.ConsumerGroup, State: metadata.GroupStable, Generation: 1, ProtocolType: "consumer"}
	connect := classic
	connect.ProtocolType = "connect"
	protocols := func(b []byte) *metadata.GroupMember {
		return &metadata.GroupMember{ID: "m", MemberEpoch: 1, SessionTimeout: time.Hour, Protocols: []metadata.GroupProtocol{{Name: "range", Metadata: b}}}
	}
	for name, tc := range map[string]struct {
		group         metadata.GroupChange
		member        *metadata.GroupMember
		whole         error
		orders, bills error
	}{
		"classic":        {classic, protocols(consumerSays("orders")), nil, ErrSubscribed, nil},
		"not understood": {classic, protocols([]byte("?")), nil, ErrSubscribed, ErrSubscribed},
		"Connect":        {connect, protocols(consumerSays("orders")), ErrNonEmpty, nil, nil},
		"KIP-848":        {consumer, &metadata.GroupMember{ID: "m", MemberEpoch: 1, SessionTimeout: time.Hour, Subscription: []string{"orders"}}, nil, ErrSubscribed, nil},
		"KIP-848, regex": {consumer, &metadata.GroupMember{ID: "m", MemberEpoch: 1, SessionTimeout: time.Hour, SubscriptionRegex: "ord.+"}, nil, ErrSubscribed, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := idealStore{x, 0}
			asked := []TopicIDPartition{{TopicID: ids["orders"]}, {TopicID: ids["bills"]}}
			// Before there are members: the coordinator, which runs beside, may give those another epoch at once.
			for _, tp := range asked {
				s.CommitOffsets(metadata.OffsetCommit{Group: name, Generation: -1, Offsets: []OffsetEntry{{TopicID: tp.TopicID, Offset: 1}}}, func(errs []error, err error) {
					require.NoError(t, err)
					require.NoError(t, errors.Join(errs...))
				})
			}
			tc.group.Group, tc.group.Revision, tc.group.Upsert = name, s.Image().Group(name).Revision, []*metadata.GroupMember{tc.member}
			s.ChangeGroup(tc.group, func(_ uint64, err error) { require.NoError(t, err) })
			c.DeleteOffsets(name, asked, func(errs []error, err error) {
				if tc.whole != nil {
					require.ErrorIs(t, err, tc.whole)
					return
				}
				require.NoError(t, err)
				require.Equal(t, []error{tc.orders, tc.bills}, errs)
				for i, kept := range []bool{tc.orders != nil, tc.bills != nil} {
					_, there := s.Image().Offset(name, asked[i].TopicID, 0)
					require.Equal(t, kept, there)
				}
			})
		})
	}
}

// A member of a consumer group that was put out, and asks for its offsets before it knows, is told to try again for as long as it may not
// know, also by a coordinator that has only the record: the other answer ends Java's consumer.
func TestFetchOfMemberPutOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newIdeal(t, 1)
		c := x.coordinators(t, 1, nil)[0]
		synctest.Wait()
		for name, at := range map[string]int64{"put out": time.Now().UnixMilli(), "left": 0} {
			idealStore{x, 0}.ChangeGroup(metadata.GroupChange{Group: name, Type: metadata.ConsumerGroup, Generation: 2, ProtocolType: "consumer", PutOutAt: at},
				func(_ uint64, err error) { require.NoError(t, err) })
		}
		fetch := func(group string) error {
			_, err := c.Fetch(FetchRequest{Group: group, Member: "m", MemberEpoch: 1, All: true})
			return err
		}
		require.ErrorIs(t, fetch("put out"), ErrCoordinatorLoading)
		require.ErrorIs(t, fetch("left"), ErrUnknownMember)
		time.Sleep(time.Duration(unawareFor))
		require.ErrorIs(t, fetch("put out"), ErrUnknownMember, "not for ever")
		require.NoError(t, c.Close())
	})
}

// KIP-211: while a classic group prepares a rebalance, which its committed record does not show, its coordinator says that it
// is not settled.
func TestSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newIdeal(t, 1)
		c := x.coordinators(t, 1, nil)[0]
		synctest.Wait()
		require.True(t, c.Settled("g"), "there is none")
		r := join(c, "g", "")
		require.NoError(t, r.Err)
		require.False(t, c.Settled("g"), "its members do not know yet what is theirs")
		synced := make(chan SyncResult, 1)
		c.Sync(SyncRequest{Group: "g", Member: r.Member, Generation: r.Generation, Assignments: []Assignment{{Member: r.Member, Bytes: []byte("a")}}}, func(r SyncResult) { synced <- r })
		require.NoError(t, (<-synced).Err)
		require.True(t, c.Settled("g"))
		gone := c.Join(JoinRequest{
			Group: "g", ClientID: "c", SessionTimeout: 10 * time.Second, RebalanceTimeout: 30 * time.Second, ProtocolType: "test", Protocols: []Protocol{{Name: "p"}},
		}, func(JoinResult) {})
		require.False(t, c.Settled("g"))
		require.Equal(t, metadata.GroupStable, x.image.Load().Group("g").State)
		gone() // and so it waits for the other alone
		require.False(t, c.Settled("g"))
		require.NoError(t, c.Close())
	})
}
