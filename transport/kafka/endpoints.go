package kafka

import (
	"unsafe"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/transport"
)

// endpoint is where clients reach a broker.
type endpoint struct {
	id   metadata.BrokerID
	host string
	port int32
	rack *string // nil: none
}

// endpoints says how the clients of one listener reach the brokers: every answer
// names the advertised address of the listener that the request arrived on, and
// a broker without such a listener does not exist for these clients.
type endpoints struct {
	h        *Handlers
	image    *metadata.Image
	listener *transport.Listener
}

func (h *Handlers) endpoints(image *metadata.Image, conn *transport.Conn) endpoints {
	return endpoints{h: h, image: image, listener: conn.Listener()}
}

// of returns the endpoint of a broker. ok is false when it is not registered,
// fenced, or has no such listener.
func (e endpoints) of(id metadata.BrokerID) (ep endpoint, ok bool) {
	b := e.image.Broker(id)
	if b == nil {
		return endpoint{}, false
	}
	return e.ofBroker(b)
}

func (e endpoints) ofBroker(b *metadata.Broker) (ep endpoint, ok bool) {
	if b.Fenced {
		return endpoint{}, false
	}
	return e.address(b)
}

// address is ofBroker for fenced brokers too.
func (e endpoints) address(b *metadata.Broker) (ep endpoint, ok bool) {
	ep.id = b.ID
	if b.Rack != "" {
		ep.rack = &b.Rack
	}
	if b.ID == e.h.cfg.BrokerID {
		// Our own address comes from the listener itself: it is right even
		// before the registration that carries it has been applied.
		ep.host, ep.port = e.listener.AdvertisedHost(), e.listener.AdvertisedPort()
		return ep, true
	}
	for i := range b.Listeners {
		if b.Listeners[i].Name == e.listener.Name() {
			ep.host, ep.port = b.Listeners[i].Host, b.Listeners[i].Port
			return ep, true
		}
	}
	return endpoint{}, false
}

// all returns the endpoints of all brokers these clients can reach, by id.
func (e endpoints) all() []endpoint {
	brokers := e.image.Brokers()
	eps := make([]endpoint, 0, len(brokers))
	for _, b := range brokers {
		if ep, ok := e.ofBroker(b); ok {
			eps = append(eps, ep)
		}
	}
	return eps
}

// controller is the broker that clients are told to send admin requests to. Any
// will do, as each forwards (D15); what matters is that it is one they can reach
// and never -1 on a healthy cluster.
func (e endpoints) controller() int32 {
	if _, ok := e.of(e.image.ControllerID()); ok {
		return int32(e.image.ControllerID())
	}
	return int32(e.h.cfg.BrokerID)
}

// int32s views broker ids as the wire's type. The result shares the memory of
// ids, which belong to an immutable Image: it must only be read.
func int32s(ids []metadata.BrokerID) []int32 {
	if len(ids) == 0 {
		return nil
	}
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(ids))), len(ids))
}

// leaderHint says who leads a partition and where that broker is, for the hints
// of KIP-951. They are given complete or not at all, and never point back at this
// broker: it has just said that it is not the leader, and a client that trusts the
// hint would come back for as long as the two views differ (trap 15).
func (e endpoints) leaderHint(topic fetchTopic, partition int32) (leader, leaderEpoch int32, ep endpoint, ok bool) {
	t := e.image.TopicByID(topic.id)
	if topic.name != "" {
		t = e.image.Topic(topic.name)
	}
	if t == nil || partition < 0 || int(partition) >= len(t.Partitions) {
		return -1, -1, endpoint{}, false
	}
	p := t.Partitions[partition]
	if p.Leader == metadata.NoBroker || p.Leader == e.h.cfg.BrokerID {
		return -1, -1, endpoint{}, false
	}
	if ep, ok = e.of(p.Leader); !ok {
		return -1, -1, endpoint{}, false
	}
	return int32(p.Leader), p.LeaderEpoch, ep, true
}
