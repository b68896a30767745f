package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// What the verifiable programs are given to do.
const (
	messagesPerSecond   = 300 // of the faults' length, all told; they are sent in a third of it
	transactionMessages = 40  // of a copier
	copyPartitions      = 3
)

// toolEvent is a line that a verifiable program prints.
type toolEvent struct {
	Name      string `json:"name"`
	Value     string `json:"value"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Message   string `json:"message"`
}

// toolWatch keeps what verifiable programs printed.
type toolWatch struct {
	mu     sync.Mutex
	places map[place]string // of a consumer: values by where they stood
	values map[string]place // of a producer: where each value was acknowledged
	errors []string
	odd    []string // a record that was shown with two values
	count  atomic.Int64
}

func newToolWatch() *toolWatch {
	return &toolWatch{places: map[place]string{}, values: map[string]place{}}
}

// line takes one line. What is no JSON is none of theirs.
func (w *toolWatch) line(line string) {
	var e toolEvent
	if json.Unmarshal([]byte(line), &e) != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch e.Name {
	case "producer_send_success":
		w.values[e.Value] = place{e.Partition, e.Offset}
		w.count.Store(int64(len(w.values)))
	case "producer_send_error":
		w.errors = append(w.errors, fmt.Sprintf("value %s: %s", e.Value, e.Message))
	case "record_data":
		at := place{e.Partition, e.Offset}
		if before, ok := w.places[at]; ok && before != e.Value {
			w.odd = append(w.odd, fmt.Sprintf("%v was shown as %s and as %s", at, before, e.Value))
		}
		w.places[at] = e.Value
		w.count.Store(int64(len(w.places)))
	}
}

// copier is Apache Kafka's own chain: VerifiableProducer writes numbers, TransactionalMessageCopiers copy them with the offsets they have read,
// one transaction in three aborted at random, VerifiableConsumer reads the copy.
func copier(ctx context.Context, o options, s *system, j *java, dir string) (verdict, error) {
	random := rand.New(rand.NewPCG(o.seed, 3))
	const original, copied, group = "verifiable-numbers", "verifiable-copies", "copiers"
	for _, topic := range []string{original, copied} {
		if err := s.create(ctx, topic, copyPartitions); err != nil {
			return verdict{}, err
		}
	}
	producerConfig, consumerConfig := filepath.Join(dir, "producer.properties"), filepath.Join(dir, "consumer.properties")
	if err := errors.Join(
		// By default it takes the first error for an answer; a number that is lost on its way would say nothing about transactions.
		os.WriteFile(producerConfig, []byte("retries=2147483647\ndelivery.timeout.ms=180000\n"), 0o644),
		os.WriteFile(consumerConfig, []byte("isolation.level=read_committed\n"), 0o644),
	); err != nil {
		return verdict{}, err
	}
	const class = "org.apache.kafka.tools."
	seeds, messages := strings.Join(s.seeds(), ","), int(messagesPerSecond*o.length.Seconds())
	all, stop := context.WithCancel(ctx)
	defer stop()

	told := newToolWatch()
	rate := max(int(float64(messages)/(o.length.Seconds()/3)), 1)
	producer := &program{name: "producer", dir: dir, line: told.line, argv: j.command(class+"VerifiableProducer", "--bootstrap-server", seeds, "--topic", original,
		"--max-messages", strconv.Itoa(messages), "--throughput", strconv.Itoa(rate), j.config("producer"), producerConfig)}
	shown := newToolWatch()
	consumer := &program{name: "consumer", dir: dir, line: shown.line, argv: j.command(class+"VerifiableConsumer", "--bootstrap-server", seeds, "--topic", copied,
		"--group-id", "readers", "--session-timeout", "6000", "--verbose", j.config("consumer"), consumerConfig)}
	// Members of a group share the partitions; or each has one for good, copies what is there, and is started again: no generation fences it
	// then, only its transactional id (I8).
	n, partition := o.copiers, func(int) []string { return []string{"--input-partition", "-1", "--group-mode", "--use-group-metadata"} }
	if o.assigned {
		n, partition = copyPartitions, func(i int) []string { return []string{"--input-partition", strconv.Itoa(i)} }
	}
	var copiers []*program
	for i := range n {
		copiers = append(copiers, &program{name: fmt.Sprintf("copier-%d", i+1), dir: dir, argv: append(j.command(class+"TransactionalMessageCopier", "--broker-list", seeds,
			"--input-topic", original, "--output-topic", copied, "--consumer-group", group, "--transaction-size", strconv.Itoa(transactionMessages),
			"--transaction-timeout", "10000", "--transactional-id", fmt.Sprintf("copier-%d", i+1), "--enable-random-aborts"), partition(i)...)})
	}
	readers := keep(all, consumer)
	defer readers.close(5 * time.Second)

	// The copiers begin when there is something to copy; then they and the brokers die.
	if err := producer.start(); err != nil {
		return verdict{}, err
	}
	defer producer.kill()
	sending, cancel := context.WithTimeout(all, untilBegun)
	defer cancel()
	if err := poll(sending, func() error {
		if told.count.Load() < int64(messages/10) {
			return fmt.Errorf("%d of %d numbers are acknowledged", told.count.Load(), messages)
		}
		return nil
	}); err != nil {
		return verdict{}, err
	}
	say("numbers are sent")
	faults, cancel := context.WithTimeout(all, o.length)
	defer cancel()
	k := keep(all, copiers...)
	defer k.close(5 * time.Second)
	brokersKilled, killed, err := s.deaths(faults, all, random, copiers)
	if err != nil {
		return verdict{}, err
	}
	v := verdict{brokers: brokersKilled, programs: killed}
	v.expect(ctx, &told.count, messages, "numbers were acknowledged")
	select {
	case <-producer.ended():
	case <-time.After(untilEnded):
		v.complain("the producer did not come to its end")
	case <-ctx.Done():
		return v, context.Cause(ctx)
	}
	say("%d of %d numbers are acknowledged, %d copies consumed", told.count.Load(), messages, shown.count.Load())
	v.expect(ctx, &shown.count, messages, "copies were consumed")
	for _, err := range append(k.close(untilEnded), readers.close(untilEnded)...) {
		v.complain("%v", err)
	}
	v.failures = append(v.failures, told.errors...)
	v.failures = append(v.failures, shown.odd...)
	var numbers reading
	v.read(ctx, s, original, func(r reading) []string {
		numbers = r
		return judgeSent(r, messages, told.values)
	})
	v.read(ctx, s, copied, func(r reading) []string {
		return append(judgeCopy(numbers, r), judgeConsumed(r, shown.places)...)
	})
	v.offsets(ctx, s, group, original)
	v.remark("%d numbers, %d starts of %d copiers", messages, startsOf(copiers), len(copiers))
	return v, nil
}
