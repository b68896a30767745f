package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"
)

// recordJSON documents the fields of -f json, in their order. A key, value or header that is null is null, an empty one
// is "", and one that is not UTF-8 is in the field of the same name with _base64. `consume -f json | produce -f json`
// loses nothing.
type recordJSON struct {
	Topic       string       `json:"topic" doc:"name"`
	Partition   int32        `json:"partition" doc:"number"`
	Offset      int64        `json:"offset" doc:"offset"`
	Timestamp   int64        `json:"timestamp" doc:"milliseconds since 1970"`
	LogAppend   bool         `json:"log_append_time,omitempty" doc:"true when the broker's clock stamped it"`
	Key         *string      `json:"key" doc:"null, or text"`
	KeyBase64   string       `json:"key_base64,omitempty" doc:"instead of key when it is not UTF-8"`
	Value       *string      `json:"value" doc:"null, or text"`
	ValueBase64 string       `json:"value_base64,omitempty" doc:"instead of value when it is not UTF-8"`
	Headers     []headerJSON `json:"headers,omitempty" doc:"in the record's order"`
	KeySize     int          `json:"key_size,omitempty" doc:"with --meta-only: bytes of the key, -1 for null"`
	ValueSize   int          `json:"value_size,omitempty" doc:"with --meta-only: bytes of the value, -1 for null"`
	Control     string       `json:"control,omitempty" doc:"with --print-control-records: commit or abort"`
}

type headerJSON struct {
	Key         string  `json:"key" doc:"name"`
	KeyBase64   string  `json:"key_base64,omitempty" doc:"instead of key when it is not UTF-8"`
	Value       *string `json:"value" doc:"null, or text"`
	ValueBase64 string  `json:"value_base64,omitempty" doc:"instead of value when it is not UTF-8"`
}

// appendRecordJSON appends one record as a line of JSON. With metaOnly the sizes stand for key and value.
func appendRecordJSON(b []byte, r *kgo.Record, metaOnly bool) []byte {
	b = append(b, `{"topic":`...)
	b = appendJSONString(b, r.Topic)
	b = append(b, `,"partition":`...)
	b = strconv.AppendInt(b, int64(r.Partition), 10)
	b = append(b, `,"offset":`...)
	b = strconv.AppendInt(b, r.Offset, 10)
	b = append(b, `,"timestamp":`...)
	b = strconv.AppendInt(b, r.Timestamp.UnixMilli(), 10)
	if r.Attrs.TimestampType() == 1 {
		b = append(b, `,"log_append_time":true`...)
	}
	if metaOnly {
		b = append(b, `,"key_size":`...)
		b = strconv.AppendInt(b, int64(sizeOf(r.Key)), 10)
		b = append(b, `,"value_size":`...)
		b = strconv.AppendInt(b, int64(sizeOf(r.Value)), 10)
	} else {
		b = appendJSONBytes(b, "key", r.Key)
		b = appendJSONBytes(b, "value", r.Value)
	}
	for i, h := range r.Headers {
		if i == 0 {
			b = append(b, `,"headers":[`...)
		} else {
			b = append(b, ',')
		}
		if utf8.ValidString(h.Key) {
			b = append(b, `{"key":`...)
			b = appendJSONString(b, h.Key)
		} else {
			b = append(b, `{"key_base64":"`...)
			b = base64.StdEncoding.AppendEncode(b, []byte(h.Key))
			b = append(b, '"')
		}
		b = appendJSONBytes(b, "value", h.Value)
		b = append(b, '}')
	}
	if len(r.Headers) > 0 {
		b = append(b, ']')
	}
	if r.Attrs.IsControl() {
		b = append(b, `,"control":`...)
		b = appendJSONString(b, controlName(r))
	}
	return append(b, '}', '\n')
}

// controlName reads the type of a control record: bytes 2 and 3 of its key.
func controlName(r *kgo.Record) string {
	if len(r.Key) >= 4 {
		switch r.Key[3] {
		case 0:
			return "abort"
		case 1:
			return "commit"
		}
	}
	return "unknown"
}

func sizeOf(b []byte) int {
	if b == nil {
		return -1
	}
	return len(b)
}

func appendJSONBytes(b []byte, name string, v []byte) []byte {
	b = append(b, ',', '"')
	b = append(b, name...)
	switch {
	case v == nil:
		return append(b, `":null`...)
	case utf8.Valid(v):
		b = append(b, '"', ':')
		return appendJSONString(b, string(v))
	}
	b = append(b, `_base64":"`...)
	b = base64.StdEncoding.AppendEncode(b, v)
	return append(b, '"')
}

// appendJSONString appends a string of JSON; plain ASCII goes without the encoder.
func appendJSONString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			var out strings.Builder
			e := json.NewEncoder(&out)
			e.SetEscapeHTML(false)
			if err := e.Encode(s); err != nil {
				panic("millrace: a string cannot be encoded: " + err.Error())
			}
			return append(b, strings.TrimSuffix(out.String(), "\n")...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// recordReader reads records to produce, one a call; io.EOF ends them.
type recordReader interface{ ReadRecord() (*kgo.Record, error) }

// jsonReader reads what appendRecordJSON writes. Topic and offset are ignored, the timestamp is kept, the partition only
// with keepPartition. A field that is not known is an error: a mistyped one would lose data.
type jsonReader struct {
	d             *json.Decoder
	keepPartition bool
	n             int // records read
}

func newJSONReader(r io.Reader, keepPartition bool) *jsonReader {
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	return &jsonReader{d: d, keepPartition: keepPartition}
}

// ReadRecord returns the next record, or io.EOF.
func (j *jsonReader) ReadRecord() (*kgo.Record, error) {
	in := struct {
		Topic       string  `json:"topic"`
		Partition   *int32  `json:"partition"`
		Offset      int64   `json:"offset"`
		Timestamp   *int64  `json:"timestamp"`
		LogAppend   bool    `json:"log_append_time"`
		Key         *string `json:"key"`
		KeyBase64   *string `json:"key_base64"`
		Value       *string `json:"value"`
		ValueBase64 *string `json:"value_base64"`
		KeySize     *int    `json:"key_size"`
		ValueSize   *int    `json:"value_size"`
		Control     string  `json:"control"`
		Headers     []struct {
			Key         string  `json:"key"`
			KeyBase64   *string `json:"key_base64"`
			Value       *string `json:"value"`
			ValueBase64 *string `json:"value_base64"`
		} `json:"headers"`
	}{}
	if err := j.d.Decode(&in); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, io.EOF
		}
		return nil, j.bad(strings.TrimPrefix(err.Error(), "json: "))
	}
	if in.Control != "" {
		return nil, j.bad("it is a control record, which only the broker writes")
	}
	if in.KeySize != nil || in.ValueSize != nil {
		return nil, j.bad("it was written with --meta-only, so key and value are lost")
	}
	r := &kgo.Record{Partition: -1}
	var err error
	if r.Key, err = textOrBase64("key", in.Key, in.KeyBase64); err != nil {
		return nil, j.bad(err.Error())
	}
	if r.Value, err = textOrBase64("value", in.Value, in.ValueBase64); err != nil {
		return nil, j.bad(err.Error())
	}
	for _, h := range in.Headers {
		header := kgo.RecordHeader{Key: h.Key}
		if h.KeyBase64 != nil {
			key, err := textOrBase64("key", nil, h.KeyBase64)
			if err != nil {
				return nil, j.bad("a header's " + err.Error())
			}
			header.Key = string(key)
		}
		if header.Value, err = textOrBase64("value", h.Value, h.ValueBase64); err != nil {
			return nil, j.bad("a header's " + err.Error())
		}
		r.Headers = append(r.Headers, header)
	}
	if in.Timestamp != nil && *in.Timestamp >= 0 {
		r.Timestamp = time.UnixMilli(*in.Timestamp)
	}
	if j.keepPartition {
		if in.Partition == nil {
			return nil, j.bad("it has no partition, and --keep-partition was given")
		}
		r.Partition = *in.Partition
	}
	j.n++
	return r, nil
}

func (j *jsonReader) bad(why string) error {
	return &failure{
		code: exitFailed, what: fmt.Sprintf("record %d of the input cannot be read", j.n+1), why: why,
		fix: `one object a line, as {"key":"k","value":"v"}; millrace topic consume --format help   lists the fields`,
	}
}

func textOrBase64(name string, text, encoded *string) ([]byte, error) {
	switch {
	case text != nil && encoded != nil:
		return nil, fmt.Errorf("%s and %s_base64 are both there", name, name)
	case text != nil:
		return []byte(*text), nil
	case encoded == nil:
		return nil, nil
	}
	b, err := base64.StdEncoding.DecodeString(*encoded)
	if err != nil {
		return nil, fmt.Errorf("%s_base64 is not base64", name)
	}
	if b == nil {
		b = []byte{}
	}
	return b, nil
}
