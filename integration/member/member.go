package member

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Config says who a member is.
type Config struct {
	// Seeds are brokers that know the others; Group is the group's name.
	Seeds []string
	Group string
	// Topics is what it subscribes; Partitions is how many each of them has, for the member that assigns. Without topics it
	// is a member all the same.
	Topics     []string
	Partitions int
	// Session, Rebalance and Heartbeat are the timeouts and the interval; zero stands for the defaults of Kafka's consumer:
	// 45 s, 5 min and 3 s.
	Session, Rebalance, Heartbeat time.Duration
	// Notice is told what happens; nil hears nothing.
	Notice func(Event)
}

// Kind is what happened to a member.
type Kind uint8

const (
	// Told: a heartbeat was answered that the group rebalances.
	Told Kind = iota + 1
	// Synced: the member has its assignment in a generation.
	Synced
	// Beat: a heartbeat was accepted.
	Beat
	// Lost: the coordinator does not know the member any more.
	Lost
	// Moved: the connection broke, or its broker does not coordinate the group any more.
	Moved
)

// Event is something that happened to a member.
type Event struct {
	Kind       Kind
	At         time.Time
	ID         string // the member's
	Generation int32  // of the member, -1 outside any
}

// Member is one member of a classic group. It is for one goroutine.
type Member struct {
	cfg        Config
	conn       *Conn
	unwatch    func() bool // ends the watch of conn over Run's context
	id         string
	generation int32
	in         bool // has synced, and was not told to join again
	nextBeat   time.Time
	// Assigned is how many partitions the member has.
	Assigned int
}

// New returns a member that has not joined yet.
func New(cfg Config) *Member {
	if cfg.Session == 0 {
		cfg.Session = 45 * time.Second
	}
	if cfg.Rebalance == 0 {
		cfg.Rebalance = 5 * time.Minute
	}
	if cfg.Heartbeat == 0 {
		cfg.Heartbeat = 3 * time.Second
	}
	return &Member{cfg: cfg, generation: -1}
}

const (
	// retryAfter is how long a member waits before it asks again: Kafka's retry.backoff.ms.
	retryAfter = 100 * time.Millisecond
	// requestPatience is how long it waits for an answer: Kafka's request.timeout.ms; joinSlack more than the rebalance
	// timeout for that to a join.
	requestPatience = 30 * time.Second
	joinSlack       = 5 * time.Second
)

// Error codes that a member acts on.
const (
	codeLoading         = 14
	codeUnavailable     = 15
	codeNotCoordinator  = 16
	codeGeneration      = 22
	codeUnknownMember   = 25
	codeRebalance       = 27
	codeMemberIDNeeded  = 79
	coordinatorOfGroups = 0
)

// Run is a member until the context ends; then it is gone without a word, as after a crash.
func (m *Member) Run(ctx context.Context) {
	defer m.Drop()
	for ctx.Err() == nil {
		if err := m.Turn(ctx); err != nil {
			m.Drop()
			if ctx.Err() != nil {
				return
			}
			m.notice(Moved)
			pause(ctx, retryAfter)
		}
	}
}

// Turn does what is next: connects, joins, or waits until a heartbeat is due and sends it. An error means that the
// connection is of no use any more.
func (m *Member) Turn(ctx context.Context) error {
	switch {
	case m.conn == nil:
		return m.Connect(ctx)
	case !m.in:
		return m.join(ctx)
	}
	if !pause(ctx, time.Until(m.nextBeat)) {
		return nil
	}
	return m.beat()
}

// Joined reports whether the member has its assignment, and Conn returns its connection to the coordinator.
func (m *Member) Joined() bool { return m.in }

// Conn returns the connection to the coordinator, nil without one. Nothing else may be on its way on it.
func (m *Member) Conn() *Conn { return m.conn }

// Identity returns the id and the generation of the member; "" and -1 outside any group.
func (m *Member) Identity() (id string, generation int32) { return m.id, m.generation }

// NextBeat is when the next heartbeat is due.
func (m *Member) NextBeat() time.Time { return m.nextBeat }

// Rejoin has the member join again with its next Turn, as one that was told of a rebalance.
func (m *Member) Rejoin() { m.in = false }

func (m *Member) notice(k Kind) {
	if m.cfg.Notice != nil {
		m.cfg.Notice(Event{k, time.Now(), m.id, m.generation})
	}
}

// Drop closes the connection to the coordinator, which the next Turn looks for anew.
func (m *Member) Drop() {
	if m.conn != nil {
		m.unwatch()
		_ = m.conn.Close()
		m.conn = nil
	}
}

// Connect finds the coordinator and dials it. The end of the context closes the connection.
func (m *Member) Connect(ctx context.Context) error {
	addr, err := Coordinator(m.cfg.Seeds[rand.IntN(len(m.cfg.Seeds))], m.cfg.Group)
	if err != nil {
		return err
	}
	conn, err := Dial(addr, "member")
	if err != nil {
		return err
	}
	m.conn, m.unwatch = conn, context.AfterFunc(ctx, func() { _ = conn.Close() })
	return nil
}

// Coordinator asks a broker who coordinates a group, and returns that one's address.
func Coordinator(seed, group string) (addr string, err error) {
	all, err := Coordinators(seed, group)
	if err != nil {
		return "", err
	}
	return all[0], nil
}

// Coordinators asks a broker who coordinates each of some groups, and returns their addresses in the same order.
func Coordinators(seed string, groups ...string) (addrs []string, err error) {
	conn, err := Dial(seed, "member")
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.Version, req.CoordinatorType, req.CoordinatorKeys = 4, coordinatorOfGroups, groups
	resp, err := conn.Do(req, 5*time.Second)
	if err != nil {
		return nil, err
	}
	all := resp.(*kmsg.FindCoordinatorResponse).Coordinators
	if len(all) != len(groups) {
		return nil, errMalformed
	}
	for i, c := range all {
		if c.ErrorCode != 0 {
			return nil, fmt.Errorf("find the coordinator of %s: error %d", groups[i], c.ErrorCode)
		}
		addrs = append(addrs, net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port))))
	}
	return addrs, nil
}

// errMoved: the broker does not coordinate the group.
var errMoved = fmt.Errorf("not the coordinator")

// refused acts on an error code of any answer.
func (m *Member) refused(ctx context.Context, code int16) error {
	m.in = false
	switch code {
	case codeLoading:
		m.in = m.generation >= 0
		pause(ctx, retryAfter)
	case codeUnavailable, codeNotCoordinator:
		m.in = m.generation >= 0
		return errMoved
	case codeUnknownMember:
		m.notice(Lost)
		m.id, m.generation = "", -1
	case codeGeneration:
		m.generation = -1
	case codeRebalance, codeMemberIDNeeded:
	default:
		return fmt.Errorf("error code %d", code)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
