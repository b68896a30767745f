package main

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"
)

// consume -f json and produce -f json lose nothing: null, empty, binary, headers, timestamps.
func TestRecordJSONRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := rapid.OneOf(
			rapid.Just[[]byte](nil), rapid.Just([]byte{}), rapid.SliceOf(rapid.Byte()),
			rapid.Map(rapid.String(), func(s string) []byte { return []byte(s) }),
			rapid.Just([]byte("<&> \u2028 \"quoted\" \\ \x00 \n")))
		in := &kgo.Record{
			Topic: "t", Partition: rapid.Int32Range(0, 9).Draw(t, "partition"), Offset: rapid.Int64Range(0, 1<<62).Draw(t, "offset"),
			Timestamp: time.UnixMilli(rapid.Int64Range(0, 1<<45).Draw(t, "timestamp")), Key: data.Draw(t, "key"), Value: data.Draw(t, "value"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "headers") {
			in.Headers = append(in.Headers, kgo.RecordHeader{Key: string(data.Draw(t, "header key")), Value: data.Draw(t, "header value")})
		}
		line := appendRecordJSON(nil, in, false)
		require.True(t, json.Valid(line), "%s", line)
		require.Equal(t, 1, strings.Count(string(line), "\n"), "one line a record")
		r := newJSONReader(strings.NewReader(string(line)), true)
		out, err := r.ReadRecord()
		require.NoError(t, err, "%s", line)
		require.Equal(t, in.Partition, out.Partition)
		require.Equal(t, in.Timestamp.UnixMilli(), out.Timestamp.UnixMilli())
		require.Equal(t, in.Key, out.Key, "%s", line)
		require.Equal(t, in.Value, out.Value, "%s", line)
		require.Equal(t, in.Headers, out.Headers, "%s", line)
		_, err = r.ReadRecord()
		require.ErrorIs(t, err, io.EOF)
	})
}

// The JSON is what --format help says, field by field.
func TestRecordJSONFields(t *testing.T) {
	r := &kgo.Record{Topic: "t", Partition: 2, Offset: 7, Timestamp: time.UnixMilli(1795953600000), Key: nil, Value: []byte("é"), Headers: []kgo.RecordHeader{{Key: "h", Value: nil}, {Key: "b", Value: []byte{0xff}}}}
	require.Equal(t, `{"topic":"t","partition":2,"offset":7,"timestamp":1795953600000,"key":null,"value":"é","headers":[{"key":"h","value":null},{"key":"b","value_base64":"/w=="}]}`+"\n",
		string(appendRecordJSON(nil, r, false)))
	require.Equal(t, `{"topic":"t","partition":2,"offset":7,"timestamp":1795953600000,"key_size":-1,"value_size":2,"headers":[{"key":"h","value":null},{"key":"b","value_base64":"/w=="}]}`+"\n",
		string(appendRecordJSON(nil, r, true)))
	for _, line := range []string{string(appendRecordJSON(nil, r, false)), string(appendRecordJSON(nil, r, true))} {
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		require.NoError(t, d.Decode(&recordJSON{}))
	}
}

// Input that would lose data is refused, with the number of the record.
func TestJSONReaderErrors(t *testing.T) {
	f := func(in, part string) {
		t.Helper()
		r := newJSONReader(strings.NewReader(`{"value":"first"} `+in), strings.Contains(part, "keep-partition"))
		if strings.Contains(part, "keep-partition") {
			r = newJSONReader(strings.NewReader(`{"value":"first","partition":0} `+in), true)
		}
		_, err := r.ReadRecord()
		require.NoError(t, err)
		_, err = r.ReadRecord()
		var got *failure
		require.True(t, errors.As(err, &got), "%v", err)
		require.Contains(t, got.what, "record 2")
		require.Contains(t, got.why, part)
	}
	f(`{"vlaue":"x"}`, "vlaue")
	f(`{"value":{"a":1}}`, "value")
	f(`{"value":"x","value_base64":"eA=="}`, "both")
	f(`{"value_base64":"***"}`, "base64")
	f(`{"control":"commit"}`, "control")
	f(`{"key_size":3,"value_size":4}`, "meta-only")
	f(`{"value":"x"}`, "no partition, and --keep-partition")
	f(`{"value":"x"`, "unexpected EOF")
	f(`nonsense`, "invalid character")
}
