package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/transport/console"
)

// groupLag is a group with its offsets and how far behind they are.
type groupLag struct {
	groupState
	TotalLag   int64            `json:"total_lag" doc:"records that wait to be read, over all partitions with an offset"`
	MaxLagMS   int64            `json:"max_lag_ms" doc:"age of the oldest record that waits, in milliseconds; 0 when none does"`
	Partitions []groupPartition `json:"partitions" doc:"each partition that has an offset or a member"`
}

// groupPartition is a partition as a group reads it.
type groupPartition struct {
	Topic     string `json:"topic" doc:"name"`
	Partition int32  `json:"partition" doc:"number"`
	// Nil pointers are what is not known.
	Current     *int64 `json:"current_offset" doc:"next offset to read, as committed; null when none is"`
	LeaderEpoch *int32 `json:"leader_epoch" doc:"of the last record read, as committed; null when it is not known"`
	Metadata    string `json:"metadata" doc:"what the client stored with the offset"`
	LogStart    *int64 `json:"log_start_offset" doc:"first offset that is there"`
	LogEnd      *int64 `json:"log_end_offset" doc:"next offset to be written"`
	Lag         *int64 `json:"lag" doc:"records that wait to be read; null without an offset"`
	Lost        int64  `json:"lost" doc:"records that were deleted before they were read"`
	LagMS       *int64 `json:"lag_ms" doc:"age of the first batch that waits, in milliseconds; 0 when none does"`
	RetentionMS *int64 `json:"retention_left_ms" doc:"until retention may delete what waits, in milliseconds; null when it will not, or when is not known"`
	RetentionBy string `json:"retention_by" doc:"time, or size: by retention.bytes, if the log goes on growing as in the last ten minutes, about; empty for neither"`
	Member      string `json:"member_id" doc:"who is to read it; empty for nobody"`
	Instance    string `json:"instance_id" doc:"of a static member; empty for others"`
	ClientID    string `json:"client_id" doc:"as its program calls itself"`
	Host        string `json:"host" doc:"where it runs"`
	Error       string `json:"error,omitempty" doc:"why something is not known"`
}

// groupLags adds offsets and lag to groups. Partitions whose leader does not answer say so in their Error.
func (c *connection) groupLags(ctx context.Context, states []*groupState, b *batch) ([]*groupLag, error) {
	var names []string
	for _, g := range states {
		names = append(names, g.Group)
	}
	fetched := c.adm.FetchManyOffsets(ctx, names...)
	var out []*groupLag
	topics := map[string]bool{}
	for _, g := range states {
		f := fetched[g.Group]
		if f.Err != nil {
			b.fail(itemFailure("read the offsets of group "+g.Group, f.Err, nil))
			continue
		}
		l := &groupLag{groupState: *g, Partitions: g.partitions(f.Fetched)}
		for i := range l.Partitions {
			topics[l.Partitions[i].Topic] = true
		}
		out = append(out, l)
	}
	if len(topics) == 0 {
		return out, nil
	}
	logs, err := c.readLogs(ctx, topics)
	if err != nil {
		return nil, err
	}
	for _, l := range out {
		for i := range l.Partitions {
			logs.measure(&l.Partitions[i])
		}
	}
	if err := c.addAges(ctx, out, logs); err != nil {
		return nil, err
	}
	for _, l := range out {
		for i := range l.Partitions {
			p := &l.Partitions[i]
			if p.Lag != nil {
				l.TotalLag += *p.Lag
			}
			if p.LagMS != nil {
				l.MaxLagMS = max(l.MaxLagMS, *p.LagMS)
			}
		}
	}
	return out, nil
}

// partitions are those that have an offset or a member, by topic and number.
func (g *groupState) partitions(offsets kadm.OffsetResponses) []groupPartition {
	index := map[topicPartition]*groupPartition{}
	at := func(tp topicPartition) *groupPartition {
		p := index[tp]
		if p == nil {
			p = &groupPartition{Topic: tp.topic, Partition: tp.partition}
			index[tp] = p
		}
		return p
	}
	offsets.Each(func(o kadm.OffsetResponse) {
		p := at(topicPartition{o.Topic, o.Partition})
		switch {
		case o.Err != nil:
			p.Error = status(o.Err)
		case o.At >= 0:
			p.Current, p.Metadata = &o.At, o.Metadata
			if o.LeaderEpoch >= 0 {
				p.LeaderEpoch = &o.LeaderEpoch
			}
		}
	})
	for i := range g.Members {
		m := &g.Members[i]
		for tp := range m.assigned {
			p := at(tp)
			p.Member, p.Instance, p.ClientID, p.Host = m.ID, m.Instance, m.ClientID, m.Host
		}
	}
	out := make([]groupPartition, 0, len(index))
	for _, p := range index {
		if p.Current != nil || p.Member != "" || p.Error != "" {
			out = append(out, *p)
		}
	}
	slices.SortFunc(out, func(a, b groupPartition) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return out
}

// logEnds is what the leaders say of the topics that groups read.
type logEnds struct {
	details      kadm.TopicDetails
	starts, ends kadm.ListedOffsets
	retention    map[string]time.Duration // of topics that delete by time
	sizes        logSizes                 // of topics that delete by size
}

func (c *connection) readLogs(ctx context.Context, topics map[string]bool) (*logEnds, error) {
	m, err := c.adm.Metadata(ctx, slices.Sorted(maps.Keys(topics))...)
	if err != nil {
		return nil, c.fail("ask for topics", err)
	}
	l := &logEnds{details: m.Topics, retention: map[string]time.Duration{}}
	var there []string
	for _, t := range m.Topics.Sorted() {
		if t.Err == nil {
			there = append(there, t.Topic)
		}
	}
	if len(there) == 0 {
		return l, nil
	}
	// What some leaders answer is worth having without the others.
	if l.starts, err = c.adm.ListStartOffsets(ctx, there...); err != nil && len(l.starts) == 0 {
		return nil, c.fail("ask for offsets", firstShardError(err))
	}
	if l.ends, err = c.adm.ListEndOffsets(ctx, there...); err != nil && len(l.ends) == 0 {
		return nil, c.fail("ask for offsets", firstShardError(err))
	}
	configs, err := c.adm.DescribeTopicConfigs(ctx, there...)
	if err != nil {
		return l, nil // the ages are worth having without
	}
	for _, r := range configs {
		values := map[string]string{}
		for _, k := range r.Configs {
			values[k.Key] = k.MaybeValue()
		}
		if !strings.Contains(values["cleanup.policy"], "delete") {
			continue
		}
		if ms, err := strconv.ParseInt(values["retention.ms"], 10, 64); err == nil && ms >= 0 {
			l.retention[r.Name] = time.Duration(min(ms, int64(1<<63-1)/int64(time.Millisecond))) * time.Millisecond
		}
		l.sizes.add(r.Name, values["retention.bytes"], values["segment.bytes"])
	}
	c.readSizes(ctx, &l.sizes, l.details)
	return l, nil
}

// measure fills in what the log says of a partition.
func (l *logEnds) measure(p *groupPartition) {
	if d, ok := l.details[p.Topic]; !ok || d.Err != nil {
		err := kerr.UnknownTopicOrPartition.Message
		if ok {
			err = status(d.Err)
		}
		p.Error = err
		return
	}
	start, ok1 := l.starts.Lookup(p.Topic, p.Partition)
	end, ok2 := l.ends.Lookup(p.Topic, p.Partition)
	if !ok1 || !ok2 || start.Err != nil || end.Err != nil {
		p.Error = "LEADER_NOT_AVAILABLE"
		if err := errors.Join(start.Err, end.Err); ok1 && ok2 && err != nil {
			p.Error = status(cmp.Or(start.Err, end.Err))
		}
		return
	}
	p.LogStart, p.LogEnd = &start.Offset, &end.Offset
	if p.Current == nil {
		return
	}
	from := max(*p.Current, start.Offset)
	lag := max(end.Offset-from, 0)
	p.Lag, p.Lost = &lag, max(start.Offset-*p.Current, 0)
	if lag == 0 {
		none := int64(0)
		p.LagMS = &none
	}
}

// addAges looks at the first batch that waits in each partition: the time in its header is exact, where a guess from
// rates would be none. Groups that stand close together are answered from one read.
func (c *connection) addAges(ctx context.Context, groups []*groupLag, logs *logEnds) error {
	waiting := map[topicPartition][]*groupPartition{}
	for _, g := range groups {
		for i := range g.Partitions {
			p := &g.Partitions[i]
			if p.Lag != nil && *p.Lag > 0 {
				at := topicPartition{p.Topic, p.Partition}
				waiting[at] = append(waiting[at], p)
			}
		}
	}
	var work errgroup.Group
	work.SetLimit(16)
	now := time.Now()
	for at, partitions := range waiting {
		work.Go(func() error {
			slices.SortFunc(partitions, func(a, b *groupPartition) int { return cmp.Compare(a.from(), b.from()) })
			var batches []byte
			for _, p := range partitions {
				written, ok := batchTime(batches, p.from())
				if !ok {
					var err error
					if batches, err = c.readBatches(ctx, logs.details[at.topic], at.partition, p.from()); err != nil {
						if ctx.Err() != nil {
							return ctx.Err()
						}
						p.Error = status(err)
						continue
					}
					if written, ok = batchTime(batches, p.from()); !ok {
						continue // nothing there by now
					}
				}
				age := max(now.Sub(written), 0).Milliseconds()
				p.LagMS = &age
				logs.doom(p)
			}
			return nil
		})
	}
	return work.Wait()
}

// from is where a partition that lags is read next.
func (p *groupPartition) from() int64 { return max(*p.Current, *p.LogStart) }

// doom says when retention deletes the first record that waits: by the sooner of its two rules.
func (l *logEnds) doom(p *groupPartition) {
	if keep, ok := l.retention[p.Topic]; ok {
		left := max(keep.Milliseconds()-*p.LagMS, 0)
		p.RetentionMS, p.RetentionBy = &left, console.RetentionTime
	}
	end, _ := l.ends.Lookup(p.Topic, p.Partition)
	if left, ok := l.sizes.left(topicPartition{p.Topic, p.Partition}, *p.LogStart, max(*p.Current, *p.LogStart), end.Offset); ok && (p.RetentionMS == nil || left < *p.RetentionMS) {
		p.RetentionMS, p.RetentionBy = &left, console.RetentionSize
	}
}

// agesBytes is how much is read of a partition at once, beside the first batch, which is read whole.
const agesBytes = 16 << 10

// readBatches reads batches at and after an offset; the last may be cut off.
func (c *connection) readBatches(ctx context.Context, t kadm.TopicDetail, partition int32, offset int64) ([]byte, error) {
	leader := t.Partitions[partition].Leader
	if leader < 0 {
		return nil, kerr.LeaderNotAvailable
	}
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes = 0, 0, agesBytes
	req.SessionEpoch = -1
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic, rt.TopicID = t.Topic, t.ID
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes = partition, offset, agesBytes
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	answer, err := c.Broker(int(leader)).RetriableRequest(ctx, req)
	if err != nil {
		return nil, err
	}
	resp := answer.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return nil, errors.New("the answer does not name the partition")
	}
	p := &resp.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
		return nil, err
	}
	return p.RecordBatches, nil
}

// batchTime is the time in the header of the record batch (version 2) that a reader from an offset gets first: its first record's if
// the offset is at its beginning or before, else its last's. False: there is none among these. Batches come in the order of their
// offsets, the first of them at or before the offset, unless those between have been compacted away.
func batchTime(b []byte, offset int64) (time.Time, bool) {
	const header = 61
	for len(b) >= header && b[16] == 2 {
		base, size, last := int64(binary.BigEndian.Uint64(b)), 12+int64(binary.BigEndian.Uint32(b[8:])), int64(binary.BigEndian.Uint32(b[23:]))
		if base+last >= offset {
			first, newest := int64(binary.BigEndian.Uint64(b[27:])), int64(binary.BigEndian.Uint64(b[35:]))
			if appendTime := binary.BigEndian.Uint16(b[21:])&(1<<3) != 0; appendTime || base < offset {
				first = newest
			}
			return time.UnixMilli(first), true
		}
		b = b[min(size, int64(len(b))):]
	}
	return time.Time{}, false
}

// lagText is a lag in records and time, for people: 41204 (≈ 3m10s).
func lagText(records, millis int64) string {
	if records == 0 {
		return "0"
	}
	return fmt.Sprintf("%d (≈ %s)", records, ageText(time.Duration(millis)*time.Millisecond))
}

// millisCell prints milliseconds as an age, "-" for what is not known.
func millisCell(ms *int64) any {
	if ms == nil {
		return "-"
	}
	return ageText(time.Duration(*ms) * time.Millisecond)
}

// retentionCell prints how long retention leaves records alone: exactly by time, about by size.
func retentionCell(ms *int64, by string) any {
	if ms != nil && by == console.RetentionSize {
		return "≈ " + ageText(time.Duration(*ms)*time.Millisecond)
	}
	return millisCell(ms)
}

// ageText writes a duration with its two largest units: 12s, 3m10s, 5h12m, 6d23h.
func ageText(d time.Duration) string {
	s := int64(d / time.Second)
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm%ds", s/60, s%60)
	case s < 24*3600:
		return fmt.Sprintf("%dh%dm", s/3600, s/60%60)
	}
	return fmt.Sprintf("%dd%dh", s/(24*3600), s/3600%24)
}
