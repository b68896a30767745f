package record

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// steps is the order of protocol.md section 5: for each rule a batch's damage
// and the error it must give. Each damage leaves the other rules unbroken.
var steps = []struct {
	name   string
	damage func(Batch) []byte
	rules  func(*Rules)
	is     error
	not    error
}{
	{name: "two batches", is: ErrInvalidRecord, damage: func(b Batch) []byte { return append(clone(b), sample(CodecNone, 1, 1)...) }},
	{name: "magic", is: ErrInvalidRecord, damage: func(b Batch) []byte { b[atMagic] = 1; return b }},
	{name: "magic of the future", is: ErrCorrupt, damage: func(b Batch) []byte { b[atMagic] = 3; return b }},
	{name: "base offset", is: ErrInvalidRecord, damage: func(b Batch) []byte { b.SetBaseOffset(1); return b }},
	{name: "size", is: ErrTooLarge, rules: func(r *Rules) { r.MaxBytes = 100 }},
	{name: "checksum", is: ErrCorrupt, damage: func(b Batch) []byte { b[len(b)-1] ^= 1; return b }},
	{name: "count", is: ErrInvalidRecord, damage: sealed(func(b Batch) { put32(b, atCount, b.Count()+1) })},
	{name: "control", is: ErrInvalidRecord, damage: sealed(func(b Batch) { b.setAttributes(b.Attributes() | attrControl) })},
	{name: "sequence", is: ErrInvalidRecord, damage: sealed(func(b Batch) { put64(b, atProducerID, 0); put32(b, atBaseSequence, -1) })},
	{name: "zstd too early", is: ErrUnsupportedCodec, rules: func(r *Rules) { r.ProduceVersion = 6 }, damage: sealed(func(b Batch) { setCodec(b, CodecZstd) })},
	{name: "timestamp type", is: ErrInvalidTimestamp, damage: sealed(func(b Batch) { b.setAttributes(b.Attributes() | attrLogAppendTime) })},
	{name: "unreadable", is: ErrInvalidRecord, not: ErrCorrupt, rules: checked, damage: sealed(func(b Batch) { b[HeaderBytes] = 0x7e })},
	{name: "key", is: ErrInvalidRecord, rules: func(r *Rules) { r.KeyRequired = true }},
	{name: "timestamp", is: ErrInvalidTimestamp, rules: func(r *Rules) { r.AfterMax = 0 }},
	{name: "offset delta", is: ErrInvalidRecord, rules: checked, damage: sealed(func(b Batch) { b[HeaderBytes+3] = 8 })},
}

func checked(r *Rules) { r.CheckRecords = true }

func sealed(change func(Batch)) func(Batch) []byte {
	return func(b Batch) []byte { return edit(b, change) }
}

// stepBatch is good under accepting rules, has no key in its second record and
// its last one is dated an hour after now.
func stepBatch() Batch {
	b := NewBuilder(CodecNone)
	value := make([]byte, 50)
	b.Add(now, []byte("k"), value, nil)
	b.Add(now+1, nil, value, nil)
	b.Add(now+3_600_000, []byte("k"), value, nil)
	return b.Build()
}

func TestValidateEachRule(t *testing.T) {
	_, err := Validate(stepBatch(), accepting())
	require.NoError(t, err)
	for _, step := range steps {
		t.Run(step.name, func(t *testing.T) {
			rules := accepting()
			if step.rules != nil {
				step.rules(&rules)
			}
			b := []byte(stepBatch())
			if step.damage != nil {
				b = step.damage(b)
			}
			_, err := Validate(b, rules)
			requireClass(t, err, step.is)
			if step.not != nil {
				require.NotErrorIs(t, err, step.not)
			}
			var invalid *InvalidError
			require.Equal(t, step.is == ErrInvalidRecord || step.is == ErrInvalidTimestamp, errors.As(err, &invalid),
				"what the producer must be told record by record is an InvalidError")
		})
	}
}

// requireClass demands that err is want and none of the other classes.
func requireClass(t *testing.T, err, want error) {
	t.Helper()
	for _, class := range []error{ErrCorrupt, ErrShort, ErrTooLarge, ErrUnsupportedCodec, ErrInvalidTimestamp, ErrInvalidRecord, ErrDecompressedTooLarge} {
		require.Equal(t, class == want, errors.Is(err, class), "%v against class %q", err, class)
	}
}

// Of two broken rules the earlier decides. The damages are told apart by error
// and message, so the message of the pair must be that of the first alone.
func TestValidateEarlierRuleWins(t *testing.T) {
	message := func(indexes ...int) string {
		rules, b := accepting(), []byte(stepBatch())
		// The later damage first: the checksum must break last and the extra
		// batch come after all, so damage goes from the end of the list.
		for i := len(indexes) - 1; i >= 0; i-- {
			step := steps[indexes[i]]
			if step.rules != nil {
				step.rules(&rules)
			}
			if step.damage != nil {
				b = step.damage(b)
			}
		}
		_, err := Validate(b, rules)
		require.Error(t, err)
		var invalid *InvalidError
		if errors.As(err, &invalid) {
			requireClass(t, err, steps[indexes[0]].is)
			return invalid.Message
		}
		requireClass(t, err, steps[indexes[0]].is)
		return ""
	}
	perRecord := func(i int) bool {
		return steps[i].name == "key" || steps[i].name == "timestamp" || steps[i].name == "offset delta"
	}
	for i := range steps {
		for j := i + 1; j < len(steps); j++ {
			both := message(i, j)
			if !perRecord(i) || !perRecord(j) { // else both are counted in the message
				require.Equal(t, message(i), both, "%s and %s", steps[i].name, steps[j].name)
			}
		}
	}
}

func TestValidateFraming(t *testing.T) {
	good := stepBatch()
	for name, c := range map[string]struct {
		b  []byte
		is error
	}{
		"nothing":                           {nil, ErrInvalidRecord},
		"one byte":                          {good[:1], ErrInvalidRecord},
		"up to the magic":                   {good[:16], ErrInvalidRecord},
		"header only":                       {good[:61], ErrInvalidRecord},
		"last byte missing":                 {good[:len(good)-1], ErrInvalidRecord},
		"one byte more":                     {append(clone(good), 0), ErrInvalidRecord},
		"negative length":                   {editLength(good, -1), ErrCorrupt},
		"most negative":                     {editLength(good, math.MinInt32), ErrCorrupt},
		"length below header, nothing more": {editLength(good[:40], 28), ErrCorrupt},
		"largest length":                    {editLength(good, math.MaxInt32), ErrInvalidRecord},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Validate(c.b, accepting())
			requireClass(t, err, c.is)
		})
	}
}

func editLength(b Batch, length int32) Batch {
	c := clone(b)
	put32(c, atLength, length)
	return c
}

// The header's claims are held against each other and against the bytes.
func TestValidateHeader(t *testing.T) {
	for name, c := range map[string]struct {
		change func(Batch)
		is     error
	}{
		"no records":                 {func(b Batch) { put32(b, atCount, 0); put32(b, atLastOffsetDelta, -1) }, ErrInvalidRecord},
		"negative count":             {func(b Batch) { put32(b, atCount, -3); put32(b, atLastOffsetDelta, -4) }, ErrInvalidRecord},
		"count wraps":                {func(b Batch) { put32(b, atCount, math.MinInt32); put32(b, atLastOffsetDelta, math.MaxInt32) }, ErrInvalidRecord},
		"delta too small":            {func(b Batch) { put32(b, atLastOffsetDelta, 1) }, ErrInvalidRecord},
		"more records than room":     {func(b Batch) { put32(b, atCount, 1000); put32(b, atLastOffsetDelta, 999) }, ErrInvalidRecord},
		"codec 5":                    {func(b Batch) { setCodec(b, 5) }, ErrUnsupportedCodec},
		"codec 7":                    {func(b Batch) { setCodec(b, 7) }, ErrUnsupportedCodec},
		"any leader epoch":           {func(b Batch) { b.SetLeaderEpoch(-1) }, nil},
		"sarama without producer id": {func(b Batch) { put32(b, atBaseSequence, 0); b[atProducerEpoch] = 0; b[atProducerEpoch+1] = 0 }, nil},
		"sequence 0":                 {func(b Batch) { put64(b, atProducerID, 1); put32(b, atBaseSequence, 0) }, nil},
		"transaction":                {func(b Batch) { b.setAttributes(attrTransactional) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := edit(stepBatch(), c.change)
			got, err := Validate(b, accepting())
			if c.is == nil {
				require.NoError(t, err)
				require.Equal(t, &b[0], &got[0])
				return
			}
			requireClass(t, err, c.is)
		})
	}
}

func TestValidateRecordErrors(t *testing.T) {
	rules := accepting()
	rules.KeyRequired, rules.AfterMax = true, time.Minute
	_, err := Validate(stepBatch(), rules)
	var invalid *InvalidError
	require.ErrorAs(t, err, &invalid)
	require.ErrorIs(t, err, ErrInvalidRecord, "a missing key is the earlier rule")
	require.Len(t, invalid.Records, 2)
	require.EqualValues(t, 1, invalid.Records[0].Index)
	require.Contains(t, invalid.Records[0].Message, "key")
	require.EqualValues(t, 2, invalid.Records[1].Index)
	require.Contains(t, invalid.Records[1].Message, "timestamp")

	b := NewBuilder(CodecGzip)
	for range 5000 {
		b.Add(now, nil, nil, nil)
	}
	_, err = Validate(b.Build(), rules)
	require.ErrorAs(t, err, &invalid)
	require.Len(t, invalid.Records, MaxRecordErrors, "the list is bounded")
	require.Contains(t, invalid.Message, "5000 records")
}

func TestValidateTimestamps(t *testing.T) {
	dated := func(codec Codec, timestamps ...int64) Batch {
		b := NewBuilder(codec)
		for _, ts := range timestamps {
			b.Add(ts, []byte("k"), []byte("v"), nil)
		}
		return b.Build()
	}
	hour := time.Hour.Milliseconds()
	for name, c := range map[string]struct {
		before, after time.Duration
		timestamps    []int64
		bad           []int32
	}{
		"no bounds":                {-1, -1, []int64{0, now + 1000*hour}, nil},
		"no bounds, spelled max":   {math.MaxInt64, math.MaxInt64, []int64{0, now + 1000*hour}, nil},
		"at the later edge":        {-1, time.Hour, []int64{now + hour}, nil},
		"after the later edge":     {-1, time.Hour, []int64{now + hour + 1}, []int32{0}},
		"at the earlier edge":      {time.Hour, -1, []int64{now - hour}, nil},
		"before the earlier edge":  {time.Hour, -1, []int64{now, now - hour - 1, now}, []int32{1}},
		"undated":                  {time.Hour, time.Hour, []int64{-1, -1}, nil},
		"zero, which is 1970":      {time.Hour, time.Hour, []int64{0}, []int32{0}},
		"both sides":               {time.Hour, time.Hour, []int64{now - 2*hour, now, now + 2*hour}, []int32{0, 2}},
		"largest possible":         {-1, time.Hour, []int64{math.MaxInt64}, []int32{0}},
		"smallest possible":        {time.Hour, -1, []int64{math.MinInt64}, []int32{0}},
		"earlier, hidden by later": {time.Hour, -1, []int64{now, now - 2*hour}, []int32{1}},
	} {
		for _, codec := range []Codec{CodecNone, CodecZstd} {
			t.Run(name+" "+codec.String(), func(t *testing.T) {
				rules := accepting()
				rules.BeforeMax, rules.AfterMax = c.before, c.after
				b := dated(codec, c.timestamps...)
				_, err := Validate(clone(b), rules)
				if c.bad == nil {
					require.NoError(t, err)
					return
				}
				var invalid *InvalidError
				require.ErrorAs(t, err, &invalid)
				require.ErrorIs(t, err, ErrInvalidTimestamp)
				var bad []int32
				for _, r := range invalid.Records {
					bad = append(bad, r.Index)
				}
				require.Equal(t, c.bad, bad)

				rules.LogAppendTime, rules.CheckRecords = true, true
				_, err = Validate(clone(b), rules)
				require.NoError(t, err, "the leader's own time is never out of bounds")
			})
		}
	}
}

// Trap 19: older sarama leaves maxTimestamp unset, kafkajs writes the last
// record's time. What can be seen to be wrong is corrected, in place.
func TestValidateCorrectsMaxTimestamp(t *testing.T) {
	for _, codec := range allCodecs {
		build := func(claim int64) Batch {
			b := NewBuilder(codec)
			for _, ts := range []int64{now, now + 50, now - 9} {
				b.Add(ts, []byte("k"), []byte("v"), nil)
			}
			return edit(b.Build(), func(b Batch) { b.setMaxTimestamp(claim) })
		}
		for _, claim := range []int64{0, -1, math.MinInt64, now - 1} {
			b := build(claim)
			got, err := Validate(b, accepting())
			require.NoError(t, err)
			require.Equal(t, &b[0], &got[0], "patched in place")
			require.Equal(t, now+50, got.MaxTimestamp(), "claim %d", claim)
			require.NoError(t, got.Check())
			require.Len(t, collect(t, got), 3)
		}

		// A plausible claim is believed by default and checked on demand.
		b := build(now)
		want := clone(b)
		got, err := Validate(b, accepting())
		require.NoError(t, err)
		require.Equal(t, want, got)
		rules := accepting()
		rules.CheckRecords = true
		got, err = Validate(b, rules)
		require.NoError(t, err)
		require.Equal(t, now+50, got.MaxTimestamp())
		require.NoError(t, got.Check())
	}
}

// A first record dated 1970 makes a claim of 0 no more credible.
func TestValidateCorrectsMaxTimestampFromZero(t *testing.T) {
	b := NewBuilder(CodecNone)
	b.Add(0, nil, nil, nil)
	b.Add(now, nil, nil, nil)
	got, err := Validate(edit(b.Build(), func(b Batch) { b.setMaxTimestamp(0) }), accepting())
	require.NoError(t, err)
	require.Equal(t, now, got.MaxTimestamp())
}

func TestValidateSizeEdge(t *testing.T) {
	b := stepBatch()
	rules := accepting()
	rules.MaxBytes = len(b)
	_, err := Validate(b, rules)
	require.NoError(t, err)
	rules.MaxBytes--
	_, err = Validate(b, rules)
	require.ErrorIs(t, err, ErrTooLarge)
}

// A batch whose records really are undated comes back as it is.
func TestValidateKeepsUndated(t *testing.T) {
	b := NewBuilder(CodecNone)
	b.Add(-1, nil, []byte("v"), nil)
	raw := b.Build()
	want := clone(raw)
	got, err := Validate(raw, accepting())
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// Trap 21: the attribute and maxTimestamp change, so the checksum must.
func TestValidateLogAppendTime(t *testing.T) {
	for _, codec := range allCodecs {
		b := sample(codec, 10, 100)
		payload := copyBytes(b.Payload())
		rules := accepting()
		rules.LogAppendTime, rules.Now = true, now+12345
		got, err := Validate(b, rules)
		require.NoError(t, err)
		require.Equal(t, &b[0], &got[0], "patched in place")
		require.Equal(t, LogAppendTime, got.TimestampType())
		require.Equal(t, now+12345, got.MaxTimestamp())
		require.Equal(t, now, got.BaseTimestamp(), "deltas stay true")
		require.Equal(t, payload, got.Payload())
		require.Equal(t, codec, got.Codec())
		require.NoError(t, got.Check())
	}
}

func TestValidateRecompresses(t *testing.T) {
	for _, from := range allCodecs {
		for _, to := range allCodecs {
			if from == to {
				continue
			}
			b := NewBuilder(from)
			b.ProducerID, b.ProducerEpoch, b.BaseSequence, b.Transactional = 7, 1, 40, true
			for _, r := range corpus() {
				b.Add(r.timestamp, r.key, r.value, r.headers)
			}
			raw := b.Build()
			before := clone(raw)
			rules := accepting()
			rules.Codec = to
			got, err := Validate(raw, rules)
			require.NoError(t, err, "%s to %s", from, to)
			require.Equal(t, before, raw, "the frame is left alone")
			require.Equal(t, to, got.Codec())
			require.NoError(t, got.Check())
			require.Equal(t, corpus(), collect(t, got))
			require.EqualValues(t, 7, got.ProducerID())
			require.EqualValues(t, 40, got.BaseSequence())
			require.True(t, got.IsTransactional())
			require.EqualValues(t, b.Count(), got.Count())

			rules.LogAppendTime = true
			got, err = Validate(raw, rules)
			require.NoError(t, err)
			require.Equal(t, LogAppendTime, got.TimestampType())
			require.NoError(t, got.Check())

			rules.MaxBytes = len(raw)
			got, err = Validate(raw, rules)
			if to == CodecNone {
				require.ErrorIs(t, err, ErrTooLarge, "the limit holds for what is stored")
			} else if err == nil {
				require.LessOrEqual(t, len(got), len(raw))
			}
		}
	}
	// The topic's own codec is kept as received.
	for _, codec := range allCodecs {
		b := sample(codec, 10, 100)
		want := clone(b)
		rules := accepting()
		rules.Codec = codec
		got, err := Validate(b, rules)
		require.NoError(t, err)
		require.Equal(t, &b[0], &got[0])
		require.Equal(t, want, got)
	}
}

// Every level a topic may be configured with works, and the ends of the scale
// do what they say.
func TestCompressionLevels(t *testing.T) {
	b := NewBuilder(CodecNone)
	words := strings.Fields("the mill race carries water to the wheel and away from it again whether or not there is grain to grind today")
	x := uint32(7)
	for i := range 200 {
		var value []byte
		for len(value) < 1000 {
			x = x*1664525 + 1013904223
			value = append(value, words[int(x>>16)%len(words)]...)
		}
		b.Add(now+int64(i), nil, value, nil)
	}
	raw := b.Build()
	for codec, levels := range map[Codec][]int{
		CodecGzip: {-1, 0, 1, 5, 9},
		CodecLZ4:  {0, 1, 2, 8, 9, 10, 17},
		CodecZstd: {-131072, -1, 0, 1, 3, 10, 22},
	} {
		sizes := map[int]int{}
		for _, level := range levels {
			rules := accepting()
			rules.Codec, rules.Level = codec, level
			got, err := Validate(raw, rules)
			require.NoError(t, err)
			require.Equal(t, collect(t, raw), collect(t, got), "%s level %d", codec, level)
			sizes[level] = len(got)
		}
		lowest, highest := levels[0], levels[len(levels)-1]
		if codec == CodecGzip {
			lowest = 1
		}
		require.LessOrEqual(t, sizes[highest], sizes[lowest], "%s", codec)
	}
}
