package group

import "time"

// Settings are the parts of the broker's config that may change live.
type Settings struct {
	MinSessionTimeout, MaxSessionTimeout time.Duration // group.{min,max}.session.timeout.ms, inclusive
	InitialRebalanceDelay                time.Duration // group.initial.rebalance.delay.ms: how long an empty group waits for further members
	MaxSize                              int           // group.max.size: most members of a group
	ConsumerSessionTimeout               time.Duration // group.consumer.session.timeout.ms
	ConsumerHeartbeatInterval            time.Duration // group.consumer.heartbeat.interval.ms
	ConsumerMaxSize                      int           // group.consumer.max.size
	// ConsumerAssignors are those that members may ask for, the default first; none of them unknown. Empty: all.
	ConsumerAssignors []string
	// Upgrade and Downgrade say whether a group with members may change to the consumer protocol, and back.
	Upgrade, Downgrade     bool
	OffsetMetadataMaxBytes int // offset.metadata.max.bytes: largest text stored with an offset
	// ResumeAfterFailure is millrace.group.failover=resume: a group whose coordinator died goes on in its generation.
	ResumeAfterFailure bool
}

// DefaultSettings are those of a broker that says nothing.
func DefaultSettings() Settings {
	return Settings{
		MinSessionTimeout: 6 * time.Second, MaxSessionTimeout: 30 * time.Minute,
		InitialRebalanceDelay: 3 * time.Second, MaxSize: 1<<31 - 1,
		ConsumerSessionTimeout: 45 * time.Second, ConsumerHeartbeatInterval: 5 * time.Second, ConsumerMaxSize: 1<<31 - 1,
		ConsumerAssignors: Assignors, Upgrade: true, Downgrade: true, OffsetMetadataMaxBytes: 4096,
	}
}

// assignors are those that members may ask for.
func (s *Settings) assignors() []string {
	if len(s.ConsumerAssignors) == 0 {
		return Assignors
	}
	return s.ConsumerAssignors
}
