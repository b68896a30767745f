package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The grammar of -o, one range of records per partition:
//
//	start, end            everything from the first record on; only what comes from now on   (earliest, latest too)
//	:end                  everything there is now, then stop
//	42   +42   -42        from offset 42; from the 42nd after the start; the last 42 and on
//	a:b   a:end   :b      from a up to b, which is not included, then stop
//	@TIME                 from the first record with that timestamp or a later one
//	@TIME:end   @TIME:TIME   up to now; up to the second time
//
// A TIME is milliseconds (13 digits), seconds (10 digits), 2026-11-29, 2026-11-29T12:00:00Z, now, or relative to now:
// -1h, -90m, -7d, -1h30m.

// bound is one end of a range.
type bound struct {
	kind   boundKind
	offset int64 // of boundExact, boundAfterStart, boundBeforeEnd
	millis int64 // of boundTime
}

type boundKind int8

const (
	boundStart boundKind = iota
	boundEnd             // the end as it is when the command starts
	boundExact
	boundAfterStart
	boundBeforeEnd
	boundTime
	boundNone // no upper bound: go on for ever
)

// offsetRange is what -o says.
type offsetRange struct{ from, to bound }

// parseOffsets reads -o. now is what relative times are relative to.
func parseOffsets(s string, now time.Time) (offsetRange, error) {
	bad := func(why string) error {
		f := usageError(fmt.Sprintf("-o %s is no offset", s), "-o start | end | :end | 42 | +42 | -42 | 10:20 | @-1h | @2026-11-29T12:00:00Z:end")
		f.why = why
		return f
	}
	endless := bound{kind: boundNone}
	if rest, ok := strings.CutPrefix(s, "@"); ok {
		if t, err := parseTime(rest, now); err == nil {
			return offsetRange{bound{kind: boundTime, millis: t}, endless}, nil
		}
		// A time may have colons of its own: the range is the first split whose halves can both be read.
		for i, c := range rest {
			if c != ':' {
				continue
			}
			from, err := parseTime(rest[:i], now)
			if err != nil {
				continue
			}
			upper := strings.TrimPrefix(rest[i+1:], "@")
			if isEnd(upper) {
				return offsetRange{bound{kind: boundTime, millis: from}, bound{kind: boundEnd}}, nil
			}
			if to, err := parseTime(upper, now); err == nil {
				if to < from {
					return offsetRange{}, bad("the range ends before it begins")
				}
				return offsetRange{bound{kind: boundTime, millis: from}, bound{kind: boundTime, millis: to}}, nil
			}
		}
		_, err := parseTime(rest, now)
		return offsetRange{}, bad(err.Error())
	}
	lower, upper, isRange := strings.Cut(s, ":")
	var r offsetRange
	var err error
	switch {
	case isRange && lower == "":
		r.from = bound{kind: boundStart}
	default:
		if r.from, err = parseBound(lower); err != nil {
			return r, bad(err.Error())
		}
	}
	if !isRange {
		r.to = endless
		return r, nil
	}
	if r.to, err = parseBound(upper); err != nil {
		return r, bad(err.Error())
	}
	if r.to.kind == boundStart || r.from.kind == boundExact && r.to.kind == boundExact && r.to.offset < r.from.offset {
		return r, bad("the range ends before it begins")
	}
	return r, nil
}

func isEnd(s string) bool { return s == "end" || s == "latest" || s == "newest" }

func parseBound(s string) (bound, error) {
	switch {
	case s == "start" || s == "earliest" || s == "beginning" || s == "oldest":
		return bound{kind: boundStart}, nil
	case isEnd(s):
		return bound{kind: boundEnd}, nil
	case s == "":
		return bound{}, errors.New("it is empty")
	}
	kind, digits := boundExact, s
	switch s[0] {
	case '+':
		kind, digits = boundAfterStart, s[1:]
	case '-':
		kind, digits = boundBeforeEnd, s[1:]
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil {
		return bound{}, fmt.Errorf("%q is neither a number nor start nor end", s)
	}
	return bound{kind: kind, offset: int64(n)}, nil
}

// parseTime reads a TIME as milliseconds since 1970.
func parseTime(s string, now time.Time) (int64, error) {
	switch {
	case s == "":
		return 0, errors.New("there is no time after @")
	case s == "now":
		return now.UnixMilli(), nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil && s[0] != '-' && s[0] != '+' {
		switch len(s) {
		case 13:
			return n, nil
		case 10:
			return n * 1000, nil
		}
		return 0, fmt.Errorf("%s is neither milliseconds (13 digits) nor seconds (10 digits)", s)
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			return t.UnixMilli(), nil
		}
	}
	if d, err := parseRelative(s); err == nil {
		return now.Add(d).UnixMilli(), nil
	}
	return 0, fmt.Errorf("%q is no time: use milliseconds, seconds, 2026-11-29, 2026-11-29T12:00:00Z, or -1h", s)
}

// parseRelative reads -1h30m, -7d, +5m; days and weeks beside Go's units.
func parseRelative(s string) (time.Duration, error) {
	sign := time.Duration(1)
	rest := s
	switch s[0] {
	case '-':
		sign, rest = -1, s[1:]
	case '+':
		rest = s[1:]
	default:
		return 0, errors.New("no sign")
	}
	var total time.Duration
	for rest != "" {
		i := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
		if i <= 0 {
			return 0, errors.New("no unit")
		}
		j := i + strings.IndexFunc(rest[i:]+"0", func(r rune) bool { return r >= '0' && r <= '9' })
		unit := rest[i:j]
		n, err := strconv.ParseInt(rest[:i], 10, 32)
		if err != nil {
			return 0, err
		}
		switch unit {
		case "d":
			total += time.Duration(n) * 24 * time.Hour
		case "w":
			total += time.Duration(n) * 7 * 24 * time.Hour
		default:
			d, err := time.ParseDuration(rest[:j])
			if err != nil {
				return 0, err
			}
			total += d
		}
		rest = rest[j:]
	}
	return sign * total, nil
}

// resolve turns a bound into an offset between the log's start and end. byTime is the first offset at or after the
// bound's time, negative when no record is that late.
func (b bound) resolve(start, end, byTime int64) int64 {
	switch b.kind {
	case boundStart:
		return start
	case boundEnd:
		return end
	case boundExact:
		return min(max(b.offset, start), end)
	case boundAfterStart:
		return min(start+b.offset, end)
	case boundBeforeEnd:
		return max(end-b.offset, start)
	case boundTime:
		if byTime < 0 {
			return end
		}
		return max(byTime, start)
	}
	return -1
}
