package console

import (
	"cmp"
	"fmt"
)

// Where a group's consumers ask for records says why it does not get on. Of one that does not commit the brokers know nothing else.
// They know it by client id and host, which another program of the machine may have too; the finding says so.

const (
	// repeats is how many answers with records a consumer has had at one offset when it cannot get past it: brokers look at one in
	// two seconds.
	repeats = 3
	// byClient says what a finding about readers is worth.
	byClient = " (told by client id and host)"
)

// waits reports whether records wait in a partition that the group has not moved in for long.
func (x *groupExamination) waits(p *GroupPartition) bool {
	return p.Lag > 0 && p.LagMS >= x.stuckMS && (p.Current < 0 || p.CommittedMS >= x.stuckMS)
}

// unreadable finds batches that no consumer gets past: those that its leader cannot read, and those that one asks for again and
// again, as one does that stops or is restarted at the same record.
func (x *groupExamination) unreadable() {
	well := true
	for i := range x.r.Partitions {
		p := &x.r.Partitions[i]
		if !x.waits(p) || x.held(p) {
			continue
		}
		at := max(p.Current, p.LogStart)
		what := fmt.Sprintf("%s has not advanced for %s while %d records wait", name(p), millis(max(p.CommittedMS, p.LagMS)), p.Lag)
		if p.BatchTrouble != "" {
			well, x.explained[p] = false, true
			x.add("corrupt_batch", what, fmt.Sprintf("the batch at offset %d is damaged in the leader's log: %s", at, p.BatchTrouble),
				fmt.Sprintf("millrace cluster health; a replica with a good copy takes over if there is one. To read on behind it: millrace group seek %s --to %d --topics %s:%d --force", x.group, at+1, p.Topic, p.Partition))
			continue
		}
		r := x.stuckReader(p)
		if r == nil {
			continue
		}
		well, x.explained[p] = false, true
		who := fmt.Sprintf("client %s at %s", cmp.Or(r.ClientID, "without an id"), cmp.Or(r.Host, "an unknown host"))
		skip := fmt.Sprintf("millrace group seek %s --to %d --topics %s:%d --force", x.group, r.Offset+1, p.Topic, p.Partition)
		look := fmt.Sprintf("millrace topic consume %s -p %d -o %d -n 1", p.Topic, p.Partition, r.Offset)
		again := fmt.Sprintf("%s has asked for offset %d again and again for %s, the last time %s ago", who, r.Offset, millis(r.SinceMS), millis(r.SeenMS))
		switch {
		case r.Error != "":
			x.add("fetch_error", what, again+", and is answered "+r.Error+byClient, "see what that client says of it; millrace cluster health")
		case p.BatchBytes > int64(r.MaxBytes) && r.Offset == at:
			x.add("oversized_batch", what, fmt.Sprintf("%s%s: the batch there has %s, and it takes %s of a partition at most", again, byClient, bytesText(p.BatchBytes), bytesText(int64(r.MaxBytes))),
				fmt.Sprintf("raise max.partition.fetch.bytes (fetch.message.max.bytes) of the consumers above %d, and what they can receive; %s   passes over the record", p.BatchBytes, skip))
		default:
			why := again + ", and is given records each time" + byClient + ": it stops at that record, or is restarted at it"
			if p.BatchBytes > 0 {
				why += ". Its leader's copy passes its checksum"
			}
			x.add("poison_batch", what, why,
				fmt.Sprintf("look at the record: %s   and at the log of that client; %s   passes over it", look, skip))
		}
	}
	if well && len(x.r.Partitions) > 0 {
		x.pass("no batch that is asked for again and again")
	}
}

// stuckReader returns a client that asks for the same records again and again, nil if none does.
func (x *groupExamination) stuckReader(p *GroupPartition) *GroupReader {
	for i := range p.Readers {
		r := &p.Readers[i]
		switch {
		case r.SeenMS >= x.stuckMS || r.SinceMS < x.stuckMS || r.Offset < p.Current:
			continue
		case r.Error == "" && r.Served < repeats, r.Error != "" && r.Asked < repeats:
			continue
		}
		return r
	}
	return nil
}

// reader returns where the member that a partition belongs to asked for records last, nil if nobody has seen it.
func (p *GroupPartition) reader(m *GroupMember) *GroupReader {
	for i := range p.Readers {
		if r := &p.Readers[i]; r.ClientID == m.ClientID && r.Host == m.Host {
			return r
		}
	}
	return nil
}

// stands says why a reader that sends heartbeats does not commit, and what to do: by where it asks for records.
func (x *groupExamination) stands(p *GroupPartition, m *GroupMember, who string) (subject, why, fix string) {
	look := fmt.Sprintf("look at that process, and at the record: millrace topic consume %s -p %d -o %d -n 1", p.Topic, p.Partition, max(p.Current, p.LogStart))
	r := p.reader(m)
	switch {
	case r != nil && r.SeenMS < x.stuckMS && r.Offset > max(p.Current, p.LogStart):
		return "no_commits", fmt.Sprintf("its reader, %s, has read up to offset %d, the last time %s ago%s, and nothing is committed", who, r.Offset, millis(r.SeenMS), byClient),
			"see whether it commits at all (enable.auto.commit, or its own commits and their errors), or whether its program does not get on with what it has fetched: " +
				fmt.Sprintf("millrace topic consume %s -p %d -o %d -n 1", p.Topic, p.Partition, max(p.Current, p.LogStart))
	case r != nil && r.SeenMS >= x.stuckMS:
		return "stuck", fmt.Sprintf("its reader, %s, sends heartbeats, but has asked for no records of it for %s%s: it has paused the partition, or its program does not take what it has fetched, up to offset %d", who, millis(r.SeenMS), byClient, r.Offset), look
	case p.Current < 0:
		return "no_commits", "its reader, " + who + ", sends heartbeats and has committed nothing", "see whether it commits at all (enable.auto.commit, or its own commits), and what it does with the first record"
	}
	return "stuck", "its reader, " + who + ", sends heartbeats and commits nothing new", look
}

// bytesText writes a size: 812 bytes, 64.0 KiB, 1.2 MiB.
func bytesText(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d bytes", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}
