package metadata

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// lead is the time during which this broker is the controller: from the moment at which it has applied everything that
// was committed before its term (M9) until it loses the lead.
type lead struct {
	// term is part of every command decided on during this lead; the FSM refuses it in another term.
	term uint64
	// sessions begin anew with each lead.
	sessions *sessions
	// gone is closed when the lead is over.
	gone chan struct{}
}

// dropLead ends the present lead and reports whether there was one. It does not wait for Raft.
func (s *Store) dropLead() bool {
	l := s.lead.Swap(nil)
	if l != nil {
		close(l.gone)
	}
	return l != nil
}

// ballastPoll is how often a Store whose disk was full looks whether there is space again.
const ballastPoll = 5 * time.Second

// followerPoll is how often a follower that is not ready yet looks whether it has caught up.
const followerPoll = 10 * time.Millisecond

// IsController reports whether this broker leads the quorum and has applied all that was committed before (M9).
func (s *Store) IsController() bool { return s.lead.Load() != nil }

// followLeadership keeps lead and the Image's controller in step with Raft, until the Store is closed.
func (s *Store) followLeadership() {
	// The observer only wakes this goroutine, which then asks Raft: a dropped observation behind 16 others loses nothing.
	observed := make(chan raft.Observation, 16)
	observer := raft.NewObserver(observed, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	})
	s.raft.RegisterObserver(observer)
	defer s.raft.DeregisterObserver(observer)

	catchUp := time.NewTicker(followerPoll)
	defer catchUp.Stop()
	space := time.NewTicker(ballastPoll)
	defer space.Stop()
	ready := s.ready.c
	for {
		s.noteLeader()
		select {
		case leader := <-s.raft.LeaderCh():
			s.pace(leader)
			if leader {
				s.takeLead()
			} else {
				s.loseLead()
			}
		case <-observed:
		case <-catchUp.C:
			if s.caughtUp() {
				s.setReady(nil)
			}
		case <-ready:
			catchUp.Stop()
			ready = nil
			s.takeBallast() // only now: it must not hold up the start
		case <-s.diskKick:
			if s.disk.hungFor() == 0 && s.lead.Load() == nil && s.raft.State() == raft.Leader {
				s.takeLead() // nobody took over meanwhile, and Raft says nothing of what it did not notice
			}
		case <-space.C:
			s.takeBallast()
		case <-s.stop:
			return
		}
	}
}

// paced is what takes the place of a follower's time without heartbeats while it leads.
func paced(timeout time.Duration) time.Duration { return timeout * 3 / 2 }

// pace has a leader send a third fewer heartbeats than Raft would: each 75 to 150 ms with the default of 500 ms after which followers
// miss them. Raft takes the interval to be a tenth to a fifth of that time, and a leader uses it for little else: how long a
// transfer of the lead may take, and, half of it, how long to wait at most before it turns to a server again that did not answer. Followers go by
// their own. Most of what a controller does at rest are heartbeats.
func (s *Store) pace(leads bool) {
	c := s.raft.ReloadableConfig()
	c.HeartbeatTimeout, c.ElectionTimeout = s.cfg.HeartbeatTimeout, s.cfg.ElectionTimeout
	if leads {
		c.HeartbeatTimeout, c.ElectionTimeout = paced(c.HeartbeatTimeout), paced(c.ElectionTimeout)
	}
	if err := s.raft.ReloadConfig(c); err != nil {
		s.logger.Warn("heartbeats of the metadata quorum keep their interval", "interval_to", c.HeartbeatTimeout/5, "error", err)
	}
}

// takeBallast sets the ballast aside, if it is not there.
func (s *Store) takeBallast() {
	if s.ballast.held() {
		return
	}
	if err := s.ballast.take(); err != nil {
		if !s.full.Swap(true) {
			s.logger.Error("no room for the ballast of the metadata log, nothing can be created until there is", "error", err)
		}
		return
	}
	if s.full.Swap(false) {
		s.logger.Info("there is space again for the metadata log")
	}
}

// room refuses what makes the metadata larger while the disk is full.
func (s *Store) room() error {
	if !s.full.Load() {
		return nil
	}
	return &Error{
		Kind: ErrBusy,
		What: "nothing can be created: the disk of the metadata log is full",
		Why:  fmt.Sprintf("there was no room for %s, and its ballast of %d bytes is not back", s.cfg.Dir, s.cfg.BallastBytes),
		Fix:  "free space on that disk; creation works again within seconds, without a restart",
	}
}

func (s *Store) noteLeader() {
	_, id := s.raft.LeaderWithID()
	b := brokerOf(id)
	if b == s.cfg.NodeID && s.disk.hangs.Load() {
		b = NoBroker // who is silent leads nobody
	}
	if b != NoBroker && b != s.cfg.NodeID {
		s.former = b
	}
	s.publishController(b)
}

// suspectFormer suspects the controller before this one: that there is a new one may well be because it is dead, and its
// partitions need not wait until gossip has found out too.
func (s *Store) suspectFormer() {
	if b := s.Image().Broker(s.former); b != nil && !b.Fenced {
		s.Suspect(b.ID, b.Incarnation, "it was the controller until now")
	}
	s.former = NoBroker
}

// takeLead makes this broker the controller, once a barrier of its own term is applied: everything that earlier
// controllers committed is then part of the state that it decides on (M9).
func (s *Store) takeLead() {
	term := s.raft.CurrentTerm()
	if err := endingWith(s.raft.Barrier(0), s.stop).Error(); err != nil {
		s.logger.Warn("lead of the metadata quorum lost before it began", "term", term, "error", err)
		return // another signal of LeaderCh follows, if the lead comes back
	}
	if err := s.formCluster(term); err != nil {
		s.logger.Warn("cluster id is not committed yet", "term", term, "error", err)
		if errors.Is(err, ErrClusterMismatch) {
			s.setReady(err)
		}
		return
	}
	s.suspectFormer()
	s.lead.Store(&lead{
		term:     term,
		sessions: newSessions(s.cfg.SessionTimeout, s.cfg.HeartbeatInterval, s.Image().Brokers(), time.Now()),
		gone:     make(chan struct{}),
	})
	if s.over() || s.disk.hangs.Load() { // since the barrier
		s.dropLead()
		return
	}
	s.noteLeader()
	s.logger.Info("this broker is the controller", "term", term, "version", s.Image().Version())
	s.setReady(nil)
	s.quorumKick()
}

func (s *Store) loseLead() {
	if s.dropLead() {
		s.quorumKick()
		s.logger.Info("this broker is no longer the controller")
	}
}

// formCluster makes sure that the cluster has its id, and that it is the configured one.
func (s *Store) formCluster(term uint64) error {
	if s.Image().ClusterID() == "" {
		id := s.cfg.ClusterID
		if id == "" {
			id = s.newClusterID()
		}
		level := s.cfg.FeatureLevel
		if level == 0 {
			level = MaxFeatureLevel
		}
		// No deadline: the proposer ends the wait when the lead or the Store does.
		_, err := s.proposeIn(context.Background(), term, &initCluster{clusterID: id, featureLevel: level})
		if err != nil && !errors.Is(err, ErrStale) {
			return err
		}
		s.logger.Info("cluster formed", "cluster", s.Image().ClusterID())
	}
	return s.checkCluster()
}

func (s *Store) checkCluster() error {
	have := s.Image().ClusterID()
	if s.cfg.ClusterID == "" || have == s.cfg.ClusterID {
		return nil
	}
	return &Error{
		Kind: ErrClusterMismatch,
		What: fmt.Sprintf("metadata in %s belongs to cluster %s, this broker's data to cluster %s", s.cfg.Dir, have, s.cfg.ClusterID),
		Why:  "folders of two clusters were mixed",
		Fix:  "give the broker the metadata folder of its own cluster, or start it with empty directories",
	}
}

// hasApplied reports whether the Image has all entries up to a committed one. Raft's applied index is not enough.
func (s *Store) hasApplied(index uint64) bool {
	if s.raft.AppliedIndex() < index {
		return false
	}
	version, err := s.versionAt(index)
	return err == nil && version <= s.Image().Version()
}

// caughtUp reports whether a follower has applied all it knows to be committed, and the cluster has its id.
func (s *Store) caughtUp() bool {
	_, leader := s.raft.LeaderWithID()
	if leader == "" || s.raft.State() != raft.Follower || s.Image().ClusterID() == "" {
		return false
	}
	if commit := s.raft.CommitIndex(); commit == 0 || !s.hasApplied(commit) {
		return false
	}
	if err := s.checkCluster(); err != nil {
		s.setReady(err)
		return false
	}
	return true
}
