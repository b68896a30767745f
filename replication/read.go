package replication

import (
	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/metadata"
)

// NoReplica is the ReplicaID of a consumer.
const NoReplica = metadata.BrokerID(-1)

// ReadRequest asks a partition for record batches. The zero value is not a consumer's: start from [NewReadRequest].
type ReadRequest struct {
	// Offset is the first offset wanted; the first batch returned is the one that holds it and may begin below.
	Offset int64
	// MaxBytes bounds the answer; whole batches only.
	MaxBytes int
	// MinOne returns the first batch even if it is larger than MaxBytes.
	MinOne bool
	// Committed reads below the last stable offset only (read_committed).
	Committed bool
	// CurrentLeaderEpoch is the leader epoch the caller believes in, -1 for any.
	CurrentLeaderEpoch int32
	// FromFollower lets a replica that follows answer, below its own high watermark (KIP-392): for consumers that were
	// sent here. What it does not hold yet is ErrOffsetNotAvailable, not out of range: the leader may have it.
	FromFollower bool
	// LastFetchedEpoch is the leader epoch of the last batch the caller holds, -1 for none (KIP-595).
	LastFetchedEpoch int32
	// Checked looks at the checksum of every batch that is returned: for a caller that may have refused these records. Damage
	// takes this replica offline (L9). CheckFirst looks at the first batch only, and costs a second read of it.
	Checked, CheckFirst bool
	// ReplicaID is the broker that follows, [NoReplica] for consumers. A follower reads up to the log's end, and its
	// Offset is its report of what it holds. Only a handler on the brokers' own listener may set it (S5).
	ReplicaID metadata.BrokerID
	// BrokerEpoch and LogStartOffset are the follower's.
	BrokerEpoch    int64
	LogStartOffset int64
}

// NewReadRequest returns the request of a consumer without epochs.
func NewReadRequest(offset int64, maxBytes int) ReadRequest {
	return ReadRequest{Offset: offset, MaxBytes: maxBytes, CurrentLeaderEpoch: -1, LastFetchedEpoch: -1, ReplicaID: NoReplica, BrokerEpoch: -1, LogStartOffset: -1}
}

// ReadResult is the answer to a ReadRequest.
type ReadResult struct {
	// Slice holds whole batches; empty when there is nothing to read, diverging epochs or an error. The caller releases
	// it.
	Slice log.Slice
	// HighWatermark, LastStableOffset, LogStartOffset and LogEndOffset are those of the time of the read; -1 with an
	// error other than ErrOffsetOutOfRange of package log.
	HighWatermark, LastStableOffset, LogStartOffset, LogEndOffset int64
	// Aborted are, for a request with Committed, the aborted transactions that have records or their marker in what was
	// read, sorted by first offset: the reader is to skip their records, which Slice holds like all others.
	Aborted []log.AbortedTransaction
	// LeaderID and LeaderEpoch are those known here, also with an error.
	LeaderID    metadata.BrokerID
	LeaderEpoch int32
	// DivergingEpoch ≥ 0 says that the caller's log and this one differ: the largest epoch ≤ LastFetchedEpoch here, and
	// the offset at which it ends.
	DivergingEpoch int32
	DivergingEnd   int64
	Err            error
}

// Read returns what a consumer may see: batches below the high watermark. An offset between the high watermark and the
// log's end gives no records and no error; below the log's start or above its end it is ErrOffsetOutOfRange of package
// log.
func (p *Partition) Read(r ReadRequest) ReadResult {
	if r.ReplicaID >= 0 {
		return p.readFollower(r)
	}
	v := p.view.Load()
	res := newReadResult(v)
	if r.FromFollower {
		res.Err = v.checkFollower(r.CurrentLeaderEpoch)
	} else {
		res.Err = v.check(r.CurrentLeaderEpoch)
	}
	if res.Err == nil {
		res.Err = p.mayServe()
	}
	if res.Err != nil {
		p.topic.metrics.fetched(res.Err)
		return res
	}
	p.marks(&res)
	limit := res.HighWatermark
	if r.Committed && !mutated(mutantUnstableReads) {
		limit = res.LastStableOffset
	}
	if r.LastFetchedEpoch >= 0 {
		epoch, end := p.epochEnd(v.leaderEpoch, r.LastFetchedEpoch)
		switch {
		case r.FromFollower && v.role == RoleFollower && (epoch < 0 || end < r.Offset):
			// It may only not be here yet; a fork is for the leader to find.
			res.Err = ErrOffsetNotAvailable
		case epoch < 0 && r.Offset > res.LogStartOffset:
			res.Err = p.storageError("read", log.ErrOffsetOutOfRange)
		case epoch >= 0 && (epoch < r.LastFetchedEpoch || end < r.Offset):
			res.DivergingEpoch, res.DivergingEnd = epoch, end
		}
	}
	if res.Err == nil && res.DivergingEpoch < 0 {
		p.read(&res, r, limit)
	}
	p.topic.metrics.fetched(res.Err)
	p.topic.metrics.bytesOut.Add(int64(res.Slice.Len()))
	return res
}

func newReadResult(v *view) ReadResult {
	return ReadResult{
		HighWatermark: -1, LastStableOffset: -1, LogStartOffset: -1, LogEndOffset: -1,
		LeaderID: v.leader, LeaderEpoch: v.leaderEpoch, DivergingEpoch: -1, DivergingEnd: -1,
	}
}

// marks fills in the offsets. The last stable offset is taken before the high watermark, and that before the end and the
// start, so that none is above the next.
func (p *Partition) marks(res *ReadResult) {
	res.LastStableOffset = p.lastStable.Load()
	res.HighWatermark = p.highWatermark.Load()
	res.LogStartOffset, res.LogEndOffset = p.log.StartOffset(), p.log.EndOffset()
}

// read reads batches that end at or below limit.
func (p *Partition) read(res *ReadResult, r ReadRequest, limit int64) {
	if r.FromFollower && r.Offset > res.LogEndOffset && p.view.Load().role == RoleFollower {
		res.Err = ErrOffsetNotAvailable
		return
	}
	if r.Offset < res.LogStartOffset || r.Offset > res.LogEndOffset {
		res.Err = p.storageError("read", log.ErrOffsetOutOfRange)
		return
	}
	if r.Offset >= limit || (r.MaxBytes <= 0 && !r.MinOne) {
		return
	}
	read := p.log.Read
	if r.Checked {
		read = p.log.ReadChecked
	}
	var err error
	if r.CheckFirst {
		var first log.Slice
		first, err = p.log.ReadChecked(r.Offset, limit, 0, true)
		first.Release()
	}
	var s log.Slice
	if err == nil {
		s, err = read(r.Offset, limit, r.MaxBytes, r.MinOne)
	}
	if err == nil && r.Committed && s.Len() > 0 && !mutated(mutantNoAborted) {
		// If its segment went meanwhile, so did its index: then the start has moved past the offset.
		if res.Aborted, err = p.log.AbortedTransactions(r.Offset, s.NextOffset()); err != nil {
			s.Release()
		}
	}
	if err != nil {
		p.noteReadError(err)
		res.Err = p.storageError("read", err)
		return
	}
	res.Slice = s
}

// followerFetch lets the core judge the fetch of a follower, which is also its report of what it holds (R9, R12). The
// lock is held.
func (p *Partition) followerFetch(pos *FetchPosition, replica metadata.BrokerID, brokerEpoch int64) (answer Action) {
	c, ev := p.mu.core, &p.mu.scratch.fetch
	*ev = FetchRequest{
		Replica: replica, BrokerEpoch: brokerEpoch, LeaderEpoch: pos.LeaderEpoch, Offset: pos.Offset,
		LastEpoch: pos.LastEpoch, StartOffset: pos.LogStartOffset, FoundEpoch: -1, FoundEnd: -1,
	}
	if pos.Offset < c.StartOffset() && pos.LastEpoch < 0 {
		ev.AtFirstBatch = pos.Offset == p.beginning()
	}
	if pos.LastEpoch >= 0 {
		ev.FoundEpoch, ev.FoundEnd = p.epochEnd(c.LeaderEpoch(), pos.LastEpoch)
	}
	for _, a := range c.Step(p.m.now(), ev) {
		if a.Kind == ActionAnswerFetch {
			answer = a
			continue
		}
		p.do(a)
	}
	return answer
}

// readFollower is Read for a follower, up to the log's end.
func (p *Partition) readFollower(r ReadRequest) ReadResult {
	p.mu.Lock()
	answer := p.followerFetch(&FetchPosition{
		LeaderEpoch: r.CurrentLeaderEpoch, Offset: r.Offset, LastEpoch: r.LastFetchedEpoch, LogStartOffset: r.LogStartOffset,
	}, r.ReplicaID, r.BrokerEpoch)
	res := newReadResult(p.view.Load())
	if answer.Err == nil || isOutOfRange(answer.Err) {
		p.marks(&res)
	}
	p.unlock()
	res.DivergingEpoch, res.DivergingEnd, res.Err = answer.DivergingEpoch, answer.DivergingEnd, answer.Err
	switch {
	case isOutOfRange(res.Err):
		res.LogStartOffset = p.beginning()
	case res.Err == nil && res.DivergingEpoch < 0:
		r.Offset = max(r.Offset, res.LogStartOffset)
		p.read(&res, r, res.LogEndOffset)
		p.topic.metrics.replicationBytesOut.Add(int64(res.Slice.Len()))
	}
	return res
}

// bounds fills in the offsets that a follower is told. The high watermark is taken before the end.
func (p *Partition) bounds(news *FollowerNews) {
	news.HighWatermark = p.highWatermark.Load()
	news.LogStartOffset, news.LogEndOffset = p.log.StartOffset(), p.log.EndOffset()
}

// beginning returns where a follower that has to begin anew may: the base of the batch that holds the log's first
// record, which may lie below it.
func (p *Partition) beginning() int64 {
	start := p.log.StartOffset()
	s, err := p.log.Read(start, p.log.EndOffset(), 0, true)
	if err != nil || s.Len() == 0 {
		return start
	}
	defer s.Release()
	return s.BaseOffset()
}

// epochEnd returns the largest epoch ≤ the given one and the offset at which it ends; -1, -1 when there is none. A
// leader's own epoch begins at its election, even before the first append in it (R4).
func (p *Partition) epochEnd(leaderEpoch, epoch int32) (int32, int64) {
	switch {
	case epoch == leaderEpoch:
		return epoch, p.log.EndOffset()
	case epoch < 0 || epoch > leaderEpoch:
		return -1, -1
	}
	return p.log.EpochEnd(epoch)
}
