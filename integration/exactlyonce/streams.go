package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// What the word count is fed with.
const (
	linesPerSecond = 100
	wordsOfALine   = 5
	vocabulary     = 40
	linePartitions = 4
	firstLines     = 20 // before the word count runs
)

// streams is the word count: lines are sent all the while, brokers and applications are killed, and in the end each word's counts are 1, 2, 3…
func streams(ctx context.Context, o options, s *system, j *java, dir string) (verdict, error) {
	random := rand.New(rand.NewPCG(o.seed, 1))
	const lines, counts = "wordcount-lines", "wordcount-counts"
	for _, topic := range []string{lines, counts} {
		if err := s.create(ctx, topic, linePartitions); err != nil {
			return verdict{}, err
		}
	}
	all, stop := context.WithCancel(ctx)
	defer stop()
	var seen atomic.Int64
	if err := s.tail(all, counts, &seen); err != nil {
		return verdict{}, err
	}
	var applications []*program
	for i := range o.instances {
		name := fmt.Sprintf("wordcount-%d", i+1)
		applications = append(applications, &program{name: name, dir: dir, argv: j.command("WordCount", strings.Join(s.seeds(), ","), "wordcount", lines, counts, filepath.Join(dir, name))})
	}
	k := keep(all, applications...)
	defer k.close(5 * time.Second)

	f := &feeder{sent: map[string]int{}, random: rand.New(rand.NewPCG(o.seed, 2)), most: int(linesPerSecond * o.length.Seconds()), begun: make(chan struct{})}
	feed, endFeed := context.WithCancel(all)
	defer endFeed()
	fed := make(chan error, 1)
	go func() { fed <- f.run(feed, all, s, lines) }()
	begun, cancel := context.WithTimeout(all, untilBegun)
	err := poll(begun, func() error {
		if seen.Load() == 0 {
			return errors.Join(errors.New("the word count publishes nothing"), k.failure())
		}
		return nil
	})
	cancel()
	if err != nil {
		return verdict{}, err
	}
	say("the word count runs")
	close(f.begun)
	faults, cancel := context.WithTimeout(all, o.length)
	brokersKilled, killed, err := s.deaths(faults, all, random, applications)
	cancel()
	endFeed()
	if err := errors.Join(err, <-fed); err != nil {
		return verdict{}, err
	}
	words := 0
	for _, n := range f.sent {
		words += n
	}
	say("%d lines were sent, %d words of %d counted", f.lines, seen.Load(), words)
	v := verdict{brokers: brokersKilled, programs: killed}
	v.expect(ctx, &seen, words, "words were counted")
	for _, err := range k.close(untilEnded) {
		v.complain("%v", err)
	}
	v.read(ctx, s, counts, func(committed reading) []string { return judgeCounts(committed, f.sent) })
	v.remark("%d lines, %d words, %d starts of %d applications", f.lines, words, startsOf(applications), len(applications))
	return v, nil
}

func startsOf(programs []*program) (n int) {
	for _, p := range programs {
		p.mu.Lock()
		n += p.starts
		p.mu.Unlock()
	}
	return n
}

// feeder sends lines, and knows how often it sent each word. A few at first, the others when the word count runs, and no more than most: how
// much there is to count is not for the speed of the machine to say. lines and sent may be read when run has returned.
type feeder struct {
	random *rand.Rand
	most   int
	begun  chan struct{} // closed when the word count runs
	lines  int
	sent   map[string]int
}

// run sends lines until all are sent or feed ends, and waits until they are acknowledged. A line without acknowledgement would make the counts
// unknown.
func (f *feeder) run(feed, all context.Context, s *system, topic string) error {
	cl, err := s.connect(kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()), kgo.ProducerLinger(5*time.Millisecond))
	if err != nil {
		return fmt.Errorf("send lines: %w", err)
	}
	defer cl.Close()
	failed := make(chan error, 1)
	tick := time.NewTicker(time.Second / linesPerSecond)
	defer tick.Stop()
	for feed.Err() == nil && f.lines < f.most {
		line := make([]string, wordsOfALine)
		for i := range line {
			line[i] = fmt.Sprintf("word-%02d", f.random.IntN(vocabulary))
		}
		words := map[string]int{}
		for _, w := range line {
			words[w]++
		}
		for w, n := range maps.All(words) {
			f.sent[w] += n
		}
		f.lines++
		cl.Produce(all, kgo.StringRecord(strings.Join(line, " ")), func(_ *kgo.Record, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
		if f.lines == firstLines {
			select {
			case <-f.begun:
			case <-feed.Done():
			}
		}
		select {
		case <-tick.C:
		case <-feed.Done():
		}
	}
	flush, cancel := context.WithTimeout(all, untilStill)
	defer cancel()
	err = cl.Flush(flush)
	select {
	case e := <-failed:
		err = errors.Join(err, e)
	default:
	}
	if err != nil {
		return fmt.Errorf("send lines: %w", err)
	}
	return nil
}
