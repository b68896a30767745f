package console

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/metadata"
)

// What a broker is doing, the first that applies.
const (
	StatusDecommissioning = "decommissioning"
	StatusFenced          = "fenced"
	StatusStopping        = "stopping"
	StatusMaintenance     = "maintenance"
	StatusRunning         = "running"
)

// BrokerInfo is one registered broker.
type BrokerInfo struct {
	ID          int32          `json:"id" doc:"broker id"`
	Status      string         `json:"status" doc:"running; maintenance; stopping; fenced (no contact, or not ready yet); decommissioning"`
	Fenced      bool           `json:"fenced" doc:"whether it leads nothing and is in no ISR"`
	Maintenance bool           `json:"maintenance" doc:"whether it is to lead nothing"`
	Removing    bool           `json:"decommissioning" doc:"whether its replicas are being moved away for good"`
	Controller  bool           `json:"controller" doc:"whether it is the controller"`
	Rack        string         `json:"rack" doc:"empty when it has none"`
	Version     string         `json:"version" doc:"software version"`
	Listeners   []ListenerInfo `json:"listeners" doc:"where clients connect"`
	Peer        string         `json:"peer_address" doc:"where other brokers connect; empty when it is alone"`
	Epoch       int64          `json:"epoch" doc:"grows with each registration"`
	Incarnation string         `json:"incarnation" doc:"random for each start of its process"`
	Leaders     int            `json:"leaders" doc:"partitions it leads"`
	Preferred   int            `json:"preferred" doc:"partitions it should lead: it is their first replica"`
	Replicas    int            `json:"replicas" doc:"partitions it has, those on their way to it included"`
	OutOfSync   int            `json:"out_of_sync" doc:"partitions it has and is not in sync with"`
	OfflineDirs int            `json:"offline_log_dirs" doc:"log directories that failed"`
	MinLevel    int            `json:"min_feature_level" doc:"lowest feature level that it knows"`
	MaxLevel    int            `json:"max_feature_level" doc:"highest feature level that it knows"`
}

// ListenerInfo is one advertised address.
type ListenerInfo struct {
	Name     string `json:"name" doc:"as in listeners"`
	Address  string `json:"address" doc:"host:port"`
	Protocol string `json:"protocol" doc:"PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"`
}

// Maintenance is how far a broker is with handing over what it leads.
type Maintenance struct {
	Broker  int32 `json:"broker" doc:"broker id"`
	Enabled bool  `json:"enabled" doc:"whether maintenance is on"`
	Leaders int   `json:"leaders" doc:"partitions it still leads"`
	// Stuck partitions are led by it because nobody else can.
	Stuck int  `json:"leaders_stuck" doc:"of those, how many no other replica can lead now"`
	Done  bool `json:"done" doc:"whether maintenance is on and all that can be led elsewhere is"`
}

// Decommission is how far a broker is with giving its replicas away.
type Decommission struct {
	Broker     int32    `json:"broker" doc:"broker id"`
	Removing   bool     `json:"decommissioning" doc:"whether it was ordered"`
	Replicas   int      `json:"replicas" doc:"partitions it still has"`
	Leaders    int      `json:"leaders" doc:"partitions it still leads"`
	Moving     int      `json:"moving" doc:"of its partitions, how many are on their way to another broker"`
	Voter      bool     `json:"voter" doc:"whether it votes in the quorum"`
	Done       bool     `json:"done" doc:"whether it was ordered and no replica is left"`
	Gone       bool     `json:"gone" doc:"whether the broker is out of the cluster"`
	Stranded   []string `json:"stranded" doc:"partitions that have nowhere to go, 100 at most"`
	StrandedOf int      `json:"stranded_total" doc:"how many they are"`
	Why        string   `json:"why" doc:"why they have nowhere to go; empty when there are none"`
	Fix        string   `json:"fix" doc:"what mends that"`
}

// maxStranded bounds the list in Decommission.
const maxStranded = 100

func getBrokers(c *call) (any, error) {
	im := c.image()
	out := []BrokerInfo{}
	index := map[metadata.BrokerID]int{}
	for _, b := range im.Brokers() {
		index[b.ID] = len(out)
		out = append(out, brokerInfo(im, b))
	}
	for t := range im.Topics() {
		for _, p := range t.Partitions {
			for n, r := range p.Replicas {
				i, ok := index[r]
				if !ok {
					continue
				}
				out[i].Replicas++
				if n == 0 {
					out[i].Preferred++
				}
				if p.Leader == r {
					out[i].Leaders++
				}
				if !slices.Contains(p.ISR, r) {
					out[i].OutOfSync++
				}
			}
		}
	}
	return out, nil
}

// brokerInfo describes a broker but for the numbers of its partitions.
func brokerInfo(im *metadata.Image, b *metadata.Broker) BrokerInfo {
	info := BrokerInfo{
		ID: int32(b.ID), Status: statusText(b), Fenced: b.Fenced, Maintenance: b.Draining, Removing: b.Removing, Controller: im.ControllerID() == b.ID,
		Rack: b.Rack, Version: b.Version, Listeners: []ListenerInfo{}, Peer: b.PeerAddress, Epoch: b.Epoch, Incarnation: hex.EncodeToString(b.Incarnation[:]),
		OfflineDirs: len(b.Offline), MinLevel: int(b.MinFeatureLevel), MaxLevel: int(b.MaxFeatureLevel),
	}
	for _, l := range b.Listeners {
		info.Listeners = append(info.Listeners, ListenerInfo{l.Name, net.JoinHostPort(l.Host, strconv.Itoa(int(l.Port))), l.Protocol})
	}
	return info
}

func statusText(b *metadata.Broker) string {
	switch {
	case b.Fenced && !b.Leaving:
		return StatusFenced
	case b.Leaving:
		return StatusStopping
	case b.Removing:
		return StatusDecommissioning
	case b.Draining:
		return StatusMaintenance
	}
	return StatusRunning
}

func getBroker(c *call) (any, error) {
	b, err := c.broker()
	if err != nil {
		return nil, err
	}
	all, err := getBrokers(c)
	if err != nil {
		return nil, err
	}
	for _, info := range all.([]BrokerInfo) {
		if info.ID == int32(b.ID) {
			return info, nil
		}
	}
	return nil, unknownBroker(c.image(), b.ID) // it went in between
}

// deleteBroker forgets a broker and waits until it is out of the quorum. The controller does both by itself once a
// decommission is done, so either may have happened.
func deleteBroker(c *call) (any, error) {
	id, err := c.brokerID()
	if err != nil {
		return nil, err
	}
	b := c.image().Broker(id)
	if b == nil && c.image().Departed(id) {
		return c.leaveQuorum(id)
	}
	if b == nil {
		return nil, unknownBroker(c.image(), id)
	}
	if d := decommission(c.image(), b, nil); d.Replicas > 0 {
		return nil, &metadata.Error{
			Kind: metadata.ErrPolicyViolation, What: fmt.Sprintf("broker %d cannot be forgotten", b.ID), Why: fmt.Sprintf("it still has %d replicas", d.Replicas),
			Fix: fmt.Sprintf("millrace cluster brokers decommission %d --wait   moves them away first", b.ID),
		}
	}
	if !b.Fenced && !b.Removing {
		return nil, &metadata.Error{
			Kind: metadata.ErrPolicyViolation, What: fmt.Sprintf("broker %d cannot be forgotten", b.ID), Why: "it runs, and nobody has asked to decommission it",
			Fix: fmt.Sprintf("millrace cluster brokers decommission %d --wait", b.ID),
		}
	}
	if err := c.Cluster.UnregisterBroker(c.ctx, id); err != nil && !errors.Is(err, metadata.ErrUnknownBroker) {
		return nil, err
	}
	return c.leaveQuorum(id)
}

// leaveQuorum waits until a removed broker is out of the quorum.
func (c *call) leaveQuorum(id metadata.BrokerID) (any, error) {
	q, err := c.Quorum.Quorum(c.ctx)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(q.Servers, func(s QuorumServer) bool { return s.Broker == int32(id) }) {
		if err := c.Quorum.RemoveServer(c.ctx, id); err != nil {
			return nil, err
		}
	}
	return Done{true}, nil
}

func getMaintenance(c *call) (any, error) {
	b, err := c.broker()
	if err != nil {
		return nil, err
	}
	return maintenance(c.image(), b.ID), nil
}

func maintenance(im *metadata.Image, id metadata.BrokerID) Maintenance {
	m := Maintenance{Broker: int32(id)}
	if b := im.Broker(id); b != nil {
		m.Enabled = b.Draining
	}
	for t := range im.Topics() {
		for _, p := range t.Partitions {
			if p.Leader != id {
				continue
			}
			m.Leaders++
			if !slices.ContainsFunc(p.ISR, func(r metadata.BrokerID) bool {
				b := im.Broker(r)
				return r != id && b != nil && !b.Fenced && !b.Draining && !b.Leaving
			}) {
				m.Stuck++
			}
		}
	}
	m.Done = m.Enabled && m.Leaders == m.Stuck
	return m
}

func setMaintenance(c *call, on bool) (any, error) {
	b, err := c.broker()
	if err != nil {
		return nil, err
	}
	if err := c.Cluster.SetMaintenance(c.ctx, b.ID, on); err != nil {
		return nil, err
	}
	return maintenance(c.image(), b.ID), nil
}

func putMaintenance(c *call) (any, error)    { return setMaintenance(c, true) }
func deleteMaintenance(c *call) (any, error) { return setMaintenance(c, false) }

func getDecommission(c *call) (any, error) {
	id, err := c.brokerID()
	if err != nil {
		return nil, err
	}
	b := c.image().Broker(id)
	if b == nil && c.image().Departed(id) { // the controller has finished it
		return Decommission{Broker: int32(id), Removing: true, Done: true, Gone: true, Stranded: []string{}}, nil
	}
	if b == nil {
		return nil, unknownBroker(c.image(), id)
	}
	return decommission(c.image(), b, c.quorumOrNil()), nil
}

// quorumOrNil is for answers that say less without the quorum, and are worth having all the same.
func (c *call) quorumOrNil() *QuorumStatus {
	q, err := c.Quorum.Quorum(c.ctx)
	if err != nil {
		return nil
	}
	return &q
}

func decommission(im *metadata.Image, b *metadata.Broker, q *QuorumStatus) Decommission {
	d := Decommission{Broker: int32(b.ID), Removing: b.Removing, Stranded: []string{}}
	for t := range im.Topics() {
		for _, p := range t.Partitions {
			if !slices.Contains(p.Replicas, b.ID) {
				continue
			}
			d.Replicas++
			if p.Leader == b.ID {
				d.Leaders++
			}
			if slices.Contains(p.Removing, b.ID) {
				d.Moving++
			}
		}
	}
	if q != nil {
		d.Voter = slices.ContainsFunc(q.Servers, func(s QuorumServer) bool { return s.Broker == int32(b.ID) && s.Voter })
	}
	d.Done = d.Removing && d.Replicas == 0
	stuck, others := stranded(im, b.ID)
	if len(stuck) == 0 {
		return d
	}
	d.StrandedOf = len(stuck)
	var topics []string
	least := stuck[0].replicas
	for i, p := range stuck {
		if i < maxStranded {
			d.Stranded = append(d.Stranded, p.String())
		}
		if !slices.Contains(topics, p.Topic) {
			topics = append(topics, p.Topic)
		}
		least = min(least, p.replicas)
	}
	have := "has"
	if len(stuck) > 1 {
		have = "have"
	}
	d.Why = fmt.Sprintf("%s %s %s and %s alive", some(d.Stranded, len(stuck), 3), have, count(least, "replica"), are(others))
	d.Fix = "millrace start … --join HOST   on a new machine"
	if others > 0 {
		d.Fix += fmt.Sprintf(", or   millrace topic alter %s --replicas %d", strings.Join(topics[:min(len(topics), 5)], " "), others)
	}
	return d
}

// some lists the first names of a list, and how many there are beside.
func some(names []string, total, shown int) string {
	shown = min(shown, len(names))
	text := strings.Join(names[:shown], ", ")
	if total > shown {
		text += fmt.Sprintf(" and %d more", total-shown)
	}
	return text
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// are says how many other brokers there are.
func are(n int) string {
	switch n {
	case 0:
		return "no other broker is"
	case 1:
		return "only 1 other broker is"
	}
	return fmt.Sprintf("only %d other brokers are", n)
}

// postDecommission refuses what could never end: a broker whose partitions have nowhere to go would be neither here nor
// gone.
func postDecommission(c *call) (any, error) {
	b, err := c.broker()
	if err != nil {
		return nil, err
	}
	if d := decommission(c.image(), b, nil); d.StrandedOf > 0 {
		return nil, &metadata.Error{
			Kind: metadata.ErrPolicyViolation, What: fmt.Sprintf("broker %d cannot be decommissioned: %s nowhere to go", b.ID, has(d.StrandedOf, "partition")), Why: d.Why, Fix: d.Fix,
		}
	}
	return orderDecommission(c, b, true)
}

func has(n int, what string) string {
	if n == 1 {
		return "1 " + what + " has"
	}
	return fmt.Sprintf("%d %ss have", n, what)
}

func postRecommission(c *call) (any, error) {
	b, err := c.broker()
	if err != nil {
		return nil, err
	}
	return orderDecommission(c, b, false)
}

func orderDecommission(c *call, b *metadata.Broker, on bool) (any, error) {
	if err := c.Cluster.Decommission(c.ctx, b.ID, on); err != nil {
		return nil, err
	}
	im := c.image()
	now := im.Broker(b.ID)
	if now == nil {
		return nil, unknownBroker(im, b.ID)
	}
	return decommission(im, now, c.quorumOrNil()), nil
}

func getSafeToStop(c *call) (any, error) {
	b, err := c.broker()
	if err != nil {
		return nil, err
	}
	reasons := stopReasons(c.image(), b.ID, c.minISR, c.quorumOrNil())
	return healthOf("safe-to-stop", reasons), nil
}
