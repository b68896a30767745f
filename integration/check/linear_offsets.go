package check

import (
	"fmt"
	"time"

	"github.com/anishathalye/porcupine"
)

// offsetPatience bounds the search for an order of the commits of one partition in one group.
const offsetPatience = 10 * time.Second

// offsetModel is a committed offset as a register; -1 before the first commit. A commit without a known outcome happened or
// did not.
var offsetModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{int64(-1)} },
	Step: func(now, input, _ any) []any {
		switch a := input.(access); {
		case a.write && a.sure:
			return []any{a.offset}
		case a.write:
			return []any{now, a.offset}
		case a.offset == now.(int64):
			return []any{now}
		}
		return nil
	},
	DescribeOperation: func(input, _ any) string {
		if a := input.(access); a.write {
			return fmt.Sprintf("commit %d", a.offset)
		}
		return fmt.Sprintf("fetch → %d", input.(access).offset)
	},
}).ToModel()

// linear asks porcupine whether the commits and answers have an order that explains them (I18). A commit without a known
// outcome that nobody was told of is left out: it changes nothing, and each one doubles the search.
func (c *checker) linear(s *share) {
	told := map[int64]bool{}
	for _, a := range s.register {
		if !a.write {
			told[a.offset] = true
		}
	}
	var ops []porcupine.Operation
	for _, a := range s.register {
		if !a.write || a.sure || told[a.offset] {
			ops = append(ops, porcupine.Operation{ClientId: a.process, Input: a, Call: a.call, Return: a.end})
		}
	}
	if len(told) > 0 && porcupine.CheckOperationsTimeout(offsetModel, ops, offsetPatience) == porcupine.Illegal {
		c.report.add(NotLinearizable, s.key, "group %s: no order of %d commits and questions explains the answers", s.group, len(ops))
	}
}
