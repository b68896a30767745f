package broker

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/transport/console"
)

// groupReadersMethod is the call between brokers that asks where clients read in partitions.
const groupReadersMethod = "groups.readers"

// Bounds of one readersCall: who asks for more is answered about the first.
const (
	readersClients    = 64
	readersPartitions = 2000
	readersOfOne      = 8 // answers about one partition, by one broker
	// readersID is how long a client id may be that is asked for: answers name it for each partition, and brokers keep no more.
	readersID = 200
)

// readersCall asks where clients read.
type readersCall struct {
	Clients    []readersClient   `json:"c"`
	Partitions []readersQuestion `json:"p"`
}

type readersClient struct {
	ID   string `json:"i"`
	Host string `json:"h"`
}

type readersQuestion struct {
	Topic     metadata.TopicID `json:"t"`
	Partition int32            `json:"p"`
}

// readersAnswer is about the partition at an index of the call.
type readersAnswer struct {
	Index   int                   `json:"n"`
	Readers []console.GroupReader `json:"r"`
}

// readers answers of what this broker has sent.
func (r groupReports) readers(_ context.Context, asked readersCall) ([]readersAnswer, error) {
	var out []readersAnswer
	for i, q := range asked.Partitions[:min(len(asked.Partitions), readersPartitions)] {
		a := readersAnswer{Index: i}
		for _, c := range asked.Clients[:min(len(asked.Clients), readersClients)] {
			for _, f := range r.b.handlers.Readers(replication.TopicIDPartition{TopicID: q.Topic, Partition: q.Partition}, c.ID, c.Host) {
				a.Readers = append(a.Readers, console.GroupReader{
					Broker: int32(r.b.nodeID), ClientID: c.ID, Host: c.Host, Offset: f.Offset, SinceMS: f.Since.Milliseconds(), SeenMS: f.Seen.Milliseconds(),
					Asked: f.Asked, Served: f.Served, MaxBytes: f.MaxBytes, Error: f.Error,
				})
			}
		}
		if len(a.Readers) > 0 {
			latestReaders(&a.Readers, readersOfOne)
			out = append(out, a)
		}
	}
	return out, nil
}

// latestReaders sorts readers, the latest first, and keeps the first most.
func latestReaders(rs *[]console.GroupReader, most int) {
	slices.SortStableFunc(*rs, func(a, b console.GroupReader) int { return cmp.Compare(a.SeenMS, b.SeenMS) })
	*rs = (*rs)[:min(len(*rs), most)]
}

// addReaders adds to the partitions of a report where the group's clients read, members and those that went lately. All brokers are
// asked: a consumer may read from a follower (KIP-392). What one does not know or does not answer is left out.
func (r groupReports) addReaders(ctx context.Context, report *console.GroupReport) {
	call := readersCall{}
	add := func(id, host string) {
		if c := (readersClient{id, host}); host != "" && len(id) <= readersID && len(call.Clients) < readersClients && !slices.Contains(call.Clients, c) {
			call.Clients = append(call.Clients, c)
		}
	}
	for i := range report.Members {
		add(report.Members[i].ClientID, report.Members[i].Host)
	}
	for i := range report.Churn {
		add(report.Churn[i].ClientID, report.Churn[i].Host)
	}
	im := r.b.store.Image()
	var indexes []int
	for i := range report.Partitions {
		p := &report.Partitions[i]
		p.Readers = []console.GroupReader{}
		if t := im.Topic(p.Topic); t != nil && p.Lag > 0 && len(indexes) < readersPartitions {
			indexes = append(indexes, i)
			call.Partitions = append(call.Partitions, readersQuestion{t.ID, p.Partition})
		}
	}
	if len(call.Clients) == 0 || len(indexes) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, placesTimeout)
	defer cancel()
	var mu sync.Mutex
	put := func(answers []readersAnswer) {
		mu.Lock()
		defer mu.Unlock()
		for _, a := range answers {
			if a.Index >= 0 && a.Index < len(indexes) {
				p := &report.Partitions[indexes[a.Index]]
				p.Readers = append(p.Readers, a.Readers...)
			}
		}
	}
	var others sync.WaitGroup
	for _, b := range im.Brokers() {
		if b.ID == r.b.nodeID || b.PeerAddress == "" || r.b.peers == nil {
			continue
		}
		others.Go(func() {
			var answers []readersAnswer
			if callJSON(ctx, r.b.peers, b.PeerAddress, groupReadersMethod, call, &answers) == nil {
				put(answers)
			}
		})
	}
	own, _ := r.readers(ctx, call)
	put(own)
	others.Wait()
	for _, i := range indexes {
		latestReaders(&report.Partitions[i].Readers, readersOfOne)
	}
}
