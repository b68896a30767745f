package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/millrace/millrace/integration/check"
)

// totals is the topic of what is made from consumed records.
const totals = "totals"

const (
	txnTimeout    = 12 * time.Second // after which the coordinator aborts what nobody ends
	txnFlush      = 20 * time.Second
	txnPause      = 150 * time.Millisecond
	txnRecords    = 8
	abortOneIn    = 4  // transactions that are aborted on purpose
	dieOneIn      = 20 // …whose producer dies in the middle
	zombieOneIn   = 25 // …that are left to a producer which another one fences
	lingerOneIn   = 40 // …that are left open until they are aborted by their timeout
	txnProducers  = 3  // the last of them speaks the first transaction protocol
	exactlyOnceGo = 2  // members of the group that consumes and produces in transactions
)

// txnOpts are those of every transactional client; first: it speaks the first transaction protocol (KIP-98), not that of
// KIP-890.
func (r *run) txnOpts(id string, first bool) []kgo.Opt {
	opts := []kgo.Opt{
		kgo.SeedBrokers(r.cluster.Seeds()...), kgo.TransactionalID(id), kgo.TransactionTimeout(txnTimeout), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0),
		kgo.MetadataMinAge(100 * time.Millisecond), kgo.UnknownTopicRetries(-1), kgo.ProduceRequestTimeout(produceTimeout), kgo.RequestTimeoutOverhead(r.requestPatience()), kgo.DialTimeout(3 * time.Second),
		kgo.RetryBackoffFn(func(tries int) time.Duration { return time.Duration(min(tries, 5)) * 50 * time.Millisecond }), kgo.ProducerBatchCompression(kgo.NoCompression()),
	}
	if first {
		versions := kversion.Stable()
		versions.SetMaxKeyVersion(0, 11)
		versions.SetMaxKeyVersion(26, 4)
		versions.SetMaxKeyVersion(28, 4)
		opts = append(opts, kgo.MaxVersions(versions))
	}
	return opts
}

// requestPatience is how long clients wait for an answer beyond what they ask the broker to wait.
func (r *run) requestPatience() time.Duration {
	if r.impatient {
		return time.Second
	}
	return 5 * time.Second
}

// startTransactions starts producers of transactions, and a group that consumes, makes something of each record, and
// commits both in one.
func (r *run) startTransactions() {
	if !r.transactions {
		return
	}
	r.converting, r.stopConverting = context.WithCancel(context.Background())
	for i := range txnProducers {
		r.senders.Go(func() { r.produceTransactions(i) })
	}
	for i := range exactlyOnceGo {
		r.converters.Go(func() { r.convertLives(i) })
	}
	r.readers.Go(func() { r.watchOffsets(convertGroup) })
	r.readers.Go(func() { r.consumeAt(check.PollCommitted) })
}

func (r *run) endConverters() {
	if r.stopConverting != nil {
		r.stopConverting()
	}
	r.converters.Wait()
}

// awaitStable waits until no transaction holds anything back: what nobody ended was aborted by its timeout (I20).
func (r *run) awaitStable(ctx context.Context, of ...string) {
	if !r.transactions {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, r.drainPatience())
	defer cancel()
	began := time.Now()
	for {
		all, err := r.ends(ctx)
		stable, e := r.stableEnds(ctx)
		behind := map[string]string{}
		for key, end := range all {
			if slices.ContainsFunc(of, func(topic string) bool { return strings.HasPrefix(key, topic+"/") }) && stable[key] < end {
				behind[key] = fmt.Sprintf("%d of %d", stable[key], end)
			}
		}
		if err == nil && e == nil && len(behind) == 0 {
			r.remark("no open transaction %s after the last producer", time.Since(began).Round(10*time.Millisecond))
			return
		}
		if !r.settled(ctx, 200*time.Millisecond) {
			r.fail("transactions hold records back %s after the end of their producers: %v, %v %v", r.drainPatience(), behind, err, e)
			return
		}
	}
}

// produceTransactions is the place of one transactional id: one producer after another, each of which fences the one before.
func (r *run) produceTransactions(place int) {
	random := rand.New(rand.NewPCG(r.seed, uint64(place)<<20|7))
	var zombies sync.WaitGroup
	defer zombies.Wait()
	for r.sending.Err() == nil {
		p, err := r.txnProducer(place)
		if err != nil {
			r.fail("a transactional producer: %v", err)
			return
		}
		for r.sending.Err() == nil && p.transaction(random, &zombies) {
			r.settled(r.sending, time.Duration(random.Int64N(int64(2*txnPause))))
		}
		r.settled(r.sending, 100*time.Millisecond)
	}
}

// txnProducer is one process of a transactional id.
type txnProducer struct {
	r       *run
	id      string
	process int
	cl      *kgo.Client
	line    plug
	values  int64
	txns    int64
}

func (r *run) txnProducer(place int) (*txnProducer, error) {
	p := &txnProducer{r: r, id: fmt.Sprintf("pay-%d", place), process: r.newProcess()}
	cl, err := kgo.NewClient(append(r.txnOpts(p.id, place == txnProducers-1), kgo.Dialer(p.line.dial))...)
	if err != nil {
		return nil, err
	}
	p.cl = cl
	r.history.Log(check.Op{F: check.Producer, Type: check.OK, Process: p.process, Text: "transactional"})
	return p, nil
}

// transaction is one transaction; false: the producer is over.
func (p *txnProducer) transaction(random *rand.Rand, zombies *sync.WaitGroup) (goesOn bool) {
	p.txns++
	txn := check.Value(p.process, p.txns)
	if err := p.cl.BeginTransaction(); err != nil {
		p.cl.Close()
		return false
	}
	p.r.history.Log(check.Op{F: check.Begin, Type: check.OK, Process: p.process, Txn: txn, Text: p.id})
	sound := p.send(random, txn, 1+random.IntN(txnRecords))
	switch {
	case random.IntN(dieOneIn) == 0:
		p.line.pull() // what it sent last may arrive
		p.cl.Close()
		return false
	case random.IntN(lingerOneIn) == 0:
		p.r.settled(p.r.sending, txnTimeout+2*time.Second)
	case random.IntN(zombieOneIn) == 0:
		own := rand.New(rand.NewPCG(random.Uint64(), 3))
		zombies.Go(func() { // it goes on while its successor is there
			p.r.settled(p.r.sending, 2*time.Second)
			late := p.send(own, txn, 2)
			p.end(txn, sound() && late())
			p.cl.Close()
		})
		return false
	default:
		p.r.settled(p.r.sending, time.Duration(random.Int64N(int64(txnPause))))
	}
	if !p.end(txn, sound() && random.IntN(abortOneIn) > 0) {
		p.cl.Close()
		return false
	}
	return true
}

// send sends records of a transaction. What it returns waits for the answers, and says whether all are acknowledged.
func (p *txnProducer) send(random *rand.Rand, txn int64, records int) (sound func() bool) {
	var failed atomic.Bool
	for range records {
		o := check.Op{F: check.Send, Type: check.Invoke, Process: p.process, Value: check.Value(p.process, p.values), Txn: txn}
		p.values++
		topic, partition := topics[random.IntN(len(topics))], int32(random.IntN(p.r.perTopic))
		o.Key = check.Key(topic, partition)
		p.r.history.Log(o)
		p.cl.Produce(context.Background(), &kgo.Record{Topic: topic, Partition: partition, Value: recordValue(o.Value)}, func(rec *kgo.Record, err error) {
			o.Type, o.Offset = check.OK, rec.Offset
			if err != nil {
				o.Type, o.Offset, o.Error = check.Info, 0, err.Error()
				failed.Store(true)
			}
			p.r.history.Log(o)
		})
	}
	return func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), txnFlush)
		defer cancel()
		return p.cl.Flush(ctx) == nil && !failed.Load()
	}
}

// end commits or aborts; false: the producer is over, what became of its transaction is not known.
func (p *txnProducer) end(txn int64, commit bool) bool {
	ctx, cancel := context.WithTimeout(context.Background(), txnFlush)
	defer cancel()
	o := check.Op{F: check.End, Type: check.Invoke, Process: p.process, Txn: txn, Text: check.CommitIt}
	how := kgo.TryCommit
	if !commit {
		o.Text, how = check.AbortIt, kgo.TryAbort
	}
	p.r.history.Log(o)
	var err error
	if !commit {
		err = p.cl.AbortBufferedRecords(ctx)
	}
	if err == nil {
		err = p.cl.EndTransaction(ctx, how)
	}
	o.Type = check.OK
	if err != nil {
		o.Type, o.Error = check.Info, err.Error()
	}
	p.r.history.Log(o)
	return err == nil
}
