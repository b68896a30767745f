package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/replication"
)

// A consumer that is told that its offset is above the log's end begins anew where its settings say (auto.offset.reset): at the
// start, and reads everything again, or at the end, and never reads what is between. A leader that stood still, or was cut off,
// while another was elected would say that of records it only does not have yet: until it has heard of the election its lease may
// hold (R16), and a consumer that comes to it by old metadata may have been further with the other. So this one answer is given
// by who has asked the quorum after the request came, and still leads: there is no other reason for it but lost records, a topic
// made anew and a mistaken client, so that its price is of no matter.

// newestWait bounds the wait for a word with the quorum: the answers of the connection's later requests wait too.
const newestWait = 2 * time.Second

// doubted returns the error of a read, or what a consumer is to be told for it as long as it is not certain: that it should ask again.
func (f *fetchCall) doubted(t *fetchTarget, res *replication.ReadResult) error {
	if f.proven || t.fetchOffset <= res.LogStartOffset || !errors.Is(res.Err, log.ErrOffsetOutOfRange) {
		return res.Err
	}
	f.beyond = true
	return replication.ErrLeaseLapsed
}

// prove reads once more, and answers, when this broker has acted on all metadata that there was when the request came. Without a
// quorum to ask the client is told to ask again.
func (f *fetchCall) prove() {
	f.h.work.Go(func() {
		f.proven = f.h.newest() == nil
		if _, code := f.read(func(int, bool) bool { return true }); code != codeNone {
			f.refuse(code)
			return
		}
		f.req.Reply(f.response(codeNone))
	})
}

// newest waits until this broker has acted upon everything that is committed in the metadata by now, as far as anybody may know.
func (h *Handlers) newest() error {
	ctx, cancel := context.WithTimeout(h.ctx, newestWait)
	defer cancel()
	if err := h.cfg.Store.Barrier(ctx); err != nil {
		return err
	}
	return h.await(ctx)
}
