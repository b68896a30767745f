package metadata

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"
)

const (
	// pilotUpdate is how often the controller asks the servers how far they are, pilotReconcile how often it looks whether
	// one may vote.
	pilotUpdate    = 500 * time.Millisecond
	pilotReconcile = time.Second
	// pilotRest is how often it asks while nothing happens, and pilotEntries how many new entries are nothing: see pilot.remembered.
	pilotRest    = 2 * time.Second
	pilotEntries = 100
	// stableFor is how long a server must have kept up before it may vote.
	stableFor = 2 * time.Second
	// contactLimit and trailingLimit say what keeping up is.
	contactLimit  = 2 * time.Second
	trailingLimit = 1000
	// quorumPoll is how often the controller looks for servers to remove, beside each change of the Image.
	quorumPoll = time.Second
)

// pilot lets non-voters vote while there are too few voters (D2, M17). It runs raft-autopilot, which watches how far each
// server is, with two differences: no more voters than millrace.quorum.size, one at a time; and no dead server is ever
// cleaned away (M15).
type pilot struct {
	s       *Store
	auto    *autopilot.Autopilot
	running bool // only touched by keepQuorum

	mu struct {
		sync.Mutex
		servers map[raft.ServerID]serverHealth // while this broker is the controller
		answers pilotAnswers                   // the last that all servers gave
		// hangs are the servers whose disks hang, by what they said last.
		hangs map[raft.ServerID]time.Duration
	}
}

// pilotAnswers are what servers answered when they were last asked, and what was known then. Nobody changes it.
type pilotAnswers struct {
	at      time.Time
	servers map[raft.ServerID]autopilot.Server
	stats   map[raft.ServerID]*autopilot.ServerStats
	own     ServerStats // of the controller, at that moment
}

// serverHealth is what autopilot found out about a server.
type serverHealth struct {
	contact   time.Duration
	lastIndex uint64
	healthy   bool
}

func newPilot(s *Store) *pilot {
	p := &pilot{s: s}
	p.auto = autopilot.New(promotions{s.raft, s}, p, autopilot.WithPromoter(p), autopilot.WithLogger(newRaftLogger(s.logger)),
		autopilot.WithUpdateInterval(pilotUpdate), autopilot.WithReconcileInterval(pilotReconcile))
	return p
}

// follow runs autopilot while this broker leads. Starting it asks all servers, which may take statsWait.
func (p *pilot) follow(leading bool) {
	switch {
	case leading && !p.running:
		p.auto.Start(context.Background())
		p.running = true
	case !leading && p.running:
		p.stop()
	}
}

func (p *pilot) stop() {
	<-p.auto.Stop()
	p.running = false
	p.mu.Lock()
	p.mu.servers, p.mu.answers, p.mu.hangs = nil, pilotAnswers{}, nil
	p.mu.Unlock()
}

// health returns what autopilot found out, and for how long the disks of servers have hung. Nobody changes either.
func (p *pilot) health() (map[raft.ServerID]serverHealth, map[raft.ServerID]time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.servers, p.mu.hangs
}

// AutopilotConfig is what counts as keeping up.
func (p *pilot) AutopilotConfig() *autopilot.Config {
	return &autopilot.Config{
		CleanupDeadServers:      false,
		LastContactThreshold:    contactLimit,
		MaxTrailingLogs:         trailingLimit,
		ServerStabilizationTime: stableFor,
	}
}

// NotifyState keeps what autopilot found out.
func (p *pilot) NotifyState(state *autopilot.State) {
	servers := make(map[raft.ServerID]serverHealth, len(state.Servers))
	for id, server := range state.Servers {
		servers[id] = serverHealth{contact: server.Stats.LastContact, lastIndex: server.Stats.LastIndex, healthy: server.Health.Healthy}
	}
	p.mu.Lock()
	p.mu.servers = servers
	p.mu.Unlock()
}

// promotions is the Raft that autopilot sees. What it decides rests on what it gathered some time before, so a vote is given
// only if it is still right in the configuration that it changes, and if that is still the present one.
type promotions struct {
	*raft.Raft
	s *Store
}

// errNotPromoted ends a promotion that is not right any more; autopilot looks again.
var errNotPromoted = errors.New("the configuration is not what the promotion was decided on")

// AddVoter gives a vote to a non-voter. A server whose directory was removed meanwhile would come back as a voter that
// nobody reaches.
func (p promotions) AddVoter(id raft.ServerID, address raft.ServerAddress, _ uint64, timeout time.Duration) raft.IndexFuture {
	index, servers, err := p.s.configuration()
	if err != nil {
		return refusedChange{err}
	}
	at := slices.IndexFunc(servers, func(s raft.Server) bool { return s.ID == id })
	if at < 0 || servers[at].Suffrage != raft.Nonvoter || servers[at].Address != address || !p.s.mayPromote(servers) {
		return refusedChange{errNotPromoted}
	}
	return endingWith(p.Raft.AddVoter(id, address, index, timeout), p.s.stop)
}

// mayPromote says whether another server may get a vote: there is room, and no server waits for its removal. Who has taken
// the place of a broker that is gone must not vote beside the vote of the one before, which nobody can give any more: with
// both of them counted the others might be no majority.
func (s *Store) mayPromote(servers []raft.Server) bool {
	voters := 0
	for _, server := range servers {
		if s.tombstoned(server.ID) {
			return false
		}
		if server.Suffrage == raft.Voter {
			voters++
		}
	}
	return voters < s.cfg.QuorumSize
}

// refusedChange is a change of the configuration that was not begun.
type refusedChange struct{ err error }

// Error returns why.
func (r refusedChange) Error() error { return r.err }

// Index returns 0: there is no entry.
func (refusedChange) Index() uint64 { return 0 }

// remembered returns the answers of a moment ago in place of new ones, nil if the servers must be asked: where all answered
// less than pilotRest ago, were in contact and had the log, and where nothing has happened since: the same servers, all of
// them of live brokers, the same term and hardly an entry more. Who falls silent is known sooner by gossip and by Raft's own heartbeats; a
// broker that is fenced is asked for at once. While a server waits for its vote, all are asked each time: it counts how long
// that one has kept up.
func (p *pilot) remembered(servers map[raft.ServerID]*autopilot.Server, own ServerStats, now time.Time) map[raft.ServerID]*autopilot.ServerStats {
	p.mu.Lock()
	last, hangs := p.mu.answers, len(p.mu.hangs)
	p.mu.Unlock()
	if hangs > 0 {
		return nil // for how long is to be known, and when it is over
	}
	if now.Sub(last.at) >= pilotRest || len(servers) != len(last.servers) || own.LastTerm != last.own.LastTerm || own.LastIndex-last.own.LastIndex > pilotEntries {
		return nil
	}
	for id, server := range servers {
		before, stats := last.servers[id], last.stats[id]
		if server.NodeStatus != autopilot.NodeAlive || before.NodeStatus != server.NodeStatus || before.Address != server.Address ||
			stats == nil || stats.LastContact < 0 || stats.LastContact > contactLimit/2 || stats.LastIndex+pilotEntries < last.own.LastIndex {
			return nil
		}
	}
	if waiting := p.s.servers(); p.s.mayPromote(waiting) && slices.ContainsFunc(waiting, func(s raft.Server) bool { return s.Suffrage == raft.Nonvoter }) {
		return nil
	}
	return maps.Clone(last.stats)
}

// FetchServerStats asks all servers at once how far they are, or remembers it.
func (p *pilot) FetchServerStats(ctx context.Context, servers map[raft.ServerID]*autopilot.Server) map[raft.ServerID]*autopilot.ServerStats {
	own := p.s.Stats()
	own.LastContact = 0
	if out := p.remembered(servers, own, time.Now()); out != nil {
		self := serverID(p.s.cfg.NodeID, p.s.cfg.DirectoryID)
		out[self] = &autopilot.ServerStats{LastTerm: own.LastTerm, LastIndex: own.LastIndex}
		return out
	}
	var mu sync.Mutex
	out := make(map[raft.ServerID]*autopilot.ServerStats, len(servers))
	hangs := map[raft.ServerID]time.Duration{}
	set := func(id raft.ServerID, stats ServerStats) {
		mu.Lock()
		defer mu.Unlock()
		out[id] = &autopilot.ServerStats{LastContact: stats.LastContact, LastTerm: stats.LastTerm, LastIndex: stats.LastIndex}
		if stats.DiskHang > 0 {
			hangs[id] = stats.DiskHang
		}
	}
	var asking sync.WaitGroup
	for id, server := range servers {
		if id == serverID(p.s.cfg.NodeID, p.s.cfg.DirectoryID) {
			set(id, own)
			continue
		}
		asking.Go(func() {
			stats, err := p.s.serverStats(ctx, Server{ID: brokerOf(id), Directory: directoryOf(id), Address: string(server.Address)})
			if err != nil || stats.Server != id {
				set(id, ServerStats{LastContact: -1})
				return
			}
			set(id, stats)
		})
	}
	asking.Wait()
	answers := pilotAnswers{at: time.Now(), servers: make(map[raft.ServerID]autopilot.Server, len(servers)), stats: maps.Clone(out), own: own}
	for id, server := range servers {
		answers.servers[id] = *server
	}
	p.mu.Lock()
	p.mu.answers = answers
	p.mu.hangs = hangs
	p.mu.Unlock()
	return out
}

// serverStats asks a server how far it is.
func (s *Store) serverStats(ctx context.Context, server Server) (ServerStats, error) {
	var stats ServerStats
	if s.cfg.Forwarder == nil {
		return stats, errAlone
	}
	ctx, cancel := context.WithTimeout(ctx, statsWait)
	defer cancel()
	body, err := s.cfg.Forwarder.Forward(ctx, server.ID, server.Address, StatsMethod, nil)
	if err != nil {
		return stats, err
	}
	if err := json.Unmarshal(body, &stats); err != nil {
		return stats, fmt.Errorf("read the state of broker %d: %w", server.ID, err)
	}
	return stats, nil
}

// KnownServers says which servers belong to brokers that live.
func (p *pilot) KnownServers() map[raft.ServerID]*autopilot.Server {
	out := map[raft.ServerID]*autopilot.Server{}
	im := p.s.Image()
	for _, server := range p.s.servers() {
		known := &autopilot.Server{ID: server.ID, Name: brokerOf(server.ID).String(), Address: server.Address, NodeStatus: autopilot.NodeFailed, RaftVersion: raft.ProtocolVersionMax}
		if b := im.Broker(brokerOf(server.ID)); b != nil && slices.Contains(b.Directories, directoryOf(server.ID)) && !b.Fenced && !b.Removing {
			known.NodeStatus = autopilot.NodeAlive
		}
		out[server.ID] = known
	}
	return out
}

// RemoveFailedServer is never called, for dead servers are not cleaned away; if it were, nothing would happen (M15).
func (p *pilot) RemoveFailedServer(*autopilot.Server) {}

// CalculatePromotionsAndDemotions picks the one server that may vote next: a stable non-voter, the lowest id first. How
// many vote already is looked up now: state was gathered before the servers were asked, and may miss the last promotion.
func (p *pilot) CalculatePromotionsAndDemotions(c *autopilot.Config, state *autopilot.State) autopilot.RaftChanges {
	var ready []raft.ServerID
	now := time.Now()
	for id, server := range state.Servers {
		if server.State == autopilot.RaftNonVoter && !p.s.tombstoned(id) && server.Health.IsStable(now, state.ServerStabilizationTime(c)) {
			ready = append(ready, id)
		}
	}
	if len(ready) == 0 || !p.s.mayPromote(p.s.servers()) {
		return autopilot.RaftChanges{}
	}
	return autopilot.RaftChanges{Promotions: []raft.ServerID{slices.MinFunc(ready, func(a, b raft.ServerID) int {
		if d := int(brokerOf(a)) - int(brokerOf(b)); d != 0 {
			return d
		}
		return strings.Compare(string(a), string(b))
	})}}
}

// The rest of autopilot.Promoter: no extra state, every server may vote one day, no removals.

func (p *pilot) GetServerExt(*autopilot.Config, *autopilot.ServerState) any { return nil }

func (p *pilot) GetStateExt(*autopilot.Config, *autopilot.State) any { return nil }

func (p *pilot) GetNodeTypes(_ *autopilot.Config, state *autopilot.State) map[raft.ServerID]autopilot.NodeType {
	types := make(map[raft.ServerID]autopilot.NodeType, len(state.Servers))
	for id := range state.Servers {
		types[id] = autopilot.NodeVoter
	}
	return types
}

func (p *pilot) FilterFailedServerRemovals(*autopilot.Config, *autopilot.State, *autopilot.FailedServers) *autopilot.FailedServers {
	return &autopilot.FailedServers{}
}

func (p *pilot) IsPotentialVoter(kind autopilot.NodeType) bool { return kind == autopilot.NodeVoter }

// quorumKick makes keepQuorum look now.
func (s *Store) quorumKick() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// keepQuorum does, at the controller, what an operator's commands mean for the Raft configuration: servers whose directory
// was removed leave it, one at a time; and this server's own address is what it is reached at now.
func (s *Store) keepQuorum() {
	w := s.Watch()
	defer w.Close()
	poll := time.NewTicker(quorumPoll)
	defer poll.Stop()
	defer s.pilot.stop()
	var seen *Image
	for {
		select {
		case <-w.C():
			before := seen
			if seen = s.Image(); before != nil && seen.DiffersInOffsets(before) {
				continue
			}
		case <-poll.C:
		case <-s.kick:
		case <-s.stop:
			return
		}
		l := s.lead.Load()
		s.pilot.follow(l != nil)
		if l != nil {
			if err := s.tendQuorum(l.term); err != nil {
				s.logger.Warn("metadata quorum not changed yet", "error", err)
			}
		}
	}
}

// tendQuorum makes one change that is due, if there is one.
func (s *Store) tendQuorum(term uint64) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	index, servers, err := s.configuration()
	if err != nil {
		return err
	}
	self := serverID(s.cfg.NodeID, s.cfg.DirectoryID)
	for _, server := range servers {
		if server.ID == self && server.Address != s.transport.LocalAddr() {
			s.logger.Info("this broker's raft server is at another address", "from", server.Address, "to", s.transport.LocalAddr())
			_, err := s.change(term, s.raft.AddNonvoter(self, s.transport.LocalAddr(), index, configChangeWait))
			return err
		}
	}
	for _, server := range servers {
		if !s.tombstoned(server.ID) {
			continue
		}
		if server.ID == self {
			// The next controller removes this one; a leader that removes itself would leave the quorum without one for an
			// election timeout.
			_, err := s.transferLeadership(context.Background(), transferArgs{To: NoBroker})
			return err
		}
		if _, err := s.change(term, s.raft.RemoveServer(server.ID, index, configChangeWait)); err != nil {
			return fmt.Errorf("remove raft server %s: %w", server.ID, err)
		}
		s.logger.Info("raft server removed from the metadata quorum", "server", server.ID)
		s.quorumKick() // there may be another
		return nil
	}
	return nil
}
