package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/group"
	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/transport/console"
)

// groupReportMethod is the call between brokers that asks a group's coordinator for a console.GroupReport.
const groupReportMethod = "groups.report"

// groupReports asks the coordinators of groups: this broker itself, or another.
type groupReports struct{ b *Broker }

func newGroupReports(b *Broker) groupReports {
	r := groupReports{b}
	if b.peers != nil {
		handle(b.peers, groupReportMethod, func(ctx context.Context, name string) (*console.GroupReport, error) {
			report, err := r.own(ctx, name)
			if errors.Is(err, metadata.ErrGroupNotFound) {
				return nil, nil
			}
			return &report, err
		})
		handle(b.peers, groupSeekMethod, r.seek)
		handle(b.peers, groupReadersMethod, r.readers)
	}
	return r
}

func noCoordinator(name string) error {
	return &metadata.Error{
		Kind: metadata.ErrBusy, What: "group " + name + " has no coordinator that can be asked", Why: "no broker is there that could coordinate it", Fix: "millrace cluster health",
	}
}

// GroupReport implements console.Groups.
func (r groupReports) GroupReport(ctx context.Context, name string) (console.GroupReport, error) {
	im := r.b.store.Image()
	id, _ := im.Coordinator(metadata.GroupCoordinator, name)
	if id == r.b.nodeID {
		return r.own(ctx, name)
	}
	coordinator := im.Broker(id)
	if coordinator == nil || coordinator.PeerAddress == "" || r.b.peers == nil {
		return console.GroupReport{}, noCoordinator(name)
	}
	var report *console.GroupReport
	if err := callJSON(ctx, r.b.peers, coordinator.PeerAddress, groupReportMethod, name, &report); err != nil {
		return console.GroupReport{}, fmt.Errorf("ask broker %d, which coordinates group %s: %w", id, name, err)
	}
	if report == nil {
		return console.GroupReport{}, console.UnknownGroup(name)
	}
	return *report, nil
}

// own reports of a group that this broker coordinates.
func (r groupReports) own(ctx context.Context, name string) (console.GroupReport, error) {
	d, err := r.b.groups.Describe(name)
	switch {
	case errors.Is(err, group.ErrGroupNotFound):
		return console.GroupReport{}, console.UnknownGroup(name)
	case err != nil:
		return console.GroupReport{}, &metadata.Error{Kind: metadata.ErrBusy, What: "group " + name + " cannot be described now", Why: err.Error(), Fix: "try again in a moment"}
	}
	out := console.GroupReport{
		Group: name, State: string(d.State), Type: string(d.Type), Coordinator: int32(r.b.nodeID), ProtocolType: d.ProtocolType, Protocol: d.Protocol,
		Generation: d.Generation, SinceMS: d.Since.Milliseconds(), Reason: d.Reason, Members: []console.GroupMember{}, Partitions: []console.GroupPartition{}, Left: []console.GroupDeparture{},
		Churn: []console.GroupChurn{}, Refused: []console.GroupRefusal{},
	}
	now := time.Now()
	tellHistory(&out, r.b.groups.History(name))
	readers := map[metadata.TopicPartition]string{}
	for i := range d.Members {
		m := groupMember(r.b.store.Image(), &d, &d.Members[i], readers)
		out.Members = append(out.Members, m)
	}
	out.Partitions = r.partitions(ctx, name, readers, now)
	r.addReaders(ctx, &out)
	r.addBatches(ctx, out.Partitions)
	return out, nil
}

// groupMember describes a member, and notes in readers what it is to read, as far as its protocol type says.
func groupMember(im *metadata.Image, d *group.Description, from *group.DescribedMember, readers map[metadata.TopicPartition]string) console.GroupMember {
	m := console.GroupMember{
		ID: from.ID, Instance: from.Instance, ClientID: from.ClientID, Host: from.ClientHost,
		SessionMS: from.SessionTimeout.Milliseconds(), SeenMS: from.LastSeen.Milliseconds(), Joined: from.Joined, Topics: []string{}, Partitions: -1,
		RebalanceMS: from.RebalanceTimeout.Milliseconds(), Offered: append([]string{}, from.Offered...), Away: from.Away,
	}
	if d.ProtocolType != "consumer" {
		return m // what its members tell each other is theirs
	}
	if d.Type == group.TypeConsumer {
		m.Topics = append(m.Topics, from.Topics...)
		m.Partitions = 0
		for _, tp := range from.Assigned {
			t := im.TopicByID(tp.TopicID)
			if t == nil {
				continue
			}
			for _, p := range tp.Partitions {
				readers[metadata.TopicPartition{Topic: t.Name, Partition: p}] = from.ID
				m.Partitions++
			}
		}
		return m
	}
	var wants kmsg.ConsumerMemberMetadata
	if wants.ReadFrom(from.Metadata) == nil {
		m.Topics = slices.Sorted(slices.Values(wants.Topics))
	}
	if d.State != group.StateStable {
		return m
	}
	m.Partitions = 0
	var has kmsg.ConsumerMemberAssignment
	if len(from.Assignment) == 0 {
		return m
	}
	if has.ReadFrom(from.Assignment) != nil {
		m.Partitions = -1
		return m
	}
	for _, t := range has.Topics {
		for _, p := range t.Partitions {
			readers[metadata.TopicPartition{Topic: t.Topic, Partition: p}] = from.ID
			m.Partitions++
		}
	}
	return m
}

// partitions are those with an offset or a reader.
func (r groupReports) partitions(ctx context.Context, name string, readers map[metadata.TopicPartition]string, now time.Time) []console.GroupPartition {
	im := r.b.store.Image()
	out := []console.GroupPartition{}
	var questions []placeQuestion
	add := func(t *metadata.Topic, partition int32, offset, committed int64) {
		at := metadata.TopicPartition{Topic: t.Name, Partition: partition}
		p := console.GroupPartition{Topic: t.Name, Partition: partition, Current: offset, CommittedMS: -1, LogStart: -1, LogEnd: -1, Lag: -1, LagMS: -1, RetentionMS: -1, Stable: -1, Leader: -1, Member: readers[at]}
		if committed > 0 {
			p.CommittedMS = max(now.UnixMilli()-committed, 0)
		}
		delete(readers, at)
		out = append(out, p)
		// Without an offset all that is there waits, as long as nobody knows better.
		questions = append(questions, placeQuestion{Topic: t.ID, Partition: partition, Offset: max(offset, 0)})
	}
	for at, o := range im.Offsets(name) {
		if t := im.TopicByID(at.TopicID); t != nil {
			add(t, at.Partition, o.Offset, o.CommittedAt)
		}
	}
	for at := range readers {
		if t := im.Topic(at.Topic); t != nil && int(at.Partition) < len(t.Partitions) {
			add(t, at.Partition, -1, 0)
		}
	}
	places := r.b.lag.read(ctx, questions)
	for i := range out {
		p, place := &out[i], &places[i]
		if p.Trouble = place.Error; p.Trouble != "" {
			p.Damaged = place.Damaged
			continue
		}
		p.LogStart, p.LogEnd, p.Stable, p.Transaction = place.Start, place.End, place.Stable, place.Held
		from := p.Current
		if from < 0 {
			from = place.Start
		}
		p.Lag, p.LagMS = place.lag(from), place.age(now).Milliseconds()
		if p.RetentionMS = place.Left; p.RetentionMS >= 0 {
			p.RetentionBy = console.RetentionTime
			if place.BySize {
				p.RetentionBy = console.RetentionSize
			}
		}
	}
	slices.SortFunc(out, func(a, b console.GroupPartition) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return out
}
