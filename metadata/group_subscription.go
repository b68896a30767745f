package metadata

import (
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
)

// ConsumerProtocolType is the protocol type of classic groups of consumers, as opposed to Connect's and others.
const ConsumerProtocolType = "consumer"

var errSubscription = errors.New("malformed consumer subscription")

// SubscribedTopics reads the topics out of the metadata of a consumer in a classic group, as Kafka's brokers do: by version 0
// of its format, whatever its version is: int16, then an array of strings, then bytes for the assignor, which may be null. What
// newer versions have after that does not matter here.
func SubscribedTopics(b []byte) ([]string, error) {
	if len(b) < 6 || int16(binary.BigEndian.Uint16(b)) < 0 {
		return nil, errSubscription
	}
	n := int(int32(binary.BigEndian.Uint32(b[2:])))
	b = b[6:]
	if n < 0 || n > len(b)/2 {
		return nil, errSubscription
	}
	topics := make([]string, 0, n)
	for range n {
		if len(b) < 2 {
			return nil, errSubscription
		}
		size := int(int16(binary.BigEndian.Uint16(b)))
		if size < 0 || size > len(b)-2 {
			return nil, errSubscription
		}
		topics = append(topics, string(b[2:2+size]))
		b = b[2+size:]
	}
	if len(b) < 4 || int(int32(binary.BigEndian.Uint32(b))) > len(b)-4 {
		return nil, errSubscription
	}
	return topics, nil
}

// CompileSubscription reads the expression of a member that subscribes by one (KIP-848). Its syntax is RE2's, and it has to
// match the whole name of a topic.
//
// It is kept for as long as the member is, so it must not take more than maxSubscriptionSize steps: counted repetitions make a
// thousand of one (I23).
func CompileSubscription(expr string) (*regexp.Regexp, error) {
	parsed, err := syntax.Parse(expr, syntax.Perl) // by itself: it must not close our group
	if err != nil {
		return nil, fmt.Errorf("compile subscription: %w", err)
	}
	if size := sizeOf(parsed); size > maxSubscriptionSize {
		return nil, fmt.Errorf("compile subscription: the expression takes %d steps, at most %d are taken", size, maxSubscriptionSize)
	}
	re, err := regexp.Compile("^(?:" + expr + ")$")
	if err != nil {
		return nil, fmt.Errorf("compile subscription: %w", err)
	}
	return re, nil
}

// maxSubscriptionSize is enough for a list of a thousand names of topics, and some 2 MB compiled.
const maxSubscriptionSize = 50_000

// sizeOf is about how many instructions an expression is compiled to.
func sizeOf(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)
	if re.Op == syntax.OpCharClass {
		n = 1
	}
	for _, sub := range re.Sub {
		n += sizeOf(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return n
}

// Subscription is what the members of a group read, all together. It is not safe for use by several goroutines.
type Subscription struct {
	names   map[string]bool
	regexps []*regexp.Regexp
	matched map[string]bool // what the expressions have been asked
}

// Subscription returns what the members of a group read by the committed record; ok is false where that can't be told: in a
// classic group of anything but consumers, or without a protocol that its members agreed on, and where one of them says what
// can't be understood. Without members nothing is read.
func (g *Group) Subscription() (s *Subscription, ok bool) {
	s = &Subscription{names: map[string]bool{}, matched: map[string]bool{}}
	if g.Type == ClassicGroup && len(g.Members) > 0 && (g.ProtocolType != ConsumerProtocolType || g.Protocol == "") {
		return nil, false
	}
	seen := map[string]bool{}
	for _, m := range g.Members {
		topics := m.Subscription
		if g.Type == ClassicGroup {
			said, err := m.subscribed(g.Protocol)
			if err != nil {
				return nil, false
			}
			topics = said
		} else if expr := m.SubscriptionRegex; expr != "" && !seen[expr] {
			seen[expr] = true
			re, err := CompileSubscription(expr)
			if err != nil {
				return nil, false
			}
			s.regexps = append(s.regexps, re)
		}
		for _, t := range topics {
			s.names[t] = true
		}
	}
	return s, true
}

// subscribed are the topics that a consumer of a classic group names under the protocol in use. What it says under others is
// not looked at.
func (m *GroupMember) subscribed(protocol string) ([]string, error) {
	for i := range m.Protocols {
		if p := &m.Protocols[i]; p.Name == protocol {
			return SubscribedTopics(p.Metadata)
		}
	}
	return nil, errSubscription
}

// Has reports whether a topic of that name is read.
func (s *Subscription) Has(topic string) bool {
	if s.names[topic] || len(s.regexps) == 0 {
		return s.names[topic]
	}
	matches, asked := s.matched[topic]
	for i := 0; !asked && i < len(s.regexps) && !matches; i++ {
		matches = s.regexps[i].MatchString(topic)
	}
	s.matched[topic] = matches
	return matches
}
