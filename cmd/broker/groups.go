package broker

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/group"
)

// openGroups starts the group coordinator. It coordinates once the metadata shows this broker's registration, and answers
// while the lease holds.
func (b *Broker) openGroups(context.Context) error {
	settings := cachedSettings[group.Settings]{effective: b.effective, read: settingsOfGroups}
	coordinator, err := group.New(group.Config{
		Broker: b.nodeID, Incarnation: b.incarnation, Store: b.store, Leased: b.replicas.Leased, Settings: settings.get,
		Logger: b.logger.With("part", "group"),
	})
	if err != nil {
		return fmt.Errorf("open the group coordinator: %w", err)
	}
	b.groups = coordinator
	b.store.SettledGroups(coordinator.Settled)
	b.lag = newLagReader(b)
	b.registry.MustRegister(coordinator.Collector(), newGroupMetrics(b))
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

func settingsOfGroups(values settingValues) group.Settings {
	value, number, millis := values.text, values.number, values.millis
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
