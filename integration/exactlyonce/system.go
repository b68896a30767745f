package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/integration/cluster"
	"github.com/millrace/millrace/integration/peer"
)

// brokers is how many a system has.
const brokers = 3

// A broker is one process of a system.
type broker interface {
	name() string
	address() string // where clients find it, host:port
	Start() error
	Kill() error
	Done() <-chan struct{}
}

type (
	ours   struct{ *cluster.Node }
	theirs struct{ *peer.Kafka }
)

func (o ours) name() string      { return fmt.Sprintf("broker %d", o.Index) }
func (o ours) address() string   { return o.Addr }
func (t theirs) name() string    { return fmt.Sprintf("broker %d", t.ID) }
func (t theirs) address() string { return t.Addr }

// system is the cluster under test. The client and adm are for one goroutine.
type system struct {
	brokers []broker
	release func() error // what else ends with it; nil for nothing
	client  *kgo.Client
	adm     *kadm.Client
}

// openSystem starts three brokers in a new folder below dir, and waits until they know each other.
func openSystem(ctx context.Context, o options, dir string) (s *system, err error) {
	s = &system{}
	switch o.system {
	case "millrace":
		c, err := cluster.Open(cluster.Config{Binary: o.binary, Dir: filepath.Join(dir, "millrace"), Brokers: brokers})
		if err != nil {
			return nil, err
		}
		s.release = c.Close
		for _, n := range c.Nodes {
			s.brokers = append(s.brokers, ours{n})
		}
	case "kafka":
		// Producers of a killed program are fenced soon: sessions and the search for transactions that are overdue, as short as they may be.
		nodes, err := peer.FormatKafka(ctx, filepath.Join(dir, "kafka"), brokers, "transaction.abort.timed.out.transaction.cleanup.interval.ms=1000")
		if err != nil {
			return nil, err
		}
		for _, k := range nodes {
			k.Heap = "384M"
			s.brokers = append(s.brokers, theirs{k})
		}
	default:
		return nil, fmt.Errorf("no system %q: millrace or kafka", o.system)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
			s = nil
		}
	}()
	for _, b := range s.brokers {
		if err := b.Start(); err != nil {
			return s, err
		}
	}
	wait, cancel := context.WithTimeout(ctx, untilBegun)
	defer cancel()
	if err := poll(wait, func() error { return s.complete(wait) }); err != nil {
		return s, fmt.Errorf("start %s: %w", o.system, err)
	}
	if s.client, err = s.connect(); err != nil {
		return s, err
	}
	s.adm = kadm.NewClient(s.client)
	return s, nil
}

// complete is nil when each broker knows all.
func (s *system) complete(ctx context.Context) error {
	for _, b := range s.brokers {
		n, err := peer.CountBrokers(ctx, b.address())
		if err != nil {
			return err
		}
		if n < len(s.brokers) {
			return fmt.Errorf("%s knows %d of %d brokers", b.name(), n, len(s.brokers))
		}
	}
	return nil
}

func (s *system) seeds() (out []string) {
	for _, b := range s.brokers {
		out = append(out, b.address())
	}
	return out
}

func (s *system) connect(options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(s.seeds()...), kgo.MetadataMinAge(100 * time.Millisecond), kgo.DialTimeout(3 * time.Second), kgo.RequestTimeoutOverhead(5 * time.Second),
	}, options...)...)
}

// close ends the processes; their data is of no more use.
func (s *system) close() error {
	if s.client != nil {
		s.client.Close()
	}
	var errs []error
	for _, b := range s.brokers {
		errs = append(errs, b.Kill())
	}
	if s.release != nil {
		errs = append(errs, s.release())
	}
	return errors.Join(errs...)
}

// create makes a topic with three replicas, two of which must have a record, and waits until it can be used.
func (s *system) create(ctx context.Context, topic string, partitions int) error {
	ctx, cancel := context.WithTimeout(ctx, untilInStep)
	defer cancel()
	configs := map[string]*string{"min.insync.replicas": kadm.StringPtr(strconv.Itoa(brokers - 1))}
	err := poll(ctx, func() error {
		_, err := s.adm.CreateTopic(ctx, int32(partitions), brokers, configs, topic)
		if errors.Is(err, kerr.TopicAlreadyExists) { // after an answer that said otherwise
			return nil
		}
		return err
	})
	if err == nil {
		err = s.healthy(ctx)
	}
	if err != nil {
		return fmt.Errorf("create topic %s: %w", topic, err)
	}
	return nil
}

// healthy waits until each broker knows all, and every partition has a leader and all its replicas in step: then one may be killed.
func (s *system) healthy(ctx context.Context) error {
	return poll(ctx, func() error {
		ask, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if err := s.complete(ask); err != nil {
			return err
		}
		m, err := s.adm.Metadata(ask)
		if err != nil {
			return err
		}
		for _, t := range m.Topics {
			for _, p := range t.Partitions {
				if p.Err != nil || p.Leader < 0 || len(p.ISR) < len(p.Replicas) {
					return fmt.Errorf("%s-%d has leader %d and %d of %d replicas in step (%w)", t.Topic, p.Partition, p.Leader, len(p.ISR), len(p.Replicas), p.Err)
				}
			}
		}
		return nil
	})
}

// dead says which brokers have ended; between two deaths, by themselves.
func (s *system) dead() (errs []error) {
	for _, b := range s.brokers {
		select {
		case <-b.Done():
			errs = append(errs, fmt.Errorf("%s ended by itself", b.name()))
		default:
		}
	}
	return errs
}

// poll tries until fn succeeds or ctx ends, and then says why it did not.
func poll(ctx context.Context, fn func() error) error {
	for {
		err := fn()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
