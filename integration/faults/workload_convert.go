package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/integration/check"
)

// convertGroup is the group whose members read one topic as committed records, make a record of totals from each, and commit
// their offsets in the same transaction (KIP-447).
var convertGroup = groupSpec{
	name: "converting", committed: true, topics: topics[:1], members: exactlyOnceGo, least: 5 * time.Second, most: 25 * time.Second, session: 10 * time.Second,
}

// convertLives is the place of one member of it: one process after another, under one transactional id.
func (r *run) convertLives(place int) {
	random := rand.New(rand.NewPCG(r.seed, uint64(place)<<24|9))
	for r.converting.Err() == nil {
		life, end := context.WithCancel(r.converting)
		stay := convertGroup.least + time.Duration(random.Int64N(int64(convertGroup.most-convertGroup.least)))
		ending := time.AfterFunc(stay, func() {
			if r.sending.Err() == nil {
				end()
			}
		})
		r.convertLife(life, place, random)
		ending.Stop()
		end()
		r.settled(r.converting, time.Duration(random.Int64N(int64(2*time.Second))))
	}
}

// converter is one process of a member.
type converter struct {
	*member
	id     string // transactional
	values int64
	txns   int64
}

func (r *run) convertLife(ctx context.Context, place int, random *rand.Rand) {
	c := &converter{member: r.member(convertGroup, ""), id: fmt.Sprintf("convert-%d", place)}
	var line plug
	g := convertGroup
	opts := append(r.txnOpts(c.id, place == exactlyOnceGo-1 && r.seed%3 == 0),
		kgo.ConsumerGroup(g.name), kgo.ConsumeTopics(g.topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.SessionTimeout(g.session), kgo.HeartbeatInterval(time.Second), kgo.RebalanceTimeout(15*time.Second), kgo.FetchMaxWait(300*time.Millisecond), kgo.Dialer(line.dial),
		kgo.OnPartitionsAssigned(c.assigned), kgo.OnPartitionsRevoked(c.released), kgo.OnPartitionsLost(c.released), kgo.AdjustFetchOffsetsFn(c.found),
	)
	session, err := kgo.NewGroupTransactSession(opts...)
	if err != nil {
		r.fail("a member of %s: %v", g.name, err)
		return
	}
	r.history.Log(check.Op{F: check.Producer, Type: check.OK, Process: c.process, Text: "transactional"})
	for ctx.Err() == nil {
		poll, cancel := context.WithTimeout(ctx, idlePoll)
		fetches := session.PollRecords(poll, pollRecords)
		cancel()
		c.take(fetches)
		if fetches.NumRecords() == 0 {
			continue
		}
		r.converted.Store(time.Now().UnixNano())
		if !c.convert(session, fetches, random) {
			break
		}
	}
	if r.converting.Err() == nil && random.IntN(2) == 0 {
		line.pull()
	}
	session.CloseAllowingRebalance()
	c.ended()
}

// convert is one transaction; false: the process is over.
func (c *converter) convert(session *kgo.GroupTransactSession, fetches kgo.Fetches, random *rand.Rand) (goesOn bool) {
	r := c.r
	if err := session.Begin(); err != nil {
		return false
	}
	c.txns++
	txn := check.Value(c.process, c.txns)
	r.history.Log(check.Op{F: check.Begin, Type: check.OK, Process: c.process, Txn: txn, Text: c.id})
	ends := map[string]int64{}
	fetches.EachRecord(func(rec *kgo.Record) {
		source := check.Key(rec.Topic, rec.Partition)
		ends[source] = rec.Offset + 1
		o := check.Op{
			F: check.Send, Type: check.Invoke, Process: c.process, Key: check.Key(totals, rec.Partition), Value: check.Value(c.process, c.values), Txn: txn,
			Source: source, SourceOffset: rec.Offset,
		}
		c.values++
		r.history.Log(o)
		session.Produce(context.Background(), &kgo.Record{Topic: totals, Partition: rec.Partition, Value: recordValue(o.Value)}, func(rec *kgo.Record, err error) {
			o.Type, o.Offset, o.Source, o.SourceOffset = check.OK, rec.Offset, "", 0
			if err != nil {
				o.Type, o.Offset, o.Error = check.Info, 0, err.Error()
			}
			r.history.Log(o)
		})
	})
	ctx, cancel := context.WithTimeout(context.Background(), txnFlush)
	defer cancel()
	commit := kgo.TransactionEndTry(random.IntN(2*abortOneIn) > 0)
	for key, offset := range ends {
		o := check.Op{F: check.TxnOffsets, Type: check.Invoke, Process: c.process, Txn: txn, Group: c.spec.name, Key: key, Offset: offset}
		r.history.Log(o)
	}
	o := check.Op{F: check.End, Type: check.Invoke, Process: c.process, Txn: txn, Text: check.CommitIt}
	if !commit {
		o.Text = check.AbortIt
	}
	r.history.Log(o)
	committed, err := session.End(ctx, commit)
	switch o.Type = check.OK; {
	case err != nil:
		o.Type, o.Error = check.Info, err.Error()
	case bool(commit) && !committed:
		o.Type = check.Fail // a rebalance came in between: the session has aborted it
	}
	r.history.Log(o)
	if o.Type != check.OK || !commit {
		// The session goes back to what is committed.
		for p := range int32(r.perTopic) {
			r.history.Log(check.Op{F: check.Assign, Type: check.OK, Process: c.process, Key: check.Key(c.spec.topics[0], p), Offset: -1})
		}
	}
	return err == nil
}
