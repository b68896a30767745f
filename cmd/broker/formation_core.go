package broker

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/metadata"
)

// A cluster is formed by exactly expect brokers with empty directories (M18):
//
//  1. The one with the lowest gossip address that sees expect of them proposes a cluster of the expect lowest: its id, who
//     belongs to it, and who gets which node id. It grants its own proposal first, then asks the others.
//  2. Each grants one proposal only, and keeps it in its directory before it answers. A grant is let go only when the
//     proposer itself says that it has given the proposal up, which the proposer writes down before it says so.
//  3. With all grants the proposer writes down that it is decided, and bootstraps Raft. The others ask it until they hear
//     that, and start with an empty Raft.
//
// Two proposals that share a broker can't both be decided, for that broker grants one; so whatever each broker sees of the
// others, no two clusters with a common broker are ever formed. Two proposals that share none are kept from happening by
// the join list: a broker grants only what contains more than half of the addresses it was told to join, so brokers with
// the same list can't end up in two clusters.
//
// The core is pure: events in, actions out, carried out in their order. It has no clock, no goroutine and no I/O.

const (
	// formationAsk is how often an unanswered question is repeated.
	formationAsk = 250 * time.Millisecond
	// formationMissing is how long a broker of a proposal may be out of sight, while others could take its place, before
	// the proposal is given up for another.
	formationMissing = 3 * time.Second
)

// candidate is another process as gossip shows it.
type candidate struct {
	directory metadata.DirectoryID
	gossip    netip.AddrPort
	address   string // where its broker listener is reached
	cluster   string // "" while it belongs to none
	node      metadata.BrokerID
	expect    int
	// joining says that it only ever joins, or is past granting.
	joining bool
}

// name is how people find it.
func (c *candidate) name() string { return c.gossip.String() }

// byAddress is the order that decides who proposes and who gets which id.
func byAddress(a, b *candidate) int {
	return cmp.Or(a.gossip.Compare(b.gossip), bytes.Compare(a.directory[:], b.directory[:]))
}

// proposal is a cluster to be. It is sent and stored as JSON.
type proposal struct {
	ID      metadata.DirectoryID `json:"id"` // random
	Cluster string               `json:"cluster"`
	// Proposer is the directory of the broker that decides on it; its proposals are numbered.
	Proposer metadata.DirectoryID `json:"proposer"`
	Number   uint64               `json:"number"`
	Members  []proposed           `json:"members"` // by address
}

// proposed is one broker of a proposal.
type proposed struct {
	Directory metadata.DirectoryID `json:"directory"`
	Node      metadata.BrokerID    `json:"node"`
	Gossip    netip.AddrPort       `json:"gossip"`
	Address   string               `json:"address"`
}

func (p *proposal) member(directory metadata.DirectoryID) *proposed {
	for i := range p.Members {
		if p.Members[i].Directory == directory {
			return &p.Members[i]
		}
	}
	return nil
}

// proposerOf returns the member that proposed it. Proposals without one are refused before they are kept.
func (p *proposal) proposerOf() *proposed { return p.member(p.Proposer) }

// before says whether this proposal goes before another that wants the same broker.
func (p *proposal) before(other *proposal) bool {
	a, b := p.proposerOf(), other.proposerOf()
	return a != nil && b != nil && cmp.Or(a.Gossip.Compare(b.Gossip), bytes.Compare(p.Proposer[:], other.Proposer[:])) < 0
}

// check reports what is wrong with a proposal that somebody sent.
func (p *proposal) check() error {
	switch {
	case p.ID == metadata.DirectoryID{} || p.Cluster == "" || len(p.Cluster) > 128:
		return fmt.Errorf("a proposal without an id or a cluster")
	case len(p.Members) > 99:
		return fmt.Errorf("a proposal of %d brokers", len(p.Members))
	case p.proposerOf() == nil:
		return fmt.Errorf("its proposer is not part of it")
	}
	for i, m := range p.Members {
		if m.Directory == (metadata.DirectoryID{}) || m.Node < 0 || !m.Gossip.IsValid() || m.Address == "" {
			return fmt.Errorf("broker %d of it has no directory, id or address", i)
		}
		for _, other := range p.Members[:i] {
			if other.Directory == m.Directory || other.Node == m.Node || other.Address == m.Address {
				return fmt.Errorf("two brokers of it have one directory, id or address")
			}
		}
	}
	return nil
}

// formationState is what a broker keeps in its directory while it has no cluster, and after.
type formationState struct {
	// Granted is the one proposal that this broker granted, its own or another's.
	Granted *proposal `json:"granted,omitempty"`
	// Decided: all of Granted's brokers have granted it. It never changes any more.
	Decided bool `json:"decided,omitempty"`
	// Number is that of this broker's last own proposal.
	Number uint64 `json:"number,omitempty"`
	// Joined is the cluster that gave this broker an id, when it was not formed with it. It excludes Granted.
	Joined *joined `json:"joined,omitempty"`
}

// joined is what a cluster told a broker that joined it.
type joined struct {
	Cluster string            `json:"cluster"`
	Node    metadata.BrokerID `json:"node"`
}

// answer is what a broker says to a request to grant.
type answer struct {
	Granted bool `json:"granted,omitempty"`
	// Held is the proposal that it has granted instead.
	Held *proposal `json:"held,omitempty"`
	// Cluster is the cluster that it belongs to or is joining.
	Cluster string `json:"cluster,omitempty"`
	// Refusal says why else it does not grant.
	Refusal string `json:"refusal,omitempty"`
}

// fate is what a proposer says of its proposal.
type fate string

const (
	fatePending   fate = "pending"
	fateDecided   fate = "decided"
	fateAbandoned fate = "abandoned"
)

// Events. Each is one call of a method of formation; the result are the actions.

// Actions, in the order in which they must be carried out. persist must be durable before what follows it.
type (
	persist   struct{ state formationState }
	askGrant  struct{ to proposed } // of the proposal that this broker has granted itself
	askFate   struct{ of proposal }
	bootstrap struct{ proposal proposal } // decided: this broker bootstraps Raft
	take      struct{ proposal proposal } // decided: this broker takes its place with an empty Raft
	join      struct{ cluster string }    // join that cluster
	refuse    struct{ err error }         // this broker can't go on
)

type action any

// formation is the step core of one broker without a cluster.
type formation struct {
	self   candidate
	newID  func() metadata.DirectoryID
	newRef func() string // a cluster id
	state  formationState

	view  []candidate
	seeds [][]netip.AddrPort // of the join list, resolved

	granted map[metadata.DirectoryID]bool // who has granted the own proposal, this broker included
	asked   map[metadata.DirectoryID]time.Time
	fate    time.Time // when the proposer of another's proposal was last asked
	missing time.Time // since when the own proposal has lacked one in view; zero while it does not

	// over is set once the outcome is known; only questions are answered then.
	over    bool
	cluster string // set with over
}

func newFormation(self candidate, state formationState, newID func() metadata.DirectoryID, newRef func() string) *formation {
	f := &formation{self: self, state: state, newID: newID, newRef: newRef}
	f.forget()
	return f
}

func (f *formation) forget() {
	f.granted = map[metadata.DirectoryID]bool{f.self.directory: true}
	f.asked = map[metadata.DirectoryID]time.Time{}
	f.fate, f.missing = time.Time{}, time.Time{}
}

// own says whether the granted proposal is this broker's.
func (f *formation) own() bool {
	return f.state.Granted != nil && f.state.Granted.Proposer == f.self.directory
}

// see takes a new view of the others and of where the join list leads.
func (f *formation) see(now time.Time, view []candidate, seeds [][]netip.AddrPort) []action {
	f.view, f.seeds = view, seeds
	return f.tick(now)
}

// tick does what is due. The driver calls it at least every formationAsk.
func (f *formation) tick(now time.Time) []action {
	if f.over {
		return nil
	}
	if s := f.state; s.Joined != nil {
		return f.end(s.Joined.Cluster, join{cluster: s.Joined.Cluster})
	} else if s.Decided {
		return f.decided()
	}
	clusters := f.clusters()
	if len(clusters) > 1 {
		return f.end("", refuse{f.twoClusters(clusters)})
	}
	if len(clusters) == 1 {
		if out, done := f.formed(now, clusters[0]); done {
			return out
		}
	}
	if err := f.differing(); err != nil {
		return f.end("", refuse{err})
	}
	switch {
	case f.state.Granted == nil:
		return f.propose(now, nil)
	case f.own():
		return f.pursue(now)
	default:
		return f.inquire(now)
	}
}

// clusters returns the ids of the clusters in view.
func (f *formation) clusters() []string {
	var ids []string
	for _, c := range f.view {
		if c.cluster != "" && !slices.Contains(ids, c.cluster) {
			ids = append(ids, c.cluster)
		}
	}
	slices.Sort(ids)
	return ids
}

func (f *formation) twoClusters(ids []string) error {
	var names []string
	for _, id := range ids {
		i := slices.IndexFunc(f.view, func(c candidate) bool { return c.cluster == id })
		names = append(names, fmt.Sprintf("%s is of %s", f.view[i].name(), id))
	}
	return &metadata.Error{
		Kind: metadata.ErrClusterMismatch,
		What: "this broker has no cluster, and its peers are of two",
		Why:  strings.Join(names, ", "),
		Fix:  "name brokers of one cluster in --join",
	}
}

// formed handles a view with a cluster in it: it is joined instead of forming another. A grant that may have been used
// holds this broker back: it must first hear from the proposer.
func (f *formation) formed(now time.Time, cluster string) (out []action, done bool) {
	switch {
	case f.state.Granted == nil:
		return f.end(cluster, join{cluster: cluster}), true
	case f.state.Granted.Cluster == cluster:
		return f.decided(), true // nobody could know the id of a cluster that was not decided on
	case f.own():
		f.release()
		return append([]action{persist{f.state}}, f.end(cluster, join{cluster: cluster})...), true
	}
	return f.inquire(now), true
}

// differing refuses to go on among brokers that were told different numbers.
func (f *formation) differing() error {
	if f.self.expect == 0 {
		return nil
	}
	for _, c := range f.view {
		if c.cluster == "" && c.expect != 0 && c.expect != f.self.expect {
			return &metadata.Error{
				Kind: metadata.ErrInvalidConfig,
				What: "the brokers that should form a cluster disagree about its size",
				Why:  fmt.Sprintf("%s has --bootstrap-expect %d, %s has %d", f.self.name(), f.self.expect, c.name(), c.expect),
				Fix:  "start all of them with the same number; one that shall only join leaves --bootstrap-expect out",
			}
		}
	}
	return nil
}

// candidates returns those who could form a cluster now, by address, this broker included.
func (f *formation) candidates() []*candidate {
	if f.self.expect == 0 || f.self.joining {
		return nil
	}
	all := []*candidate{&f.self}
	for i := range f.view {
		c := &f.view[i]
		if c.cluster == "" && !c.joining && c.expect == f.self.expect {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, byAddress)
	return all
}

// propose makes a proposal if it is this broker's turn. before is put in front of the actions.
func (f *formation) propose(now time.Time, before []action) []action {
	all := f.candidates()
	if len(all) < f.self.expect || len(all) == 0 || all[0] != &f.self {
		return before
	}
	all = all[:f.self.expect]
	p := &proposal{ID: f.newID(), Cluster: f.newRef(), Proposer: f.self.directory, Number: f.state.Number + 1}
	ids, err := nodeIDs(all)
	if err != nil {
		return append(before, f.end("", refuse{err})...)
	}
	for i, c := range all {
		p.Members = append(p.Members, proposed{Directory: c.directory, Node: ids[i], Gossip: c.gossip, Address: c.address})
	}
	if !f.covers(p) {
		return before
	}
	f.forget()
	f.state.Granted, f.state.Number = p, p.Number
	return append(append(before, persist{f.state}), f.pursue(now)...)
}

// nodeIDs gives out ids from 1 in the order of the addresses, around those that were asked for.
func nodeIDs(all []*candidate) ([]metadata.BrokerID, error) {
	taken := map[metadata.BrokerID]*candidate{}
	for _, c := range all {
		if c.node < 0 {
			continue
		}
		if other := taken[c.node]; other != nil {
			return nil, &metadata.Error{
				Kind: metadata.ErrDuplicateBroker,
				What: fmt.Sprintf("%s and %s both have node.id=%d", other.name(), c.name(), c.node),
				Why:  "each broker of a cluster needs an id of its own",
				Fix:  "set another node.id on one of them, or leave node.id out: ids are then given in the order of the addresses",
			}
		}
		taken[c.node] = c
	}
	ids := make([]metadata.BrokerID, len(all))
	next := metadata.BrokerID(1)
	for i, c := range all {
		if ids[i] = c.node; c.node >= 0 {
			continue
		}
		for taken[next] != nil {
			next++
		}
		ids[i], taken[next] = next, c
	}
	return ids, nil
}

// covers says whether a proposal has more than half of the brokers on this broker's join list.
func (f *formation) covers(p *proposal) bool {
	inside := 0
	for _, seed := range f.seeds {
		if slices.ContainsFunc(p.Members, func(m proposed) bool { return slices.Contains(seed, m.Gossip) }) {
			inside++
		}
	}
	return 2*inside > len(f.seeds) || len(f.seeds) == 0
}

// pursue asks those who have not granted the own proposal yet, and gives it up if it can't be reached any more.
func (f *formation) pursue(now time.Time) []action {
	p := f.state.Granted
	if f.hopeless(now) {
		f.release()
		return f.propose(now, []action{persist{f.state}})
	}
	var out []action
	open := 0
	for _, m := range p.Members {
		if f.granted[m.Directory] {
			continue
		}
		open++
		if last, ok := f.asked[m.Directory]; !ok || now.Sub(last) >= formationAsk {
			f.asked[m.Directory] = now
			out = append(out, askGrant{m})
		}
	}
	if open > 0 {
		return out
	}
	f.state.Decided = true
	return append([]action{persist{f.state}}, f.decided()...)
}

// hopeless says whether a broker of the own proposal has been out of sight for long while another set could be proposed.
func (f *formation) hopeless(now time.Time) bool {
	all := f.candidates()
	sees := func(m proposed) bool {
		return slices.ContainsFunc(all, func(c *candidate) bool { return c.directory == m.Directory })
	}
	lacking := slices.ContainsFunc(f.state.Granted.Members, func(m proposed) bool { return !sees(m) })
	if !lacking || len(all) < f.self.expect {
		f.missing = time.Time{}
		return false
	}
	if f.missing.IsZero() {
		f.missing = now
	}
	return now.Sub(f.missing) >= formationMissing
}

// release lets the grant go.
func (f *formation) release() {
	f.state.Granted = nil
	f.forget()
}

// inquire asks the proposer of another's proposal what became of it.
func (f *formation) inquire(now time.Time) []action {
	if !f.fate.IsZero() && now.Sub(f.fate) < formationAsk {
		return nil
	}
	f.fate = now
	return []action{askFate{*f.state.Granted}}
}

// decided ends the formation with the granted proposal.
func (f *formation) decided() []action {
	p := *f.state.Granted
	var out []action
	if !f.state.Decided {
		f.state.Decided = true
		out = append(out, persist{f.state})
	}
	if f.own() {
		return append(out, f.end(p.Cluster, bootstrap{p})...)
	}
	return append(out, f.end(p.Cluster, take{p})...)
}

func (f *formation) end(cluster string, last action) []action {
	f.over, f.cluster = true, cluster
	return []action{last}
}

// grantAsked answers another's request to grant p. The answer must not leave before the actions are carried out.
func (f *formation) grantAsked(now time.Time, p proposal) (answer, []action) {
	held := f.state.Granted
	switch {
	case p.check() != nil:
		return answer{Refusal: p.check().Error()}, nil
	case held != nil && held.ID == p.ID:
		return answer{Granted: true}, nil // again: the first answer was lost
	case f.over, f.state.Decided, f.state.Joined != nil:
		return answer{Cluster: f.cluster, Held: held, Refusal: "it has a cluster"}, nil
	case p.member(f.self.directory) == nil:
		return answer{Refusal: "this broker's directory is not part of it"}, nil
	case f.self.expect == 0 || f.self.joining:
		return answer{Refusal: "this broker only joins, it has no --bootstrap-expect"}, nil
	case len(p.Members) != f.self.expect:
		return answer{Refusal: fmt.Sprintf("it has %d brokers, this one has --bootstrap-expect %d", len(p.Members), f.self.expect)}, nil
	case !f.covers(&p):
		return answer{Refusal: "it lacks half of the brokers in this one's --join"}, nil
	case held == nil:
	case held.Proposer == p.Proposer:
		if p.Number <= held.Number {
			return answer{Held: held}, nil // an old request that came late
		}
		// The proposer keeps one proposal at a time: the older is given up.
	case f.own() && p.before(held):
		// Ours gives way.
	default:
		return answer{Held: held}, nil
	}
	f.forget()
	f.state.Granted = &p
	f.fate = now // the proposer will not know before it has the answer
	return answer{Granted: true}, []action{persist{f.state}}
}

// grantAnswered takes the answer of a broker that was asked to grant the proposal of that id.
func (f *formation) grantAnswered(now time.Time, id, from metadata.DirectoryID, a answer) []action {
	if f.over || !f.own() || f.state.Granted.ID != id || f.state.Granted.member(from) == nil {
		return nil // of a proposal that was given up
	}
	switch {
	case a.Granted:
		f.granted[from] = true
		return f.pursue(now)
	case a.Held != nil && a.Held.check() == nil && a.Held.before(f.state.Granted):
		f.release()
		return []action{persist{f.state}}
	}
	return nil // asked again at its time; a cluster shows in the view
}

// fateAsked says what became of a proposal of this broker.
func (f *formation) fateAsked(p proposal) fate {
	held := f.state.Granted
	switch {
	case p.Proposer != f.self.directory:
		return fatePending // not ours to say
	case held == nil || held.ID != p.ID:
		return fateAbandoned // one proposal is kept at a time, and this one is not it
	case f.state.Decided:
		return fateDecided
	}
	return fatePending
}

// fateAnswered takes a proposer's word on the proposal of that id.
func (f *formation) fateAnswered(now time.Time, id metadata.DirectoryID, what fate) []action {
	if f.over || f.state.Granted == nil || f.state.Granted.ID != id || f.own() {
		return nil
	}
	switch what {
	case fateDecided:
		return f.decided()
	case fateAbandoned:
		f.release()
		return append([]action{persist{f.state}}, f.tick(now)...)
	}
	return nil
}
