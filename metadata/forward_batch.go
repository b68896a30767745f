package metadata

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// Proposals of coordinators, hundreds of calls a second with thousands of commits, go to the controller in a form of their own.
// In JSON the commits would be a third longer, and each call be looked through four times. The form is protobuf's, written
// by hand: fields are only ever added, and unknown ones are passed over.
//
// A controller of an earlier version does not know the method, and says so before it does anything; it is sent JSON from then on,
// for as long as its registration lasts.

// binaryForm is a second form of an operation's calls and answers.
type binaryForm[Req, Res any] struct {
	method        string
	appendRequest func([]byte, Req) []byte
	readRequest   func([]byte) (Req, error) // what it returns may have parts of the bytes
	appendResult  func([]byte, Res) []byte
	readResult    func([]byte) (Res, error) // what it returns has no part of the bytes
}

// inBinary is an operation whose calls come in its second form.
type inBinary[Req, Res any] struct{ op *operation[Req, Res] }

func (b inBinary[Req, Res]) method() string { return b.op.binary.method }

// serve reads a call: the milliseconds that the caller has left, and the request. The answer is the length of an error in JSON, the
// error, and the result.
func (b inBinary[Req, Res]) serve(s *Store, ctx context.Context, body []byte) ([]byte, error) {
	ms, n := binary.Uvarint(body)
	if n <= 0 {
		return nil, fmt.Errorf("%w: a forwarded %s of %d bytes", ErrInvalidRequest, b.method(), len(body))
	}
	req, err := b.op.binary.readRequest(body[n:])
	if err != nil {
		return nil, fmt.Errorf("%w: read a forwarded %s: %w", ErrInvalidRequest, b.method(), err)
	}
	res, err := b.op.serveLocal(s, ctx, int64(min(ms, uint64(forwardLimit/time.Millisecond))), req)
	if errors.Is(err, ErrNotController) {
		return nil, err
	}
	var failed []byte
	if err != nil {
		if failed, err = json.Marshal(newWireError(err)); err != nil {
			return nil, err
		}
	}
	out := binary.AppendUvarint(make([]byte, 0, 64), uint64(len(failed)))
	return b.op.binary.appendResult(append(out, failed...), res), nil
}

// appendBinary makes a call of the second form.
func (b *binaryForm[Req, Res]) appendCall(ms int64, req Req) []byte {
	return b.appendRequest(binary.AppendUvarint(nil, uint64(ms)), req)
}

// readAnswer reads what serve returned.
func (b *binaryForm[Req, Res]) readAnswer(body []byte) (res Res, failed error, err error) {
	length, n := binary.Uvarint(body)
	if n <= 0 || length > uint64(len(body)-n) {
		return res, nil, fmt.Errorf("an answer of %d bytes", len(body))
	}
	body = body[n:]
	if length > 0 {
		var w wireError
		if err := json.Unmarshal(body[:length], &w); err != nil {
			return res, nil, err
		}
		failed = w.err()
	}
	res, err = b.readResult(body[length:])
	return res, failed, err
}

// oldController is a controller that knows JSON only.
type oldController struct {
	id    BrokerID
	epoch int64 // of its registration; -1: none yet
}

// asRegistered names a controller as it is registered now.
func (s *Store) asRegistered(id BrokerID) oldController {
	if b := s.Image().Broker(id); b != nil {
		return oldController{id, b.Epoch}
	}
	return oldController{id, -1}
}

// Fields of groupProposals: commands, each with its kind and body. Of groupAnswers: version, and answers with the fields of
// groupAnswer; what is rare is in JSON.
const (
	proposalsCommand protowire.Number = 1

	proposalKind protowire.Number = 1
	proposalBody protowire.Number = 2

	answersVersion protowire.Number = 1
	answersAnswer  protowire.Number = 2

	answerRevision  protowire.Number = 1
	answerRevisions protowire.Number = 2 // packed
	answerRest      protowire.Number = 3 // a groupAnswer in JSON without the two
)

func appendGroupProposals(b []byte, a groupProposals) []byte {
	size := len(b)
	for _, c := range a.Commands {
		size += len(c.Body) + 24
	}
	b = append(make([]byte, 0, size), b...)
	for _, c := range a.Commands {
		b = protowire.AppendTag(b, proposalsCommand, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(protowire.SizeTag(proposalKind)+protowire.SizeVarint(uint64(c.Kind))+protowire.SizeTag(proposalBody)+protowire.SizeBytes(len(c.Body))))
		b = protowire.AppendTag(b, proposalKind, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(c.Kind))
		b = protowire.AppendTag(b, proposalBody, protowire.BytesType)
		b = protowire.AppendBytes(b, c.Body)
	}
	return b
}

func readGroupProposals(b []byte) (a groupProposals, err error) {
	err = eachField(b, func(f *fields) error {
		if !f.is(proposalsCommand, protowire.BytesType) {
			return f.skip()
		}
		in, err := f.inner()
		if err != nil {
			return err
		}
		var c groupProposal
		err = eachField(in.b[in.at:in.end], func(f *fields) error {
			switch {
			case f.is(proposalKind, protowire.VarintType):
				v, err := f.number()
				c.Kind = pb.CommandType(int32(v))
				return err
			case f.is(proposalBody, protowire.BytesType):
				in, err := f.inner()
				c.Body = in.b[in.at:in.end:in.end]
				return err
			}
			return f.skip()
		})
		a.Commands = append(a.Commands, c)
		return err
	})
	return a, err
}

func appendGroupAnswers(b []byte, a groupAnswers) []byte {
	b = appendNumber(b, answersVersion, a.Version)
	for _, answer := range a.Answers {
		from := len(b)
		b = appendNumber(b, answerRevision, answer.Revision)
		if len(answer.Revisions) > 0 {
			from := len(b)
			for _, revision := range answer.Revisions {
				b = protowire.AppendVarint(b, revision)
			}
			b = prefix(b, from, answerRevisions)
		}
		if answer.Err != nil || len(answer.Refused) > 0 || answer.Expired != nil || len(answer.Prior) > 0 {
			answer.Revision, answer.Revisions = 0, nil
			rest, err := json.Marshal(answer)
			if err != nil {
				panic(fmt.Sprintf("metadata: encode an answer: %v", err)) // strings and numbers
			}
			b = protowire.AppendBytes(protowire.AppendTag(b, answerRest, protowire.BytesType), rest)
		}
		b = prefix(b, from, answersAnswer)
	}
	return b
}

func readGroupAnswers(b []byte) (a groupAnswers, err error) {
	err = eachField(b, func(f *fields) error {
		switch {
		case f.is(answersVersion, protowire.VarintType):
			var err error
			a.Version, err = f.number()
			return err
		case f.is(answersAnswer, protowire.BytesType):
			in, err := f.inner()
			if err != nil {
				return err
			}
			answer, err := readGroupAnswer(in.b[in.at:in.end])
			a.Answers = append(a.Answers, answer)
			return err
		}
		return f.skip()
	})
	return a, err
}

func readGroupAnswer(b []byte) (a groupAnswer, err error) {
	var revision uint64
	var revisions []uint64
	err = eachField(b, func(f *fields) (err error) {
		switch {
		case f.is(answerRevision, protowire.VarintType):
			revision, err = f.number()
			return err
		case f.is(answerRevisions, protowire.BytesType):
			revisions, err = column(f, revisions, func(v uint64) uint64 { return v })
			return err
		case f.is(answerRest, protowire.BytesType):
			in, err := f.inner()
			if err != nil {
				return err
			}
			return json.Unmarshal(in.b[in.at:in.end], &a)
		}
		return f.skip()
	})
	a.Revision, a.Revisions = revision, revisions
	return a, err
}

// eachField calls of for the fields of a message, which must read the value, or pass over it.
func eachField(b []byte, of func(*fields) error) error {
	for f := (fields{b: b, end: len(b)}); ; {
		more, err := f.next()
		if err == nil && more {
			err = of(&f)
		}
		if err != nil || !more {
			return err
		}
	}
}

// skip passes over the value of a field.
func (f *fields) skip() error {
	n := protowire.ConsumeFieldValue(f.field, f.typ, f.b[f.at:f.end])
	if n < 0 {
		return protowire.ParseError(n)
	}
	f.at += n
	return nil
}
