package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"
)

func partitionsMoveCommand() *cli.Command {
	return &cli.Command{
		Name: "move", Usage: "move replicas of partitions to other brokers", ArgsUsage: "[TOPIC…]",
		Description: "Either -p says of each partition of one topic where its replicas are to be, the preferred leader first: move orders -p 0:1,2,3 -p 1:2,3,1\n" +
			"or --from and --to put one broker in the place of another in all partitions, of the topics named or of all.\n" +
			"Data is copied first and taken away last; the replicas are as safe as before all the time.",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "partition", Aliases: []string{"p"}, Usage: "`PARTITION:BROKER,BROKER,…` (repeatable)"},
			&cli.IntFlag{Name: "from", Value: -1, Usage: "broker `ID` that is to lose its replicas"},
			&cli.IntFlag{Name: "to", Value: -1, Usage: "broker `ID` that is to get them"},
			dryRunFlag(), waitFlag("wait until all is moved; --timeout bounds it"),
		},
		Action: runPartitionsMove,
	}
}

func partitionsMoveStatusCommand() *cli.Command {
	return &cli.Command{
		Name: "move-status", Usage: "show moves of replicas that are under way", ArgsUsage: "[TOPIC…]",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "go on until all are done"},
			&cli.DurationFlag{Name: "interval", Value: time.Second, Usage: "how often to look"},
		},
		Action: runPartitionsMoveStatus,
	}
}

func partitionsMoveCancelCommand() *cli.Command {
	return &cli.Command{
		Name: "move-cancel", Usage: "take moves back: the replicas stay where they were", ArgsUsage: "[TOPIC…]",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "partitions", Aliases: []string{"p"}, Usage: "only these partitions, as 0,1,4-6"},
			&cli.BoolFlag{Name: "all", Usage: "of all topics"},
			dryRunFlag(),
		},
		Action: runPartitionsMoveCancel,
	}
}

// brokerNumbers reads 1,2,3.
func brokerNumbers(text string) ([]int32, error) {
	var out []int32
	for item := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseInt(strings.TrimSpace(item), 10, 32)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%q is no broker id", item)
		}
		out = append(out, int32(n))
	}
	return out, nil
}

// plannedMove is a change of one partition's replicas.
type plannedMove struct {
	Topic     string  `json:"topic" doc:"topic"`
	Partition int32   `json:"partition" doc:"partition"`
	Before    []int32 `json:"replicas_before" doc:"replicas now"`
	After     []int32 `json:"replicas_after" doc:"replicas once it is done, the preferred leader first"`
	Bytes     int64   `json:"bytes" doc:"bytes to copy; -1 is unknown"`
	Status    string  `json:"status" doc:"PLANNED, OK (begun), DONE, or the name of an error"`
}

const (
	movePlanned = "PLANNED"
	moveDone    = "DONE"
)

func runPartitionsMove(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]plannedMove{}) {
		return nil
	}
	names, err := topicArguments(c, 0)
	if err != nil {
		return err
	}
	placements := c.StringSlice("partition")
	from, to := int32(c.Int("from")), int32(c.Int("to"))
	switch {
	case len(placements) > 0 && (from >= 0 || to >= 0), len(placements) == 0 && (from < 0 || to < 0):
		f := usageError("where is what to be moved?", "-p 0:1,2,3 for one topic, or --from 2 --to 4")
		f.why = "the command needs either -p, or both --from and --to"
		return f
	case len(placements) > 0 && len(names) != 1:
		f := usageError(fmt.Sprintf("-p needs one topic, not %d", len(names)), c.Command.HelpName+" orders -p 0:1,2,3")
		f.why = "partitions are numbered within a topic"
		return f
	case from >= 0 && from == to:
		f := usageError("--from and --to are the same broker", "--from 2 --to 4")
		f.why = "there is nothing to move"
		return f
	}
	ctx, cancel := e.ctx(c)
	defer cancel()
	conn, err := e.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	var b batch
	topics, err := conn.topicMetadata(ctx, names, false, true, &b)
	if err != nil {
		return err
	}
	if len(b.failures) > 0 {
		return b.finish(e)
	}
	var moves []plannedMove
	if len(placements) > 0 {
		moves, err = placedMoves(topics[0], placements)
	} else {
		moves, err = exchangeMoves(topics, from, to)
	}
	if err != nil {
		return err
	}
	return e.makeMoves(c, conn, moves)
}

// placedMoves reads -p PARTITION:BROKER,… for one topic.
func placedMoves(t kadm.TopicDetail, placements []string) ([]plannedMove, error) {
	var moves []plannedMove
	seen := map[int32]bool{}
	for _, text := range placements {
		bad := func(why string) error {
			f := usageError("-p "+text+" is not PARTITION:BROKER,…", "-p 0:1,2,3")
			f.why = why
			return f
		}
		number, list, ok := strings.Cut(text, ":")
		if !ok {
			return nil, bad("there is no colon")
		}
		n, err := strconv.ParseInt(number, 10, 32)
		if err != nil {
			return nil, bad(fmt.Sprintf("%q is no partition", number))
		}
		after, err := brokerNumbers(list)
		if err != nil {
			return nil, bad(err.Error())
		}
		p, ok := t.Partitions[int32(n)]
		switch {
		case !ok:
			return nil, bad(fmt.Sprintf("topic %s has no partition %d", t.Topic, n))
		case seen[int32(n)]:
			return nil, bad(fmt.Sprintf("partition %d is named twice", n))
		case len(slices.Compact(slices.Sorted(slices.Values(after)))) != len(after):
			return nil, bad("a broker is named twice")
		}
		seen[int32(n)] = true
		if !slices.Equal(p.Replicas, after) {
			moves = append(moves, plannedMove{Topic: t.Topic, Partition: p.Partition, Before: p.Replicas, After: after, Bytes: -1, Status: movePlanned})
		}
	}
	return moves, nil
}

// exchangeMoves puts one broker in the place of another.
func exchangeMoves(topics []kadm.TopicDetail, from, to int32) ([]plannedMove, error) {
	var moves []plannedMove
	both := 0
	for _, t := range topics {
		for _, p := range t.Partitions.Sorted() {
			i := slices.Index(p.Replicas, from)
			switch {
			case i < 0:
			case slices.Contains(p.Replicas, to):
				both++
			default:
				after := slices.Clone(p.Replicas)
				after[i] = to
				moves = append(moves, plannedMove{Topic: t.Topic, Partition: p.Partition, Before: p.Replicas, After: after, Bytes: -1, Status: movePlanned})
			}
		}
	}
	if both > 0 && len(moves) == 0 {
		return nil, &failure{
			code: exitFailed, what: fmt.Sprintf("nothing can be moved from broker %d to broker %d", from, to), why: fmt.Sprintf("broker %d has a replica of each of the %s already", to, counted(both, "partition")),
			fix: "choose another broker: millrace cluster brokers list",
		}
	}
	return moves, nil
}

// makeMoves shows the plan, asks, begins, and with --wait waits.
func (e *env) makeMoves(c *cli.Context, conn *connection, moves []plannedMove) error {
	if len(moves) == 0 {
		e.hint("nothing to do: all replicas are there already")
		return e.emitMoves(moves)
	}
	ctx, cancel := e.ctx(c)
	defer cancel()
	sizes := conn.replicaSizes(ctx, moves)
	var total int64
	for i := range moves {
		m := &moves[i]
		if size, ok := sizes.largest(m.Topic, m.Partition); ok {
			m.Bytes = size * int64(len(added(m.Before, m.After)))
			total += m.Bytes
		}
	}
	if c.Bool("dry-run") {
		e.hint("dry run: nothing was changed")
		return e.emitMoves(moves)
	}
	for _, m := range moves {
		fmt.Fprintf(e.stderr, "%s-%d: replicas %s → %s (%s)\n", m.Topic, m.Partition, joinInts(m.Before), joinInts(m.After), sizeText(m.Bytes))
	}
	if err := e.confirm(fmt.Sprintf("change the replicas of %s, about %s to copy?", counted(len(moves), "partition"), sizeText(total))); err != nil {
		return err
	}
	var req kadm.AlterPartitionAssignmentsReq
	for _, m := range moves {
		req.Assign(m.Topic, m.Partition, m.After)
	}
	ctx, cancel = e.ctx(c) // the question may have taken a while
	defer cancel()
	answers, err := conn.adm.AlterPartitionAssignments(ctx, req)
	if err != nil {
		return conn.fail("move partitions", err)
	}
	var b batch
	var begun []plannedMove
	for i := range moves {
		m := &moves[i]
		a, ok := answers[m.Topic][m.Partition]
		if !ok {
			a.Err = kerr.UnknownServerError
		}
		if m.Status = status(a.Err); a.Err != nil {
			f := itemFailure(fmt.Sprintf("move %s-%d to %s", m.Topic, m.Partition, joinInts(m.After)), a.Err, &a.ErrMessage)
			if a.Err == kerr.InvalidReplicaAssignment && a.ErrMessage == "" {
				f.why, f.fix = "a broker of the new replicas is not there, or named twice", "millrace cluster brokers list   shows the brokers"
			}
			b.fail(f)
			continue
		}
		b.done++
		begun = append(begun, *m)
	}
	if c.Bool("wait") && len(begun) > 0 {
		if err := e.waitMoves(c, conn, begun, total); err != nil {
			return err
		}
		for i := range moves {
			if moves[i].Status == status(nil) {
				moves[i].Status = moveDone
			}
		}
	} else if len(begun) > 0 {
		e.hint("to watch them: millrace cluster partitions move-status -w")
	}
	if err := e.emitMoves(moves); err != nil {
		return err
	}
	return b.finish(e)
}

func (e *env) emitMoves(moves []plannedMove) error {
	r := result{value: moves, cols: columns("TOPIC", "PARTITION#", "BEFORE", "AFTER", "SIZE#", "STATUS")}
	for _, m := range moves {
		r.rows = append(r.rows, []any{m.Topic, m.Partition, m.Before, m.After, sizeText(m.Bytes), m.Status})
	}
	return e.emit(r)
}

// waitMoves waits until none of the moves is under way.
func (e *env) waitMoves(c *cli.Context, conn *connection, moves []plannedMove, total int64) error {
	ctx, cancel := e.waitContext(c)
	defer cancel()
	bar := e.newProgress("moving", total)
	var copied int64
	left := len(moves)
	err := poll(ctx, waitInterval, func(ctx context.Context) (bool, error) {
		under, err := conn.reassignments(ctx)
		if err != nil {
			return false, err
		}
		var now int64
		left = 0
		for _, m := range moves {
			i := slices.IndexFunc(under, func(u movingPartition) bool { return u.Topic == m.Topic && u.Partition == m.Partition })
			if i < 0 {
				now += max(m.Bytes, 0)
				continue
			}
			left++
		}
		if bar != nil && left > 0 {
			conn.measure(ctx, under)
			for _, u := range under {
				now += max(u.BytesMoved, 0)
			}
		}
		bar.add(max(now-copied, 0))
		copied = max(now, copied)
		return left == 0, nil
	})
	bar.finish()
	if err != nil {
		return e.waitFailure(err, "not all is moved", fmt.Sprintf("%s still under way", counted(left, "move")), "they go on: millrace cluster partitions move-status -w")
	}
	return nil
}

// movingPartition is a move that is under way.
type movingPartition struct {
	Topic      string  `json:"topic" doc:"topic"`
	Partition  int32   `json:"partition" doc:"partition"`
	Replicas   []int32 `json:"replicas" doc:"all replicas, those to be taken away included"`
	Adding     []int32 `json:"adding" doc:"replicas that are being copied to"`
	Removing   []int32 `json:"removing" doc:"replicas that go once it is done"`
	BytesMoved int64   `json:"bytes_moved" doc:"bytes that the new replicas have; -1 is unknown"`
	BytesTotal int64   `json:"bytes_total" doc:"bytes that they are to have; -1 is unknown"`
	Rate       float64 `json:"bytes_per_second" doc:"with -w: how fast it goes; 0 is unknown"`
}

// reassignments asks for all moves that are under way.
func (c *connection) reassignments(ctx context.Context) ([]movingPartition, error) {
	req := kmsg.NewPtrListPartitionReassignmentsRequest()
	req.Topics = nil // all
	req.TimeoutMillis = 10_000
	resp, err := req.RequestWith(ctx, c.Client)
	if err == nil && resp.ErrorCode != 0 {
		return nil, itemFailure("ask for the moves under way", kerr.ErrorForCode(resp.ErrorCode), resp.ErrorMessage)
	}
	if err != nil {
		return nil, c.fail("ask for the moves under way", err)
	}
	out := []movingPartition{}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			m := movingPartition{Topic: t.Topic, Partition: p.Partition, Replicas: p.Replicas, Adding: p.AddingReplicas, Removing: p.RemovingReplicas, BytesMoved: -1, BytesTotal: -1}
			for _, list := range []*[]int32{&m.Replicas, &m.Adding, &m.Removing} {
				if *list == nil {
					*list = []int32{}
				}
			}
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b movingPartition) int {
		if c := strings.Compare(a.Topic, b.Topic); c != 0 {
			return c
		}
		return int(a.Partition - b.Partition)
	})
	return out, nil
}

// added are the brokers of after that are not in before.
func added(before, after []int32) (out []int32) {
	for _, b := range after {
		if !slices.Contains(before, b) {
			out = append(out, b)
		}
	}
	return out
}

// replicaSizes are bytes by topic, partition and broker.
type replicaSizes map[string]map[int32]map[int32]int64

// largest is the size of the largest replica: the leader's, but for what is being written now.
func (s replicaSizes) largest(topic string, partition int32) (size int64, ok bool) {
	for _, n := range s[topic][partition] {
		size, ok = max(size, n), true
	}
	return size, ok
}

// replicaSizes asks the brokers how large the replicas of some partitions are. Brokers that do not answer are left out:
// sizes are for people.
func (c *connection) replicaSizes(ctx context.Context, moves []plannedMove) replicaSizes {
	set := kadm.TopicsSet{}
	for _, m := range moves {
		set.Add(m.Topic, m.Partition)
	}
	return c.sizesOf(ctx, set)
}

func (c *connection) sizesOf(ctx context.Context, set kadm.TopicsSet) replicaSizes {
	out := replicaSizes{}
	all, err := c.adm.DescribeAllLogDirs(ctx, set)
	if err != nil && len(all) == 0 {
		return out
	}
	for broker, dirs := range all {
		for _, dir := range dirs {
			dir.Topics.Each(func(p kadm.DescribedLogDirPartition) {
				if out[p.Topic] == nil {
					out[p.Topic] = map[int32]map[int32]int64{}
				}
				if out[p.Topic][p.Partition] == nil {
					out[p.Topic][p.Partition] = map[int32]int64{}
				}
				out[p.Topic][p.Partition][broker] += p.Size
			})
		}
	}
	return out
}

// measure fills in how far moves are.
func (c *connection) measure(ctx context.Context, moves []movingPartition) {
	if len(moves) == 0 {
		return
	}
	set := kadm.TopicsSet{}
	for _, m := range moves {
		set.Add(m.Topic, m.Partition)
	}
	sizes := c.sizesOf(ctx, set)
	for i := range moves {
		m := &moves[i]
		size, ok := sizes.largest(m.Topic, m.Partition)
		if !ok {
			continue
		}
		m.BytesMoved, m.BytesTotal = 0, size*int64(len(m.Adding))
		for _, b := range m.Adding {
			m.BytesMoved += min(sizes[m.Topic][m.Partition][b], size)
		}
	}
}

func runPartitionsMoveStatus(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]movingPartition{}) {
		return nil
	}
	names, err := topicArguments(c, 0)
	if err != nil {
		return err
	}
	ctx := c.Context
	if c.IsSet("timeout") {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, e.timeout)
		defer cancel()
	}
	conn, err := e.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	rates := &moveRates{}
	err = poll(ctx, max(c.Duration("interval"), 50*time.Millisecond), func(ctx context.Context) (bool, error) {
		moves, err := conn.reassignments(ctx)
		if err != nil {
			return false, err
		}
		if len(names) > 0 {
			moves = slices.DeleteFunc(moves, func(m movingPartition) bool { return !slices.Contains(names, m.Topic) })
		}
		conn.measure(ctx, moves)
		for i := range moves {
			moves[i].Rate = rates.add(moves[i].Topic, moves[i].Partition, moves[i].BytesMoved, time.Now())
		}
		if c.Bool("watch") && e.format == "json" {
			err = writeJSONLine(e.stdout, notNil(moves))
		} else {
			err = e.emitMoving(moves)
		}
		return !c.Bool("watch") || len(moves) == 0, err
	})
	if err != nil {
		return e.waitFailure(err, "not all is moved", "moves are still under way", "they go on: millrace cluster partitions move-status -w")
	}
	return nil
}

func (e *env) emitMoving(moves []movingPartition) error {
	r := result{value: moves, cols: columns("TOPIC", "PARTITION#", "FROM → TO", "DONE#", "MOVED/TOTAL", "RATE", "ETA", "+REPLICAS")}
	for _, m := range moves {
		r.rows = append(r.rows, []any{m.Topic, m.Partition, joinInts(m.Removing) + " → " + joinInts(m.Adding), percent(m.BytesMoved, m.BytesTotal), ofTotal(m.BytesMoved, m.BytesTotal), rateText(m.Rate), eta(m.BytesMoved, m.BytesTotal, m.Rate), m.Replicas})
	}
	return e.emit(r)
}

// moveRates remembers how far moves were, to tell how fast they go.
type moveRates struct {
	last map[string]moveSample
}

type moveSample struct {
	bytes int64
	at    time.Time
	rate  float64
}

// add takes how far a move is now and returns its rate: the mean of the last one and what has been since, so that it is
// steady enough to read.
func (r *moveRates) add(topic string, partition int32, bytes int64, at time.Time) float64 {
	if r.last == nil {
		r.last = map[string]moveSample{}
	}
	key := fmt.Sprintf("%s-%d", topic, partition)
	before, ok := r.last[key]
	s := moveSample{bytes: bytes, at: at}
	if ok && bytes >= before.bytes && before.bytes >= 0 && at.After(before.at) {
		s.rate = float64(bytes-before.bytes) / at.Sub(before.at).Seconds()
		if before.rate > 0 {
			s.rate = (s.rate + before.rate) / 2
		}
	}
	r.last[key] = s
	return s.rate
}

func percent(moved, total int64) any {
	switch {
	case moved < 0 || total < 0:
		return nil
	case total == 0:
		return "100%"
	}
	return fmt.Sprintf("%d%%", moved*100/total)
}

func ofTotal(moved, total int64) any {
	if moved < 0 || total < 0 {
		return nil
	}
	return sizeText(moved) + "/" + sizeText(total)
}

func rateText(rate float64) any {
	if rate <= 0 {
		return nil
	}
	return sizeText(int64(rate)) + "/s"
}

func eta(moved, total int64, rate float64) any {
	if rate <= 0 || moved < 0 || total < moved {
		return nil
	}
	return (time.Duration(float64(total-moved)/rate*float64(time.Second)) + time.Second - 1).Truncate(time.Second).String()
}

func runPartitionsMoveCancel(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields([]plannedMove{}) {
		return nil
	}
	names, err := topicArguments(c, 0)
	if err != nil {
		return err
	}
	only, err := partitionList(c.StringSlice("partitions"))
	if err != nil {
		return err
	}
	if len(names) == 0 && !c.Bool("all") {
		f := usageError("no topic was named", c.Command.HelpName+" orders, or --all")
		f.why = "the command needs to know of which partitions"
		return f
	}
	ctx, cancel := e.ctx(c)
	defer cancel()
	conn, err := e.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	under, err := conn.reassignments(ctx)
	if err != nil {
		return err
	}
	var req kadm.AlterPartitionAssignmentsReq
	var moves []plannedMove
	for _, m := range under {
		if len(names) > 0 && !slices.Contains(names, m.Topic) || only != nil && !slices.Contains(only, m.Partition) {
			continue
		}
		before := slices.DeleteFunc(slices.Clone(m.Replicas), func(b int32) bool { return slices.Contains(m.Adding, b) })
		moves = append(moves, plannedMove{Topic: m.Topic, Partition: m.Partition, Before: m.Replicas, After: before, Bytes: -1, Status: movePlanned})
		req.CancelAssign(m.Topic, m.Partition)
	}
	if len(moves) == 0 {
		e.hint("nothing to do: no such move is under way")
		return e.emitMoves(moves)
	}
	for _, m := range moves {
		fmt.Fprintf(e.stderr, "%s-%d: take its move back, replicas %s → %s\n", m.Topic, m.Partition, joinInts(m.Before), joinInts(m.After))
	}
	if c.Bool("dry-run") {
		e.hint("dry run: nothing was changed")
		return e.emitMoves(moves)
	}
	if err := e.confirm(fmt.Sprintf("take back %s?", counted(len(moves), "move"))); err != nil {
		return err
	}
	answers, err := conn.adm.AlterPartitionAssignments(ctx, req)
	if err != nil {
		return conn.fail("take moves back", err)
	}
	var b batch
	for i := range moves {
		m := &moves[i]
		a := answers[m.Topic][m.Partition]
		m.Status = status(a.Err)
		if a.Err != nil && a.Err != kerr.NoReassignmentInProgress {
			b.fail(itemFailure(fmt.Sprintf("take back the move of %s-%d", m.Topic, m.Partition), a.Err, &a.ErrMessage))
			continue
		}
		b.done++
	}
	if err := e.emitMoves(moves); err != nil {
		return err
	}
	return b.finish(e)
}
