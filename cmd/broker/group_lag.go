package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/transport/console"
	"github.com/millrace/millrace/transport/peer"
)

// groupPlacesMethod is the call between brokers that asks a leader for what waits to be read.
const groupPlacesMethod = "groups.places"

// placesTimeout bounds how long other brokers may take to say how far their logs are.
const placesTimeout = 2 * time.Second

// placeQuestion asks for what waits behind a group's offset in one partition.
type placeQuestion struct {
	Topic     metadata.TopicID `json:"t"`
	Partition int32            `json:"p"`
	Offset    int64            `json:"o"`
	// Batch asks what the batch at Offset is, which costs a read of it.
	Batch bool `json:"b,omitempty"`
}

// place is what the leader of a partition says of a group's offset. Start ≤ End.
type place struct {
	Start int64 `json:"s"` // first offset that is there
	End   int64 `json:"e"` // next offset to be read by nobody yet: the high watermark
	// First is when the first batch that waits was written, in milliseconds of its header; -1 when none waits.
	First int64 `json:"f"`
	// Left is how long retention leaves the first record that waits alone, in milliseconds, as things are; -1 when it will not delete
	// it, or nothing waits. BySize: by retention.bytes, at the rate at which the log grows.
	Left   int64 `json:"r"`
	BySize bool  `json:"z,omitempty"`
	// Stable is up to where readers of committed records may read, Held the open transaction that keeps them from End.
	Stable int64                    `json:"l"`
	Held   *console.HeldTransaction `json:"h,omitempty"`
	// BatchBytes and BatchTrouble are the answer to placeQuestion.Batch: its size, or why it cannot be read.
	BatchBytes   int64  `json:"n,omitempty"`
	BatchTrouble string `json:"w,omitempty"`
	Error        string `json:"x,omitempty"`
	// Damaged says that Error is damage of the only copy that counts: where another one does, that one leads soon.
	Damaged bool `json:"d,omitempty"`
}

var errDamaged = errors.New("the leader's copy is damaged")

// lag is how many records wait that are still there.
func (p *place) lag(offset int64) int64 { return max(p.End-max(offset, p.Start), 0) }

// age is how old the first batch is that waits, 0 when none does.
func (p *place) age(now time.Time) time.Duration {
	if p.First < 0 {
		return 0
	}
	return max(now.Sub(time.UnixMilli(p.First)), 0)
}

// lagReader finds out how far groups are behind. The coordinator of a group knows its offsets; where the logs end is known
// to the partitions' leaders, which it asks: itself, or each other broker with one call for all partitions.
type lagReader struct {
	b *Broker

	mu struct {
		sync.Mutex
		// batches are the last batch looked at in each partition: a group that stands still is not read for again.
		batches map[replication.TopicIDPartition]batchTimes
	}
}

// batchTimes are the times in the header of a batch that spans offsets, next exclusive.
type batchTimes struct{ base, next, first, last int64 }

// batchesKept bounds the memory of lagReader; above it, it begins anew.
const batchesKept = 100_000

func newLagReader(b *Broker) *lagReader {
	l := &lagReader{b: b}
	l.mu.batches = map[replication.TopicIDPartition]batchTimes{}
	if b.peers != nil {
		handle(b.peers, groupPlacesMethod, func(_ context.Context, asked []placeQuestion) ([]place, error) { return l.local(asked), nil })
	}
	return l
}

// read asks the leaders. A place that is not known says why in its Error.
func (l *lagReader) read(ctx context.Context, asked []placeQuestion) []place {
	places := make([]place, len(asked))
	im := l.b.store.Image()
	byLeader := map[metadata.BrokerID][]int{}
	for i := range asked {
		leader := metadata.NoBroker
		if t := im.TopicByID(asked[i].Topic); t != nil && int(asked[i].Partition) < len(t.Partitions) {
			leader = t.Partitions[asked[i].Partition].Leader
		}
		byLeader[leader] = append(byLeader[leader], i)
	}
	ctx, cancel := context.WithTimeout(ctx, placesTimeout)
	defer cancel()
	var others sync.WaitGroup
	for leader, indexes := range byLeader {
		some := make([]placeQuestion, len(indexes))
		for j, i := range indexes {
			some[j] = asked[i]
		}
		put := func(answers []place, err error) {
			if err == nil && len(answers) != len(indexes) {
				err = errors.New("the answer is for other partitions")
			}
			for j, i := range indexes {
				if err != nil {
					places[i] = place{First: -1, Left: -1, Error: oneLine(err.Error())}
					continue
				}
				places[i] = answers[j]
			}
		}
		switch leader {
		case l.b.nodeID:
			put(l.local(some), nil)
		case metadata.NoBroker:
			put(nil, errors.New("the partition has no leader"))
		default:
			others.Go(func() { put(l.remote(ctx, im.Broker(leader), l.b.peers, some)) })
		}
	}
	others.Wait()
	return places
}

func (l *lagReader) remote(ctx context.Context, leader *metadata.Broker, peers *peer.Peers, asked []placeQuestion) (answers []place, err error) {
	if leader == nil || peers == nil || leader.PeerAddress == "" {
		return nil, errors.New("the partition's leader cannot be asked")
	}
	err = callJSON(ctx, peers, leader.PeerAddress, groupPlacesMethod, asked, &answers)
	return answers, err
}

// local answers for the partitions that this broker leads.
func (l *lagReader) local(asked []placeQuestion) []place {
	places := make([]place, len(asked))
	for i := range asked {
		places[i].First, places[i].Left = -1, -1
		if err := l.look(&asked[i], &places[i]); err != nil {
			places[i] = place{First: -1, Left: -1, Error: oneLine(err.Error()), Damaged: errors.Is(err, errDamaged)}
		}
	}
	return places
}

func (l *lagReader) look(asked *placeQuestion, p *place) error {
	part, err := l.b.replicas.PartitionByID(asked.Topic, asked.Partition)
	if err != nil {
		return err
	}
	if !part.IsLeader() {
		if damage := part.Damage(); damage != nil {
			return fmt.Errorf("%w: %w", errDamaged, damage)
		}
		return replication.ErrNotLeader
	}
	p.Start, p.End = part.StartOffset(), part.HighWatermark()
	p.Stable = min(part.LastStableOffset(), p.End)
	if h, ok := l.b.heldPartition(l.b.store.Image(), part, l.b.now()); ok {
		p.Held = h.report()
	}
	if p.lag(asked.Offset) == 0 {
		return nil
	}
	from := max(asked.Offset, p.Start)
	if asked.Batch {
		p.lookAtBatch(part, from)
	}
	if left, by := part.RetentionLeft(from); by != log.DoomNone {
		p.Left, p.BySize = left.Milliseconds(), by == log.DoomSize
	}
	key := replication.TopicIDPartition{TopicID: asked.Topic, Partition: asked.Partition}
	l.mu.Lock()
	t, ok := l.mu.batches[key]
	l.mu.Unlock()
	if !ok || from < t.base || from >= t.next {
		if t.base, t.next, t.first, t.last, err = part.BatchTimes(from); err != nil {
			return err
		}
		if t.base == t.next {
			return nil
		}
		l.mu.Lock()
		if len(l.mu.batches) >= batchesKept {
			clear(l.mu.batches)
		}
		l.mu.batches[key] = t
		l.mu.Unlock()
	}
	// Within a batch the header says when its last record was written: an earlier one may be a little older.
	if p.First = t.last; from <= t.base {
		p.First = t.first
	}
	return nil
}
