package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// entry is a record that was read.
type entry struct {
	offset     int64
	key, value string
}

// reading is a topic as it was read, by partition in the order of offsets.
type reading map[int32][]entry

// records is how many there are.
func (r reading) records() (n int) {
	for _, partition := range r {
		n += len(partition)
	}
	return n
}

// complaints collects what is wrong, and no more than a few of each kind.
type complaints struct {
	list []string
	more map[string]int // by kind, what was not written down
}

// complaintsOfAKind bounds a list that one cause can make as long as a topic.
const complaintsOfAKind = 5

func (c *complaints) add(kind, format string, args ...any) {
	if c.more == nil {
		c.more = map[string]int{}
	}
	if c.more[kind]++; c.more[kind] <= complaintsOfAKind {
		c.list = append(c.list, kind+": "+fmt.Sprintf(format, args...))
	}
}

// lines are the complaints, with how many of a kind were left out.
func (c *complaints) lines() []string {
	out := slices.Clone(c.list)
	for _, kind := range slices.Sorted(maps.Keys(c.more)) {
		if n := c.more[kind] - complaintsOfAKind; n > 0 {
			out = append(out, fmt.Sprintf("%s: %d more", kind, n))
		}
	}
	return out
}

// judgeCounts holds the published counts against the words that were sent: each word's are 1, 2, 3… in one partition, up to how often it was
// sent. A count that comes twice is a record that was processed twice, one that is missing was lost or its output was.
func judgeCounts(counts reading, sent map[string]int) []string {
	var c complaints
	last, home := map[string]int{}, map[string]int32{}
	for _, partition := range slices.Sorted(maps.Keys(counts)) {
		for _, e := range counts[partition] {
			at := fmt.Sprintf("%q at %d/%d", e.key, partition, e.offset)
			if p, ok := home[e.key]; ok && p != partition {
				c.add("torn", "%s was counted in partition %d, too", at, p)
			}
			home[e.key] = partition
			n, err := strconv.Atoi(e.value)
			switch {
			case err != nil:
				c.add("odd", "%s is %q", at, e.value)
				continue
			case n <= last[e.key]:
				c.add("duplicate", "%s is %d after %d", at, n, last[e.key])
			case n > last[e.key]+1:
				c.add("gap", "%s is %d after %d", at, n, last[e.key])
			}
			last[e.key] = n
		}
	}
	for _, word := range slices.Sorted(maps.Keys(sent)) {
		if last[word] != sent[word] {
			c.add("wrong", "%q was sent %d times and counted %d times", word, sent[word], last[word])
		}
	}
	for _, word := range slices.Sorted(maps.Keys(last)) {
		if sent[word] == 0 {
			c.add("phantom", "%q was never sent", word)
		}
	}
	return c.lines()
}

// place is where a record stands.
type place struct {
	partition int32
	offset    int64
}

// judgeSent holds a topic against what its only producer was told: all n values are there, each once, where it was told they are. It wrote
// them without a transaction, and retried until each was acknowledged.
func judgeSent(topic reading, n int, acknowledged map[string]place) []string {
	var c complaints
	seen := map[string]place{}
	for _, partition := range slices.Sorted(maps.Keys(topic)) {
		for _, e := range topic[partition] {
			at := place{partition, e.offset}
			if first, ok := seen[e.value]; ok {
				c.add("duplicate", "value %s is at %v and %v", e.value, first, at)
				continue
			}
			seen[e.value] = at
			if told, ok := acknowledged[e.value]; ok && told != at {
				c.add("moved", "value %s is at %v and was acknowledged at %v", e.value, at, told)
			}
		}
	}
	for i := range n {
		value := strconv.Itoa(i)
		if _, ok := seen[value]; !ok {
			_, told := acknowledged[value]
			c.add("lost", "value %s is not there (acknowledged: %t)", value, told)
		}
	}
	if len(seen) > n {
		c.add("phantom", "%d values where %d were sent", len(seen), n)
	}
	return c.lines()
}

// judgeCopy holds a copy against its original: in each partition the same values in the same order. A value that comes twice was copied
// by two transactions that both ended well, one that is missing was read, its offset committed, and its copy not.
func judgeCopy(original, copied reading) []string {
	var c complaints
	for _, partition := range slices.Sorted(maps.Keys(original)) {
		from, to := original[partition], copied[partition]
		count := map[string]int{}
		for _, e := range to {
			if count[e.value]++; count[e.value] == 2 {
				c.add("duplicate", "value %s stands in partition %d again at %d", e.value, partition, e.offset)
			}
		}
		for i, e := range from {
			if count[e.value] == 0 {
				c.add("gap", "value %s, record %d of partition %d, has no copy", e.value, i, partition)
			}
		}
		for i := range min(len(from), len(to)) {
			if from[i].value != to[i].value {
				c.add("order", "record %d of partition %d is %s and its copy %s", i, partition, from[i].value, to[i].value)
				break
			}
		}
		if len(from) != len(to) {
			c.add("count", "partition %d has %d records and %d copies", partition, len(from), len(to))
		}
	}
	for partition := range copied {
		if _, ok := original[partition]; !ok {
			c.add("phantom", "partition %d has copies of nothing", partition)
		}
	}
	return c.lines()
}

// judgeConsumed holds what a consumer showed, of read_committed, against what stands in the topic at the end. It may have shown a record
// again after its group was rebalanced, but none that was aborted later, none with another value, and it has shown all.
func judgeConsumed(topic reading, consumed map[place]string) []string {
	var c complaints
	there := map[place]string{}
	for partition, entries := range topic {
		for _, e := range entries {
			at := place{partition, e.offset}
			there[at] = e.value
			if _, ok := consumed[at]; !ok {
				c.add("unseen", "value %s at %v was never consumed", e.value, at)
			}
		}
	}
	for at, value := range consumed {
		if now, ok := there[at]; !ok {
			c.add("aborted read", "value %s at %v was consumed and is not there", value, at)
		} else if now != value {
			c.add("changed", "value %s at %v was consumed and %s is there", value, at, now)
		}
	}
	return c.lines()
}
