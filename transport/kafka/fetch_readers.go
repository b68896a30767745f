package kafka

import (
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/replication"
)

// Where consumers read is remembered for people: why a group does not get on shows in whether its members ask for the same offset
// again and again, for later ones without committing any, or for nothing at all. Group and fetch meet in the client's id and host
// alone, so that it is a guess where several programs of one machine share an id.
//
// A fetch pays for the look at a clock that it has read anyhow, and one answer of a connection in readersEvery for the rest. What
// is remembered is bounded, decides nothing, and does not last.

const (
	// readersEvery is how often an answer of one connection is looked at.
	readersEvery = 2 * time.Second
	// readersKept is how many clients of partitions are remembered in each of the two generations. A generation gets old when it
	// is full or after readersAge; who was not seen while it was the older one is forgotten.
	readersKept = 8192
	readersAge  = 5 * time.Minute
	// readersLooked bounds the partitions of one answer that are looked at: the next look of the connection is at the next ones.
	readersLooked = 512
	// readerConns is how many connections of one client are told apart in one partition.
	readerConns = 4
	// readerName bounds what is kept of a client's id.
	readerName = 200
)

// FetchReader is where a client reads in a partition, as far as its fetches were looked at: one answer every two seconds.
type FetchReader struct {
	// Offset is where it read last; Since is for how long it has asked for that, over connections too, and Seen how long ago it did.
	Offset      int64
	Since, Seen time.Duration
	// Asked is how many of the answers that were looked at were about that offset, Served how many of them had records.
	Asked, Served int
	// MaxBytes is the most that the client takes of the partition in one answer.
	MaxBytes int32
	// Error is the name of the error that it was answered last, "" for none.
	Error string
}

type readerKey struct {
	part         replication.TopicIDPartition
	client, host string
}

type readerPlace struct {
	conn          uint64
	offset        int64
	since, seen   time.Time
	asked, served int
	maxBytes      int32
	code          int16
}

// fetchReaders remember the readers of the partitions of this broker.
type fetchReaders struct {
	conns atomic.Uint64 // numbers connections

	mu         sync.Mutex
	young, old map[readerKey][]readerPlace
	turned     time.Time
}

// fetchGlance says when a connection's answers are looked at next. It is used by whoever makes them, one after the other or, for a
// parked fetch, beside the next.
type fetchGlance struct {
	conn  atomic.Uint64 // its number; 0 before the first look
	next  atomic.Int64  // nanoseconds since the process began to measure
	looks atomic.Uint32
}

// readersBegan is what fetchGlance measures from.
var readersBegan = time.Now()

// due reports whether an answer to a request received at a time is to be looked at.
func (g *fetchGlance) due(at time.Time) bool {
	now, next := int64(at.Sub(readersBegan)), g.next.Load()
	return now >= next && g.next.CompareAndSwap(next, now+int64(readersEvery))
}

// look remembers what an answer says: parallel to f.order and f.parts. The caller holds the session's lock, if there is one.
func (rs *fetchReaders) look(f *fetchCall) {
	conn := f.doubts.glance.conn.Load()
	if conn == 0 {
		conn = rs.conns.Add(1)
		f.doubts.glance.conn.Store(conn)
	}
	client, host := readerClient(f.req.ClientID), f.clientHost()
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for i := range window(len(f.order), int(f.doubts.glance.looks.Add(1)-1)) {
		t := f.order[i]
		part, err := f.find(t)
		if err != nil {
			continue
		}
		p := &f.parts[i]
		at := readerPlace{conn: conn, offset: t.fetchOffset, since: f.started, seen: f.started, asked: 1, maxBytes: t.maxBytes, code: p.errorCode}
		if p.records != nil {
			at.served = 1
		}
		rs.noteLocked(readerKey{replication.TopicIDPartition{TopicID: part.TopicID(), Partition: part.ID()}, client, host}, at)
	}
}

// window yields the indexes that a look is at, of n: all of them in turn, readersLooked each time.
func window(n, look int) iter.Seq[int] {
	return func(yield func(int) bool) {
		from := 0
		if n > readersLooked {
			from = look % ((n + readersLooked - 1) / readersLooked) * readersLooked
		}
		for i := from; i < min(n, from+readersLooked); i++ {
			if !yield(i) {
				return
			}
		}
	}
}

// readerClient is what is kept of a client's id. Of a longer one it is a copy, which does not keep the rest in memory.
func readerClient(id string) string {
	if len(id) > readerName {
		id = strings.Clone(strings.ToValidUTF8(id[:readerName], ""))
	}
	return id
}

func (rs *fetchReaders) noteLocked(key readerKey, at readerPlace) {
	places, young := rs.young[key]
	if !young {
		places = rs.old[key]
		if len(rs.young) >= readersKept || at.seen.Sub(rs.turned) > readersAge {
			rs.old, rs.young, rs.turned = rs.young, nil, at.seen
		}
		if rs.young == nil {
			rs.young = map[readerKey][]readerPlace{}
		}
	}
	i := slices.IndexFunc(places, func(p readerPlace) bool { return p.conn == at.conn })
	if i < 0 { // it may have been started again, and stand where it stood
		i = slices.IndexFunc(places, func(p readerPlace) bool { return p.offset == at.offset })
	}
	switch {
	case i >= 0:
		p := &places[i]
		if p.offset == at.offset {
			at.since, at.asked, at.served = p.since, p.asked+1, p.served+at.served
		}
		*p = at
	case len(places) < readerConns:
		places = append(places, at)
	default:
		places[slices.IndexFunc(places, func(p readerPlace) bool {
			return !slices.ContainsFunc(places, func(o readerPlace) bool { return o.seen.Before(p.seen) })
		})] = at
	}
	rs.young[key] = places
}

// Readers says where a client reads in a partition that this broker has, by its id and host as a member's description has them;
// the latest first.
func (h *Handlers) Readers(part replication.TopicIDPartition, client, host string) []FetchReader {
	now := time.Now()
	rs := &h.readers
	rs.mu.Lock()
	defer rs.mu.Unlock()
	key := readerKey{part, readerClient(client), host}
	places, ok := rs.young[key]
	if !ok {
		places = rs.old[key]
	}
	var out []FetchReader
	for _, p := range places {
		seen := now.Sub(p.seen)
		if seen > 2*readersAge {
			continue
		}
		r := FetchReader{Offset: p.offset, Since: now.Sub(p.since), Seen: seen, Asked: p.asked, Served: p.served, MaxBytes: p.maxBytes}
		if p.code != 0 {
			r.Error = codeName(p.code)
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b FetchReader) int { return int(a.Seen - b.Seen) })
	return out
}
