package kafka

import (
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/replication"
)

// WriteTxnMarkers (key 27), versions 1 and 2 (KIP-98).
//
//	v1    flexible
//	v2    the transaction protocol of the producer
//
// In Kafka the coordinator sends it to the leaders; ours write the markers by what they see
// in the metadata. It is here for administrators: a transaction of which no coordinator
// knows any more is ended with it (KIP-664). The answer comes when the markers are on disk
// on every replica in sync; each partition stands for itself.

// markerTimeout bounds the wait for the replicas; Kafka's request has no timeout.
const markerTimeout = 30 * time.Second

// markerCall is one request in work.
type markerCall struct {
	codes   []int16 // by partition, in the order of the request
	pending atomic.Int32
	answer  func(codes []int16)
}

// Appended implements replication.AppendWaiter.
func (m *markerCall) Appended(i int, r replication.AppendResult) {
	m.codes[i] = codeOf(r.Err)
	m.complete()
}

func (m *markerCall) complete() {
	if m.pending.Add(-1) == 0 {
		m.answer(m.codes)
	}
}

func (h *Handlers) writeTxnMarkers(c *call, req *kmsg.WriteTxnMarkersRequest) {
	n := 0
	for i := range req.Markers {
		for j := range req.Markers[i].Topics {
			n += len(req.Markers[i].Topics[j].Partitions)
		}
	}
	address := c.req.Conn.RemoteAddr()
	m := &markerCall{codes: make([]int16, n)}
	m.pending.Store(int32(n) + 1)
	m.answer = answerTransaction(h, c, func(c *call, codes []int16) kmsg.Response { return markersAnswer(c, req, codes) })
	at, written, told := 0, 0, 0
	for i := range req.Markers {
		marker := &req.Markers[i]
		for j := range marker.Topics {
			topic := &marker.Topics[j]
			for _, p := range topic.Partitions {
				part, err := h.cfg.Replicas.Partition(topic.Topic, p)
				switch {
				case err != nil:
				case marker.ProducerID < 0 || marker.ProducerEpoch < 0: // what nobody can have written ends nothing
					err = log.ErrInvalidProducerEpoch
				case marker.CoordinatorEpoch < -1: // -1 is that of nobody, older than all
					err = log.ErrCoordinatorFenced
				}
				if err != nil {
					m.Appended(at, replication.AppendResult{Err: err})
				} else {
					// A request has as many markers as its size allows.
					if written++; h.markerNoise.Allow() {
						h.logger.Warn("transaction marker written by request", "topic", topic.Topic, "partition", p, "producerId", marker.ProducerID,
							"producerEpoch", marker.ProducerEpoch, "commit", marker.Committed, "client", c.req.ClientID, "address", address)
						told++
					}
					part.AppendMarker(replication.MarkerRequest{
						ProducerID: marker.ProducerID, ProducerEpoch: marker.ProducerEpoch, Commit: marker.Committed, CoordinatorEpoch: marker.CoordinatorEpoch,
						TransactionVersion: marker.TransactionVersion, CurrentLeaderEpoch: -1, Timeout: markerTimeout, Waiter: m, Index: at,
					})
				}
				at++
			}
		}
	}
	if told < written && h.noise.Allow() {
		h.logger.Warn("transaction markers written by request, of which not all are logged", "markers", written, "client", c.req.ClientID, "address", address)
	}
	m.complete()
}

func markersAnswer(c *call, req *kmsg.WriteTxnMarkersRequest, codes []int16) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.WriteTxnMarkersResponse)
	for i := range req.Markers {
		rm := kmsg.NewWriteTxnMarkersResponseMarker()
		rm.ProducerID = req.Markers[i].ProducerID
		for j := range req.Markers[i].Topics {
			rt := kmsg.NewWriteTxnMarkersResponseMarkerTopic()
			rt.Topic = req.Markers[i].Topics[j].Topic
			for _, p := range req.Markers[i].Topics[j].Partitions {
				rp := kmsg.NewWriteTxnMarkersResponseMarkerTopicPartition()
				rp.Partition, rp.ErrorCode, codes = p, c.error(codes[0]), codes[1:]
				rt.Partitions = append(rt.Partitions, rp)
			}
			rm.Topics = append(rm.Topics, rt)
		}
		resp.Markers = append(resp.Markers, rm)
	}
	return resp
}
