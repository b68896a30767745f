package kafka

import (
	"errors"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/transport"
)

// fetchSlice makes a log.Slice a source of the transport and of the encoder.
type fetchSlice struct {
	log.Slice
	mark fetchMark
}

// FileRange says where the slice lies in its segment, so that the kernel can
// send it from there. What a reader is given is never overwritten: a follower's
// log is truncated above the high watermark only, a leader's never.
func (s *fetchSlice) FileRange() (fd uintptr, offset int64, ok bool) {
	file, offset := s.File()
	if file == nil {
		return 0, 0, false
	}
	fd, ok = file.Fd()
	return fd, offset, ok
}

// read reads every partition once and builds f.parts, the partitions of the
// answer. Then it asks enough, with the record bytes found and whether a
// partition has something else to tell (an error, a diverging epoch): if that says
// no, everything read is released and the caller parks. A code other than
// codeNone is the top-level error of a session that went on without this request.
func (f *fetchCall) read(enough func(bytes int, told bool) bool) (ready bool, code int16) {
	s := f.session
	if s == nil {
		f.order = f.order[:0]
		for i := range f.targets {
			f.order = append(f.order, &f.targets[i])
		}
	} else {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.mu.epoch != f.sessionEpoch {
			return false, codeInvalidFetchSessionEpoch
		}
		f.order = s.orderLocked(f.order[:0])
	}
	bytes, told := f.readAll()
	if len(f.order) > 0 && !enough(bytes, told) {
		f.releaseSlices()
		return false, codeNone
	}
	for i := range f.slices {
		f.doubts.served(f.slices[i].mark)
	}
	if f.doubts.glance.due(f.started) {
		f.h.readers.look(f)
	}
	if s != nil {
		f.incrementLocked()
	} else if f.newSession {
		f.openSession()
	}
	return true, codeNone
}

// readAll reads all partitions of f.order into f.parts and f.slices. The slices do
// not move any more once f.parts points to them.
func (f *fetchCall) readAll() (bytes int, told bool) {
	f.parts = slices.Grow(f.parts[:0], len(f.order))
	f.slices = slices.Grow(f.slices[:0], len(f.order))
	f.brokers, f.beyond = f.brokers[:0], false
	left := max(min(int(f.msg.MaxBytes), f.h.settings.fetchMaxBytes), 0)
	for _, t := range f.order {
		p := newFetchPartition(t.topic, t.partition)
		p.abortedNull = !f.committed
		n, tells := f.readOne(t, &p, left, bytes == 0)
		bytes += n
		left = max(left-n, 0)
		told = told || tells
		f.parts = append(f.parts, p)
	}
	return bytes, told
}

// readOne reads one partition. It returns the record bytes, and whether the
// partition has something to tell beside them.
func (f *fetchCall) readOne(t *fetchTarget, p *fetchPartition, maxBytes int, minOne bool) (n int, tells bool) {
	part, err := f.find(t)
	if err != nil {
		// Kafka's answer about what it does not know has an empty list here, not null.
		p.abortedNull = p.abortedNull && errors.Is(err, replication.ErrNotLeader)
		f.failed(t, p, err)
		return 0, true
	}
	r := f.readRequest(t, max(min(maxBytes, int(t.maxBytes)), 0))
	r.MinOne = minOne
	mark := markOf(part, t.fetchOffset)
	switch f.doubts.last(mark) {
	case mark:
		r.Checked, r.MaxBytes = true, min(r.MaxBytes, doubtBytes)
		mark = mark.checked()
	case mark.checked():
		mark = mark.checked() // it is not that
	case mark.none():
		r.CheckFirst = true // it may have asked on a connection before this one
	}
	res := part.Read(r)
	if res.Err != nil { // all offsets stay -1, out of range included
		f.failed(t, p, f.doubted(t, &res))
		return 0, true
	}
	p.highWatermark, p.lastStableOffset, p.logStartOffset = res.HighWatermark, res.LastStableOffset, res.LogStartOffset
	if res.DivergingEpoch >= 0 {
		p.divergingEpoch, p.divergingOffset = res.DivergingEpoch, res.DivergingEnd
		return 0, true
	}
	if p.preferredReplica = f.preferredReplica(part); p.preferredReplica >= 0 {
		res.Slice.Release()
		return 0, true
	}
	if n = res.Slice.Len(); n == 0 {
		res.Slice.Release()
		return 0, false
	}
	if f.committed {
		p.aborted = res.Aborted
	}
	f.slices = append(f.slices, fetchSlice{res.Slice, mark})
	p.records = &f.slices[len(f.slices)-1]
	return n, false
}

// failed sets the error of a partition, and who leads it instead when that is
// why. A partition that is just being deleted has no leader any more; its reader
// is told that the topic is gone.
func (f *fetchCall) failed(t *fetchTarget, p *fetchPartition, err error) {
	f.endpoints.image = f.h.cfg.Store.Image()
	if errors.Is(err, replication.ErrNotLeader) {
		switch {
		case f.req.Version >= 13 && f.endpoints.image.TopicByID(t.topic.id) == nil:
			err = replication.ErrUnknownTopicID
		case f.req.Version < 13 && f.endpoints.image.Topic(t.topic.name) == nil:
			err = replication.ErrUnknownTopicOrPartition
		}
	}
	p.errorCode = f.error(fetchCode(err))
	if f.req.Version < 16 || p.errorCode != codeNotLeaderOrFollower && p.errorCode != codeFencedLeaderEpoch {
		return
	}
	leader, epoch, ep, ok := f.endpoints.leaderHint(t.topic, t.partition)
	if !ok {
		return
	}
	p.leaderID, p.leaderEpoch = leader, epoch
	for i := range f.brokers {
		if f.brokers[i].NodeID == leader {
			return
		}
	}
	b := kmsg.NewFetchResponseBroker()
	b.NodeID, b.Host, b.Port, b.Rack = leader, ep.host, ep.port, ep.rack
	f.brokers = append(f.brokers, b)
}

// incrementLocked leaves out of the answer what the session's client knows
// already, notes what it is told now, and moves partitions that were served
// records to the end of the session's order.
func (f *fetchCall) incrementLocked() {
	kept := f.parts[:0]
	for i, t := range f.order {
		p := &f.parts[i]
		served := p.records != nil
		if served || p.tells(t) {
			kept = append(kept, *p)
		}
		t.sent(p)
		if served {
			f.session.servedLocked(t)
		}
	}
	f.parts = kept
}

// tells reports whether an answer without records has news for the client.
func (p *fetchPartition) tells(t *fetchTarget) bool {
	return p.errorCode != codeNone || p.divergingEpoch != -1 || p.preferredReplica != -1 ||
		p.highWatermark != t.sentHighWatermark || p.logStartOffset != t.sentLogStartOffset
}

// sent notes what the client is told. After an error it is told everything again.
func (t *fetchTarget) sent(p *fetchPartition) {
	t.sentHighWatermark, t.sentLogStartOffset = p.highWatermark, p.logStartOffset
	if p.errorCode != codeNone {
		t.sentHighWatermark, t.sentLogStartOffset = -1, -1
	}
}

// openSession makes the session that a full request asked for, when there is room.
func (f *fetchCall) openSession() {
	for i := range f.targets {
		f.targets[i].sent(&f.parts[i])
	}
	f.session = f.h.sessions.create(f.targets, f.req.Version >= 13)
}

func (f *fetchCall) releaseSlices() {
	for i := range f.slices {
		f.slices[i].Release()
	}
	f.slices, f.parts = f.slices[:0], f.parts[:0]
}

// response encodes the answer. The transport owns f.spliced and what it points to
// from here on, and gives the call back when all of it is sent.
func (f *fetchCall) response(code int16) transport.Response {
	sessionID := noSession
	if f.session != nil {
		sessionID = f.session.id
	}
	e := &f.encoder
	e.encode(f.req.Version, code, sessionID, f.parts, f.brokers)
	f.pieces = slices.Grow(f.pieces[:0], len(e.cuts)+1)
	at := 0
	for _, cut := range e.cuts {
		f.pieces = append(f.pieces, transport.Piece{Header: e.head[at:cut.end], Body: f.parts[cut.index].records.(*fetchSlice)})
		at = cut.end
	}
	f.pieces = append(f.pieces, transport.Piece{Header: e.head[at:]})
	local, remote := f.park.durations(f.started)
	f.h.metrics.duration(keyFetch, local, remote)
	f.spliced = transport.Spliced{Flexible: e.flexible, Pieces: f.pieces, Released: f.released}
	return transport.Splice(&f.spliced)
}
