package metadata

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// maxAttempts bounds how often an operation is decided anew because another change came between its decision and its
// commit. Each attempt that fails means that somebody else's change got through, so this many in a row take a storm.
const maxAttempts = 32

// controller returns the present lead, or the error that a caller gets who asks a broker that has none. With several
// brokers the request is forwarded before it comes here (D15).
func (s *Store) controller() (*lead, error) {
	if l := s.lead.Load(); l != nil {
		return l, nil
	}
	select {
	case <-s.failed.c:
		return nil, fmt.Errorf("%w: %w", ErrFailed, s.failed.err)
	case <-s.stop:
		return nil, ErrClosed
	default:
	}
	if err := s.diskError(); err != nil {
		return nil, err
	}
	e := &Error{Kind: ErrNotController, What: "this broker is not the controller"}
	if id := s.Image().ControllerID(); id != NoBroker && id != s.cfg.NodeID {
		e.Why, e.Fix = "broker "+id.String()+" is", "ask that broker, or try again"
	} else {
		e.Why, e.Fix = "the metadata quorum has no leader at the moment", "try again in a moment; if it lasts, see that a majority of the voters runs"
	}
	return nil, e
}

// plan is one item of a request under way: decide looks at an Image and makes the command that carries the item out, or
// refuses it, or finds that there is nothing to commit; done takes the outcome.
type plan struct {
	decide func(im *Image) (command, error)
	done   func(value any, err error)
}

// carryOut decides and proposes the plans together, and those again whose decision was overtaken by another change.
// Within one round all are decided on the same Image. What is refused, or needs no command, is answered once this broker has
// proven after the decision that it still leads: one that was paused, or cut off, would tell from an old Image that what
// another controller has created is missing (M9, M12).
func (s *Store) carryOut(ctx context.Context, plans []plan) {
	for attempt := 1; len(plans) > 0; attempt++ {
		l, err := s.controller()
		if err != nil {
			for _, p := range plans {
				p.done(nil, err)
			}
			return
		}
		im := s.Image()
		var commands []command
		var proposed []plan
		var decided []func(proof error)
		for _, p := range plans {
			c, err := p.decide(im)
			if err != nil || c == nil {
				decided = append(decided, func(proof error) {
					if proof != nil {
						err = proof
					}
					p.done(nil, err)
				})
				continue
			}
			commands = append(commands, c)
			proposed = append(proposed, p)
		}
		if len(decided) > 0 {
			proof := s.proveLead(l)
			for _, answer := range decided {
				answer(proof)
			}
		}
		plans = nil
		for i, r := range s.proposeAll(ctx, l.term, commands) {
			if !errors.Is(r.err, ErrStale) {
				proposed[i].done(r.value, r.err)
			} else if attempt < maxAttempts && ctx.Err() == nil {
				plans = append(plans, proposed[i])
			} else {
				proposed[i].done(nil, overtaken(attempt))
			}
		}
	}
}

// maxProofs bounds how many ask at once whether this broker leads. Raft takes 64 such questions before it has looked at
// one, and blocks who asks the next.
const maxProofs = 32

// proveLead asks a majority of the voters whether this broker still leads the term in which it is the controller. What its
// Image held before the call is then the newest that anybody had been told. Raft is asked for what makes it send heartbeats, and
// for the end of a lead; what their answers prove, [witnesses] say. It waits no longer than the lead lasts: raft drops the question
// of one that asks while it shuts down, and answers none while its disk hangs.
func (s *Store) proveLead(l *lead) error {
	select {
	case s.proofs <- struct{}{}:
		defer func() { <-s.proofs }()
	case <-l.gone:
		return ErrNotController
	}
	self, moment := serverID(s.cfg.NodeID, s.cfg.DirectoryID), s.witnesses.now()
	for pause := proofPauseMin; ; {
		if err := endingWith(s.raft.VerifyLeader(), l.gone).Error(); err != nil {
			return fmt.Errorf("%w: %w", ErrNotController, err)
		}
		// This server has voted for no other either, and leads none of the terms that came after.
		if s.raft.CurrentTerm() != l.term || s.lead.Load() != l {
			return ErrNotController
		}
		if s.witnesses.prove(self, l.term, moment, s.raft.GetConfiguration().Configuration().Servers) {
			return nil
		}
		// An answer to an earlier message came in between, or that of a server without a vote.
		select {
		case <-time.After(pause):
			pause = min(2*pause, proofPauseMax)
		case <-l.gone:
			return ErrNotController
		}
	}
}

// A proof of the lead that takes several questions pauses between them: briefly, for what is missing is on its way, and longer where
// a majority seems to be cut off, until raft ends the lead for that.
const (
	proofPauseMin = 100 * time.Microsecond
	proofPauseMax = 20 * time.Millisecond
)

func overtaken(attempts int) error {
	return &Error{
		Kind: ErrStale,
		What: "the change was not made",
		Why:  fmt.Sprintf("each of %d times it was decided on, another change was committed before it", attempts),
		Fix:  "try again; nothing was changed",
	}
}

// effectiveConfig is what the configs of this broker come to, the committed ones above the static ones.
func (s *Store) effectiveConfig(im *Image) map[string]string {
	return BrokerLayers{
		Static:         s.cfg.StaticConfig,
		DynamicDefault: im.BrokerConfig(NoBroker),
		Dynamic:        im.BrokerConfig(s.cfg.NodeID),
	}.Effective()
}

// defaultPartitions is num.partitions.
func defaultPartitions(effective map[string]string) int32 {
	value, err := CheckConfig(ConfigBroker, "num.partitions", effective["num.partitions"])
	if err != nil {
		return 1
	}
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil || n < 1 {
		return 1
	}
	return int32(n)
}

// AllocateProducerIDs reserves a block of producer ids: first … first+count-1. A block is never given out twice, not even
// when its caller dies before using it (P5).
func (s *Store) AllocateProducerIDs(ctx context.Context) (first int64, count int, err error) {
	block, err := call(ctx, s, &opAllocateProducerIDs, none{})
	return block.First, block.Count, err
}

func (s *Store) allocateProducerIDs(ctx context.Context) (block producerIDs, err error) {
	s.allocating.Lock() // two at a time would only make each other stale
	defer s.allocating.Unlock()
	s.carryOut(ctx, []plan{{
		decide: func(im *Image) (command, error) {
			return &allocateProducerIDs{expectedNext: im.st.nextProducerID, count: producerIDBlock}, nil
		},
		done: func(value any, e error) {
			if err = e; err == nil {
				block = producerIDs{First: value.(int64), Count: producerIDBlock}
			}
		},
	}})
	if err != nil {
		return producerIDs{}, fmt.Errorf("allocate producer ids: %w", err)
	}
	return block, nil
}

// producerIDBlock is how many producer ids one allocation covers, as in Kafka (KIP-730).
const producerIDBlock = 1000
