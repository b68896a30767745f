package kafka

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/transport"
)

// A consumer that was given records and asks for the same offset again may not have liked them: its copy is read with
// the checksums looked at, so that a replica with bit rot which leads is found by the first consumer that gets stuck at
// it (L9, I19, I20) and not only when the scrubber comes by. A consumer that gives up and is started again asks on another
// connection, where it begins with the batch that it could not read: the first batch of a partition that a connection is
// given is looked at, too. Clients that read something twice for reasons of their own pay for one checked read.

// doubtBytes bounds what a checked read looks at, beyond a first batch that is larger: what such a client does not get
// past is at the offset it asks for.
const doubtBytes = 1 << 20

// fetchDoubts remembers where the last answers of one connection began, one number for each partition: of the
// connection and not of the session, since clients forget partitions whose records they have not handed on yet, and some
// have no sessions. Partitions that share a place overwrite each other, which only loses a suspicion.
//
// A fetch reads it on the goroutine that reads from the connection or the one that writes to it.
type fetchDoubts struct {
	marks [126]atomic.Uint64
	// glance is of something else, where a connection that fetches keeps what it has (fetch_readers.go).
	glance fetchGlance
}

// doubtsKey finds the fetchDoubts of a connection.
type doubtsKey struct{}

// doubtsOf returns what is remembered of a connection. Called by the goroutine that reads from it.
func doubtsOf(conn *transport.Conn) *fetchDoubts {
	d, _ := conn.Value(doubtsKey{}).(*fetchDoubts)
	if d == nil {
		d = new(fetchDoubts)
		conn.SetValue(doubtsKey{}, d)
	}
	return d
}

// fetchMark stands for records of a partition that were asked for from one offset.
type fetchMark struct {
	place uint8
	// value is a hash whose lowest bit says that the checksums were looked at; 0 stands for no records.
	value uint64
}

// markOf returns the mark of records that nobody looked at. Two that are equal by chance cost a checked read.
func markOf(p *replication.Partition, offset int64) fetchMark {
	const odd = 0x9e3779b97f4a7c15
	id := p.TopicID()
	h := (binary.LittleEndian.Uint64(id[:8]) ^ uint64(p.ID())*odd) * odd
	h = (h ^ h>>32 ^ binary.LittleEndian.Uint64(id[8:])) * odd
	place := uint8(h>>32) % uint8(len(fetchDoubts{}.marks))
	h = (h ^ h>>32 ^ uint64(offset)) * odd
	return fetchMark{place, (h ^ h>>32) &^ 1}
}

// last returns what was noted in the place of m: m itself when these records were sent last and nobody looked at them,
// m.checked() when somebody did, m.none() before any.
func (d *fetchDoubts) last(m fetchMark) fetchMark { return fetchMark{m.place, d.marks[m.place].Load()} }

// checked returns the mark of the same records, good.
func (m fetchMark) checked() fetchMark { return fetchMark{m.place, m.value | 1} }

// none returns the mark of an empty place.
func (m fetchMark) none() fetchMark { return fetchMark{m.place, 0} }

// served notes that the records of m are sent.
func (d *fetchDoubts) served(m fetchMark) { d.marks[m.place].Store(m.value) }
