package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/metadata"
)

// Exit codes. They are a promise to scripts: a meaning never moves to another number.
const (
	exitOK           = 0
	exitFailed       = 1 // the server refused, or something failed
	exitUsage        = 2
	exitSome         = 3 // some items of a batch failed, others are done
	exitNoConnection = 4
	exitCondition    = 5 // the condition that was asked for is not met
	exitTimeout      = 6
	exitUnauthorised = 7
	exitInterrupted  = 130
)

// failure is what every error becomes before it is printed: what failed, why, and what to type.
type failure struct {
	code           int
	what, why, fix string
	cause          error
}

// Error returns the three lines, without "error: ".
func (f *failure) Error() string {
	s := f.what
	if f.why != "" {
		s += "\nwhy:   " + f.why
	}
	if f.fix != "" {
		s += "\nfix:   " + f.fix
	}
	return s
}

// Unwrap returns what led to the failure.
func (f *failure) Unwrap() error { return f.cause }

// ExitCode is the process's exit code.
func (f *failure) ExitCode() int { return f.code }

func usageError(what, fix string) *failure { return &failure{code: exitUsage, what: what, fix: fix} }

// silent ends the command with a code whose reason was printed already.
type silent int

func (s silent) Error() string { return fmt.Sprintf("exit code %d", int(s)) }
func (s silent) ExitCode() int { return int(s) }

// printFailure writes the three lines to stderr.
func printFailure(w io.Writer, f *failure) {
	fmt.Fprintf(w, "error: %s\n", f.Error())
}

// splitMessage takes a text of three lines (what, why, fix) apart; servers of ours send such ErrorMessages.
func splitMessage(text string) (what, why, fix string) {
	what, rest, _ := strings.Cut(text, "\nwhy:   ")
	if rest == "" {
		what, fix, _ = strings.Cut(text, "\nfix:   ")
		return what, "", fix
	}
	why, fix, _ = strings.Cut(rest, "\nfix:   ")
	return what, why, fix
}

// explain turns any error into a failure. doing says what was being done ("create topic orders"); it opens the text
// when the error does not say it itself.
func explain(doing string, err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	f = &failure{code: exitFailed, what: "cannot " + doing, why: err.Error(), cause: err}
	var kafka *kerr.Error
	var mend *metadata.Error
	var dial *net.OpError
	var first *kgo.ErrFirstReadEOF
	switch {
	case errors.As(err, &kafka):
		return explainCode(doing, kafka, "")
	case errors.As(err, &mend):
		f.what, f.why, f.fix = mend.What, mend.Why, mend.Fix
		if errors.Is(err, metadata.ErrInvalidConfig) {
			f.code = exitUsage
		}
	case errors.Is(err, context.Canceled), errors.Is(err, kgo.ErrClientClosed):
		f.code, f.why, f.fix = exitInterrupted, "interrupted", "run it again"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, kgo.ErrRecordTimeout), errors.Is(err, kgo.ErrRecordRetries):
		f.code, f.why, f.fix = exitTimeout, "the cluster did not answer in time", "raise --timeout, or look at millrace cluster health"
	case errors.As(err, &first):
		f.code, f.why, f.fix = exitNoConnection, "the broker closed the connection before it answered anything", "is it a Kafka listener, and without TLS? otherwise see the broker's log"
	case errors.As(err, &dial) && dial.Op == "dial":
		f.code, f.why = exitNoConnection, dialReason(err)
		f.fix = "is that broker running? millrace cluster health   shows which brokers answer"
	}
	return f
}

// dialReason says in few words why a connection could not be made.
func dialReason(err error) string {
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.As(err, &dns):
		return fmt.Sprintf("the name %s does not resolve here", dns.Name)
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused: nothing listens there"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "no answer in time: a firewall, or a machine that is down"
	case errors.As(err, &op) && op.Err != nil:
		return op.Err.Error()
	}
	return err.Error()
}

// explainCode explains an error code of the protocol. message is the server's own text, which wins when there is one.
func explainCode(doing string, k *kerr.Error, message string) *failure {
	f := &failure{code: exitFailed, what: "cannot " + doing, why: k.Description, cause: k}
	if what, why, fix := splitMessage(message); message != "" {
		switch {
		case why != "":
			f.what, f.why, f.fix = what, why, fix
		default:
			f.why, f.fix = what, fix
		}
	}
	fix := func(why, fix string) {
		if message == "" {
			f.why = why
		}
		if f.fix == "" {
			f.fix = fix
		}
	}
	switch k.Code {
	case kerr.UnknownTopicOrPartition.Code, kerr.UnknownTopicID.Code:
		fix("there is no such topic or partition", "millrace topic list   shows the topics")
	case kerr.TopicAlreadyExists.Code:
		fix("a topic of that name exists", "add --if-not-exists when that is fine")
	case kerr.InvalidTopicException.Code:
		fix("a topic name has 1 to 249 of the characters a-z A-Z 0-9 . _ -", "choose another name")
	case kerr.InvalidPartitions.Code:
		fix("the number of partitions must be at least 1, and can only grow", "millrace topic describe NAME   shows how many there are")
	case kerr.InvalidReplicationFactor.Code:
		fix("there are fewer brokers than replicas were asked for", "millrace cluster info   shows the brokers; leave -r out for the default")
	case kerr.InvalidConfig.Code:
		fix("a config is unknown, or its value is not allowed", "see the names in millrace topic describe NAME -c")
	case kerr.OffsetOutOfRange.Code:
		fix("the offset is outside the log", "millrace topic offsets NAME   shows the first and last offset")
	case kerr.RequestTimedOut.Code:
		f.code = exitTimeout
		fix("the cluster did not finish in time; the change may still happen", "raise --timeout, and look before you try again")
	case kerr.TopicAuthorizationFailed.Code, kerr.ClusterAuthorizationFailed.Code, kerr.GroupAuthorizationFailed.Code,
		kerr.TransactionalIDAuthorizationFailed.Code, kerr.SaslAuthenticationFailed.Code:
		f.code = exitUnauthorised
		fix(k.Description, "ask for the right, or connect as another user (-X)")
	case kerr.TopicDeletionDisabled.Code:
		fix("the brokers run with delete.topic.enable=false", "set delete.topic.enable=true on the brokers")
	case kerr.MessageTooLarge.Code:
		fix("a record is larger than the topic's max.message.bytes", "millrace topic alter-config NAME --set max.message.bytes=…")
	case kerr.NotEnoughReplicas.Code, kerr.NotEnoughReplicasAfterAppend.Code:
		fix("fewer replicas are in sync than min.insync.replicas", "millrace cluster health   shows which")
	case kerr.KafkaStorageError.Code:
		fix("the broker's disk failed or is full", "see the broker's log, then restart it")
	}
	if f.fix == "" {
		f.fix = "millrace cluster health   shows how the cluster is"
	}
	return f
}
