package kafka

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fill puts something into every field of a request: two elements in each slice,
// values that mean something to some handler.
func fill(v reflect.Value, topic string, id kafkaUUID) {
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[kmsg.Tags]() {
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).Name != "Version" {
				fill(v.Field(i), topic, id)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes(batch(1))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(v.Index(i), topic, id)
			if v.Index(i).Kind() == reflect.Int32 {
				v.Index(i).SetInt(int64(i))
			}
		}
	case reflect.Array:
		v.Set(reflect.ValueOf(id))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), topic, id)
	case reflect.String:
		v.SetString(topic)
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	}
}

// fuzzed is the broker of the fuzzer: limits are low, so that what a request may make us
// do for good (topics, waiting) stays small.
var fuzzed struct {
	sync.Once
	broker *testBroker
	err    error
}

func fuzzBroker(t testing.TB) *testBroker {
	t.Helper()
	fuzzed.Do(func() {
		var tmp string
		if tmp, fuzzed.err = os.MkdirTemp("", "millrace-kafka-fuzz-"); fuzzed.err != nil {
			return
		}
		fuzzed.broker, fuzzed.err = startBroker(tmp, brokerEdit{
			static:              map[string]string{"auto.create.topics.enable": "false"},
			kafka:               func(c *Config) { c.AdminTimeout = 200 * time.Millisecond },
			partitionsInRequest: 3,
		})
	})
	require.NoError(t, fuzzed.err)
	return fuzzed.broker
}

// fuzzRequest sends one request with an ApiVersions request behind it, and reads
// until that is answered or the connection is closed. It reports how many answers
// came before.
func fuzzRequest(t testing.TB, b *testBroker, key, version int16, body []byte) (answers int, closed bool) {
	a := b.handlers.lookup(key, version)
	require.NotNil(t, a)
	conn, err := net.Dial("tcp", b.addr())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(testDeadline)))
	frame := func(key, version int16, correlation int32, flexible bool, body []byte) []byte {
		f := make([]byte, 4, 32+len(body))
		f = binary.BigEndian.AppendUint16(f, uint16(key))
		f = binary.BigEndian.AppendUint16(f, uint16(version))
		f = binary.BigEndian.AppendUint32(f, uint32(correlation))
		f = binary.BigEndian.AppendUint16(f, 0xffff)
		if flexible {
			f = append(f, 0)
		}
		f = append(f, body...)
		binary.BigEndian.PutUint32(f, uint32(len(f)-4))
		return f
	}
	out := frame(key, version, 1, a.flexible >= 0 && version >= a.flexible, body)
	out = append(out, frame(keyAPIVersions, 0, 2, false, nil)...)
	if _, err := conn.Write(out); err != nil {
		return 0, true
	}
	for {
		var head [8]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			var timeout net.Error
			if e, ok := err.(net.Error); ok && e.Timeout() {
				timeout = e
			}
			require.Nil(t, timeout, "%s v%d: neither an answer nor an end: %x", a.name, version, body)
			return answers, true
		}
		size := binary.BigEndian.Uint32(head[:])
		if _, err := io.CopyN(io.Discard, conn, int64(size)-4); err != nil {
			return answers, true
		}
		if binary.BigEndian.Uint32(head[4:]) == 2 {
			return answers, false
		}
		answers++
	}
}

// fuzzAllocations is what one request may make the whole process allocate beside a
// multiple of its size: encoding, raft, the log, the test itself.
const fuzzAllocations = 16 << 20

// FuzzRequest sends any body as any request to a whole broker. I23: nothing makes
// it panic or allocate more than its share; N11: it answers once or closes.
func FuzzRequest(f *testing.F) {
	b := fuzzBroker(f)
	topic := b.topic(f, 2)
	apis := table()
	for i, a := range apis {
		for version := a.minServed; version <= a.max; version++ {
			for _, full := range []bool{false, true} {
				req := kmsg.RequestForKey(a.key)
				req.SetVersion(version)
				if full {
					fill(reflect.ValueOf(req).Elem(), topic.Name, topic.ID)
				}
				f.Add(uint8(i), version, req.AppendTo(nil))
			}
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, version int16, body []byte) {
		a := apis[int(which)%len(apis)]
		if n := a.max - a.minServed + 1; version < a.minServed || version > a.max {
			version = a.minServed + (version%n+n)%n
		}
		if a.key == keyFetch { // no waiting: the deadline of a test is shorter than max wait may be
			at := 4
			if version >= 15 {
				at = 0
			}
			if len(body) >= at+4 {
				binary.BigEndian.PutUint32(body[at:], 1)
			}
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		answers, closed := fuzzRequest(t, b, a.key, version, body)
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > fuzzAllocations+64*uint64(len(body)) {
			t.Fatalf("%s v%d: %d bytes allocated for %d: %x", a.name, version, used, len(body), body)
		}
		if answers > 1 || answers == 0 && !closed && a.key != keyProduce {
			t.Fatalf("%s v%d: %d answers, closed %v: %x", a.name, version, answers, closed, body)
		}
		if logs := b.logs.String(); strings.Contains(logs, "panic") {
			t.Fatalf("%s v%d: %x: %s", a.name, version, body, logs)
		}
		b.logs.reset()
	})
}

// Every field of every request in every version filled, and every array with
// nothing in it, null where that is allowed (trap 33): each gets an answer.
func TestEveryField(t *testing.T) {
	b := fuzzBroker(t)
	for _, a := range table() {
		for version := a.minServed; version <= a.max; version++ {
			topic := b.topic(t, 2)
			req := kmsg.RequestForKey(a.key)
			req.SetVersion(version)
			fill(reflect.ValueOf(req).Elem(), topic.Name, topic.ID)
			for _, body := range [][]byte{req.AppendTo(nil), emptied(req, false).AppendTo(nil), emptied(req, true).AppendTo(nil)} {
				answers, closed := fuzzRequest(t, b, a.key, version, body)
				require.Equal(t, 1, answers, "%s v%d: %x", a.name, version, body)
				require.False(t, closed)
			}
		}
	}
	require.NotContains(t, b.logs.String(), "panic")
}

// emptied empties the innermost slices of a request, to null or to none.
func emptied(req kmsg.Request, null bool) kmsg.Request {
	var empty func(v reflect.Value) (slices int)
	empty = func(v reflect.Value) (slices int) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				if v.Type().Field(i).IsExported() {
					slices += empty(v.Field(i))
				}
			}
		case reflect.Slice:
			if v.Type().Elem().Kind() == reflect.Uint8 {
				return 0
			}
			inner := 0
			for i := range v.Len() {
				inner += empty(v.Index(i))
			}
			if inner == 0 {
				if null {
					v.SetZero()
				} else {
					v.Set(reflect.MakeSlice(v.Type(), 0, 0))
				}
			}
			return 1
		}
		return slices
	}
	empty(reflect.ValueOf(req).Elem())
	return req
}
