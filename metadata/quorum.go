package metadata

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/raft"
)

// Server is one Raft server: a broker with the directory that its metadata belongs to. A broker that comes back with
// another directory is another server (M14).
type Server struct {
	ID        BrokerID    `json:"id"`
	Directory DirectoryID `json:"directory"`
	// Address is host:port of its listener for other brokers.
	Address string `json:"address"`
}

func (s Server) raft() raft.ServerID { return serverID(s.ID, s.Directory) }

// QuorumMember is one server of the quorum as the controller sees it.
type QuorumMember struct {
	Server
	Voter bool `json:"voter"`
	// LastContact is how long ago the server heard from the leader, 0 for the leader itself; -1 when that is not known.
	LastContact time.Duration `json:"last_contact_ns"`
	// LogIndex is the last entry in its log, 0 when that is not known.
	LogIndex uint64 `json:"log_index"`
	// DiskHang is for how long the server's disk has not come back with a write, 0 when it does or nothing is known.
	DiskHang time.Duration `json:"disk_hang_ns,omitempty"`
	// Healthy says that it is a live broker, in contact and close to the end of the log.
	Healthy bool `json:"healthy"`
}

// QuorumStatus says who stores the metadata and how far each has it.
type QuorumStatus struct {
	Leader       BrokerID       `json:"leader"` // NoBroker while there is none
	Term         uint64         `json:"term"`
	Size         int            `json:"size"` // millrace.quorum.size
	CommitIndex  uint64         `json:"commit_index"`
	LastIndex    uint64         `json:"last_index"`
	AppliedIndex uint64         `json:"applied_index"`
	Voters       []QuorumMember `json:"voters"`     // by id
	NonVoters    []QuorumMember `json:"non_voters"` // by id
}

const (
	// configChangeWait bounds how long a change of the Raft configuration may wait to be appended. Once it is, its outcome
	// is waited for until the lead ends.
	configChangeWait = 5 * time.Second
	// statsWait bounds one question to a server about how far it is.
	statsWait = time.Second
	// goneAddress takes the place of the address of a server whose place in the network another one has taken: its vote
	// still counts until an operator removes it (M15), but nobody is called for it.
	goneAddress = "gone."
)

type transferArgs struct {
	To BrokerID `json:"to"`
}

var (
	opQuorum = operation[none, QuorumStatus]{name: "quorum", repeatable: true, unseen: true,
		local: func(s *Store, _ context.Context, _ none) (QuorumStatus, error) { return s.Quorum(), nil }}
	opAddServer = operation[Server, none]{name: "add_server", repeatable: true, unseen: true,
		local: (*Store).addServer}
	opRemoveServer = operation[BrokerID, none]{name: "remove_server", repeatable: true, unseen: true,
		local: (*Store).removeServer}
	opTransferLeadership = operation[transferArgs, none]{name: "transfer_leadership", unseen: true,
		local: (*Store).transferLeadership}
)

// Quorum returns the quorum as this broker sees it. At the controller it is complete; elsewhere the others' contact and
// log are unknown: see DescribeQuorum.
func (s *Store) Quorum() QuorumStatus {
	_, leader := s.raft.LeaderWithID()
	q := QuorumStatus{
		Leader:       brokerOf(leader),
		Term:         s.raft.CurrentTerm(),
		Size:         s.cfg.QuorumSize,
		CommitIndex:  s.raft.CommitIndex(),
		LastIndex:    s.raft.LastIndex(),
		AppliedIndex: s.raft.AppliedIndex(),
	}
	self := serverID(s.cfg.NodeID, s.cfg.DirectoryID)
	health, hangs := s.pilot.health()
	im := s.Image()
	for _, server := range s.servers() {
		m := QuorumMember{Server: serverOf(server), Voter: server.Suffrage == raft.Voter, LastContact: -1}
		switch h, known := health[server.ID]; {
		case server.ID == self && leader == self:
			m.LastContact, m.LogIndex, m.Healthy = 0, q.LastIndex, true
		case server.ID == self:
			m.LastContact, m.LogIndex = s.lastContact(), q.LastIndex
			m.Healthy = leader != ""
		case known:
			m.LastContact, m.LogIndex, m.Healthy = h.contact, h.lastIndex, h.healthy
			// Autopilot asks every two seconds or so. That a broker is fenced is often known before, and whoever is about to
			// stop another one must not count on it.
			if b := im.Broker(m.ID); b != nil && b.Fenced {
				m.Healthy = false
			}
		}
		if server.ID == self {
			m.DiskHang = s.DiskHang()
		} else {
			m.DiskHang = hangs[server.ID]
		}
		if m.DiskHang > 0 {
			m.Healthy = false
		}
		if m.Voter {
			q.Voters = append(q.Voters, m)
		} else {
			q.NonVoters = append(q.NonVoters, m)
		}
	}
	byID := func(a, b QuorumMember) int { return int(a.ID) - int(b.ID) }
	slices.SortStableFunc(q.Voters, byID)
	slices.SortStableFunc(q.NonVoters, byID)
	return q
}

// DescribeQuorum returns the quorum as the controller sees it. Without a controller it is this broker's own view, with
// Leader NoBroker: a lost quorum is what one wants to look at.
func (s *Store) DescribeQuorum(ctx context.Context) (QuorumStatus, error) {
	q, err := call(ctx, s, &opQuorum, none{})
	if errors.Is(err, ErrNotController) || errors.Is(err, ErrTimeout) {
		return s.Quorum(), nil
	}
	return q, err
}

// lastContact is how long ago this broker heard from the leader, -1 if it never did.
func (s *Store) lastContact() time.Duration {
	if last := s.raft.LastContact(); !last.IsZero() {
		return time.Since(last)
	}
	return -1
}

// servers returns the latest Raft configuration, committed or not; nil before there is one.
func (s *Store) servers() []raft.Server {
	f := s.raft.GetConfiguration()
	if f.Error() != nil {
		return nil
	}
	return f.Configuration().Servers
}

// Servers returns the servers of the latest Raft configuration, empty before there is one.
func (s *Store) Servers() []Server {
	var all []Server
	for _, server := range s.servers() {
		all = append(all, serverOf(server))
	}
	return all
}

// Removed says whether the broker that had this directory was removed from the cluster; it can't come back (M14).
func (im *Image) Removed(dir DirectoryID) bool {
	id := im.st.directoryIdentity(dir)
	return id != nil && id.Removed
}

func serverOf(server raft.Server) Server {
	return Server{ID: brokerOf(server.ID), Directory: directoryOf(server.ID), Address: string(server.Address)}
}

// AddServer makes a broker's server part of the quorum, as a non-voter that gets every entry; the controller lets it vote
// once it has caught up, while there are fewer voters than millrace.quorum.size (M17). A server that is there already gets
// the address, and keeps its vote. The server must be reachable at the address, with that id and directory.
//
// Errors: ErrRemoved when the directory's broker was removed (M14), ErrInvalidRequest, ErrBusy when the server did not answer in
// time, and those of every operation (see
// CreateTopics).
func (s *Store) AddServer(ctx context.Context, server Server) error {
	_, err := call(ctx, s, &opAddServer, server)
	return err
}

func (s *Store) addServer(ctx context.Context, server Server) (none, error) {
	l, err := s.controller()
	if err != nil {
		return none{}, err
	}
	if server.ID < 0 || server.Directory == (DirectoryID{}) || server.Address == "" {
		return none{}, &Error{
			Kind: ErrInvalidRequest,
			What: fmt.Sprintf("broker %d can't be added to the metadata quorum", server.ID),
			Why:  "it has no id, no directory or no address",
			Fix:  "this is an error of the broker's software, not of its configuration",
		}
	}
	if err := s.allowed(server); err != nil {
		return none{}, err
	}
	id := server.raft()
	known := func(servers []raft.Server) bool {
		return slices.ContainsFunc(servers, func(have raft.Server) bool { return have.ID == id && string(have.Address) == server.Address })
	}
	if _, servers, err := s.configuration(); err != nil || known(servers) {
		return none{}, err
	}
	if server.ID != s.cfg.NodeID {
		if err := s.reachable(ctx, server); err != nil { // asked before the lock: a silent server holds up no other change
			return none{}, err
		}
	}
	s.changing.Lock() // one at a time (M17)
	defer s.changing.Unlock()
	index, servers, err := s.configuration()
	if err != nil || known(servers) {
		return none{}, err
	}
	for _, have := range servers {
		// Another server that had this address is gone: the one that answered there has another directory. It keeps its
		// place and its vote until somebody removes it.
		if have.ID == id || string(have.Address) != server.Address {
			continue
		}
		if index, err = s.change(l.term, s.raft.AddNonvoter(have.ID, raft.ServerAddress(goneAddress+string(have.ID)), index, configChangeWait)); err != nil {
			return none{}, fmt.Errorf("mark raft server %s as gone: %w", have.ID, err)
		}
		s.logger.Warn("the address of a raft server belongs to another now", "server", have.ID, "address", server.Address, "now", id)
	}
	// AddNonvoter only changes the address of a server that is there, whether it votes or not.
	if _, err := s.change(l.term, s.raft.AddNonvoter(id, raft.ServerAddress(server.Address), index, configChangeWait)); err != nil {
		return none{}, fmt.Errorf("add broker %d to the metadata quorum: %w", server.ID, err)
	}
	s.logger.Info("raft server added, or at another address", "broker", server.ID, "address", server.Address)
	return none{}, nil
}

// allowed refuses a server whose directory was removed, or belongs to another broker.
func (s *Store) allowed(server Server) error {
	id := s.Image().st.directoryIdentity(server.Directory)
	switch {
	case id == nil:
		return nil
	case id.Removed:
		return &Error{
			Kind: ErrRemoved,
			What: fmt.Sprintf("broker %d was removed from the cluster", id.Broker),
			Why:  fmt.Sprintf("an operator removed it, and its data directory (id %x) with it", server.Directory),
			Fix:  "start it with an empty data directory: it then joins as a new broker",
		}
	case id.Broker != server.ID:
		return &Error{
			Kind: ErrInvalidRequest,
			What: fmt.Sprintf("broker %d can't be added to the metadata quorum", server.ID),
			Why:  fmt.Sprintf("its data directory (id %x) is that of broker %d", server.Directory, id.Broker),
			Fix:  fmt.Sprintf("start it with node.id=%d, or with an empty data directory", id.Broker),
		}
	}
	return nil
}

// reachable makes sure that the server itself answers at its address: one that nobody reaches would only count as a
// member that never catches up.
func (s *Store) reachable(ctx context.Context, server Server) error {
	if s.cfg.Forwarder == nil {
		return nil
	}
	stats, err := s.serverStats(ctx, server)
	switch {
	case err != nil:
		// No answer, or none in time, may come of a machine that stood still just then: whoever asked tries again, and says why it waits.
		kind := ErrInvalidRequest
		if late := net.Error(nil); errors.Is(err, ErrTimeout) || errors.As(err, &late) && late.Timeout() {
			kind = ErrBusy
		}
		return &Error{
			Kind: kind,
			What: fmt.Sprintf("broker %d can't be reached at %s", server.ID, server.Address),
			Why:  fmt.Sprintf("broker %d, the controller, tried: %v", s.cfg.NodeID, err),
			Fix:  "--advertise HOST, or advertised.listeners=CONTROLLER://HOST:9093 on that broker, with a name that the others can reach",
		}
	case stats.Server != server.raft():
		return &Error{
			Kind: ErrInvalidRequest,
			What: fmt.Sprintf("broker %d is not at %s", server.ID, server.Address),
			Why:  fmt.Sprintf("raft server %s answers there, not %s", stats.Server, server.raft()),
			Fix:  "give each broker an address of its own: --advertise, advertised.listeners",
		}
	}
	return nil
}

// configuration returns the latest Raft configuration and its index.
func (s *Store) configuration() (uint64, []raft.Server, error) {
	f := s.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return 0, nil, fmt.Errorf("read the raft configuration: %w", err)
	}
	return f.Index(), f.Configuration().Servers, nil
}

// change waits for a change of the configuration and returns its index. It says whether nothing was done (ErrNotController)
// or nobody knows (ErrTimeout).
func (s *Store) change(term uint64, f raft.IndexFuture) (uint64, error) {
	switch err := endingWith(f, s.stop).Error(); {
	case err == nil:
		return f.Index(), nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrEnqueueTimeout), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return 0, &Error{Kind: ErrNotController, What: "the metadata quorum was not changed", Why: fmt.Sprintf("in term %d: %v", term, err), Fix: "try again in a moment"}
	case errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrRaftShutdown):
		return 0, &Error{Kind: ErrTimeout, What: "the metadata quorum may have been changed, or not", Why: err.Error(), Fix: "look at the present state before trying again: millrace cluster quorum peers"}
	default:
		return 0, fmt.Errorf("%w: %w", ErrStale, err)
	}
}

// RemoveServer takes the servers of a removed broker out of the quorum and waits until that is committed. The broker must
// have been removed before by UnregisterBroker, or have been replaced; the controller then does this by itself, so the
// call mostly waits. Nothing but such a command of an operator ever makes the quorum smaller (M15).
//
// Errors: ErrPolicyViolation when the broker was not removed, and those of every operation (see CreateTopics).
func (s *Store) RemoveServer(ctx context.Context, id BrokerID) error {
	_, err := call(ctx, s, &opRemoveServer, id)
	return err
}

func (s *Store) removeServer(ctx context.Context, id BrokerID) (none, error) {
	poll := time.NewTicker(controllerPoll)
	defer poll.Stop()
	for {
		if _, err := s.controller(); err != nil {
			return none{}, err
		}
		present := false
		for _, server := range s.servers() {
			present = present || brokerOf(server.ID) == id && s.tombstoned(server.ID)
		}
		// A broker whose place another one has taken is registered, and has a removed directory.
		if im := s.Image(); !present && im.Broker(id) != nil && !im.st.lostDirectory(id) {
			return none{}, &Error{
				Kind: ErrPolicyViolation,
				What: fmt.Sprintf("broker %d can't be taken out of the metadata quorum", id),
				Why:  "it belongs to the cluster, and every broker of the cluster keeps a copy of the metadata",
				Fix:  fmt.Sprintf("millrace cluster brokers decommission %d --wait   takes it out of both; another broker then votes in its place", id),
			}
		}
		if !present {
			return none{}, nil
		}
		s.quorumKick()
		select {
		case <-poll.C:
		case <-s.stop:
			return none{}, ErrClosed
		case <-ctx.Done():
			return none{}, &Error{
				Kind: ErrTimeout,
				What: fmt.Sprintf("broker %d is still in the metadata quorum", id),
				Why:  "the change was not committed in time: " + ctx.Err().Error(),
				Fix:  "see that a majority of the voters runs; the controller goes on trying",
			}
		}
	}
}

// tombstoned says whether a server's directory was removed from the cluster.
func (s *Store) tombstoned(id raft.ServerID) bool {
	identity := s.Image().st.directoryIdentity(directoryOf(id))
	return identity != nil && identity.Removed
}

// Departed says whether there was a broker of that id that was removed from the cluster, and none has its place.
func (im *Image) Departed(id BrokerID) bool { return im.Broker(id) == nil && im.st.lostDirectory(id) }

// missedVote says why the quorum can't do without a broker's vote, "" if it can: those left must be able to commit its
// removal, and all that comes after it.
func (s *Store) missedVote(id BrokerID) string {
	voters, healthy, votes := 0, 0, false
	for _, m := range s.Quorum().Voters {
		switch {
		case m.ID == id:
			votes = true
		default:
			voters++
			if m.Healthy {
				healthy++
			}
		}
	}
	switch {
	case !votes || healthy > voters/2:
		return ""
	case voters == 0:
		return "it is the only voter of the metadata quorum"
	}
	return fmt.Sprintf("it votes in the metadata quorum, and of the %d voters that would be left only %d are known to be well; %d are needed", voters, healthy, voters/2+1)
}

// lostDirectory says whether a directory of the broker was removed.
func (st *state) lostDirectory(id BrokerID) bool {
	return slices.ContainsFunc(st.identities, func(i *identity) bool { return i.Broker == id && i.Removed })
}

// directoryIdentity returns what is known of a directory, nil if no broker ever had it.
func (st *state) directoryIdentity(dir DirectoryID) *identity {
	i, ok := slices.BinarySearchFunc(st.identities, dir, func(id *identity, dir DirectoryID) int { return bytes.Compare(id.Directory[:], dir[:]) })
	if !ok {
		return nil
	}
	return st.identities[i]
}

// TransferLeadership makes another voter the controller: to, or the most advanced one with NoBroker. It returns once this
// broker has given the lead up.
//
// Errors: ErrInvalidRequest when to is no voter, ErrBusy when nobody can take over, and those of every operation (see
// CreateTopics).
func (s *Store) TransferLeadership(ctx context.Context, to BrokerID) error {
	_, err := call(ctx, s, &opTransferLeadership, transferArgs{To: to})
	return err
}

func (s *Store) transferLeadership(_ context.Context, a transferArgs) (none, error) {
	if _, err := s.controller(); err != nil {
		return none{}, err
	}
	if a.To == s.cfg.NodeID {
		return none{}, nil
	}
	var f raft.Future
	if a.To == NoBroker {
		f = s.raft.LeadershipTransfer()
	} else {
		servers := s.servers()
		i := slices.IndexFunc(servers, func(server raft.Server) bool {
			return brokerOf(server.ID) == a.To && server.Suffrage == raft.Voter && !s.tombstoned(server.ID)
		})
		if i < 0 {
			return none{}, &Error{
				Kind: ErrInvalidRequest,
				What: fmt.Sprintf("broker %d can't become the controller", a.To),
				Why:  "it is no voter of the metadata quorum",
				Fix:  "name a voter: millrace cluster quorum peers",
			}
		}
		f = s.raft.LeadershipTransferToServer(servers[i].ID, servers[i].Address)
	}
	if err := endingWith(f, s.stop).Error(); err != nil {
		return none{}, &Error{Kind: ErrBusy, What: "the controller did not change", Why: err.Error(), Fix: "see that another voter runs and has caught up: millrace cluster quorum peers"}
	}
	return none{}, nil
}

// ServerStats is how far a server is.
type ServerStats struct {
	Server      raft.ServerID `json:"server"`
	LastContact time.Duration `json:"last_contact_ns"` // since it heard from the leader; -1 never
	LastTerm    uint64        `json:"last_term"`
	LastIndex   uint64        `json:"last_index"`
	// DiskHang is Store.DiskHang of that broker.
	DiskHang time.Duration `json:"disk_hang_ns,omitempty"`
}

// StatsMethod is a method of ServeForward that every broker answers, with its ServerStats as JSON, not only the
// controller: how far its Raft server is.
const StatsMethod = "server_stats"

// Stats returns how far this broker's server is.
func (s *Store) Stats() ServerStats {
	term, _ := strconv.ParseUint(s.raft.Stats()["last_log_term"], 10, 64)
	return ServerStats{
		Server:      serverID(s.cfg.NodeID, s.cfg.DirectoryID),
		LastContact: s.lastContact(),
		LastTerm:    term,
		LastIndex:   s.raft.LastIndex(),
		DiskHang:    s.DiskHang(),
	}
}
