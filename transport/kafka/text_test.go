package kafka

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/group"
)

// latin1 is a name as a client in C may send it, and asText what it is to us, as to Apache Kafka.
const (
	latin1 = "caf\xe9\xe9"
	asText = "caf\ufffd\ufffd"
)

// I23: no request has a string that is no text once it is decoded; the metadata would refuse what it is part of.
func TestEveryStringIsText(t *testing.T) {
	var check func(v reflect.Value) int
	check = func(v reflect.Value) (n int) {
		switch v.Kind() {
		case reflect.Struct:
			if v.Type() != reflect.TypeFor[kmsg.Tags]() {
				for i := range v.NumField() {
					n += check(v.Field(i))
				}
			}
		case reflect.Slice:
			for i := range v.Len() {
				n += check(v.Index(i))
			}
		case reflect.Pointer:
			n = check(v.Elem())
		case reflect.String:
			require.Equal(t, asText, v.String())
			n = 1
		}
		return n
	}
	all := 0
	for _, a := range table() {
		if a.key == keyProduce || a.key == keyFetch {
			continue // see validate
		}
		req := kmsg.RequestForKey(a.key)
		fill(reflect.ValueOf(req).Elem(), latin1, kafkaUUID{1})
		require.NoError(t, validate(req))
		all += check(reflect.ValueOf(req).Elem())
	}
	require.Greater(t, all, 100)

	req := kmsg.NewPtrProduceRequest()
	req.Version, req.TransactionID = 9, kmsg.StringPtr(latin1)
	var p produceBody
	require.NoError(t, p.decode(9, req.AppendTo(nil)))
	require.Equal(t, asText, p.transactionalID)
}

// A member of such names, and its commits, get to the coordinator as text.
func TestNamesThatAreNoText(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c, topic := b.dial(t), b.topic(t, 1)
	b.groups.commit = func(r group.CommitRequest) ([]error, error) { return make([]error, len(r.Offsets)), nil }
	req := commitRequest(8, commitTopic(topic, 7))
	req.Group, req.MemberID, req.InstanceID, req.Topics[0].Partitions[0].Metadata = latin1, latin1, kmsg.StringPtr(latin1), kmsg.StringPtr(latin1)
	require.Equal(t, [][]int16{{0}}, commitCodes(ask[*kmsg.OffsetCommitResponse](c, req)))
	b.groups.mu.Lock()
	defer b.groups.mu.Unlock()
	require.Len(t, b.groups.mu.commits, 1)
	r := b.groups.mu.commits[0]
	require.Equal(t, []string{asText, asText, asText, asText}, []string{r.Group, r.Member, r.Instance, r.Offsets[0].Metadata})
}

// I23: what is longer than the protocol allows closes the connection, as with Apache Kafka. Older versions say the length of a
// name in 16 bits: a list of groups with a longer one could be read by nobody.
func TestLongStrings(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	body := func(version int16, name string) []byte {
		req := kmsg.NewPtrJoinGroupRequest()
		req.Version, req.Group = version, name
		return req.AppendTo(nil)
	}
	for _, name := range []string{strings.Repeat("g", maxText+1), strings.Repeat("\xe9", 20_000)} {
		answers, closed := fuzzRequest(t, b, keyJoinGroup, 9, body(9, name))
		require.Zero(t, answers)
		require.True(t, closed)
	}
	answers, _ := fuzzRequest(t, b, keyJoinGroup, 9, body(9, strings.Repeat("g", maxText)))
	require.Equal(t, 1, answers)
	b.groups.mu.Lock()
	defer b.groups.mu.Unlock()
	require.Len(t, b.groups.mu.joins, 1)
}
