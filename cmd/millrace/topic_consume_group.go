package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/urfave/cli/v2"
)

// defaultGroup is the group of a consume that says neither which partitions nor from where: what it has printed is not
// printed again by the next one.
const defaultGroup = "default"

// groupConsumption reads topics as a member of a group. A record is committed after it was printed: what a crash loses is
// a commit, never a record (at least once).
type groupConsumption struct {
	*env
	group     string
	topics    []string // names, or expressions for whole names
	regex     bool
	reset     kgo.Offset // where partitions begin that have no offset
	fromStart bool       // reset is the start of the log
	exit      bool       // stop at the ends as they are when partitions are assigned
	limit     int64      // 0: none
	committed bool
	control   bool
	rack      string
	write     func([]byte, *kgo.FetchPartition, *kgo.Record) []byte

	mu struct {
		sync.Mutex
		assigned bool                     // there was an assignment
		ends     map[topicPartition]int64 // with exit: where each assigned partition ends that is not read to there
		err      error
	}
}

// consumeGroup says which group to join: that of -g, or the default one; "" for none.
func consumeGroup(c *cli.Context) string {
	switch {
	case c.IsSet("group"):
		return c.String("group")
	case c.Command.Name == "tail" || c.IsSet("offset") || c.IsSet("partitions"):
		return ""
	}
	return defaultGroup
}

// groupReset says where a member begins that finds no offset.
func groupReset(r offsetRange, given string) (kgo.Offset, error) {
	switch {
	case r.to.kind != boundNone && r.to.kind != boundEnd:
	case r.from.kind == boundStart:
		return kgo.NewOffset().AtStart(), nil
	case r.from.kind == boundEnd:
		return kgo.NewOffset().AtEnd(), nil
	case r.from.kind == boundTime:
		return kgo.NewOffset().AfterMilli(r.from.millis), nil
	}
	f := usageError("-o "+given+" cannot be had with a group", "-o start | end | @-1h, for partitions that the group has no offset of; or leave -g out")
	f.why = "the group's own offsets say where it goes on; millrace group seek moves them"
	return kgo.Offset{}, f
}

func (g *groupConsumption) run(ctx context.Context) error {
	topics := g.topics
	if g.regex {
		topics = nil
		for _, t := range g.topics {
			if _, err := regexp.Compile(t); err != nil {
				f := usageError(fmt.Sprintf("%q is not a regular expression", t), "-r 'orders-.*'")
				f.why = err.Error()
				return f
			}
			topics = append(topics, "^(?:"+t+")$")
		}
	}
	isolation := kgo.ReadUncommitted()
	if g.committed {
		isolation = kgo.ReadCommitted()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	g.mu.ends = map[topicPartition]int64{}
	var conn *connection
	ready := make(chan struct{})
	options := []kgo.Opt{
		kgo.ConsumerGroup(g.group), kgo.ConsumeTopics(topics...), kgo.ConsumeResetOffset(g.reset),
		kgo.FetchIsolationLevel(isolation), kgo.KeepControlRecords(), kgo.FetchMaxWait(500 * time.Millisecond),
		kgo.BlockRebalanceOnPoll(), kgo.AutoCommitMarks(), kgo.AutoCommitInterval(time.Second),
		kgo.OnPartitionsAssigned(func(ctx context.Context, _ *kgo.Client, added map[string][]int32) {
			<-ready
			g.assign(ctx, conn, added)
		}),
		kgo.OnPartitionsRevoked(func(ctx context.Context, client *kgo.Client, lost map[string][]int32) {
			if err := client.CommitMarkedOffsets(ctx); err != nil && ctx.Err() == nil {
				g.hint("the last offsets were not committed, and will be read again: %s", oneLine(err.Error()))
			}
			g.drop(lost)
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) { g.drop(lost) }),
	}
	if g.regex {
		options = append(options, kgo.ConsumeRegex())
	}
	if g.rack != "" {
		options = append(options, kgo.Rack(g.rack))
	}
	conn, err := g.connect(ctx, options...)
	close(ready)
	if err != nil {
		return err
	}
	conn.fails.arm(func(f *failure) { cancel(f) })
	err = g.print(ctx, conn)
	// What was printed is committed also when the command was interrupted.
	last, done := context.WithTimeout(context.WithoutCancel(ctx), g.timeout)
	defer done()
	if e := conn.CommitMarkedOffsets(last); e != nil && !errors.Is(e, context.Canceled) {
		g.hint("the last offsets were not committed, and will be read again: %s", oneLine(e.Error()))
	}
	conn.AllowRebalance()
	conn.CloseAllowingRebalance() // leaves the group
	if err == nil {
		err = context.Cause(ctx)
	}
	return err
}

// assign notes, with exit, where the partitions end that were given to this member.
func (g *groupConsumption) assign(ctx context.Context, conn *connection, added map[string][]int32) {
	ends, err := map[topicPartition]int64{}, error(nil)
	if g.exit && len(added) > 0 {
		ends, err = g.openEnds(ctx, conn, added)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.assigned = true
	for at, end := range ends {
		g.mu.ends[at] = end
	}
	if err != nil && ctx.Err() == nil {
		g.mu.err = err
	}
}

// openEnds returns the ends of the partitions that have something to read.
func (g *groupConsumption) openEnds(ctx context.Context, conn *connection, added map[string][]int32) (map[topicPartition]int64, error) {
	var names []string
	for t := range added {
		names = append(names, t)
	}
	list := conn.adm.ListEndOffsets
	if g.committed {
		list = conn.adm.ListCommittedOffsets
	}
	ends, err := list(ctx, names...)
	if err != nil {
		return nil, conn.fail("ask for offsets", firstShardError(err))
	}
	starts, err := conn.adm.ListStartOffsets(ctx, names...)
	if err != nil {
		return nil, conn.fail("ask for offsets", firstShardError(err))
	}
	fetched, err := conn.adm.FetchOffsets(ctx, g.group)
	if err != nil {
		return nil, conn.fail("read the offsets of group "+g.group, err)
	}
	open := map[topicPartition]int64{}
	for t, partitions := range added {
		for _, p := range partitions {
			end, ok := ends.Lookup(t, p)
			if !ok || end.Err != nil {
				return nil, itemFailure(fmt.Sprintf("ask for the end of %s-%d", t, p), end.Err, nil)
			}
			from := end.Offset
			if start, ok := starts.Lookup(t, p); ok && start.Err == nil && g.fromStart {
				from = start.Offset
			}
			if o, ok := fetched.Lookup(t, p); ok && o.Err == nil && o.At >= 0 {
				from = o.At
			}
			if from < end.Offset {
				open[topicPartition{t, p}] = end.Offset
			}
		}
	}
	return open, nil
}

func (g *groupConsumption) drop(lost map[string][]int32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for t, partitions := range lost {
		for _, p := range partitions {
			delete(g.mu.ends, topicPartition{t, p})
		}
	}
}

// finished says, with exit, whether all that this member was given has been read.
func (g *groupConsumption) finished() (bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.exit && g.mu.assigned && len(g.mu.ends) == 0, g.mu.err
}

// read notes that a partition was read up to next.
func (g *groupConsumption) read(topic string, partition int32, next int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := topicPartition{topic, partition}
	if end, ok := g.mu.ends[at]; ok && next >= end {
		delete(g.mu.ends, at)
	}
}

// sessionFailure explains why the group does not take this member, nil when joining again will do.
func (g *groupConsumption) sessionFailure(err error) error {
	doing := "join group " + g.group
	f := itemFailure(doing, err, nil)
	switch {
	case errors.Is(err, kerr.InconsistentGroupProtocol):
		f.why, f.fix = "its members divide their work in a way that this command does not know, or are no consumers", "-g ANOTHER; millrace group describe "+g.group+"   shows its members"
	case errors.Is(err, kerr.GroupMaxSizeReached):
		f.why, f.fix = "it has as many members as group.max.size allows", "-g ANOTHER, or stop one of its members"
	case errors.Is(err, kerr.InvalidGroupID):
		f.why, f.fix = "no group can have that name", "-g ANOTHER"
	case errors.Is(err, kerr.GroupAuthorizationFailed), errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.UnsupportedVersion):
	default:
		return nil
	}
	return f
}

func (g *groupConsumption) print(ctx context.Context, conn *connection) error {
	out := bufio.NewWriterSize(g.stdout, 256<<10)
	var line []byte
	printed := int64(0)
	var bar *progress
	if !terminal(g.stdout) {
		bar = g.newProgress("reading", g.limit)
	}
	defer bar.finish()
	for {
		if done, err := g.finished(); done || err != nil {
			return err
		}
		poll, cancel := context.WithCancel(ctx)
		if g.exit {
			poll, cancel = context.WithTimeout(ctx, 250*time.Millisecond) // an assignment may come without records
		}
		fetches := conn.PollFetches(poll)
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		var failed error
		fetches.EachError(func(topic string, partition int32, err error) {
			var session *kgo.ErrGroupSession
			switch {
			case failed != nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
			case errors.As(err, &session):
				if failed = g.sessionFailure(session.Err); failed == nil {
					g.hint("joining group %s again: %s", g.group, oneLine(session.Err.Error()))
				}
			default:
				failed = itemFailure(fmt.Sprintf("read %s-%d", topic, partition), err, nil)
			}
		})
		full := false
		var marks []*kgo.Record
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			var last *kgo.Record
			for _, r := range p.Records {
				if full || failed != nil {
					break
				}
				last = r
				if r.Attrs.IsControl() && !g.control {
					continue
				}
				line = g.write(line[:0], &p.FetchPartition, r)
				if _, err := out.Write(line); err != nil {
					failed = writeError(err)
					return
				}
				printed++
				bar.add(1)
				full = g.limit > 0 && printed >= g.limit
			}
			if last != nil {
				marks = append(marks, last)
				g.read(p.Topic, p.Partition, last.Offset+1)
			}
		})
		if err := out.Flush(); err != nil && failed == nil {
			failed = writeError(err)
		}
		if failed != nil {
			return failed
		}
		conn.MarkCommitRecords(marks...)
		conn.AllowRebalance()
		if full {
			return nil
		}
	}
}
