package broker

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/group"
	"github.com/millrace/millrace/metadata"
)

// openGroups starts the group coordinator. It coordinates once the metadata shows this broker's registration, and answers
// while the lease holds.
func (b *Broker) openGroups(context.Context) error {
	settings := groupSettings{effective: b.effective}
	coordinator, err := group.New(group.Config{
		Broker: b.nodeID, Incarnation: b.incarnation, Store: b.store, Leased: b.replicas.Leased, Settings: settings.get,
		Logger: b.logger.With("part", "group"),
	})
	if err != nil {
		return fmt.Errorf("open the group coordinator: %w", err)
	}
	b.groups = coordinator
	b.lag = newLagReader(b)
	b.registry.MustRegister(coordinator.Collector(), &groupMetrics{store: b.store, lag: b.lag})
	b.grouping.Go(func() { // until closeGroups: members that this broker cannot hand over are served to the end
		if err := coordinator.Run(context.Background()); err != nil {
			b.fail("the group coordinator", err)
		}
	})
	return nil
}

// closeGroups ends the coordinator; what still waits is answered.
func (b *Broker) closeGroups(context.Context) error {
	err := b.groups.Close()
	b.grouping.Wait()
	return err
}

// groupSettings are the settings of groups as the broker's configuration has them now. They are asked for with every
// join, so that they are read once in a while.
type groupSettings struct {
	effective func() map[string]string

	mu struct {
		sync.Mutex
		read time.Time
		now  group.Settings
	}
}

// groupSettingsAge is how old the settings may be that a join gets.
const groupSettingsAge = time.Second

func (s *groupSettings) get() group.Settings {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.read.IsZero() || time.Since(s.mu.read) > groupSettingsAge {
		s.mu.now, s.mu.read = settingsOfGroups(s.effective()), time.Now()
	}
	return s.mu.now
}

func settingsOfGroups(values map[string]string) group.Settings {
	value := func(name string) string {
		if v, ok := values[name]; ok {
			return v
		}
		key, ok := metadata.LookupConfig(metadata.ConfigBroker, name)
		if !ok {
			panic("broker: config " + name + " is not in the configuration table")
		}
		return key.Default
	}
	number := func(name string) int64 {
		n, err := strconv.ParseInt(value(name), 10, 64)
		if err != nil {
			panic("broker: config " + name + " is not a number after its check: " + err.Error())
		}
		return n
	}
	millis := func(name string) time.Duration { return time.Duration(number(name)) * time.Millisecond }
	policy := value("group.consumer.migration.policy")
	return group.Settings{
		MinSessionTimeout: millis("group.min.session.timeout.ms"), MaxSessionTimeout: millis("group.max.session.timeout.ms"),
		InitialRebalanceDelay: millis("group.initial.rebalance.delay.ms"),
		MaxSize:               int(number("group.max.size")), OffsetMetadataMaxBytes: int(number("offset.metadata.max.bytes")),
		ResumeAfterFailure: value("millrace.group.failover") == "resume",

		ConsumerSessionTimeout: millis("group.consumer.session.timeout.ms"), ConsumerHeartbeatInterval: millis("group.consumer.heartbeat.interval.ms"),
		ConsumerMaxSize:   int(number("group.consumer.max.size")),
		ConsumerAssignors: slices.DeleteFunc(strings.Split(strings.ReplaceAll(value("group.consumer.assignors"), " ", ""), ","), group.UnknownAssignor),
		Upgrade:           policy == "upgrade" || policy == "bidirectional",
		Downgrade:         policy == "downgrade" || policy == "bidirectional",
	}
}
