package broker

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/metadata/membership"
	"github.com/millrace/millrace/transport/peer"
)

// Calls between brokers before, and while, one has a cluster.
const (
	methodGrant = "formation.grant" // proposal → answer
	methodFate  = "formation.fate"  // proposal → fate
	methodJoin  = "formation.join"  // joinRequest → joined
	methodEnter = "formation.enter" // metadata.Server → nothing
	// methodOpened asks whether a broker has opened its metadata, so that it can vote: nothing → bool.
	methodOpened = "formation.opened"

	// formationCall bounds one of them.
	formationCall = 2 * time.Second
	// progressEvery is how often somebody who waits is told that nothing has changed.
	progressEvery = 5 * time.Second
)

// forming runs the step core: it feeds it with gossip and answers, and carries out what it says.
type forming struct {
	b    *Broker
	ctx  context.Context // ends with the broker
	stop context.CancelFunc
	asks sync.WaitGroup

	mu struct {
		sync.Mutex
		core   *formation
		answer map[netip.AddrPort]string // why a broker does not grant, for people
	}
	outcome chan action // the last action; has room for it
}

func newForming(b *Broker, core *formation) *forming {
	f := &forming{b: b, outcome: make(chan action, 1)}
	f.ctx, f.stop = context.WithCancel(context.Background())
	f.mu.core = core
	f.mu.answer = map[netip.AddrPort]string{}
	return f
}

// close ends the questions under way.
func (f *forming) close() {
	f.stop()
	f.asks.Wait()
}

// step lets the core do something and carries out what it wants, in order, before anything else happens to it: a grant is
// on disk before the answer leaves (M18).
func (f *forming) step(do func(core *formation, now time.Time) []action) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.carryOutLocked(do(f.mu.core, time.Now()))
}

func (f *forming) carryOutLocked(actions []action) error {
	for _, a := range actions {
		switch a := a.(type) {
		case persist:
			if err := writeFormation(f.b.cfg.DataDir, a.state); err != nil {
				f.b.fail("the data directory "+f.b.cfg.DataDir, err)
				return err
			}
		case askGrant:
			p := *f.mu.core.state.Granted
			f.asks.Go(func() { f.askGrant(p, a.to) })
		case askFate:
			f.asks.Go(func() { f.askFate(a.of) })
		default:
			f.outcome <- a
		}
	}
	return nil
}

// call makes one call and reads its JSON answer.
func (f *forming) call(address, method string, in, out any) error {
	ctx, cancel := context.WithTimeout(f.ctx, formationCall)
	defer cancel()
	return callJSON(ctx, f.b.peers, address, method, in, out)
}

func callJSON(ctx context.Context, peers *peer.Peers, address, method string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("encode %s: %w", method, err)
	}
	reply, err := peers.Call(ctx, address, method, body)
	if err != nil {
		return err
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(reply, out); err != nil {
		return fmt.Errorf("read the answer to %s of %s: %w", method, address, err)
	}
	return nil
}

func (f *forming) askGrant(p proposal, to proposed) {
	var a answer
	err := f.call(to.Address, methodGrant, p, &a)
	why := a.Refusal
	switch {
	case err != nil:
		why = oneLine(err.Error())
	case a.Held != nil:
		if m := a.Held.proposerOf(); m != nil {
			why = "has granted a proposal of " + m.Gossip.String()
		}
	}
	_ = f.step(func(core *formation, now time.Time) []action {
		f.mu.answer[to.Gossip] = why
		if err != nil {
			return nil
		}
		return core.grantAnswered(now, p.ID, to.Directory, a)
	})
}

func (f *forming) askFate(p proposal) {
	var what fate
	proposer := p.proposerOf()
	err := f.call(proposer.Address, methodFate, p, &what)
	_ = f.step(func(core *formation, now time.Time) []action {
		f.mu.answer[proposer.Gossip] = ""
		if err != nil {
			f.mu.answer[proposer.Gossip] = oneLine(err.Error())
			return nil
		}
		return core.fateAnswered(now, p.ID, what)
	})
}

// serve answers the others' questions, for as long as the broker runs.
func (f *forming) serve() {
	handle(f.b.peers, methodGrant, func(_ context.Context, p proposal) (a answer, err error) {
		err = f.step(func(core *formation, now time.Time) []action {
			var actions []action
			a, actions = core.grantAsked(now, p)
			return actions
		})
		return a, err
	})
	handle(f.b.peers, methodFate, func(_ context.Context, p proposal) (what fate, err error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.mu.core.fateAsked(p), nil
	})
	handle(f.b.peers, methodOpened, func(context.Context, struct{}) (bool, error) { return f.b.metadataStore.Load() != nil, nil })
	handle(f.b.peers, methodJoin, f.b.serveJoin)
	handle(f.b.peers, methodEnter, func(ctx context.Context, s metadata.Server) (struct{}, error) {
		store := f.b.member.Load()
		if store == nil {
			return struct{}{}, f.b.notYetMember()
		}
		return struct{}{}, store.AddServer(ctx, s)
	})
}

// handle registers a receiver of JSON calls.
func handle[In, Out any](peers *peer.Peers, method string, do func(ctx context.Context, in In) (Out, error)) {
	peers.Handle(method, func(ctx context.Context, _ peer.From, body []byte) ([]byte, error) {
		var in In
		if err := json.Unmarshal(body, &in); err != nil {
			return nil, fmt.Errorf("%w: read a call of %s: %w", metadata.ErrInvalidRequest, method, err)
		}
		out, err := do(ctx, in)
		if err != nil {
			return nil, err
		}
		return json.Marshal(out)
	})
}

func (b *Broker) notYetMember() error {
	return &metadata.Error{Kind: metadata.ErrBusy, What: "this broker is no member of a cluster yet", Why: "it is " + cmpOr(b.Phase(), "starting"), Fix: "try again, or ask another broker"}
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// joinRequest is how a broker without a cluster asks for a place in one.
type joinRequest struct {
	Directory metadata.DirectoryID `json:"directory"`
	Want      metadata.BrokerID    `json:"want"` // -1 = any
	Replace   bool                 `json:"replace,omitempty"`
}

func (b *Broker) serveJoin(ctx context.Context, r joinRequest) (joined, error) {
	store := b.member.Load()
	if store == nil {
		return joined{}, b.notYetMember()
	}
	id, err := store.AssignBrokerID(ctx, r.Directory, r.Want, r.Replace)
	if err != nil {
		return joined{}, err
	}
	return joined{Cluster: store.Image().ClusterID(), Node: id}, nil
}

// form finds out which cluster this broker belongs to, and which broker of it: what its directory says, else what the
// brokers that it was told to form a cluster with agree on, else what the cluster says that it was told to join.
func (b *Broker) form(ctx context.Context) error {
	if b.peers == nil {
		return nil
	}
	if b.meta != nil {
		return b.checkNeighbours(ctx)
	}
	if !b.cfg.forms() {
		b.setIdentity("", b.nodeID) // a cluster of one: its id comes with the metadata
		return nil
	}
	last, err := b.awaitOutcome(ctx)
	if err != nil {
		return err
	}
	switch last := last.(type) {
	case refuse:
		return last.err
	case bootstrap:
		b.takePlace(last.proposal)
		b.bootstrap = last.proposal.Members
	case take:
		b.takePlace(last.proposal)
	case join:
		return b.joinCluster(ctx, last.cluster)
	}
	return b.tellGossip()
}

// takePlace makes this broker the one that the proposal says.
func (b *Broker) takePlace(p proposal) {
	b.nodeID = p.member(b.dir.ID()).Node
	b.clusterID = p.Cluster
	b.setIdentity(p.Cluster, b.nodeID)
	b.logger.Info("cluster agreed on", "cluster", p.Cluster, "brokers", len(p.Members), "node", b.nodeID)
}

// awaitOutcome drives the formation until it is decided, and says what it waits for.
func (b *Broker) awaitOutcome(ctx context.Context) (action, error) {
	tick := time.NewTicker(formationAsk / 2)
	defer tick.Stop()
	var told string
	var toldAt time.Time
	began := time.Now()
	for {
		if err := b.forming.step(func(core *formation, now time.Time) []action {
			return core.see(now, b.candidates(), b.seedAddresses())
		}); err != nil {
			return nil, err
		}
		select {
		case last := <-b.forming.outcome:
			return last, nil
		default:
		}
		what := b.waitingFor()
		b.enter(what)
		// The first lines wait a moment: brokers that are started together need no explanation.
		if now := time.Now(); now.Sub(began) > time.Second && (what != told && now.Sub(toldAt) > time.Second || now.Sub(toldAt) > progressEvery) {
			b.progress(what)
			told, toldAt = what, now
		}
		select {
		case last := <-b.forming.outcome:
			return last, nil
		case <-b.seen:
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// candidates are the others in gossip.
func (b *Broker) candidates() []candidate {
	var all []candidate
	for _, n := range b.neighbours() {
		all = append(all, n.candidate())
	}
	return all
}

func (b *Broker) neighbours() []neighbour {
	var all []neighbour
	for _, m := range b.gossip.Members() {
		if n, err := readNeighbour(m); err == nil {
			all = append(all, n)
		}
	}
	return all
}

// seedAddresses are what the join list stands for. A loopback address is this machine, whatever address it is told to
// others by.
func (b *Broker) seedAddresses() [][]netip.AddrPort {
	var all [][]netip.AddrPort
	self := b.gossip.Self().Addr
	for _, seed := range b.gossip.Seeds() {
		addrs := slices.Clone(seed.Addrs)
		for _, a := range seed.Addrs {
			if a.Addr().IsLoopback() {
				addrs = append(addrs, netip.AddrPortFrom(self.Addr(), a.Port()))
			}
		}
		all = append(all, addrs)
	}
	return all
}

// waitingFor says what a broker without a cluster waits for, in one line.
func (b *Broker) waitingFor() string {
	b.forming.mu.Lock()
	core := b.forming.mu.core
	granted, over := core.state.Granted, core.over
	var held []string
	for addr, why := range b.forming.mu.answer {
		if why != "" {
			held = append(held, fmt.Sprintf("%s: %s", addr, why))
		}
	}
	b.forming.mu.Unlock()
	slices.Sort(held)
	if over {
		return "joining the cluster"
	}
	neighbours := b.neighbours()
	absent := absentSeeds(b.gossip, neighbours)
	expect := b.cfg.BootstrapExpect
	seen := 1
	for _, n := range neighbours {
		if n.cluster == "" && n.expect == expect && !n.joining {
			seen++
		}
	}
	var text string
	switch {
	case granted != nil && granted.Proposer != core.self.directory:
		text = "waiting for " + granted.proposerOf().Gossip.String() + " to form the cluster"
	case granted != nil:
		text = fmt.Sprintf("waiting for %d brokers to agree on the cluster", len(granted.Members)-1)
	case expect == 0:
		text = "waiting for a broker of the cluster to join"
	case seen >= expect:
		text = fmt.Sprintf("waiting for peers: %d of %d seen, the one with the lowest address proposes the cluster", seen, expect)
	default:
		text = fmt.Sprintf("waiting for peers: %d of %d seen", seen, expect)
	}
	if all := append(absent, held...); len(all) > 0 {
		text += " (" + strings.Join(all[:min(len(all), 3)], "; ") + ")"
	}
	if next := nextTry(b.gossip); next > 0 {
		text += fmt.Sprintf(" · next try in %ds", int(next.Seconds())+1)
	}
	return text
}

// absentSeeds names the entries of the join list where nobody answers, with the reason.
func absentSeeds(g *membership.Membership, present []neighbour) []string {
	var out []string
	for _, seed := range g.Seeds() {
		if seed.Err == nil || slices.ContainsFunc(present, func(n neighbour) bool { return slices.Contains(seed.Addrs, n.gossip) }) {
			continue
		}
		out = append(out, seed.Address+" "+gossipReason(seed.Err))
	}
	return out
}

// gossipReason is why gossip reaches nobody at an address. Where somebody took the connection and hung up, or what came back
// can't be read, it is most likely the key.
func gossipReason(err error) string {
	reason := shortReason(err)
	for _, sign := range []string{"EOF", "reset by peer", "crypt", "broken pipe"} {
		if strings.Contains(err.Error(), sign) {
			return reason + ": something answers there and does not gossip with this broker; is millrace.gossip.key the same on both, and is it the port of gossip"
		}
	}
	return reason
}

// shortReason is the last part of an error of the network: "connection refused".
func shortReason(err error) string {
	text := oneLine(err.Error())
	if i := strings.LastIndex(text, ": "); i >= 0 && len(text)-i < 60 {
		return text[i+2:]
	}
	return text
}

func oneLine(text string) string { return strings.ReplaceAll(strings.TrimSpace(text), "\n", "; ") }

func nextTry(g *membership.Membership) time.Duration {
	var next time.Duration
	for _, seed := range g.Seeds() {
		if until := time.Until(seed.Next); !seed.Next.IsZero() && until > 0 && (next == 0 || until < next) {
			next = until
		}
	}
	return next
}

// joinCluster asks the members of a formed cluster for a place, until one gives it.
func (b *Broker) joinCluster(ctx context.Context, cluster string) error {
	state := b.forming.state()
	if state.Joined == nil {
		j, err := b.askToJoin(ctx, cluster)
		if err != nil {
			return err
		}
		// Written down before the first entry of the cluster's metadata arrives: from then on this broker is not empty.
		state = formationState{Joined: &j, Number: state.Number}
		if err := b.forming.step(func(core *formation, _ time.Time) []action {
			core.state = state
			return []action{persist{state}}
		}); err != nil {
			return err
		}
	}
	b.nodeID, b.clusterID = state.Joined.Node, state.Joined.Cluster
	b.entering = true
	if err := b.renewed(); err != nil {
		return err
	}
	b.setIdentity(b.clusterID, b.nodeID)
	b.logger.Info("joining a cluster", "cluster", b.clusterID, "node", b.nodeID)
	return b.tellGossip()
}

func (f *forming) state() formationState {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.core.state
}

func (b *Broker) askToJoin(ctx context.Context, cluster string) (joined, error) {
	request := joinRequest{Directory: b.dir.ID(), Want: b.cfg.NodeID, Replace: b.cfg.Replace >= 0}
	if request.Replace {
		request.Want = b.cfg.Replace
	}
	var j joined
	err := b.untilDone(ctx, "asking the cluster for a place", func(ctx context.Context, address string) error {
		return callJSON(ctx, b.peers, address, methodJoin, request, &j)
	})
	if err == nil && j.Cluster != cluster {
		err = &metadata.Error{
			Kind: metadata.ErrClusterMismatch, What: fmt.Sprintf("asked cluster %s for a place, and cluster %s answered", cluster, j.Cluster),
			Why: "brokers of two clusters are mixed up", Fix: "name brokers of one cluster in --join",
		}
	}
	return j, err
}

// untilDone makes a call to the members of this broker's cluster, one after the other, until one carries it out or
// refuses it for good.
func (b *Broker) untilDone(ctx context.Context, phase string, call func(ctx context.Context, address string) error) error {
	var told string
	for {
		var last error
		for _, n := range b.neighbours() {
			if n.cluster == "" || b.clusterID != "" && n.cluster != b.clusterID {
				continue
			}
			bounded, cancel := context.WithTimeout(ctx, 2*formationCall)
			err := call(bounded, n.address)
			cancel()
			if err == nil {
				return nil
			}
			if final(err) {
				return err
			}
			last = fmt.Errorf("%s: %w", n.name(), err)
		}
		what := phase
		if last != nil {
			what += " (" + oneLine(last.Error()) + ")"
		}
		b.enter(what)
		if what != told {
			b.progress(what)
			told = what
		}
		select {
		case <-b.seen:
		case <-time.After(formationAsk):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// final says whether trying again can't help.
func final(err error) bool {
	for _, kind := range []error{
		metadata.ErrDuplicateBroker, metadata.ErrRemoved, metadata.ErrInvalidRequest, metadata.ErrPolicyViolation, metadata.ErrClusterMismatch, metadata.ErrUnknownBroker,
	} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// checkNeighbours looks, before a broker with data goes on, whether the brokers it was told to join are of its cluster.
func (b *Broker) checkNeighbours(ctx context.Context) error {
	b.setIdentity(b.meta.clusterID, b.nodeID)
	b.clusterID = b.meta.clusterID
	if err := b.tellGossip(); err != nil || len(b.cfg.Join) == 0 {
		return err
	}
	deadline := time.NewTimer(neighbourWait)
	defer deadline.Stop()
	for {
		tried := true
		for _, seed := range b.gossip.Seeds() {
			tried = tried && (seed.Addrs != nil || seed.Err != nil)
		}
		if len(b.neighbours()) > 0 {
			return nil // gossip admits only brokers of the own cluster, and empty ones
		}
		if tried {
			return b.foreignError()
		}
		select {
		case <-b.seen:
		case <-time.After(10 * time.Millisecond):
		case <-deadline.C:
			return b.foreignError()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// neighbourWait bounds how long a broker with data looks for others before it opens its metadata.
const neighbourWait = 2 * time.Second

// foreignError is the refusal to work among brokers of another cluster, nil when none was met.
func (b *Broker) foreignError() error {
	met := b.foreign.Load()
	if met == nil {
		return nil
	}
	return dataError(fmt.Sprintf("data belongs to cluster %s, peers are cluster %s", b.meta.clusterID, met.cluster),
		fmt.Sprintf("%s/%s names the first, %s is of the second", b.cfg.DataDir, metaName, met.gossip),
		"--join brokers of "+b.meta.clusterID+", or start with an empty --data to join "+met.cluster)
}

// newClusterID makes the id of a cluster.
func newClusterID() string {
	id := randomID()
	return "millrace-" + base64.RawURLEncoding.EncodeToString(id[:])
}

func randomID() (id metadata.DirectoryID) {
	if _, err := rand.Read(id[:]); err != nil {
		panic("broker: no randomness: " + err.Error()) // crypto/rand never fails
	}
	return id
}
