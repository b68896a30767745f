package check

import "time"

// gaps measures how long partitions went without an acknowledgement, for each fault and over all. A partition counts
// from its first acknowledgement to its last. Sends in transactions don't count: when they are made depends on groups
// that rebalance and on ends that are waited for, so that silence says nothing about the partition.
func (c *checker) gaps(ops []Op) {
	var windows []Window
	lastSend := time.Duration(0)
	for i := range ops {
		switch o := &ops[i]; {
		case o.F == Fault && o.Type == Invoke:
			at := time.Duration(o.Time)
			if n := len(windows); n > 0 {
				windows[n-1].End = at
			}
			windows = append(windows, Window{Fault: o.Text, Begin: at})
		case o.F == Send:
			lastSend = time.Duration(o.Time)
		}
	}
	if n := len(windows); n > 0 {
		windows[n-1].End = max(lastSend, windows[n-1].Begin)
	}
	before := map[string]time.Duration{}
	current := -1 // the window in which this line stands
	for i := range ops {
		o := &ops[i]
		at := time.Duration(o.Time)
		for current+1 < len(windows) && windows[current+1].Begin <= at {
			current++
		}
		if o.F != Send || o.Type != OK || o.Txn != 0 {
			continue
		}
		if current >= 0 {
			windows[current].Acknowledged++
		}
		if from, known := before[o.Key]; known {
			gap := at - from
			c.report.LongestGap = max(c.report.LongestGap, gap)
			for w := current; w >= 0 && windows[w].End > from; w-- {
				windows[w].LongestGap = max(windows[w].LongestGap, gap)
			}
		}
		before[o.Key] = at
	}
	c.report.Faults = windows
}
