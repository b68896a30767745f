package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/metadata"
)

func topicCommand() *cli.Command {
	return &cli.Command{
		Name:  "topic",
		Usage: "create, look at, change, fill and read topics",
		Subcommands: []*cli.Command{
			topicCreateCommand(), topicListCommand(), topicDescribeCommand(), topicDeleteCommand(), topicAlterCommand(), topicAlterConfigCommand(),
			topicAddPartitionsCommand(), topicTrimPrefixCommand(), topicOffsetsCommand(), topicProduceCommand(), topicConsumeCommand(), topicTailCommand(),
		},
	}
}

// batch collects what became of several items: the failures are printed, and decide the exit code.
type batch struct {
	done     int
	failures []*failure
}

func (b *batch) fail(f *failure) { b.failures = append(b.failures, f) }

// finish prints the failures. All failed: the first one's code. Some failed: 3.
func (b *batch) finish(e *env) error {
	for _, f := range b.failures {
		printFailure(e.stderr, f)
	}
	switch {
	case len(b.failures) == 0:
		return nil
	case b.done > 0:
		return silent(exitSome)
	}
	return silent(b.failures[0].code)
}

// status is the word that a table shows for the outcome of one item.
func status(err error) string {
	if err == nil {
		return "OK"
	}
	if k, ok := err.(*kerr.Error); ok {
		return k.Message
	}
	return "FAILED"
}

// codeError returns the error of a protocol code, nil for none.
func codeError(code int16) error { return kerr.ErrorForCode(code) }

// itemFailure explains what became of one item of a request: the server's own text wins.
func itemFailure(doing string, err error, message *string) *failure {
	text := ""
	if message != nil {
		text = *message
	}
	if k, ok := err.(*kerr.Error); ok {
		return explainCode(doing, k, text)
	}
	return explain(doing, err)
}

// topicMetadata describes the named topics, or with regex those whose whole name matches one of the expressions, or
// all when there are no names. Topics that do not exist are failures of b.
func (c *connection) topicMetadata(ctx context.Context, names []string, regex, internal bool, b *batch) ([]kadm.TopicDetail, error) {
	var ask []string
	var patterns []*regexp.Regexp
	if regex {
		for _, n := range names {
			p, err := regexp.Compile("^(?:" + n + ")$")
			if err != nil {
				f := usageError(fmt.Sprintf("%q is not a regular expression", n), "-r 'orders-.*'")
				f.why = err.Error()
				return nil, f
			}
			patterns = append(patterns, p)
		}
	} else {
		ask = names
	}
	m, err := c.adm.Metadata(ctx, ask...)
	if err != nil {
		return nil, c.fail("ask for topics", err)
	}
	var topics []kadm.TopicDetail
	for _, t := range m.Topics.Sorted() {
		switch {
		case t.Err != nil:
			b.fail(itemFailure("find topic "+t.Topic, t.Err, nil))
		case patterns != nil && !slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return p.MatchString(t.Topic) }):
		case t.IsInternal && !internal && len(ask) == 0:
		default:
			topics = append(topics, t)
		}
	}
	if regex && len(topics) == 0 && len(b.failures) == 0 {
		b.fail(&failure{code: exitFailed, what: "no topic matches " + strings.Join(names, ", "), why: "an expression must match the whole name", fix: "millrace topic list   shows the topics"})
	}
	return topics, nil
}

func topicNames(topics []kadm.TopicDetail) []string {
	names := make([]string, len(topics))
	for i, t := range topics {
		names[i] = t.Topic
	}
	return names
}

// topicID writes a topic's id as Kafka's tools do.
func topicID(id [16]byte) string { return metadata.TopicID(id).String() }

// replicas is a topic's replication factor: that of its first partition.
func replicas(t kadm.TopicDetail) int {
	for _, p := range t.Partitions.Sorted() {
		return len(p.Replicas)
	}
	return 0
}

// keyValues splits k=v pairs of a repeatable flag.
func keyValues(flag string, pairs []string) ([][2]string, error) {
	var out [][2]string
	for _, p := range pairs {
		k, v, ok := strings.Cut(p, "=")
		if k = strings.TrimSpace(k); !ok || k == "" {
			f := usageError(fmt.Sprintf("--%s %s is not KEY=VALUE", flag, p), fmt.Sprintf("--%s retention.ms=7d", flag))
			f.why = "it needs a key and a value"
			return nil, f
		}
		out = append(out, [2]string{k, v})
	}
	return out, nil
}

// partitionList reads -p 0,1,4-6; nil when it was not given.
func partitionList(values []string) ([]int32, error) {
	var out []int32
	for _, v := range values {
		for item := range strings.SplitSeq(v, ",") {
			lo, hi, isRange := strings.Cut(strings.TrimSpace(item), "-")
			first, err := strconv.ParseInt(lo, 10, 32)
			last := first
			if err == nil && isRange {
				last, err = strconv.ParseInt(hi, 10, 32)
			}
			if err != nil || first < 0 || last < first || last-first > 100_000 {
				f := usageError(fmt.Sprintf("-p %s is not a list of partitions", v), "-p 0,1,4-6")
				f.why = fmt.Sprintf("%q is no partition", item)
				return nil, f
			}
			for p := first; p <= last; p++ {
				out = append(out, int32(p))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// pickPartitions returns the partitions of a topic that were asked for, all when wanted is nil.
func pickPartitions(t kadm.TopicDetail, wanted []int32) ([]kadm.PartitionDetail, error) {
	all := t.Partitions.Sorted()
	if wanted == nil {
		return all, nil
	}
	var out []kadm.PartitionDetail
	for _, p := range wanted {
		d, ok := t.Partitions[p]
		if !ok {
			return nil, &failure{
				code: exitFailed, what: fmt.Sprintf("topic %s has no partition %d", t.Topic, p),
				why: fmt.Sprintf("it has the partitions 0 to %d", len(all)-1), fix: "millrace topic describe " + t.Topic + " -p",
			}
		}
		out = append(out, d)
	}
	return out, nil
}

// topicAnswer is what the broker said of one topic; mentioned is false if its answer left the topic out.
type topicAnswer struct {
	err       error
	message   string
	mentioned bool
}

// emitTopicAnswers prints a status for each topic that the broker answered and counts the outcomes in b. what is the
// operation as the errors name it, followed by the topic: "delete topic".
func (b *batch) emitTopicAnswers(e *env, what string, topics []string, answer func(topic string) topicAnswer) error {
	var out []topicStatus
	r := result{cols: columns("TOPIC", "STATUS")}
	for _, topic := range topics {
		a := answer(topic)
		if !a.mentioned {
			b.fail(&failure{code: exitFailed, what: "cannot " + what + " " + topic, why: "the broker's answer does not mention it", fix: "millrace topic list"})
			continue
		}
		if a.err != nil {
			b.fail(itemFailure(what+" "+topic, a.err, &a.message))
		} else {
			b.done++
		}
		out = append(out, topicStatus{topic, status(a.err)})
		r.rows = append(r.rows, []any{topic, status(a.err)})
	}
	r.value = out
	return e.emit(r)
}
