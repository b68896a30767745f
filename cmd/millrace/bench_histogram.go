package main

import (
	"math/bits"
	"time"
)

// histogram counts durations in buckets whose width grows with them, after the idea of HDR histograms: below 2^subBits
// µs each microsecond has a bucket, above it each doubling has 2^(subBits-1). A value is known to within 1/128 of itself,
// from 1 µs to over an hour, in a fixed 16 KiB, whatever the distribution.
//
// It is not safe for concurrent use: one per goroutine, then merge.
type histogram struct {
	counts [histogramBuckets]uint64
	count  uint64
	sum    time.Duration
	max    time.Duration
}

const (
	subBits          = 8
	histogramDoubles = 24 // 2^(8+24) µs = 71 minutes; what is longer counts as that
	histogramBuckets = 1<<subBits + histogramDoubles<<(subBits-1)
)

// bucketOf returns the bucket of a duration of us µs.
func bucketOf(us uint64) int {
	if us < 1<<subBits {
		return int(us)
	}
	double := bits.Len64(us) - subBits // ≥ 1
	bucket := 1<<subBits + (double-1)<<(subBits-1) + int(us>>double) - 1<<(subBits-1)
	return min(bucket, histogramBuckets-1)
}

// bucketTop returns the longest duration of a bucket, in µs.
func bucketTop(bucket int) uint64 {
	if bucket < 1<<subBits {
		return uint64(bucket)
	}
	bucket -= 1 << subBits
	double := bucket>>(subBits-1) + 1
	within := uint64(bucket&(1<<(subBits-1)-1)) + 1<<(subBits-1)
	return (within+1)<<double - 1
}

// add counts one duration. What is negative, as a clock that was set back makes it, counts as 0.
func (h *histogram) add(d time.Duration) {
	d = max(d, 0)
	h.counts[bucketOf(uint64(d/time.Microsecond))]++
	h.count++
	h.sum += d
	h.max = max(h.max, d)
}

// merge adds what other counted.
func (h *histogram) merge(other *histogram) {
	for i, n := range other.counts {
		h.counts[i] += n
	}
	h.count += other.count
	h.sum += other.sum
	h.max = max(h.max, other.max)
}

// quantile returns the duration that the share q (0 to 1) of all did not exceed; 0 when nothing was counted.
func (h *histogram) quantile(q float64) time.Duration {
	if h.count == 0 {
		return 0
	}
	want := max(uint64(q*float64(h.count)+0.5), 1)
	var seen uint64
	for i, n := range h.counts {
		if seen += n; seen >= want {
			return min(time.Duration(bucketTop(i))*time.Microsecond, h.max)
		}
	}
	return h.max
}

// latencyJSON is a histogram in a few numbers.
type latencyJSON struct {
	Mean float64 `json:"mean_ms" doc:"mean, in milliseconds"`
	P50  float64 `json:"p50_ms" doc:"half took no longer"`
	P95  float64 `json:"p95_ms" doc:"95 % took no longer"`
	P99  float64 `json:"p99_ms" doc:"99 % took no longer"`
	P999 float64 `json:"p99_9_ms" doc:"99.9 % took no longer"`
	Max  float64 `json:"max_ms" doc:"the longest"`
}

func (h *histogram) summary() latencyJSON {
	if h.count == 0 {
		return latencyJSON{}
	}
	return latencyJSON{
		Mean: millis(h.sum / time.Duration(h.count)), P50: millis(h.quantile(0.5)), P95: millis(h.quantile(0.95)),
		P99: millis(h.quantile(0.99)), P999: millis(h.quantile(0.999)), Max: millis(h.max),
	}
}

// millis is a duration in milliseconds, to the microsecond.
func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
