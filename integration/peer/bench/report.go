package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/integration/peer"
)

// key names one measured value.
type key struct {
	row     string
	variant variant
	metric  string
}

// results are all values, by key one of each round.
type results struct {
	options
	brokers int // of each system: 1 or 3
	began   time.Time
	rows    []string // in the order they came
	order   []key    // of values, too
	values  map[key][]float64
}

func (r *results) add(row string, v variant, metric string, value float64) {
	if !slices.Contains(r.rows, row) {
		r.rows = append(r.rows, row)
	}
	k := key{row, v, metric}
	if _, ok := r.values[k]; !ok {
		r.order = append(r.order, k)
	}
	r.values[k] = append(r.values[k], value)
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	v = slices.Sorted(slices.Values(v))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

// ratio is the median of the rounds' ratios, with the least and the greatest.
func (r *results) ratio(row, metric string, ours, against variant) (mid, low, high float64, ok bool) {
	return r.ratioTo(key{row, ours, metric}, key{row, against, metric})
}

func (r *results) ratioTo(ours, against key) (mid, low, high float64, ok bool) {
	a, b := r.values[ours], r.values[against]
	n := min(len(a), len(b))
	if n == 0 {
		return 0, 0, 0, false
	}
	ratios := make([]float64, n)
	for i := range n {
		ratios[i] = a[i] / b[i]
	}
	return median(ratios), slices.Min(ratios), slices.Max(ratios), true
}

// number prints a value with three digits.
func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return "–"
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

// cellOf prints a median and its spread: half the range of the rounds, as a share of the median.
func (r *results) cellOf(row, metric string, v variant) string {
	values := r.values[key{row, v, metric}]
	if len(values) == 0 {
		return "–"
	}
	mid := median(values)
	if len(values) == 1 {
		return number(mid)
	}
	return fmt.Sprintf("%s ±%.0f%%", number(mid), 50*(slices.Max(values)-slices.Min(values))/mid)
}

func (r *results) ratioOf(row, metric string, ours, against variant) string {
	return r.ratioText(key{row, ours, metric}, key{row, against, metric})
}

func (r *results) ratioText(ours, against key) string {
	mid, low, high, ok := r.ratioTo(ours, against)
	if !ok {
		return "–"
	}
	if low == high {
		return number(mid) + "x"
	}
	return fmt.Sprintf("%sx [%s, %s]", number(mid), number(low), number(high))
}

// rounds is how many there are of the row that has most. A start is measured whenever a system is started.
func (r *results) rounds() (n int) {
	for of, values := range r.values {
		if !strings.HasPrefix(of.row, "start") && !strings.HasPrefix(of.row, "memory") && of.row != "warmed" {
			n = max(n, len(values))
		}
	}
	return n
}

// compilersMetric is what the JVMs' compilers took of their CPU time at the end of the warming, in percent.
const compilersMetric = "compilers %"

// roundsText says how many rounds the rows have: a number, or two when pieces were run apart.
func (r *results) roundsText() string {
	most, fewest := r.rounds(), r.rounds()
	for of, values := range r.values {
		if of.metric == othersMetric {
			fewest = min(fewest, len(values))
		}
	}
	if fewest == most {
		return fmt.Sprint(most)
	}
	return fmt.Sprintf("%d to %d", fewest, most)
}

// othersMetric is what others used of the cores during a measurement, in percent.
const othersMetric = "others %"

// others is the median and the greatest of what others used of the cores.
func (r *results) others() (mid, high float64) {
	var all []float64
	for of, values := range r.values {
		if of.metric == othersMetric {
			all = append(all, values...)
		}
	}
	if len(all) == 0 {
		return 0, 0
	}
	return median(all), slices.Max(all)
}

// markdown prints everything that was measured.
func (r *results) markdown() string {
	var b bytes.Buffer
	if r.brokers == 1 {
		fmt.Fprintf(&b, "## One broker\n\n")
	} else {
		fmt.Fprintf(&b, "## Three brokers: RF 3, acks=all, min.insync.replicas 2\n\n")
	}
	mid, high := r.others()
	fmt.Fprintf(&b, "Written by `just peer-bench --brokers %d` on %s: %s rounds of %gs each, interleaved, %s. Machine class: %d cores, %.0f GiB, Linux %s, shared with other work\nthat took %.0f %% of the cores during a measurement (median; %.0f %% at most; kernel threads are in it), clients on the same cores. Values are medians with half the range of the rounds; ratios are medians of the rounds' ratios,\nwith the least and the greatest. Absolute values do not carry over to other machines, ratios mostly do.\n\n",
		r.brokers, r.began.Format("2006-01-02"), r.roundsText(), r.seconds, map[bool]string{true: "quick rows", false: "all rows"}[r.quick], runtime.NumCPU(), memoryGiB(), kernel(), mid, high)
	if r.brokers == 1 {
		fmt.Fprintf(&b, "`client` is franz-go, `raw` replays encoded requests over two connections (8 in flight); 1M and 16K are the batch size. Kafka runs with the JVM flags and heap that it ships with.\n\n")
	} else {
		fmt.Fprintf(&b, "`client` is franz-go, `raw` replays encoded requests over a connection to each leader (8 in flight); 1M and 16K are the batch size, p the partitions. Three combined KRaft nodes on loopback with the\nJVM flags and heap that they ship with; only one of the two clusters runs at a time. CPU and memory are sums over the three brokers. A kill's figure is the longest time without an acknowledgement of the\npartitions that the victim led: franz-go, idempotent, metadata age 100 ms, a record to each partition every 5 ms. At the end of the\nwarming the JVMs' compilers took %s of the brokers' CPU time, in percent. The rows of many partitions are compared with our own of few.\n\n", r.cellOf("warmed", compilersMetric, kafka))
	}
	fmt.Fprintf(&b, "Why a row misses, and what was tried, stands in [DESIGN.md](DESIGN.md).\n\n")
	r.goals(&b)
	pairs := [][2]variant{{unsynced, kafka}, {synced, kafka}}
	withFlushed := pairs
	if r.brokers == 1 {
		withFlushed = append(withFlushed, [2]variant{synced, flushed})
	}
	r.table(&b, "Produce: k records/s", "produce/", "k records/s", withFlushed)
	r.table(&b, "Produce: broker CPU, µs per record", "produce/", "CPU µs/record", pairs)
	r.table(&b, "Few and many partitions: k records/s", "partitions/", "k records/s", nil)
	r.table(&b, "Few and many partitions: broker CPU, µs per record", "partitions/", "CPU µs/record", nil)
	r.table(&b, "Consume from the start, warm: k records/s", "consume/", "k records/s", [][2]variant{{synced, kafka}})
	r.table(&b, "Consume from the start, warm: broker CPU, µs per record", "consume/", "CPU µs/record", [][2]variant{{synced, kafka}})
	for _, q := range []string{"p50 ms", "p99 ms", "p99.9 ms"} {
		r.table(&b, "End to end, open loop, 100 B: "+q, "e2e/", q, withFlushed)
	}
	r.transactions(&b)
	r.table(&b, "kill -9 of a broker: ms to the next acknowledgement", "kill/", "ms", [][2]variant{{synced, kafka}})
	r.table(&b, "Start, ms", "start", "ms", [][2]variant{{synced, kafka}})
	r.table(&b, "Memory, MiB", "memory", "MiB", [][2]variant{{synced, kafka}})
	return b.String()
}

// transactions prints the rows of transactions.
func (r *results) transactions(b *bytes.Buffer) {
	title := fmt.Sprintf("Transactions of %d records over %d partitions, %d producers at once: ", transactionRecords, transactionPartitions, transactionProducers)
	for _, m := range []struct {
		metric string
		ratios [][2]variant
	}{
		{transactionsMetric, [][2]variant{{synced, kafka}, {unsynced, kafka}}}, {commitP50Metric, [][2]variant{{synced, kafka}}}, {commitP99Metric, [][2]variant{{synced, kafka}}},
		{wholeP50Metric, [][2]variant{{synced, kafka}}}, {wholeP99Metric, [][2]variant{{synced, kafka}}}, {cpuMetric, [][2]variant{{synced, kafka}}},
	} {
		r.table(b, title+m.metric, "txn/", m.metric, m.ratios)
	}
	r.table(b, "Consume transactions at both isolation levels: "+offsetsMetric, "isolation/", offsetsMetric, [][2]variant{{synced, kafka}})
}

// goals prints each goal with its worst row.
func (r *results) goals(b *bytes.Buffer) {
	fmt.Fprintf(b, "### Goals and their worst rows\n\n| goal | bound | rows that meet it | worst row | ratio there |\n|---|---|---|---|---|\n")
	for _, g := range goals[r.brokers] {
		worst, worstRatio, n, met := "", math.NaN(), 0, 0
		for _, row := range r.rows {
			if !g.rows.MatchString(row) {
				continue
			}
			ratio, _, _, ok := r.ratioTo(g.keys(row))
			if !ok {
				continue
			}
			n++
			if g.met(ratio) {
				met++
			}
			if worst == "" || g.worse(ratio, worstRatio) {
				worst, worstRatio = row, ratio
			}
		}
		if n == 0 {
			continue
		}
		sign := "≤"
		if g.atLeast {
			sign = "≥"
		}
		count := fmt.Sprintf("%d of %d", met, n)
		if met < n {
			count = "**" + count + "**"
		}
		fmt.Fprintf(b, "| %s | %s %gx | %s | %s | %s |\n", g.text, sign, g.bound, count, worst, r.ratioText(g.keys(worst)))
	}
	b.WriteByte('\n')
}

// table prints the rows of one kind: a column for each variant that has values, then the ratios.
func (r *results) table(b *bytes.Buffer, title, prefix, metric string, ratios [][2]variant) {
	var rows []string
	used := map[variant]bool{}
	for _, row := range r.rows {
		if !strings.HasPrefix(row, prefix) {
			continue
		}
		rows = append(rows, row)
		for v := range variants {
			if len(r.values[key{row, variant(v), metric}]) > 0 {
				used[variant(v)] = true
			}
		}
	}
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(b, "### %s\n\n| row |", title)
	columns := 1
	for v, of := range variants {
		if used[variant(v)] {
			fmt.Fprintf(b, " %s |", of.name)
			columns++
		}
	}
	for _, p := range ratios {
		fmt.Fprintf(b, " %s : %s |", variants[p[0]].name, variants[p[1]].name)
		columns++
	}
	fmt.Fprintf(b, "\n%s|\n", strings.Repeat("|---", columns))
	for _, row := range rows {
		fmt.Fprintf(b, "| %s |", strings.TrimSpace(strings.TrimPrefix(row, prefix)))
		for v := range variants {
			if used[variant(v)] {
				fmt.Fprintf(b, " %s |", r.cellOf(row, metric, variant(v)))
			}
		}
		for _, p := range ratios {
			fmt.Fprintf(b, " %s |", r.ratioOf(row, metric, p[0], p[1]))
		}
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
}

// kernel is the release of Linux without what its builder appended.
func kernel() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown"
	}
	release, _, _ := strings.Cut(strings.TrimSpace(string(b)), "-")
	return release
}

func memoryGiB() float64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	var kib float64
	_, _ = fmt.Sscanf(string(b), "MemTotal: %f kB", &kib)
	return kib / (1 << 20)
}

// writeSet puts the text of a set between its marks in a file and leaves the rest of it as it is. Without the file, or
// without the marks in it, they are added at its end.
func writeSet(path string, brokers int, text string) error {
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(path, []byte(replaceSet(string(b), brokers, text)), 0o644)
}

func replaceSet(file string, brokers int, text string) string {
	if file == "" {
		file = fmt.Sprintf("# millrace beside Apache Kafka %s\n", peer.Version)
	}
	begin, end := fmt.Sprintf("<!-- brokers: %d -->\n", brokers), "<!-- end -->\n"
	block := begin + strings.TrimRight(text, "\n") + "\n" + end
	before, rest, ok := strings.Cut(file, begin)
	if _, after, closed := strings.Cut(rest, end); ok && closed {
		return before + block + after
	}
	return strings.TrimRight(file, "\n") + "\n\n" + block
}
