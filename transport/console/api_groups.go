package console

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/metadata"
)

// Groups asks the coordinator of a group what only that one knows; cmd/broker makes one.
type Groups interface {
	// GroupReport describes a group, as its coordinator sees it. An unknown group matches metadata.ErrGroupNotFound.
	GroupReport(ctx context.Context, group string) (GroupReport, error)
	// SeekGroup carries out an order, at the group's coordinator, until ctx ends. Members without Force match
	// metadata.ErrGroupNotEmpty.
	SeekGroup(ctx context.Context, group string, order GroupSeekOrder) (GroupSought, error)
}

// GroupSeekOrder sets offsets of a group.
type GroupSeekOrder struct {
	Offsets []GroupOffset `json:"offsets" doc:"each partition once; all are set, or none"`
	Force   bool          `json:"force" doc:"put out the members that the group has; they join again by themselves"`
}

// GroupOffset is an offset of a group in one partition, in the form in which the command line exports them.
type GroupOffset struct {
	Topic       string `json:"topic" doc:"name"`
	Partition   int32  `json:"partition" doc:"number"`
	Offset      *int64 `json:"offset" doc:"next offset to read; null for none"`
	LeaderEpoch *int32 `json:"leader_epoch" doc:"of the last record read; null when it is not known"`
	Metadata    string `json:"metadata" doc:"what the client stored with the offset"`
}

// GroupSought is what a seek has done.
type GroupSought struct {
	Members int           `json:"members" doc:"how many were put out"`
	Prior   []GroupOffset `json:"prior" doc:"what was committed until that very moment, in the order of the request: an order with these brings it back"`
}

// GroupReport is a group as its coordinator sees it.
type GroupReport struct {
	Group        string `json:"group" doc:"name"`
	State        string `json:"state" doc:"Empty, PreparingRebalance, CompletingRebalance, Stable; Assigning or Reconciling"`
	Type         string `json:"type" doc:"classic or consumer: the protocol its members speak"`
	Coordinator  int32  `json:"coordinator" doc:"id of the broker that coordinates it"`
	ProtocolType string `json:"protocol_type" doc:"consumer, connect, or what the members call it"`
	Protocol     string `json:"protocol" doc:"the assignor in use; empty while there is none"`
	Generation   int32  `json:"generation" doc:"number of the present generation, or the group's epoch; -1 while there is none"`
	// SinceMS counts from when this broker began to coordinate the group, if it has not changed since.
	SinceMS int64  `json:"since_ms" doc:"how long it has been in its state, in milliseconds"`
	Reason  string `json:"reason" doc:"why it last rebalanced; empty if it has not since its coordinator took it over"`
	// Rebalances counts generations that this coordinator has seen begin.
	Rebalances int              `json:"rebalances" doc:"generations that began in the last ten minutes, as far as its coordinator has seen them"`
	Left       []GroupDeparture `json:"left" doc:"members that went in the last ten minutes, the latest first"`
	Churn      []GroupChurn     `json:"churn" doc:"clients that came or went in the last ten minutes, those that went most often first"`
	Refused    []GroupRefusal   `json:"refused" doc:"clients that were not let in in the last ten minutes, the latest first"`
	Members    []GroupMember    `json:"members" doc:"each member"`
	Partitions []GroupPartition `json:"partitions" doc:"each partition that has an offset or a member"`
}

// GroupDeparture is a member that went.
type GroupDeparture struct {
	Member   string `json:"member_id" doc:"its id"`
	ClientID string `json:"client_id" doc:"as its program calls itself; empty when it is not known"`
	Instance string `json:"instance_id" doc:"of a static member; empty for others"`
	Host     string `json:"host" doc:"where it ran"`
	Reason   string `json:"reason" doc:"why, as it said itself or as its coordinator saw it"`
	AgoMS    int64  `json:"ago_ms" doc:"how long ago, in milliseconds"`
}

// GroupChurn is how often one client came and went in the last ten minutes. A client is who has the same client id, host and
// instance id: members get new ids each time.
type GroupChurn struct {
	ClientID string              `json:"client_id" doc:"as its program calls itself"`
	Host     string              `json:"host" doc:"where it runs"`
	Instance string              `json:"instance_id" doc:"of a static member; empty for others"`
	Member   string              `json:"member_id" doc:"the last of its member ids"`
	Came     int                 `json:"came" doc:"how often it joined as a new member"`
	Went     int                 `json:"went" doc:"how often it left or was put out"`
	Reasons  []GroupChurnReasons `json:"reasons" doc:"why it went, the most frequent first"`
	Polls    int                 `json:"poll_timeouts" doc:"how often it went because its program did not poll: it said so, or did not join again in time"`
	Returns  int                 `json:"returns" doc:"how often it left and came back by the same connection, so that its process had not ended"`
	AwayMS   int64               `json:"away_ms" doc:"for how long it was gone, on the average of the times it came back, in milliseconds"`
}

// GroupChurnReasons is a reason with how often it was one.
type GroupChurnReasons struct {
	Reason string `json:"reason" doc:"session-timeout, rebalance-timeout, member-left and others"`
	Times  int    `json:"times" doc:"how often"`
}

// Why somebody was not let into a group.
const (
	RefusedProtocol = "no-common-protocol"
	RefusedInstance = "instance-taken"
	RefusedAssignor = "unknown-assignor"
	RefusedFull     = "group-full"
	RefusedSession  = "session-timeout-out-of-bounds"
	RefusedKind     = "other-group-protocol"
)

// GroupRefusal is a client that was not let in in the last ten minutes.
type GroupRefusal struct {
	ClientID string   `json:"client_id" doc:"as its program calls itself"`
	Host     string   `json:"host" doc:"where it runs"`
	Instance string   `json:"instance_id" doc:"of a static member; empty for others"`
	Offered  []string `json:"offered" doc:"assignors that it offered, in its order"`
	Reason   string   `json:"reason" doc:"no-common-protocol, instance-taken, unknown-assignor, group-full, session-timeout-out-of-bounds or other-group-protocol"`
	Times    int      `json:"times" doc:"how often"`
	AgoMS    int64    `json:"ago_ms" doc:"how long ago it was the last time, in milliseconds"`
}

// GroupMember is a member as its coordinator sees it.
type GroupMember struct {
	ID          string   `json:"member_id" doc:"given by the coordinator"`
	Instance    string   `json:"instance_id" doc:"of a static member; empty for others"`
	ClientID    string   `json:"client_id" doc:"as its program calls itself"`
	Host        string   `json:"host" doc:"where it runs"`
	SessionMS   int64    `json:"session_timeout_ms" doc:"how long it may be silent"`
	SeenMS      int64    `json:"seen_ms" doc:"how long ago it was heard from, in milliseconds"`
	RebalanceMS int64    `json:"rebalance_timeout_ms" doc:"how long the others wait for it in a rebalance: max.poll.interval.ms of many clients"`
	Offered     []string `json:"offered" doc:"assignors that it offers, in its order; empty where the coordinator assigns"`
	Away        bool     `json:"away" doc:"whether it has left for a while, as a static member says (KIP-848)"`
	Joined      bool     `json:"joined" doc:"whether it takes part in the rebalance under way"`
	Topics      []string `json:"topics" doc:"what it wants to read; empty where its protocol does not say"`
	Partitions  int      `json:"partitions" doc:"how many it is to read; -1 where its protocol does not say"`
}

// GroupPartition is a partition as a group reads it. Offsets are -1 where they are not known.
type GroupPartition struct {
	Topic       string `json:"topic" doc:"name"`
	Partition   int32  `json:"partition" doc:"number"`
	Current     int64  `json:"current_offset" doc:"next offset to read, as committed; -1 when none is"`
	CommittedMS int64  `json:"committed_ms" doc:"how long ago it was committed, in milliseconds; -1 when none is"`
	LogStart    int64  `json:"log_start_offset" doc:"first offset that is there; -1 while it is not known"`
	LogEnd      int64  `json:"log_end_offset" doc:"next offset to be read; -1 while it is not known"`
	Lag         int64  `json:"lag" doc:"records that wait; -1 while it is not known"`
	LagMS       int64  `json:"lag_ms" doc:"age of the first batch that waits, in milliseconds; 0 when none does, -1 while it is not known"`
	RetentionMS int64  `json:"retention_left_ms" doc:"how long retention leaves the first record that waits alone, as things are, in milliseconds; -1 when it will not delete it, none waits or it is not known"`
	RetentionBy string `json:"retention_by" doc:"time, or size: by retention.bytes, at the rate at which the last 5 to 10 minutes have made the log grow; empty for neither"`
	Member      string `json:"member_id" doc:"who is to read it; empty for nobody"`
	Leader      int32  `json:"leader" doc:"broker id; -1 is none"`
	UnderMinISR bool   `json:"under_min_isr" doc:"whether it refuses acks=all"`
	Stable      int64  `json:"last_stable_offset" doc:"up to where readers of committed records may read; -1 while it is not known"`
	// Transaction is the one that keeps Stable below LogEnd.
	Transaction *HeldTransaction `json:"transaction" doc:"open transaction that keeps readers of committed records back; null when none does"`
	// Readers are those of the group's clients, told by client id and host: another program of the machine may have the same.
	Readers []GroupReader `json:"readers" doc:"where clients of the group ask for records, while some wait, the latest first; as brokers have seen it, by client id and host"`
	// BatchBytes and BatchTrouble are looked at where the group has not moved for long.
	BatchBytes   int64  `json:"batch_bytes" doc:"size of the batch at the offset; 0 where it was not looked at"`
	BatchTrouble string `json:"batch_trouble" doc:"what is wrong with that batch in its leader's log; empty for nothing"`
	Trouble      string `json:"trouble" doc:"why something is not known; empty when all is"`
	Damaged      bool   `json:"damaged" doc:"whether that is damage of the partition's copy on its leader, the last one that counts"`
}

// What GroupPartition.RetentionBy says.
const (
	RetentionTime = "time"
	RetentionSize = "size"
)

// GroupReader is where a client asks for records of a partition, as a broker has seen it: it looks at one answer of a connection
// every two seconds.
type GroupReader struct {
	Broker   int32  `json:"broker" doc:"id of the broker that was asked"`
	ClientID string `json:"client_id" doc:"as its program calls itself"`
	Host     string `json:"host" doc:"where it runs"`
	Offset   int64  `json:"offset" doc:"next record that it asked for"`
	SinceMS  int64  `json:"since_ms" doc:"for how long it has asked for that offset, in milliseconds"`
	SeenMS   int64  `json:"seen_ms" doc:"how long ago it asked last, in milliseconds"`
	Asked    int    `json:"asked" doc:"how many of the answers that were looked at were about that offset"`
	Served   int    `json:"served" doc:"how many of them had records"`
	MaxBytes int32  `json:"max_bytes" doc:"most bytes of the partition that it takes in one answer"`
	Error    string `json:"error" doc:"name of the error that it was answered last; empty for none"`
}

// HeldTransaction is an open transaction that holds a partition back.
type HeldTransaction struct {
	ID         string `json:"transactional_id" doc:"empty when nobody knows its producer: then nobody will end it"`
	State      string `json:"state" doc:"Ongoing; PrepareCommit and PrepareAbort while its marker is being written; empty without an id"`
	ProducerID int64  `json:"producer_id" doc:"who has it open"`
	Epoch      int16  `json:"producer_epoch" doc:"its epoch; -1 without an id"`
	Start      int64  `json:"start_offset" doc:"offset of its first record in the partition"`
	OpenMS     int64  `json:"open_ms" doc:"for how long it has been open, at least, in milliseconds"`
	LeftMS     int64  `json:"left_ms" doc:"when it times out, in milliseconds; negative when it should have"`
}

// GroupDiagnosis says what is wrong with a group and what mends it.
type GroupDiagnosis struct {
	GroupReport
	Well     bool      `json:"well" doc:"whether there is nothing wrong"`
	Findings []Finding `json:"findings" doc:"the worst first"`
	Passed   []string  `json:"passed" doc:"what was looked at and is well"`
}

func getGroupDiagnosis(c *call) (any, error) {
	name := c.r.PathValue("group")
	if c.Groups == nil {
		return nil, invalid("there are no groups", "this broker has no coordinator", "ask another broker")
	}
	report, err := c.Groups.GroupReport(c.ctx, name)
	if err != nil {
		return nil, err
	}
	for i := range report.Partitions {
		p := &report.Partitions[i]
		if t := c.image().Topic(p.Topic); t != nil && int(p.Partition) < len(t.Partitions) {
			p.Leader = int32(t.Partitions[p.Partition].Leader)
			p.UnderMinISR = p.Leader >= 0 && len(t.Partitions[p.Partition].ISR) < c.minISR(t)
		}
	}
	return diagnoseGroup(report, cmp.Or(c.Patience, GroupPatience)), nil
}

// mostSought bounds the partitions of one order.
const mostSought = 100_000

func postGroupOffsets(c *call) (any, error) {
	var order GroupSeekOrder
	if err := c.read(&order); err != nil {
		return nil, err
	}
	if c.Groups == nil {
		return nil, invalid("there are no groups", "this broker has no coordinator", "ask another broker")
	}
	if n := len(order.Offsets); n == 0 || n > mostSought {
		return nil, invalid(fmt.Sprintf("offsets of %d partitions cannot be set", n), fmt.Sprintf("an order is about 1 to %d", mostSought), "send several, one after the other")
	}
	for i := range order.Offsets {
		if o := &order.Offsets[i]; o.Topic == "" || o.Partition < 0 || o.Offset != nil && *o.Offset < 0 {
			return nil, invalid(fmt.Sprintf("the offset of %s-%d cannot be set", o.Topic, o.Partition), "a topic has a name, and partitions and offsets are counted from 0", "null takes an offset away")
		}
	}
	return c.Groups.SeekGroup(c.ctx, c.r.PathValue("group"), order)
}

// UnknownGroup is the error of a group that does not exist.
func UnknownGroup(name string) error {
	return &metadata.Error{
		Kind: metadata.ErrGroupNotFound, What: "there is no group " + name, Why: "nobody has joined it or stored an offset under that name, or it has expired",
		Fix: "millrace group list   shows the groups",
	}
}

// millis writes milliseconds as a person says them: 12s, 3m10s, 5h12m, 6d23h.
func millis(ms int64) string {
	s := ms / int64(time.Second/time.Millisecond)
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
