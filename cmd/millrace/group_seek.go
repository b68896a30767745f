package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/transport/console"
)

type soughtPartition struct {
	Topic     string `json:"topic" doc:"name"`
	Partition int32  `json:"partition" doc:"number"`
	Prior     *int64 `json:"prior_offset" doc:"what was committed; null for nothing"`
	Offset    *int64 `json:"offset" doc:"what is committed; null for nothing"`
	Status    string `json:"status" doc:"OK, UNCHANGED, or the error's name"`

	leaderEpoch int32
	metadata    string
	before      *console.GroupOffset // what the coordinator says was committed until the seek; nil where it was not asked
}

func (p *soughtPartition) changes() bool {
	if p.Prior == nil || p.Offset == nil {
		return p.Prior != p.Offset
	}
	return *p.Prior != *p.Offset
}

func groupSeekCommand() *cli.Command {
	return &cli.Command{
		Name:      "seek",
		Usage:     "move the offsets of a group",
		ArgsUsage: "NAME",
		Description: "--to says where: start, end, current (only brings offsets back into the log), @TIME, an offset, +N or -N from where it is.\n" +
			"A TIME is 2026-11-29T12:00:00Z, milliseconds, or relative as -1h. Offsets outside the log are moved to its nearest end.\n" +
			"The group must have no members; --force puts out those it has, and they join again by themselves and go on from the\n" +
			"new offsets. That is one step where the admin API can be reached; else members that come back are put out again until\n" +
			"the offsets are there. What was committed before is kept in a file, and the command that brings it back is printed.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "to", Usage: "`WHERE`: start, end, current, @TIME, 42, +42, -42"},
			&cli.StringFlag{Name: "to-group", Usage: "to the offsets of another `GROUP`"},
			&cli.StringFlag{Name: "to-file", Usage: "to the offsets in `FILE`, as export writes them"},
			&cli.StringSliceFlag{Name: "topics", Aliases: []string{"t"}, Usage: "only these: `TOPIC,TOPIC:0,1` (repeatable)"},
			&cli.BoolFlag{Name: "allow-new-topics", Usage: "also topics that the group has no offset of"},
			&cli.BoolFlag{Name: "force", Usage: "put out the members that the group has"},
			dryRunFlag(),
			adminFlag(),
		},
		Action: runGroupSeek,
	}
}

// seek is one run of the command.
type seek struct {
	*connection
	group  string
	state  *groupState          // nil: the group does not exist
	fetch  kadm.OffsetResponses // what is committed
	wanted map[string][]int32   // --topics: nil partitions are all; empty map: every topic of the group
	fresh  bool                 // --allow-new-topics
	out    []soughtPartition
}

func runGroupSeek(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]soughtPartition{}) {
		return nil
	}
	name, err := oneGroup(c)
	if err != nil {
		return err
	}
	ways := 0
	for _, flag := range []string{"to", "to-group", "to-file"} {
		if c.IsSet(flag) {
			ways++
		}
	}
	if ways != 1 {
		f := usageError("one of --to, --to-group and --to-file must say where", "millrace group seek "+name+" --to start | end | @-1h | 42 | -100")
		f.why = fmt.Sprintf("%d of them were given", ways)
		return f
	}
	var to bound
	if c.IsSet("to") && c.String("to") != "current" {
		if to, err = seekTarget(c.String("to"), time.Now()); err != nil {
			return err
		}
	}
	var from []groupOffset
	if c.IsSet("to-file") {
		if from, err = readOffsets(c.String("to-file")); err != nil {
			return err
		}
	}
	if c.IsSet("to-group") {
		if err := checkGroupName(c, c.String("to-group")); err != nil {
			return err
		}
	}
	wanted, err := topicPartitionFlag("--topics", topicList(c.StringSlice("topics")))
	if err != nil {
		return err
	}
	ctx, cancel := e.ctx(c)
	defer cancel()
	conn, err := e.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	var b, missing batch
	states, err := conn.groupStates(ctx, []string{name}, &missing) // a group that does not exist may be given offsets
	if err != nil {
		return err
	}
	s := &seek{connection: conn, group: name, wanted: wanted, fresh: c.Bool("allow-new-topics") || c.IsSet("to-file")}
	if len(states) == 1 {
		s.state = states[0]
	}
	if s.fetch, err = conn.adm.FetchOffsets(ctx, name); err != nil {
		return conn.fail("read the offsets of group "+name, err)
	}
	switch {
	case c.IsSet("to-group"):
		other, err := conn.adm.FetchOffsets(ctx, c.String("to-group"))
		if err != nil {
			return conn.fail("read the offsets of group "+c.String("to-group"), err)
		}
		if from = exportedOffsets(other); len(from) == 0 {
			return &failure{code: exitFailed, what: "group " + c.String("to-group") + " has no offsets", why: "it does not exist, has committed none, or they have expired", fix: "millrace group list   shows the groups"}
		}
		err = s.planOffsets(ctx, from)
		if err != nil {
			return err
		}
	case c.IsSet("to-file"):
		if err := s.planOffsets(ctx, from); err != nil {
			return err
		}
	default:
		if err := s.planBound(ctx, to, c.String("to") == "current"); err != nil {
			return err
		}
	}
	members := 0
	if s.state != nil {
		members = len(s.state.Members)
	}
	changed := s.printPlan(e, members)
	if c.Bool("dry-run") {
		e.hint("dry run: nothing was changed")
		return e.emit(s.result())
	}
	if members > 0 && !c.Bool("force") {
		return &failure{code: exitFailed, what: fmt.Sprintf("group %s has %s", name, count(members, "member")),
			why: "they would go on from where they are and overwrite the offsets",
			fix: "stop them first, or add --force: they are put out, and join again by themselves at the new offsets"}
	}
	if changed == 0 {
		return e.emit(s.result())
	}
	question := fmt.Sprintf("move %s of group %s?", count(changed, "offset"), name)
	if members > 0 {
		question = fmt.Sprintf("put out %s and move %s of group %s?", count(members, "member"), count(changed, "offset"), name)
	}
	if err := e.confirm(question); err != nil {
		return err
	}
	undo, err := s.keepPrior(time.Now())
	if err != nil {
		return err
	}
	ctx, cancel = e.ctx(c) // the question took its time
	defer cancel()
	if members == 0 || !c.Bool("force") {
		err = s.carryOut(ctx, false, &b)
	} else if done, failed := s.order(e, c, &b); failed != nil || done {
		if err = failed; err == nil {
			err = s.writePrior(undo) // by now it may be another than the plan says
		}
	} else {
		e.hint("no admin API of a broker can be reached (--admin HOST:9644): the members are put out one step before the offsets are set")
		err = s.carryOut(ctx, true, &b)
	}
	if err != nil {
		return err
	}
	if err := e.emit(s.result()); err != nil {
		return err
	}
	force := ""
	if members > 0 {
		force = " --force"
		e.hint("%s put out: they join again by themselves", count(members, "member"))
	}
	e.hint("undo: millrace group seek %s --to-file %s%s", name, undo, force)
	return b.finish(e)
}

// topicList takes TOPIC,TOPIC apart, but leaves TOPIC:0,1 whole.
func topicList(values []string) (out []string) {
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			if n := len(out); n > 0 && partitionItem.MatchString(part) && strings.Contains(out[n-1], ":") {
				out[n-1] += "," + part
				continue
			}
			out = append(out, part)
		}
	}
	return out
}

var partitionItem = regexp.MustCompile(`^[0-9]+(-[0-9]+)?$`)

// seekTarget reads --to. +N and -N are from where the group is, unlike those of consume -o.
func seekTarget(s string, now time.Time) (bound, error) {
	bad := func(why string) error {
		f := usageError(fmt.Sprintf("--to %s is no place", s), "--to start | end | current | @-1h | @2026-11-29T12:00:00Z | 42 | +42 | -42")
		f.why = why
		return f
	}
	if at, ok := strings.CutPrefix(s, "@"); ok {
		millis, err := parseTime(at, now)
		if err != nil {
			return bound{}, bad(err.Error())
		}
		return bound{kind: boundTime, millis: millis}, nil
	}
	b, err := parseBound(s)
	if err != nil {
		return b, bad(err.Error())
	}
	return b, nil
}

// asked says whether a partition is among those of --topics.
func (s *seek) asked(topic string, partition int32) bool {
	partitions, ok := s.wanted[topic]
	return len(s.wanted) == 0 || ok && (partitions == nil || slices.Contains(partitions, partition))
}

// prior returns what is committed.
func (s *seek) prior(topic string, partition int32) *int64 {
	if o, ok := s.fetch.Lookup(topic, partition); ok && o.Err == nil && o.At >= 0 {
		return &o.At
	}
	return nil
}

// topics are those that the group has offsets of, or members that read them.
func (s *seek) topics() map[string]bool {
	topics := map[string]bool{}
	for topic := range s.fetch {
		for p := range s.fetch[topic] {
			if s.prior(topic, p) != nil {
				topics[topic] = true
			}
		}
	}
	if s.state != nil {
		for i := range s.state.Members {
			for _, a := range s.state.Members[i].Partitions {
				topics[a.Topic] = true
			}
		}
	}
	return topics
}

// newTopic is the failure of a topic that the group has no offset of.
func (s *seek) newTopic(topic string) error {
	if s.fresh || s.topics()[topic] {
		return nil
	}
	return &failure{code: exitFailed, what: fmt.Sprintf("group %s has no offset of topic %s", s.group, topic), why: "a slip in a topic's name would give the group offsets that it never uses",
		fix: "millrace group export " + s.group + "   shows what it has; add --allow-new-topics if the topic is meant"}
}

// planOffsets plans to commit given offsets, brought into the log.
func (s *seek) planOffsets(ctx context.Context, from []groupOffset) error {
	topics := map[string]bool{}
	var picked []groupOffset
	for _, o := range from {
		if s.asked(o.Topic, o.Partition) {
			if err := s.newTopic(o.Topic); err != nil {
				return err
			}
			topics[o.Topic], picked = true, append(picked, o)
		}
	}
	if len(picked) == 0 {
		return s.nothing()
	}
	logs, err := s.readLogs(ctx, topics)
	if err != nil {
		return err
	}
	for _, o := range picked {
		p := soughtPartition{Topic: o.Topic, Partition: o.Partition, Prior: s.prior(o.Topic, o.Partition), leaderEpoch: -1, metadata: o.Metadata, Status: "UNCHANGED"}
		if o.Offset != nil {
			start, end, err := logs.bounds(o.Topic, o.Partition)
			if err != nil {
				return err
			}
			at := min(max(*o.Offset, start), end)
			if p.Offset = &at; at == *o.Offset && o.LeaderEpoch != nil {
				p.leaderEpoch = *o.LeaderEpoch
			}
		}
		s.out = append(s.out, p)
	}
	return nil
}

// bounds are the first and the next offset of a partition.
func (l *logEnds) bounds(topic string, partition int32) (start, end int64, err error) {
	p := groupPartition{Topic: topic, Partition: partition}
	if l.measure(&p); p.LogStart == nil || p.LogEnd == nil {
		err := kerr.TypedErrorForCode(0)
		if p.Error == kerr.UnknownTopicOrPartition.Message {
			err = kerr.UnknownTopicOrPartition
		}
		if err != nil {
			return 0, 0, itemFailure(fmt.Sprintf("find %s-%d", topic, partition), err, nil)
		}
		return 0, 0, &failure{code: exitFailed, what: fmt.Sprintf("cannot ask for the offsets of %s-%d", topic, partition), why: "its leader says " + p.Error, fix: "millrace cluster health"}
	}
	return *p.LogStart, *p.LogEnd, nil
}

func (s *seek) nothing() error {
	f := &failure{code: exitFailed, what: "group " + s.group + " has no offset to move", why: "it does not exist, or has committed none for these topics",
		fix: "--topics TOPIC --allow-new-topics   gives it offsets of a topic"}
	return f
}

// planBound plans one place for all partitions of the group's topics.
func (s *seek) planBound(ctx context.Context, to bound, current bool) error {
	topics := map[string]bool{}
	if len(s.wanted) == 0 {
		topics = s.topics()
	}
	for topic := range s.wanted {
		if err := s.newTopic(topic); err != nil {
			return err
		}
		topics[topic] = true
	}
	if len(topics) == 0 {
		return s.nothing()
	}
	logs, err := s.readLogs(ctx, topics)
	if err != nil {
		return err
	}
	var byTime kadm.ListedOffsets
	if to.kind == boundTime {
		if byTime, err = s.adm.ListOffsetsAfterMilli(ctx, to.millis, keysOf(topics)...); err != nil {
			return s.fail("ask for offsets by time", firstShardError(err))
		}
	}
	relative := current || to.kind == boundAfterStart || to.kind == boundBeforeEnd
	for _, topic := range keysOf(topics) {
		detail, ok := logs.details[topic]
		if !ok || detail.Err != nil {
			return itemFailure("find topic "+topic, cmp.Or[error](detail.Err, kerr.UnknownTopicOrPartition), nil)
		}
		partitions, err := pickPartitions(detail, s.wanted[topic])
		if err != nil {
			return err
		}
		for _, d := range partitions {
			p := soughtPartition{Topic: topic, Partition: d.Partition, Prior: s.prior(topic, d.Partition), leaderEpoch: -1, Status: "UNCHANGED"}
			if relative && p.Prior == nil {
				continue // from nowhere
			}
			start, end, err := logs.bounds(topic, d.Partition)
			if err != nil {
				return err
			}
			var at int64
			switch {
			case current:
				at = *p.Prior
			case to.kind == boundAfterStart:
				at = *p.Prior + to.offset
			case to.kind == boundBeforeEnd:
				at = *p.Prior - to.offset
			case to.kind == boundStart:
				at = start
			case to.kind == boundEnd:
				at = end
			case to.kind == boundTime:
				at = end
				if o, ok := byTime.Lookup(topic, d.Partition); ok && o.Err == nil && o.Timestamp >= 0 {
					at = o.Offset
				}
			default:
				at = to.offset
			}
			at = min(max(at, start), end)
			p.Offset = &at
			s.out = append(s.out, p)
		}
	}
	if len(s.out) == 0 {
		return s.nothing()
	}
	return nil
}

func keysOf(set map[string]bool) []string {
	var out []string
	for k := range set {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// printPlan prints what is to be done, and returns how many offsets change.
func (s *seek) printPlan(e *env, members int) (changed int) {
	slices.SortFunc(s.out, func(a, b soughtPartition) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	var rows [][]any
	for i := range s.out {
		p := &s.out[i]
		if !p.changes() {
			continue
		}
		changed++
		var by any = "-"
		if p.Prior != nil && p.Offset != nil {
			by = fmt.Sprintf("%+d", *p.Offset-*p.Prior)
		}
		rows = append(rows, []any{p.Topic, p.Partition, offsetCell(p.Prior), offsetCell(p.Offset), by})
	}
	fmt.Fprintf(e.stderr, "plan: move %s of group %s", count(changed, "offset"), s.group)
	if members > 0 {
		fmt.Fprintf(e.stderr, ", which has %s", count(members, "member"))
	}
	fmt.Fprintln(e.stderr)
	if changed > 0 {
		writeTable(e.stderr, columns("TOPIC", "PARTITION#", "PRIOR-OFFSET#", "OFFSET#", "BY#"), rows, false, 0)
	}
	return changed
}

func (s *seek) result() result {
	r := result{value: s.out, cols: columns("TOPIC", "PARTITION#", "PRIOR-OFFSET#", "OFFSET#", "STATUS")}
	for i := range s.out {
		p := &s.out[i]
		r.rows = append(r.rows, []any{p.Topic, p.Partition, offsetCell(p.Prior), offsetCell(p.Offset), p.Status})
	}
	return r
}

// keepPrior writes what is committed for the planned partitions to a file, and returns its path.
func (s *seek) keepPrior(now time.Time) (string, error) {
	name := unsafeInNames.ReplaceAllString(s.group, "_")
	name = fmt.Sprintf("%.60s-%s.json", name, now.UTC().Format("20060102T150405.000Z"))
	dir := os.TempDir() // a service may have no home
	if store, err := openProfiles(); err == nil {
		dir = store.dir
	}
	path := filepath.Join(dir, "offsets", name)
	return path, s.writePrior(path)
}

// writePrior writes what was committed before to a file.
func (s *seek) writePrior(path string) error {
	prior := make([]groupOffset, 0, len(s.out))
	for i := range s.out {
		p := &s.out[i]
		if !p.changes() && p.before == nil {
			continue
		}
		o := groupOffset{Topic: p.Topic, Partition: p.Partition, Offset: p.Prior}
		if f, ok := s.fetch.Lookup(p.Topic, p.Partition); ok && p.Prior != nil {
			o.Metadata = f.Metadata
			if f.LeaderEpoch >= 0 {
				o.LeaderEpoch = &f.LeaderEpoch
			}
		}
		if p.before != nil {
			o = groupOffset(*p.before)
		}
		prior = append(prior, o)
	}
	var text strings.Builder
	if err := writeJSON(&text, prior); err != nil {
		return fmt.Errorf("write the previous offsets: %w", err)
	}
	return writePrivate(path, []byte(text.String()))
}

var unsafeInNames = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// seekPause is how long to wait before members that came back are put out again.
const seekPause = 100 * time.Millisecond

// carryOut commits what is planned. With force the members are put out first, which fences their generation: whatever they
// still commit is refused. One that comes back before the offsets are there is put out again, so that nobody goes on from
// an offset that is about to change.
func (s *seek) carryOut(ctx context.Context, force bool, b *batch) error {
	for {
		if force {
			if err := s.putOut(ctx); err != nil {
				return err
			}
		}
		again, err := s.commit(ctx)
		if err != nil {
			return err
		}
		if !again || !force {
			break
		}
		select {
		case <-time.After(seekPause):
		case <-ctx.Done():
			return &failure{code: exitTimeout, what: "cannot move the offsets of group " + s.group, why: "its members come back faster than they can be put out",
				fix: "stop them first; millrace group describe " + s.group + " --members   shows where they run", cause: ctx.Err()}
		}
	}
	for i := range s.out {
		p := &s.out[i]
		switch p.Status {
		case "OK":
			b.done++
		case "UNCHANGED":
		default:
			err := kerrNamed(p.Status)
			f := itemFailure(fmt.Sprintf("move the offset of %s-%d", p.Topic, p.Partition), err, nil)
			if refusedByMembers(err) {
				f.why, f.fix = "the group has members by now", "stop them first, or add --force"
			}
			b.fail(f)
		}
	}
	return nil
}

// kerrNamed is the protocol's error of a name that status returned.
func kerrNamed(name string) error {
	for code := int16(-1); code < 200; code++ {
		if k := kerr.TypedErrorForCode(code); k != nil && k.Message == name {
			return k
		}
	}
	return errors.New(name)
}

// refusedByMembers says whether an error means that the group has members.
func refusedByMembers(err error) bool {
	for _, k := range []error{kerr.UnknownMemberID, kerr.RebalanceInProgress, kerr.IllegalGeneration, kerr.NonEmptyGroup, kerr.GroupSubscribedToTopic, kerr.StaleMemberEpoch} {
		if errors.Is(err, k) {
			return true
		}
	}
	return false
}

// putOut removes all members of the group.
func (s *seek) putOut(ctx context.Context) error {
	var b batch
	states, err := s.groupStates(ctx, []string{s.group}, &b)
	if err != nil {
		return err
	}
	if len(states) == 0 || states[0].empty() {
		return nil
	}
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = s.group
	for i := range states[0].Members {
		m := kmsg.NewLeaveGroupRequestMember()
		m.MemberID = states[0].Members[i].ID
		if instance := states[0].Members[i].Instance; instance != "" {
			m.InstanceID = &instance
		}
		m.Reason = kmsg.StringPtr("millrace group seek --force")
		req.Members = append(req.Members, m)
	}
	resp, err := req.RequestWith(ctx, s.Client)
	if err != nil {
		return s.fail("put out the members of group "+s.group, err)
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return itemFailure("put out the members of group "+s.group, err, nil)
	}
	return nil // a member that is gone already is no failure
}

// commit stores the planned offsets that are not stored yet, and says whether members stood in the way of some.
func (s *seek) commit(ctx context.Context) (again bool, err error) {
	offsets, gone := kadm.Offsets{}, kadm.TopicsSet{}
	for i := range s.out {
		switch p := &s.out[i]; {
		case p.Status == "OK" || !p.changes():
		case p.Offset == nil:
			gone.Add(p.Topic, p.Partition)
		default:
			offsets.Add(kadm.Offset{Topic: p.Topic, Partition: p.Partition, At: *p.Offset, LeaderEpoch: p.leaderEpoch, Metadata: p.metadata})
		}
	}
	var committed kadm.OffsetResponses
	if len(offsets) > 0 {
		if committed, err = s.adm.CommitOffsets(ctx, s.group, offsets); err != nil {
			return false, s.fail("commit offsets of group "+s.group, err)
		}
	}
	deleted, err := s.adm.DeleteOffsets(ctx, s.group, gone)
	if err != nil && !refusedByMembers(err) {
		return false, s.fail("delete offsets of group "+s.group, err)
	}
	again = err != nil
	for i := range s.out {
		p := &s.out[i]
		var result error
		if o, ok := committed.Lookup(p.Topic, p.Partition); ok {
			result = o.Err
		} else if e, ok := deleted.Lookup(p.Topic, p.Partition); ok {
			result = e
		} else {
			continue
		}
		p.Status = status(result)
		again = again || refusedByMembers(result)
	}
	return again, nil
}
