package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
)

const (
	// heartbeatSoon is the pause before the next heartbeat while the broker is fenced, or the last one failed.
	heartbeatSoon = 50 * time.Millisecond
	// suspectEvery is how often the controller compares the registered brokers with those in gossip: the event of a death
	// may have come while there was no controller.
	suspectEvery = 500 * time.Millisecond
	// stopPoll is how often a broker that stops asks whether it may.
	stopPoll = 20 * time.Millisecond
	// controllerWait bounds how long a broker that stops waits for an answer of the controller, which may just be changing.
	controllerWait = 4 * time.Second
	// drainWait bounds how long it waits for its followers.
	drainWait = 10 * time.Second
)

// openSession begins to send heartbeats, and waits for the first answer: it takes the broker out of its fence.
func (b *Broker) openSession(ctx context.Context) error {
	first := make(chan error, 1)
	b.beating.Go(func() { b.heartbeats(first) })
	if b.peers != nil {
		b.beating.Go(b.compareWithGossip)
	}
	select {
	case err := <-first:
		if err != nil {
			b.endLife()
			b.beating.Wait()
		}
		return err
	case <-ctx.Done():
		return nil // stopped while starting
	}
}

// heartbeats tells the controller that this broker lives, until its life ends. first gets nil once it is not fenced.
func (b *Broker) heartbeats(first chan<- error) {
	interval := b.cfg.Metadata.HeartbeatInterval
	serving, lost := false, false
	for b.life.Err() == nil {
		began := b.replicas.Now()
		ctx, cancel := context.WithTimeout(b.life, b.cfg.Metadata.SessionTimeout/2)
		reply, err := b.store.Heartbeat(ctx, b.heartbeat())
		cancel()
		pause := interval
		switch {
		case err == nil:
			if b.peers != nil && !reply.Fenced {
				b.replicas.RenewLease(began + replication.Instant(reply.Lease))
			}
			if lost {
				b.logger.Info("the controller answers again")
			}
			lost = false
			if reply.Fenced {
				pause = heartbeatSoon
			} else if !serving {
				serving = true
				first <- nil
			}
		case b.life.Err() != nil:
			return
		case errors.Is(err, metadata.ErrStaleBrokerEpoch), errors.Is(err, metadata.ErrUnknownBroker):
			b.fail("the registration", b.expelled(err))
			if !serving {
				first <- b.failure()
			}
			return
		default:
			if !lost {
				b.logger.Warn("no answer to a heartbeat", "error", err)
			}
			lost, pause = true, min(interval, 4*heartbeatSoon)
		}
		select {
		case <-time.After(pause):
		case <-b.life.Done():
		}
	}
}

func (b *Broker) heartbeat() metadata.Heartbeat {
	h := metadata.Heartbeat{Broker: b.nodeID, Epoch: b.epoch, Applied: b.replicas.Applied()}
	return h
}

// expelled explains why the controller no longer knows this registration.
func (b *Broker) expelled(err error) error {
	if b.store.Image().Removed(b.dir.ID()) {
		return removedError(b.nodeID)
	}
	if errors.Is(err, metadata.ErrUnknownBroker) {
		return removedError(b.nodeID)
	}
	return dataError(fmt.Sprintf("broker %d was registered by another process", b.nodeID),
		"it has this broker's id, and came later: a copy of the data directory, or --replace",
		"stop one of the two for good; a new broker starts with an empty --data")
}

// compareWithGossip reports, while this broker is the controller, registered brokers that gossip does not see.
func (b *Broker) compareWithGossip() {
	for {
		select {
		case <-time.After(suspectEvery):
		case <-b.life.Done():
			return
		}
		if !b.store.IsController() {
			continue
		}
		alive := map[[16]byte]bool{}
		for _, n := range b.neighbours() {
			alive[n.incarnation] = true
		}
		for _, other := range b.store.Image().Brokers() {
			if other.ID != b.nodeID && !other.Fenced && !alive[other.Incarnation] {
				b.store.Suspect(other.ID, other.Incarnation, "gossip does not see it")
			}
		}
	}
}

// leaveSession stops in good order: records that only this broker has go to its followers, its leaderships to others, the
// controller's work to another controller (R20). It is bounded by ctx, and does what it can.
func (b *Broker) leaveSession(ctx context.Context) error {
	if b.failure() == nil && b.store != nil && b.replicas != nil {
		// Half of the time at most: the requests under way need some too. Brokers that all stop at once wait for each other.
		handing, cancel := context.WithTimeout(ctx, b.cfg.StopTimeout/2)
		err := b.handOver(handing)
		cancel()
		if err != nil {
			b.logger.Warn("stopping without having handed everything over", "error", err)
		}
		b.replicas.Resume() // where nobody else could lead, what was held back is appended here
	}
	b.endLife()
	b.beating.Wait()
	return nil
}

// ask sends one heartbeat of a broker that stops. The Store tries again while there is no controller, for some seconds.
func (b *Broker) ask(ctx context.Context, h metadata.Heartbeat, reply *metadata.HeartbeatReply) error {
	ctx, cancel := context.WithTimeout(ctx, controllerWait)
	defer cancel()
	r, err := b.store.Heartbeat(ctx, h)
	if err == nil && reply != nil {
		*reply = r
	}
	return err
}

// handoverWait bounds the wait for this broker to see that others lead.
const handoverWait = 2 * time.Second

// awaitHandover waits until this broker has acted upon what the controller says, that others lead its partitions, and has
// sent the clients there. Until then it would take in records again that it could never acknowledge.
func (b *Broker) awaitHandover(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, handoverWait)
	defer cancel()
	for {
		im := b.store.Image()
		if im.Movable(b.nodeID) == 0 {
			if err := b.replicas.Await(ctx, im.Version()); err != nil {
				return err
			}
			return b.replicas.HandedOver(ctx)
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (b *Broker) handOver(ctx context.Context) error {
	alone := true
	for _, other := range b.store.Image().Brokers() {
		alone = alone && (other.ID == b.nodeID || other.Fenced)
	}
	if b.peers == nil || alone {
		return nil
	}
	b.enter("handing over")
	// Without a controller nobody can take over, and followers that are gone are never taken out of the ISR: there is
	// nothing to wait for.
	if err := b.ask(ctx, b.heartbeat(), nil); err != nil {
		return fmt.Errorf("no controller to hand over to: %w", err)
	}
	drain, cancel := context.WithTimeout(ctx, drainWait)
	err := b.replicas.Drain(drain)
	cancel()
	if err != nil {
		b.logger.Warn("handing over although followers have not caught up", "error", err)
	}
	var waiting string
	for {
		h := b.heartbeat()
		h.Shutdown = true
		var reply metadata.HeartbeatReply
		err := b.ask(ctx, h, &reply)
		if err == nil && reply.MayStop {
			break
		}
		if err != nil {
			return err
		}
		if reply.Waiting != "" {
			waiting = reply.Waiting
		}
		select {
		case <-time.After(stopPoll):
		case <-ctx.Done():
			return fmt.Errorf("%w (%s)", ctx.Err(), cmpOr(waiting, "the controller did not answer"))
		}
	}
	if err := b.awaitHandover(ctx); err != nil {
		b.logger.Info("stopping before the new leaders were heard of", "error", err)
	}
	if b.store.IsController() {
		if err := b.store.TransferLeadership(ctx, metadata.NoBroker); err != nil {
			b.logger.Info("the controller's lead was not handed over", "error", err)
		}
	}
	return nil
}
