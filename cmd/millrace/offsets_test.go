package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// The grammar of -o, every form.
func TestParseOffsets(t *testing.T) {
	endless := bound{kind: boundNone}
	end := bound{kind: boundEnd}
	at := func(ms int64) bound { return bound{kind: boundTime, millis: ms} }
	f := func(s string, from, to bound) {
		t.Helper()
		r, err := parseOffsets(s, noon)
		require.NoError(t, err, s)
		require.Equal(t, offsetRange{from, to}, r, s)
	}
	for _, s := range []string{"start", "earliest", "beginning", "oldest"} {
		f(s, bound{kind: boundStart}, endless)
	}
	for _, s := range []string{"end", "latest", "newest"} {
		f(s, end, endless)
	}
	f(":end", bound{kind: boundStart}, end)
	f("start:end", bound{kind: boundStart}, end)
	f("42", bound{kind: boundExact, offset: 42}, endless)
	f("0", bound{kind: boundExact}, endless)
	f("+42", bound{kind: boundAfterStart, offset: 42}, endless)
	f("-42", bound{kind: boundBeforeEnd, offset: 42}, endless)
	f("10:20", bound{kind: boundExact, offset: 10}, bound{kind: boundExact, offset: 20})
	f("10:10", bound{kind: boundExact, offset: 10}, bound{kind: boundExact, offset: 10})
	f(":20", bound{kind: boundStart}, bound{kind: boundExact, offset: 20})
	f("-10:end", bound{kind: boundBeforeEnd, offset: 10}, end)
	f("start:+5", bound{kind: boundStart}, bound{kind: boundAfterStart, offset: 5})

	ms := noon.UnixMilli()
	f("@1795953600000", at(1795953600000), endless)
	f("@1795953600", at(1795953600000), endless)
	f("@2026-11-29T12:00:00Z", at(ms), endless)
	f("@2026-11-29T13:00:00+01:00", at(ms), endless)
	f("@now", at(ms), endless)
	f("@-1h", at(ms-3600_000), endless)
	f("@-1h30m", at(ms-5400_000), endless)
	f("@-7d", at(ms-7*86400_000), endless)
	f("@-1w2d", at(ms-9*86400_000), endless)
	f("@-250ms", at(ms-250), endless)
	f("@-1h:end", at(ms-3600_000), end)
	f("@-2h:-1h", at(ms-7200_000), at(ms-3600_000))
	f("@-2h:@-1h", at(ms-7200_000), at(ms-3600_000))
	f("@2026-11-29T12:00:00Z:end", at(ms), end)
	f("@2026-11-29T11:00:00Z:2026-11-29T12:00:00Z", at(ms-3600_000), at(ms))
	f("@1795953600000:1795953601000", at(1795953600000), at(1795953601000))

	day, err := parseTime("2026-11-29", noon)
	require.NoError(t, err)
	require.Equal(t, time.Date(2026, 11, 29, 0, 0, 0, 0, time.Local).UnixMilli(), day)
}

func TestParseOffsetsErrors(t *testing.T) {
	for _, s := range []string{"", "bogus", "1:2:3", "20:10", "10:", "end:start", "10:start", "--5", "+", "-", "9223372036854775808", "@", "@12345", "@tomorrow", "@-1", "@-1x",
		"@-1h:-2h", "@-1h:bogus", "@2026-13-01", "@:end", "1.5"} {
		_, err := parseOffsets(s, noon)
		require.Error(t, err, s)
		var f *failure
		require.ErrorAs(t, err, &f)
		require.Equal(t, exitUsage, f.code)
		require.NotEmpty(t, f.why, s)
		require.NotEmpty(t, f.fix, s)
	}
}

// Bounds stay inside the log, so that a range never asks for what is not there.
func TestBoundResolve(t *testing.T) {
	f := func(want int64, b bound, byTime int64) {
		t.Helper()
		require.Equal(t, want, b.resolve(100, 200, byTime))
	}
	f(100, bound{kind: boundStart}, -1)
	f(200, bound{kind: boundEnd}, -1)
	f(150, bound{kind: boundExact, offset: 150}, -1)
	f(100, bound{kind: boundExact, offset: 5}, -1)
	f(200, bound{kind: boundExact, offset: 500}, -1)
	f(110, bound{kind: boundAfterStart, offset: 10}, -1)
	f(200, bound{kind: boundAfterStart, offset: 1000}, -1)
	f(190, bound{kind: boundBeforeEnd, offset: 10}, -1)
	f(100, bound{kind: boundBeforeEnd, offset: 1000}, -1)
	f(130, bound{kind: boundTime}, 130)
	f(200, bound{kind: boundTime}, -1)
	f(-1, bound{kind: boundNone}, -1)
}

func FuzzParseOffsets(f *testing.F) {
	for _, s := range []string{"start", "10:20", "@-1h:end", "@2026-11-29T12:00:00Z:end", "-5"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := parseOffsets(s, noon)
		if err != nil {
			return
		}
		from := r.from.resolve(10, 20, 15)
		to := r.to.resolve(10, 20, 15)
		if from < 10 || from > 20 || to != -1 && (to < 10 || to > 20) {
			t.Fatalf("%q resolves to [%d, %d) in a log of [10, 20)", s, from, to)
		}
	})
}
