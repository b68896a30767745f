package check

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// topicPatience bounds the search for an order of the operations on topics.
const topicPatience = 30 * time.Second

// topicCall is one call about one topic name.
type topicCall struct {
	f   F
	key string
}

// topicAnswer is what came back; done is OK, Fail or Info.
type topicAnswer struct {
	done    Type
	id, why string
}

// The state of a name is the id of its topic: "" when there is none, unknownID when an unanswered creation may have
// made one.
const unknownID = "?"

// topicModel is a name as a register of ids. A creation needs it empty, a deletion needs the id in it, a description
// reads it. An operation without a known outcome happened or did not.
var topicModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{""} },
	Step: func(now, input, output any) []any {
		id, call, a := now.(string), input.(topicCall), output.(topicAnswer)
		exists := id != ""
		same := exists && (a.id == "" || id == unknownID || id == a.id)
		stay, never := []any{id}, []any(nil)
		when := func(ok bool, next ...any) []any {
			if ok {
				return next
			}
			return never
		}
		switch {
		case a.done == Fail && a.why == Exists:
			return when(exists, id)
		case a.done == Fail && a.why == Missing:
			return when(!exists, id)
		case a.done == Fail || call.f == DescribeTopic && a.done == Info:
			return stay // refused for other reasons: nothing was done and nothing was learnt
		case call.f == CreateTopic && a.done == OK:
			return when(!exists, orUnknown(a.id))
		case call.f == CreateTopic: // indefinite
			if exists {
				return stay
			}
			return []any{id, unknownID}
		case call.f == DeleteTopic && a.done == OK:
			return when(same, "")
		case call.f == DeleteTopic: // indefinite
			return []any{id, ""}
		case a.id != "":
			return when(same, a.id)
		}
		return when(exists, id)
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%v → %v", input, output) },
}).ToModel()

func orUnknown(id string) string {
	if id == "" {
		return unknownID
	}
	return id
}

// topics asks porcupine whether what clients saw of each topic name has an order that explains it (I13, M11).
func (c *checker) topics(ops []Op) {
	type caller struct {
		process int
		key     string
	}
	calls := map[caller]*Op{}
	byName := map[string][]porcupine.Operation{}
	end := func(call *Op, at int64, a topicAnswer) {
		byName[call.Key] = append(byName[call.Key], porcupine.Operation{ClientId: call.Process, Input: topicCall{call.F, call.Key}, Output: a, Call: call.Time, Return: at})
	}
	for i := range ops {
		o := &ops[i]
		if o.F != CreateTopic && o.F != DeleteTopic && o.F != DescribeTopic {
			continue
		}
		who := caller{o.Process, o.Key}
		if o.Type == Invoke {
			calls[who] = o
			continue
		}
		call := calls[who]
		if call == nil || call.F != o.F {
			c.report.add(Malformed, o.Key, "process %d: an answer to %s that was not asked for", o.Process, o.F)
			continue
		}
		delete(calls, who)
		a, at := topicAnswer{o.Type, o.Text, o.Error}, o.Time
		if o.Type == Info {
			at = math.MaxInt64
		}
		end(call, at, a)
	}
	for _, call := range calls {
		end(call, math.MaxInt64, topicAnswer{done: Info})
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		if porcupine.CheckOperationsTimeout(topicModel, byName[name], topicPatience) == porcupine.Illegal {
			c.report.add(NotLinearizable, name, "no order of its %d creations, deletions and descriptions explains their answers", len(byName[name]))
		}
	}
}
